"""A hospital's own table: what is read, in which spellings, and the outcome of each oddity."""

import csv
import datetime
import io
import json
import os

import openpyxl
import pytest
from answers import name_answers
from data.checked import set_aside_one
from hypothesis import given
from hypothesis import strategies as st
from refusals import assert_says, refuse

from stepcot_jax.chain import DEFAULT_CHAIN, NOT_ANNOTATED
from stepcot_jax.data.sources.layouts import read_source
from stepcot_jax.host.errors import BadInput

SMALL_CHAIN = [
    {"name": "Anything", "question": "Is there anything?", "options": ["A. No", "B. Yes"]},
    {"name": "Side", "question": "Which side?", "options": ["N/A", "A. Left", "B. Right"]},
]


def write(root, text, *, encoding="utf-8"):
    (root / "cases.csv").write_bytes(text if isinstance(text, bytes) else text.encode(encoding))


def read(root, **options):
    return read_source(root, layout="csv", require_images=False, **options)


ALL_STEPS = (
    "image,Patient_ID,REPORT,origin,sex,age,view,detection,Lesion Distribution,radiographic_pattern,"
    "Anatomical-Location,morphologic feature,Secondary Effects,DIAGNOSIS\n"
)


def test_all_columns_in_any_spelling(tmp_path):
    write(
        tmp_path,
        ALL_STEPS
        + 'images/a.png,007,"A nodule, 8 mm.\nNo ""effusion"".",Ward 3,f,61,PA,B,Focal,c,(A),,N/A,B. nodule\n'
        + "images\\b.png,008,,,Male,045Y,,,,,,,,\n",
    )
    collection = read(tmp_path)
    first, second = collection.cases
    assert (collection.layout, collection.file, collection.chain) == ("csv", "cases.csv", DEFAULT_CHAIN)
    named = "Increased opacity, Focal, Nodular, Upper lung zone, None, N/A, Nodule"
    assert ", ".join(map(str, name_answers(first.answers))) == named
    assert first.report == 'A nodule, 8 mm.\nNo "effusion".'
    assert (first.patient, first.origin, first.sex, first.age, first.view) == ("007", "Ward 3", "F", 61.0, "PA")
    assert (second.image, second.sex, second.age, set(second.answers)) == ("images/b.png", "M", 45.0, {NOT_ANNOTATED})
    assert first.reasoning == ("",) * 7


@pytest.mark.parametrize("column", ["diagnosis", "Label"])
def test_a_lone_diagnosis_answers_what_follows_from_it(tmp_path, column):
    write(tmp_path, f"image,{column}\na.png,Normal\nb.png,Pneumothorax\nc.png,G\nd.png,\n")
    assert [name_answers(case.answers) for case in read(tmp_path).cases] == [
        *(["No abnormality", *["N/A"] * 5, "Normal"], ["Decreased opacity", *[None] * 5, "Pneumothorax"]),
        *([None] * 6 + ["Cardiomegaly"], [None] * 7),
    ]
    assert read(tmp_path).cases[1].reasoning[0] == "Follows from the diagnosis Pneumothorax."


def save_sheet(path, *rows):
    book = openpyxl.Workbook()
    for row in rows:
        book.active.append(row)
    book.save(path)


def test_a_workbook_is_read_as_its_csv(tmp_path):
    path, taken = tmp_path / "cases.xlsx", datetime.date(2021, 3, 1)
    save_sheet(
        path,
        [],
        ["Image", "patient_id", "taken", "BMI", "age", "Diagnosis"],
        ["a.png", 7, taken, "=A1", 61, "Mass?"],
        [],
        ["ö.png", 8.0, taken, 21.5, None, None],
        ["c.png", "=A1", taken, 20, 50, "Mass"],
        ["d.png", "P9", taken, 20, 50, "=A1"],
    )
    collection = read(tmp_path, on_bad_record="skip")
    assert [(case.image, case.patient, case.age) for case in collection.cases] == [
        ("a.png", "7", 61),
        ("ö.png", "8", None),
    ]
    told = "a cell is a formula without a stored value; open and save the table in a spreadsheet program"
    assert [item.reason.rpartition(": ")[2] for item in collection.set_aside] == [told, told]
    assert [item.reason.partition(":")[0] for item in collection.set_aside] == ["row 6", "row 7"]
    assert collection == read_source(path, on_bad_record="skip", require_images=False)
    write(tmp_path, "image,label\na.png,Mass\n")
    refuse(r"several files cases\.csv \(cases\.csv, cases\.xlsx\); expected one", read, tmp_path)
    (tmp_path / "cases.csv").unlink()
    for content, message in ((path.read_bytes()[:-40], "not a zip|cannot be read"), (b"image,label\n", "not an .xlsx")):
        path.write_bytes(content)
        refuse(message, read, tmp_path)
    save_sheet(path)
    refuse("is empty; expected a header", read, tmp_path)


