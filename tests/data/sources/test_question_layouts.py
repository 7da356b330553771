"""Public layouts of questions, in made miniatures with the dirt of the releases."""

import collections
import io
import json
import sys

import numpy as np
import pytest
from data.sources.test_box_layouts import put
from PIL import Image
from refusals import refuse

from stepcot_jax.data.images.image_files import read_picture
from stepcot_jax.data.sources.layouts import detect_vqa_layout, holds_questions, read_vqa_source
from stepcot_jax.host.errors import BadInput


def encode(number, form="PNG"):
    """Return a picture that differs by its number."""
    pixels = np.random.default_rng(number).integers(0, 256, (12, 16), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, form)
    return file.getvalue()


def put_parquet(path, rows):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=2)


def read(root, **how):
    """Return the records by id and the reasons of those set aside."""
    found = read_vqa_source(root, on_bad_record="skip", **how)
    return {record.id: record for record in found.records}, [item.reason for item in found.set_aside]


def splits(records):
    return collections.Counter(record.split for record in records.values())


def make_vqa_rad(root):
    common = {"qid_linked_id": "x", "image_organ": "CHEST", "question_type": "PRES, POS", "question_rephrase": "NULL"}
    rows = [
        ("freeform", "s1.jpg", "Is there an effusion?", "yes", "CLOSED "),
        ("para", "s1.jpg", "Which side?", "Left ", "CLOSED"),
        ("freeform", "s2.jpg", "How many nodules?", 3, "OPEN"),
        ("test_freeform", "s1.jpg", "Where?", "right base", "OPEN"),
        ("test_para", "s3.jpg", "Is it normal?", "No.", "CLOSED"),
        ("freeform", "s9.jpg", "Is it normal?", "No", "CLOSED"),  # no such picture
        ("freeform", "s2.jpg", "What is seen?", "", "OPEN"),
    ]
    names = ("phrase_type", "image_name", "question", "answer", "answer_type")
    records = [{"qid": k, **dict(zip(names, row, strict=True)), **common} for k, row in enumerate(rows)]
    put(root / "VQA_RAD Dataset Public.json", records)
    for number in (1, 2, 3):
        put(root / f"VQA_RAD Image Folder/s{number}.jpg", encode(number, "JPEG"))


def test_vqa_rad_of_osf(tmp_path, caplog):
    make_vqa_rad(tmp_path)
    assert detect_vqa_layout(tmp_path) == "vqa_rad"
    records, reasons = read(tmp_path)
    assert splits(records) == {"train": 3, "test": 2}
    told = [(records[f"vqa-rad-{number}"].kind, records[f"vqa-rad-{number}"].answer) for number in (0, 1, 4, 2)]
    assert told == [("closed", "Yes"), ("closed", "Left"), ("closed", "No"), ("open", "3")]
    assert records["vqa-rad-2"].organ == "chest"
    assert records["vqa-rad-0"].image == "VQA_RAD Image Folder/s1.jpg"
    assert records["vqa-rad-0"].patient == records["vqa-rad-3"].patient != records["vqa-rad-2"].patient
    assert {name for name, record in records.items() if "seen" in record.facts} == {"vqa-rad-3"}
    assert "1 pictures stand in several splits" in caplog.text
    assert ["record 5, image" in reasons[0], "record 6, answer: blank" in reasons[1]] == [True, True]
    refuse(r"record 5, image: 'VQA_RAD Image Folder/s9.jpg' does not exist", read_vqa_source, tmp_path)


