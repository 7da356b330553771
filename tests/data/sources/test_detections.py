"""Detection lists as grounded images: released counts, boxes against the file's own numbers, readers, refusals."""

import collections
import csv
import json
import shutil

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from refusals import refuse

from stepcot_jax.box import Box
from stepcot_jax.data.phantom.phantom import export_phantom
from stepcot_jax.data.questions.making import ground_phantom
from stepcot_jax.data.sources.layout_table import detect_boxed_layout
from stepcot_jax.data.sources.layouts import read_detections
from stepcot_jax.data.sources.vinbigdata import VINBIG_CLASSES, ReaderBox, agree

HEADER = "image_id,class_name,class_id,rad_id,x_min,y_min,x_max,y_max"


def write_vinbig(root, *rows, sizes=("a,100,200", "b,100,200"), header=HEADER):
    (root / "train.csv").write_text("\n".join([header, *rows]) + "\n")
    if sizes:
        (root / "train_meta.csv").write_text("\n".join(["image_id,dim0,dim1", *sizes]) + "\n")


def boxes(image):
    return [(finding.label, finding.corners) for finding in image.boxes]


# ChestX-ray8


def test_the_984_released_boxes_are_kept_exactly(shared):
    root = shared / "data/nih_chestxray8"
    images = read_detections(root, require_images=False)
    with (root / "BBox_List_2017.csv").open() as file:
        rows = list(csv.reader(file))[1:]
    expected = collections.defaultdict(list)
    for row in rows:
        x, y, width, height = map(float, row[2:6])
        label = "Infiltration" if row[1] == "Infiltrate" else row[1]
        expected[row[0]].append((label, (x, y, x + width, y + height)))
    assert {f"{image.id}.png": boxes(image) for image in images} == expected
    assert [f"images/{name}" for name in expected] == [image.image for image in images]
    counts = collections.Counter(label for image in images for label, _ in boxes(image))
    assert (len(images), sum(counts.values()), len(counts), counts["Infiltration"]) == (880, 984, 8, 123)
    assert all(image.patient == image.id[:8] and not image.absent for image in images)
    assert {image.image_size for image in images} == {(1024, 1024)}
    for image in images[:50]:
        numbers = [int(number) - 2 for number in image.provenance["row"].split(", ")]
        assert {rows[number][0] for number in numbers} == {f"{image.id}.png"}
    assert images[0].provenance["file"] == "BBox_List_2017.csv"
    assert "NIH" in images[0].provenance["licence"]


def test_normal_images_deny_all_classes_and_come_on_request(shared):
    root = shared / "data/nih_chestxray8"
    with (root / "Data_Entry_2017_v2020.subset.csv").open() as file:
        normal = [row[0] for row in list(csv.reader(file))[1:] if row[1] == "No Finding"]
    images = read_detections(root, require_images=False, with_normal=True)
    added = [image for image in images if not image.boxes]
    assert ([f"{image.id}.png" for image in added], len(images)) == (normal, 880 + len(normal))
    assert all(len(image.absent) == 14 for image in added)


def test_a_box_listed_twice_is_kept_once(tmp_path):
    text = "Image Index,Finding Label,Bbox [x,y,w,h],,,\na.png,Mass,1,2,3,4\na.png,Mass,1,2,3,4\na.png,Mass,1,2,3,5\n"
    (tmp_path / "BBox_List_2017.csv").write_text(text)
    (image,) = read_detections(tmp_path, require_images=False)
    assert boxes(image) == [("Mass", (1, 2, 4, 6)), ("Mass", (1, 2, 4, 7))]
    assert (image.provenance["repeated"], image.provenance["row"]) == ("1 box listed again, kept once", "2, 3, 4")


# VinBigData


