"""The only training loop: phases of epochs, validation after each, the best kept, and a way back in."""

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import jax

from stepcot_jax.chain import Chain
from stepcot_jax.host.errors import Preempted, RunStopped
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.systems.updates import StepFunction, StepMetrics
from stepcot_jax.training.checkpoints import Best, Checkpoints
from stepcot_jax.training.log import MetricsLog
from stepcot_jax.training.numbers import describe_losses, named_numbers
from stepcot_jax.training.optimizers import Plateau, scale_learning_rate
from stepcot_jax.training.processes import any_process
from stepcot_jax.training.state import TrainState


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
      name: "teacher", "joint" or "baseline".
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
      prepare: a batch as it comes -> what a step function takes, on the devices.
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
      checkpoint_seconds: time between two checkpoints inside an epoch.
      asked_to_end: whether the run is to save and end.
      keep: what else a checkpoint keeps, such as the settings.
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
    checkpoint_seconds: float = math.inf
    asked_to_end: Callable[[], bool] = bool
    keep: dict[str, Any] = dataclasses.field(default_factory=dict)

    def run(self, state: TrainState, progress: dict[str, Any] | None = None) -> tuple[TrainState, dict[str, Best]]:
        """Train from `state` to the end of the last phase.

        Args:
          state: where to start; it is donated.
          progress: what a checkpoint kept beside the state; None at the start of a run.

        Returns:
          The last state, and the best score of each network with the step whose checkpoint holds its weights.

        Raises:
          RunStopped: a loss or a gradient is not finite, or a checkpoint cannot be written; the checkpoints hold the
            last good state.
          Preempted: the run was asked to end, and has saved.
        """
        self._best: dict[str, Best] = {}
        self._scores: dict[str, float] = {}
        self._saved_at = time.monotonic()
        if progress is not None:
            self._best = {name: Best(**entry) for name, entry in progress["best"].items()}
            self._scores = progress["metrics"]
            self.batches.set_state(progress["batches"])
            if self.plateau is not None:
                self.plateau = dataclasses.replace(self.plateau, **progress["plateau"])
        first_epoch, done = divmod(int(jax.device_get(state.step)), self.batches_per_epoch)
        for epoch, phase in enumerate(self._epochs()):
            if epoch < first_epoch:
                continue
            if self.plateau is not None and self.plateau.stops:
                break
            state = self._run_epoch(state, phase, epoch, done if epoch == first_epoch else 0)
            state = self._finish_epoch(state, phase, epoch)
        self.checkpoints.wait()
        self._end_if_asked(int(jax.device_get(state.step)))  # whoever asked after the last look
        return state, self._best

    def _epochs(self) -> Iterator[Phase]:
        for phase in self.phases:
            for _ in range(phase.num_epochs):
                yield phase

    def _run_epoch(self, state: TrainState, phase: Phase, epoch: int, done_before: int) -> TrainState:
        num_epochs, length = sum(each.num_epochs for each in self.phases), self.batches_per_epoch
        first = epoch * length
        pending: list[StepMetrics] = []
        start = time.monotonic()
        title = f"epoch {epoch + 1}/{num_epochs} ({phase.name})"
        with self.terminal.bar(title, total=length, done=done_before):
            for done in range(done_before + 1, length + 1):
                batch = self.prepare(next(self.batches))
                with jax.transfer_guard("disallow"):  # nothing crosses between host and device but the batch
                    state, metrics = phase.step(state, batch, self.text_features)
                pending.append(metrics)
                logged = done % self.log_every == 0 or done == length
                if not logged and not self._ends_now():
                    continue
                numbers = self._look(pending, first + done)
                if logged:
                    rate = len(pending) * self.batch_size / max(time.monotonic() - start, 1e-9)
                    numbers["cases_per_second"] = rate
                    self.metrics.write("train", step=first + done, epoch=epoch, numbers=numbers)
                    self.terminal.update(done, describe_losses(numbers, rate))
                start, pending = time.monotonic(), []
                if done < length:  # what ends the epoch comes first
                    self._pause(state, first + done)
        return state

    def _ends_now(self) -> bool:
        """Whether to end between two log entries; several processes agree, at log entries, on where to end."""
        return jax.process_count() == 1 and self.asked_to_end()

    def _pause(self, state: TrainState, step: int) -> None:
        """Save inside an epoch where it is time to, or where the run is to end."""
        late = time.monotonic() - self._saved_at > self.checkpoint_seconds
        if any_process(late or self.asked_to_end()):
            self._save(state)
            self._end_if_asked(step)

    def _end_if_asked(self, step: int) -> None:
        if any_process(self.asked_to_end()):
            self.checkpoints.wait()
            raise Preempted(f"step {step}: asked to end (SIGTERM), saved; the same command goes on from here")

    def _save(self, state: TrainState) -> None:
        if self.checkpoints.latest_step == int(jax.device_get(state.step)):
            return
        progress = {
            **self.keep,
            "batches": self.batches.get_state(),
            "data": self.data_digest,
            "seconds": self.seconds(),
            "plateau": None if self.plateau is None else self.plateau.to_dict(),
            "metrics": self._scores,
        }
        self.checkpoints.save(state, progress, self._best)
        self._saved_at = time.monotonic()

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
        step = int(jax.device_get(state.step))
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
        self._scores = {name: score for name, score in scores.items() if math.isfinite(score)}
        self._save(state)
        self._end_if_asked(step)
        return state
