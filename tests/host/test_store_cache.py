"""Folders of stores in the user's cache: downloaded once, again when they change, and on after an interruption."""

import fcntl
import threading

import pytest
from host.memory_store import new_address

from stepcot_jax.host import store_copies
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.mirrors import MANIFEST
from stepcot_jax.host.store_cache import find_files, find_workdir
from stepcot_jax.host.stores import StoreError, StoreFolder

CASES = {"holds": "a folder of cases"}


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


def names(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def count_downloads(monkeypatch):
    """Names of the objects that are downloaded from now on."""
    found, download = [], StoreFolder.download
    monkeypatch.setattr(StoreFolder, "download", lambda store, files: (found.extend(files), download(store, files)))
    return found


def test_a_folder_is_downloaded_once_and_again_when_it_changes(store, monkeypatch, capsys):
    downloaded = count_downloads(monkeypatch)
    folder = find_files(store.address, **CASES)
    assert folder.name == "run"  # encoders are known by their folders' names
    assert names(folder) == {"data.json", "images/a.png", "profile/b"}
    assert "downloading 3 files" in capsys.readouterr().err
    assert find_files(store.address, **CASES) == folder
    assert len(downloaded) == 3
    assert capsys.readouterr().err == ""
    store.write("data.json", b"DATA.json")
    newer = find_files(f"{store.address}/", **CASES)
    assert (newer / "data.json").read_bytes() == b"DATA.json"
    assert (folder / "data.json").read_bytes() == b"data.json"  # another process may be reading it


def test_one_file_is_downloaded_alone_and_again_when_it_changes(store, monkeypatch):
    downloaded = count_downloads(monkeypatch)
    address = f"{store.address}/images/a.png"
    found = find_files(address, may_be_file=True, **CASES)
    assert (found.name, found.read_bytes(), downloaded) == ("a.png", b"images/a.png", ["a.png"])
    assert find_files(address, may_be_file=True, **CASES) == found
    store.write("images/a.png", b"other")
    assert find_files(address, may_be_file=True, **CASES).read_bytes() == b"other"
    assert names(find_files(store.address, may_be_file=True, **CASES)) == {"data.json", "images/a.png", "profile/b"}
    with pytest.raises(BadInput, match=r"^x: .*a\.png: holds no files; expected a folder of cases"):
        find_files(address, "x", **CASES)
    download = StoreFolder.download
    monkeypatch.setattr(
        StoreFolder, "download", lambda own, files: (own.write("a.png", b"12345"), download(own, files))
    )
    store.write("images/a.png", b"later")
    with pytest.raises(BadInput, match=r"a\.png: the file changed while it was downloaded; try again"):
        find_files(address, may_be_file=True, **CASES)


def test_of_a_workdir_the_logs_of_other_programs_stay(store):
    assert names(find_workdir(store.address)) == {"data.json", "images/a.png"}


def test_a_path_is_taken_as_it_is(cache):
    assert str(find_files("cases", **CASES)) == str(find_workdir("cases")) == "cases"
    assert not cache.exists()


@pytest.mark.parametrize("find", [find_workdir, lambda place, key: find_files(place, key, **CASES)])
def test_what_cannot_be_used_is_one_line_with_the_setting(find, cache, monkeypatch):
    address = new_address(monkeypatch)
    with pytest.raises(BadInput, match=rf"^config\.x: {address}: holds no files; expected (a folder|the workdir)"):
        find(address, "config.x")
    with pytest.raises(BadInput, match=r"^config\.x: az://b/run is an address"):
        find("az://b/run", "config.x")
    StoreFolder(address).write("a", b"a")
    monkeypatch.setattr(store_copies, "_SPARE_BYTES", 2**60)
    with pytest.raises(BadInput, match=r"^config\.x: .*: the files to copy take 1 bytes; .* has \d+ free"):
        find(address, "config.x")
    monkeypatch.setattr(StoreFolder, "list", lambda store: StoreFolder.read(store, None) or {})
    monkeypatch.setattr(type(StoreFolder(address)._files), "cat_file", lambda *given, **named: 1 / 0)
    with pytest.raises(StoreError, match=r"^config\.x: .*cannot be read \(ZeroDivisionError"):
        find(address, "config.x")


def test_an_interrupted_download_goes_on_and_one_of_an_earlier_listing_is_removed(store, cache, monkeypatch):
    monkeypatch.setattr(store_copies, "_AT_ONCE", 1)

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
                find_files(store.address, **CASES)

    interrupt(1)
    store.write("images/c.png", b"c")
    interrupt(2)
    assert len(list(cache.glob(".partial-*"))) == 1
    downloaded = count_downloads(monkeypatch)
    folder = find_files(store.address, **CASES)
    assert downloaded == ["images/c.png", "profile/b"]
    assert len(names(folder)) == 4
    assert list(cache.glob(".partial-*")) == []


def test_a_folder_that_changes_while_it_is_downloaded_is_not_kept(store, cache, monkeypatch):
    download = StoreFolder.download
    with monkeypatch.context() as patch:
        patch.setattr(StoreFolder, "download", lambda own, files: (download(own, files), own.write("new", b"x")))
        with pytest.raises(BadInput, match="an object changed while the folder was downloaded; try again"):
            find_files(store.address, **CASES)
    assert names(cache) == {path.name for path in cache.glob(".lock-*")}
    assert "new" in names(find_files(store.address, **CASES))


def test_an_object_of_another_size_than_listed_is_refused(store, monkeypatch):
    found = StoreFolder.list(store)
    monkeypatch.setattr(StoreFolder, "list", lambda own: found)
    store.write("data.json", b"[]")
    with pytest.raises(StoreError, match=r"run/data\.json: 2 bytes came, 9 were listed; it has changed or was cut off"):
        find_files(store.address, **CASES)


def test_a_second_process_waits_for_the_first(store, cache, monkeypatch, capsys):
    folder = find_files(store.address, **CASES)
    (lock,) = cache.glob(".lock-*")
    folder.parent.rename(cache / "away")
    downloaded = count_downloads(monkeypatch)
    with lock.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        capsys.readouterr()
        found = []
        thread = threading.Thread(target=lambda: found.append(find_files(store.address, **CASES)))
        thread.start()
        while "another process is downloading it" not in capsys.readouterr().err:
            thread.join(0.05)
            assert thread.is_alive()
        (cache / "away").rename(folder.parent)
    thread.join(30)
    assert (found, downloaded) == ([folder], [])


def test_a_checkpoint_that_is_not_as_it_was_written_is_not_kept(store, cache):
    store.write("checkpoints/1/a", b"A")
    store.write(MANIFEST, b'{"checkpoints": {"checkpoints/1/a": [1, "0"]}}')
    for _ in range(2):
        with pytest.raises(BadInput, match="checkpoints/1: is not as it was written"):
            find_workdir(store.address)
    assert [path.name[:6] for path in cache.iterdir()] == [".lock-"]