def test_parquet_of_the_hub(tmp_path):
    def row(number, question, answer):
        return {"image": {"bytes": encode(number), "path": None}, "question": question, "answer": answer}

    rows = [row(1, "is it normal?", "yes"), row(2, "where is it?", "liver"), row(1, "which plane?", "axial")]
    put_parquet(tmp_path / "rad/data/train-00000-of-00001-ab.parquet", rows)
    put_parquet(tmp_path / "rad/data/test-00000-of-00001-ab.parquet", [row(1, "is it big?", "no"), row(3, "", "no")])
    records, reasons = read(tmp_path / "rad")
    assert splits(records) == {"train": 3, "test": 1}
    assert len(reasons) == 1
    assert "data/test-00000-of-00001-ab.parquet, row 1, question: blank" in reasons[0]
    first = records["data/train-00000-of-00001-ab.parquet:2"]
    assert first.image == "data/train-00000-of-00001-ab.parquet#2:image"
    assert read_picture(tmp_path / "rad", first.image, max_bytes=10**6) == encode(1)
    assert len({record.patient for record in records.values()}) == 2
    put_parquet(tmp_path / "path/data/train-0.parquet", rows)
    put_parquet(tmp_path / "path/data/validation-0.parquet", rows[:1])
    put_parquet(tmp_path / "path/data/test-0.parquet", rows[:1])
    assert detect_vqa_layout(tmp_path / "path") == "path_vqa"
    assert {record.modality for record in read(tmp_path / "path")[0].values()} == {"pathology"}
    with pytest.raises(BadInput, match=r"expected a row 9"):
        read_picture(tmp_path / "rad", "data/train-00000-of-00001-ab.parquet#9:image", max_bytes=10**6)
    with pytest.raises(BadInput, match=r"without '\.\.'"):
        read_picture(tmp_path / "rad", "../path/data/train-0.parquet#0:image", max_bytes=10**6)


def test_slake_reads_english_rows(tmp_path):
    def row(number, image, question, answer, *, language="en", kind="OPEN", **fields):
        named = {"img_name": f"{image}/source.jpg", "question": question, "answer": answer, "q_lang": language}
        defaults = {"modality": "MRI", "location": "Brain", "content_type": "Plane", "base_type": "vqa"}
        return {"qid": number, **named, "answer_type": kind, **defaults, **fields}

    put(tmp_path / "train.json", [row(0, "xmlab1", "Plane?", "Axial"), row(1, "xmlab1", "平面?", "轴", language="zh")])
    put(tmp_path / "validation.json", [row(2, "xmlab2", "Is it a lung?", "No", kind="CLOSED", modality="X-Ray")])
    test = [row(3, "xmlab3", "Left or right?", "Left", kind="CLOSED"), row(4, "xmlab3", "What?", "")]
    put(tmp_path / "test.json", test)
    for number in (1, 2, 3):
        put(tmp_path / f"imgs/xmlab{number}/source.jpg", encode(number, "JPEG"))
    put(tmp_path / "imgs/xmlab1/question.json", [row(0, "xmlab1", "Plane?", "Axial")])
    records, reasons = read(tmp_path)
    assert splits(records) == {"train": 1, "val": 1, "test": 1}
    first, second = records["slake-0"], records["slake-2"]
    assert (second.modality, first.modality, first.organ) == ("xray", "MR", "Brain")
    assert (records["slake-3"].kind, records["slake-3"].answer) == ("closed", "Left")
    assert sorted(reasons) == [
        "test.json, record 1, answer: blank; a text is required",
        "train.json, record 1, q_lang: 'zh'; the English rows are read",
    ]


HEAD_1 = "Figure_path,Question,Answer,Choice A,Choice B,Choice C,Choice D,Answer_label\n"
HEAD_2 = "index,Figure_path,Caption,Question,Choice A,Choice B,Choice C,Choice D,Answer,split\n"


