"""Devices of a run: run an update written for one device on all of them, and put arrays there.

The state is replicated, and each device has its rows of the batch. `jax.pmap` and `jax.jit` of `jax.shard_map` run the
same per-device function; on one device it is `jax.jit` alone. All three take and return the state as the same
replicated arrays, so that checkpoints do not depend on the devices.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Int

from stepcot_jax.host.errors import BadInput

# Cross-device reductions over the global batch.
#
# An update is written for one device. Every mean spans the global batch: a device divides its sums by the counts of
# all devices, so that losses and gradients of the devices are shares that add up. Where a loss compares every pair of
# cases (channel alignment), rows of all devices are gathered, each device computes the full loss, and its share is
# its part of the rows; the gradient of the gathering sends each row's gradients from all devices to the device that
# holds it.


AXIS = "batch"
"""Name of the axis over the devices."""


@dataclasses.dataclass(frozen=True)
class GlobalBatch:
    """Cross-device reductions over the global batch, for a device that holds some of its rows."""

    axis_name: str | None = None  # over the devices; None where one device has all rows
    num_passes: int = 1  # equal passes over a device's rows; their gradients are added up, which takes less memory

    def first_case(self, num_rows: int) -> Int[Array, ""] | int:
        """Return the position in the global batch of the first of a device's `num_rows` rows."""
        return 0 if self.axis_name is None else num_rows * jax.lax.axis_index(self.axis_name)

    def add_up(self, shares: Any) -> Any:
        """Return the sum of a tree over the devices."""
        return shares if self.axis_name is None else jax.lax.psum(shares, self.axis_name)

    def gather(self, rows: Array) -> Array:
        """Return the rows of all devices, in order."""
        if self.axis_name is None:
            return rows
        return jax.lax.all_gather(rows, self.axis_name, tiled=True)

    def split(self, rows: dict[str, Array]) -> tuple[dict[str, Array], Int[Array, " part"]]:
        """Return a device's rows [pass, row, ...], and the position in the global batch of each pass's first row."""
        num_rows = len(next(iter(rows.values())))
        if num_rows % self.num_passes:
            raise ValueError(f"{num_rows} rows cannot be divided into {self.num_passes} equal passes")
        size = num_rows // self.num_passes
        parts = {name: array.reshape(self.num_passes, size, *array.shape[1:]) for name, array in rows.items()}
        return parts, self.first_case(num_rows) + size * jnp.arange(self.num_passes)


ONE_DEVICE = GlobalBatch()


def differentiate(
    loss: Callable[[Any, dict[str, Array]], tuple[Array, Any]],
    params: Any,
    rows: dict[str, Array],
    global_batch: GlobalBatch,
) -> tuple[Any, Any]:
    """Return the shares of the global batch added up, and the gradients of its loss; passes are added up in float32."""
    gradient = jax.grad(loss, has_aux=True)
    if global_batch.num_passes == 1:
        found, shares = gradient(params, rows)
        gradients = jax.tree.map(lambda leaf: leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32)), found)
    else:
        parts, _ = global_batch.split(rows)
        shapes = jax.eval_shape(gradient, params, jax.tree.map(lambda part: part[0], parts))
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.promote_types(leaf.dtype, jnp.float32)), shapes)

        def one_pass(sums: Any, part: dict[str, Array]) -> tuple[Any, None]:
            found = gradient(params, part)
            return jax.tree.map(lambda total, leaf: total + leaf.astype(total.dtype), sums, found), None

        (gradients, shares), _ = jax.lax.scan(one_pass, zeros, parts)
    return global_batch.add_up((shares, gradients))


Transform = Literal["pmap", "shard_map"]


