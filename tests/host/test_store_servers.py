"""Folders on a store, leases and mirrors, through s3fs and a local server of S3."""

import pathlib
import threading

import pytest
from host.memory_store import ended_process
from host.s3_server import BUCKET, s3_server
from host.test_stores import check_late_renewal

from stepcot_jax.host import leases
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.leases import Lease
from stepcot_jax.host.mirrors import Mirror
from stepcot_jax.host.store_cache import find_workdir
from stepcot_jax.host.stores import StoreError, StoreFolder


@pytest.fixture(scope="module", autouse=True)
def _server():
    with s3_server():
        yield


def test_objects_are_written_whole_created_once_and_removed(tmp_path):
    store = StoreFolder(f"s3://{BUCKET}/objects")
    assert store.list() == {}
    assert store.read("a") is None
    assert store.create("a", b"1")
    assert not store.create("a", b"2")
    assert store.read("a") == b"1"
    (tmp_path / "x").write_bytes(bytes(2**20))
    store.upload({f"deep/{number}": tmp_path / "x" for number in range(20)})
    before = store.list()
    assert len(before) == 21
    store.write("a", b"3")
    assert store.list()["a"].tag != before["a"].tag
    assert not store.replace("a", b"4", before["a"].tag)
    assert store.read("a") == b"3"
    assert store.replace("a", b"4", store.tag("a"))
    assert (store.read("a"), store.tag("never"), store.compares) == (b"4", None, True)
    assert not store.replace("never", b"4", before["a"].tag)
    store.download({"deep/3": tmp_path / "new" / "y"})
    assert (tmp_path / "new" / "y").read_bytes() == bytes(2**20)
    store.remove([*before, "never"])
    assert store.list() == {}


def test_a_bucket_that_is_missing_is_one_line_without_the_key():
    with pytest.raises(StoreError, match="s3://no-such-bucket/run: cannot be written") as found:
        StoreFolder("s3://no-such-bucket/run").create("a", b"")
    assert "never-printed" not in str(found.value)
    assert "\n" not in str(found.value)


def test_one_of_two_leases_is_refused_and_a_left_one_is_taken(monkeypatch):
    monkeypatch.setattr(leases, "RENEW_SECONDS", 0.2)
    store = StoreFolder(f"s3://{BUCKET}/leases")
    with Lease(store, say=print).hold(), pytest.raises(BadInput, match="in use"), Lease(store, say=print).hold():
        pass
    monkeypatch.setattr(leases, "LAPSE_SECONDS", 1.0)
    store.write(leases.LEASE_FILE, b'{"host": "other", "machine": "m", "process": 1, "token": "t"}')
    with Lease(store, say=print).hold():
        pass
    assert store.list() == {}


def test_a_late_renewal_does_not_overwrite_the_lease_of_another(monkeypatch):
    check_late_renewal(StoreFolder(f"s3://{BUCKET}/late"), monkeypatch)


def test_of_two_that_take_the_same_left_lease_one_has_it(monkeypatch):
    monkeypatch.setattr(leases, "RENEW_SECONDS", 0.05)
    monkeypatch.setattr(leases, "LAPSE_SECONDS", 1.0)
    store = StoreFolder(f"s3://{BUCKET}/taken")
    store.write(leases.LEASE_FILE, ended_process())
    first, second = Lease(store, say=print), Lease(store, say=print)
    replace = StoreFolder.replace

    def let_the_other_be_first(own, *given):
        monkeypatch.setattr(StoreFolder, "replace", replace)
        second._acquire()
        return replace(own, *given)

    monkeypatch.setattr(StoreFolder, "replace", let_the_other_be_first)
    threading.Timer(0.3, lambda: second._renew(1)).start()
    with pytest.raises(BadInput, match="in use by process"), first.hold():
        pass
    second.check()


def test_a_mirror_goes_there_and_back(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    one, store = tmp_path / "one", StoreFolder(f"s3://{BUCKET}/mirror")
    for name in ("log", "checkpoints/1/a", "checkpoints/1/deep/b"):
        (one / name).parent.mkdir(parents=True, exist_ok=True)
        (one / name).write_text(name)
    mirror = Mirror(one, store)
    mirror.prepare()
    mirror.push()
    (tmp_path / "two").mkdir()
    Mirror(tmp_path / "two", store).fetch()

    def texts(folder: pathlib.Path):
        return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}

    assert texts(tmp_path / "two") == texts(one)
    found = texts(find_workdir(store.address))
    assert found == texts(one)
