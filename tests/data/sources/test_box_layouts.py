"""Public layouts of boxes, in made miniatures with the dirt of the releases."""

import io
import json

import numpy as np
import pytest
from PIL import Image
from refusals import refuse

from stepcot_jax.data.sources.layout_table import detect_boxed_layout
from stepcot_jax.data.sources.layouts import read_detections, read_vqa_source

SIZE = (64, 48)


def put_pictures(root, *names, size=SIZE):
    for number, name in enumerate(names):
        pixels = np.random.default_rng(number).integers(0, 256, size[::-1], np.uint8)
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "PNG" if name.endswith(".png") else "JPEG")
        put(root / name, file.getvalue())


def put(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    content = content if isinstance(content, bytes | str) else json.dumps(content)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


def read(root, layout, **how):
    """Return boxes by record, the records, and the reasons of what is set aside."""
    assert layout == detect_boxed_layout(root)
    aside = []
    records = read_detections(root, on_bad_record="skip", set_aside=aside, **how)
    boxes = {record.id: [(box.label, box.corners) for box in record.boxes] for record in records}
    return boxes, {record.id: record for record in records}, [item.reason for item in aside]


def test_coco_as_roboflow_exports_it(tmp_path, caplog):
    for split, number in (("train", 1), ("valid", 2)):
        images = [{"id": 0, "file_name": "a.rf.1.jpg", "width": 640, "height": 480}]
        annotations = [
            {"id": 0, "image_id": 0, "category_id": 1, "bbox": [10, 20, 100, 40], "iscrowd": 0},
            {"id": 1, "image_id": 0, "category_id": 1, "bbox": [600, 20, 100, 40]},
            {"id": 2, "image_id": 0, "category_id": 7, "bbox": [1, 1, 2, 2]},
            {"id": 3, "image_id": 0, "category_id": 1, "segmentation": [[10, 10, 30, 10, 30, 40.5]]},
            {"id": 4, "image_id": 0, "category_id": 1, "bbox": [1, 1, 2, 2], "iscrowd": 1},
            {"id": 5, "image_id": 9, "category_id": 1, "bbox": [1, 1, 2, 2]},
            {"id": 6, "image_id": 0, "category_id": 1, "bbox": [1, 1, 0, 2]},
        ]
        categories = [{"id": 0, "name": "chest"}, {"id": 1, "name": "nodule (left)"}]
        content = {"info": {}, "images": images, "annotations": annotations[: None if number == 1 else 1]}
        put(tmp_path / split / "_annotations.coco.json", content | {"categories": categories})
        put_pictures(tmp_path / split, "a.rf.1.jpg")
    boxes, records, reasons = read(tmp_path, "coco")
    expected = [(1, 2, 11, 6), (60, 2, 64, 6), (1, 1, 3, 4.05)]
    assert [corners for _, corners in boxes["train/0"]] == [pytest.approx(corners) for corners in expected]
    assert boxes["train/0"][0][0] == "nodule left"
    assert (records["train/0"].image, records["val/0"].image) == ("train/a.rf.1.jpg", "valid/a.rf.1.jpg")
    for part in ("annotation 2: category_id", "annotation 4: iscrowd", "annotation 5: image_id", "annotation 6: bbox"):
        assert sum(f"train/_annotations.coco.json, {part}" in reason for reason in reasons) == 1
    assert len(reasons) == 4
    assert "boxes of a copy of another size, scaled to the file" in caplog.text
    assert "boxes over the picture's edge, cut there" in caplog.text
    put_pictures(tmp_path / "valid", "a.rf.1.jpg", size=(64, 64))
    assert any("its stated size is 640 by 480, the file 64 by 64" in reason for reason in read(tmp_path, "coco")[2])


def test_yolo_as_roboflow_exports_it(tmp_path):
    parts = "train: ../train/images\nval: ../valid/images\ntest: ../test/images\n"
    put(tmp_path / "data.yaml", parts + "nc: 2\nnames: ['a', 'b']\n")
    names = ("p.rf.1.jpg", "p.rf.2.jpg", "bad.jpg", "empty.jpg", "none.jpg")
    put_pictures(tmp_path, *(f"train/images/{name}" for name in names), "valid/images/p.rf.3.jpg", "test/images/q.jpg")
    label = "1 0.5 0.5 0.25 0.5\r\n\r\n1 0.5 0.5 0.25 0.5\r\n0 0.25 0.25 0.5 0.25 0.5 0.75\r\n"
    put(tmp_path / "train/labels/p.rf.1.txt", label)
    put(tmp_path / "train/labels/p.rf.2.txt", "0 0.95 0.5 0.2 0.2\n2 0.5 0.5 0.1 0.1\n")
    put(tmp_path / "train/labels/bad.txt", "0 32 24 8 8\n")
    put(tmp_path / "train/labels/empty.txt", "")
    put(tmp_path / "train/labels/gone.txt", "0 0.5 0.5 0.1 0.1\n")
    put(tmp_path / "valid/labels/p.rf.3.txt", "1 0.5 0.5 1 1\n")
    boxes, records, reasons = read(tmp_path, "yolo", with_normal=True)
    assert boxes["train/p.rf.1"] == [("b", (24, 12, 40, 36)), ("a", (16, 12, 32, 36))]
    assert boxes["train/p.rf.2"] == [("a", pytest.approx((54.4, 19.2, 64, 28.8)))]
    assert (boxes["train/empty"], records["train/none"].absent, records["test/q"].split) == ([], ("a", "b"), "test")
    assert records["train/p.rf.1"].patient == records["val/p.rf.3"].patient == "picture-p"
    assert len(reasons) == 3
    bad = "train/bad: train/labels/bad.txt, line 1: 32 24 8 8 are no shares"
    for part in (bad, "p.rf.2.txt, line 2: class '2'", "gone"):
        assert sum(part in reason for reason in reasons) == 1
    refuse(r"line 1: 32 24 8 8 are no shares", read_detections, tmp_path)
    put(tmp_path / "data.yaml", "train: ../../elsewhere\nnames: [a]\n")
    refuse(r"train: .*elsewhere' is not a folder below", read_detections, tmp_path)


VOC = """<annotation><filename>{name}</filename><size><width>{w}</width><height>{h}</height><depth>1</depth></size>
{objects}</annotation>"""
OBJECT = (
    "<object><name>{}</name>{}<bndbox><xmin>{}</xmin><ymin>{}</ymin><xmax>{}</xmax><ymax>{}</ymax></bndbox></object>"
)


@pytest.mark.parametrize("first", [0, 1])
def test_pascal_voc(tmp_path, first):
    inner = OBJECT.format("head", "", 5, 5, 6, 6).replace("object>", "part>")
    part = f"<difficult>1</difficult>{inner}"
    objects = OBJECT.format("mass", part, 11, 21, 20, 30) + OBJECT.format("clip", "", 40, 44, 31, 8.5)
    put(tmp_path / "Annotations/a.xml", VOC.format(name="a.jpg", w=64, h=48, objects=objects))
    edge = OBJECT.format("mass", "", first, 1, 70, 48)
    put(tmp_path / "Annotations/b.xml", VOC.format(name="other.jpg", w=0, h=0, objects=edge))
    put(tmp_path / "Annotations/c.xml", "<annotation><object>")
    put(tmp_path / "Annotations/d.xml", '<!DOCTYPE a [<!ENTITY x "y">]><annotation/>')
    put(tmp_path / "ImageSets/Main/train.txt", "a\n")
    put(tmp_path / "ImageSets/Main/val.txt", "b -1\n")
    put_pictures(tmp_path, "JPEGImages/a.jpg", "JPEGImages/b.jpg")
    boxes, records, reasons = read(tmp_path, "voc")
    assert boxes["a"] == [("mass", (11 - first, 21 - first, 20, 30)), ("clip", (31 - first, 8.5 - first, 40, 44))]
    assert boxes["b"] == [("mass", (0, 1 - first, 64, 48))]
    assert (records["a"].split, records["b"].split, records["b"].image) == ("train", "val", "JPEGImages/b.jpg")
    assert ["c.xml: cannot be read" in reasons[0], "document type declaration" in reasons[1]] == [True, True]


TABLES = {
    "pixels": "filename,width,height,class,xmin,ymin,xmax,ymax\n"
    "a.png,64,48,mass,8,4,24,28\na.png,64,48,clip,30,40,20,10\n",
    "sized": "patientId,x,y,width,height,label\na,8,4,16,24,mass\na,20,10,10,30,clip\n",
    "shares": "image_id,label,x_min,y_min,x_max,y_max\n"
    "a.png,mass,0.125,0.083333333333,0.375,0.583333333333\na.png,clip,0.3125,0.208333333333,0.46875,0.8333333333\n",
    "bare": "a.png,8,4,24,28,mass\na.png,20,10,30,40,clip\nb.png,,,,,\n",
}


@pytest.mark.parametrize("form", TABLES)
def test_tables_of_boxes(tmp_path, form):
    put(tmp_path / "boxes.csv", TABLES[form])
    put_pictures(tmp_path, "a.png", "b.png")
    boxes, records, reasons = read(tmp_path, "box_table")
    assert [label for label, _ in boxes["a"]] == ["mass", "clip"]
    np.testing.assert_allclose([corners for _, corners in boxes["a"]], [(8, 4, 24, 28), (20, 10, 30, 40)], atol=1e-6)
    assert (records["a"].image_size, reasons) == (SIZE, [])


def test_a_table_whose_space_cannot_be_told_is_refused_and_bad_rows_are_named(tmp_path):
    put(tmp_path / "boxes.csv", "image,class,x1,y1,x2,y2\na.png,mass,0,0,1,1\n")
    put_pictures(tmp_path, "a.png")
    refuse("pixels and shares cannot be told apart", read_detections, tmp_path)
    rows = ["a.png,mass,1,2,3,4", "a.png,,1,2,3,4", "a.png,mass,1,2,x,4", "a.png,mass,5,5,5,9", "c.png,mass,1,2,3,4"]
    put(tmp_path / "boxes.csv", "image,class,x1,y1,x2,y2\n" + "\n".join(rows) + "\n")
    boxes, _, reasons = read(tmp_path, "box_table")
    assert boxes == {"a": [("mass", (1, 2, 3, 4))]}
    parts = ("row 3: class: blank", "row 4: box: ['1', '2', 'x', '4']", "row 5: box", "row 6: 'c.png' does not exist")
    assert [part in reason for part, reason in zip(parts, reasons, strict=True)] == [True] * 4


HEAD = "File_name,Patient_index,Bounding_boxes,Coarse_lesion_type,Possibly_noisy,Train_Val_Test\n"


def test_deeplesion(tmp_path):
    rows = [
        '000001_01_01_109.png,1,"11, 21, 31, 41",3,0,3',
        '000001_01_01_109.png,1,"1, 1, 9, 9",5,0,3',
        '000002_01_01_010.png,2,"6, 6, 22, 26, 1, 1, 5, 5",-1,0,1',
        '000002_02_01_011.png,2,"6, 6, 22, 26",-1,1,1',
        '000003_02_01_011.png,3,"6, 6, 22",-1,0,2',
        '000004_02_01_011.png,4,"6, 6, 22, 26",9,0,2',
    ]
    put(tmp_path / "DL_info.csv", HEAD + "\n".join(rows) + "\n")
    names = ("000001_01_01/109", "000002_01_01/010", "000002_02_01/011", "000003_02_01/011")
    put_pictures(tmp_path, *(f"Images_png/{name}.png" for name in names))
    boxes, records, reasons = read(tmp_path, "deeplesion")
    assert boxes == {
        "000001_01_01_109.png": [("mediastinum lesion", (10, 20, 30, 40)), ("lung lesion", (0, 0, 8, 8))],
        "000002_01_01_010.png": [("lesion", (5, 5, 21, 25)), ("lesion", (0, 0, 4, 4))],
    }
    first = records["000001_01_01_109.png"]
    assert (first.split, first.patient, first.modality) == ("test", "1", "CT")
    said = ("row 5: Possibly_noisy", "row 6: Bounding_boxes", "row 7: Coarse_lesion_type")
    assert [sum(part in reason for reason in reasons) for part in said] == [1, 1, 1] == [1] * len(reasons)


def test_vindr_cxr_of_physionet(tmp_path):
    head = "image_id,{}class_name,x_min,y_min,x_max,y_max\n"
    train = [
        "one,R1,Nodule/Mass,10,10,20,20",
        "one,R2,Nodule/Mass,12,10,22,20",
        "one,R3,Cardiomegaly,1,1,30,30",
        "two,R1,No finding,,,,",
        "two,R2,No finding,,,,",
    ]
    put(tmp_path / "annotations/annotations_train.csv", head.format("rad_id,") + "\n".join(train) + "\n")
    test = ["three,Rib fracture,5,6,15,16", "three,Clavicle fracture,5,6,15,16", "four,Edema,5,6,5,16"]
    put(tmp_path / "annotations/annotations_test.csv", head.format("") + "\n".join(test) + "\n")
    put_pictures(tmp_path, "train/one.png", "train/two.png", "test/three.png", "test/four.png")
    boxes, records, reasons = read(tmp_path, "vindr_cxr", with_normal=True)
    assert boxes["one"] == [("Nodule/Mass", (11, 10, 21, 20))]
    assert boxes["three"] == [("Rib fracture", (5, 6, 15, 16)), ("Clavicle fracture", (5, 6, 15, 16))]
    assert (records["two"].absent, records["three"].split) == (("Cardiomegaly", "Nodule/Mass"), "test")
    assert [len(reasons), "annotations_test.csv, row 4" in reasons[0]] == [1, True]
    every = read(tmp_path, "vindr_cxr", readers="all")[0]
    assert len(every["one"]) == 3


def test_the_input_of_medclms_code(tmp_path):
    good = {"bbox": [20, 30, 10, 5], "class": "Nodule"}
    entries = [
        {"image_path": "a.png", "anatomy_path": "masks/a", "annotations": [good, {"bbox": [1, 2, 3]}]},
        {"image_path": "b.png", "annotations": [{"bbox": [1, 2, 3, 4], "class": ""}]},
        {"image_path": "b.png"},
    ]
    put(tmp_path / "train.json", entries)
    put_pictures(tmp_path, "a.png", "b.png")
    boxes, records, reasons = read(tmp_path, "medclm_boxes")
    assert boxes == {"train:0": [("Nodule", (10, 5, 20, 30))]}
    assert (records["train:0"].split, records["train:0"].facts["anatomy_path"]) == ("train", "masks/a")
    parts = ("record 0, annotation 1", "record 1: annotation 0", "annotations: missing")
    assert [part in reason for part, reason in zip(parts, reasons, strict=True)] == [True] * 3


def test_questions_are_asked_about_boxes_of_any_classes(tmp_path):
    put(tmp_path / "boxes.csv", TABLES["pixels"])
    put_pictures(tmp_path, "a.png")
    questions = read_vqa_source(tmp_path)
    assert "open" in {record.kind for record in questions.records}
    assert {record.modality for record in questions.records} == {""}
    assert any("this picture" in record.question for record in questions.records)
    assert not any("radiograph" in record.question for record in questions.records)
    assert {record.image for record in questions.records} == {"a.png"}


def test_coco_with_bad_entries_and_files_without_boxes(tmp_path, caplog):
    size = {"width": 64.0, "height": None}
    images = [{"id": k, "file_name": f"./{name}.PNG", **size} for k, name in ((2, "b"), (1, "a"))]
    boxes = ([1, 1, 9, 9], [1, "1", None, 9], [], None)
    annotations = [{"id": k, "image_id": 1, "category_id": 0, "bbox": box} for k, box in enumerate(boxes)]
    annotations[2]["segmentation"] = {"counts": [1, 2], "size": [48, 64]}
    content = {"images": images, "annotations": annotations, "categories": [{"id": 0, "name": "mass"}]}
    text = json.dumps(content).replace('"1"', "NaN")
    put(tmp_path / "annotations/instances_train2017.json", text)
    captions = [{"id": 1, "image_id": 1, "caption": "a chest"}]
    put(tmp_path / "annotations/captions_train2017.json", {"images": images, "annotations": captions})
    put(tmp_path / "annotations/instances_val2017.json", content | {"annotations": annotations[:1]})
    put_pictures(tmp_path, *(f"{part}2017/{name}.PNG" for part in ("train", "val") for name in "ab"))
    boxes, records, reasons = read(tmp_path, "coco")
    place = "annotations/instances_{}2017.json, image 1 (./a.PNG)"
    assert [records[name].provenance["row"] for name in ("1", "val/1")] == [place.format("train"), place.format("val")]
    assert boxes == {"1": [("mass", (1, 1, 10, 10))], "val/1": [("mass", (1, 1, 10, 10))]}  # ids from 1 in each file
    parts = ("annotation 1: bbox: [1, None, None, 9]", "annotation 2: bbox: missing", "annotation 3: bbox: missing")
    assert [part in reason for part, reason in zip(parts, reasons, strict=True)] == [True] * 3
    assert "captions_train2017.json: has no boxes of categories" in caplog.text


def test_yolo_of_another_machine(tmp_path, caplog):
    lines = ["path: /content/x", "train: train.txt", "val: C:\\x\\valid\\images", "test: ../test/images"]
    put(tmp_path / "tumour.yaml", "\n".join([*lines, "names: {'0': a}\n"]))
    put(tmp_path / "train.txt", "./images/p.JPG\r\n/content/x/images/gone.jpg\n")
    put_pictures(tmp_path, "images/p.JPG", "valid/images/v.jpg")
    for name in ("labels/p", "valid/labels/v"):
        put(tmp_path / f"{name}.txt", "0 0.5 0.5 0.5 0.5\n")
    boxes, records, reasons = read(tmp_path, "yolo")
    assert boxes == {name: [("a", (16, 12, 48, 36))] for name in ("train/images/p", "val/v")}
    assert [record.split for record in records.values()] == ["train", "val"]
    assert [len(reasons), "train.txt, line 2: no picture" in reasons[0]] == [1, True]
    assert "test: no '../test/images' below the folder" in caplog.text


@pytest.mark.parametrize("form", ["annotations/{}.xml", "{}/{}.xml"])
def test_pascal_voc_as_others_lay_it_out(tmp_path, form):
    for name, part in (("a.rf.1", "train"), ("b", "valid")):
        path = form.format(name) if form.count("{}") == 1 else form.format(part, name)
        put(tmp_path / path, VOC.format(name=name, w=64, h=48, objects=OBJECT.format("mass", "", 11, 21, 20, 30)))
        put_pictures(tmp_path, f"{part if 'annotations' not in form else 'images'}/{name}.jpg")
    boxes, records, _ = read(tmp_path, "voc")
    assert [box for found in boxes.values() for box in found] == [("mass", (10, 20, 20, 30))] * 2
    assert {record.split for record in records.values()} == ({""} if "annotations" in form else {"train", "val"})
    assert next(iter(records.values())).patient == "picture-a"


def test_tables_of_boxes_of_several_parts_and_with_a_row_of_the_other_space(tmp_path):
    head = "filename,width,height,class,xmin,ymin,xmax,ymax\n"
    for part in ("train", "test"):
        put(tmp_path / f"one/{part}_labels.csv", f"{head}{part}.png,64,48,mass,8,4,24,28\n")
        put(tmp_path / f"two/{part}/_annotations.csv", f"{head}{part}.png,64,48,mass,8,4,24,28\n")
        put_pictures(tmp_path, f"one/images/{part}/{part}.png", f"two/{part}/{part}.png")
    for name in ("one", "two"):
        boxes, records, _ = read(tmp_path / name, "box_table")
        assert list(boxes.values()) == [[("mass", (8, 4, 24, 28))]] * 2
        assert [record.split for record in records.values()] == ["test", "train"]
    share, pixel = "a.png,mass,0.125,0.25,0.375,0.5", "b.png,mass,10,10,20,20"
    put_pictures(tmp_path / "mixed", "a.png", "b.png")
    for rows, kept, why in (((share, share, pixel), "a", "no shares"), ((share, pixel, pixel), "b", "are shares in")):
        put(tmp_path / "mixed/boxes.csv", "\n".join(["image,class,x1,y1,x2,y2", *rows, ""]))
        boxes, _, (reason,) = read(tmp_path / "mixed", "box_table")
        assert [set(boxes), why in reason] == [{kept}, True]
    put(tmp_path / "mixed/boxes.csv", f"image,class,x1,y1,x2,y2\n{share}\n{pixel}\n")
    refuse("1 rows have shares, 1 pixels, so that", read_detections, tmp_path / "mixed")


def test_hounsfield_units_in_16_bits_are_shown_in_a_window():
    from stepcot_jax.data.images.preprocessing import decode_image_bytes

    values = 32768 + np.linspace(-1024, 1050, 64 * 48).reshape(48, 64).round().astype(np.int32)
    values[0, 0] = 0
    file = io.BytesIO()
    Image.fromarray(values.astype(np.uint16)).save(file, "PNG")
    shown = decode_image_bytes(file.getvalue(), name="ct.png")[..., 0]
    assert [shown[0, 0], shown[0, 1], shown[-1, -1]] == [0, 0, 255]
    np.testing.assert_allclose(shown.reshape(-1)[1:], np.linspace(0, 255, 64 * 48)[1:], atol=1)


def test_a_yaml_of_nested_aliases_is_refused_at_once(tmp_path):
    lines = ["a: &a [x, x]"] + [
        f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]" for old, new in zip("abcdefghi", "bcdefghij", strict=True)
    ]
    put(tmp_path / "data.yaml", "\n".join([*lines, "names: [*j]", "train: images"]))
    refuse(r"data\.yaml: .*expected names, and folders", read_detections, tmp_path)
