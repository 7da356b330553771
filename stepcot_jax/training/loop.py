"""The training loop: phases of epochs, validation after each, the best weights kept, and resuming."""

import dataclasses
import math
import pathlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax

from stepcot_jax.host.errors import BadInput, Preempted, RunStopped
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.training.checkpoints import Best, Checkpoints
from stepcot_jax.training.log import Means, MetricsLog
from stepcot_jax.training.processes import any_process, wait_for_all
from stepcot_jax.training.state import TrainState
from stepcot_jax.training.system import COLLECTED_NUMBERS, Batch, Phase, Stream, System

# The epochs of a run: phases in a row, where an update falls among them, and the positions of their batches.


@dataclasses.dataclass(frozen=True)
class Plan:
    """The epochs of all phases in a row, and where an update count falls among them."""

    phases: Sequence[Phase]
    stream: Stream

    def __post_init__(self) -> None:
        names = [phase.name for phase in self.phases]
        if len(names) > len(set(names)):
            raise ValueError(f"the names of phases must differ; got {names}")

    def stream_of(self, phase: Phase) -> Stream:
        """Return the batches that a phase trains on."""
        return phase.stream or self.stream

    @property
    def streams(self) -> list[Stream]:
        """The distinct streams, in order of first use."""
        distinct: list[Stream] = []
        for phase in self.phases:
            if all(self.stream_of(phase) is not stream for stream in distinct):
                distinct.append(self.stream_of(phase))
        return distinct

    def epochs(self) -> Iterator[tuple[Phase, int]]:
        """Yield each epoch's phase and the updates before the epoch."""
        done = 0
        for phase in self.phases:
            for _ in range(phase.num_epochs):
                yield phase, done
                done += self.stream_of(phase).batches_per_epoch

    def epoch_of(self, step: int) -> int:
        """Return the index of the epoch that update `step` (from 1) belongs to, -1 for 0."""
        return sum(first < step for _, first in self.epochs()) - 1

    def is_over(self, phase: Phase, step: int) -> bool:
        """Return whether `step` updates leave nothing of a phase to do."""
        length = self.stream_of(phase).batches_per_epoch
        return all(first + length <= step for other, first in self.epochs() if other is phase)

    def positions(self) -> Any:
        """Return the positions of the streams, as JSON; with one stream, its position alone."""
        positions = [stream.batches.get_state() for stream in self.streams]
        return positions[0] if len(positions) == 1 else {"streams": positions}

    def restore_positions(self, saved: Any, *, step: int) -> None:
        """Go to the positions that `positions` returned after `step` updates."""
        if not self.streams:  # no phase has an epoch left
            return
        several = isinstance(saved, dict) and set(saved) == {"streams"}
        positions = saved["streams"] if several else [saved]
        begun = [self.stream_of(phase) for phase, first in self.epochs() if first < step]
        added = self.streams[len(positions) :]
        if len(positions) > len(self.streams) or any(stream is other for stream in added for other in begun):
            raise BadInput(
                f"the checkpoint has the positions of {len(positions)} streams of batches, expected "
                f"{len(self.streams)}; use the same phases or a new workdir"
            )
        for stream, position in zip(self.streams, positions, strict=False):
            stream.batches.set_state(position)


# A trace of some updates for XProf: what the device and the host did, and how long each part took.


class Profiler:
    """Traces a range of updates, also of a run that starts within it."""

    def __init__(
        self, folder: pathlib.Path, updates: tuple[int, ...] = (), *, say: Callable[[str], None] = lambda _: None
    ) -> None:
        self._folder, self._say = folder, say
        self._first, self._last = updates or (0, -1)
        self._is_on = False

    def before(self, update: int) -> None:
        """Start the trace at the first update of the range."""
        if not self._is_on and self._first <= update <= self._last:
            jax.profiler.start_trace(str(self._folder))
            self._is_on = True

    def after(self, update: int, results: Any) -> None:
        """Stop the trace after the last update, once its arrays `results` are ready."""
        if self._is_on and update >= self._last:
            jax.block_until_ready(results)
            self.close()

    def close(self) -> None:
        """Stop the trace if it is still on."""
        if self._is_on:
            jax.profiler.stop_trace()
            self._is_on = False
            self._say(f"profile: {self._folder}; open it with: pip install xprof && xprof --logdir={self._folder}")


