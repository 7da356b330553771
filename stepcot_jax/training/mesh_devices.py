"""Devices of a run over which the parameters are divided too: one program over global arrays with named shardings.

Axis `data` divides the rows of a batch and parameters, axis `model` parameters alone. XLA divides the computation and
adds the communication. Checkpoints hold whole arrays, so that a run resumes on another mesh.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from stepcot_jax.host.errors import BadInput
from stepcot_jax.training.global_batch import GlobalBatch
from stepcot_jax.training.parallel import Devices, make_mesh

DATA, MODEL = "data", "model"


class MeshDevices(Devices):
    """The devices of a run as a mesh."""

    def __init__(
        self,
        place: Callable[[Any, Mesh], Any],
        *,
        num_devices: int = 0,
        model_devices: int = 1,
        num_passes: int = 1,
    ) -> None:
        super().__init__(num_devices=num_devices, num_passes=num_passes)
        # A process loads whole rows, so that all devices of a row must be its own.
        local = self.num_devices // jax.process_count()
        if local % model_devices:
            raise BadInput(
                f"config.parallel.model_devices: {model_devices} is not a divisor of {local}, the devices of a process"
            )
        self.num_data = self.num_devices // model_devices
        self.mesh = make_mesh(self.devices, {DATA: self.num_data, MODEL: model_devices})
        self._place = place

    @property
    def whole(self) -> jax.sharding.Sharding:
        """The sharding of an array that every device holds whole."""
        return NamedSharding(self.mesh, PartitionSpec())

    @property
    def by_row(self) -> jax.sharding.Sharding:
        """The sharding of an array whose rows are divided along `data`."""
        return NamedSharding(self.mesh, PartitionSpec(DATA))

    @property
    def named_mesh(self) -> Mesh | None:
        """The mesh over which parameters are divided."""
        return self.mesh

    @property
    def num_shares(self) -> int:
        """Number of equal shares of a batch."""
        return self.num_data

    def shardings(self, tree: Any) -> Any:
        """Return the sharding of each array of a state."""
        return self._place(tree, self.mesh)

    def compile_update(self, update: Callable[..., Any], *, state: Any, batch: dict[str, Any]) -> Callable[..., Any]:
        """Compile an update to (state, batch) -> (state, metrics); see `Devices.compile_update`."""
        whole = GlobalBatch(None, self.num_passes)
        shapes = {name: self._shape(array, shared=name in self.shared) for name, array in batch.items()}
        run = jax.jit(
            lambda state, batch: update(state, batch, whole),
            donate_argnums=0,
            out_shardings=(self.shardings(state), self.whole),
        )
        return run.lower(state, shapes).compile()
