"""The dataset of tensorflow_datasets: prepared and read without tensorflow, nothing lost, nothing taken for another."""

import hashlib
import json
import pathlib
import pickle
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import grain
import msgspec
import numpy as np
import pytest
from cloud.memory_store import put_files
from PIL import Image

from stepcot_jax.box import Box
from stepcot_jax.chain import DEFAULT_CHAIN, NOT_ANNOTATED, Chain, Step
from stepcot_jax.data.images.image_files import ImageFiles
from stepcot_jax.data.images.pixels import FilePixels
from stepcot_jax.data.images.preprocessing import Preprocessing
from stepcot_jax.data.phantom.phantom import export_phantom
from stepcot_jax.data.records.records import read_records, write_records
from stepcot_jax.data.splits.making import make_splits
from stepcot_jax.data.splits.split_resolver import read_splits
from stepcot_jax.data.tfds.preparing import Reading
from stepcot_jax.data.tfds.source import check_prepared_from, open_prepared
from stepcot_jax.host.download import find_path
from stepcot_jax.host.errors import BadInput
from stepcot_jax.tools.data.tfds import main

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
    """Cases with everything that a case can have, of patients with one image each, and tables."""
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
    """The folder of a prepared dataset, not to be written to."""
    return prepare(sources, tmp_path_factory.mktemp("prepared"))


@pytest.fixture
def prepared(original, tmp_path):
    """A copy of it, to be damaged."""
    return pathlib.Path(shutil.copytree(original, tmp_path / "prepared"))


def refusal(function, *arguments, **settings):
    with pytest.raises(BadInput) as caught:
        function(*arguments, **settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def run(script, *arguments):
    root = pathlib.Path(__file__).parents[2]
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=root)


HIDING = """
import importlib.util, sys

class Hiding:
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "tensorflow":
            return None
        return self.finder.find_spec(name, path, target)
    def __getattr__(self, name):
        return getattr(self.finder, name)

sys.meta_path[:] = [Hiding(finder) for finder in sys.meta_path]
assert importlib.util.find_spec("tensorflow") is None
"""


def test_prepares_and_reads_without_tensorflow(sources, tmp_path):
    script = f"""{HIDING}
import tensorflow_datasets as tfds
from stepcot_jax.data.tfds.builder import StepCot
from stepcot_jax.data.tfds.source import open_prepared
root, data_dir = sys.argv[1:]
StepCot(data_root=root, data_dir=data_dir).download_and_prepare()
found = tfds.data_source("step_cot", data_dir=data_dir)
print({{name: len(part) for name, part in found.items()}}, found["val"][0]["patient_id"].decode())
images = open_prepared(data_dir).images
print(len(images.read(0)))
assert not [name for name in sys.modules if name.partition(".")[0] == "tensorflow"]
"""
    done = run(script, sources, tmp_path)
    size = (sources / read_records(sources).cases[0].image).stat().st_size
    assert done.stdout.splitlines()[-2:] == [f"{{'train': {NUM_CASES - 2}, 'val': 1, 'test': 1}} Ä0", str(size)], done


def test_the_librarys_own_build_command_prepares_without_tensorflow(sources, tmp_path):
    # The program `tfds` itself imports its command `convert_format` at the start, and that needs tensorflow.
    script = f"""{HIDING}
import simple_parsing
from tensorflow_datasets.scripts.cli import build
parser = simple_parsing.ArgumentParser()
parser.add_arguments(build.Args, dest="build")
parser.parse_args(sys.argv[1:]).build.execute()
"""
    where = ("--data_dir", tmp_path, "--manual_dir", sources)
    done = run(script, "stepcot_jax/data/tfds/builder.py", *where)
    assert done.returncode == 0, done.stderr
    assert open_prepared(tmp_path).collection.cases == read_records(sources).cases