def test_pmc_vqa_in_both_versions(tmp_path):
    one = "F1.jpg,Plane?,Axial, A:Axial ,B:Sagittal,C:Coronal,D:Other,A\n"
    put(tmp_path / "one/train.csv", (HEAD_1 + one).encode())
    put(tmp_path / "one/test.csv", (HEAD_1 + "F2.jpg,Tool?,Drain,A:Clip,B:Drain,C:Stent,D:Coil,\n").encode())
    two = [
        "0,F1.jpg,tells it,Plane?,A: Axial,B: Sagittal,C: Coronal,D: ,B,test",
        "1,F2.jpg,x,Dark?,A: Air,B: air,C: Fat,D: Bone,A,test",
        "2,F2.jpg,x,Dark?,A: Air,B: Bone,C: Fat,D: Gas,E,test",
        "3,F9.jpg,x,Dark?,A: Air,B: Bone,C: Fat,D: Gas,A,test",
    ]
    put(tmp_path / "two/test_2.csv", (HEAD_2 + "\n".join(two) + "\n").encode())
    for number in (1, 2):
        put(tmp_path / f"one/images/F{number}.jpg", encode(number, "JPEG"))
        put(tmp_path / f"two/figures/F{number}.jpg", encode(number, "JPEG"))
    records, reasons = read(tmp_path / "one")
    assert [(record.options[0], record.answer) for record in records.values()] == [("Clip", "B"), ("Axial", "A")]
    assert not reasons
    records, reasons = read(tmp_path / "two")
    (record,) = records.values()
    assert (record.options, record.answer, record.split) == (("Axial", "Sagittal", "Coronal"), "B", "test")
    assert "caption" not in str(record).lower()
    assert "options A and B: both are 'air'" in reasons[0]
    assert "answer: 'E' is none of the options" in reasons[1]
    assert "image: 'figures/F9.jpg' does not exist" in reasons[2]
    put(tmp_path / "two/train.csv", HEAD_1.encode() + b"F1.jpg,Plane?,Axial,A:Axial,B:S,C:C,D:O,A\n")
    refuse("layouts pmc_vqa and pmc_vqa_2; choose one", detect_vqa_layout, tmp_path / "two")


def test_omnimedvqa(tmp_path):
    def row(number, answer, options, **fields):
        named = {f"option_{letter}": text for letter, text in zip("ABCD", options, strict=False)}
        head = {"dataset": "Chest CT", "question_id": f"c_{number}", "question_type": "Disease Diagnosis"}
        path = {"image_path": f"Images/Chest CT/{number}.png", "question": "Which disease?", "gt_answer": answer}
        return {**head, **path, **named, "modality_type": "CT", **fields}

    first = row(0, "Normal", ("Normal", "Mass"))
    second = row(1, "No, It's normal.", ("No, It's normal.", "Yes", "Unclear", "Both"))
    third = row(2, "Pneumonia", ("Normal", "Mass", "Cyst"))
    renamed = {name: value for name, value in row(3, "Mass", ("Mass", "Cyst")).items() if name != "modality_type"}
    put(tmp_path / "QA_information/Open-access/Chest CT.json", [first, second, third, renamed | {"modality": "MR"}])
    put(tmp_path / "QA_information/Open-access/Other.json", [row(4, "Mass", ("Cyst", "Mass"))])
    for number in range(5):
        put(tmp_path / f"Images/Chest CT/{number}.png", encode(number))
    records, reasons = read(tmp_path)
    assert {name: record.answer for name, record in records.items()} == {"c_0": "A", "c_1": "A", "c_3": "A", "c_4": "B"}
    assert (len(records["c_0"].options), records["c_0"].modality, records["c_3"].modality) == (2, "CT", "MR")
    assert "Chest CT.json, record 2, answer: 'Pneumonia' is none of the options" in reasons[0]


