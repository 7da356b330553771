import itertools
import types

import ml_dtypes
import numpy as np
import pytest

from stepcot_jax.encoders.weights import assign, assign_later, dense_slots
from stepcot_jax.host.errors import BadInput

BFLOAT16 = ml_dtypes.bfloat16
SHAPES = {"qkv": {name: types.SimpleNamespace(shape=shape) for name, shape in (("kernel", (4, 6)), ("bias", (6,)))}}
TABLE = {
    name: place
    for part, letter in enumerate("qkv")
    for name, place in dense_slots(letter, "qkv", part=part, parts=3).items()
}


def draw(dtypes):
    """Tensors of each part in its dtype, in PyTorch's shapes."""
    rng = np.random.default_rng(0)
    shapes = (("weight", (2, 4)), ("bias", (2,)))
    return {
        f"{letter}.{name}": rng.standard_normal(shape).astype(dtype)
        for letter, dtype in zip("qkv", dtypes, strict=True)
        for name, shape in shapes
    }


def fuse(tensors, dtype):
    """The parameters by NumPy alone."""
    weights, biases = ([tensors[f"{letter}.{name}"].astype(dtype) for letter in "qkv"] for name in ("weight", "bias"))
    return {"kernel": np.concatenate(weights).T, "bias": np.concatenate(biases)}


@pytest.mark.parametrize(
    ("dtypes", "expected"),
    [
        ((np.float16, np.float16, np.float16), np.float16),
        ((BFLOAT16, BFLOAT16, BFLOAT16), BFLOAT16),
        ((BFLOAT16, BFLOAT16, np.float32), np.float32),
        ((np.float16, np.float16, BFLOAT16), np.float32),
        ((np.float16, BFLOAT16, np.float64), np.float64),
    ],
)
def test_parts_of_several_dtypes_keep_their_values_in_any_order(dtypes, expected):
    for order in set(itertools.permutations(dtypes)):
        tensors = draw(order)
        found = assign(TABLE, tensors, shapes=SHAPES, dtype=None)["qkv"]
        assert {leaf.dtype for leaf in found.values()} == {np.dtype(expected)}, order
        for name, values in fuse(tensors, np.float64).items():
            np.testing.assert_array_equal(found[name].astype(np.float64), values, err_msg=f"{order} {name}")


def test_values_are_read_when_they_are_asked_for():
    tensors = draw((np.float16, BFLOAT16, np.float16))
    found, expected = assign_later(TABLE, tensors, shapes=SHAPES)["qkv"], fuse(tensors, np.float32)
    for name, values in expected.items():
        assert found[name].shape == values.shape
        np.testing.assert_array_equal(np.asarray(found[name]), values)
        np.testing.assert_array_equal(np.asarray(found[name], np.float64), values.astype(np.float64))
    tensors["k.bias"] = tensors["k.bias"] * 2
    np.testing.assert_array_equal(np.asarray(found["bias"])[2:4], expected["bias"][2:4] * 2)
    tensors["k.bias"] = np.full(2, np.nan)
    with pytest.raises(BadInput, match=r"weights: .* changed since they were checked: k\.bias has values that are not"):
        np.asarray(found["bias"])
    tensors = draw((np.float32, np.float32, np.float32)) | {"v.bias": np.full(2, np.inf), "more": np.zeros(1)}
    del tensors["q.bias"]
    with pytest.raises(BadInput, match=r"unexpected: more\. missing: q\.bias\. wrong: v\.bias has values"):
        assign_later(TABLE, tensors, shapes=SHAPES)