def test_the_package_imports_neither_tensorflow_datasets_nor_its_kin():
    script = """
import sys
import stepcot_jax.data.tfds, stepcot_jax.data.tfds.source, stepcot_jax.tools.data.command, stepcot_jax.run.training_run
print([name for name in sys.modules if name.partition(".")[0] in ("tensorflow", "tensorflow_datasets")])
"""
    done = run(script)
    assert done.stdout.strip() == "[]", done.stderr


def test_without_the_library_the_message_says_what_to_install(sources, tmp_path):
    script = """
import sys
sys.modules["tensorflow_datasets"] = None
from stepcot_jax.tools.data.tfds import main
from stepcot_jax.host.errors import run_tool
run_tool(lambda: main(sys.argv[1:]))
"""
    done = run(script, sources, tmp_path / "new")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert 'pip install -e ".[tfds]"' in done.stderr
    assert not (tmp_path / "new").exists()


def test_what_is_opened_is_what_the_folder_has(sources, original):
    opened = open_prepared(original)
    collection = read_records(sources)
    assert opened.collection.cases == collection.cases
    assert opened.collection.chain == collection.chain
    assert opened.collection.set_aside == ()
    assert opened.splits == read_splits(sources, collection.cases)
    assert opened.splits_source == "the folder's tables"
    for index, case in enumerate(collection.cases):
        content = (sources / case.image).read_bytes()
        assert opened.images.read(index) == content
        assert opened.images.digest(index) == hashlib.sha256(content).hexdigest()
        assert case.image in opened.images.name(index)


def test_examples_hold_all_of_a_case(sources, original):
    cases = read_records(sources).cases
    parts = tfds.data_source("step_cot", data_dir=original.parents[1])
    for name, indices in TABLES.items():
        assert len(parts[name]) == len(indices)
        for example, index in zip(parts[name], indices, strict=True):
            case = cases[index]
            assert isinstance(example["image"], bytes)
            assert example["image"] == (sources / case.image).read_bytes()
            texts = {
                key: example[key].decode() for key in ("patient_id", "image_path", "origin", "report", "sex", "view")
            }
            fields = {"patient_id": "patient", "image_path": "image"}
            assert texts == {key: getattr(case, fields.get(key, key)) for key in texts}
            np.testing.assert_array_equal(example["labels"], case.answers)
            assert [reason.decode() for reason in example["reasoning"]] == list(case.reasoning)
            boxes = example["boxes"]
            found = [
                Box.of_size(label.decode(), x, y, width, height, sentence.decode())
                for label, x, y, width, height, sentence in zip(
                    *(boxes[key] for key in ("label", "x", "y", "width", "height", "sentence")), strict=True
                )
            ]
            assert tuple(found) == case.boxes
            assert case.age == (None if np.isnan(example["age"]) else example["age"])
            assert json.loads(example["provenance"]) == dict(case.provenance)


def test_the_metadata_say_what_labels_mean_and_where_it_comes_from(original):
    info = tfds.builder_from_directory(original).info
    steps = [Step(step["name"], step["question"], tuple(step["options"])) for step in info.metadata["steps"]]
    assert Chain(tuple(steps)) == DEFAULT_CHAIN
    assert info.metadata["not_annotated"] == NOT_ANNOTATED
    assert info.metadata["num_set_aside"] == 0
    assert (info.name, str(info.version), info.file_format.value) == ("step_cot", "1.1.0", "array_record")
    assert set(info.release_notes) == {"1.0.0", "1.1.0"}
    assert "2603.13878" in info.citation
    assert "2603.13878" in info.homepage
    assert {name: split.num_examples for name, split in info.splits.items()} == {"train": 10, "val": 1, "test": 1}


def test_one_call_of_the_library_prepares_and_reads(sources, tmp_path):
    settings = {"data_dir": tmp_path, "builder_kwargs": {"data_root": sources}}
    source = tfds.data_source("step_cot", split="train", **settings)
    assert pickle.loads(pickle.dumps(source))[3]["image_path"] == source[3]["image_path"]  # noqa: S301
    assert len(tfds.data_source("step_cot", split="val", data_dir=tmp_path)) == 1


