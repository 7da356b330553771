import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

from stepcot_jax.training.devices import make_mesh
from stepcot_jax.training.state import put_given


def make_params():
    """Parameters over eight devices, divided along both axes, along one, and whole; and one on a single device."""
    mesh = make_mesh(jax.devices()[:8], {"data": 4, "model": 2})
    specs = {"both": ("data", "model"), "one": (None, "data"), "whole": ()}
    placed = {
        name: jax.device_put(jnp.zeros((4, 8), jnp.float32), NamedSharding(mesh, PartitionSpec(*spec)))
        for name, spec in specs.items()
    }
    alone = jax.device_put(jnp.zeros(3, jnp.bfloat16), jax.devices()[1])
    return {"layer": placed, "alone": alone, "kept": jnp.ones(2)}


def draw():
    rng = np.random.default_rng(0)
    names = ("both", "one", "whole")
    layer = {name: rng.standard_normal((4, 8)).astype(ml_dtypes.bfloat16) for name in names}
    return {"layer": layer, "alone": rng.standard_normal(3).astype(np.float32)}


def test_values_dtypes_and_places():
    params, given = make_params(), draw()
    found = put_given(params, given)
    for name, values in given["layer"].items():
        placed = found["layer"][name]
        np.testing.assert_array_equal(placed, values.astype(np.float32))
        assert (placed.dtype, placed.sharding) == (jnp.float32, params["layer"][name].sharding)
    shares = {name: array.addressable_shards[0].data.shape for name, array in found["layer"].items()}
    assert shares == {"both": (1, 4), "one": (4, 2), "whole": (4, 8)}
    np.testing.assert_array_equal(found["alone"], given["alone"].astype(ml_dtypes.bfloat16))
    assert found["alone"].sharding == SingleDeviceSharding(jax.devices()[1])
    assert found["kept"] is params["kept"]


def test_an_array_is_on_the_devices_before_the_next_is_cast(monkeypatch):
    make, wait, told = jax.make_array_from_callback, jax.block_until_ready, []

    def record_make(*given):
        told.append("sent")
        return make(*given)

    def record_wait(array):
        told.append("awaited")
        return wait(array)

    monkeypatch.setattr(jax, "make_array_from_callback", record_make)
    monkeypatch.setattr(jax, "block_until_ready", record_wait)
    put_given(make_params(), draw())
    assert told == ["sent", "awaited"] * 4


def test_what_does_not_fit_is_named():
    params = make_params()
    with pytest.raises(ValueError, match=r"given: shape \(2,\) does not fit \(3,\)"):
        put_given(params, {"alone": np.zeros(2)})
    with pytest.raises(ValueError, match=r"given: 'other' is not among both, one, whole"):
        put_given(params, {"layer": {"other": np.zeros(2)}})
