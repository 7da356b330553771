"""Devices: how a step function that is written for one of them runs on all, and how arrays get there.

The state lies whole on every device, and each device has its rows of the batch. `jax.pmap` and `jax.jit` of
`jax.shard_map` run the same per-device function; on one device it is `jax.jit` alone. All three take and give the state
as the same replicated arrays, so that checkpoints know nothing of devices.
"""

from collections.abc import Callable
from typing import Any, Literal

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec

from stepcot_jax.host.errors import BadInput
from stepcot_jax.training.global_batch import AXIS, GlobalBatch

Transform = Literal["pmap", "shard_map"]
MakeStep = Callable[[GlobalBatch], Callable[..., Any]]


class Devices:
    """The devices of a run, of all its processes.

    Args:
      transform: what runs the step on several devices, "pmap" or "shard_map".
      num_devices: how many of the devices to use; 0 for all. Several processes use all.
      num_passes: see `GlobalBatch`.

    Raises:
      BadInput: there are not as many devices.
    """

    def __init__(self, *, transform: Transform = "pmap", num_devices: int = 0, num_passes: int = 1) -> None:
        # In the order of the processes, so that the rows of a batch are in the order in which they are read.
        devices = sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
        several = jax.process_count() > 1
        if num_devices > len(devices) or (several and num_devices not in (0, len(devices))):
            raise BadInput(
                f"config.parallel.num_devices: found {num_devices}, accepted are 0 (all)"
                + (f" and {len(devices)}: there are {jax.process_count()} processes" if several else "")
                + ("" if several else f" to {len(devices)}, the devices of this machine")
            )
        self.devices = devices[: num_devices or len(devices)]
        self.transform, self.num_passes = transform, num_passes
        self.num_devices = len(self.devices)
        # Auto axes: `jax.make_mesh` would make explicit ones, whose arrays carry their sharding in their types.
        self.mesh = jax.make_mesh(
            (self.num_devices,), (AXIS,), axis_types=(jax.sharding.AxisType.Auto,), devices=self.devices
        )

    @property
    def whole(self) -> jax.sharding.Sharding:
        """Where an array lies that every device has whole."""
        if self.num_devices == 1:
            return jax.sharding.SingleDeviceSharding(self.devices[0])
        return NamedSharding(self.mesh, PartitionSpec())

    @property
    def by_row(self) -> jax.sharding.Sharding:
        """Where an array lies whose rows are divided among the devices."""
        if self.num_devices == 1:
            return self.whole
        return NamedSharding(self.mesh, PartitionSpec(AXIS))

    def check_batch_size(self, batch_size: int) -> None:
        """Refuse a batch that cannot be divided among devices and passes.

        Raises:
          BadInput: the batch size is no multiple of both.
        """
        parts = self.num_devices * self.num_passes
        if batch_size % parts:
            raise BadInput(
                f"config.training.batch_size: found {batch_size} for {self.num_devices} devices and "
                f"{self.num_passes} passes, accepted are multiples of {parts} (or another config.parallel.num_devices)"
            )

    def put_whole(self, tree: Any) -> Any:
        """A tree of host arrays, or of arrays of one device, on every device; all processes give the same."""
        if jax.process_count() == 1:
            return jax.device_put(tree, self.whole)
        return jax.tree.map(self._put_from_each_process, tree)

    def _put_from_each_process(self, leaf: Any) -> jax.Array:
        return jax.make_array_from_process_local_data(self.whole, np.asarray(leaf), leaf.shape)

    def put_rows(self, batch: dict[str, Any]) -> dict[str, jax.Array]:
        """This process's rows of a batch, as arrays of all rows that lie on the devices."""
        if jax.process_count() == 1:
            return jax.device_put(batch, self.by_row)
        return {
            name: jax.make_array_from_process_local_data(self.by_row, np.asarray(rows)) for name, rows in batch.items()
        }

    def put_training_rows(self, batch: dict[str, Any]) -> dict[str, jax.Array]:
        """As `put_rows`, in the form that the compiled training step takes."""
        if not self._is_pmapped:
            return self.put_rows(batch)
        num_local = self.num_devices // jax.process_count()
        folded = {name: _fold_rows(np.asarray(rows), num_local) for name, rows in batch.items()}
        # Of several processes each gives `pmap` its own rows alone.
        local = [device for device in self.devices if device.process_index == jax.process_index()]
        mesh = jax.sharding.Mesh(np.array(local), (AXIS,))
        return jax.device_put(folded, NamedSharding(mesh, PartitionSpec(AXIS)))

    def compile_step(self, make_step: MakeStep, *, state: Any, batch: dict[str, Any], text_features: Any) -> Any:
        """The training step (state, batch, text features) -> (state, metrics), compiled; the state is donated.

        Args:
          make_step: from the batch that a device sees a part of to the device's function.
          state: the state or its shapes and places.
          batch: shapes of a whole batch.
          text_features: as given to the step; None without text.
        """
        step = make_step(GlobalBatch(None if self.num_devices == 1 else AXIS, self.num_passes))
        if self._is_pmapped:
            batch = {name: self._shape(rows, fold=True) for name, rows in batch.items()}
            # in_axes None: the state is whole on every device, before the step and after it.
            run = jax.pmap(step, AXIS, in_axes=(None, 0, None), out_axes=None, devices=self.devices, donate_argnums=0)
            if jax.process_count() > 1:
                return self._whole_after(run)  # compiled at its first call: `lower` wants arrays there
            return run.lower(state, batch, text_features).compile()
        batch = {name: self._shape(rows, fold=False) for name, rows in batch.items()}
        if self.num_devices > 1:
            # check_vma would divide what `psum` has added up by the number of devices once more.
            whole = PartitionSpec()
            step = jax.shard_map(
                step,
                mesh=self.mesh,
                in_specs=(whole, PartitionSpec(AXIS), whole),
                out_specs=whole,
                check_vma=False,
            )
        return jax.jit(step, donate_argnums=0).lower(state, batch, text_features).compile()

    def _whole_after(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """A pmapped step of several processes, made to give its state as arrays of all devices, as a jitted one does.

        By itself it gives arrays of this process's devices alone.
        """

        def to_whole(leaf: jax.Array) -> jax.Array:
            shards = [shard.data for shard in leaf.addressable_shards]
            return jax.make_array_from_single_device_arrays(leaf.shape, self.whole, shards)

        def step(state: Any, batch: dict[str, jax.Array], text_features: Any) -> tuple[Any, Any]:
            state, metrics = run(state, batch, text_features)
            return jax.tree.map(to_whole, state), metrics

        return step

    @property
    def _is_pmapped(self) -> bool:
        return self.num_devices > 1 and self.transform == "pmap"

    def _shape(self, rows: Any, *, fold: bool) -> jax.ShapeDtypeStruct:
        shape = (self.num_devices, int(rows.shape[0]) // self.num_devices, *rows.shape[1:]) if fold else rows.shape
        return jax.ShapeDtypeStruct(shape, rows.dtype, sharding=self.by_row)

    def gather_rows(self, rows: Any) -> Any:
        """Host arrays of this process's rows -> of all processes' rows, in order."""
        return rows if jax.process_count() == 1 else multihost_utils.process_allgather(rows, tiled=True)


def _fold_rows(rows: np.ndarray, num_devices: int) -> np.ndarray:
    """[row, ...] -> [device, row of it, ...]."""
    return rows.reshape(num_devices, len(rows) // num_devices, *rows.shape[1:])