def test_grain_takes_the_librarys_source(sources, original):
    source = tfds.data_source("step_cot", split="train", data_dir=original.parents[1])
    batches = grain.MapDataset.source(source).shuffle(seed=0).map(lambda example: example["labels"]).batch(5)
    labels = np.concatenate([batches[index] for index in range(len(batches))])
    expected = [case.answers for case in read_records(sources).cases[2:]]
    assert sorted(map(tuple, labels.tolist())) == sorted(expected)


def test_the_manual_folder_of_the_library_is_read(sources, tmp_path):
    builder = StepCot(data_dir=tmp_path)
    builder.download_and_prepare(download_config=tfds.download.DownloadConfig(manual_dir=sources))
    assert open_prepared(tmp_path).collection.cases == read_records(sources).cases


def test_a_builder_in_another_process_prepares_the_same(sources, tmp_path):
    reading = Reading(on_bad_record="skip")
    builder = StepCot(data_root=sources, reading=reading, data_dir=tmp_path)
    pickle.loads(pickle.dumps(builder)).download_and_prepare()  # noqa: S301
    check_prepared_from(tmp_path, sources, reading)


def test_images_are_files_like_any_others(sources, original):
    images = open_prepared(original).images
    assert isinstance(images, ImageFiles)
    copy = pickle.loads(pickle.dumps(images))  # noqa: S301
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(copy.read, range(NUM_CASES))) == [images.read(index) for index in range(NUM_CASES)]
    pixels = FilePixels(copy, Preprocessing(32), 10_000, "data.json", range(NUM_CASES))(3)
    expected = np.asarray(Image.open(sources / read_records(sources).cases[3].image).resize((32, 32), 3))
    np.testing.assert_allclose(pixels.astype(int), expected, atol=1)


def test_cases_are_found_in_any_number_of_shards(sources, tmp_path, monkeypatch):
    monkeypatch.setattr("stepcot_jax.data.images.shards._MOST_OPEN", 1)
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


def add_bad_records(root):
    """One record with an answer that is none, and one with an image that is none."""
    content = json.loads((root / "data.json").read_text())
    content[3]["vqa_chain"][0]["answer"] = "Z"
    (root / content[5]["image_path"]).write_bytes(b"no image")
    (root / "data.json").write_text(json.dumps(content))


def test_bad_records_stop_or_are_set_aside_with_their_reasons(sources, tmp_path):
    root = pathlib.Path(shutil.copytree(sources, tmp_path / "root"))
    add_bad_records(root)
    assert "record 3" in refusal(prepare, root, tmp_path / "stopped")
    assert not list((tmp_path / "stopped").rglob("*.*"))
    folder = prepare(root, tmp_path / "skipped", Reading(on_bad_record="skip"))
    opened = open_prepared(folder)
    assert [case.patient for case in opened.collection.cases] == [f"Ä{n}" for n in range(12) if n not in (3, 5)]
    lines = [json.loads(line) for line in (folder / "quarantine.jsonl").read_text().splitlines()]
    assert [line["record"] for line in lines] == [3, 5]
    assert "'Z' is not one of" in lines[0]["reason"]
    assert "starts with bytes" in lines[1]["reason"]
    assert [(item.record, item.patient_id) for item in opened.collection.set_aside] == [(3, "Ä3"), (5, "Ä5")]
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
    pair = (0, cases.index(other))
    for seed in range(4):
        reading = Reading(split_seed=seed, split_fractions=(0.4, 0.3, 0.3), near_duplicate_radius=1)
        opened = open_prepared(prepare(root, tmp_path / f"joined {seed}", reading))
        assert any(set(pair) <= set(part) for part in opened.splits.by_name().values())
        assert opened.splits != make_splits(cases, seed=seed, fractions=(0.4, 0.3, 0.3)) or seed
        assert "radius 1" in opened.splits_source


