"""`stepcot data vqa`: the same bytes each time, splits by patient, and texts in every dialect."""

import collections
import hashlib
import json

import pytest
from PIL import Image

from stepcot_jax.box import Box
from stepcot_jax.data.questions.making import make_folder_records
from stepcot_jax.data.questions.phantom_images import ground_phantom
from stepcot_jax.data.questions.record_files import read_vqa_records
from stepcot_jax.data.splits.making import split_images
from stepcot_jax.host.errors import BadInput
from stepcot_jax.reasoning.dialects import DIALECTS, read_reply, write_question
from stepcot_jax.record import Record
from stepcot_jax.tools.data.command import main


def _digests(folder):
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_the_same_command_writes_the_same_bytes(tmp_path, capsys):
    for name in ("a", "b"):
        main(["vqa", str(tmp_path / name), "--num-cases=12", "--seed=3", "--dialect=gemex"])
    assert _digests(tmp_path / "a") == _digests(tmp_path / "b")
    assert "48 records in" in capsys.readouterr().out
    main(["vqa", str(tmp_path / "c"), "--num-cases=12", "--seed=4"])
    assert not (tmp_path / "c/conversations.jsonl").exists()
    assert (tmp_path / "a/records.jsonl").read_bytes() != (tmp_path / "c/records.jsonl").read_bytes()


def test_splits_are_by_patient_and_near_their_shares():
    images = [ground_phantom(index, size=32)[0] for index in range(300)]
    split = split_images(images, seed=0)
    of_patient = collections.defaultdict(set)
    for image in split:
        of_patient[image.patient].add(image.split)
    assert all(len(found) == 1 for found in of_patient.values())
    counts = collections.Counter(image.split for image in split)
    assert counts["train"] == pytest.approx(210, abs=6)
    assert counts["val"] == pytest.approx(45, abs=6)
    assert [image.id for image in split] == [image.id for image in images]
    assert split_images(split, seed=7) == split
    with pytest.raises(BadInput, match="299 of 300 images have no split"):
        split_images([split[0], *images[1:]], seed=0)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_conversations_hold_prompt_and_reply(tmp_path, dialect):
    out = tmp_path / "out"
    main(["vqa", str(out), "--num-cases=6", f"--dialect={dialect}"])
    records = read_vqa_records(out).records
    lines = [json.loads(line) for line in (out / "conversations.jsonl").read_text().splitlines()]
    assert [line["id"] for line in lines] == [record.id for record in records]
    for line, record in zip(lines, records, strict=True):
        human, gpt = line["conversations"]
        assert (human["from"], gpt["from"]) == ("human", "gpt")
        assert human["value"] == f"<image>\n{write_question(record, dialect)}"
        assert line["images"] == [record.image]
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
        Image.new("L", (20, 10)).save(tmp_path / f"in/deep/{number}.png")
        finding = Box("Mass", (1, 1, 5 + number, 6))
        images.append(
            Record(
                id=f"i{number}",
                image=f"deep/{number}.png",
                image_size=(20, 10),
                patient=f"p{number}",
                split="test",
                boxes=(finding,),
            )
        )
    records = make_folder_records(tmp_path / "out", images, root=tmp_path / "in", seed=0)
    assert [record.kind for record in records] == ["open"] * 4
    assert {record.split for record in records} == {"test"}
    assert (tmp_path / "out/deep/3.png").read_bytes() == (tmp_path / "in/deep/3.png").read_bytes()
    (tmp_path / "in/deep/3.png").unlink()
    with pytest.raises(BadInput, match=r"3\.png: cannot be copied"):
        make_folder_records(tmp_path / "again", images, root=tmp_path / "in", seed=0)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--num-cases=2"], "--num-cases must be at least 3"),
        (["--size=20"], "20 pixels; expected 32 to 4096"),
        (["--seed=-1"], "seed -1"),
        (["--source=/nowhere"], "/nowhere: is not a folder"),
    ],
)
def test_settings_out_of_range_leave_the_folder_empty(tmp_path, flags, message):
    with pytest.raises(BadInput, match=message):
        main(["vqa", str(tmp_path / "out"), *flags])
    assert not (tmp_path / "out").exists() or not any((tmp_path / "out").iterdir())


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--layout=gemex"], "--layout has no effect on --source=phantom"),
        (["--source=x", "--num-cases=9"], "--num-cases has no effect on --source=FOLDER"),
        (["--source=x", "--layout=phantom", "--readers=two"], "--readers: 'two' is not a number or all"),
    ],
)
def test_options_that_would_be_ignored_are_refused(tmp_path, flags, message):
    with pytest.raises(BadInput, match=message):
        main(["vqa", str(tmp_path / "out"), *flags])
    assert not (tmp_path / "out").exists()


def test_a_failure_leaves_the_folder_as_it_was(tmp_path, monkeypatch):
    def fail(out, records, dialect):
        raise BadInput(f"{len(records)} records, {len(list(out.iterdir()))} folders")

    monkeypatch.setattr("stepcot_jax.data.questions.making.write_records", fail)
    (tmp_path / "empty").mkdir()
    for name in ("new", "empty"):
        with pytest.raises(BadInput, match="48 records, 2 folders"):
            main(["vqa", str(tmp_path / name), "--num-cases=12", "--size=32"])
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]
    assert not any((tmp_path / "empty").iterdir())