def test_boxes_of_agreeing_readers_are_averaged(tmp_path, caplog):
    write_vinbig(
        tmp_path,
        "a,Nodule/Mass,8,R1,10,10,30,30",
        "b,No finding,14,R1,,,,",
        "a,Nodule/Mass,8,R2,12,10,32,30",
        "a,Nodule/Mass,8,R3,28,10,48,30",
        "a,ILD,5,R1,10,10,30,30",
        "b,No finding,14,R2,,,,",
    )
    (image,) = read_detections(tmp_path, require_images=False)
    assert boxes(image) == [("Nodule/Mass", (11, 10, 31, 30))]
    assert (image.image_size, image.patient, image.absent) == ((200, 100), "a", ())
    both = read_detections(tmp_path, require_images=False, with_normal=True)
    assert [(each.id, each.absent) for each in both] == [("a", ()), ("b", VINBIG_CLASSES)]
    (every,) = read_detections(tmp_path, require_images=False, readers="all")
    assert [label for label, _ in boxes(every)] == ["Nodule/Mass"] * 3 + ["ILD"]
    refuse("no image has a box", read_detections, tmp_path, require_images=False, readers=3)
    (tmp_path / "train").mkdir()  # a copy stretched to a square: boxes stay in pixels of the original
    for name in "ab":
        Image.new("L", (50, 50)).save(tmp_path / "train" / f"{name}.png")
    (image,) = read_detections(tmp_path)
    assert (image.image_size, image.image, boxes(image)) == ((200, 100), "train/a.png", boxes(image))
    assert "1 pictures, boxes are stretched" in caplog.text


BAD_ROWS = [
    ("a,Nodule,8,R1,1,1,2,2", "row 3: class_name: 'Nodule' is not one of"),
    ("a,ILD,5,R1,5,1,5,2", "row 3: .* is no image with a class and a box"),
    *(("a,ILD,5,,1,1,2,2", "row 3: rad_id: is empty"), ("a,ILD,5,R1,1,1,2", "row 3: has 7 cells; expected 8")),
    ("a,No finding,14,R2,0,0,1,1", "row 3: x_min: a box"),
    ("a,No finding,14,R1,,,,", "row 2: reader 'R1' has both a box and 'No finding'"),
    ("../c,ILD,5,R1,1,1,2,2", "must be a path below the data root"),
    ("c,ILD,5,R1,1,1,2,2", "its size is unknown: neither a file of the picture nor a stated size"),
]


@pytest.mark.parametrize(("row", "message"), BAD_ROWS)
def test_bad_rows_of_train_csv(tmp_path, row, message):
    write_vinbig(tmp_path, "a,ILD,5,R1,1,1,9,9", row)
    refuse(rf"train\.csv, .*{message}", read_detections, tmp_path, require_images=False)


def test_sizes_come_from_image_files_without_the_table(tmp_path):
    write_vinbig(tmp_path, "a,ILD,5,R1,1,1,40,9", sizes=())
    (tmp_path / "train").mkdir()
    Image.new("L", (40, 20)).save(tmp_path / "train/a.jpg")
    (image,) = read_detections(tmp_path, readers=1)
    assert (image.image, image.image_size) == ("train/a.jpg", (40, 20))


@given(
    marks=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 12), st.integers(1, 9)), max_size=12),
    readers=st.integers(1, 3),
)
def test_agreement_uses_each_box_once_and_each_reader_once_per_finding(marks, readers):
    rows = [ReaderBox(k, f"R{who}", Box("ILD", (x, 0.0, x + wide, 4.0))) for k, (who, x, wide) in enumerate(marks)]
    found = list(agree(rows, readers=readers))
    assert all(readers <= number <= len({row.reader for row in rows}) for _, number in found)
    assert sum(number for _, number in found) <= len(rows)
    assert [number for _, number in found] == sorted((number for _, number in found), reverse=True)
    if readers == 1:
        assert sum(number for _, number in found) == len(rows)


# PadChest-GR


def write_padchest(root, *findings, size=(200, 100)):
    study = {"StudyID": "1", "ImageID": "x.png", "findings": list(findings)}
    (root / "grounded_reports_20240819.json").write_text(json.dumps([study]))
    Image.new("L", size).save(root / "x.png")


