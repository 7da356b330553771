"""Grounded reports as JSON lines, by hand, and the thinking that is made from them."""

import json
import pathlib

import numpy as np
import pytest
from PIL import Image
from refusals import refuse

from stepcot_jax.annotate.recipes.items import read_questions
from stepcot_jax.annotate.recipes.rmcot import write_thinking
from stepcot_jax.box import Box
from stepcot_jax.data.questions.record_files import read_vqa_records, write_vqa_records
from stepcot_jax.data.sources.layouts import detect_vqa_layout, read_detections
from stepcot_jax.record import Record
from stepcot_jax.tools.annotate.command import main

IMAGE = "files/p10/p10000032/s5/one.png"
EFFUSION = {"image": IMAGE, "sentence": "Small left effusion.", "region": "left base", "boxes": [[60, 50, 90, 95]]}
CLEAR = {"image": IMAGE, "sentence": "The right lung is clear.", "region": "right lung", "boxes": [[10, 10, 45, 90]]}
DENIED = {"image": IMAGE, "sentence": "No pneumothorax.", "boxes": [], "label": "Pneumothorax", "absent": True}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / IMAGE).parent.mkdir(parents=True)
    Image.fromarray(np.full((100, 100), 90, np.uint8)).save(tmp_path / IMAGE)
    return tmp_path


def write(folder, *lines, name="grounded.jsonl"):
    (folder / name).write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return folder


def test_labels_are_findings_and_other_sentences_stay_with_their_regions(folder):
    labelled = EFFUSION | {"label": "Pleural effusion", "split": "val", "patient": 7, "more": "ignored"}
    path = write(folder, labelled, CLEAR, DENIED) / "grounded.jsonl"
    assert (detect_vqa_layout(folder), detect_vqa_layout(path)) == ("grounded", "grounded")
    (image,) = read_detections(folder)
    assert read_detections(path, layout="grounded") == [image]
    (finding,), (region,) = image.boxes, image.regions
    assert (finding.label, finding.corners, finding.region) == ("Pleural effusion", (60, 50, 90, 95), "left base")
    assert (region.label, region.sentence, region.region) == ("right lung", CLEAR["sentence"], "right lung")
    assert (image.absent, image.image_size, image.patient, image.split) == (("Pneumothorax",), (100, 100), "7", "val")
    assert image.report == "Small left effusion. The right lung is clear. No pneumothorax."
    (image,) = read_detections(write(folder, EFFUSION, CLEAR))
    assert (image.boxes, len(image.regions), image.patient) == ((), 2, "p10000032")


def test_an_image_whose_sentences_name_no_region_is_counted(folder, caplog):
    Image.fromarray(np.full((100, 100), 91, np.uint8)).save(folder / "two.png")
    write(folder, CLEAR, {"image": "two.png", "sentence": "An opacity.", "boxes": [[60, 50, 90, 95]]})
    assert [image.image for image in read_detections(folder)] == [IMAGE]
    assert "1 image without a finding that counts" in caplog.text


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (CLEAR | {"boxes": [[10, 10, 5, 90]]}, "line 2, boxes: box: "),
        (CLEAR | {"boxes": [[10, 10, 45, 101]]}, "leaves the picture of 100 by 100"),
        (CLEAR | {"absent": True}, "line 2, absent: true without a label"),
        (CLEAR | {"image_size": [50, 50]}, "leaves the picture of 50 by 50"),
        (CLEAR | {"boxes": "none"}, "line 2, boxes: "),
        ("{", "line 2, "),
        (CLEAR | {"image": "../one.png"}, "line 2, '../one.png'"),
        (CLEAR | {"image": "absent.png"}, "line 2, image_size: neither stated"),
        (EFFUSION | {"patient": "b"}, "patient: 2 of one image"),
    ],
)
def test_what_cannot_be_read_is_named(folder, line, words):
    refuse(words, read_detections, write(folder, EFFUSION | {"patient": "a", "label": "Effusion"}, line))


def test_an_image_that_is_missing_needs_a_size(tmp_path):
    refuse("image_size: neither stated nor a file", read_detections, write(tmp_path, EFFUSION), require_images=False)
    path = write(tmp_path, EFFUSION | {"image_size": [200, 100], "label": "Effusion"})
    assert read_detections(path, require_images=False)[0].image_size == (200, 100)


