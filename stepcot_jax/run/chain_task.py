"""The task of chains of answers: cases and their labels, and the results of networks that answer every step."""

import contextlib
import dataclasses
import functools
import math
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from stepcot_jax.data.batches import batches_per_epoch
from stepcot_jax.data.dataset import Dataset, write_account
from stepcot_jax.evaluation.gate import Gate, fit_gate, write_gates
from stepcot_jax.evaluation.predictions import Predictions
from stepcot_jax.features.inputs import load_inputs
from stepcot_jax.features.sharing import Processes
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.run.feed import Feed
from stepcot_jax.run.results import NUM_GIVEN, SPLITS, GivenReadings, predict_splits, read_with_given, write_results
from stepcot_jax.run.run_checks import check_annotated, check_same_data, check_same_splits, check_step_costs
from stepcot_jax.run.start import read_warm_start, refuse_seen_cases
from stepcot_jax.run.stored_reading import GATE_FILE, write_reading, write_shapes
from stepcot_jax.run.task import Outcome, Task
from stepcot_jax.run.training_data import describe_cases
from stepcot_jax.settings.run_settings import Settings
from stepcot_jax.systems.grpo import REFERENCE
from stepcot_jax.systems.networks import Networks, read_moments
from stepcot_jax.systems.registry import make_system
from stepcot_jax.systems.step_cot import StepCoT
from stepcot_jax.training.checkpoints import saved_steps
from stepcot_jax.training.devices import Devices
from stepcot_jax.training.processes import is_first, wait_for_all
from stepcot_jax.training.state import TrainState, shapes_by_name
from stepcot_jax.training.system import Batch, Stream

# Fit the gate of each network at the end of a run, on features of its training and validation images.


NUM_IMAGES = 2000
"""Most images of a split that a gate is fitted on."""


def fit_gates(
    feed: Feed, networks: Networks, names: Sequence[str], params_of: Callable[[str], Any], *, false_alarms: float
) -> dict[str, Gate]:
    """Return the gate of each network; none where the validation images are too few for its limit.

    Args:
      names: of the networks; each has an encoder of its own best update, unless the encoder is frozen.
    """
    gates: dict[str, Gate | None] = {}
    for name in reversed(names):  # the last was restored last
        if networks.image_encoder is None and gates:
            gates[name] = next(iter(gates.values()))
            continue
        params = jax.device_get(params_of(name)) if networks.image_encoder is not None else {}
        features = {split: _read_split(feed, networks, params, split) for split in ("train", "val")}
        gates[name] = fit_gate(features["train"], features["val"], false_alarms=false_alarms)
    return {name: gate for name in names if (gate := gates[name]) is not None}


def _read_split(feed: Feed, networks: Networks, params: Any, split: str) -> np.ndarray:
    own = {name: params[name] for name in ("image_encoder",) if name in params}
    parts, size = [], 0
    for batch in feed.sample_batches(split, NUM_IMAGES):
        name = "images" if "images" in batch else "image_features"
        rows = batch[name]
        num_rows, size = len(rows), max(size, len(rows))  # the last batch is padded to the others' size
        rows = np.concatenate([rows, np.zeros((size - num_rows, *rows.shape[1:]), rows.dtype)])
        parts.append(np.asarray(read_moments(own, {name: rows}, networks=networks))[:num_rows])
    return np.concatenate(parts)