def sentence(text, labels=(), boxes=(), **others):
    return {"sentence_en": text, "abnormal": bool(boxes), "labels": list(labels), "boxes": list(boxes)} | others


def test_sentences_regions_and_denied_labels_of_padchest(tmp_path):
    labels, text = ["pleural effusion", "atelectasis"], "Effusion with collapse."
    write_padchest(
        tmp_path,
        sentence(text, labels, [[0.1, 0.5, 0.4, 0.9]], locations=["right", "basal"]),
        sentence("No nodules.", ["nodule"]),
        sentence("Normal heart.", ["Normal"]),
        sentence("No other effusion.", ["Pleural effusion"]),
        sentence("A mass.", ["mass"], abnormal=True),  # without a box, and present
    )
    (image,) = read_detections(tmp_path)
    assert boxes(image) == [(name, pytest.approx((20, 50, 80, 90))) for name in labels]
    assert {(finding.sentence, finding.region) for finding in image.boxes} == {(text, "right, basal")}
    assert (image.absent, image.image_size, image.provenance["row"]) == (("nodule",), (200, 100), "0")


def test_regions_that_no_record_could_hold_are_bad_records(tmp_path):
    write_padchest(tmp_path, sentence("A.", ["nodule"], [[0, 0, 0.5, 0.5]], locations=["left *lung*\n[1]"]))
    path = tmp_path / "grounded_reports_20240819.json"
    refuse(r"20240819\.json, record 0: region: 'left", read_detections, tmp_path)
    good = {"StudyID": "2", "ImageID": "x.png", "findings": [sentence("B.", ["mass"], [[0, 0, 0.5, 0.5]])]}
    path.write_text(json.dumps([*json.loads(path.read_text()), good]))
    aside = []
    (image,) = read_detections(tmp_path, on_bad_record="skip", set_aside=aside)
    assert (image.id, len(aside)) == ("2", 1)


# Phantom folders


@pytest.fixture(scope="module")
def phantoms(tmp_path_factory):
    root = tmp_path_factory.mktemp("phantoms")
    export_phantom(root, num_cases=12, seed=1, size=64, prevalence="flat")
    return root


def test_phantom_folders_are_the_phantoms_that_were_drawn_and_no_vinbigdata(phantoms, tmp_path):
    for index, image in enumerate(read_detections(phantoms, with_normal=True)):
        drawn, _ = ground_phantom(index, seed=1, size=64)
        assert image == msgspec.structs.replace(drawn, provenance=image.provenance)
        assert image.facts["side"] in ("", "right", "left", "bilateral")
    shutil.copytree(phantoms, tmp_path, dirs_exist_ok=True)
    text, row = (tmp_path / "boxes.csv").read_text(), "images/phantom_000003.png,Mass,1,1,{},9,0,{},right\n"
    for cells, words in ((("0", "focus"), "width: Expected `float` > 0"), (("9", "wart"), "kind: Invalid enum value")):
        (tmp_path / "boxes.csv").write_text(text + row.format(*cells))
        refuse(rf"boxes.csv, row \d+: {words}", read_detections, tmp_path)
    (tmp_path / "train.csv").write_text("patient_id,image_path\n1,a.png\n")
    assert detect_boxed_layout(tmp_path) == "phantom"


NO_LISTS = [
    ({}, "has no known detection list; expected BBox_List_2017"),
    *(({"layout": "nothing"}, "is not one of auto, chestxray8"), ({"layout": "vinbigdata"}, r"has no train\.csv")),
    ({"layout": "vinbigdata", "readers": 0}, "readers: 0"),
]


@pytest.mark.parametrize(("options", "message"), NO_LISTS)
def test_folders_without_a_list_and_settings_that_do_not_exist(tmp_path, options, message):
    refuse(message, read_detections, tmp_path, **options)
