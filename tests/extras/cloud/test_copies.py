import fcntl
import json
import threading

import pytest
from memory_store import count_downloads, disturb, names, new_address, objects
from refusals import refuse

from stepcot_jax.extras.cloud.copies import MANIFEST, Remote
from stepcot_jax.extras.cloud.stores import StoreError, StoreFolder
from stepcot_jax.host.download import find_path
from stepcot_jax.host.files import LOCK_NAME


@pytest.fixture
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "stepcot_jax" / "stores"


@pytest.fixture
def empty(cache, monkeypatch):
    return StoreFolder(new_address(monkeypatch))


@pytest.fixture
def store(empty):
    for name in ("data.json", "images/a.png", "profile/b"):
        empty.write(name, name.encode())
    return empty


def test_a_folder_is_downloaded_once_and_again_when_it_changes(store, monkeypatch, capsys):
    downloaded = count_downloads(monkeypatch)
    folder = find_path(store.address)
    assert folder.name == "run"  # encoders are known by their folders' names
    assert names(folder) == {"data.json", "images/a.png", "profile/b"}
    assert "downloading 3 files" in capsys.readouterr().err
    assert find_path(store.address) == folder
    assert len(downloaded) == 3
    assert capsys.readouterr().err == ""
    store.write("data.json", b"DATA.json")
    newer = find_path(f"{store.address}/")
    assert (newer / "data.json").read_bytes() == b"DATA.json"
    assert (folder / "data.json").read_bytes() == b"data.json"  # another process may be reading it


def test_one_file_is_downloaded_alone_and_what_is_not_there_is_named(store, monkeypatch):
    downloaded = count_downloads(monkeypatch)
    address = f"{store.address}/images/a.png"
    found = find_path(address)
    assert (found.name, found.read_bytes(), downloaded) == ("a.png", b"images/a.png", ["a.png"])
    store.write("images/a.png", b"other")
    assert find_path(address).read_bytes() == b"other"
    refuse(r"^x: .*b\.png: holds no files", find_path, f"{store.address}/images/b.png", "x")


def test_readers_of_a_run_leave_its_features_logs_of_other_programs_and_half_a_checkpoint(store):
    store.write("checkpoints/1/a", b"A")
    store.write("features/x/store.json", b"{}")
    store.write("checkpoints/2/a", b"half written")
    store.write(MANIFEST, b'{"files": {"checkpoints/1/a": [1, 0]}}')
    assert names(find_path(store.address)) == {"data.json", "images/a.png", "checkpoints/1/a"}


def test_an_interrupted_download_goes_on(store, monkeypatch):
    with monkeypatch.context() as patch:
        get = store._files.get_file

        def interrupt(path, to):
            if path.endswith("b"):
                raise KeyboardInterrupt
            get(path, to)

        patch.setattr(type(store._files), "get_file", lambda own, path, to: interrupt(path, to))
        with pytest.raises(KeyboardInterrupt):
            find_path(store.address)
    downloaded = count_downloads(monkeypatch)
    assert len(names(find_path(store.address))) == 3
    assert downloaded == ["profile/b"]


def test_a_folder_that_changes_while_it_is_downloaded_is_not_kept(store, cache, monkeypatch):
    real = StoreFolder.download
    with monkeypatch.context() as patch:
        patch.setattr(StoreFolder, "download", lambda own, *given: (real(own, *given), own.write("new", b"x")))
        refuse("has changed while it was downloaded; try again", find_path, store.address)
    assert names(cache) == {path.name for path in cache.glob(".lock-*")}
    assert "new" in names(find_path(store.address))


def test_a_second_process_waits_for_the_first(store, cache, monkeypatch, capsys):
    folder = find_path(store.address)
    (lock,) = cache.glob(".lock-*")
    folder.parent.rename(cache / "away")
    downloaded = count_downloads(monkeypatch)
    with lock.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        capsys.readouterr()
        found = []
        thread = threading.Thread(target=lambda: found.append(find_path(store.address)))
        thread.start()
        while "another process is downloading it" not in capsys.readouterr().err:
            thread.join(0.05)
            assert thread.is_alive()
        (cache / "away").rename(folder.parent)
    thread.join(30)
    assert (found, downloaded) == ([folder], [])


# Workdirs and features of runs.


@pytest.fixture
def machine(empty, tmp_path, monkeypatch):
    """Return the remote of a machine, by its name, after its start; warnings are kept in `said`."""

    def on_machine(name, **options):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))
        remote = Remote(empty.address, say=on_machine.said.append, **options)
        remote.start()
        return remote

    on_machine.said = []
    return on_machine