def test_preparing_again_takes_what_is_there_unless_it_is_of_other_data(sources, original, tmp_path):
    data_dir = original.parents[1]
    before = {path: path.stat().st_mtime_ns for path in original.iterdir()}
    assert prepare(sources, data_dir) == original
    assert {path: path.stat().st_mtime_ns for path in original.iterdir()} == before
    check_prepared_from(original, sources)
    assert "prepared from other records" in refusal(prepare, sources, data_dir, Reading(on_bad_record="skip"))
    for name, change in {
        "data.json": lambda text: text.replace("Ä7", "Ä70"),
        "val.csv": lambda text: text + "\n",
    }.items():
        other = pathlib.Path(shutil.copytree(sources, tmp_path / name))
        (other / name).write_text(change((other / name).read_text()))
        message = refusal(prepare, other, data_dir)
        assert str(other) in message
        assert str(original) in message
        assert "other records" in refusal(check_prepared_from, original, other)
    overwriting = tfds.download.DownloadConfig(download_mode=tfds.GenerateMode.REUSE_CACHE_IF_EXISTS)
    shutil.copytree(original, tmp_path / "mine" / "step_cot" / "1.1.0")
    StepCot(data_root=other, data_dir=tmp_path / "mine").download_and_prepare(download_config=overwriting)
    check_prepared_from(tmp_path / "mine", other)


@pytest.mark.parametrize("kind", ["empty", "missing", "file", "other"])
def test_refuses_a_folder_where_nothing_is_prepared(tmp_path, kind):
    folder = tmp_path / "data"
    if kind == "file":
        folder.write_text("")
    elif kind != "missing":
        folder.mkdir()
    if kind == "other":
        (folder / "dataset_info.json").write_text("{}")
    message = refusal(open_prepared, folder)
    assert f"{folder}: no prepared dataset" in message


def test_refuses_to_reuse_a_folder_that_was_not_finished(sources, tmp_path):
    (tmp_path / "step_cot" / "1.1.0").mkdir(parents=True)
    assert "no prepared dataset" in refusal(prepare, sources, tmp_path)


