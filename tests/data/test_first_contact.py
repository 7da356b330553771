import argparse
import contextlib
import csv
import io
import json

import msgspec
import pytest
from refusals import refuse

from stepcot_jax.chain import Chain, Step
from stepcot_jax.data.check import CheckOptions, check_root
from stepcot_jax.data.identities import fold_patient, join_spellings, read_patient, read_split
from stepcot_jax.data.questions.record_files import read_vqa_records, write_vqa_records
from stepcot_jax.data.records.records import read_records, write_records
from stepcot_jax.data.sources.layouts import read_source
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.reading.answer_sheet import write_sheet
from stepcot_jax.reasoning.dialects import interpret_answer, read_reply
from stepcot_jax.record import Record
from stepcot_jax.tools.options import ReadStepNames

SPELLINGS = ("0001", "1", "1.0", "1,00", "\uff11", "\u0661", " 1 ", "\ufeff1")
COLUMNS = "image,patient_id,diagnosis"


def check(root, *, images="none"):
    with contextlib.redirect_stderr(io.StringIO()):
        return check_root(root, CheckOptions(images=images), terminal=Terminal())


def write(root, *rows, header=COLUMNS):
    (root / "cases.csv").write_text("\n".join([header, *rows]), encoding="utf-8")
    return root


def test_spellings_of_a_patient():
    assert {fold_patient(text) for text in SPELLINGS} == {"1"}
    assert fold_patient("P 01") == fold_patient("p01 ") == fold_patient("\uff3001") != fold_patient("P1")
    assert fold_patient("1 11") != fold_patient("11 1")
    assert fold_patient("1.5") != fold_patient("15")
    assert fold_patient("0") == fold_patient("000") == "0"
    for missing in ("nan", "None", "NULL", "NA", "N/A", "#N/A", "<NA>", "NaT", " nan ", "\\N", "(null)", "1.#QNAN"):
        assert read_patient(missing) == ""
    for kept in ("8E35", "12E-03", "Nan Li", "1.2.3", "0001"):
        assert read_patient(kept) == kept
    for shortened in ("8.39861E+35", "1,5e-7", "1E+15"):
        refuse("a spreadsheet shortened", read_patient, shortened)
    names = ["a", "0001", "A", "1", "b", "1.0"]
    kept, sentence = join_spellings(names)
    assert kept == {"A": "a", "1": "0001", "1.0": "0001"}
    expected = "letter case, '.0' at the end, leading zeros"
    assert sentence == f"2 patients are written in several ways that differ only in {expected}: each counts as one"
    assert join_spellings(["a", "b", "a", "01"]) == ({}, "")


def test_official_splits():
    assert [read_split(text) for text in ("Train", "valid", "VALIDATE", "dev", " test ")] == [
        *("train", "val", "val", "val", "test")
    ]
    for text in ("", "holdout", "nan"):
        refuse(r"split: .* is not one of train, val, valid", read_split, text)


def test_every_layout_joins_the_spellings_and_keeps_the_splits(tmp_path, caplog):
    splits = ("train", "train", "val", "test")
    rows = [f"{number}.png,{patient},Normal,{split}" for number, (patient, split) in
            enumerate(zip(("01", "1", "2", "3"), splits, strict=True))]  # fmt: skip
    table = read_source(write(tmp_path, *rows, header=f"{COLUMNS},Split"), require_images=False)
    assert table.cases.patient_ids[1] == "01"
    assert table.cases.count_patients() == 3
    assert "1 patient is written in several ways that differ only in leading zeros" in caplog.text
    assert tuple(case.split for case in table.cases) == splits
    facts = check(tmp_path)
    assert (facts["splits_from"], [split["cases"] for split in facts["splits"]]) == ("records", [2, 1, 1])
    published = tmp_path / "published"
    write_records(published, chain=table.chain, cases=table.cases)
    records = json.loads((published / "data.json").read_text())
    assert [record["split"] for record in records] == list(splits)
    records[0]["patient_id"], records[1]["patient_id"] = 1, "00000001"
    (published / "data.json").write_text(json.dumps(records))
    facts = check(published)
    assert (facts["patients"], facts["splits_from"]) == (3, "records")
    assert any("differ only in leading zeros" in note for note in facts["notes"])
    assert [case.patient for case in read_records(published, require_images=False).cases] == ["1", "1", "2", "3"]
    question = Record(image="0.png", patient="01", id="a", image_size=(9, 9), question="Is it?", answer="Yes",
                      kind="closed", split="train")  # fmt: skip
    other = msgspec.structs.replace(question, image="1.png", patient="1.0", id="b", split="test")
    write_vqa_records(tmp_path / "records.jsonl", [question, other])
    assert [record.patient for record in read_vqa_records(tmp_path / "records.jsonl").records] == ["01", "01"]
    questions = tmp_path / "questions"
    write_vqa_records(questions / "records.jsonl", [question, other])
    assert "1 patients are in more than one split" in str(check(questions)["stops"])


