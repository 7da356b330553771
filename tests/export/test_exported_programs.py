"""Programs of an export: FlatBuffers are read where the package is not installed."""

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

from stepcot_jax.export import exported_programs


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
