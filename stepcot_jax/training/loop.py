"""The only training loop: phases of epochs, validation after each, the best kept, and a way back in."""

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import jax
import numpy as np

from stepcot_jax.chain import Chain
from stepcot_jax.errors import RunStopped
from stepcot_jax.terminal import Terminal
from stepcot_jax.training.checkpoints import Best, Checkpoints
from stepcot_jax.training.log import MetricsLog
from stepcot_jax.training.optimizers import Plateau, scale_learning_rate
from stepcot_jax.training.state import TrainState
from stepcot_jax.training.steps import StepFunction, StepMetrics


class BatchIterator(Protocol):
    """Training batches with a position that can be saved and restored."""

    def __next__(self) -> dict[str, Any]:
        """The next batch."""
        ...

    def get_state(self) -> Any:
        """The position, as JSON or bytes."""
        ...

    def set_state(self, state: Any) -> None:
        """Go to a position."""
        ...


@dataclasses.dataclass(frozen=True)
class Phase:
    """A stretch of epochs with one compiled step.

    Attributes:
      name: "teacher" or "joint".
      num_epochs: how many epochs it lasts.
      step: the step function; its state argument is donated.
    """

    name: str
    num_epochs: int
    step: StepFunction


@dataclasses.dataclass
class Loop:
    """A training run.

    Attributes:
      phases: in order.
      batches: endless training batches.
      batches_per_epoch: length of an epoch.
      prepare: a batch as it comes -> what a step function takes, on the device.
      text_features: [step, width], constant over the run; None without text.
      validate: state -> mean step accuracy of each network, 0 to 1.
      checkpoints: where states are kept.
      metrics: where numbers go.
      terminal: where a person looks.
      chain: names the steps in logs and errors.
      batch_size: cases in a batch, for the rate.
      log_every: batches between two looks at the losses, the only host synchronisation inside an epoch.
      best_by: "each" keeps the best of each network by its own accuracy, "mean" by the mean over the networks.
      plateau: rate and early-stopping schedule on the teacher's accuracy; None for none.
      data_digest: of the cases, kept beside each state, so that a resumed run finds the same ones.
      seconds: how long the run has taken, over all its starts.
    """

    phases: Sequence[Phase]
    batches: BatchIterator
    batches_per_epoch: int
    prepare: Callable[[dict[str, Any]], dict[str, jax.Array]]
    text_features: jax.Array | None
    validate: Callable[[TrainState], dict[str, float]]
    checkpoints: Checkpoints
    metrics: MetricsLog
    terminal: Terminal
    chain: Chain
    batch_size: int
    log_every: int
    best_by: str = "each"
    plateau: Plateau | None = None
    data_digest: str = ""
    seconds: Callable[[], float] = time.monotonic

    def run(self, state: TrainState, progress: dict[str, Any] | None = None) -> tuple[TrainState, dict[str, Best]]:
        """Train from `state` to the end of the last phase.

        Args:
          state: where to start; it is donated.
          progress: what a checkpoint kept beside the state; None at the start of a run.

        Returns:
          The last state, and the best score of each network with the step whose checkpoint holds its weights.

        Raises:
          RunStopped: a loss is not finite; the checkpoints hold the last good state.
        """
        self._best: dict[str, Best] = {}
        if progress is not None:
            self._best = {name: Best(**entry) for name, entry in progress["best"].items()}
            self.batches.set_state(progress["batches"])
            if self.plateau is not None:
                self.plateau = dataclasses.replace(self.plateau, **progress["plateau"])
        first_epoch = int(state.step) // self.batches_per_epoch
        for epoch, phase in enumerate(self._epochs()):
            if epoch < first_epoch:
                continue
            if self.plateau is not None and self.plateau.stops:
                break
            state = self._run_epoch(state, phase, epoch)
            state = self._finish_epoch(state, phase, epoch)
        self.checkpoints.wait()
        return state, self._best

    def _epochs(self) -> Iterator[Phase]:
        for phase in self.phases:
            for _ in range(phase.num_epochs):
                yield phase

    def _run_epoch(self, state: TrainState, phase: Phase, epoch: int) -> TrainState:
        num_epochs = sum(each.num_epochs for each in self.phases)
        step = epoch * self.batches_per_epoch
        pending: list[StepMetrics] = []
        start = time.monotonic()
        with self.terminal.bar(f"epoch {epoch + 1}/{num_epochs} ({phase.name})", total=self.batches_per_epoch):
            for done in range(1, self.batches_per_epoch + 1):
                batch = next(self.batches)
                state, metrics = phase.step(state, self.prepare(batch), self.text_features)
                pending.append(metrics)
                if len(pending) < self.log_every and done < self.batches_per_epoch:
                    continue
                numbers = self._look(pending, step + done)
                rate = len(pending) * self.batch_size / max(time.monotonic() - start, 1e-9)
                start, pending = time.monotonic(), []
                self.metrics.write(
                    "train", step=step + done, epoch=epoch, numbers={**numbers, "cases_per_second": rate}
                )
                self.terminal.update(done, _note(numbers, rate))
        return state

    def _look(self, pending: Sequence[StepMetrics], last_step: int) -> dict[str, float]:
        """The numbers of the last of the pending steps, after a check that those of all are finite."""
        numbers: dict[str, float] = {}
        for step, metrics in enumerate(jax.device_get(list(pending)), start=last_step - len(pending) + 1):
            numbers = named_numbers(metrics, self.chain)
            for name, number in numbers.items():
                if not math.isfinite(number):
                    raise RunStopped(f"step {step}: {name} is {number}; {self._last_good()}")
        return numbers

    def _last_good(self) -> str:
        saved = self.checkpoints.latest_step
        kept = "no checkpoint was saved yet" if saved is None else f"checkpoint {saved} holds the last good state"
        return f"{kept}; a lower learning rate may help"

    def _finish_epoch(self, state: TrainState, phase: Phase, epoch: int) -> TrainState:
        """Validate, move the schedule on, and save."""
        step = int(state.step)
        try:
            scores = self.validate(state)
        except FloatingPointError as error:
            raise RunStopped(f"step {step}: {error}; {self._last_good()}") from None
        if self.best_by == "mean":
            mean = sum(scores.values()) / len(scores)
            ranked = dict.fromkeys(scores, mean)
        else:
            ranked = scores
        for name, score in ranked.items():
            if math.isfinite(score) and (name not in self._best or score > self._best[name].score):
                self._best[name] = Best(score=score, step=step)
        if self.plateau is not None:
            self.plateau = self.plateau.after_epoch(scores["teacher"])
            rescaled = scale_learning_rate(state.optimizers["teacher"], self.plateau.rate_factor)
            state = state.replace(optimizers={**state.optimizers, "teacher": rescaled})
        self.metrics.write("val", step=step, epoch=epoch, numbers={f"{n}/mean_accuracy": s for n, s in scores.items()})
        shown = ", ".join(f"{name} {100 * score:.1f} %" for name, score in scores.items())
        self.terminal.say(f"epoch {epoch + 1} ({phase.name}): mean step accuracy on validation: {shown}")
        progress = {
            "batches": self.batches.get_state(),
            "data": self.data_digest,
            "seconds": self.seconds(),
            "plateau": None if self.plateau is None else self.plateau.to_dict(),
        }
        self.checkpoints.save(state, progress, self._best)
        return state


