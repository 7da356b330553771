"""Folders on stores and the folders of this machine that are kept like them, in fsspec's memory."""

import json
import threading

import pytest
from cloud.memory_store import Killed, check_objects, count_downloads, disturb, names, new_address, objects
from refusals import refuse

from stepcot_jax.extras.cloud import copies, stores
from stepcot_jax.extras.cloud.copies import MANIFEST, UNFINISHED, Remote, download
from stepcot_jax.extras.cloud.stores import StoreError, StoreFolder
from stepcot_jax.extras.cloud.sync import main as sync
from stepcot_jax.host.errors import RunStopped
from stepcot_jax.host.files import LOCK_NAME


@pytest.fixture
def store(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return StoreFolder(new_address(monkeypatch))


@pytest.fixture
def machine(store, tmp_path, monkeypatch):
    """Return the remote of a machine, by its name, after its start; warnings are kept in `said`."""

    def on_machine(name, starts=True, **options):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))
        remote = Remote(store.address, say=on_machine.said.append, **options)
        if starts:
            remote.start()
        return remote

    on_machine.said = []
    return on_machine


@pytest.mark.parametrize(
    "address",
    ["gs://bucket", "gs:///run", "s3://bucket/../x", "s3://bucket//x", "gs://b/a*", "gs://key:secret@b/x", "s3:/b/x"],
)
def test_addresses_of_another_form_are_refused(address):
    refuse("not the address of a folder on a store", StoreFolder, address)


def test_a_store_that_does_not_answer_is_named(store, monkeypatch, capsys):
    named = threading.Event()
    monkeypatch.setattr(stores, "_QUIET_SECONDS", 0.0)
    name_wait = store._name_wait
    monkeypatch.setattr(store, "_name_wait", lambda done: (name_wait(done), named.set()))
    monkeypatch.setattr(store._files, "info", lambda path: named.wait(60) and {"size": 1})
    store.look_up("a")
    assert f"note: {store.address} is not read after 0 s" in capsys.readouterr().err


def test_objects_are_written_whole_and_removed(store, tmp_path):
    check_objects(store, tmp_path)


def test_an_error_of_the_store_is_one_line_with_its_address(store, tmp_path, monkeypatch):
    with pytest.raises(StoreError, match=r"memory://.*/run: cannot be read \(FileNotFoundError"):
        store.download({"never": tmp_path / "x"})
    monkeypatch.setattr(store._files, "find", lambda root, detail: {f"{root}/../x": {"size": 1}}, raising=False)
    refuse(r"'\.\./x' is not the name of a file", store.list, error=StoreError)


def make(folder, **files):
    for name, content in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def test_a_machine_brings_complete_checkpoints_and_everything_else(store, machine):
    one = machine("one")
    make(one.folder, log="1", checkpoints__1__a="A", checkpoints__1__b="B", features__f="F", checkpoints__2__a="A2")
    make(one.folder, **{"x.partial": "no", "checkpoints__3.orbax-checkpoint-tmp__a": "no", LOCK_NAME: ""})
    one.saved()
    there = {"log", "checkpoints/1/a", "checkpoints/1/b", "checkpoints/2/a"}
    assert set(store.list()) == there | {MANIFEST}
    store.write("checkpoints/5/a", b"half written")
    two = machine("two")
    assert names(two.folder) == there
    make(two.folder, log="22", checkpoints__4__a="A4")
    (two.folder / "checkpoints/1/a").unlink()
    (two.folder / "checkpoints/1/b").unlink()
    two.finish()
    assert set(store.list()) == {"log", "checkpoints/2/a", "checkpoints/4/a", MANIFEST}
    assert set(json.loads(store.read(MANIFEST))["checkpoints"]) == {"checkpoints/2/a", "checkpoints/4/a"}
    one = machine("one")
    assert names(one.folder) - {"x.partial", "checkpoints/3.orbax-checkpoint-tmp/a"} == {
        "log", "checkpoints/2/a", "checkpoints/4/a", "features/f", LOCK_NAME,
    }  # fmt: skip
    assert (one.folder / "log").read_text() == "22"
    assert machine.said == []


def test_only_what_has_changed_is_copied_and_read_for_its_digest(store, machine, monkeypatch):
    read, digest = [], copies.digest_file
    monkeypatch.setattr(copies, "digest_file", lambda path: (read.append(path.name), digest(path))[1])
    one = machine("one")
    make(one.folder, log="1", checkpoints__1__a="A")
    one.saved()
    copied = []
    with monkeypatch.context() as patch:
        patch.setattr(StoreFolder, "upload", lambda store, files: copied.extend(files))
        make(one.folder, log="22")
        one.saved()
    downloaded = count_downloads(monkeypatch)
    machine("one")
    assert (copied, downloaded) == (["log"], ["log"])  # a checkpoint that is here with its digest is not read again
    assert read == ["a"]
    for _ in range(2):  # a run holds its workdir twice
        two = machine("two")
    assert read == ["a", "a"]
    make(two.folder, checkpoints__1__a="C")
    assert (machine("two").folder / "checkpoints/1/a").read_text() == "A"


