"""Folders that are odd in one way each: for the tests, and for the table in docs/results/odd_inputs.md."""

import csv
import json

import openpyxl
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


def rename_image(root, old, new):
    for path in (root / "data.json", *root.glob("*.csv")):
        path.write_text(path.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")


def link_out(root):
    outside = root.parent / f"{root.name}-outside.png"
    image_of(root).rename(outside)
    image_of(root).symlink_to(outside)


def reorder_lettered_options(root):
    options = records_of(root)[4]["vqa_chain"][3]["options"]
    change_step(root, options=[options[1], options[0], *options[2:]])


def leave_rows_empty(root):
    rows = read_rows(root, "train")
    write_rows(root, "train", [rows[0], ["", ""], *rows[1:3], ["", ""], ["", ""], *rows[3:]])


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
    "wrong encoding (Latin-1)": (use_latin_1, 2, "not UTF-8 (from byte"),
    "patient in two splits": (
        share_a_patient,
        1,
        "patients are in more than one split: 'P",
        "(train.csv row 2, val.csv",
    ),
    "image missing": (lambda root: image_of(root).unlink(), 1, "images missing 1", "does not exist below the data"),
    "image truncated": (edit_image(lambda content: content[: len(content) // 2]), 1, "1 images cannot be decoded"),
    "path escape": (lambda root: change(root, image_path="../../etc/passwd"), 1, "must be a path below the data root"),
    "symlink out": (link_out, 1, "is a link out of the data root"),
    "answer not among options": (lambda root: change_step(root, answer="Somewhere"), 1, "… is not one of A. Upper"),
    "lettered options in another order": (reorder_lettered_options, 0, "records with other options 0"),
    "split file with unknown ids": (
        lambda root: write_rows(root, "test", [*read_rows(root, "test"), ["P999999", ""]]),
        1,
        "a patient_id that data.json does not have",
        "P999999",
    ),
    "split file with empty rows": (leave_rows_empty, 0, "3 rows of split tables name nothing"),
    "split file with merged rows": (merge_whole_rows, 1, "splits: cases are in no split", "1 rows of split tables"),
    "non-ASCII text": (write_umlauts, 0, "Universitätsklinik"),
    "control characters": (
        lambda root: change(root, origin="\x1b[2J\x1b]0;title\x07 clinic \u202egnp", report="x"),
        0,
        "\\x1b[2J\\x1b]0;title\\x07 clinic \\u202egnp",
    ),
    "one picture in two splits": (repeat_content_across_splits, 0, "pictures in several splits 1", "leakage"),
    "no answer at all": (lambda root: edit_records(root, answer_nothing), 1, "no annotated answer"),
    "two patients, no tables": (keep_two_patients, 1, "2 patients cannot fill 3 splits"),
    "many records, images elsewhere": (write_many, 0, "records 2,000", "images found -"),
}
"""By name: what it does to a good folder, the exit code of check, and words of its output."""