class Devices:
    """The devices of a run, of all its processes."""

    row_axis = AXIS
    named_mesh: Mesh | None = None  # over which parameters are divided; None where they are replicated

    def __init__(
        self,
        *,
        transform: Transform = "shard_map",
        num_devices: int = 0,
        num_passes: int = 1,
        shared: frozenset[str] = frozenset(),
    ) -> None:
        # In the order of the processes, so that the rows of a batch are in the order in which they are loaded.
        devices = sorted(jax.devices(), key=lambda device: (process_of(device), device.id))
        several = jax.process_count() > 1
        if num_devices > len(devices) or (several and num_devices not in (0, len(devices))):
            expected = (
                f"0 (all) or {len(devices)}, as there are {jax.process_count()} processes"
                if several
                else f"0 (all) to {len(devices)}, the devices of this machine"
            )
            raise BadInput(f"config.parallel.num_devices: {num_devices} is not {expected}")
        self.devices = devices[: num_devices or len(devices)]
        self.transform, self.num_passes, self.shared = transform, num_passes, shared
        self.num_devices = self.num_shares = len(self.devices)  # shares: equal parts of a batch
        # Not by `jax.make_mesh`: on TPUs it reorders the devices into a ring, in which processes alternate.
        self.mesh = make_mesh(self.devices, {AXIS: self.num_devices})

    @property
    def replicated(self) -> jax.sharding.Sharding:
        """The sharding of a replicated array."""
        if self.num_devices == 1 and self.named_mesh is None:
            return jax.sharding.SingleDeviceSharding(self.devices[0])
        return NamedSharding(self.mesh, PartitionSpec())

    @property
    def by_row(self) -> jax.sharding.Sharding:
        """The sharding of an array whose rows are divided among the devices."""
        if self.num_devices == 1 and self.named_mesh is None:
            return self.replicated
        return NamedSharding(self.mesh, PartitionSpec(self.row_axis))

    def shardings(self, tree: Any) -> Any:
        """Return the sharding of each array of a state."""
        return jax.tree.map(lambda _: self.replicated, tree)

    def check_batch_size(self, batch_size: int, *, setting: str = "config.training.batch_size") -> None:
        """Refuse a batch that cannot be divided among devices and passes."""
        parts = self.num_shares * self.num_passes
        if batch_size % parts:
            raise BadInput(
                f"{setting}: {batch_size} is not a multiple of {parts} ({self.num_shares} devices "
                f"x {self.num_passes} passes); config.parallel.num_devices and num_passes change that"
            )

    def replicate(self, tree: Any) -> Any:
        """Replicate host arrays, or arrays of one device, on every device; all processes pass the same arrays."""
        if jax.process_count() == 1:
            return jax.device_put(tree, self.replicated)
        put = jax.make_array_from_process_local_data
        return jax.tree.map(lambda leaf: put(self.replicated, np.asarray(leaf), leaf.shape), tree)

    def put_rows(self, batch: dict[str, Any]) -> dict[str, jax.Array]:
        """Put this process's rows of a batch on the devices, as arrays of all rows; shared entries are replicated."""
        self._require_row_order()
        rows, shared = self._divide(batch)
        if jax.process_count() == 1:
            return jax.device_put(rows, self.by_row) | shared
        put = jax.make_array_from_process_local_data
        return {name: put(self.by_row, np.asarray(array)) for name, array in rows.items()} | shared

    def put_training_rows(self, batch: dict[str, Any]) -> dict[str, jax.Array]:
        """Put rows as `put_rows` does, in the form that a compiled update takes."""
        if not self._is_pmapped:
            return self.put_rows(batch)
        self._require_row_order()
        rows, shared = self._divide(batch)
        num_local = self.num_devices // jax.process_count()
        folded = {name: _fold_rows(np.asarray(array), num_local) for name, array in rows.items()}
        # `pmap` gets only the rows of this process.
        local = [device for device in self.devices if device.process_index == jax.process_index()]
        mesh = make_mesh(local, {AXIS: len(local)})
        return jax.device_put(folded, NamedSharding(mesh, PartitionSpec(AXIS))) | shared

    def _require_row_order(self) -> None:
        if self.num_devices > 1:
            require_row_order(self.by_row, self.num_shares)

    def _divide(self, batch: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        rows = {name: array for name, array in batch.items() if name not in self.shared}
        shared = {name: array for name, array in batch.items() if name in self.shared}
        on_host = {name: array for name, array in shared.items() if not isinstance(array, jax.Array)}
        return rows, shared | self.replicate(on_host)

    def compile_update(self, update: Callable[..., Any], *, state: Any, batch: dict[str, Any]) -> Callable[..., Any]:
        """Compile an update to (state, batch) -> (state, metrics); the state is donated."""
        global_batch = GlobalBatch(None if self.num_devices == 1 else AXIS, self.num_passes)

        def run_on_device(state: Any, batch: dict[str, Any]) -> Any:
            return update(state, batch, global_batch)

        shapes = {name: self._shape(array, shared=name in self.shared) for name, array in batch.items()}
        if self._is_pmapped:
            # None: the state is replicated, before the update and after it.
            axes = {name: None if name in self.shared else 0 for name in batch}
            pmapped = jax.pmap(
                run_on_device, AXIS, in_axes=(None, axes), out_axes=None, devices=self.devices, donate_argnums=0
            )
            if jax.process_count() > 1:
                return self._replicate_after(pmapped)  # compiled at its first call: `lower` needs arrays there
            return pmapped.lower(state, shapes).compile()
        run = run_on_device
        if self.num_devices > 1:
            specs = {name: PartitionSpec() if name in self.shared else PartitionSpec(AXIS) for name in batch}
            # check_vma would divide what `psum` has added up by the number of devices once more.
            run = jax.shard_map(
                run,
                mesh=self.mesh,
                in_specs=(PartitionSpec(), specs),
                out_specs=PartitionSpec(),
                check_vma=False,
            )
        return jax.jit(run, donate_argnums=0).lower(state, shapes).compile()

    def _replicate_after(self, pmapped: Callable[..., Any]) -> Callable[..., Any]:
        """Return a pmapped update of several processes that returns arrays of all devices, as a jitted one does."""

        def to_global(leaf: jax.Array) -> jax.Array:
            shards = [shard.data for shard in leaf.addressable_shards]
            return jax.make_array_from_single_device_arrays(leaf.shape, self.replicated, shards)

        def update(state: Any, batch: dict[str, jax.Array]) -> tuple[Any, Any]:
            state, metrics = pmapped(state, batch)
            return jax.tree.map(to_global, state), metrics

        return update

    @property
    def _is_pmapped(self) -> bool:
        return self.num_devices > 1 and self.transform == "pmap"

    def _shape(self, array: Any, *, shared: bool) -> Any:
        if isinstance(array, jax.Array):
            return array
        if shared:
            return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=self.replicated)
        shape = array.shape
        if self._is_pmapped:
            shape = (self.num_devices, int(shape[0]) // self.num_devices, *shape[1:])
        return jax.ShapeDtypeStruct(shape, array.dtype, sharding=self.by_row)

    def gather_rows(self, rows: Any) -> Any:
        """Return the rows of all processes, in the order of the processes, as host arrays."""
        if jax.process_count() == 1:
            return rows
        # The order of the processes is that of `jax.devices()`, so each sends its index too.
        gathered, processes = multihost_utils.process_allgather((rows, np.array(jax.process_index(), np.int32)))
        order = np.argsort(processes)
        if (processes[order] != np.arange(jax.process_count())).any():
            raise RuntimeError(f"rows of processes {processes.tolist()} were gathered; expected each process once")
        return jax.tree.map(lambda leaf: np.concatenate(leaf[order]), gathered)


def process_of(device: jax.Device) -> int:
    """Return the process that has a device."""
    return device.process_index


def make_mesh(devices: Sequence[jax.Device], axes: Mapping[str, int]) -> Mesh:
    """Return a mesh of devices in the given order."""
    # Auto axes: explicit ones make arrays carry their sharding in their types.
    axis_types = (jax.sharding.AxisType.Auto,) * len(axes)
    return Mesh(np.array(devices).reshape(*axes.values()), tuple(axes), axis_types=axis_types)


@functools.lru_cache
def require_row_order(by_row: jax.sharding.Sharding, num_shares: int) -> None:
    """Check that the shares of a batch lie on the devices in the order of the processes, as labels do."""
    placed = by_row.devices_indices_map((num_shares,))
    processes = sorted({process_of(device) for device in placed})
    for device, (rows,) in placed.items():
        owner = processes[(rows.start or 0) * len(processes) // num_shares]
        if owner != process_of(device):
            raise RuntimeError(
                f"rows of process {owner} would lie on {device} of process {process_of(device)}; "
                "expected devices in the order of their processes"
            )


def _fold_rows(rows: np.ndarray, num_devices: int) -> np.ndarray:
    """[row, ...] -> [device, row of it, ...]."""
    return rows.reshape(num_devices, len(rows) // num_devices, *rows.shape[1:])


# Devices of a run over which parameters are divided too: one program over global arrays with named shardings.
#
# Axis `data` divides the rows of a batch and parameters, axis `model` only parameters. XLA divides the computation
# and adds the communication. Checkpoints hold undivided arrays, so that a run can resume on another mesh.


DATA, MODEL = "data", "model"


class MeshDevices(Devices):
    """The devices of a run as a mesh, of which `model_devices` of a process divide the parameters alone."""

    row_axis = DATA

    def __init__(
        self,
        make_shardings: Callable[[Any, Mesh], Any],
        *,
        num_devices: int = 0,
        model_devices: int = 1,
        num_passes: int = 1,
    ) -> None:
        super().__init__(num_devices=num_devices, num_passes=num_passes)
        # A process loads undivided rows, so all devices of a row must belong to it.
        local = self.num_devices // jax.process_count()
        if local % model_devices:
            raise BadInput(
                f"config.parallel.model_devices: {model_devices} is not a divisor of {local}, the devices of a process"
            )
        self.num_shares = self.num_devices // model_devices
        self.mesh = self.named_mesh = make_mesh(self.devices, {DATA: self.num_shares, MODEL: model_devices})
        self._make_shardings = make_shardings  # (tree, mesh) -> the sharding of each array

    def shardings(self, tree: Any) -> Any:
        """Return the sharding of each array of a state."""
        return self._make_shardings(tree, self.mesh)

    def compile_update(self, update: Callable[..., Any], *, state: Any, batch: dict[str, Any]) -> Callable[..., Any]:
        """Compile an update to (state, batch) -> (state, metrics); see `Devices.compile_update`."""
        global_batch = GlobalBatch(None, self.num_passes)
        shapes = {name: self._shape(array, shared=name in self.shared) for name, array in batch.items()}
        run = jax.jit(
            lambda state, batch: update(state, batch, global_batch),
            donate_argnums=0,
            out_shardings=(self.shardings(state), self.replicated),
        )
        return run.lower(state, shapes).compile()
