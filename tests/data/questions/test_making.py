"""`stepcot data vqa`; its conversations are read back in `tests/data/sources/test_vqa_layouts.py`."""

import msgspec
import pytest
from PIL import Image
from refusals import refuse

from stepcot_jax.box import Box
from stepcot_jax.data.questions.making import ground_phantom, make_folder_records
from stepcot_jax.data.questions.record_files import read_vqa_records
from stepcot_jax.host.errors import BadInput
from stepcot_jax.record import Record
from stepcot_jax.tools.data.command import main


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
