"""`stepcot data vqa`: the same bytes each time, splits by patient, and texts in every dialect."""

import json

import msgspec
import pytest
from PIL import Image
from refusals import refuse

from stepcot_jax.box import Box
from stepcot_jax.data.questions.making import ground_phantom, make_folder_records
from stepcot_jax.data.questions.record_files import read_vqa_records
from stepcot_jax.host.errors import BadInput
from stepcot_jax.reasoning.dialects import WRITTEN, read_reply, write_question
from stepcot_jax.record import Record
from stepcot_jax.tools.data.command import main


def test_the_same_command_writes_the_same_bytes(tmp_path, capsys):
    found = []
    for name, seed, flags in (("a", 3, ["--dialect=gemex"]), ("b", 3, ["--dialect=gemex"]), ("c", 4, [])):
        main(["vqa", str(tmp_path / name), "--num-cases=12", f"--seed={seed}", *flags])
        files = sorted(path for path in (tmp_path / name).rglob("*") if path.is_file())
        found.append({path.relative_to(tmp_path / name).as_posix(): path.read_bytes() for path in files})
    assert "48 records in" in capsys.readouterr().out
    assert found[0] == found[1]
    assert "conversations.jsonl" not in found[2]
    assert found[0]["records.jsonl"] != found[2]["records.jsonl"]


@pytest.mark.parametrize("dialect", [*WRITTEN][::2])
def test_conversations_hold_prompt_and_reply(tmp_path, dialect):
    out = tmp_path / "out"
    main(["vqa", str(out), "--num-cases=6", f"--dialect={dialect}"])
    records = read_vqa_records(out).records
    lines = [json.loads(line) for line in (out / "conversations.jsonl").read_text().splitlines()]
    assert [line["id"] for line in lines] == [record.id for record in records]
    for line, record in zip(lines, records, strict=True):
        human, gpt = line["conversations"]
        assert (human["from"], gpt["from"]) == ("human", "gpt")
        assert (human["value"], line["images"]) == (f"<image>\n{write_question(record, dialect)}", [record.image])
        assert line["split"] == record.split
        assert read_reply(gpt["value"], dialect).is_well_formed


def test_a_folder_of_phantoms_is_a_source(tmp_path):
    main(["phantom", str(tmp_path / "phantoms"), "--num-cases=40", "--size=64", "--prevalence=flat"])
    main(["vqa", str(tmp_path / "out"), f"--source={tmp_path / 'phantoms'}", "--with-normal"])
    records = read_vqa_records(tmp_path / "out", require_images=True).records
    assert {record.split for record in records} == {"train", "val", "test"}
    for record in records:
        index = int(record.image.removesuffix(".png")[-6:])
        boxes = {finding.corners for finding in ground_phantom(index, size=64)[0].boxes}
        assert (tmp_path / "out/masks/lung" / f"phantom_{index:06d}.png").is_file()
        if record.provenance["references"] == "findings":
            assert {box.corners for box in record.references} <= boxes


def test_a_detection_list_keeps_its_splits_and_paths(tmp_path):
    (tmp_path / "in/deep").mkdir(parents=True)
    images = []
    for number in range(4):
        path = f"deep/{number}.png"
        Image.new("L", (20, 10)).save(tmp_path / "in" / path)
        fields = {"image": path, "image_size": (20, 10), "boxes": (Box("Mass", (1, 1, 5 + number, 6)),)}
        images.append(Record(id=f"i{number}", patient=f"p{number}", split="test", **fields))
    records = make_folder_records(tmp_path / "out", images, root=tmp_path / "in", seed=0)
    assert [(record.kind, record.split) for record in records] == [("open", "test")] * 4
    assert (tmp_path / "out/deep/3.png").read_bytes() == (tmp_path / "in/deep/3.png").read_bytes()
    (tmp_path / "in/deep/3.png").unlink()
    part = [msgspec.structs.replace(images[0], split=""), *images[1:]]
    refuse("1 of 4 images have no split", make_folder_records, tmp_path / "none", part, root=tmp_path / "in", seed=0)
    refuse(r"3\.png: cannot be copied", make_folder_records, tmp_path / "again", images, root=tmp_path / "in", seed=0)


REFUSED = [
    *((["--num-cases=2"], "--num-cases must be at least 3"), (["--size=20"], "20 pixels; expected 32 to 4096")),
    *((["--seed=-1"], "seed -1"), (["--source=/nowhere"], "/nowhere: is not a folder")),
    (["--layout=gemex"], "--layout has no effect on --source=phantom"),
    (["--source=x", "--num-cases=9"], "--num-cases has no effect on --source=FOLDER"),
    (["--source=x", "--layout=phantom", "--readers=two"], "--readers: 'two' is not a number or all"),
]


@pytest.mark.parametrize(("flags", "message"), REFUSED)
def test_settings_that_cannot_be_or_would_be_ignored_leave_the_folder_empty(tmp_path, flags, message):
    refuse(message, main, ["vqa", str(tmp_path / "out"), *flags])
    assert not (tmp_path / "out").exists() or not any((tmp_path / "out").iterdir())


def test_a_failure_leaves_the_folder_as_it_was(tmp_path, monkeypatch):
    def fail(out, records, dialect):
        raise BadInput(f"{len(records)} records, {len(list(out.iterdir()))} folders")

    monkeypatch.setattr("stepcot_jax.data.questions.making.write_records", fail)
    (tmp_path / "empty").mkdir()
    for name in ("new", "empty"):
        refuse("48 records, 2 folders", main, ["vqa", str(tmp_path / name), "--num-cases=12", "--size=32"])
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]
    assert not any((tmp_path / "empty").iterdir())