def test_cells_that_a_workbook_would_lose_are_told(tmp_path, caplog):
    path, book = tmp_path / "cases.xlsx", openpyxl.Workbook()
    rows = ["image", "report", "diagnosis"], ["a.png", "Clear.", "Normal"], ["b.png", "A mass.", "Mass"]
    for sheet in (book.active, book.create_sheet("more"), book.create_sheet("empty")):
        for row in rows if sheet.title != "empty" else ():
            sheet.append(row)
    book.save(path)
    assert len(read(tmp_path).cases) == 2
    assert "cases.xlsx: only the first sheet is read; 1 more with cells" in caplog.text
    book.active.merge_cells("B2:B3")
    book.save(path)
    refuse("the cells B2:B3 are merged, so that only the first has their text; unmerge", read, tmp_path)
    save_sheet(path, ["Our cases are in the next sheet"])
    refuse("no image columns in 1 unknown columns of the first sheet's first row", read, tmp_path)


def test_a_line_names_the_separator_and_images_must_be_there_unless_told_otherwise(tmp_path):
    write(tmp_path, "sep=;\r\nimage;label\r\na.png;Mass\r\nb.png;Masse\r\n", encoding="utf-8-sig")
    collection = read(tmp_path, on_bad_record="skip")
    assert [case.image for case in collection.cases] == ["a.png"]
    assert collection.set_aside[0].reason.startswith("row 4: column Diagnosis: 'Masse'")
    write(tmp_path, "image,label\na.png,Mass\nb.png,Mass\n")
    (tmp_path / "b.png").write_bytes(b"")
    (tmp_path / "c.png").symlink_to("/etc/hostname")
    collection = read_source(tmp_path, on_bad_record="skip")
    assert [case.image for case in collection.cases] == ["b.png"]
    assert "row 2: column image: " in collection.set_aside[0].reason
    write(tmp_path, "image,label\nc.png,Mass\n")
    refuse("is a link out of the data root", read_source, tmp_path)


ODD_ROWS = [
    *((".png,Mass,1,F,50", None), ("b.png,Mass,1,F", "4 cells instead of 5")),
    *(("b.png,Mass,1,F,50,extra", "6 cells instead of 5"), ("b.png,Mass,1,F,50,,,", None)),
    ("b.png,Edema,1,F,50", "options that are not the published ones go into chain.json beside the table"),
    *(("b.png,=1+1,1,F,50", "'=1+1'"), ("b.png,Mass,,F,50", "column patient_id: is empty")),
    ("b.png,Mass,1,X,50", "column sex: is not F, M, O"),
    ("b.png,Mass,1,F,1970-01-01", "column age: is not a number of years from 0 to 150"),
    *(("b.png,Mass,1\0,F,50", "a cell has a NUL byte"), (",Mass,1,F,50", "column image: ")),
    *(("../b.png,Mass,1,F,50", "column image: "), ("./a.png,Mass,1,F,50", "has the same image as row 2")),
    ('"b.png\n",Mass,1,F,50', None),
]


@pytest.mark.parametrize(("row", "message"), ODD_ROWS)
def test_odd_rows(tmp_path, row, message):
    write(tmp_path, f"image,diagnosis,patient id,sex,age\na.png,Mass,1,F,50\n{row}\n\n , \nc.png,Normal,2,M,\n")
    if message is None:
        assert len(read(tmp_path).cases) == 3
        return
    cases, said = set_aside_one(read, tmp_path, 1, "row 3: ", message)
    assert (len(cases), said.startswith(f"{tmp_path}/cases.csv, record 1 ")) == (2, True)
    assert "1970" not in said.removeprefix(str(tmp_path))  # what may be a patient's stays out of messages


