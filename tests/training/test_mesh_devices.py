import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from refusals import refuse

from stepcot_jax.host.errors import BadInput
from stepcot_jax.training.devices import ONE_DEVICE, MeshDevices


def divide_all(tree, mesh):
    return jax.tree.map(lambda leaf: NamedSharding(mesh, PartitionSpec("model", "data")), tree)


def test_an_update_over_divided_arrays():
    devices = MeshDevices(divide_all, num_devices=8, model_devices=4)
    assert dict(devices.named_mesh.shape) == {"data": 2, "model": 4}
    weights = np.arange(32, dtype=np.float32).reshape(8, 4)
    rows = {"x": np.linspace(0, 1, 32, dtype=np.float32).reshape(4, 8)}

    def update(state, batch, whole):
        loss = jnp.mean((batch["x"] @ state) ** 2)
        return state - jnp.float32(0.1) * batch["x"].T @ batch["x"] @ state, {"loss": whole.add_up(loss)}

    expected, numbers = update(jnp.asarray(weights), jax.tree.map(jnp.asarray, rows), ONE_DEVICE)
    state = jax.device_put(weights, devices.shardings(weights))
    placed = devices.put_training_rows(rows)
    assert placed["x"].sharding.spec == PartitionSpec("data")
    after, found = devices.compile_update(update, state=state, batch=placed)(state, placed)
    np.testing.assert_allclose(after, expected, rtol=1e-5)
    np.testing.assert_allclose(found["loss"], numbers["loss"], rtol=1e-5)
    assert [shard.data.shape for shard in after.addressable_shards] == [(2, 2)] * 8


def test_what_cannot_be_divided():
    with pytest.raises(BadInput, match="model_devices: 3 is not a divisor of 8, the devices of a process"):
        MeshDevices(divide_all, num_devices=8, model_devices=3)
    devices = MeshDevices(divide_all, num_devices=8, model_devices=2, num_passes=2)
    devices.check_batch_size(8)
    refuse("12 is not a multiple of 8", devices.check_batch_size, 12)
