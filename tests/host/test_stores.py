"""Folders on stores, leases and mirrors, in fsspec's memory."""

import json
import threading
import time

import pytest
from host.memory_store import ended_process, new_address

from stepcot_jax.host import leases, mirrors
from stepcot_jax.host.errors import BadInput, RunStopped
from stepcot_jax.host.leases import LEASE_FILE, Lease
from stepcot_jax.host.mirrors import MANIFEST, Mirror
from stepcot_jax.host.store_cache import find_workdir
from stepcot_jax.host.stores import Stored, StoreError, StoreFolder, is_store_address


@pytest.fixture
def store(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return StoreFolder(new_address(monkeypatch))


@pytest.mark.parametrize(
    "address",
    ["gs://bucket", "gs:///run", "s3://bucket/../x", "s3://bucket//x", "gs://b/a*", "gs://key:secret@b/x", "s3:/b/x"],
)
def test_addresses_of_another_form_are_refused(address):
    with pytest.raises(BadInput, match="not the address of a folder on a store"):
        StoreFolder(address)


def test_only_the_stores_that_can_be_used_are_addresses_of_stores():
    assert is_store_address("gs://bucket/run")
    assert not any(map(is_store_address, ("hf://a/b", "http://x/y", "memory://a/b", "runs/gs", "gs", 3)))


def test_objects_are_written_whole_created_once_and_removed(store, tmp_path):
    assert store.list() == {}
    assert store.read("a") is None
    assert store.create("a", b"1")
    assert not store.create("a", b"2")
    assert store.read("a") == b"1"
    (tmp_path / "x").write_bytes(b"xyz")
    store.upload({"deep/er/x": tmp_path / "x"})
    assert {name: entry.size for name, entry in store.list().items()} == {"a": 1, "deep/er/x": 3}
    before = store.list()
    store.write("a", b"3")
    assert store.list()["a"] != before["a"] == Stored(1, before["a"].tag)
    assert not store.replace("a", b"4", before["a"].tag)
    assert store.replace("a", b"4", store.tag("a"))
    assert (store.read("a"), store.tag("never"), store.compares) == (b"4", None, False)
    store.download({"deep/er/x": tmp_path / "new" / "y"})
    assert (tmp_path / "new" / "y").read_bytes() == b"xyz"
    store.remove(["a", "never"])
    assert set(store.list()) == {"deep/er/x"}


def test_an_error_of_the_store_is_one_line_with_its_address(store, tmp_path, monkeypatch):
    with pytest.raises(StoreError, match=r"memory://.*/run: cannot be read \(FileNotFoundError"):
        store.download({"never": tmp_path / "x"})
    monkeypatch.setattr(type(store._files), "pipe_file", lambda *given, **options: 1 / 0)
    with pytest.raises(StoreError, match=r"cannot be written \(ZeroDivisionError: division by zero\)"):
        store.write("a", b"")
    with pytest.raises(StoreError, match="cannot be written"):
        store.create("a", b"")


def test_a_lease_is_held_by_one_process_and_released(store, monkeypatch):
    monkeypatch.setattr(leases, "RENEW_SECONDS", 0.02)
    first, second = Lease(store, say=print), Lease(store, say=print)
    with first.hold():
        first.check()
        with (
            pytest.raises(BadInput, match=r"in use by process \d+ of .* \(one run at a time per folder\)"),
            second.hold(),
        ):
            pass
        first.check()
    with second.hold():
        with pytest.raises(RunStopped, match="the lease of this run is held by process"):
            first.check()
        store.remove([LEASE_FILE])
        with pytest.raises(RunStopped, match="held by nobody"):
            second.check()
    assert store.list() == {}


def test_the_lease_of_a_killed_process_is_taken_at_once_here_and_after_a_time_from_elsewhere(store, monkeypatch):
    monkeypatch.setattr(leases, "RENEW_SECONDS", 3600)
    lines = []
    store.write(LEASE_FILE, ended_process())
    with Lease(store, say=lines.append).hold():
        assert lines == []
    monkeypatch.setattr(leases, "LAPSE_SECONDS", 0.3)
    store.write(LEASE_FILE, b'{"host": "other", "machine": "m", "process": 1, "token": "t"}')
    with Lease(store, say=lines.append).hold():
        assert "process 1 of other holds or left run.lock; waiting up to 0 s" in lines[0]


OTHER = b'{"host": "other", "machine": "m", "process": 1, "token": "t"}'


def test_a_late_renewal_does_not_overwrite_the_lease_of_another(store, monkeypatch):
    check_late_renewal(store, monkeypatch)


def check_late_renewal(store, monkeypatch):
    """The process is suspended after it has read its lease, and another takes it."""
    monkeypatch.setattr(leases, "RENEW_SECONDS", 3600)
    lease = Lease(store, say=print)
    with lease.hold():
        read = lease._read

        def read_and_sleep():
            found = read()
            store.write(LEASE_FILE, OTHER)
            return found

        with monkeypatch.context() as patch:
            patch.setattr(lease, "_read", read_and_sleep)
            lease._renew(1)
        assert store.read(LEASE_FILE) == OTHER
        with pytest.raises(RunStopped, match="is held by process 1 of other"):
            lease.check()
        lease._renew(2)
    assert store.read(LEASE_FILE) == OTHER


def test_a_run_whose_renewal_took_longer_than_a_lease_stops(store, monkeypatch):
    monkeypatch.setattr(leases, "RENEW_SECONDS", 3600)
    monkeypatch.setattr(leases, "LAPSE_SECONDS", 0.05)
    monkeypatch.setattr(leases, "SLOW_SECONDS", 0.05)
    write = StoreFolder.write
    lease = Lease(store, say=print)
    with lease.hold():
        with monkeypatch.context() as patch:
            patch.setattr(StoreFolder, "write", lambda *given: (time.sleep(0.1), write(*given)))
            lease._renew(1)
        with pytest.raises(RunStopped, match=r"a renewal of this run's lease took 0 s, within which another run may"):
            lease.check()
    assert store.read(LEASE_FILE) is not None  # it may be another's


def test_of_many_that_start_together_one_has_the_lease(store, monkeypatch):
    monkeypatch.setattr(leases, "RENEW_SECONDS", 0.02)
    held, refused, ready = [], [], threading.Barrier(6)

    def start():
        ready.wait()
        try:
            with Lease(store, say=lambda text: None).hold():
                held.append(1)
                done.wait()
        except BadInput:
            refused.append(1)
            if len(refused) == 5:
                done.set()

    done = threading.Event()
    threads = [threading.Thread(target=start) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (len(held), len(refused)) == (1, 5)


def test_a_lease_that_is_no_lease_is_refused(store):
    store.write(LEASE_FILE, b"[]")
    with pytest.raises(BadInput, match=r"run\.lock: not the lease of a run"), Lease(store, say=print).hold():
        pass


def make(folder, **files):
    for name, content in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def names(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_a_mirror_brings_complete_checkpoints_and_everything_else(store, tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    make(one, log="1", checkpoints__1__a="A", checkpoints__1__b="B", features__f="F", checkpoints__2__a="A2")
    make(one, **{"x.partial": "no", "checkpoints__3.orbax-checkpoint-tmp__a": "no", ".lock": ""})
    mirror = Mirror(one, store)
    mirror.prepare()
    mirror.push()
    there = {"log", "checkpoints/1/a", "checkpoints/1/b", "checkpoints/2/a"}
    assert set(store.list()) == there | {MANIFEST}
    store.write("checkpoints/5/a", b"half written")
    two.mkdir()
    other = Mirror(two, store)
    assert other.fetch() == []
    assert names(two) == there
    make(two, log="22", checkpoints__4__a="A4")
    (two / "checkpoints/1/a").unlink()
    (two / "checkpoints/1/b").unlink()
    other.push()
    assert set(store.list()) == {"log", "checkpoints/2/a", "checkpoints/4/a", MANIFEST}
    assert set(json.loads(store.read(MANIFEST))["checkpoints"]) == {"checkpoints/2/a", "checkpoints/4/a"}
    assert Mirror(one, store).fetch() == []
    assert names(one) - {"x.partial", "checkpoints/3.orbax-checkpoint-tmp/a"} == {
        "log", "checkpoints/2/a", "checkpoints/4/a", "features/f", ".lock",
    }  # fmt: skip
    assert (one / "log").read_text() == "22"


def test_only_what_has_changed_is_copied(store, tmp_path, monkeypatch):
    make(tmp_path / "one", log="1", checkpoints__1__a="A")
    mirror, copied = Mirror(tmp_path / "one", store), []
    mirror.prepare()
    mirror.push()
    monkeypatch.setattr(StoreFolder, "upload", lambda store, files: copied.extend(files))
    monkeypatch.setattr(StoreFolder, "download", lambda store, files: copied.extend(files))
    make(tmp_path / "one", log="22")
    mirror.push()
    assert copied == ["log"]
    copied.clear()
    Mirror(tmp_path / "one", store).fetch()
    assert copied == ["log"]  # a checkpoint that is here with its digest is not read again


def test_a_start_reads_each_checkpoint_once_for_its_digest(store, tmp_path, monkeypatch):
    make(tmp_path / "one", log="1", checkpoints__1__a="A", checkpoints__1__b="B")
    read, digest = [], mirrors.digest_file
    monkeypatch.setattr(mirrors, "digest_file", lambda path: (read.append(path.name), digest(path))[1])
    first = Mirror(tmp_path / "one", store)
    first.prepare()
    first.push()
    for _ in range(2):  # a run holds its workdir twice
        assert Mirror(tmp_path / "one", store).fetch() == []
    assert sorted(read) == ["a", "b"]
    read.clear()
    for _ in range(2):
        assert Mirror(tmp_path / "two", store).fetch() == []
    assert sorted(read) == ["a", "b"]
    (tmp_path / "two/checkpoints/1/a").write_text("C")
    assert Mirror(tmp_path / "two", store).fetch() == []
    assert (tmp_path / "two/checkpoints/1/a").read_text() == "A"


def test_a_changed_checkpoint_is_left_out_and_if_all_are_changed_nothing_starts_over(store, tmp_path):
    make(tmp_path / "one", checkpoints__1__a="A", checkpoints__2__a="B")
    mirror = Mirror(tmp_path / "one", store)
    mirror.prepare()
    mirror.push()
    store.write("checkpoints/2/a", b"C")
    (tmp_path / "two").mkdir()
    (warning,) = Mirror(tmp_path / "two", store).fetch()
    assert "checkpoints/2 is not as it was written" in warning
    assert names(tmp_path / "two") == {"checkpoints/1/a"}
    with pytest.raises(BadInput, match="checkpoints/2: is not as it was written"):
        find_workdir(store.address)
    store.remove(["checkpoints/1/a"])
    with pytest.raises(StoreError, match="no checkpoint is as it was written"):
        Mirror(tmp_path / "three", store).fetch()


def test_an_object_that_would_leave_the_folder_is_refused(store, monkeypatch):
    monkeypatch.setattr(store._files, "find", lambda root, detail: {f"{root}/../x": {"size": 1}}, raising=False)
    with pytest.raises(StoreError, match=r"'\.\./x' is not the name of a file"):
        store.list()


@pytest.mark.parametrize(
    "name", ["/home/u/x", "../../x", "checkpoints/../../a", "checkpoints/x", "runs/4/x", "a\\b/c/d"]
)
def test_a_manifest_names_nothing_but_files_of_checkpoints(store, tmp_path, name):
    kept = tmp_path / "run"
    make(kept, precious="1")
    mirror = Mirror(kept, store)
    mirror.prepare()
    store.write(MANIFEST, json.dumps({"checkpoints": {name: [1, "0"]}}).encode())
    with pytest.raises(StoreError, match="is not the name of a checkpoint's file"):
        mirror.fetch()
    assert (kept / "precious").exists()


def test_ratings_that_the_store_does_not_have_yet_are_kept(store, tmp_path):
    folder = tmp_path / "run"
    make(folder, **{"judge/a.jsonl": "one\n", "judge/other.jsonl": "x\n", "log": "1"})
    mirror = Mirror(folder, store)
    mirror.prepare()
    mirror.push()
    (folder / "judge/a.jsonl").write_text("one\ntwo\n")  # paid for, then the run is killed
    (folder / "judge/new.jsonl").write_text("three\n")
    (folder / "judge/other.jsonl").write_text("of another run\n")
    (folder / "log").write_text("2")
    again = Mirror(folder, store)
    again.fetch()
    assert (folder / "judge/a.jsonl").read_text() == "one\ntwo\n"
    assert (folder / "judge/new.jsonl").read_text() == "three\n"
    assert (folder / "judge/other.jsonl").read_text() == "x\n"
    assert (folder / "log").read_text() == "1"
    again.push()
    assert store.read("judge/a.jsonl") == b"one\ntwo\n"
    assert store.read("judge/new.jsonl") == b"three\n"


def test_a_lease_whose_first_answer_was_lost_is_ones_own(store, monkeypatch):
    create = StoreFolder.create

    def create_twice(self, name, content):
        create(self, name, content)
        return create(self, name, content)  # the retry of a request that had been done

    monkeypatch.setattr(StoreFolder, "create", create_twice)
    with Lease(store, say=print).hold():
        assert store.read(LEASE_FILE) is not None
