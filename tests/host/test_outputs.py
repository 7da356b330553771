"""Files and folders that commands write to a store: whole or not there, kept when an upload fails, one at a time."""
# ruff: noqa: PT012, SIM117 - what a context does when its body fails is tested here

import pathlib
import time

import pytest
from host.memory_store import Killed, ended_process, kill_uploads, new_address, objects

from stepcot_jax.host import leases, outputs, staged_outputs, store_uploads
from stepcot_jax.host.errors import BadInput, RunStopped
from stepcot_jax.host.leases import LEASE_FILE, Lease
from stepcot_jax.host.outputs import resuming_folder, writing_file, writing_folder
from stepcot_jax.host.store_cache import find_files, find_workdir
from stepcot_jax.host.store_uploads import UNFINISHED
from stepcot_jax.host.stores import StoreError, StoreFolder

pytestmark = pytest.mark.slow

PAID = ("ledger/",)


@pytest.fixture
def address(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(leases, "RENEW_SECONDS", 3600.0)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(staged_outputs.tempfile, "tempdir", str(tmp_path / "temporary"))
    return new_address(monkeypatch)


def left_here(tmp_path):
    return [path for path in (tmp_path / "temporary").rglob("*") if path.is_file()]


def fill(folder, **texts):
    """Write files, "a__b" as a/b."""
    for name, text in texts.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def write_folder(address, **texts):
    with writing_folder(address) as out:
        fill(out.path, **texts)


def refuse_uploads(patch):
    def refuse(store, files):
        raise StoreError("the network is down")

    patch.setattr(StoreFolder, "upload", refuse)


def refuse_removals(patch):
    def refuse(store, names):
        if names := set(names):
            raise StoreError(f"the network is down, as {names} were to be removed")

    patch.setattr(StoreFolder, "remove", refuse)


@pytest.mark.parametrize("writing", [writing_file, writing_folder, resuming_folder])
def test_a_path_is_given_as_it_is_and_other_addresses_are_refused(writing, tmp_path):
    with writing(tmp_path / "x") as out:
        assert (out.path, out.name) == (tmp_path / "x", str(tmp_path / "x"))
        assert out.show(tmp_path / "x" / "y") == str(tmp_path / "x" / "y")
    assert list(tmp_path.iterdir()) == []
    with (
        pytest.raises(BadInput, match=r"^--out: hf://ann/x: not the address of a folder on a store"),
        writing("hf://ann/x"),
    ):
        pass


def test_a_file_is_there_when_the_context_has_ended(address, tmp_path):
    place = f"{address}/table.csv"
    with writing_file(place) as out:
        assert (out.path.name, out.name, out.path.exists()) == ("table.csv", place, False)
        out.path.write_text("one")
        assert objects(address) == {}
    assert objects(address) == {"table.csv": b"one"}
    with writing_file(place) as out:
        assert out.path.read_text() == "one"
        out.path.write_text("another")
    assert objects(address) == {"table.csv": b"another"}
    assert left_here(tmp_path) == []


def test_a_file_that_is_refused_or_not_finished_stays_as_it_was(address, tmp_path):
    place = f"{address}/form.csv"
    for before in ({}, {"form.csv": b"filled"}):
        for name, content in before.items():
            StoreFolder(address).write(name, content)
        with pytest.raises(BadInput, match=rf"^{place} exists"), writing_file(place) as out:
            out.path.write_text("half")
            raise BadInput(f"{out.path} exists")
        assert objects(address) == before
    with writing_file(place):  # a command that writes nothing
        pass
    assert objects(address) == before
    for wrong in (f"{address}/", "s3://bucket/x"):
        with pytest.raises(BadInput, match=r"^--out: .*: not the address of a file"), writing_file(wrong):
            pass
    assert left_here(tmp_path) == []


def test_a_killed_upload_leaves_nothing(address, monkeypatch):
    with monkeypatch.context() as patch:
        kill_uploads(patch)
        with pytest.raises(Killed), writing_file(f"{address}/x.txt") as out:
            out.path.write_text("one")
        with pytest.raises(Killed):
            write_folder(address, a="1", b="2", c__d="3")
    assert objects(address) == {}


def test_an_output_that_cannot_be_uploaded_is_kept_here(address, tmp_path, monkeypatch):
    refuse_uploads(monkeypatch)
    with pytest.raises(RunStopped, match=r"--out: the network is down; what the command wrote is in \S+/x\.txt$"):
        with writing_file(f"{address}/x.txt") as out:
            out.path.write_text("one")
    with pytest.raises(RunStopped, match=r"^--store: the network is down; what the command wrote is in \S+/run$"):
        with writing_folder(address, "--store") as out:
            fill(out.path, a="1")
    assert {path.read_text() for path in left_here(tmp_path)} == {"one", "1"}
    assert objects(address) == {}


@pytest.mark.parametrize("writing", [writing_folder, resuming_folder])
def test_an_interrupted_upload_leaves_the_output_here(writing, address, tmp_path, monkeypatch):
    def interrupt(store, files):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(StoreFolder, "upload", interrupt)
        with pytest.raises(
            RunStopped, match=r"^--out: the upload was interrupted; what the command wrote is in \S+/run$"
        ):
            with writing(address) as out:
                fill(out.path, a="1")
    assert objects(address).keys() == {
        UNFINISHED
    }  # its threads may still upload: the next command removes what they do
    with writing(address) as out:  # the next start of the command does not remove what was kept
        pass
    kept = [*left_here(tmp_path), *(tmp_path / "cache").rglob("kept-*/run/a")]
    assert [path.read_text() for path in kept] == ["1"]
    assert objects(address) == {}


def test_a_folder_with_a_part_of_new_files_beside_old_ones_is_marked(address, tmp_path, monkeypatch):
    write_folder(address, a="old", b="old")
    real = StoreFolder.upload

    def upload_one(store, files):
        real(store, {"a": files["a"]})
        raise StoreError("the network is down")

    with monkeypatch.context() as patch:
        patch.setattr(StoreFolder, "upload", upload_one)
        with pytest.raises(RunStopped, match="network is down"):
            write_folder(address, a="new", b="new", c="new")
    assert {name: text for name, text in objects(address).items() if name != UNFINISHED} == {"a": b"new", "b": b"old"}

    def is_refused():
        with pytest.raises(BadInput, match=f"holds {UNFINISHED}"):
            find_files(address, holds="cases")
        return True

    assert is_refused()
    for writing, options in ((writing_folder, {"is_new": True}), (resuming_folder, {})):  # they only look
        with pytest.raises(BadInput, match=r"exist|not empty"), writing(address, **options):
            raise BadInput("data.json exists")
        assert is_refused()
    write_folder(address, d="another")
    assert is_refused()
    write_folder(address, a="new", b="new", c="new")
    assert objects(address) == {**dict.fromkeys("abc", b"new"), "d": b"another"}


def test_a_resumed_folder_is_whole_again(address, monkeypatch):
    write_folder(address, a="1", b="1")
    with monkeypatch.context() as patch:
        refuse_removals(patch)
        with pytest.raises(RunStopped, match="the network is down"), resuming_folder(address) as out:
            fill(out.path, c="2")
            (out.path / "a").unlink()
            (out.path / "b").unlink()
    with pytest.raises(BadInput, match=f"holds {UNFINISHED}"):
        find_files(address, holds="cases")
    with resuming_folder(address) as out:
        for name in "ab":
            (out.path / name).unlink(missing_ok=True)
        fill(out.path, c="2")
    assert objects(address) == {"c": b"2"}


def test_a_failed_removal_leaves_the_mark(address, monkeypatch):
    write_folder(address, x="old", y="old")
    with monkeypatch.context() as patch:
        refuse_removals(patch)
        with pytest.raises(RunStopped, match="the network is down"):
            with writing_folder(address, needs=("x",)) as out:
                (out.path / "x").unlink()
                fill(out.path, y="new")
    with pytest.raises(BadInput, match=f"holds {UNFINISHED}"):
        find_files(address, holds="cases")


def test_marks_of_folders_below_are_of_their_own(address):
    write_folder(address, a="1")
    StoreFolder(address).write(f"explain/{UNFINISHED}", b"{}")
    with pytest.raises(BadInput, match=rf"{address}: holds explain/{UNFINISHED}, so"):
        find_files(address, holds="cases")
    assert find_workdir(address).name == "run"


@pytest.mark.parametrize("fails_too", [False, True])
def test_an_output_is_kept_if_the_other_cannot_be_uploaded(fails_too, address, tmp_path, monkeypatch):
    real = StoreFolder.upload

    def upload(store, files):
        if fails_too or "sheet.csv" in files:
            raise StoreError("the network is down")
        real(store, files)

    monkeypatch.setattr(StoreFolder, "upload", upload)
    with pytest.raises(RunStopped, match=r"what the command wrote is in \S+/sheet\.csv") as caught:
        with resuming_folder(address, "--dicom-out") as out, writing_file(f"{address}_sheet/sheet.csv") as sheet:
            fill(out.path, a="1")
            sheet.path.write_text("2")
    if fails_too:
        kept = pathlib.Path(str(caught.value).rpartition("wrote is in ")[2])
        assert "; --dicom-out: the network is down; " in str(caught.value)
        assert (kept / "a").read_text() == "1"
    assert objects(address) == ({} if fails_too else {"a": b"1"})


def test_what_stopped_a_command_is_said_beside_the_failed_copy(address, monkeypatch):
    refuse_uploads(monkeypatch)
    words = rf"^{address}/b: the true cause; --out: the network is down; what the command wrote is in"
    with pytest.raises(RunStopped, match=words), resuming_folder(address, paid=PAID) as out:
        fill(out.path, ledger__m="1")
        raise BadInput(f"{out.path}/b: the true cause")


def test_a_folder_is_uploaded_as_it_is_and_others_files_stay(address, tmp_path):
    write_folder(address, a="1", deep__b="2")
    assert objects(address) == {"a": b"1", "deep/b": b"2"}
    with writing_folder(address, needs=("a", "never")) as out:
        assert [path.name for path in out.path.iterdir()] == ["a"]
        (out.path / "a").unlink()
        fill(out.path, c="3")
    assert objects(address) == {"deep/b": b"2", "c": b"3"}
    with pytest.raises(BadInput, match=rf"^--out: {address} is not empty; a new or empty folder is required"):
        with writing_folder(address, is_new=True):
            pass
    with pytest.raises(BadInput, match=rf"^{address}: holds c and no mirror\.json"):
        with writing_folder(address, is_workdir=True):
            pass
    with pytest.raises(ZeroDivisionError), writing_folder(address) as out:
        fill(out.path, c="4")
        raise ZeroDivisionError
    assert objects(address) == {"deep/b": b"2", "c": b"3"}
    assert left_here(tmp_path) == []


def test_what_a_killed_process_has_uploaded_is_refused_and_then_removed(address, monkeypatch):
    write_folder(address, old="0")
    with monkeypatch.context() as patch:
        kill_uploads(patch)
        patch.setattr(store_uploads, "drop_unfinished", lambda store: None)  # nobody removes anything
        with pytest.raises(Killed):
            write_folder(address, a="1", b="2", old="1")
    StoreFolder(address).write(LEASE_FILE, ended_process())
    assert {"a", "old", UNFINISHED} <= objects(address).keys()
    for find in (find_workdir, lambda place: find_files(place, holds="cases")):
        with pytest.raises(BadInput, match=rf"{address}: holds {UNFINISHED}, so its upload goes on or was interrupted"):
            find(address)
    write_folder(address, c="3")
    assert objects(address).keys() == {"old", "c", UNFINISHED}  # "old" may be of either
    write_folder(address, old="1")
    assert {path.name for path in find_files(address, holds="cases").iterdir()} == {"old", "c"}


def test_one_command_at_a_time_writes_to_a_folder(address, monkeypatch):
    monkeypatch.setattr(leases, "RENEW_SECONDS", 0.05)
    monkeypatch.setattr(leases, "LAPSE_SECONDS", 3.0)
    for writing in (writing_folder, resuming_folder):
        with Lease(StoreFolder(address), say=print).hold():
            with pytest.raises(BadInput, match=rf"^--out: {address}: in use by process"), writing(address):
                pass
    taken = b'{"host": "other", "machine": "m", "process": 1, "token": "t"}'
    monkeypatch.setattr(leases, "RENEW_SECONDS", 3600.0)
    for writing in (writing_folder, resuming_folder):
        with pytest.raises(RunStopped, match=r"is held by process 1 of other; .*what the command wrote is in"):
            with writing(address) as out:
                fill(out.path, a="1")
                StoreFolder(address).write(LEASE_FILE, taken)
        assert objects(address) == {LEASE_FILE: taken}
        StoreFolder(address).remove([LEASE_FILE])


def test_a_folder_goes_on_from_the_store(address, tmp_path):
    for number in range(2):
        with resuming_folder(address) as out:
            found = sorted(path.name for path in out.path.iterdir())
            assert found == ["a", "b"][: 2 * number]
            fill(out.path, **({"a": "1", "b": "2"} if number == 0 else {"b": "3"}))
            (out.path / "a").unlink() if number else None
    assert objects(address) == {"b": b"3"}
    assert not out.path.exists()
    with pytest.raises(BadInput, match=rf"^{address}/b: no"), resuming_folder(address) as out:
        fill(out.path, b="4")
        raise BadInput(f"{out.path / 'b'}: no")
    assert objects(address) == {"b": b"3"}


def test_a_download_never_writes_into_a_file_that_is_linked_here(address, tmp_path):
    fill(tmp_path, mine="of the user")
    with pytest.raises(KeyboardInterrupt), resuming_folder(address, paid=PAID) as out:
        (out.path / "picture").hardlink_to(tmp_path / "mine")
        raise KeyboardInterrupt
    StoreFolder(address).write("picture", b"of another machine")
    with resuming_folder(address, paid=PAID) as out:
        assert (out.path / "picture").read_text() == "of another machine"
    assert (tmp_path / "mine").read_text() == "of the user"


def test_objects_that_a_command_does_not_bring_stay(address):
    others = {"checkpoints/1/x": b"1", "deep/half.partial": b"2", "2.orbax-checkpoint-tmp-3/y": b"3"}
    for name, content in others.items():
        StoreFolder(address).write(name, content)
    for text in ("1", "2"):
        with resuming_folder(address, paid=PAID) as out:
            fill(out.path, ledger__m=text)
        assert objects(address) == {**others, "ledger/m": text.encode()}


def test_answers_that_are_paid_for_are_copied_when_a_command_fails_and_every_minute(address, monkeypatch):
    with pytest.raises(RunStopped), resuming_folder(address, paid=PAID) as out:
        fill(out.path, ledger__m="1\n", set_aside="x")
        raise RunStopped("no answer")
    assert objects(address) == {"ledger/m": b"1\n", "set_aside": b"x"}
    monkeypatch.setattr(outputs, "COPY_SECONDS", 0.02)
    with pytest.raises(Killed), resuming_folder(address, paid=PAID) as out:
        fill(out.path, ledger__m="1\n2\n", other="y")
        end = time.monotonic() + 30
        while objects(address)["ledger/m"] != b"1\n2\n":
            assert time.monotonic() < end
            time.sleep(0.01)
        fill(out.path, ledger__n="3\n")
        outputs.COPY_SECONDS = 3600
        raise Killed
    assert objects(address).keys() - {"ledger/n"} == {"ledger/m", "set_aside"}
    with resuming_folder(address, paid=PAID) as out:  # on the same machine nothing that was paid for is lost
        assert {path.name for path in pathlib.Path(out.path).rglob("*") if path.is_file()} == {"m", "n", "set_aside"}
    assert objects(address).keys() == {"ledger/m", "ledger/n", "set_aside"}