class ChainTask(Task):
    """The task of the jobs "teacher", "distill", "baseline" and "chain_grpo"."""

    def __init__(self, settings: Settings, *, workdir: pathlib.Path, devices: Devices, terminal: Terminal) -> None:
        self.settings, self.workdir, self.devices, self.terminal = settings, workdir, devices, terminal
        self.batch_size = settings.training.batch_size
        devices.check_batch_size(self.batch_size)  # before minutes of loading
        is_new = not saved_steps(workdir / "checkpoints")
        self.start = read_warm_start(settings) if settings.start.checkpoint and is_new else None
        processes = Processes(jax.process_index(), jax.process_count(), wait_for_all)
        self.inputs = load_inputs(settings, workdir, terminal, processes=processes)
        self.dataset: Dataset = self.inputs.dataset
        if self.start is not None:
            unchecked = refuse_seen_cases(self.start, settings, self.dataset)
            self.start = dataclasses.replace(self.start, notes=(*self.start.notes, *unchecked))
        check_step_costs(settings, self.dataset.chain)
        notes = check_annotated(self.dataset)
        if settings.job == "baseline" and settings.baseline.steps == "last":  # hidden on purpose
            notes = ["config.baseline.steps='last': trained and scored on the last step alone"]
        for note in notes:
            terminal.say(note)
        self.batches_per_epoch = batches_per_epoch(self.dataset, self.batch_size)
        self.system = make_system(
            settings, self.dataset, self.inputs.image_encoder, batches_per_epoch=self.batches_per_epoch
        )
        self.feed = Feed(settings, self.inputs, devices)

    @property
    def digest(self) -> str:
        """Of cases, labels and splits."""
        return self.dataset.digest

    @property
    def example(self) -> Batch:
        """A batch of one row."""
        return self.feed.example

    @property
    def batch_shapes(self) -> Batch:
        """Shapes of a global training batch."""
        return self.feed.batch_shapes

    @contextlib.contextmanager
    def stream(self) -> Iterator[Stream]:
        """Open the training batches."""
        with contextlib.closing(self.feed.training_batches()) as batches:
            yield Stream(batches, self.batches_per_epoch)

    def prepare(self, batch: Batch) -> Batch:
        """Put a batch on the devices, with the prompts and what was collected."""
        return self.feed.put_training_batch(batch)

    @functools.cached_property
    def predict(self) -> Any:
        """The compiled prediction: (params, batch on the devices) -> padded logits of each network, of all rows."""
        return jax.jit(self.system.predict, out_shardings=self.devices.whole)

    def predictions(self, params: Any, split: str) -> Predictions:
        """Return what the networks answer for a split, the same in every process."""
        return self.feed.answer(lambda batch: self.predict(params, batch), split)

    def begin(self, state: TrainState) -> TrainState:
        """Put in the weights of `start.checkpoint`, and say what was taken over."""
        if self.start is None:
            return state
        matched = self.start.apply(state.params, self.dataset.chain)
        for line in self.start.describe(matched):
            self.terminal.say(line)
        if is_first():
            self.start.write(self.workdir, matched)
        return state.replace(params=self.devices.put_whole(matched.params))

    def validate(self, state: TrainState) -> dict[str, float]:
        """Return the score of each network on the validation split."""
        return self.system.evaluate(self.predictions(state.params, "val"))

    @property
    def next_commands(self) -> tuple[str, ...]:
        """What reads a finished run."""
        if self.settings.job == "baseline":
            return ("report {workdir}",)
        reads_images = self.settings.image_encoder.name != "imported"
        return ("report {workdir}", *(("predict IMAGE --checkpoint={workdir}",) if reads_images else ()))

    def describe_data(self) -> str:
        """Return the number of cases."""
        return f"cases: {self.dataset.num_cases}"

    def check_same_splits(self) -> None:
        """Refuse other splits than those of splits.json."""
        check_same_splits(self.dataset, self.workdir)

    def check_same_data(self, digest: str) -> None:
        """Refuse other cases, labels or splits."""
        check_same_data(self.dataset, digest, self.workdir)

    def write_facts(self) -> None:
        """Write the questions, the prompts' vectors and the account of the cases."""
        features, digest = self.inputs.text_features, self.inputs.encoder_digest
        trained_on = describe_cases(self.settings, self.dataset)
        write_reading(self.workdir, self.dataset.chain, features, encoder_digest=digest, trained_on=trained_on)
        if account := write_account(self.dataset, self.workdir):
            self.terminal.say(account)

    def _read_with_given(self, params_of: Callable[[str], Any]) -> GivenReadings | None:
        """Read some validation and test cases with answers given; None for a system that takes none."""
        if not isinstance(self.system, StepCoT):
            return None
        features = self.inputs.text_features
        shared = {} if features is None else {"text_features": features}
        rows = {split: self.feed.sample_rows(split, NUM_GIVEN) | shared for split in SPLITS}
        return read_with_given(self.system, params_of, rows)

    def _fit_gates(self, params_of: Callable[[str], Any]) -> dict[str, Gate]:
        """Return the gates of the networks that read images; none if no gate is asked for."""
        false_alarms = self.settings.evaluation.gate_false_alarms
        if not false_alarms or not isinstance(self.system, StepCoT) or self.settings.image_encoder.name == "imported":
            return {}
        names = [name for name in self.system.names if name in ("teacher", "student")]
        gates = fit_gates(self.feed, self.system.networks, names, params_of, false_alarms=false_alarms)
        if not gates:
            self.terminal.say(
                f"no gate: config.evaluation.gate_false_alarms={false_alarms:g} needs at least "
                f"{math.ceil(1 / false_alarms - 1e-9) - 1} validation images"
            )
        return gates

    def _write_shapes(self, params: Any) -> None:
        text, width = self.inputs.text_features, self.inputs.example.get("image_features", np.zeros((1, 0))).shape[1]
        inputs = (*(() if text is None else text.shape), width)
        read = {name: part for name, part in params.items() if name != REFERENCE}
        write_shapes(self.workdir, shapes_by_name(read), inputs=inputs)

    def finish(self, outcome: Outcome) -> dict[str, Any]:
        """Predict with each network's best weights; write predictions, calibration, gate, statistics and report."""
        predictions = predict_splits(self.system.names, outcome.params_of, self.predictions)
        given = self._read_with_given(outcome.params_of)
        gates = self._fit_gates(outcome.params_of)
        params = outcome.params_of(self.system.names[0])
        wall_seconds = outcome.seconds()
        if not is_first():
            return {}
        write_gates(self.workdir / GATE_FILE, gates)
        self._write_shapes(params)
        report = write_results(
            self.workdir,
            self.dataset,
            predictions,
            best=outcome.best,
            wall_seconds=wall_seconds,
            evaluation=self.settings.evaluation,
            given=given,
        )
        outcome.log({f"{name}/mean_accuracy": figures["mean_accuracy"] for name, figures in report["test"].items()})
        return report
