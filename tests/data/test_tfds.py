import hashlib
import json
import pathlib
import shutil
import subprocess
import sys

import msgspec
import numpy as np
import pytest
from refusals import edit_json, refuse

from stepcot_jax.box import Box
from stepcot_jax.chain import DEFAULT_CHAIN, NOT_ANNOTATED
from stepcot_jax.data.phantom.phantom import export_phantom
from stepcot_jax.data.records.records import read_records, write_records
from stepcot_jax.data.sources.layouts import read_source
from stepcot_jax.data.splits.making import make_splits
from stepcot_jax.data.splits.split_resolver import read_splits
from stepcot_jax.data.tfds.source import Reading, check_prepared_from, find_prepared, open_prepared
from stepcot_jax.tools.data.command import main

tfds = pytest.importorskip("tensorflow_datasets", reason="needs the extra tfds")

from stepcot_jax.data.tfds.builder import StepCot, prepare

NUM_CASES = 12
TABLES = {"train": range(2, NUM_CASES), "val": [0], "test": [1]}


@pytest.fixture(autouse=True)
def _no_bars():
    tfds.disable_progress_bar()


def write_tables(root):
    cases = read_records(root).cases
    for name, indices in TABLES.items():
        (root / f"{name}.csv").write_text("\n".join(["image_path", *(cases[index].image for index in indices)]))


def write_sources(root):
    export_phantom(root, num_cases=NUM_CASES, seed=0, size=48)
    cases = [
        msgspec.structs.replace(
            case,
            patient=f"Ä{number}",
            report=f"Größe\0 {number}\n" * number,
            answers=(NOT_ANNOTATED, *case.answers[1:]),
            boxes=tuple(Box.of_size("Nodule", 1.5, 2, 3, 4.25, "dort") for _ in range(number % 3)),
            sex=("", "F", "O")[number % 3],
            age=None if number % 2 else 40.5,
            view="PA",
            provenance={"made": "by hand"} if number % 2 else {},
        )
        for number, case in enumerate(read_records(root).cases)
    ]
    write_records(root, chain=DEFAULT_CHAIN, cases=cases)
    write_tables(root)


@pytest.fixture(scope="session")
def sources(tmp_path_factory):
    root = tmp_path_factory.mktemp("sources")
    write_sources(root)
    return root


@pytest.fixture(scope="session")
def original(sources, tmp_path_factory):
    return prepare(sources, tmp_path_factory.mktemp("prepared"))


@pytest.fixture
def prepared(original, tmp_path):
    return pathlib.Path(shutil.copytree(original, tmp_path / "prepared"))


def test_the_librarys_own_build_command_prepares_and_the_library_reads_without_tensorflow(sources, tmp_path):
    # The program `tfds` itself imports its command `convert_format` at the start, and that needs tensorflow.
    script = """
import sys
import simple_parsing
import tensorflow_datasets as tfds
from tensorflow_datasets.scripts.cli import build
from stepcot_jax.data.tfds.source import open_prepared
parser = simple_parsing.ArgumentParser()
parser.add_arguments(build.Args, dest="build")
parser.parse_args(sys.argv[1:]).build.execute()
found = tfds.data_source("step_cot", data_dir=sys.argv[3])
print({name: len(part) for name, part in found.items()}, found["val"][0]["patient_id"].decode())
print(len(open_prepared(sys.argv[3]).images.read(0)))
assert not [name for name in sys.modules if name.partition(".")[0] == "tensorflow"]
"""
    folders = ["--data_dir", str(tmp_path), "--manual_dir", str(sources)]
    command = [sys.executable, "-c", script, "stepcot_jax/data/tfds/builder.py", *folders]
    done = subprocess.run(command, capture_output=True, text=True, cwd=pathlib.Path(__file__).parents[2])
    size = (sources / read_records(sources).cases[0].image).stat().st_size
    assert done.stdout.splitlines()[-2:] == [f"{{'train': {NUM_CASES - 2}, 'val': 1, 'test': 1}} Ä0", str(size)], done
    assert open_prepared(tmp_path).collection.cases == read_records(sources).cases