def test_mmmu_reads_medical_subjects(tmp_path):
    nothing = {"bytes": None, "path": None}

    def row(name, answer, options, *, pictures=1, kind="multiple-choice"):
        images = {
            f"image_{k}": {"bytes": encode(k), "path": f"{k}.png"} if k <= pictures else nothing for k in range(1, 8)
        }
        text = {"question": "What is shown in <image 1>?", "options": str(options), "explanation": ""}
        return {"id": name, **text, **images, "answer": answer, "question_type": kind, "subfield": "Imaging"}

    rows = [
        row("validation_Clinical_Medicine_1", "B", ["Cyst", "Mass", "Air", "Fat", "Bone"]),
        row("validation_Clinical_Medicine_2", "['3', 'three']", [], kind="open"),
        row("validation_Clinical_Medicine_3", "A", ["<image 1>", "<image 2>"]),
        row("validation_Clinical_Medicine_4", "A", ["x", "y"], pictures=2),
        row("test_Clinical_Medicine_5", "?", ["x", "y"]),
    ]
    put_parquet(tmp_path / "Clinical_Medicine/validation-00000-of-00001.parquet", rows)
    put_parquet(tmp_path / "Art/validation-00000-of-00001.parquet", [row("validation_Art_1", "A", ["x", "y"])])
    records, reasons = read(tmp_path)
    assert splits(records) == {"val": 2}
    first, second = records.values()
    assert (first.answer, len(first.options), first.question) == ("B", 5, "What is shown in ?")
    assert (second.kind, second.answer, second.synonyms) == ("open", "3", ("three",))
    said = ("'Art'", "pictures;", "2 pictures", "'?'")
    assert [word in reason for word, reason in zip(said, reasons, strict=True)] == [True] * 4


SHEETS = {
    "image,question,answer,options,label,box,split,patient\n"
    "a.png,Where?,Base,,effusion,1 2 5 6,train,p1\n"
    "a.png,Which?,B,Air|Fluid,,,train,p1\n"
    'b.png,Which two?,"A, C",Air;Fluid;Bone,,,test,p2\n': ".csv",
    "Image Path\tQuestion\tAnswer\tOption A\tOption B\tOption C\tBBox\tLabel\tSplit\tPatient ID\n"
    "a.png\tWhere?\tBase\t\t\t\t[1, 2, 5, 6]\teffusion\ttraining\tp1\n"
    "a.png\tWhich?\tfluid\tAir\tFluid\t\t\t\ttraining\tp1\n"
    "b.png\tWhich two?\tA;C\tAir\tFluid\tBone\t\t\ttest\tp2\n": ".tsv",
}


@pytest.mark.parametrize("form", [".csv", ".tsv", ".json", ".jsonl", ".xlsx"])
def test_a_sheet_of_ones_own(tmp_path, form):
    text = next(text for text, suffix in SHEETS.items() if suffix == form or form not in (".csv", ".tsv"))
    first = {"image": "a.png", "split": "train", "patient": "p1"}
    second = {"image": "b.png", "split": "test", "patient": "p2"}
    rows = [
        {**first, "question": "Where?", "answer": "Base", "label": "effusion", "box": [1, 2, 5, 6]},
        {**first, "question": "Which?", "answer": "B", "options": ["Air", "Fluid"]},
        {**second, "question": "Which two?", "answer": ["A", "C"], "options": ["Air", "Fluid", "Bone"]},
    ]
    path = tmp_path / f"mine{form}"
    if form == ".json":
        put(path, rows)
    elif form == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif form == ".xlsx":
        book = pytest.importorskip("openpyxl").Workbook()
        for line in text.splitlines():
            book.active.append(line.replace('"A, C"', "A; C").split(","))
        book.save(path)
    else:
        path.write_text(text.replace("\ttraining\t", "\ttrain\t"))
    for number, name in enumerate("ab"):
        put(tmp_path / f"{name}.png", encode(number))
    for root in (tmp_path, path):
        assert holds_questions(root)
        records, reasons = read(root)
        assert not reasons
        where, which, both = records.values()
        assert (where.kind, where.answer, where.split, where.patient) == ("open", "Base", "train", "p1")
        assert [(box.label, box.corners) for box in where.references] == [("effusion", (1, 2, 5, 6))]
        assert where.image_size == (16, 12)
        assert (which.kind, which.answer, which.options) == ("single", "B", ("Air", "Fluid"))
        assert (both.kind, both.answer, both.split) == ("multi", ("A", "C"), "test")


