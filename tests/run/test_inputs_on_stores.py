import jax
import numpy as np
import pytest
from memory_store import new_address, put_files
from refusals import refuse
from run.small_run import small_run, small_settings

from stepcot_jax.data.images.preprocessing import Preprocessing
from stepcot_jax.encoders.load import load_image_encoder
from stepcot_jax.extras.cloud.stores import StoreFolder
from stepcot_jax.reading.cases import open_run
from stepcot_jax.run.loading import load_dataset, load_vqa_dataset
from stepcot_jax.run.settings import load_settings, read_settings
from stepcot_jax.tools.data.command import main as data
from stepcot_jax.tools.tables.encoders import write_random_encoder

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def refuse_downloads(monkeypatch):
    monkeypatch.setattr(StoreFolder, "download", lambda store, files, folder: pytest.fail(f"downloads {sorted(files)}"))


def test_a_run_of_cases_on_a_store_is_that_of_their_folder_and_resumes(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "cases"
    data(["phantom", str(folder), "--num-cases=60", "--size=32"])
    address = put_files(folder, monkeypatch)
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
    settings = small_settings(data__source="folder", data__root=address)
    words = rf"^config\.data\.root: {address}: holds no files"
    refuse(words, load_dataset, settings, preprocessing=Preprocessing(size=32))
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
