"""The task of chains of answers: cases with labels, and the results of networks that answer every step."""

import contextlib
import functools
import pathlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from stepcot_jax.data.batches import batches_per_epoch
from stepcot_jax.data.dataset import Dataset, check_same_images, write_account
from stepcot_jax.data.splits.splits import check_manifest, leave_unused_out
from stepcot_jax.evaluation.predictions import Predictions, ValidationPredictions
from stepcot_jax.host.own_folder import save_arrays
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.run.build import make_system
from stepcot_jax.run.inputs import Feed, Inputs, describe_supervision, hides_steps, load_inputs
from stepcot_jax.run.run_checks import check_annotated, check_step_costs
from stepcot_jax.run.settings import Settings
from stepcot_jax.run.stored import (
    GATE_FILE,
    NORMAL_FILE,
    describe_cases,
    write_normal_picture,
    write_reading,
    write_shapes,
)
from stepcot_jax.run.task import Outcome, Task
from stepcot_jax.training.checkpoints import saved_steps
from stepcot_jax.training.devices import Devices
from stepcot_jax.training.processes import is_first
from stepcot_jax.training.state import TrainState, shapes_by_name
from stepcot_jax.training.system import Batch, Stream, System

if TYPE_CHECKING:
    from stepcot_jax.run.start import WarmStart

_READ = frozenset({"images", "image_features", "labels", "index", "present"})
"""Batch entries of the data; a phase's `collect` may add others."""


# The task.


def count_updates(settings: Settings, dataset: Dataset) -> int:
    """Return the number of updates in an epoch."""
    return settings.training.updates_per_epoch or batches_per_epoch(dataset, settings.training.batch_size)


def find_start(settings: Settings, workdir: pathlib.Path) -> "WarmStart | None":
    """Return the run whose weights a new run starts from; None for random weights, and for a run that resumes."""
    if not settings.start.checkpoint or saved_steps(workdir / "checkpoints"):
        return None
    from stepcot_jax.run.start import read_warm_start  # most runs start from random weights

    return read_warm_start(settings)


def load_chain_task(settings: Settings, *, workdir: pathlib.Path, devices: Devices, terminal: Terminal) -> "ChainTask":
    """Return the task of the jobs "teacher", "distill" and "baseline", with its data loaded."""
    devices.check_batch_size(settings.training.batch_size)  # before minutes of loading
    start = find_start(settings, workdir)
    inputs = load_inputs(settings, workdir, terminal)

    def make(view: Inputs) -> System:
        length = count_updates(settings, view.dataset)
        return make_system(settings, view.dataset, view.image_encoder, batches_per_epoch=length)

    return ChainTask(settings, inputs, make, start=start, workdir=workdir, devices=devices, terminal=terminal)


