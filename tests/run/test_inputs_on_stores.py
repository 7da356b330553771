import json

import jax
import numpy as np
import pytest
from memory_store import new_address, put_files
from refusals import refuse
from run.small_run import small_run, small_settings

from stepcot_jax.data.images.preprocessing import Preprocessing
from stepcot_jax.encoders.load import load_image_encoder
from stepcot_jax.extras.cloud.stores import StoreFolder
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.reading.cases import open_run
from stepcot_jax.run.loading import load_dataset, load_vqa_dataset
from stepcot_jax.run.places import Place
from stepcot_jax.run.settings import load_settings, read_settings
from stepcot_jax.tools.data.command import main as data
from stepcot_jax.tools.tables.cells import Cell, Cells
from stepcot_jax.tools.tables.encoders import write_random_encoder

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("cases") / "out"
    data(["phantom", str(out), "--num-cases=60", "--size=32"])
    return out


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def address(folder, monkeypatch):
    return put_files(folder, monkeypatch)


def read(root, **changes):
    settings = small_settings(data__source="folder", data__root=str(root), **changes)
    return load_dataset(settings, preprocessing=Preprocessing(size=32))


def refuse_downloads(monkeypatch):
    monkeypatch.setattr(StoreFolder, "download", lambda store, files, folder: pytest.fail(f"downloads {sorted(files)}"))


def test_a_run_of_cases_on_a_store_is_that_of_their_folder_and_resumes(folder, address, tmp_path, monkeypatch, capsys):
    changes = {"data__source": "folder", "job": "baseline", "baseline__epochs": 1}
    report = small_run(tmp_path / "local", monkeypatch, **changes, data__root=str(folder)).execute()
    changes["data__root"] = address
    found = small_run(tmp_path / "run", monkeypatch, **changes).execute()
    assert f"{address}: downloading" in capsys.readouterr().err
    assert found["test"] == report["test"]
    assert read_settings(tmp_path / "run" / "settings.json").data.root == address
    refuse_downloads(monkeypatch)
    assert small_run(tmp_path / "run", monkeypatch, **changes).execute()["test"] == report["test"]
    cases = [open_run(tmp_path / name, "test") for name in ("local", "run")]
    np.testing.assert_array_equal(*(np.asarray(source.picture(0)) for source in cases))


def test_what_a_store_does_not_have_is_named_with_its_setting(monkeypatch):
    address = new_address(monkeypatch)
    refuse(rf"^config\.data\.root: {address}: holds no files", read, address)
    settings = load_settings("base", **{"job": "sft", "vqa.source": "folder", "vqa.root": address})
    refuse(rf"^config\.vqa\.root: {address}: holds no files", load_vqa_dataset, settings)


def test_records_and_weights_on_a_store_are_those_of_their_folder(tmp_path, monkeypatch):
    data(["vqa", str(tmp_path / "vqa"), "--num-cases=36", "--size=48"])
    changes = {"job": "sft", "image_encoder.image_size": 48, "vqa.source": "folder"}
    roots = (str(tmp_path / "vqa"), put_files(tmp_path / "vqa", monkeypatch))
    here, there = (load_vqa_dataset(load_settings("base", **changes, **{"vqa.root": root})) for root in roots)
    assert (here.records, here.digest) == (there.records, there.digest)
    write_random_encoder(tmp_path / "clip")
    address = put_files(tmp_path / "clip", monkeypatch)
    here, there = load_image_encoder(str(tmp_path / "clip")), load_image_encoder(address)
    assert here.digest == there.digest
    jax.tree.map(np.testing.assert_array_equal, here.params, there.params)
    refuse_downloads(monkeypatch)
    load_image_encoder(address)


class _Ran:
    def __init__(self, settings, folder):
        self.place = Place(folder, say=print)

    def execute(self):
        return {}


def test_cells_notice_records_that_changed_on_the_store(address, tmp_path, monkeypatch):
    cells = Cells(tmp_path / "tables", Terminal())
    cell = Cell("one", small_settings(data__source="folder", data__root=address))
    monkeypatch.setattr(Cells, "is_finished", lambda own, cell: True)
    monkeypatch.setattr("stepcot_jax.run.training_run.Run", _Ran)
    cells._run(cell)
    cells.run([cell])
    StoreFolder(address).write("data.json", json.dumps([]).encode())
    refuse(rf"the records in {address} have changed since it ran", cells.run, [cell])
