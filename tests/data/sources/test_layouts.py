"""Layouts: each is told by its files, and one way reads them all."""

import json
import pathlib

import pytest
from PIL import Image
from refusals import refuse

from stepcot_jax.data.sources.layout_table import CASES, LAYOUTS, QUESTIONS, detect_layout, of_layout
from stepcot_jax.data.sources.layouts import read_detections, read_source
from stepcot_jax.host.errors import BadInput

FILES = {"data.json": "published", "NLMCXR_reports.tgz": "iu_xray", "cases.csv": "csv"}
FILES |= dict.fromkeys(("BBox_List_2017.csv", "Data_Entry_2017.csv", "Data_Entry_2017_v2020.subset.csv"), "chestxray8")
FILES |= {"grounded_reports_20240819.json": "padchest_gr"}


@pytest.mark.parametrize(("name", "layout"), FILES.items())
def test_a_layout_is_told_by_its_file(tmp_path, name, layout):
    (tmp_path / name).write_text("")
    assert detect_layout(tmp_path) == layout
    assert layout in CASES


def test_every_row_of_the_table_has_its_lister_and_its_place_in_the_docs():
    page = (pathlib.Path(__file__).parents[3] / "docs/sources.md").read_text()
    assert {*CASES, *QUESTIONS} == LAYOUTS.keys()
    for name in LAYOUTS:
        assert f"`{name}`" in page
        assert name in ("published", "records") or callable(of_layout(name, "list")) or name in CASES
        assert not LAYOUTS[name].looks_inside or callable(of_layout(name, "is"))


def test_nothing_and_several_are_refused_with_what_is_accepted(tmp_path):
    message = refuse("does not exist; expected a folder with data", detect_layout, tmp_path / "nowhere")
    assert all(f"({name})" in message for name in CASES)
    refuse("has no known layout", detect_layout, tmp_path)
    (tmp_path / "records.jsonl").write_text("")
    refuse(
        "no answers to steps; a policy learns from them: --config=vqa_quickstart --config.job=sft",
        read_source,
        tmp_path,
    )
    (tmp_path / "cases.xlsm").write_bytes(b"PK\3\4")  # undecodable: nothing says that it has questions
    refuse("has no known layout; expected a folder with data.json", read_source, tmp_path / "cases.xlsm")
    for name in ("data.json", "cases.csv"):
        (tmp_path / name).write_text("")
    refuse("has files of the layouts published and csv", detect_layout, tmp_path)
    for path in ("a\0b", "a" * 5000):
        for read in (detect_layout, read_source):
            with pytest.raises(BadInput):
                read(path)


def test_names_of_steps_and_layouts_that_do_not_fit_are_refused(tmp_path):
    (tmp_path / "cases.csv").write_text("image,label\na.png,Mass\n")
    refuse(r"step_names.*'One'", read_source, tmp_path, step_names=["One"])
    refuse("layout: 'other' is not one of auto, published, chestxray8", read_source, tmp_path, layout="other")
    (tmp_path / "BBox_List_2017.csv").write_text("Image Index,Finding Label,Bbox [x,y,w,h],,,\na.png,Mass,1,1,1,1\n")
    how = {"layout": "chestxray8", "require_images": False}
    refuse(r"step_names \['One'\] do not match the layout chestxray8", read_source, tmp_path, step_names=["One"], **how)


def test_cases_and_images_of_a_boxed_collection_come_from_one_lister(shared, tmp_path):
    """Each image of the detection list is a case of the same patient, whose boxes are the same in the file's pixels."""
    study = {"StudyID": "1", "ImageID": "1.png"}
    boxed = {"abnormal": True, "labels": ["mass"], "boxes": [[0.1, 0.2, 0.5, 0.75]], "sentence_en": "A mass."}
    denied = {"abnormal": False, "labels": ["nodule"], "sentence_en": "No nodule."}
    (tmp_path / "grounded_reports_1.json").write_text(json.dumps([study | {"findings": [boxed, denied]}]))
    Image.new("L", (80, 40)).save(tmp_path / "1.png")
    for root, layout in ((shared / "data/nih_chestxray8", "chestxray8"), (tmp_path, "padchest_gr")):
        options = {"layout": layout, "require_images": False}
        cases = {case.image: case for case in read_source(root, single_label=False, **options).cases}
        images = read_detections(root, **options)
        assert {image.image for image in images} == cases.keys()
        for image in images:
            case = cases[image.image]
            assert case.patient == image.patient
            assert [(box.label, box.sentence) for box in case.boxes] == [(b.label, b.sentence) for b in image.boxes]
            for box, other in zip(case.boxes, image.boxes, strict=True):
                assert box.corners == pytest.approx(other.corners)
    assert [(box.corners, image.absent) for box in image.boxes] == [(pytest.approx((8, 8, 40, 30)), ("nodule",))]
