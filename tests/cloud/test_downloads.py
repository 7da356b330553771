"""Folders of stores in the user's cache: downloaded once, again when they change, and on after an interruption."""

import fcntl
import hashlib
import threading

import pytest
from cloud.memory_store import count_downloads, names, new_address
from refusals import refuse

from stepcot_jax.extras.cloud import copies
from stepcot_jax.extras.cloud.copies import MANIFEST
from stepcot_jax.extras.cloud.stores import StoreError, StoreFolder
from stepcot_jax.host.download import download, find_path


@pytest.fixture
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "stepcot_jax" / "stores"


@pytest.fixture
def store(cache, monkeypatch):
    """A folder of three files."""
    store = StoreFolder(new_address(monkeypatch))
    for name in ("data.json", "images/a.png", "profile/b"):
        store.write(name, name.encode())
    return store


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


def test_one_file_is_downloaded_alone_and_again_when_it_changes(store, monkeypatch):
    downloaded = count_downloads(monkeypatch)
    address = f"{store.address}/images/a.png"
    found = find_path(address)
    assert (found.name, found.read_bytes(), downloaded) == ("a.png", b"images/a.png", ["a.png"])
    assert find_path(address) == found
    store.write("images/a.png", b"other")
    assert find_path(address).read_bytes() == b"other"
    assert names(find_path(store.address)) == {"data.json", "images/a.png", "profile/b"}
    refuse(r"^x: .*b\.png: holds no files", find_path, f"{store.address}/images/b.png", "x")
    download = StoreFolder.download
    monkeypatch.setattr(
        StoreFolder, "download", lambda own, files: (own.write("a.png", b"12345"), download(own, files))
    )
    store.write("images/a.png", b"later")
    refuse(r"a\.png: has changed while it was downloaded; try again", find_path, address)


def test_readers_of_a_run_leave_its_features_and_the_logs_of_other_programs(store, cache, tmp_path):
    digest = hashlib.sha256(b"A").hexdigest()
    store.write("checkpoints/1/a", b"A")
    store.write("features/x/store.json", b"{}")
    store.write("checkpoints/2/a", b"half written")
    store.write(MANIFEST, b'{"checkpoints": {"checkpoints/1/a": [1, "%s"]}}' % digest.encode())
    assert names(find_path(store.address)) == {"data.json", "images/a.png", "checkpoints/1/a"}
    every = {"data.json", "images/a.png", "profile/b", "checkpoints/1/a", "features/x/store.json"}
    assert names(download(store.address, tmp_path / "all")) == every
    store.write("checkpoints/1/a", b"B")
    kept = set(cache.iterdir())
    for _ in range(2):
        refuse("checkpoints/1: is not as it was written", find_path, store.address)
    assert set(cache.iterdir()) == kept


def test_a_download_to_a_folder_of_the_user_overwrites_nothing(store, tmp_path, monkeypatch):
    folder = tmp_path / "mine"
    (folder / "images").mkdir(parents=True)
    (folder / "other").write_text("mine")
    assert names(download(store.address, folder)) == {"data.json", "images/a.png", "profile/b", "other"}
    downloaded = count_downloads(monkeypatch)
    download(store.address, folder)
    (folder / "images/a.png").unlink()
    download(store.address, folder)
    assert downloaded == ["images/a.png"]
    (folder / "data.json").write_text("changed by me")
    refuse(r"data\.json: not the file of 9 bytes that .* has; nothing is overwritten", download, store.address, folder)
    assert (folder / "data.json").read_text() == "changed by me"


def test_what_cannot_be_used_is_one_line_with_the_setting(cache, monkeypatch):
    address = new_address(monkeypatch)
    refuse(rf"^config\.x: {address}: holds no files", find_path, address, "config.x")
    StoreFolder(address).write("a", b"a")
    with monkeypatch.context() as patch:
        patch.setattr(copies, "_SPARE_BYTES", 2**60)
        refuse(r"^config\.x: .*: the files to copy take 1 bytes; .* has \d+ free", find_path, address, "config.x")
    monkeypatch.setattr(type(StoreFolder(address)._files), "get_file", lambda *given, **named: 1 / 0)
    refuse(r"^config\.x: .*cannot be read \(ZeroDivisionError", find_path, address, "config.x", error=StoreError)


def test_an_interrupted_download_goes_on_and_one_of_an_earlier_listing_is_removed(store, cache, monkeypatch):
    monkeypatch.setattr(copies, "_AT_ONCE", 1)

    def interrupt(after):
        with monkeypatch.context() as patch:
            real, seen = StoreFolder.download, []

            def download(store, files):
                seen.append(files)
                if len(seen) > after:
                    raise KeyboardInterrupt
                real(store, files)

            patch.setattr(StoreFolder, "download", download)
            with pytest.raises(KeyboardInterrupt):
                find_path(store.address)

    interrupt(1)
    store.write("images/c.png", b"c")
    interrupt(2)
    assert len(list(cache.glob(".partial-*"))) == 1
    downloaded = count_downloads(monkeypatch)
    folder = find_path(store.address)
    assert downloaded == ["images/c.png", "profile/b"]
    assert len(names(folder)) == 4
    assert list(cache.glob(".partial-*")) == []


def test_a_folder_that_changes_while_it_is_downloaded_is_not_kept(store, cache, monkeypatch):
    download = StoreFolder.download
    with monkeypatch.context() as patch:
        patch.setattr(StoreFolder, "download", lambda own, files: (download(own, files), own.write("new", b"x")))
        refuse("has changed while it was downloaded; try again", find_path, store.address)
    assert names(cache) == {path.name for path in cache.glob(".lock-*")}
    assert "new" in names(find_path(store.address))


def test_an_object_of_another_size_than_listed_is_refused(store, monkeypatch):
    found = StoreFolder.list(store)
    monkeypatch.setattr(StoreFolder, "list", lambda own: found)
    store.write("data.json", b"[]")
    with pytest.raises(StoreError, match=r"run/data\.json: 2 bytes came, 9 were listed; it has changed or was cut off"):
        find_path(store.address)


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
