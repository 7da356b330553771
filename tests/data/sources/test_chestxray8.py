"""ChestX-ray8: the released counts and labels, boxes in pixels of the image at hand, rows that are refused."""

import collections
import csv
import shutil

import pytest
from answers import name_answers
from data.checked import set_aside_one
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from refusals import refuse

from stepcot_jax.chain import NOT_ANNOTATED
from stepcot_jax.data.records.records import read_records
from stepcot_jax.data.sources.chestxray8 import CLASSES, FINDINGS, read_entries
from stepcot_jax.data.sources.layouts import read_source
from stepcot_jax.host.errors import BadInput

ENTRY_HEADER = (
    "Image Index,Finding Labels,Follow-up #,Patient ID,Patient Age,Patient Gender,View Position,"
    "OriginalImage[Width,Height],OriginalImagePixelSpacing[x,y],"
)
ENTRY_REST = "2500,2048,0.168,0.168,"


def write_boxes(root, *rows, header="Image Index,Finding Label,Bbox [x,y,w,h],,,"):
    (root / "BBox_List_2017.csv").write_text("\n".join([header, *rows]) + "\n")


def write_entries(root, *rows, header=ENTRY_HEADER):
    (root / "Data_Entry_2017_v2020.csv").write_text("\n".join([header, *rows]) + "\n")


