"""The protocol of what a run trains: Step-CoT, a baseline, a policy, or a system of your own.

The loop does what they share: positions, finite checks, logging, checkpoints, the best weights, preemption and
resuming. It knows no network and no loss. `tests/training/test_system.py` has a system in 40 lines.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax
from jaxtyping import Array

from stepcot_jax.training.devices import GlobalBatch
from stepcot_jax.training.state import Params, TrainState

Batch = dict[str, Any]
"""Arrays by name, one row a case, and those that all cases share (`System.shared`)."""

Update = Callable[[TrainState, Batch, GlobalBatch], tuple[TrainState, Any]]
"""One device's update: (state, its rows of the batch, how devices reduce) -> (state with step + 1, metrics)."""


COLLECTED_NUMBERS = "numbers"
"""Batch entry of a phase's `collect` for the log alone: numbers by name, such as {"reward/answer": 0.5}."""


class BatchIterator(Protocol):
    """Endless training batches on the host, with a position that can be saved and restored."""

    def __next__(self) -> Batch:
        """Return the next batch."""

    def get_state(self) -> Any:
        """Return the position, as JSON."""

    def set_state(self, state: Any) -> None:
        """Go to a position that `get_state` returned."""


@dataclasses.dataclass(frozen=True)
class Stream:
    """Training batches and the length of an epoch.

    Attributes:
      batches: endless.
      batches_per_epoch: updates in an epoch.
    """

    batches: BatchIterator
    batches_per_epoch: int


@dataclasses.dataclass(frozen=True)
class Phase:
    """Epochs that share one compiled update.

    Attributes:
      name: for logs, such as "joint".
      num_epochs: length of the phase.
      update: pure; compiled once for all devices.
      stream: batches of this phase; None for those of the run.
      collect: (state, batch) -> batch, on the host before each update and before the transfer guard; may sample from
        the networks, call judges or draw from a key folded with `state.step`. None passes the batch on. An entry
        `COLLECTED_NUMBERS` does not reach the update: the log gets its means over the updates since the last entry,
        without NaN. Of several processes the log has the numbers of the first.
    """

    name: str
    num_epochs: int
    update: Update
    stream: Stream | None = None
    collect: Callable[[TrainState, Batch], Batch] | None = None


class System(Protocol):
    """What a run trains. Subclass it: the methods with a body are optional.

    Attributes:
      names: the networks that `predict` answers for; scores and best weights are kept by these names.
      score_name: what `evaluate` returns, for logs, such as "mean_accuracy".
      shared: names of batch entries that all cases share, such as prompts; they are replicated.
      reads_prompts: whether batches must have "text_features" [step, width].
      takes_given: whether `given_reader` lets networks read given answers instead of their own.
      gated: networks for which a gate is fitted, on the features that `moments` returns.
    """

    names: tuple[str, ...]
    score_name: str = "score"
    shared: frozenset[str] = frozenset()
    reads_prompts: bool = False
    takes_given: bool = False
    gated: tuple[str, ...] = ()

    def init(self, key: Array, example: Batch) -> TrainState:
        """Return the state before the first update, a function of `key`; of `example` only shapes matter."""

    def phases(self) -> Sequence[Phase]:
        """Return the phases of the run, in order."""

    def predict(self, params: Params, batch: Batch) -> dict[str, Array]:
        """Return the predictions of each network of `names`, [case, ...]."""

    def evaluate(self, predictions: Any) -> dict[str, float]:
        """Return the score of each network, by which the best weights are chosen; higher is better."""

    def given_reader(self, name: str, params: Params, batch: Batch) -> Callable[[Any], Any]:  # noqa: ARG002
        """Return a function from given answers [variant, case, step, answer] to logits; only with `takes_given`."""
        raise TypeError(f"{name} takes no given answers")

    def moments(self, params: Params, batch: Batch) -> Any:  # noqa: ARG002
        """Return the features of the gate, [case, feature]; only with `gated`. Parameters not needed may be missing."""
        return None

    def after_epoch(self, state: TrainState, scores: dict[str, float]) -> TrainState:  # noqa: ARG002
        """Return the state for the next epoch: learning-rate schedules, curricula."""
        return state

    def end_phase(self, name: str) -> str:  # noqa: ARG002
        """Return a warning about the phase that ends, in one line; "" for none."""
        return ""

    def is_done(self, state: TrainState) -> bool:  # noqa: ARG002
        """Return whether training ends before its last epoch."""
        return False

    def numbers(self, metrics: Any) -> dict[str, float]:
        """Return the numbers of an update by name, for logs; the loop stops at one that is not finite."""
        return {name: float(number) for name, number in jax.device_get(metrics).items()}

    def describe(self, numbers: dict[str, float]) -> str:
        """Return the numbers worth watching in a few words, for the progress bar."""
        return ", ".join(f"{name} {number:.3f}" for name, number in list(numbers.items())[:4])