DAMAGES = {
    "truncated": (lambda path: path.write_bytes(path.read_bytes()[:-1]), "{size_less_1} bytes instead of {size}"),
    "longer": (lambda path: path.write_bytes(path.read_bytes() + b"x"), "bytes instead of {size}"),
    "missing": (lambda path: path.unlink(), "No such file"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_refuses_a_shard_of_another_size(prepared, damage):
    path = next(prepared.glob("step_cot-train*"))
    size = path.stat().st_size
    change, found = DAMAGES[damage]
    change(path)
    message = refusal(open_prepared, prepared)
    assert path.name in message
    assert found.format(size=size, size_less_1=size - 1) in message


def test_refuses_a_shard_with_other_content(prepared):
    path = next(prepared.glob("step_cot-train*"))
    content = path.read_bytes()
    path.write_bytes(content[:200] + bytes(len(content) - 400) + content[-200:])
    images = open_prepared(prepared).images
    messages = [refusal(images.read, index) for index in TABLES["train"]]
    assert all(path.name in message for message in messages)
    assert images.read(0)


def test_refuses_shards_that_changed_places(prepared):
    val, test = (next(prepared.glob(f"step_cot-{name}*")) for name in ("val", "test"))
    content = json.loads((prepared / "step_cot.json").read_text())
    for shard in content["shards"]:
        shard["file"] = {val.name: test.name, test.name: val.name}.get(shard["file"], shard["file"])
        shard["num_bytes"] = (prepared / shard["file"]).stat().st_size
    (prepared / "step_cot.json").write_text(json.dumps(content))
    assert "the image does not have its SHA-256" in refusal(open_prepared(prepared).images.read, 0)


def test_refuses_records_other_than_those_prepared(prepared):
    path = prepared / "data.json"
    path.write_text(path.read_text().replace("Ä7", "Ä70"))
    assert f"{path}: the records have changed" in refusal(open_prepared, prepared)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda content: content.update(version="0.9.0"), "version '0.9.0' is not 1.1.0"),
        (lambda content: content.pop("digests"), "missing required field `digests`"),
        (lambda content: content["digests"].pop(), "images disagree"),
        (lambda content: content["sizes"].pop(), "images disagree"),
        (lambda content: content["splits"].pop("val"), "images disagree"),
        (lambda content: content["splits"]["val"].append(1), "images disagree"),
        (lambda content: content["shards"].pop(), "images disagree"),
        (lambda content: content["shards"][0].update(num_records=11), "images disagree"),
        (lambda content: content["shards"][0].update(num_records=-1), "is invalid"),
        (lambda content: content["shards"][0].update(split="more"), "is invalid"),
        (lambda content: content["shards"][0].update(file="../../etc/passwd"), "is invalid"),
    ],
)
def test_refuses_contents_that_make_no_sense(prepared, change, found):
    path = prepared / "step_cot.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    message = refusal(open_prepared, prepared)
    assert str(path) in message
    assert found in message


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[" * 100_000])
def test_refuses_unreadable_contents(prepared, content):
    (prepared / "step_cot.json").write_bytes(content)
    assert "expected what `stepcot_jax.data.tfds` prepared" in refusal(open_prepared, prepared)


def test_an_image_that_is_too_large_is_not_read(original, monkeypatch):
    images = open_prepared(original).images
    monkeypatch.setattr(images, "_max_bytes", 10)
    assert "more than 10" in refusal(images.read, 0)


def test_refuses_other_file_formats(tmp_path):
    assert "'tfrecord' is not 'array_record'" in refusal(StepCot, data_dir=tmp_path, file_format="tfrecord")
    formats = tfds.core.FileFormat
    assert "'riegeli'" in refusal(StepCot, data_dir=tmp_path, file_format=formats.RIEGELI)
    StepCot(data_dir=tmp_path, file_format=formats.ARRAY_RECORD)


def test_refuses_to_prepare_from_nowhere(tmp_path):
    message = refusal(StepCot(data_dir=tmp_path).download_and_prepare)
    assert "data_root or a filled manual_dir is required" in message
    assert "expected a JSON array" in refusal(prepare, tmp_path / "none", tmp_path / "data")


def test_refuses_to_leave_cases_out(sources, tmp_path):
    config = tfds.download.DownloadConfig(max_examples_per_split=1)
    message = refusal(StepCot(data_root=sources, data_dir=tmp_path).download_and_prepare, download_config=config)
    assert "1 records of split train were written instead of 10" in message
    assert not list(tmp_path.rglob("*.array_record*"))


def test_refuses_a_reading_that_is_none():
    assert "'ask' is not 'stop' or 'skip'" in refusal(Reading, on_bad_record="ask")


def test_the_command_prepares_and_counts(sources, tmp_path, capsys):
    root = pathlib.Path(shutil.copytree(sources, tmp_path / "root"))
    add_bad_records(root)
    main([str(root), str(tmp_path / "data"), "--on-bad-record", "skip"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2].startswith(f"10 cases in {tmp_path / 'data' / 'step_cot' / '1.1.0'}: 8 train, 1 val, 1 test")
    assert lines[-1].startswith("2 records are set aside")


def test_a_dataset_on_a_store_is_read_there(sources, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    here = prepare(sources, tmp_path / "here")
    prepared = open_prepared(find_path(f"{put_files(tmp_path / 'here', monkeypatch)}/step_cot/1.1.0"))
    assert prepared.collection.cases == open_prepared(here).collection.cases


def test_the_real_sample(shared, tmp_path):
    root = shared / "data" / "nih_sample"
    opened = open_prepared(prepare(root, tmp_path))
    collection = read_records(root)
    assert (opened.collection.cases, opened.splits) == (collection.cases, read_splits(root, collection.cases))
    assert opened.images.read(400) == (root / collection.cases[400].image).read_bytes()
