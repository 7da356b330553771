import json
import os
import struct

import hypothesis
import hypothesis.extra.numpy as arrays
import hypothesis.strategies as some
import numpy as np
import pytest
import safetensors.numpy
from refusals import refuse

from stepcot_jax.host import exported_files
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.exported_files import SUMS, Files, RefusedExport, read_sums, read_weights, write_sums

DTYPES = some.sampled_from(["float32", "float16", "float64", "int32", "uint8"])


@hypothesis.given(
    some.dictionaries(
        some.text(min_size=1, max_size=5).filter(lambda name: name != "__metadata__"),
        DTYPES.flatmap(lambda dtype: arrays.arrays(dtype, arrays.array_shapes(min_dims=0, max_side=3))),
        min_size=1,
        max_size=4,
    )
)
def test_tensors_are_read_as_safetensors_reads_them(tensors):
    content = safetensors.numpy.save(tensors, metadata={"made": "here"})
    found = dict(exported_files.read_safetensors(memoryview(content)))
    assert set(found) == set(tensors)
    for name, array in tensors.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)


def damaged(header, data=b"\0" * 8):
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
HEADERS = [[], {"a": 1}, {"a": ENTRY, "b": ENTRY}]  # the last: a small file that would be copied often
HEADERS += [{"a": {**ENTRY, "data_offsets": offsets}} for offsets in ([0, 16], [-4, 4], [8, 0])]
HEADERS += [{"a": {**ENTRY, "shape": shape}} for shape in ([3], [-2, -1], "ab")] + [{"a": {**ENTRY, "dtype": "F7"}}]


@pytest.mark.parametrize("content", [b"", b"\0" * 7, struct.pack("<Q", 2**63) + b"{}", *map(damaged, HEADERS)])
def test_damaged_tensors_are_refused(content):
    with pytest.raises(exported_files.RefusedExport, match="tensors cannot be read"):
        dict(exported_files.read_safetensors(memoryview(content)))


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "a.json").write_text('{"x": 1}')
    (tmp_path / "empty.txt").touch()
    safetensors.numpy.save_file({"w": np.arange(6, dtype=np.float32).reshape(2, 3)}, tmp_path / "m.safetensors")
    write_sums(tmp_path)
    return tmp_path


def test_a_reader_of_few_files_compares_these_alone(folder):
    assert (Files(folder).read_json("a.json"), bytes(Files(folder).read("empty.txt"))) == ({"x": 1}, b"")
    (folder / "a.json").write_text("[]")
    files = Files(folder, ["m.safetensors"])
    assert "a.json" not in files
    refuse(r"no digest of 'a\.json'", files.read, "a.json", error=RefusedExport)
    for names in (None, ["a.json"]):
        with pytest.raises(BadInput, match=r"a\.json has changed since the export"):  # one line of every command
            Files(folder, names)
    refuse(r"no digest of 'other'; expected one for each file", Files, folder, ["other"], error=RefusedExport)


@pytest.mark.parametrize("name", ["../a.json", "..", ".", "/etc/passwd", "a\\b", ""])
def test_digests_of_files_elsewhere_are_refused(folder, name):
    (folder / SUMS).write_text(f"{'0' * 64}  {name}\n")
    refuse("is not a digest and a file's name", read_sums, folder, error=RefusedExport)


def test_pipes_and_long_or_binary_digests_are_refused_without_waiting(folder):
    (folder / SUMS).write_bytes(b"\n" * (2**16 + 1))
    refuse(r"SHA256SUMS cannot be read \(more than 65536 bytes\)", read_sums, folder, error=RefusedExport)
    (folder / SUMS).write_bytes(b"\xff")
    refuse(r"SHA256SUMS cannot be read .*utf-8", read_sums, folder, error=RefusedExport)
    write_sums(folder)
    (folder / "a.json").unlink()
    os.mkfifo(folder / "a.json")
    refuse(r"a\.json cannot be read \(not a regular file\)", Files, folder, error=RefusedExport)


def test_weights_become_float32_of_the_same_folder_and_stay_when_the_file_changes(folder):
    weights = read_weights(folder, ["m.safetensors"])["w"]
    (folder / "m.safetensors").write_bytes(b"")
    np.testing.assert_array_equal(weights, np.arange(6, dtype=np.float32).reshape(2, 3))
    assert weights.flags.writeable
    safetensors.numpy.save_file({"w": np.array([0.1, 2], np.float16)}, folder / "m.safetensors")
    write_sums(folder)
    (halves,) = read_weights(folder, ["m.safetensors"]).values()
    assert halves.dtype == np.float32
    np.testing.assert_array_equal(halves, [0.0999755859375, 2])
    safetensors.numpy.save_file({"w": np.zeros(2, np.float64)}, folder / "m.safetensors")
    write_sums(folder)
    refuse("tensor 'w' has the type float64; expected float32 or float16", read_weights, folder, ["m.safetensors"])
    for name in ("../m.safetensors", "a.json"):
        refuse(r"export\.json: .* is not a \.safetensors file of the same folder", read_weights, folder, [name])
