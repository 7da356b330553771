import json
import os
import pathlib
import subprocess
import sys

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from refusals import refuse

from stepcot_jax.training import devices as parallel
from stepcot_jax.training.devices import AXIS, DATA, Devices, MeshDevices, make_mesh, require_row_order

RING = (0, 1, 1, 0, 3, 2, 2, 3)
"""Simulated processes of eight CPU devices by id: neither in order nor in blocks, as along a TPU's ring."""
SHARDED = {
    "devices": lambda: Devices(),
    "mesh": lambda: MeshDevices(lambda tree, _: tree),
    "mesh, model": lambda: MeshDevices(lambda tree, _: tree, model_devices=2),
}
TOPOLOGIES = ("v5e:2x4", "v5e:4x4", "v5e:4x8", "v6e:4x4", "v5p:2x2x2")
HERE = pathlib.Path(__file__).resolve().parents[1]


@pytest.fixture
def ring(monkeypatch):
    monkeypatch.setattr(parallel, "process_of", lambda device: RING[device.id])
    monkeypatch.setattr(jax, "devices", lambda: jax.local_devices()[::-1])
    parallel.require_row_order.cache_clear()
    yield
    parallel.require_row_order.cache_clear()


def load_by_process(sharding, rows):
    """Place rows as `jax.make_array_from_process_local_data` does: each process its own, by their indices."""
    places, shards = sharding.devices_indices_map(rows.shape), []
    for process, own in enumerate(np.split(rows, 4)):
        devices = [device for device in places if RING[device.id] == process]
        starts = sorted({places[device][0].start or 0 for device in devices})
        parts = dict(zip(starts, np.split(own, len(starts)), strict=True))
        shards += [jax.device_put(parts[places[device][0].start or 0], device) for device in devices]
    return np.asarray(jax.make_array_from_single_device_arrays(rows.shape, sharding, shards))


@pytest.mark.parametrize("name", SHARDED)
def test_rows_come_back_in_the_order_of_the_labels(ring, name):
    devices, rows = SHARDED[name](), np.arange(32)
    require_row_order(devices.by_row, devices.num_shares)
    np.testing.assert_array_equal(load_by_process(devices.by_row, rows), rows)


def test_devices_in_another_order_are_refused_where_rows_are_placed(ring):
    devices, rows = Devices(), np.arange(32)
    devices.mesh = make_mesh(jax.local_devices(), {AXIS: 8})
    assert (load_by_process(devices.by_row, rows) == rows).sum() < len(rows)
    for transform in ("shard_map", "pmap"):
        devices.transform = transform
        with pytest.raises(RuntimeError, match=r"rows of process 0 would lie on .*1.* of process 1"):
            devices.put_training_rows({"labels": rows})
    divided = NamedSharding(make_mesh(jax.local_devices(), {DATA: 4, "model": 2}), PartitionSpec(DATA))
    refuse("in the order of their processes", require_row_order, divided, 4, error=RuntimeError)


def test_gathered_rows_are_in_the_order_of_the_processes(monkeypatch):
    """Processes come in the order of `jax.devices()`, which this library does not choose."""

    def gather(tree, tiled=False):
        assert not tiled
        rows, _ = tree
        return {name: np.stack([leaf + 10, leaf]) for name, leaf in rows.items()}, np.array([1, 0], np.int32)

    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(parallel.multihost_utils, "process_allgather", gather)
    found = Devices.gather_rows(None, {"total": np.arange(6).reshape(3, 2)})
    np.testing.assert_array_equal(found["total"], np.concatenate([np.arange(6), np.arange(6) + 10]).reshape(6, 2))


def look_at_topologies():
    """Print, by topology and kind of devices, the processes along the rows; and whether JAX's own mesh is refused."""
    from jax.experimental import topologies

    found = {}
    for topology in TOPOLOGIES:
        described = topologies.get_topology_desc(platform="tpu", topology_name=topology).devices
        num_processes = len({device.process_index for device in described})
        by_id = sorted(described, key=lambda device: device.id)
        jax.devices = lambda by_id=by_id: by_id
        jax.process_count = lambda number=num_processes: number
        found[topology] = {"processes": num_processes}
        for name, make in SHARDED.items():
            devices = make()
            require_row_order(devices.by_row, devices.num_shares)
            places = devices.by_row.devices_indices_map((devices.num_shares,))
            ordered = sorted(places, key=lambda device: places[device][0].start or 0)
            found[topology][name] = [device.process_index for device in ordered]
        auto = (jax.sharding.AxisType.Auto,)
        of_jax = jax.make_mesh((len(described),), (AXIS,), axis_types=auto, devices=Devices().devices)
        try:
            require_row_order(NamedSharding(of_jax, PartitionSpec(AXIS)), len(described))
            found[topology]["refused"] = False
        except RuntimeError:
            found[topology]["refused"] = True
    print(json.dumps(found))


def test_tpu_topologies_have_rows_in_the_order_of_the_processes():
    folder = os.environ.get("STEPCOT_LIBTPU", "")
    if not folder:
        pytest.skip("needs TPU topologies: STEPCOT_LIBTPU=$(bash .ci/compilers PYTHON tpu)")
    variables = {
        **{name: value for name, value in os.environ.items() if name != "XLA_FLAGS"},
        "JAX_PLATFORMS": "cpu",
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_ACCELERATOR_TYPE": "v5litepod-8",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        "PYTHONPATH": os.pathsep.join([folder, str(HERE), str(HERE.parent)]),
    }
    code = "from training.test_row_order import look_at_topologies; look_at_topologies()"
    done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert set(found) == set(TOPOLOGIES)
    for topology, of in found.items():
        for name in SHARDED:
            assert of[name] == sorted(of[name]), (topology, name)
            assert len(set(of[name])) == of["processes"] > 1
        # JAX's own order, the fault of before: in order by chance on 2x4 alone.
        assert of["refused"] == (topology != "v5e:2x4")