class ChainTask(Task):
    """Trains a system on cases and writes its predictions; only `finish` reads the test split's labels and pictures.

    `make` returns the system from the inputs without the test split. Settings of system and data only describe it.
    """

    contents = "cases, labels or splits (splits.json)"

    def __init__(
        self,
        settings: Settings,
        inputs: Inputs,
        make: Callable[[Inputs], System],
        *,
        start: "WarmStart | None",
        workdir: pathlib.Path,
        devices: Devices,
        terminal: Terminal,
    ) -> None:
        self.settings, self.workdir, self.devices, self.terminal = settings, workdir, devices, terminal
        self.batch_size = settings.training.batch_size
        devices.check_batch_size(self.batch_size)
        check_step_costs(settings, inputs.dataset.chain)
        notes = check_annotated(inputs.dataset)
        if hides_steps(settings):
            notes = []
        for note in filter(None, (describe_supervision(settings), *notes)):
            terminal.say(note)
        self.start = start and start.refuse_seen_cases(settings, inputs.dataset)
        self.inputs, self._test = inputs.hold_out()
        self.system = make(self.inputs)
        self.dataset: Dataset = self.inputs.dataset
        self.batches_per_epoch = count_updates(settings, self.dataset)
        self.feed = Feed(settings, self.inputs, devices)

    @functools.cached_property
    def digest(self) -> str:
        """The digest of cases, labels and splits."""
        return self.open_test().inputs.dataset.digest

    def open_test(self) -> Feed:
        """Return the feed of all splits, for the final evaluation and for digests of the data."""
        return Feed(self.settings, self._test.open_test(), self.devices)

    @property
    def example(self) -> Batch:
        """A batch of one row."""
        return self.inputs.example | self.inputs.text

    @property
    def batch_shapes(self) -> Batch:
        """Shapes of a global training batch."""
        rows = self.inputs.example
        shapes = {
            name: jax.ShapeDtypeStruct((self.batch_size, *row.shape[1:]), row.dtype) for name, row in rows.items()
        }
        return shapes | self.feed.shared

    @contextlib.contextmanager
    def stream(self) -> Iterator[Stream]:
        """Open the training batches."""
        with contextlib.closing(self.feed.training_batches()) as batches:
            yield Stream(batches, self.batches_per_epoch)

    def prepare(self, batch: Batch) -> Batch:
        """Return a batch on the devices, with the prompts and collected entries."""
        collected = {name: array for name, array in batch.items() if name not in _READ}
        return self.devices.put_training_rows(self.inputs.prepare(batch) | self.feed.shared | collected)

    def predictions(self, params: Any, split: str, feed: Feed | None = None) -> Predictions:
        """Return the networks' predictions for a split, the same in every process."""
        return (feed or self.feed).answer(lambda batch: self.predict(params, batch), split)

    def begin(self, state: TrainState) -> TrainState:
        """Return the state with the weights of `start.checkpoint`, if there is one, and report which were copied."""
        if self.start is None:
            return state
        matched = self.start.apply(state.params, self.dataset.chain)
        for line in self.start.describe(matched):
            self.terminal.say(line)
        if is_first():
            self.start.write(self.workdir, matched)
        return state.replace(params=self.devices.replicate(matched.params))

    def validate(self, state: TrainState) -> dict[str, float]:
        """Return the score of each network on the validation split."""
        return self.system.evaluate(self.predictions(state.params, "val"))

    @property
    def next_commands(self) -> tuple[str, ...]:
        """Commands that read a finished run."""
        if self.dataset.chain.is_tree:  # readers and pages show chains
            return ()
        return ("report {workdir}", *(("predict IMAGE --checkpoint={workdir}",) if self._reads_pictures else ()))

    @property
    def _reads_pictures(self) -> bool:
        """Whether a finished run answers pictures."""
        return self.system.takes_given and self.settings.image_encoder.name != "imported"

    def describe_data(self) -> str:
        """Return the number of cases."""
        return f"cases: {self.dataset.num_cases}"

    def check_same_splits(self) -> None:
        """Refuse other splits than those of splits.json, and other pictures than those of images.sha256."""
        dataset = self.open_test().inputs.dataset
        check_same_images(dataset, self.workdir)
        splits, cases = leave_unused_out(dataset.splits, dataset.cases)
        check_manifest(self.workdir / "splits.json", splits, cases, set_aside=dataset.set_aside)

    def write_facts(self) -> None:
        """Write the questions, the prompts' vectors and the account of the cases."""
        features, digest = self.inputs.text_features, self.inputs.encoder_digest
        trained_on = describe_cases(self.settings, self.dataset)
        write_reading(self.workdir, self.dataset.chain, features, encoder_digest=digest, trained_on=trained_on)
        if account := write_account(self.open_test().inputs.dataset, self.workdir):
            self.terminal.say(account)

    def _write_shapes(self, params: Any) -> None:
        text, width = self.inputs.text_features, self.inputs.example.get("image_features", np.zeros((1, 0))).shape[1]
        inputs = (*(() if text is None else text.shape), width)
        write_shapes(self.workdir, shapes_by_name(params), inputs=inputs)

    def finish(self, outcome: Outcome) -> dict[str, Any]:
        """Predict with the best weights; write predictions, choices, statistics and report."""
        from stepcot_jax.evaluation.joint_fit import read_written_back  # for the end of a run alone
        from stepcot_jax.run import results

        chain, evaluation = self.dataset.chain, self.settings.evaluation
        predict = functools.partial(results.predict, self.system, self.predictions, outcome)
        if chain.is_tree:
            report = results.finish_tree(
                outcome,
                self.workdir,
                self.dataset,
                evaluation.num_resamples,
                lambda split: predict(split, self.feed if split == "val" else self.open_test(), lambda *_: None)[0],
            )
            params = outcome.params_of(self.system.names[0])
            if is_first():
                self._write_shapes(params)
            return report
        answers, written = predict(
            "val", self.feed, lambda read, labels: read_written_back(read, labels, chain.answers_per_step)
        )
        validated = results.Validated(ValidationPredictions(answers.predictions, answers.facts), written)
        false_alarms, say = evaluation.gate_false_alarms, self.terminal.say
        gates = results.fit_gates(self.feed, self.system, outcome.params_of, false_alarms=false_alarms, say=say)
        chosen = results.choose(self.dataset, validated, evaluation)
        measure_rival = results.fit_rival(self.feed, self.system, outcome.params_of)
        opened = self.open_test()  # after every choice on training and validation cases
        test, readers = predict("test", opened, lambda read, labels: (read, labels))
        given = results.measure_given(readers, chosen, chain)
        params = outcome.params_of(self.system.names[0])
        wall_seconds = outcome.seconds()
        if not is_first():
            return {}
        save_arrays(self.workdir / GATE_FILE, gates)
        if self._reads_pictures and (picture := results.mean_normal_picture(self.dataset)) is not None:
            write_normal_picture(self.workdir / NORMAL_FILE, picture)
        self._write_shapes(params)
        report = results.write_results(
            self.workdir,
            self.dataset,
            validated=validated,
            chosen=chosen,
            test=test,
            given=given,
            rival=measure_rival and measure_rival(opened, test),
            best=outcome.best,
            wall_seconds=wall_seconds,
            evaluation=evaluation,
        )
        outcome.log({f"{name}/mean_accuracy": figures["mean_accuracy"] for name, figures in report["test"].items()})
        return report
