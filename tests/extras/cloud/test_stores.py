import pytest
from memory_store import new_address
from refusals import refuse

from stepcot_jax.extras.cloud.stores import StoreError, StoreFolder


@pytest.mark.parametrize(
    "address", ["gs://bucket", "gs:///run", "s3://b/../x", "s3://b//x", "gs://b/a*", "gs://key:secret@b/x", "s3:/b/x"]
)
def test_addresses_of_another_form_are_refused(address):
    refuse("not the address of a folder on a store", StoreFolder, address)


def test_objects_are_written_whole_listed_as_they_are_now_and_removed(monkeypatch, tmp_path):
    store = StoreFolder(new_address(monkeypatch))
    assert (store.list(), store.read("a"), store.look_up("a")) == ({}, b"", None)
    store.write("a", b"1")
    (tmp_path / "x").write_bytes(bytes(2**20))
    store.upload({f"deep/er/{number}": tmp_path / "x" for number in range(20)})
    before = store.list()
    sizes = {"a": 1, **{f"deep/er/{number}": 2**20 for number in range(20)}}
    assert {name: entry.size for name, entry in before.items()} == sizes
    store.write("a", b"3")
    assert store.list()["a"] != before["a"]
    assert store.look_up("a").size == 1
    store.download({"deep/er/3": before["deep/er/3"]}, tmp_path)
    assert (tmp_path / "deep/er/3").read_bytes() == bytes(2**20)
    store.remove([*(name for name in before if name != "a"), "never"])
    assert set(store.list()) == {"a"}


def test_an_error_of_the_store_is_one_line_with_its_address(monkeypatch, tmp_path):
    refuse(r"^nosuch://b/x: fsspec cannot open nosuch:// here \(Protocol not known", StoreFolder, "nosuch://b/x")
    store = StoreFolder(new_address(monkeypatch))
    store.write("a", b"1")
    listed = store.list()
    store.write("a", b"22")
    refuse(r"a: 2 bytes came, 1 were listed; try again", store.download, listed, tmp_path, error=StoreError)
    store.remove(["a"])
    refuse(r"/run: cannot be read \(FileNotFoundError: ", store.download, listed, tmp_path, error=StoreError)
    monkeypatch.setattr(store._files, "find", lambda root, detail: {f"{root}/../x": {"size": 1}}, raising=False)
    refuse(r"'\.\./x' is not the name of a file", store.list, error=StoreError)