def test_a_changed_checkpoint_is_left_out_and_if_all_are_changed_nothing_starts_over(store, machine):
    one = machine("one")
    make(one.folder, checkpoints__1__a="A", checkpoints__2__a="B")
    one.saved()
    store.write("checkpoints/2/a", b"C")
    assert names(machine("two").folder) == {"checkpoints/1/a"}
    assert "checkpoints/2: not as it was written" in machine.said[0]
    refuse("checkpoints/2: is not as it was written", download, store.address)
    store.remove(["checkpoints/1/a"])
    refuse("no checkpoint is as it was written", machine, "three", error=StoreError)


@pytest.mark.parametrize(
    "name", ["/home/u/x", "../../x", "checkpoints/../../a", "checkpoints/x", "runs/4/x", "a\\b/c/d"]
)
def test_a_manifest_names_nothing_but_files_of_checkpoints(store, machine, name):
    make(machine("one").folder, precious="1")
    store.write(MANIFEST, json.dumps({"checkpoints": {name: [1, "0"]}}).encode())
    refuse("is not the name of a checkpoint's file", machine, "one", error=StoreError)
    assert (machine("one", starts=False).folder / "precious").exists()


def test_ratings_that_the_store_does_not_have_yet_are_kept(store, machine):
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
    assert store.read("judge/a.jsonl") == b"one\ntwo\n"
    assert store.read("judge/new.jsonl") == b"three\n"


def test_a_folder_with_other_files_is_refused_by_a_run(store, machine):
    store.write("data.json", b"[]")
    refuse(r"holds data\.json and no mirror\.json; expected an empty folder", machine, "one")
    assert objects(store.address) == {"data.json": b"[]"}


def test_shards_are_added_and_never_removed(store, machine, monkeypatch):
    one, two = machine("one", only_adds=True), machine("two", only_adds=True)
    make(one.folder, **{"store.json": "{}", "a.safetensors": "A", "b.safetensors.bad": "B", ".c.partial": "C"})
    one.saved()
    make(two.folder, **{"store.json": "{}", "d.safetensors": "D"})
    two.saved()
    assert set(store.list()) == {"store.json", "a.safetensors", "d.safetensors"}
    two.start()
    assert names(two.folder) == {"store.json", "a.safetensors", "d.safetensors"}
    make(one.folder, **{"e.safetensors": "E"})
    with monkeypatch.context() as patch:
        disturb(patch, "upload", 2, StoreError("down"))
        refuse("down; the features are kept in", one.saved, error=StoreError)
    one.start()
    one.saved()
    assert "e.safetensors" in store.list()


def test_sync_sends_what_is_missing_and_data_fetch_brings_it_back(store, tmp_path, monkeypatch, capsys):
    folder = tmp_path / "export"
    make(folder, **{"a": "A", "deep/b": "B", "checkpoints/1/c": "C", LOCK_NAME: "", "features/f": "F"})
    (folder / "link").symlink_to(folder / "a")
    sync([str(folder), store.address])
    assert "4 files sent, 0 were there; 1 symbolic links are not sent" in capsys.readouterr().out
    assert set(store.list()) == {"a", "deep/b", "checkpoints/1/c", "features/f", MANIFEST}
    make(folder, a="AA")
    store.write("of_another", b"")
    sync([str(folder), store.address])
    assert "1 files sent, 3 were there" in capsys.readouterr().out
    assert objects(store.address)["a"] == b"AA"
    assert names(download(store.address, tmp_path / "back")) == names(folder) - {"link", LOCK_NAME} | {"of_another"}
    store.write("deep/b", b"")  # another program
    sync([str(folder), store.address])
    assert store.read("deep/b") == b"B"
    refuse("not a folder", sync, [str(folder / "a"), store.address])
    refuse("is an address; expected a folder or file of this machine", sync, [store.address, store.address])


@pytest.mark.parametrize(("method", "number"), [("upload", 1), ("upload", 2), ("write", 2), ("remove", 1)])
def test_a_half_uploaded_folder_is_noticed_and_completed(method, number, store, tmp_path, monkeypatch):
    folder = tmp_path / "export"
    make(folder, a="A", b="B", **{"model.safetensors": "M"})
    with monkeypatch.context() as patch:
        disturb(patch, method, number, Killed())
        with pytest.raises(Killed):
            sync([str(folder), store.address])
    for into in (None, tmp_path / "here"):
        refuse(f"holds {UNFINISHED}, so its upload is going on or was interrupted", download, store.address, into)
    assert not (tmp_path / "here").exists()
    sync([str(folder), store.address])
    assert names(download(store.address)) == names(folder)


def test_an_upload_that_fails_ends_with_one_sentence(store, tmp_path, monkeypatch):
    make(tmp_path / "export", a="A")
    disturb(monkeypatch, "upload", 1, StoreError("the network is down"))
    with pytest.raises(RunStopped, match=r"the network is down; .*export is unchanged, and the same command"):
        sync([str(tmp_path / "export"), store.address])
    assert names(tmp_path / "export") == {"a"}
