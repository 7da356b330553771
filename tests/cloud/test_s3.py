"""Folders on a store through s3fs and a local server of S3."""

import pathlib

import pytest
from cloud.memory_store import check_objects
from cloud.s3_server import BUCKET, s3_server

from stepcot_jax.extras.cloud.copies import download
from stepcot_jax.extras.cloud.stores import StoreError, StoreFolder
from stepcot_jax.extras.cloud.sync import main as sync


@pytest.fixture(scope="module", autouse=True)
def _server():
    with s3_server():
        yield


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_objects_are_written_whole_and_removed(tmp_path):
    store = StoreFolder(f"s3://{BUCKET}/objects")
    check_objects(store, tmp_path)
    assert store.list()["a"] == store.look_up("a")


def test_a_bucket_that_is_missing_is_one_line_without_the_key():
    with pytest.raises(StoreError, match="s3://no-such-bucket/run: cannot be written") as found:
        StoreFolder("s3://no-such-bucket/run").write("a", b"")
    assert "never-printed" not in str(found.value)
    assert "\n" not in str(found.value)


def texts(folder: pathlib.Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def files(tmp_path):
    for name in ("log", "checkpoints/1/a", "checkpoints/1/deep/b"):
        (tmp_path / "here" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "here" / name).write_text(name)
    return tmp_path / "here"


def test_a_folder_is_sent_and_fetched_and_a_file_is_read_alone(files, tmp_path, capsys):
    address = f"s3://{BUCKET}/folder"
    for expected in ("3 files sent, 0 were there", "0 files sent, 3 were there"):
        sync([str(files), address])
        assert expected in capsys.readouterr().out
    assert texts(download(address, tmp_path / "there")) == texts(files)
    assert download(f"{address}/log").read_text() == "log"
