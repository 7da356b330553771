"""Shards: the same bytes as the files, whole or not there, refused by name when they change, resumable at any point."""

import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image
from refusals import refuse
from run.small_run import small_settings

from stepcot_jax.data.batches import training_batches
from stepcot_jax.data.images import shards as shard_writing
from stepcot_jax.data.images.preprocessing import Preprocessing
from stepcot_jax.data.images.shards import INDEX_NAME, ShardFiles, has_shards, read_index
from stepcot_jax.data.phantom.phantom import export_phantom
from stepcot_jax.data.records.records import read_records
from stepcot_jax.host.errors import BadInput
from stepcot_jax.run.loading import load_dataset
from stepcot_jax.tools.data.command import main

NUM_CASES = 30
ROOT = pathlib.Path(__file__).parents[3]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("files")
    export_phantom(root, num_cases=NUM_CASES, seed=0, size=48, prevalence="flat")
    return root


@pytest.fixture(scope="module")
def sharded(folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("shards")
    shard(folder, out)
    return out


@pytest.fixture
def copy(sharded, tmp_path):
    return pathlib.Path(shutil.copytree(sharded, tmp_path / "copy"))


def shard(root, out, *more):
    main(["shards", str(root), "--out", str(out), "--shard-megabytes", "0.01", *more])


def files_of(out):
    paths = [case.image for case in read_records(out, require_images=False).cases]
    return ShardFiles(out, read_index(out), paths, max_bytes=10**6), paths


def settings(root, **changes):
    return small_settings(data__source="folder", data__root=str(root), **changes)


def test_shards_hold_the_files_byte_for_byte_and_train_as_they_do(folder, sharded):
    images, paths = files_of(sharded)
    assert len(paths) == NUM_CASES
    assert len(read_index(sharded).shards) > 3
    for index, path in enumerate(paths):
        content = (folder / path).read_bytes()
        assert (images.read(index), images.digest(index)) == (content, hashlib.sha256(content).hexdigest())
        assert images.name(index).startswith(f"{path} in {sharded}/images-0000")
    assert (sharded / "data.json").read_bytes() == (folder / "data.json").read_bytes()
    assert {path.name for path in sharded.iterdir() if path.suffix != ".array_record"} == {
        *("data.json", INDEX_NAME, ".lock")
    }
    index = read_index(sharded)
    images = ShardFiles(sharded, index, index.shards[0].paths, max_bytes=5)
    refuse("more than 5", images.read, 0)
    refuse(r"no image 'other\.png'", ShardFiles, sharded, index, ["other.png"], max_bytes=5)
    preprocessing = Preprocessing(32)
    from_files, from_shards = (load_dataset(settings(root), preprocessing=preprocessing) for root in (folder, sharded))
    assert from_files.digest == from_shards.digest
    for step in (0, 5):
        expected, found = (training_batches(data, batch_size=8, seed=1)[step] for data in (from_files, from_shards))
        for name in expected:
            np.testing.assert_array_equal(found[name], expected[name])


@pytest.mark.parametrize("change", ["truncated", "longer", "missing"])
def test_a_shard_of_another_size_is_refused_by_name_at_the_start(copy, change):
    path = copy / "images-00001.array_record"
    content = path.read_bytes()
    path.write_bytes(content[:-1] if change == "truncated" else content + b"x")
    if change == "missing":
        path.unlink()
    refuse(r"images-00001\.array_record: ", lambda: load_dataset(settings(copy), preprocessing=Preprocessing(32)))


def test_a_shard_in_anothers_place_is_refused(copy):
    """Whole by itself, and perhaps of the same size: only the digests tell."""
    index = read_index(copy)
    first, second = copy / index.shards[0].file, copy / index.shards[1].file
    swapped = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(swapped)
    content = json.loads((copy / INDEX_NAME).read_text())
    for entry, path in zip(content["shards"][:2], (first, second), strict=True):
        entry["num_bytes"] = path.stat().st_size
    (copy / INDEX_NAME).write_text(json.dumps(content))
    images, _ = files_of(copy)
    refuse("the image does not have its SHA-256", images.read, 0)


DAMAGES = [
    (lambda index: index.update(version=2), "Invalid enum value 2"),
    (lambda index: index["shards"][0].update(file="/etc/passwd"), "matching regex"),
    (lambda index: index["shards"][0]["sizes"].pop(), "incomplete or damaged"),
    (lambda index: index["shards"].append(index["shards"][0]), "an image is listed twice"),
]


@pytest.mark.parametrize(("damage", "found"), DAMAGES)
def test_an_index_that_makes_no_sense_is_refused(copy, damage, found):
    content = json.loads((copy / INDEX_NAME).read_text())
    damage(content)
    (copy / INDEX_NAME).write_text(json.dumps(content))
    assert INDEX_NAME in refuse(found, read_index, copy)


def test_a_record_without_its_image_in_the_shards_is_set_aside_with_its_reason(folder, tmp_path, capsys):
    root = pathlib.Path(shutil.copytree(folder, tmp_path / "root"))
    paths = [case.image for case in read_records(root).cases]
    (root / paths[4]).write_bytes(b"GIF89a")
    assert "skip" in refuse(r"record 4 .*is a GIF file", shard, root, tmp_path / "stopped")
    assert not has_shards(tmp_path / "stopped")
    (root / paths[9]).unlink()
    shard(root, tmp_path / "out", "--on-bad-record", "skip")
    assert "2 records are set aside" in capsys.readouterr().out
    lines = [json.loads(line) for line in (tmp_path / "out/quarantine.jsonl").read_text().splitlines()]
    assert [line["record"] for line in lines] == [4, 9]
    refuse("record 4", lambda: load_dataset(settings(tmp_path / "out"), preprocessing=Preprocessing(32)))
    data = load_dataset(settings(tmp_path / "out", data__on_bad_record="skip"), preprocessing=Preprocessing(32))
    assert [(aside.record, aside.image_path) for aside in data.set_aside] == [(4, paths[4]), (9, paths[9])]
    assert "is a GIF file" in data.set_aside[0].reason
    assert "the image is not in the shards" in data.set_aside[1].reason
    expected = [path for path in paths if path not in (paths[4], paths[9])]
    assert [data.images.digest(i) for i in range(28)] == [
        hashlib.sha256((folder / path).read_bytes()).hexdigest() for path in expected
    ]


def test_a_second_start_writes_nothing_and_another_source_is_refused(folder, sharded, tmp_path, capsys):
    before = {path.name: path.stat().st_mtime_ns for path in sharded.glob("images-*")}
    shard(folder, sharded)
    assert f"{NUM_CASES} of them from an earlier start" in capsys.readouterr().out
    assert {path.name: path.stat().st_mtime_ns for path in sharded.glob("images-*")} == before
    other = tmp_path / "other"
    export_phantom(other, num_cases=NUM_CASES, seed=1, size=48, prevalence="flat")
    refuse("has shards of other records", shard, other, sharded)
    for root, out, found in ((sharded, tmp_path / "x", "has shards already"), (folder, folder, "the folder that is")):
        refuse(found, shard, root, out)


def test_a_kill_at_any_point_leaves_nothing_half_and_is_gone_on_from(folder, sharded, tmp_path, monkeypatch):
    out = tmp_path / "out"
    expected = {path.name: path.read_bytes() for path in sharded.iterdir()}
    script = pathlib.Path(__file__).with_name("crash_shards.py")
    steps, num_kills = 1, 0
    while not has_shards(out) and steps < 80:
        command = [sys.executable, script, folder, out, str(steps)]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
        num_kills += done.returncode == -9
        assert done.returncode in (0, -9), done.stderr
        noted = sorted(path.stem for path in out.glob("images-*.json"))
        for stem in noted:  # what has a note is whole
            name = f"{stem}.array_record"
            assert (out / name).read_bytes() == expected[name]
        steps += 23
    assert num_kills >= 2
    monkeypatch.setattr(shard_writing, "decode_picture", lambda *_, **__: pytest.fail("a finished shard was redone"))
    shard(folder, out)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == expected


def test_finished_shards_are_not_redone_and_changed_ones_are(folder, sharded, tmp_path, monkeypatch):
    out, real, decoded = tmp_path / "out", shard_writing.decode_picture, []

    def decode(content, **options):
        if len(decoded) == 20:
            raise KeyboardInterrupt
        decoded.append(options["name"])
        return real(content, **options)

    monkeypatch.setattr(shard_writing, "decode_picture", decode)
    with pytest.raises(KeyboardInterrupt):
        shard(folder, out, "--num-threads", "1")
    notes = sorted(out.glob("images-*.json"))
    num_done = sum(len(json.loads(note.read_text())["entry"]["paths"]) for note in notes[:-1])
    assert num_done
    last = out / f"{notes[-1].stem}.array_record"
    last.write_bytes(last.read_bytes()[:-100])
    decoded = [""] * 21
    shard(folder, out)
    assert len(decoded) - 21 == NUM_CASES - num_done
    assert (out / last.name).read_bytes() == (sharded / last.name).read_bytes()


def test_a_full_disk_and_a_folder_that_cannot_be_written_are_named(folder, tmp_path):
    script = (
        "import resource, signal, sys\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))\n"
        "from stepcot_jax.tools.data.command import main\n"
        "from stepcot_jax.host.errors import run_tool\n"
        "run_tool(lambda: main(['shards', sys.argv[1], '--out', sys.argv[2]]))\n"
    )
    command = [sys.executable, "-c", script, folder, tmp_path / "out"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 2
    message = done.stderr.strip().splitlines()[-1]
    assert message.startswith(f"error: {tmp_path / 'out' / 'images-00000.array_record'}: cannot be written (")
    assert "File too large" in message
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [".lock"]
    refuse("/proc/none: ", shard, folder, "/proc/none")
    with shard_writing.only_writer(tmp_path), pytest.raises(BadInput, match="another process is writing shards"):
        shard(folder, tmp_path)


def test_other_layouts_become_data_roots(tmp_path):
    root = tmp_path / "table"
    root.mkdir()
    names = [f"{number}.png" for number in range(6)]
    for number, name in enumerate(names):
        Image.new("L", (20, 20), 30 * number).save(root / name)
    rows = [f"{name},A normal chest.,{'Normal' if number % 2 else 'Mass'}" for number, name in enumerate(names)]
    (root / "cases.csv").write_text("\n".join(["image,report,diagnosis", *rows]) + "\n")
    shard(root, tmp_path / "out")
    collection = read_records(tmp_path / "out", require_images=False)
    assert [case.image for case in collection.cases] == names
    assert collection.chain.steps[-1].options[collection.cases[1].answers[-1]] == "Normal"
    images, _ = files_of(tmp_path / "out")
    assert images.read(5) == (root / "5.png").read_bytes()
