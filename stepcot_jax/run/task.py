"""The protocol of a run's data and results: chains of answers, or replies.

`Run` does what tasks share: the workdir and its lock, settings.json, devices, compiled updates, checkpoints, resuming
and preemption. A task reads its data in its constructor, which gets the keyword arguments of `training_run.make_task`.
"""

import contextlib
import dataclasses
import functools
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import jax

from stepcot_jax.host.errors import BadInput
from stepcot_jax.training.checkpoints import Best
from stepcot_jax.training.devices import Devices
from stepcot_jax.training.state import Params, TrainState
from stepcot_jax.training.system import Batch, Stream, System

REPORT = "report.json"


@dataclasses.dataclass(frozen=True)
class Outcome:
    """A run whose last phase is over, for `Task.finish`."""

    step: int  # updates of the whole run
    best: Mapping[str, Best]  # by each name that `Task.validate` used, with the step whose checkpoint holds its weights
    params_of: Callable[[str], Params]  # of its best step, else the last, replicated; may free those of an earlier call
    seconds: Callable[[], float]  # that the run has taken, over all its starts
    log: Callable[[Mapping[str, float]], None]  # writes numbers by name to the metrics log, as of the test split

    def step_of(self, name: str) -> int:
        """Return the step of the weights that `params_of` returns."""
        return self.best[name].step if name in self.best else self.step


class Task(Protocol):
    """The data and the results of a run.

    The constructor checks the sizes of batches with `Devices.check_batch_size`, which takes the name of the setting,
    before it reads anything. Every process of a run calls the same methods in the same order, except `write_facts`.

    Attributes:
      contents: the data in a few words, such as "cases, labels or splits".
      batch_size: rows of a global batch, for the throughput in the log.
    """

    contents: str
    workdir: pathlib.Path
    devices: Devices
    system: System
    batch_size: int

    @property
    def digest(self) -> str:
        """The digest of the data; saved with each state."""

    @property
    def example(self) -> Batch:
        """A batch of one row, for `System.init`, which uses its shapes alone."""

    @property
    def batch_shapes(self) -> Batch | None:
        """Shapes of a global batch of `stream`, to compile updates ahead; None: they compile at their first batch."""
        return None

    def stream(self) -> contextlib.AbstractContextManager[Stream]:
        """Open the batches of phases without their own stream; leaving the context closes all streams."""

    def prepare(self, batch: Batch) -> Batch:
        """Return a batch of any phase on the devices, with entries of its `collect`, as a compiled update takes it."""

    def begin(self, state: TrainState) -> TrainState:
        """Return the state before the first update of a new run, with other weights if the task has some."""
        return state

    def validate(self, state: TrainState) -> dict[str, float]:
        """Return scores by name, higher is better; the best weights are kept by name."""

    def pictures(self, step: int) -> Mapping[str, bytes]:  # noqa: ARG002
        """Return PNG files by name for the log, of the validation after `step` updates, in the first process."""
        return {}

    def numbers(self, step: int) -> Mapping[str, float]:  # noqa: ARG002
        """Return further numbers by name for the log, of the validation after `step` updates."""
        return {}

    @property
    def next_commands(self) -> tuple[str, ...]:
        """Commands for a finished run, without "stepcot"; "{workdir}" stands for its folder."""

    @functools.cached_property
    def predict(self) -> Any:
        """The compiled prediction: (params, batch on the devices) -> the same in every process, of all rows."""
        return jax.jit(self.system.predict, out_shardings=self.devices.replicated)

    def describe_data(self) -> str:
        """Return the size of the data in a few words, such as "cases: 60"."""

    def check_same_splits(self) -> None:
        """Refuse to resume with other splits than the workdir records; called before anything is compiled."""

    def check_same_data(self, digest: str) -> None:
        """Refuse to resume on other data; called with the digest of the restored checkpoint."""
        if digest != self.digest:
            raise BadInput(
                f"{self.workdir}: {self.contents} differ from those the run started with; use the same data or a new "
                "workdir"
            )

    def write_facts(self) -> None:
        """Write the files that readers of checkpoints need; the first process calls it, at every start."""

    def finish(self, outcome: Outcome) -> dict[str, Any]:
        """Return the report of the best weights; the first process writes the files."""
