"""The loader's own reading of files: safetensors, and FlatBuffers where the package is not there."""

import json
import struct

import hypothesis
import hypothesis.extra.numpy as arrays
import hypothesis.strategies as some
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from stepcot_jax.export import exported_programs
from stepcot_jax.host import exported_files

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


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0" * 7,
        struct.pack("<Q", 2**63) + b"{}",
        damaged([]),
        damaged({"a": 1}),
        damaged({"a": {**ENTRY, "dtype": "F7"}}),
        damaged({"a": {**ENTRY, "data_offsets": [0, 16]}}),
        damaged({"a": {**ENTRY, "data_offsets": [-4, 4]}}),
        damaged({"a": {**ENTRY, "data_offsets": [8, 0]}}),
        damaged({"a": {**ENTRY, "shape": [3]}}),
        damaged({"a": {**ENTRY, "shape": [-2, -1]}}),
        damaged({"a": {**ENTRY, "shape": "ab"}}),
    ],
)
def test_damaged_tensors_are_refused(content):
    with pytest.raises(exported_files.RefusedExport, match="tensors cannot be read"):
        dict(exported_files.read_safetensors(memoryview(content)))


def test_tables_are_read_as_the_package_flatbuffers_reads_them():
    pytest.importorskip("flatbuffers")
    import jax._src.export.serialization_generated as generated

    (size,) = jax.export.symbolic_shape("size")
    shapes = ({"b": jax.ShapeDtypeStruct((size, 3), jnp.float32), "a": jax.ShapeDtypeStruct((), jnp.bfloat16)}, None)
    exported = jax.export.export(jax.jit(lambda tree, _: (tree["b"] * 2, [tree["a"]])), platforms=("cpu", "tpu"))
    content = bytearray(exported(*shapes).serialize())
    expected = generated.Exported.GetRootAsExported(content)
    modules = exported_programs._make_flatbuffers()
    fields = {name: member for name, member in vars(generated.Exported).items() if name.endswith(("Length", "AsNumpy"))}
    assert len(fields) > 10
    before, generated.flatbuffers = generated.flatbuffers, modules["flatbuffers"]
    try:
        found = generated.Exported.GetRootAsExported(content)
        numbers = {name: np.asarray(member(found)).tolist() for name, member in fields.items()}
        names = (found.FunctionName(), [found.Platforms(place) for place in range(found.PlatformsLength())])
        version = found.CallingConventionVersion()
    finally:
        generated.flatbuffers = before
    assert numbers == {name: np.asarray(member(expected)).tolist() for name, member in fields.items()}
    assert names == (expected.FunctionName(), [b"cpu", b"tpu"])
    assert version == expected.CallingConventionVersion()
