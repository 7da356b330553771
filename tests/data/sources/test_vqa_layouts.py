"""One entry for every source of questions: which layout a folder is, and records of each."""

import json

import pytest
from reasoning_records import read_records
from refusals import refuse

from stepcot_jax.data.phantom.phantom import export_phantom
from stepcot_jax.data.questions.record_files import read_vqa_records, write_vqa_records
from stepcot_jax.data.sources.layouts import detect_vqa_layout, load_records
from stepcot_jax.host.errors import BadInput
from stepcot_jax.reasoning.dialects import write_question
from stepcot_jax.record import Record
from stepcot_jax.tools.data.command import main

GEMEX = {"question": "Q?", "answer": "yes", "visual_regions": [], "visual_locations": [], "image_path": "a.png"}
MEDSAGE = {"conversations": [{"from": "human", "value": "Q?"}, {"from": "gpt", "value": "Yes"}], "images": ["a.png"]}


def test_released_boxes_become_records_that_are_read_back(shared, tmp_path):
    aside = []
    source = shared / "data/nih_chestxray8"
    records = read_records(source, require_images=False, with_normal=False, set_aside=aside)
    assert {record.image for record in records} <= {f"images/{record.id[:12]}.png" for record in records}
    assert len({record.image for record in records}) == 880
    assert not aside
    write_vqa_records(tmp_path / "records.jsonl", records)
    assert read_vqa_records(tmp_path).records == tuple(records)
    assert read_records(source, require_images=False, with_normal=False, seed=1) != records
    for record in records:
        assert (record.image_size, record.patient) == ((1024, 1024), record.image[7:15])
        assert record.provenance["licence"].startswith("NIH")


def test_phantom_folders_and_files_of_records(tmp_path):
    export_phantom(tmp_path / "phantoms", num_cases=4, seed=0, size=64)
    records = read_records(tmp_path / "phantoms")
    assert {record.kind for record in records} == {"open", "closed", "single", "multi"}
    write_vqa_records(tmp_path / "phantoms/records.jsonl", records)
    assert detect_vqa_layout(tmp_path / "phantoms") == "records"
    assert read_records(tmp_path / "phantoms") == records
    assert read_records(tmp_path / "phantoms/records.jsonl") == records


def test_layouts_are_recognised_by_the_first_record(tmp_path):
    for name, record in (("gemex", GEMEX), ("medsage", MEDSAGE)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "some.jsonl").write_text(json.dumps(record) + "\n")
        (folder / "notes.json").write_text("{}")
        assert (detect_vqa_layout(folder), detect_vqa_layout(folder / "some.jsonl")) == (name, name)
        (read,) = read_records(folder, box_size=(8, 8), require_images=False)
        assert isinstance(read, Record)
        assert read.answer == "Yes"
    (tmp_path / "gemex/other.jsonl").write_text(json.dumps(MEDSAGE) + "\n")
    refuse("has files of the layouts gemex and medsage; choose one", read_records, tmp_path / "gemex")
    boxes = tmp_path / "boxes"  # COCO that somebody converted to YOLO in place, beside a table of cases
    boxes.mkdir()
    (boxes / "data.json").write_text("[]")
    (boxes / "data.yaml").write_text("names: [a]\ntrain: images")
    (boxes / "_annotations.coco.json").write_text('{"images": [], "annotations": [], "categories": []}')
    refuse("has files of the layouts coco and yolo; choose one", detect_vqa_layout, boxes)
    (boxes / "data.json").unlink()
    refuse("has files of the layouts coco and yolo; choose one", load_records, boxes)
    (read,) = read_records(tmp_path / "gemex", layout="gemex", box_size=(8, 8), require_images=False)
    assert read.id == "some.jsonl:1"


def test_a_file_whose_first_line_is_broken_is_read_or_named(tmp_path):
    good = json.dumps(GEMEX) + "\n"
    (tmp_path / "a.jsonl").write_text(good)
    (tmp_path / "b.jsonl").write_text("{broken\n" + good)
    (tmp_path / "settings.json").write_text('{\n"visual": 1\n}\n')
    options = {"box_size": (8, 8), "require_images": False}
    refuse(r"b\.jsonl, line 1, ", lambda: read_records(tmp_path, **options))
    aside = []
    records = read_records(tmp_path, on_bad_record="skip", set_aside=aside, **options)
    assert [record.id for record in records] == ["a.jsonl:1", "b.jsonl:2"]
    assert [each.reason.partition(", ")[0] for each in aside] == ["b.jsonl"]
    (tmp_path / "b.jsonl").write_text("{broken\n")
    assert [record.id for record in read_records(tmp_path, on_bad_record="skip", **options)] == ["a.jsonl:1"]
    (tmp_path / "a.jsonl").unlink()
    refuse(r"records.jsonl \(records\); .*b\.jsonl: no record can be", detect_vqa_layout, tmp_path)


def test_what_cannot_be_a_source(tmp_path, shared):
    refuse("none: is not a folder or a file", read_records, tmp_path / "none")
    refuse("has no known layout", read_records, tmp_path)
    with pytest.raises(BadInput, match="layout: 'nothing' is not one of auto, records, gemex, medsage, vqa_rad"):
        read_records(tmp_path, layout="nothing")
    with pytest.raises(BadInput, match="layout chestxray8 states the size of its boxes"):
        read_records(shared / "data/nih_chestxray8", box_size=(9, 9))
    refuse("has no files of layout medsage", read_records, tmp_path, layout="medsage")
    (tmp_path / "x.jsonl").write_text("junk\n")
    refuse("has no known", read_records, tmp_path)


def run(*arguments):
    return main(list(map(str, arguments)))


def test_releases_need_no_images_where_none_are_copied(tmp_path):
    source, out = tmp_path / "gemex", tmp_path / "out"
    source.mkdir()
    (source / "closed.jsonl").write_text(json.dumps(GEMEX) + "\n")
    flags = (f"--source={source}", "--box-size", 8, 8)
    refuse(r"a\.png", run, "vqa", out, *flags)
    run("vqa", out, *flags, "--images=none")
    assert len(read_vqa_records(out).records) == 1
    with pytest.raises(BadInput, match="--with-normal has no effect on --source=FOLDER of layout gemex"):
        run("vqa", tmp_path / "other", *flags, "--images=none", "--with-normal")


@pytest.mark.parametrize("dialect", ["lvkc", "lvkc_released"])
def test_conversations_that_the_command_writes_are_read_as_medsage(tmp_path, dialect):
    run("vqa", tmp_path / "out", "--num-cases=12", f"--dialect={dialect}")
    written = {record.id: record for record in read_vqa_records(tmp_path / "out").records}
    lines = (tmp_path / "out/conversations.jsonl").read_text().splitlines()
    aside = []
    read = read_records(tmp_path / "out/conversations.jsonl", layout="medsage", set_aside=aside)
    assert len(read) == len(lines) > 12
    assert not aside
    for line, record in zip(map(json.loads, lines), read, strict=True):
        own = written[line["id"]]
        assert (line["split"], line["images"]) == (own.split, [own.image])
        assert line["conversations"][0] == {"from": "human", "value": f"<image>\n{write_question(own, dialect)}"}
        assert (record.answer, record.options, record.image_size) == (own.answer, own.options, own.image_size)
        assert record.kind == own.kind
        assert [each.corners for each in record.references] == [
            pytest.approx(each.corners, abs=0.04) for each in own.references
        ]