def test_dirt_of_a_sheet_is_told_by_row(tmp_path):
    rows = [
        "a.png,Q?,yes,,,,",
        ",Q?,yes,,,,",
        "a.png,,yes,,,,",
        "a.png,Q?,,,,,",
        "a.png,Q?,maybe,yes|no,,,",
        "a.png,Q?,yes,yes|Yes,,,",
        "a.png,Q?,yes,,1 2 3,,",
        "a.png,Q?,yes,,1 2 30 40,,",
        "a.png,Q?,yes,,,somewhere,",
        "a.png,Q?,yes,,,,nan",
        "../b.png,Q?,yes,,,,",
        "c.png,Q?,yes,,,,",
    ]
    path = tmp_path / "sheet.csv"
    path.write_text("image,question,answer,options,box,split,patient\n" + "\n".join(rows) + "\n")
    put(tmp_path / "a.png", encode(0))
    records, reasons = read(path)
    assert [record.answer for record in records.values()] == ["Yes"]
    said = (
        *("image: blank", "question: blank", "answer: blank", "answer: 'maybe' is none", "options A and B"),
        *("box: '1 2 3'", "leaves the picture", "split: 'somewhere'", "patient", "without '..'"),
        "image: 'c.png' does not exist",
    )
    assert len(reasons) == len(said)
    for number, (reason, part) in enumerate(zip(reasons, said, strict=True), start=3):
        assert f"sheet.csv, row {number}, " in reason
        assert part in reason


def test_the_steps_of_a_chain_are_questions(tmp_path):
    from stepcot_jax.data.phantom.phantom import export_phantom

    export_phantom(tmp_path / "cases", num_cases=30, seed=0, size=64, prevalence="flat", progress=iter)
    assert not holds_questions(tmp_path / "cases")
    records, reasons = read(tmp_path / "cases", layout="published")
    assert len(records) == 30 * 7
    assert not reasons
    assert len({record.topic for record in records.values()}) == 7
    assert all(record.kind == "single" and record.thinking for record in records.values())


def test_hostile_parquet_is_refused_in_one_sentence(tmp_path, monkeypatch):
    picture = {"bytes": encode(1), "path": None}
    rows = [{"image": picture, "question": "q" * 9_000_000, "answer": "yes"}] * 3  # a dictionary: once in the file
    put_parquet(tmp_path / "long/data/test-0.parquet", rows)
    assert (tmp_path / "long/data/test-0.parquet").stat().st_size < 10**7
    refuse(r"column question: a text of 9000000 characters; at most 8388608", read_vqa_source, tmp_path / "long")
    monkeypatch.setenv("STEPCOT_JAX_LIMITS", "unpacked_bytes=1000")
    put_parquet(tmp_path / "big/data/test-0.parquet", [{"image": picture, "question": "q?" * 999, "answer": "yes"}])
    refuse(r"row group 0: \d+ bytes of question, answer; at most 1000", read_vqa_source, tmp_path / "big")
    whole = (tmp_path / "big/data/test-0.parquet").read_bytes()
    for content in (b"", b"PAR1", b"PAR1" + bytes(100) + b"PAR1", whole[:-9]):
        put(tmp_path / "broken/test-0.parquet", content)
        refuse(r"cannot be read as a Parquet table", read_vqa_source, tmp_path / "broken/test-0.parquet")