def write_image(path, size=(64, 64), **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", size).save(path, **options)


def read_chestxray8(root, **options):
    return read_source(root, layout="chestxray8", **options)


# The released files.


def test_single_label_rule_on_the_released_box_list(shared):
    root = shared / "data/nih_chestxray8"
    with (root / "BBox_List_2017.csv").open() as file:
        rows = list(csv.reader(file))[1:]
    labels = collections.defaultdict(set)
    for row in rows:
        labels[row[0]].add(row[1].replace("Infiltrate", "Infiltration"))
    collection = read_chestxray8(root, require_images=False)
    assert collection.layout == "chestxray8"
    assert {case.image: name_answers(case.answers)[-1] for case in collection.cases} == {
        f"images/{image}": next(iter(found)) for image, found in labels.items() if len(found) == 1
    }
    assert (len(collection.cases), len(collection.set_aside)) == (787, 93)
    assert all("labels (" in aside.reason for aside in collection.set_aside)
    everything = read_chestxray8(root, require_images=False, single_label=False)
    assert (len(everything.cases), sum(len(case.boxes) for case in everything.cases)) == (880, 984)
    assert sum(case.answers[-1] == NOT_ANNOTATED for case in everything.cases) == 93


def test_labels_equal_those_of_the_real_sample(shared, tmp_path):
    """The sample was made from the same rows by others: every label, reason and patient must be the same."""
    sample = read_records(shared / "data/nih_sample")
    shutil.copytree(shared / "data/nih_sample/images", tmp_path / "images")
    released = shared / "data/nih_chestxray8"
    for name in ("BBox_List_2017.csv", "Data_Entry_2017_v2020.subset.csv"):
        shutil.copy(released / name, tmp_path)
    collection = read_chestxray8(tmp_path, labels_from="entries", single_label=False, on_bad_record="skip")
    expected = {case.image: case for case in sample.cases}
    found = {case.image: case for case in collection.cases}
    # The sample keeps the one image of a class outside the diagnoses, with no answer at all.
    (outside,) = expected.keys() - found.keys()
    assert set(expected[outside].answers) == {NOT_ANNOTATED}
    (aside,) = [aside for aside in collection.set_aside if aside.image_path == outside]
    assert "Pleural_Thickening is not one of No Finding, Nodule" in aside.reason
    assert len(found) == 588
    assert found.keys() < expected.keys()
    for path, case in found.items():
        assert (case.answers, case.reasoning) == (expected[path].answers, expected[path].reasoning), path
        assert (case.patient, case.origin) == (expected[path].patient, expected[path].origin), path
    boxed = [case for case in collection.cases if case.boxes]
    assert len(boxed) == 25
    with (released / "BBox_List_2017.csv").open() as file:
        rows = [(row[0][:-4], *map(float, row[2:6])) for row in list(csv.reader(file))[1:]]
    quarters = {(stem, *(number / 4 for number in numbers)) for stem, *numbers in rows}
    for case in boxed:
        stem = case.image.removeprefix("images/").removesuffix(".jpg")
        for box in case.boxes:
            assert (stem, box.x1, box.y1, box.size[0], box.size[1]) in quarters


# Written files.


def test_boxes_are_scaled_to_each_image_by_its_header(tmp_path):
    write_boxes(tmp_path, *(f"0000000{number}_000.png,Mass,512,256,128,64" for number in (1, 2, 3)))
    exif = Image.Exif()
    exif[0x0112] = 6  # on its side: the picture is 100 wide and 200 high to a viewer
    images = {"images_001/images/00000001_000.png": (512, 256), "images_012/images/00000002_000.jpg": (1024, 1024)}
    images |= {"images/00000003_000.jpeg": (200, 100)}
    for path, size in images.items():
        write_image(tmp_path / path, size, **({"exif": exif} if path.endswith("jpeg") else {}))
    cut = tmp_path / "images_001/images/00000001_000.png"  # the pixels are not decoded
    cut.write_bytes(cut.read_bytes()[:60])
    cases = read_chestxray8(tmp_path).cases
    assert [case.image for case in cases] == [*images]
    assert [case.boxes[0].corners for case in cases] == [(256, 64, 320, 80), (512, 256, 640, 320), (50, 50, 62.5, 62.5)]


def test_answers_follow_from_the_labels(tmp_path):
    labels = ["No Finding", "Pneumothorax", "Cardiomegaly", "Nodule|Emphysema", "Hernia|Effusion", "Edema"]
    labels += ["Hernia|Edema", "Hernia|Cardiomegaly"]
    write_entries(tmp_path, *(f"{k:08d}_000.png,{label},0,{k},50,F,AP,{ENTRY_REST}" for k, label in enumerate(labels)))
    collection = read_chestxray8(tmp_path, single_label=False, require_images=False)
    assert [(found := name_answers(case.answers))[:1] + found[-1:] for case in collection.cases] == [
        *(["No abnormality", "Normal"], ["Decreased opacity", "Pneumothorax"], [None, "Cardiomegaly"]),
        *(["Mixed", None], ["Increased opacity", None], [None, None]),
    ]
    assert [set(name_answers(case.answers)[1:6]) for case in collection.cases] == [{"N/A"}, *[{None}] * 5]
    assert [aside.record for aside in collection.set_aside] == [5, 6]
    assert collection.cases[3].reasoning == ("NIH label: Emphysema, Nodule.", *[""] * 6)
    single = read_chestxray8(tmp_path, require_images=False)
    assert [case.patient for case in single.cases] == ["00000000", "00000001", "00000002"]
    assert "row 5: 2 labels (Emphysema, Nodule) instead of one" in single.set_aside[0].reason
    assert "row 7: Edema is not one of" in single.set_aside[2].reason
    assert set(FINDINGS) == set(CLASSES)


HEADERS = [ENTRY_HEADER.rstrip(","), "\ufeff" + ENTRY_HEADER.replace("Gender", "Sex") + "\r"]
HEADERS += [ENTRY_HEADER.replace("OriginalImage[Width,Height]", '"OriginalImage[Width,Height]"')]


@pytest.mark.parametrize("header", HEADERS)
def test_both_headers_of_the_table_of_labels(tmp_path, header):
    write_entries(tmp_path, f"00000007_000.png,Mass|Mass,0,7,034Y,F,PA,{ENTRY_REST}", header=header)
    (entry,) = read_entries(tmp_path / "Data_Entry_2017_v2020.csv")
    assert (entry.labels, entry.age, entry.sex) == (("Mass",), 34.0, "F")


def test_impossible_ages_are_unknown_and_counted(tmp_path, caplog):
    ages = enumerate(("414", "006M", "004D"), 1)
    write_entries(tmp_path, *(f"0000000{n}_000.png,Mass,0,{n},{age},F,PA,{ENTRY_REST}" for n, age in ages))
    found = [case.age for case in read_chestxray8(tmp_path, require_images=False).cases]
    assert found == [None, 0.5, pytest.approx(4 / 365.25)]
    assert "1 rows have an impossible age" in caplog.text


BAD_BOXES = {
    "00000009_000.png,Masss,1,1,1,1": "label 'Masss' is not one of Atelectasis",
    "00000009_000.png,No Finding,1,1,1,1": "label 'No Finding'",
    "00000009_000.png,Mass,1,1,one,1": "box ['1', '1', 'one', '1'] is not x, y, width, height inside",
    "00000009_000.png,Mass,-1,1,9,1": "box",
    "00000009_000.png,Mass,1,1000,1,25": "box",
    "00000009_000.png,Mass,1,1,1,1,7": "has more than 6 columns",
    ",Mass,1,1,1,1": "the image index is empty",
    "../x.png,Mass,1,1,1,1": "image '../x.png' is not a file name without folders",
    "a\0b.png,Mass,1,1,1,1": "is not a file name without folders",
}
BAD_ENTRIES = {
    "00000009_000.png,Mass|,0,9": "label ''",
    "00000009_000.png,No Finding|Mass,0,9": "No Finding and other labels exclude each",
    "00000009_000.png,Mass,0,8": "the patient is not the number",
    f"00000009_000.png,Mass,0,{'9' * 5000}": "the patient is not the number",
    "00000001_000.png,Mass,0,1": "has the same image as row 2",
}


@pytest.mark.parametrize(("row", "message"), [*BAD_BOXES.items(), *BAD_ENTRIES.items()])
def test_bad_rows_of_both_tables(tmp_path, row, message):
    if row in BAD_BOXES:
        write_boxes(tmp_path, "00000001_000.png,Mass,1,1,1,1", row)
    else:
        write_entries(tmp_path, *(f"{good},50,F,PA,{ENTRY_REST}" for good in ("00000001_000.png,Mass,0,1", row)))
    cases, _ = set_aside_one(read_chestxray8, tmp_path, 1, "row 3: ", message, require_images=False)
    assert len(cases) == 1


def test_each_table_tells_of_the_other(tmp_path, caplog):
    write_boxes(tmp_path, "00000001_000.png,Mass,1,1,1,1", "00000002_000.png,Mass,1,1,1,1")
    entries = ("00000001_000.png,Mass|Edema,0,1", "00000003_000.png,Nodule,0,3")
    write_entries(tmp_path, *(f"{entry},50,F,PA,{ENTRY_REST}" for entry in entries))
    boxes = read_chestxray8(tmp_path, require_images=False)
    assert [(case.patient, case.sex) for case in boxes.cases] == [("00000001", "F"), ("00000002", "")]
    assert "1 images of the box list have other labels here" in caplog.text
    assert "1 images of the box list are missing here" in caplog.text
    entries = read_chestxray8(tmp_path, require_images=False, labels_from="entries", on_bad_record="skip")
    assert [case.patient for case in entries.cases] == ["00000003"]
    assert [aside.record for aside in entries.set_aside] == [0, 2]
    assert "row 3 of the box list: the image is not in the table of labels" in entries.set_aside[1].reason


def test_an_image_in_two_folders_and_links_out_of_the_root_are_refused(tmp_path):
    write_boxes(tmp_path, "00000001_000.png,Mass,1,1,1,1")
    for ending in (".png", ".jpg"):
        write_image(tmp_path / f"images/00000001_000{ending}")
    assert read_chestxray8(tmp_path).cases[0].image == "images/00000001_000.png"
    write_image(tmp_path / "images_001/images/00000001_000.png")
    refuse(r"images/00000001_000\.png and images_001/images/00000001_000\.png", read_chestxray8, tmp_path)
    (tmp_path / "root").mkdir()
    write_image(tmp_path / "elsewhere/00000001_000.png")
    (tmp_path / "root/images").symlink_to(tmp_path / "elsewhere")
    write_boxes(tmp_path / "root", "00000001_000.png,Mass,1,1,1,1")
    refuse("is a link out of the data root", read_chestxray8, tmp_path / "root")


def test_tables_that_cannot_be_used(tmp_path):
    refuse("has no Data_Entry_2017", read_chestxray8, tmp_path)
    write_boxes(tmp_path, header="Image,Label,x,y,w,h")
    refuse(r"header \['Image', 'Label'.*is not Image Index,Finding Label,Bbox", read_chestxray8, tmp_path)
    write_boxes(tmp_path)
    refuse("has no records", read_chestxray8, tmp_path)
    write_entries(tmp_path, header="Image Index,Finding Labels")
    refuse("lacks Patient ID, Patient Age, Patient Gender, View Position", read_chestxray8, tmp_path)
    (tmp_path / "Data_Entry_2017.csv").write_text(ENTRY_HEADER)
    refuse("several files Data_Entry_2017", read_chestxray8, tmp_path)
    refuse("labels_from: 'x'", read_chestxray8, tmp_path, labels_from="x")


ROWS = st.tuples(
    st.integers(1, 5), st.sampled_from(["Mass", "Edema", "Wrong"]), st.integers(-1, 1024), st.integers(0, 30)
)


@given(rows=st.lists(ROWS, min_size=1, max_size=12))
def test_every_image_is_a_case_or_set_aside_once(tmp_path_factory, rows):
    root = tmp_path_factory.mktemp("boxes")
    write_boxes(root, *(f"{image:08d}_000.png,{label},{x},0,{width},9" for image, label, x, width in rows))
    images = list(dict.fromkeys(image for image, *_ in rows))
    bad = {image for image, label, x, width in rows if label == "Wrong" or x < 0 or width < 1 or x + width > 1024}
    bad |= {image for image in images if {label for i, label, *_ in rows if i == image} == {"Edema"}}  # useless
    try:
        collection = read_chestxray8(root, require_images=False, single_label=False, on_bad_record="skip")
    except BadInput:
        assert set(images) == bad
        return
    kept = [int(case.patient) for case in collection.cases]
    assert kept == [image for image in images if image not in bad]
    assert [aside.record for aside in collection.set_aside] == [n for n, image in enumerate(images) if image in bad]
    assert sum(len(case.boxes) for case in collection.cases) == sum(image in kept for image, *_ in rows)