def test_the_thinking_quotes_each_sentence_with_its_region_and_box(folder):
    write(folder, EFFUSION | {"label": "Pleural effusion", "split": "train"}, CLEAR, DENIED)
    main(["vqa", str(folder), "--task=rmcot", f"--out={folder / 'out'}"])
    records = {record.kind: record for record in read_vqa_records(folder / "out").records}
    quoted = "I look at the **left base** ([60, 50, 90, 95]): Small left effusion."
    assert records["open"].thinking == f"{quoted} So the answer is pleural effusion."
    assert records["open"].report.startswith("Small left effusion.")
    write(folder, EFFUSION | {"split": "train"}, CLEAR)
    main(["vqa", str(folder), "--task=rmcot", f"--out={folder / 'bare'}"])
    (record,) = read_vqa_records(folder / "bare").records
    line = next(line for line in (EFFUSION, CLEAR) if line["region"] in record.question)
    assert (record.answer, record.references[0].label) == (line["sentence"].rstrip("."), line["region"])
    look = {"left base": quoted, "right lung": "The **right lung** ([10, 10, 45, 90]) is clear."}[line["region"]]
    assert record.thinking == f"{look} So the answer is {record.answer}."


def test_questions_of_ones_own_take_the_grounded_report_of_their_image(folder):
    """A region that the question refers to keeps its box, others are scaled to the question's picture."""
    grounded = write(folder, EFFUSION, CLEAR, name="reports.jsonl") / "reports.jsonl"
    mine = folder / "mine"
    mine.mkdir()
    asked = Record(
        id="q", image=IMAGE, image_size=(50, 50), patient="p", kind="closed", question="Is the left base clear?",
        answer="No", references=(Box("left base", (31, 26, 45, 47)),), modality="xray",
    )  # fmt: skip
    write_vqa_records(mine / "records.jsonl", [asked])
    options = {"seed": 0, "box_size": None, "require_images": False, "set_aside": []}
    (question,), _ = read_questions(mine, **options, grounded=grounded)
    told = {box.region: (box.corners, box.sentence) for box in question.statements}
    assert told == {
        "left base": ((31, 26, 45, 47), "Small left effusion."),
        "right lung": ((5, 5, 22.5, 45), CLEAR["sentence"]),
    }
    looked = "I look at the **left base** ([31, 26, 45, 47]): Small left effusion."
    assert write_thinking(question)["thinking"] == f"{looked} So the answer is No."
    report = question.data()["grounded_report"]
    assert [report[number]["region"] for number in "12"] == ["left base", "right lung"]
    refuse("--grounded: the layout grounded has boxes", read_questions, grounded, **options, grounded=grounded)
    flags = ["vqa", str(mine), "--task=lvkc", f"--grounded={grounded}", "--out=x"]
    refuse("--grounded requires --task=rmcot", main, flags)


def test_the_documented_lines_of_chest_imagenome_are_read(folder, monkeypatch):
    """The code of docs/sources.md on a scene graph by hand, with the fields of the release that it uses."""
    page = (pathlib.Path(__file__).parents[3] / "docs" / "sources.md").read_text()
    blocks = [block.partition("```")[0] for block in page.split("```python\n")[1:]]
    (code,) = (block for block in blocks if "scene_graph" in block)
    edges = {f"original_{edge}": value for edge, value in zip(("x1", "y1", "x2", "y2"), (10, 10, 45, 90), strict=True)}
    found = [["anatomicalfinding|yes|lung opacity", "nlp|yes|abnormal"], ["anatomicalfinding|no|pneumothorax"], []]
    told = {"bbox_name": "right lung", "phrases": ["An opacity.", "No pneumothorax.", "Clear."], "attributes": found}
    graph = {"image_id": "one", "patient_id": 10000032, "study_id": 5, "objects": [{"bbox_name": "right lung"} | edges]}
    (folder / "scene_graph").mkdir()
    (folder / "scene_graph" / "one_SceneGraph.json").write_text(json.dumps(graph | {"attributes": [told]}))
    Image.new("L", (100, 100)).save(folder / IMAGE.replace(".png", ".jpg"))
    monkeypatch.chdir(folder)
    exec(code, {})  # noqa: S102 - our own page
    (image,) = read_detections(folder)
    assert [(box.label, box.region, box.corners) for box in image.boxes] == [
        ("lung opacity", "right lung", (10, 10, 45, 90))
    ]
    assert (image.absent, image.patient, image.image) == (("pneumothorax",), "p10000032", IMAGE.replace(".png", ".jpg"))
    assert [region.sentence for region in image.regions] == ["No pneumothorax.", "Clear."]
