"""Folders that are odd in one way each: for the tests, and for the table in docs/results/odd_inputs.md."""

import csv
import json

import numpy as np
import openpyxl
from data.images.test_images import png
from PIL import Image

from stepcot_jax.data.phantom.phantom import export_phantom
from stepcot_jax.data.records.records import read_records
from stepcot_jax.data.splits.making import make_splits

NUM_CASES = 15


def make_folder(root):
    """A good folder: 15 phantom cases of 12 patients, with tables of splits."""
    export_phantom(root, num_cases=NUM_CASES, seed=3, size=32)
    cases = read_records(root).cases
    for name, indices in make_splits(cases, seed=0).by_name().items():
        write_rows(root, name, [[cases[index].patient, cases[index].image] for index in indices])


def write_rows(root, name, rows, head=("patient_id", "image_path")):
    with (root / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([head, *rows])


def read_rows(root, name):
    with (root / f"{name}.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))[1:]


def write_book(root, name, rows, merged=()):
    (root / f"{name}.csv").unlink()
    book = openpyxl.Workbook()
    sheet = book.active
    for row in [["patient_id", "image_path"], *rows]:
        sheet.append(row)
    for cells in merged:
        sheet.merge_cells(cells)
    book.save(root / f"{name}.xlsx")


def records_of(root):
    return json.loads((root / "data.json").read_text(encoding="utf-8"))


def write_all(root, records):
    (root / "data.json").write_text(json.dumps(records, ensure_ascii=False, indent=1), encoding="utf-8")


def edit_records(root, edit):
    records = records_of(root)
    edit(records)
    write_all(root, records)


def change(root, **fields):
    edit_records(root, lambda records: records[4].update(fields))


def change_step(root, **fields):
    edit_records(root, lambda records: records[4]["vqa_chain"][3].update(fields))


def image_of(root):
    return root / records_of(root)[4]["image_path"]


def edit(change):
    return lambda root: (root / "data.json").write_bytes(change((root / "data.json").read_bytes()))


def edit_image(change):
    return lambda root: image_of(root).write_bytes(change(image_of(root).read_bytes()))


def use_latin_1(root):
    change(root, report="Überblähung")
    edit(lambda content: content.decode().encode("latin-1"))(root)


def share_a_patient(root):
    rows = {name: read_rows(root, name) for name in ("train", "val")}
    (patient, _), (_, image) = rows["train"][0], rows["val"][0]
    named = [record | ({"patient_id": patient} if record["image_path"] == image else {}) for record in records_of(root)]
    write_all(root, named)
    rows["val"][0][0] = patient
    write_rows(root, "val", rows["val"])


def use_16_bits(root):
    ramp = np.linspace(0, 4095, 32 * 32).astype(np.uint16).reshape(32, 32)
    Image.fromarray(ramp).save(image_of(root))


def use_cmyk(root):
    path = image_of(root)
    name = path.with_suffix(".jpg").name
    Image.new("CMYK", (32, 32), (10, 20, 30, 40)).save(path.with_name(name))
    path.unlink()
    rename_image(root, path.name, name)


def rename_image(root, old, new):
    for path in (root / "data.json", *root.glob("*.csv")):
        path.write_text(path.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")


def plant_a_bomb(root):
    """A picture of 40000 x 40000 pixels in 200 kB."""
    content = png(width=40_000, height=40_000, depth=1, colour_type=0, rows=bytes(5001 * 40_000))
    image_of(root).write_bytes(content)


def link_out(root):
    outside = root.parent / f"{root.name}-outside.png"
    image_of(root).rename(outside)
    image_of(root).symlink_to(outside)


def reorder_options(root):
    options = records_of(root)[4]["vqa_chain"][3]["options"]
    bare = [option.partition(". ")[2] or option for option in options]
    change_step(root, options=[bare[1], bare[0], *bare[2:]], answer=bare[0])


def reorder_lettered_options(root):
    options = records_of(root)[4]["vqa_chain"][3]["options"]
    change_step(root, options=[options[1], options[0], *options[2:]])


def leave_rows_empty(root):
    rows = read_rows(root, "train")
    write_rows(root, "train", [rows[0], ["", ""], *rows[1:3], ["", ""], ["", ""], *rows[3:]])


def merge_patient_cells(root):
    """As people write a patient with several images: the name once, in a cell that spans the rows."""
    rows = sorted(read_rows(root, "train"))
    patients = [row[0] for row in rows]
    first = next(place for place, patient in enumerate(patients) if patients.count(patient) > 1)
    last = len(patients) - 1 - patients[::-1].index(patients[first])
    write_book(root, "train", rows, merged=[f"A{first + 2}:A{last + 2}"])


def merge_whole_rows(root):
    """Cells of two cases merged to one: the second case is named nowhere."""
    rows = read_rows(root, "train")
    rows = [row for row in rows if [each[0] for each in rows].count(row[0]) == 1]
    others = [row for row in read_rows(root, "train") if row not in rows]
    write_book(root, "train", [*rows, *others], merged=["A2:A3", "B2:B3"])


def write_umlauts(root):
    change(root, report="Überblähung — 胸部X線 🫁", patient_id="Ünal-胸", origin="Universitätsklinik")
    old = image_of(root)
    old.rename(old.with_name("röntgen_胸.png"))
    patient = next(row[0] for name in ("train", "val", "test") for row in read_rows(root, name) if old.name in row[1])
    rename_image(root, old.name, "röntgen_胸.png")
    for path in root.glob("*.csv"):
        lines = path.read_text(encoding="utf-8").splitlines()
        lines = [line.replace(patient, "Ünal-胸") if "röntgen" in line else line for line in lines]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def repeat_an_image_path(root):
    records = records_of(root)
    write_all(root, [*records, {**records[4], "image_path": "./" + records[4]["image_path"]}])


def repeat_content_across_splits(root):
    (train, test) = (root / read_rows(root, name)[0][1] for name in ("train", "test"))
    Image.open(train).save(test, optimize=True)


def answer_nothing(records):
    for step in (step for record in records for step in record["vqa_chain"]):
        step["answer"] = None


def drop_tables(root):
    for path in root.glob("*.csv"):
        path.unlink()


def keep_two_patients(root):
    drop_tables(root)
    write_all(root, [{**record, "patient_id": f"P{number % 2}"} for number, record in enumerate(records_of(root))])


def write_many(root):
    """Many records whose images are not there: for a check without images."""
    drop_tables(root)
    records = records_of(root)
    names = [{"patient_id": f"P{number}", "image_path": f"images/{number}.png"} for number in range(2000)]
    write_all(root, [records[number % NUM_CASES] | own for number, own in enumerate(names)])


ODD_INPUTS = {
    "nothing odd": (lambda root: None, 0, "a run can use it"),
    "empty file": (edit(lambda content: b""), 2, "data.json: the file is empty"),
    "truncated JSON": (edit(lambda content: content[: len(content) // 2]), 2, "JSON: Input data was truncated", "from"),
    "wrong encoding (Latin-1)": (use_latin_1, 2, "not UTF-8 (from byte"),
    "wrong encoding (UTF-16)": (edit(lambda content: content.decode().encode("utf-16")), 2, "the text is UTF-16"),
    "byte order mark of UTF-8": (edit(lambda content: b"\xef\xbb\xbf" + content), 0, "a run can use it"),
    "brackets nested 200,000 deep": (edit(lambda content: b"[" * 200_000), 2, "maximum recursion depth"),
    "patient in two splits": (
        share_a_patient,
        1,
        "patients are in more than one split: 'P",
        "(train.csv row 2, val.csv",
    ),
    "image missing": (lambda root: image_of(root).unlink(), 1, "images missing 1", "does not exist below the data"),
    "image truncated": (edit_image(lambda content: content[: len(content) // 2]), 1, "1 images cannot be decoded"),
    "16-bit PNG": (use_16_bits, 0, "a run can use it"),
    "palette PNG": (lambda root: Image.open(image_of(root)).convert("P").save(image_of(root)), 0, "a run can use it"),
    "CMYK JPEG": (use_cmyk, 0, "a run can use it"),
    "decompression bomb": (plant_a_bomb, 1, "images unreadable 1", "pixels in its header"),
    "path escape": (lambda root: change(root, image_path="../../etc/passwd"), 1, "must be a path below the data root"),
    "symlink out": (link_out, 1, "is a link out of the data root"),
    "step missing": (lambda root: edit_records(root, lambda records: records[4]["vqa_chain"].pop(2)), 1, "6 steps"),
    "answer not among options": (lambda root: change_step(root, answer="Somewhere"), 1, "… is not one of A. Upper"),
    "letter outside range": (lambda root: change_step(root, answer="Z"), 1, "… is not one of A. Upper lung zone"),
    "options in another order": (reorder_options, 1, "records with other options 1", "differ from"),
    "lettered options in another order": (reorder_lettered_options, 0, "records with other options 0"),
    "split file with unknown ids": (
        lambda root: write_rows(root, "test", [*read_rows(root, "test"), ["P999999", ""]]),
        1,
        "a patient_id that data.json does not have",
        "P999999",
    ),
    "split file with empty rows": (leave_rows_empty, 0, "3 rows of split tables name nothing"),
    "split file with merged patient cells": (merge_patient_cells, 0, "a run can use it"),
    "split file with merged rows": (merge_whole_rows, 1, "splits: cases are in no split", "1 rows of split tables"),
    "split file missing": (lambda root: (root / "val.csv").unlink(), 1, "exactly one of val.xlsx and val.csv"),
    "non-ASCII text": (write_umlauts, 0, "Universitätsklinik"),
    "control characters": (
        lambda root: change(root, origin="\x1b[2J\x1b]0;title\x07 clinic \u202egnp", report="x"),
        0,
        "\\x1b[2J\\x1b]0;title\\x07 clinic \\u202egnp",
    ),
    "5 MB report": (lambda root: change(root, report="No acute disease. " * 280_000), 0, "a run can use it"),
    "image named twice": (repeat_an_image_path, 1, "records that repeat an image 1", "the image of record"),
    "one picture in two splits": (repeat_content_across_splits, 0, "pictures in several splits 1", "leakage"),
    "no answer at all": (lambda root: edit_records(root, answer_nothing), 1, "no annotated answer"),
    "two patients, no tables": (keep_two_patients, 1, "2 patients cannot fill 3 splits"),
    "many records, images elsewhere": (write_many, 0, "records 2,000", "images found -"),
}
"""By name: what it does to a good folder, the exit code of check, and words of its output."""