def make(folder, **files):
    for name, content in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def test_a_machine_brings_complete_checkpoints_and_everything_else(empty, machine):
    one = machine("one")
    make(one.folder, log="1", checkpoints__1__a="A", checkpoints__1__b="B", features__f="F", checkpoints__2__a="A2")
    make(one.folder, **{"x.partial": "no", "checkpoints__3.orbax-checkpoint-tmp__a": "no", LOCK_NAME: ""})
    one.saved()
    there = {"log", "checkpoints/1/a", "checkpoints/1/b", "checkpoints/2/a"}
    assert set(empty.list()) == there | {MANIFEST}
    empty.write("checkpoints/5/a", b"half written")
    two = machine("two")
    assert names(two.folder) == there
    make(two.folder, log="22", checkpoints__4__a="A4")
    (two.folder / "checkpoints/1/a").unlink()
    (two.folder / "checkpoints/1/b").unlink()
    two.finish()
    assert set(empty.list()) == {"log", "checkpoints/2/a", "checkpoints/4/a", MANIFEST}
    assert json.loads(empty.read(MANIFEST))["files"].keys() == set(empty.list()) - {MANIFEST}
    make(one.folder, checkpoints__2__a="??")
    one = machine("one")
    assert names(one.folder) - {"x.partial", "checkpoints/3.orbax-checkpoint-tmp/a"} == {
        "log", "checkpoints/2/a", "checkpoints/4/a", "features/f", LOCK_NAME,
    }  # fmt: skip
    assert [(one.folder / name).read_text() for name in ("log", "checkpoints/2/a")] == ["22", "A2"]
    assert machine.said == []


def test_only_what_has_changed_is_copied(machine, monkeypatch):
    one = machine("one")
    make(one.folder, log="1", checkpoints__1__a="A")
    one.saved()
    copied, upload = [], StoreFolder.upload
    with monkeypatch.context() as patch:
        patch.setattr(StoreFolder, "upload", lambda store, files: (copied.extend(files), upload(store, files)))
        make(one.folder, log="22")
        one.saved()
    assert copied == ["log"]
    downloaded = count_downloads(monkeypatch)
    make(one.folder, log="33")
    machine("one")
    assert downloaded == ["log"]
    machine("two")
    machine("two")  # a run holds its workdir twice
    assert sorted(downloaded) == ["checkpoints/1/a", "log", "log"]


def test_ratings_that_the_store_does_not_have_yet_are_kept(empty, machine):
    one = machine("one")
    make(one.folder, **{"judge/a.jsonl": "one\n", "judge/other.jsonl": "x\n", "log": "1"})
    one.saved()
    make(one.folder, **{"judge/a.jsonl": "one\ntwo\n", "judge/new.jsonl": "three\n"})  # paid for, then killed
    make(one.folder, **{"judge/other.jsonl": "of another run\n", "log": "2"})
    one = machine("one")
    kept = {name: (one.folder / name).read_text() for name in names(one.folder)}
    assert kept == {
        "judge/a.jsonl": "one\ntwo\n", "judge/new.jsonl": "three\n", "judge/other.jsonl": "x\n", "log": "1",
    }  # fmt: skip
    one.saved()
    assert empty.read("judge/a.jsonl") == b"one\ntwo\n"
    assert empty.read("judge/new.jsonl") == b"three\n"


def test_a_folder_with_other_files_is_refused_by_a_run(empty, machine):
    empty.write("data.json", b"[]")
    refuse(r"holds data\.json and no mirror\.json; expected an empty folder", machine, "one")
    assert objects(empty.address) == {"data.json": b"[]"}


def test_shards_are_added_and_never_removed(empty, machine, monkeypatch):
    one, two = machine("one", only_adds=True), machine("two", only_adds=True)
    make(one.folder, **{"store.json": "{}", "a.safetensors": "A", "b.safetensors.bad": "B", ".c.partial": "C"})
    one.saved()
    make(two.folder, **{"store.json": "{}", "d.safetensors": "D"})
    two.saved()
    assert set(empty.list()) == {"store.json", "a.safetensors", "d.safetensors"}
    two.start()
    assert names(two.folder) == {"store.json", "a.safetensors", "d.safetensors"}
    make(one.folder, **{"e.safetensors": "E"})
    with monkeypatch.context() as patch:
        disturb(patch, "upload", 2, StoreError("down"))
        refuse("down; the features are kept in", one.saved, error=StoreError)
    one.start()
    one.saved()
    assert "e.safetensors" in empty.list()
