import builtins
import pathlib

import numpy as np
import pytest
import safetensors.numpy
from refusals import refuse

from stepcot_jax.tools.convert import check_destination, read_tensors, write_tensors

TENSORS = {"student/a.weight": np.arange(6, dtype=np.float32).reshape(2, 3), "student/a.bias": np.ones(2, np.float32)}


def assert_same(found, expected):
    assert set(found) == set(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)


@pytest.mark.parametrize("suffix", [".safetensors", ".pt", ".pth"])
def test_what_is_written_is_read(tmp_path, suffix):
    if suffix != ".safetensors":
        pytest.importorskip("torch")
    path, tensors = tmp_path / f"weights{suffix}", TENSORS | {"student/t": TENSORS["student/a.weight"].T}
    write_tensors(path, tensors)
    assert_same(read_tensors(path), tensors)
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_a_file_is_replaced_only_when_asked_and_a_write_that_fails_leaves_it(tmp_path, monkeypatch):
    path = tmp_path / "a.safetensors"
    path.write_bytes(b"precious")
    refuse("--force", check_destination, path, overwrite=False)

    def fail(tensors, target, metadata):
        pathlib.Path(target).write_bytes(b"half")
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(safetensors.numpy, "save_file", fail)
        refuse("disk full", write_tensors, path, TENSORS, error=OSError)
    assert path.read_bytes() == b"precious"
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    check_destination(path, overwrite=True)
    write_tensors(path, TENSORS)
    assert_same(read_tensors(path), TENSORS)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.ckpt", None, r"suffix '\.ckpt' is not one of \.safetensors"),
        ("a.safetensors", None, "does not exist"),
        ("a.safetensors", b"", "not a complete safetensors file"),
        ("a.safetensors", b"\x10\x00\x00\x00\x00\x00\x00\x00{broken", "not a complete safetensors file"),
    ],
)
def test_other_files_are_refused(tmp_path, name, content, words):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    refuse(words, read_tensors, tmp_path / name)
    refuse(r"folder .* does not exist", check_destination, tmp_path / "no" / "a.safetensors", overwrite=False)


def test_without_torch_a_pt_is_refused_with_the_ways_out(tmp_path, monkeypatch):
    path = tmp_path / "a.pt"
    path.write_bytes(b"x")
    real = builtins.__import__

    def no_torch(name, *args, **kwargs):
        if name == "torch":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", no_torch)
    for action in (lambda: read_tensors(path), lambda: check_destination(path, overwrite=True)):
        refuse(r"need torch.*\[torch\].*safetensors", action)


class Bomb:
    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return (self.target.write_text, ("unpickled",))


def test_a_pt_with_objects_is_refused_and_never_unpickled(tmp_path):
    torch = pytest.importorskip("torch")
    path, mark = tmp_path / "a.pt", tmp_path / "mark"
    torch.save({"weight": torch.zeros(2), "bomb": Bomb(mark)}, path)
    refuse("objects that could run code", read_tensors, path)
    assert not mark.exists()
    torch.save([torch.zeros(2)], path)
    refuse("holds a list", read_tensors, path)
