import pytest
from memory_store import Killed, disturb, names, new_address
from refusals import refuse

from stepcot_jax.extras.cloud.copies import MANIFEST, Remote, download
from stepcot_jax.extras.cloud.stores import StoreError, StoreFolder
from stepcot_jax.extras.cloud.sync import main as sync
from stepcot_jax.host.errors import RunStopped
from stepcot_jax.host.files import LOCK_NAME


@pytest.fixture
def store(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return StoreFolder(new_address(monkeypatch))


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "export"
    for name in ("a", "deep/b", "checkpoints/1/c", LOCK_NAME, "features/f"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    (folder / "link").symlink_to(folder / "a")
    return folder


def test_sync_sends_what_is_missing(store, folder, capsys):
    sync([str(folder), store.address])
    assert "4 files sent, 0 were there; 1 symbolic links are not sent" in capsys.readouterr().out
    assert set(store.list()) == {"a", "deep/b", "checkpoints/1/c", "features/f", MANIFEST}
    (folder / "a").write_text("A")
    store.write("of_another", b"")
    sync([str(folder), store.address])
    assert "1 files sent, 3 were there" in capsys.readouterr().out
    assert store.read("a") == b"A"
    assert set(store.list()) == names(folder) - {"link", LOCK_NAME} | {"of_another", MANIFEST}
    store.write("deep/b", b"")  # another program
    sync([str(folder), store.address])
    assert store.read("deep/b") == b"deep/b"
    refuse("not a folder", sync, [str(folder / "a"), store.address])
    refuse("is an address; expected a folder or file of this machine", sync, [store.address, store.address])


@pytest.mark.parametrize(("method", "number"), [("upload", 1), ("upload", 2), ("write", 2)])
def test_a_half_uploaded_folder_is_noticed_and_completed(method, number, store, folder, monkeypatch):
    with monkeypatch.context() as patch:
        disturb(patch, method, number, Killed())
        with pytest.raises(Killed):
            sync([str(folder), store.address])
    refuse("its upload is going on or was interrupted", download, store.address)
    refuse("its upload is going on or was interrupted", Remote(store.address, say=print).start)
    sync([str(folder), store.address])
    assert names(download(store.address)) == names(folder) - {"link", LOCK_NAME, "features/f"}


def test_an_upload_that_fails_ends_with_one_sentence(store, folder, monkeypatch):
    disturb(monkeypatch, "upload", 1, StoreError("the network is down"))
    with pytest.raises(RunStopped, match=r"the network is down; .*export is unchanged, and the same command"):
        sync([str(folder), store.address])