def named_numbers(metrics: StepMetrics, chain: Chain) -> dict[str, float]:
    """The numbers of a step by name, such as "student/soft_label/Diagnosis"; parts come before totals."""
    numbers: dict[str, float] = {}
    totals: dict[str, float] = {}
    for network in ("teacher", "student"):
        parts = getattr(metrics, network)
        if parts is None:
            continue
        for part in ("hard_label", "soft_label", "channel_alignment", "alignment_weight"):
            values = getattr(parts, part)
            if values is not None:
                for step, value in zip(chain.steps, np.asarray(values), strict=True):
                    numbers[f"{network}/{part}/{step.name}"] = float(value)
                totals[f"{network}/{part}"] = float(np.sum(values))
        totals[f"{network}/total"] = float(parts.total)
    norms = {f"{network}/gradient_norm": float(norm) for network, norm in metrics.gradient_norms.items()}
    return {**numbers, **totals, **norms}


def _note(numbers: dict[str, float], rate: float) -> str:
    """Loss parts and rate in a few words, for the progress bar."""
    short = {"hard_label": "CE", "soft_label": "KD", "channel_alignment": "CH"}
    words = []
    for network in ("teacher", "student"):
        parts = [f"{short[p]} {numbers[f'{network}/{p}']:.3f}" for p in short if f"{network}/{p}" in numbers]
        if parts:
            words.append(f"{network} {' '.join(parts)}")
    return f"{', '.join(words)}, {rate:.0f} cases/s"