TABLES = [
    *(("", "is empty"), ("image,label\n", "has no records")),
    ("picture,label\na,Mass\n", "no image columns in ['picture', 'label']; expected image, one or more"),
    ("image,image path,label\na,a,Mass\n", "2 image columns"),
    ("image,label,Label\na,Mass,Mass\n", "column 'label' occurs more than once"),
    ("image,report\na,text\n", "no column with answers"),
    ("image,label,diagnosis\na,Mass,Mass\n", "columns label and Diagnosis exclude each other"),
    ('image,label\n"a.png,Mass\nb.png,Mass\n', "the row at line 2 is malformed"),
    ("image,patient_id,label\n0.png,8.39861E+35,Normal", "row 2: patient_id: is a number that a spreadsheet shortened"),
    ("image,patient_id,label\n0.png,None,Normal", "row 2: column patient_id: is empty"),
    ("image,label,split\n0.png,Normal,holdout", "row 2: split: 'holdout' is not one of train, val"),
    *((f"image{mark}label\na{mark}Mass", f"the columns are separated by {mark!r}") for mark in "|: "),
    (b"%PDF-1.7\n", "is a PDF file"),
    (bytes(100), "is no text: it begins with zeros"),
    ('image,report,label\n0.png,"a\nb",Normal\n1.png,é,Normal'.encode("cp1252"), "row 3 is not UTF-8 (Windows-1252?)"),
    (b"image,label\n" + b"0.png,Normal\n" * 4000 + b"\xe9,Normal", "row 4002 is not UTF-8"),
    (b"version https://git-lfs.github.com/spec/v1\n", "is a Git LFS pointer"),
    (b"PK\x03\x04", "is a zip archive, as an .xlsx is"),
    *(("image,label\na.png,Mass".encode(name), "is UTF-16 or UTF-32 text") for name in ("utf-16", "utf-32")),
]


@pytest.mark.parametrize(("text", "message"), TABLES)
def test_tables_that_cannot_be_used(tmp_path, text, message):
    write(tmp_path, text)
    on_bad_record = "stop" if message.startswith("row 2: ") else "skip"
    found = refuse("", read, tmp_path, on_bad_record=on_bad_record)
    assert_says(found, f"{tmp_path}/cases.csv", message)


def test_a_table_has_to_be_an_ordinary_file(tmp_path):
    refuse("cannot be read", read, tmp_path)
    os.mkfifo(tmp_path / "cases.csv")
    refuse(r"(regular|ordinary) file", read, tmp_path)


def test_a_chain_of_ones_own(tmp_path):
    (tmp_path / "chain.json").write_text("\ufeff" + json.dumps(SMALL_CHAIN))
    write(tmp_path, "image;side;ANYTHING\na.png;left;b\nb.png;n/a;No\n")
    collection = read(tmp_path)
    assert [step.name for step in collection.chain.steps] == ["Anything", "Side"]
    assert collection.chain.steps[1].options == ("Left", "Right", "N/A")
    assert [name_answers(case.answers, collection.chain) for case in collection.cases] == [
        ["Yes", "Left"],
        ["No", "N/A"],
    ]
    write(tmp_path, "image,side\na.png,Up\n")
    assert "chain.json" not in refuse("'Up' is not one of", read, tmp_path)
    write(tmp_path, "image,label\na.png,Left\n")
    assert [name_answers(case.answers, collection.chain) for case in read(tmp_path).cases] == [[None, "Left"]]
    assert read(tmp_path, step_names=["Anything", "Side"]).chain == collection.chain
    words = r"chain\.json: step_names \['Other'\] do not match the chain's \['Anything', 'Side'\]"
    refuse(words, read, tmp_path, step_names=["Other"])
    (tmp_path / "chain.json").unlink()
    refuse(r"without chain\.json: step_names \['Other'\]", read, tmp_path, step_names=["Other"])