def test_the_near_match_of_a_missing_file_is_named(tmp_path):
    write(tmp_path, "images/Jose\u0301.png,1,Normal", "images/b.PNG,2,Normal", "images/none.png,3,Normal")
    (tmp_path / "Images").mkdir()
    for name in ("Jos\u00e9.png", "b.png"):
        (tmp_path / "Images" / name).write_bytes(b"")
    found = {}
    for item in check(tmp_path, images="exists")["set_aside_reasons"]:
        found |= {example["image_path"]: example["reason"] for example in item["examples"]}
    near = "; 'Images/{}' does: its name differs in Unicode form or letter case"
    assert found["images/Jose\u0301.png"].endswith(near.format("Jos\u00e9.png"))
    assert found["images/b.PNG"].endswith(near.format("b.png"))
    assert found["images/none.png"].endswith("does not exist below the data root")


def test_lost_answers_are_noted(tmp_path):
    header = "image,patient_id,Secondary effects,Diagnosis"
    rows = [f"{number}.png,{number},{('', 'Pleural effusion')[number % 2]},Effusion" for number in range(12)]
    notes = check(write(tmp_path, *rows, header=header))["notes"]
    assert sum("6 of 12 cells of Secondary effects are empty: did a program (pandas)" in note for note in notes) == 1
    (other,) = (
        note
        for note in check(write(tmp_path, *[f"{row},N/A" for row in rows], header=f"{header},Anatomical location"))[
            "notes"
        ]
        if "pandas" in note
    )
    assert other.startswith("no case has the answer N/A of Secondary effects, and 6 of 12 cells of Secondary effects")
    kept = [row.replace(",,", ",N/A,") for row in rows]
    assert not any("pandas" in note for note in check(write(tmp_path, *kept, header=header))["notes"])


def test_step_names_are_words_or_a_tuple():
    parser = argparse.ArgumentParser()
    parser.add_argument("--step-names", nargs="+", action=ReadStepNames)
    for words in (["A b", "C"], ["A b,C"], ["A b, C"], ["('A b', 'C')"], ['["A b", "C"]']):
        assert parser.parse_args(["--step-names", *words]).step_names == ("A b", "C")
    with pytest.raises(SystemExit):
        parser.parse_args(["--step-names", "('A b'"])


SAYS = [
    ("csv/c04_zeros_lost_half", 4, "4 patients are written in several ways that differ only in leading zeros"),
    ("csv/c07_nan_text", 8, "row 3: column patient_id: is empty"),
    ("more/csv/na_lost", 48, "36 of 60 cells of Secondary effects are empty: did a program (pandas)"),
]


@pytest.mark.parametrize(("name", "num_patients", "words"), SAYS)
def test_the_inputs_of_first_contact(shared, name, num_patients, words):
    facts = check(shared / "data" / "first_contact" / name)
    assert words in json.dumps([facts["notes"], facts["stops"]])
    assert facts["patients"] == num_patients


def test_the_records_of_first_contact(shared):
    root = shared / "data" / "first_contact_4" / "records"
    letters = "letters (A, B, ...) are taken off the options in 12 of 12 records"
    said = (("size_swapped", "12 fit with sides swapped"), ("choices_lettered", letters), ("control_ok", ""))
    for name, words in said:
        facts = check(root / name, images="decode")
        notes = [note for note in facts["notes"] if "cannot be written" not in note]
        assert ([words in note for note in notes], facts["stops"]) == ([True] * bool(words), [])
    for name in ("text", "letter"):
        records = read_vqa_records(root / "choices_lettered").records
        replies = map(json.loads, (root / "choices_lettered" / f"{name}.jsonl").open())
        for record, reply in zip(records, replies, strict=True):
            assert interpret_answer(read_reply(reply["reply"], "free"), record) == record.answer


def test_a_relative_root_names_the_folder_that_it_starts_from(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refuse(f"data/mine: does not exist in {tmp_path} \\(another folder than the run's", read_source, "data/mine")


def test_the_header_of_a_sheet_of_answers_runs_no_formula(tmp_path):
    chain = Chain((Step("=1+1", "Is it?", ("Air", "=2")), Step("Last", "And?", ("Bad", "Cut"))))
    write_sheet(tmp_path / "a.csv", [{"image": "@a.png", "=1+1": "=2", "Last": "Bad"}], chain)
    header = csv.DictReader(io.StringIO((tmp_path / "a.csv").read_text())).fieldnames
    assert "'=1+1" in header
    assert not any(name.startswith("=") for name in header)
    row = next(csv.DictReader(io.StringIO((tmp_path / "a.csv").read_text())))
    assert (row["image"], row["'=1+1"], row["Last"]) == ("'@a.png", "'=2", "Bad")