def test_what_lies_beside_a_release_does_not_hide_it(tmp_path, caplog):
    make_vqa_rad(tmp_path / "osf")
    book = pytest.importorskip("openpyxl").Workbook()
    book.active.append(["image_name", "question", "answer"])
    book.active.append(["s1.jpg", "Why?", "x"])
    book.save(tmp_path / "osf/VQA_RAD Dataset Public.xlsx")
    put(tmp_path / "osf/~$VQA_RAD Dataset Public.xlsx", b"\x05user")
    put(tmp_path / "osf/._VQA_RAD Dataset Public.json", b"\0\5\x16\7Mac OS X")
    assert len(read(tmp_path / "osf")[0]) == 5
    assert "not read, as of other layouts: VQA_RAD Dataset Public.xlsx" in caplog.text
    refuse(r"osf has the layout vqa_rad: is it meant\?", detect_vqa_layout, tmp_path)
    pytest.importorskip("pyarrow")
    put(tmp_path / "lfs/data/train-0.parquet", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    other = {"image": {"bytes": encode(1), "path": None}, "question": "Plane?", "answer": "Axial", "modality": "MRI"}
    put_parquet(tmp_path / "other/data/train-0.parquet", [other])
    assert [(record.origin, record.modality) for record in read(tmp_path / "other")[0].values()] == [("other", "MRI")]
    with pytest.raises(BadInput, match=r"train-0.parquet: cannot be read as a Parquet table \(it is a Git LFS pointer"):
        detect_vqa_layout(tmp_path / "lfs")


def test_a_formula_that_nobody_computed_is_no_answer(tmp_path):
    book = pytest.importorskip("openpyxl").Workbook()
    rows = ["image", "question", "answer", "age"], ["s1.jpg", "Why?", "=A1", 3], ["s1.jpg", "Where?", "here", "=A1"]
    for row in rows:
        book.active.append(row)
    book.save(tmp_path / "sheet.xlsx")
    put(tmp_path / "s1.jpg", encode(1))
    found = read_vqa_source(tmp_path, on_bad_record="skip")
    assert [record.answer for record in found.records] == ["here"]
    assert [item.reason for item in found.set_aside] == [
        "sheet.xlsx, row 2, answer: formula without a stored value; open and save the table in a spreadsheet program"
    ]


def test_rows_with_two_readings_are_set_aside(tmp_path, caplog):
    for name in "ab":
        put(tmp_path / f"images/{name}.png", encode(ord(name), "PNG"))
    rows = [
        {"id": "1", "image": "C:\\data\\images\\a.png", "question": "Q?", "answer": "yes"},
        {"id": "1", "image": "b.png", "question": "Q?", "answer": "no"},
        {"id": "2", "image": "/home/x/b.png", "question": "Q?", "answer": "B", "options": {"A": "left", "B": "right"}},
        {"id": "3", "image": "b.png", "question": "Q?", "answer": "x", "box": [0.1, 0.1, 0.5, 0.5]},
        {"id": "4", "image": "/home/x/../b.png", "question": "Q?", "answer": "x"},
    ]
    put(tmp_path / "data.json", rows)
    assert holds_questions(tmp_path)
    records, reasons = read(tmp_path)
    kept = [("images/a.png", "Yes"), ("images/b.png", "B")]
    assert [(record.image, record.answer) for record in records.values()] == kept
    assert "absolute paths such as 'C:\\\\data\\\\images\\\\a.png' are read by their ends" in caplog.text
    parts = ("has the same id '1' as record 0", "are shares", "without '..'")
    assert [part in reason for part, reason in zip(parts, reasons, strict=True)] == [True] * 3
    two = [HEAD_1 + "b.png,Q?,CT,A:CT,B:MR,C:US,D:PT,B\n", "b.png,Q?,CT,A:CT,B:MR,C:US,D:PT,A\n"]
    put(tmp_path / "pmc/train.csv", "".join(two).encode())
    put(tmp_path / "pmc/images/b.png", encode(1))
    records, reasons = read(tmp_path / "pmc")
    assert [len(records), "Answer_label: 'B' is not the letter of the Answer 'CT'" in reasons[0]] == [1, True]


def test_a_library_without_parquet_says_what_it_needs(tmp_path, monkeypatch):
    put_parquet(tmp_path / "data/test-0.parquet", [{"image": {"bytes": encode(1), "path": None}, "question": "q?"}])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for call in (holds_questions, read_vqa_source):
        refuse(r"test-0.parquet: reading Parquet needs pyarrow: .*parquet", call, tmp_path)