CHAINS = [
    *((b"", "expected a JSON array of"), (b"[]", "a chain needs at least one step")),
    (b'[{"name": "A", "question": "?"}]', "missing required field `options`"),
    (b'[{"name": "A", "question": "?", "options": ["x"]}]', "1 options"),
    (b'[{"name": "A", "question": "?", "options": ["x", "y"], "extra": 1}]', "unknown field `extra`"),
    (json.dumps([SMALL_CHAIN[0], SMALL_CHAIN[0] | {"name": "anything "}]).encode(), "must be distinct"),
    (json.dumps([SMALL_CHAIN[0] | {"name": "patient_id"}]).encode(), "must be distinct"),
    *((b"[" * 100_000, "expected a JSON array"), (b" " * 1_000_001, "1000001 bytes")),
]


@pytest.mark.parametrize(("content", "message"), CHAINS)
def test_chain_files_that_cannot_be_used(tmp_path, content, message):
    (tmp_path / "chain.json").write_bytes(content)
    write(tmp_path, "image,label\na.png,Mass\n")
    said = refuse("", read, tmp_path)
    assert (message in said, said.startswith(f"{tmp_path}/chain.json: ")) == (True, True)


TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=40)


@given(
    st.lists(st.tuples(TEXT, TEXT, st.sampled_from(("", *DEFAULT_CHAIN.steps[6].options))), min_size=1, max_size=6),
    st.sampled_from(",;\t"),
    st.sampled_from([(csv.QUOTE_MINIMAL, "\r\n"), *((csv.QUOTE_ALL, ending) for ending in ("\n", "\r", "\r\n"))]),
    st.sampled_from(["utf-8", "utf-8-sig"]),
)
def test_any_text_survives_the_way_through_a_table(tmp_path_factory, cells, delimiter, how, encoding):
    root, text = tmp_path_factory.mktemp("table"), io.StringIO()
    writer = csv.writer(text, delimiter=delimiter, quoting=how[0], lineterminator=how[1])
    writer.writerow(["report", "image", "origin", "detection", "diagnosis"])
    writer.writerows([a, f"{k}.png", b, "", answer] for k, (a, b, answer) in enumerate(cells))
    write(root, text.getvalue(), encoding=encoding)
    found = [(case.report, case.origin, name_answers(case.answers)[-1] or "") for case in read(root).cases]
    assert found == [(a.strip(), b.strip(), answer) for a, b, answer in cells]


@given(content=st.one_of(st.binary(max_size=200), TEXT.map(lambda text: f"image,label,report\n{text}".encode())))
def test_any_bytes_are_a_collection_or_bad_input(tmp_path_factory, content):
    root = tmp_path_factory.mktemp("bytes")
    (root / "cases.csv").write_bytes(content)
    try:
        read(root, on_bad_record="skip")
    except BadInput as error:
        assert str(error).startswith(f"{root}/cases.csv")  # noqa: PT017


def test_a_question_mark_behind_an_answer_marks_it_uncertain_and_one_of_an_option_does_not(tmp_path):
    write(tmp_path, "image,diagnosis\na.png,Pneumonia?\nb.png,B ?\nc.png,Pneumonia\n")
    possible, letter, stated = read(tmp_path).cases
    assert possible.stated == stated.answers  # the density follows from the diagnosis, and is as uncertain
    assert (set(possible.answers), letter.stated[-1], letter.answers[-1]) == ({NOT_ANNOTATED}, 1, NOT_ANNOTATED)
    assert stated.uncertain == ()
    chain = [{"name": "Anything", "question": "Is there?", "options": ["No", "Yes?"]}]
    (tmp_path / "chain.json").write_text(json.dumps(chain))
    write(tmp_path, "image,anything\na.png,Yes?\nb.png,Yes??\n")
    plain, marked = read(tmp_path, step_names=("Anything",)).cases
    assert (plain.answers, plain.uncertain, marked.answers, marked.uncertain) == ((1,), (), (NOT_ANNOTATED,), (1,))
    write(tmp_path, "image,anything\na.png,?\n")
    refuse(r"row 2.*'\?' without an answer", read, tmp_path, step_names=("Anything",))