Compiled = Callable[[TrainState, Batch], tuple[TrainState, Any]]


@dataclasses.dataclass
class Loop:
    """A training run."""

    system: System
    plan: Plan
    compile_update: Callable[[Phase, TrainState, Batch], Compiled]  # takes a batch on the devices, or its shapes
    prepare: Callable[[Batch], Batch]  # a host batch -> the batch of an update, on the devices
    validate: Callable[[TrainState], dict[str, float]]  # score of each network; NaN where it is undefined
    checkpoints: Checkpoints
    metrics: MetricsLog
    terminal: Terminal
    batch_size: int  # for the rate
    log_every: int  # updates between two log entries, the only host synchronisations inside an epoch
    best_by: str = "each"  # keeps the best of each network by its own score; "mean": by the mean over the networks
    data_digest: str = ""  # saved with each state, so that a run cannot resume on other data
    seconds: Callable[[], float] = time.monotonic  # that the run has taken, over all its starts
    checkpoint_seconds: float = math.inf  # between two checkpoints inside an epoch
    asked_to_end: Callable[[], bool] = bool  # whether the run must save and end
    keep: dict[str, Any] = dataclasses.field(default_factory=dict)  # further entries of a checkpoint
    compiled: dict[str, Compiled] = dataclasses.field(default_factory=dict)  # updates compiled ahead, by phase
    profiler: Profiler = dataclasses.field(default_factory=lambda: Profiler(pathlib.Path()))
    pictures: Callable[[int], Mapping[str, bytes]] = lambda _: {}  # updates -> PNG files by name, for the log
    further: Callable[[int], Mapping[str, float]] = lambda _: {}  # updates -> numbers of validation that choose nothing

    def run(self, state: TrainState, progress: dict[str, Any] | None = None) -> tuple[TrainState, dict[str, Best]]:
        """Train to the end of the last phase; return the last state, and the best scores with their steps.

        `progress` is what a checkpoint has beside its state; None at the start of a run.
        """
        step = int(jax.device_get(state.step))
        self._best: dict[str, Best] = {}
        self._scores: dict[str, float] = {}
        self._collected = Means()
        self._saved_at = time.monotonic()
        if progress is not None:
            self._best = {name: Best(**entry) for name, entry in progress["best"].items()}
            self._scores = progress["metrics"]
            self._collected = Means(progress.get("collected"))
            self.plan.restore_positions(progress["batches"], step=step)
        for epoch, (phase, first) in enumerate(self.plan.epochs()):
            length = self.plan.stream_of(phase).batches_per_epoch
            if first + length <= step:
                continue
            if self.system.is_done(state):
                break
            state = self._run_epoch(state, phase, epoch, first, max(step - first, 0))
            state = self._finish_epoch(state, phase, epoch)
        self.profiler.close()
        self.checkpoints.wait()
        self._end_if_asked(int(jax.device_get(state.step)))  # a request after the last check
        return state, self._best

    def _run_epoch(self, state: TrainState, phase: Phase, epoch: int, first: int, done_before: int) -> TrainState:
        stream = self.plan.stream_of(phase)
        length = stream.batches_per_epoch
        pending: list[Any] = []
        start = time.monotonic()
        title = f"epoch {epoch + 1}/{sum(phase.num_epochs for phase in self.plan.phases)} ({phase.name})"
        with self.terminal.bar(title, total=length, done=done_before):
            for done in range(done_before + 1, length + 1):
                self.profiler.before(first + done)
                state, metrics = self._update(state, phase, next(stream.batches))
                self.profiler.after(first + done, metrics)
                pending.append(metrics)
                logged = done % self.log_every == 0 or done == length
                if not logged and not self._ends_now():
                    continue
                numbers = self._read_numbers(pending, first + done)
                if logged:
                    collected = self._collected.pop()
                    if both := sorted(collected.keys() & numbers.keys()):
                        raise ValueError(f"collect and the update both have numbers named {both}; they must differ")
                    numbers |= collected
                    rate = len(pending) * self.batch_size / max(time.monotonic() - start, 1e-9)
                    shown = f"{self.system.describe(numbers)}, {rate:.0f} cases/s"
                    numbers["cases_per_second"] = rate
                    self.metrics.write("train", step=first + done, epoch=epoch, numbers=numbers)
                    self.terminal.update(done, shown)
                start, pending = time.monotonic(), []
                if done < length:  # the end of the epoch saves anyway
                    self._pause(state, first + done)
        return state

    def _update(self, state: TrainState, phase: Phase, batch: Batch) -> tuple[TrainState, Any]:
        if phase.collect is not None:
            batch = dict(phase.collect(state, batch))
            self._collected.add(batch.pop(COLLECTED_NUMBERS, {}))
        batch = self.prepare(batch)
        is_new = phase.name not in self.compiled
        if is_new:
            self.compiled[phase.name] = self.compile_update(phase, state, batch)
        if is_new or phase.collect is not None:  # processes differ in how long that takes, and collectives time out
            wait_for_all("update")
        with jax.transfer_guard("disallow"):  # nothing crosses between host and device but the batch
            return self.compiled[phase.name](state, batch)

    def _ends_now(self) -> bool:
        """Whether to end between two log entries; several processes end only at log entries, where they agree."""
        return jax.process_count() == 1 and self.asked_to_end()

    def _pause(self, state: TrainState, step: int) -> None:
        late = time.monotonic() - self._saved_at > self.checkpoint_seconds
        if any_process(late or self.asked_to_end()):
            self._save(state)
            self._end_if_asked(step)

    def _end_if_asked(self, step: int) -> None:
        if any_process(self.asked_to_end()):
            self.checkpoints.wait()
            raise Preempted(f"step {step}: saved after SIGTERM; the same command resumes from here")

    def _save(self, state: TrainState) -> None:
        if self.checkpoints.latest_step == int(jax.device_get(state.step)):
            return
        progress = {
            **self.keep,
            "batches": self.plan.positions(),
            "data": self.data_digest,
            "seconds": self.seconds(),
            "metrics": self._scores,
        }
        if collected := self._collected.get_state():  # saved between two log entries
            progress["collected"] = collected
        self.checkpoints.save(state, progress, self._best)
        self._saved_at = time.monotonic()

    def _read_numbers(self, pending: Sequence[Any], last_step: int) -> dict[str, float]:
        """Return the numbers of the last pending update; stop the run if any of all pending updates is not finite."""
        numbers: dict[str, float] = {}
        for step, metrics in enumerate(jax.device_get(list(pending)), start=last_step - len(pending) + 1):
            numbers = self.system.numbers(metrics)
            for name, number in numbers.items():
                if not math.isfinite(number):
                    raise self._stop(step, f"{name} is {number}")
        return numbers

    def _stop(self, step: int, what: object) -> RunStopped:
        saved = self.checkpoints.latest_step
        kept = "no checkpoint was saved yet" if saved is None else f"checkpoint {saved} holds the last good state"
        return RunStopped(f"step {step}: {what}; {kept}; a lower learning rate may help")

    def _finish_epoch(self, state: TrainState, phase: Phase, epoch: int) -> TrainState:
        step = int(jax.device_get(state.step))
        try:
            scores = self.validate(state)
        except FloatingPointError as error:
            raise self._stop(step, error) from None
        self._keep_best(scores, step)
        state = self.system.after_epoch(state, scores)
        measure = self.system.score_name
        numbers = {f"{name}/{measure}": score for name, score in scores.items()} | dict(self.further(step))
        self.metrics.write("val", step=step, epoch=epoch, numbers=numbers)
        shown = ", ".join(f"{name} {score:.3f}" for name, score in scores.items())
        for name, png in self.pictures(step).items():
            self.metrics.write_picture(name, png, step=step)
        self.terminal.say(f"epoch {epoch + 1} ({phase.name}): {measure.replace('_', ' ')} on validation: {shown}")
        if self.plan.is_over(phase, step) and (warning := self.system.end_phase(phase.name)):
            self.terminal.say(f"warning: {warning}")
        self._scores = {name: score for name, score in scores.items() if math.isfinite(score)}
        self._save(state)
        self._end_if_asked(step)
        return state

    def _keep_best(self, scores: dict[str, float], step: int) -> None:
        if self.best_by == "mean":
            counted = [score for name, score in scores.items() if name != "plain" or len(scores) == 1]
            scores = dict.fromkeys(scores, sum(counted) / len(counted))
        for name, score in scores.items():
            if math.isfinite(score) and (name not in self._best or score > self._best[name].score):
                self._best[name] = Best(score=score, step=step)