def test_without_the_library_the_message_says_what_to_install(sources, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    refuse(r'pip install -e "\.\[tfds\]"', main, ["tfds", str(sources), str(tmp_path / "new")])
    assert not (tmp_path / "new").exists()


def test_what_is_opened_and_each_example_hold_all_of_a_case(sources, original):
    opened = open_prepared(original)
    collection = read_records(sources)
    assert (opened.collection.cases, opened.collection.chain) == (collection.cases, collection.chain)
    assert (opened.collection.set_aside, opened.splits) == ((), read_splits(sources, collection.cases))
    assert opened.splits_source == "the folder's tables"
    for index, case in enumerate(collection.cases):
        content = (sources / case.image).read_bytes()
        assert opened.images.read(index) == content
        assert opened.images.digest(index) == hashlib.sha256(content).hexdigest()
        assert case.image in opened.images.name(index)
    cases = read_records(sources).cases
    parts = tfds.data_source("step_cot", data_dir=original.parents[1])
    names = {"patient_id": "patient", "image_path": "image"} | {key: key for key in ("origin", "report", "sex", "view")}
    for name, indices in TABLES.items():
        for example, index in zip(parts[name], indices, strict=True):
            case = cases[index]
            assert example["image"] == (sources / case.image).read_bytes()
            assert {key: example[key].decode() for key in names} == {key: getattr(case, names[key]) for key in names}
            np.testing.assert_array_equal(example["labels"], case.answers)
            assert [reason.decode() for reason in example["reasoning"]] == list(case.reasoning)
            keys = ("label", "x", "y", "width", "height", "sentence")
            rows = zip(*(example["boxes"][key] for key in keys), strict=True)
            assert tuple(Box.of_size(row[0].decode(), *row[1:5], row[5].decode()) for row in rows) == case.boxes
            assert case.age == (None if np.isnan(example["age"]) else example["age"])
            assert json.loads(example["provenance"]) == dict(case.provenance)


def test_cases_are_found_in_any_number_of_shards(sources, tmp_path, monkeypatch):
    monkeypatch.setattr("stepcot_jax.data.tfds.shards._MOST_OPEN", 1)
    root = pathlib.Path(shutil.copytree(sources, tmp_path / "root"))
    paths = [case.image for case in read_records(root).cases]
    for name, places in {"train": (1, 3, 5, 7), "val": (0, 2, 4, 6), "test": (8, 9, 10, 11)}.items():
        (root / f"{name}.csv").write_text("\n".join(["image_path", *(paths[place] for place in places)]))
    builder = StepCot(data_root=root, data_dir=tmp_path / "data")
    builder.download_and_prepare(download_config=tfds.download.DownloadConfig(num_shards=3))
    opened = open_prepared(tmp_path / "data")
    assert len(list(opened.collection.root.glob("*.array_record-*"))) == 9
    for index, path in enumerate(paths):
        assert opened.images.read(index) == (root / path).read_bytes()


def test_bad_records_stop_or_are_set_aside_with_their_reasons(sources, tmp_path):
    root = pathlib.Path(shutil.copytree(sources, tmp_path / "root"))
    edit_json(root / "data.json", lambda content: content[3]["vqa_chain"][0].update(answer="Z"))
    (root / json.loads((root / "data.json").read_text())[5]["image_path"]).write_bytes(b"no image")
    assert "record 3" in refuse("", prepare, root, tmp_path / "stopped")
    assert not list((tmp_path / "stopped").rglob("*.*"))
    folder = prepare(root, tmp_path / "skipped", Reading(on_bad_record="skip"))
    opened = open_prepared(folder)
    assert [case.patient for case in opened.collection.cases] == [f"Ä{n}" for n in range(12) if n not in (3, 5)]
    assert [(item.record, item.patient_id) for item in opened.collection.set_aside] == [(3, "Ä3"), (5, "Ä5")]
    lines = [json.loads(line) for line in (folder / "quarantine.jsonl").read_text().splitlines()]
    assert [(line["record"], "'Z' is not one of" in line["reason"]) for line in lines] == [(3, True), (5, False)]
    assert tfds.builder_from_directory(folder).info.metadata["num_set_aside"] == 2
    assert opened.images.read(3) == (root / opened.collection.cases[3].image).read_bytes()


def test_splits_are_made_where_there_are_no_tables(tmp_path):
    root = tmp_path / "root"
    export_phantom(root, num_cases=40, seed=0, size=48)
    cases = read_records(root).cases
    other = next(case for case in cases if case.patient != cases[0].patient)
    shutil.copy(root / cases[0].image, root / other.image)
    made = open_prepared(prepare(root, tmp_path / "a", Reading(split_seed=7)))
    assert made.splits == make_splits(cases, seed=7)
    assert "made from seed 7" in made.splits_source
    fractions = (0.4, 0.3, 0.3)
    reading = Reading(split_fractions=fractions, near_duplicate_radius=1)
    opened = open_prepared(prepare(root, tmp_path / "joined", reading))
    assert opened.splits == make_splits(cases, seed=0, fractions=fractions, joined=[(0, cases.index(other))])
    assert opened.splits != make_splits(cases, seed=0, fractions=fractions)


def test_preparing_again_takes_what_is_there_unless_it_is_of_other_data(sources, original, tmp_path):
    data_dir = original.parents[1]
    before = {path: path.stat().st_mtime_ns for path in original.iterdir()}
    assert prepare(sources, data_dir) == original
    assert {path: path.stat().st_mtime_ns for path in original.iterdir()} == before
    check_prepared_from(original, sources)
    assert "prepared from other records" in refuse("", prepare, sources, data_dir, Reading(on_bad_record="skip"))
    for name, more in (("data.json", " "), ("val.csv", "\n")):
        other = pathlib.Path(shutil.copytree(sources, tmp_path / name))
        (other / name).write_text((other / name).read_text() + more)
        assert str(original) in refuse("", prepare, other, data_dir)
        assert "other records" in refuse("", check_prepared_from, original, other)
    overwriting = tfds.download.DownloadConfig(download_mode=tfds.GenerateMode.REUSE_CACHE_IF_EXISTS)
    shutil.copytree(original, tmp_path / "mine" / "step_cot" / "1.1.0")
    StepCot(data_root=other, data_dir=tmp_path / "mine").download_and_prepare(download_config=overwriting)
    check_prepared_from(tmp_path / "mine", other)


def test_refuses_what_is_not_prepared_and_what_was_changed_since(prepared, tmp_path):
    for folder in (tmp_path, prepared / "dataset_info.json", tmp_path / "missing"):
        assert f"{folder}: no prepared dataset" in refuse("", open_prepared, folder)
    contents, (shard,) = prepared / "step_cot.json", prepared.glob("*train*.array_record*")
    content = json.loads(contents.read_text())
    content["digests"][0], content["sizes"][1] = "0" * 64, 10**9
    contents.write_text(json.dumps(content))
    images = open_prepared(prepared).images
    refuse("the image does not have its SHA-256", images.read, 0)
    refuse("1000000000 bytes, more than", images.read, 1)
    shard.write_bytes(shard.read_bytes() + b"x")
    assert shard.name in refuse("", open_prepared, prepared)
    shard.unlink()
    assert shard.name in refuse("", open_prepared, prepared)
    edit_json(contents, lambda content: content.update(records="0" * 64, shards=[]))
    refuse("the records have changed", open_prepared, prepared)


def test_a_folder_in_another_layout_is_prepared_with_the_same_cases(sources, tmp_path):
    root, table = tmp_path / "table", tmp_path / "table" / "cases.csv"
    shutil.copytree(sources / "images", root / "images")
    rows = [f"{case.image},{case.patient},{('Normal', 'Mass')[k % 2]}" for k, case in
            enumerate(read_records(sources).cases)]  # fmt: skip
    table.write_text("\n".join(["image_path,patient_id,diagnosis", *rows]))
    made, cases = open_prepared(prepare(root, tmp_path / "data")), read_source(root).cases
    assert [case.answers for case in made.collection.cases] == [case.answers for case in cases]
    assert made.splits == make_splits(cases, seed=0, fractions=Reading().split_fractions)
    check_prepared_from(find_prepared(tmp_path / "data"), root, Reading())
    table.write_text(table.read_text().replace("Ä0", "Q0"))
    refuse("prepared from", check_prepared_from, find_prepared(tmp_path / "data"), root, Reading())
    shutil.copy(sources / "data.json", root)
    command = ["tfds", str(root), str(tmp_path / "chosen")]
    refuse("choose one as the layout", main, command)
    main([*command, "--layout=csv"])
    chosen = find_prepared(tmp_path / "chosen")
    assert any(case.patient == "Q0" for case in open_prepared(chosen).collection.cases)  # of the table alone
    refuse("prepared from", check_prepared_from, chosen, root, Reading(layout="published"))
    table.write_text(table.read_text().replace("Q0", "R0"))
    refuse("prepared from", check_prepared_from, chosen, root, Reading(layout="csv"))
