"""What `main` runs: load the data, build the networks, train, evaluate the best on the test split, report."""

import contextlib
import json
import logging
import pathlib
import time
from typing import Any

import jax
import numpy as np

from stepcot_jax.batches import Batches, batches_per_epoch, evaluation_batches, iterate, training_batches
from stepcot_jax.data.dataset import write_account
from stepcot_jax.data.reading_ahead import ReadAhead
from stepcot_jax.data.splits import check_manifest
from stepcot_jax.errors import BadInput, make_workdir
from stepcot_jax.evaluation.evaluator import ModelMetrics, Predictions, collect, evaluate
from stepcot_jax.evaluation.tables import format_table, report_dict, write_report
from stepcot_jax.inputs import load_inputs
from stepcot_jax.process_memory import release_freed_memory
from stepcot_jax.programs import Programs
from stepcot_jax.settings import Settings, changed_keys, read_settings, write_settings
from stepcot_jax.systems import make_networks, make_objective, make_predict
from stepcot_jax.terminal import Terminal
from stepcot_jax.training.checkpoints import Best, Checkpoints, saved_steps
from stepcot_jax.training.log import MetricsLog
from stepcot_jax.training.loop import Loop, Phase
from stepcot_jax.training.optimizers import Plateau
from stepcot_jax.training.state import TrainState, count_parameters

_LOGGER = logging.getLogger(__name__)


class Run:
    """One run of training and evaluation in a workdir.

    Args:
      settings: everything that decides the run.
      workdir: where its files go; made if missing.
    """

    def __init__(self, settings: Settings, workdir: pathlib.Path) -> None:
        self.settings, self.workdir, self.terminal = settings, workdir, Terminal()
        make_workdir(workdir)
        if jax.config.jax_compilation_cache_dir is None:  # type: ignore[attr-defined]
            # A second start finds its programs compiled.
            jax.config.update("jax_compilation_cache_dir", str((workdir / "compilation_cache").resolve()))
        self.names = ("teacher",) if settings.job == "teacher" else ("teacher", "student")
        if saved_steps(workdir / "checkpoints"):
            if not settings.resume:
                raise BadInput(
                    f"{workdir}: found checkpoints of an earlier run, accepted are a new workdir or config.resume=True"
                )
            self._check_unchanged(workdir / "settings.json")
        self.started = time.monotonic()
        self.inputs = load_inputs(settings, workdir, self.terminal)
        self.dataset = self.inputs.dataset
        self._check_annotated()
        networks = make_networks(settings, self.dataset.chain, self.inputs.image_encoder)
        self.programs = Programs(settings, networks, make_objective(settings, self.dataset), self.inputs)
        self.predict = make_predict(networks, self.inputs.text_features, self.names)
        self.checkpoints = Checkpoints(workdir / "checkpoints")

    def _check_annotated(self) -> None:
        """Refuse data that nothing can be learned from or chosen by; name the steps that are never trained."""
        labels = self.dataset.labels
        counts = {
            name: (labels[np.asarray(indices, int)] >= 0).sum(axis=0)
            for name, indices in self.dataset.splits.by_name().items()
        }
        for name in ("train", "val"):
            if not counts[name].any():
                raise BadInput(
                    f"{self.dataset.splits_source}: found no annotated answer in the {name} split, accepted is at "
                    "least one"
                )
        for step, num_train in zip(self.dataset.chain.steps, counts["train"], strict=True):
            if not num_train:
                self.terminal.say(f"note: nobody answered {step.name!r} in the train split; it is not trained")

    def _check_unchanged(self, path: pathlib.Path) -> None:
        changed = changed_keys(read_settings(path), self.settings)
        if changed:
            raise BadInput(
                f"{path}: found other values than now for {', '.join(changed)}; accepted are the same settings as when "
                "the run started (or a new workdir)"
            )

    def execute(self) -> dict[str, Any]:
        """Train (or go on training), evaluate the best weights on the test split, and write `report.json`.

        Returns:
          The report.
        """
        try:
            self._check_splits()
            # Compiled before there is a state: a compilation takes more memory than anything else in a run.
            phases = self._compile_phases()
            state, progress = self._start()
        except BaseException:
            self.checkpoints.close()  # its threads would outlive the program and complain
            raise
        write_settings(self.workdir / "settings.json", self.settings)
        account = write_account(self.dataset, self.workdir)
        if account:
            self.terminal.say(account)
        seconds_before = 0.0 if progress is None else progress["seconds"]
        metrics = MetricsLog(self.workdir, first_step=int(state.step))
        batches = self._training_batches()
        loop = Loop(
            phases=phases,
            batches=batches,
            batches_per_epoch=batches_per_epoch(self.dataset, self.settings.training.batch_size),
            prepare=self.inputs.prepare,
            text_features=self.inputs.text_features,
            validate=self._validate,
            checkpoints=self.checkpoints,
            metrics=metrics,
            terminal=self.terminal,
            chain=self.dataset.chain,
            batch_size=self.settings.training.batch_size,
            log_every=self.settings.training.log_every,
            best_by=self.settings.evaluation.best,
            plateau=self._make_plateau(),
            data_digest=self.dataset.digest,
            seconds=lambda: seconds_before + time.monotonic() - self.started,
        )
        try:
            state, best = loop.run(state, progress)
            step, params = int(state.step), state.params
            del state  # what the optimizers hold is two thirds of it
            results = self._test(step, params, best)
            wall_seconds = seconds_before + time.monotonic() - self.started
            return self._report(results, best, wall_seconds, metrics, step)
        finally:
            batches.close()
            metrics.close()
            self.checkpoints.close()

    def _training_batches(self) -> ReadAhead:
        batches = training_batches(
            self.dataset,
            batch_size=self.settings.training.batch_size,
            seed=self.settings.seed,
            sampling=self.settings.data.sampling,
            augment=self.settings.data.augment == "light",
        )
        return self._iterate(batches)

    def _iterate(self, batches: Batches) -> ReadAhead:
        """Workers read what is decoded; features made ahead are only looked up, which threads do at once."""
        data = self.settings.data
        num_workers = data.num_workers if self.dataset.features is None else 0
        return iterate(batches, num_threads=data.num_threads, num_workers=num_workers)

    def _compile_phases(self) -> list[Phase]:
        """The phases of the run; those that are over already are not compiled."""
        sizes = {name: f"{count_parameters(tree):,}" for name, tree in self.programs.state_shapes.params.items()}
        self.terminal.say(f"cases: {self.dataset.num_cases}; parameters: {sizes}")
        num_batches = batches_per_epoch(self.dataset, self.settings.training.batch_size)
        epochs_done = (self.checkpoints.latest_step or 0) // num_batches
        return self.programs.compile_phases(epochs_done=epochs_done, say=self.terminal.say)

    def _make_plateau(self) -> Plateau | None:
        if self.settings.job != "teacher":
            return None
        training = self.settings.training
        return Plateau(training.plateau_patience, training.plateau_factor, training.plateau_stop)

    def _check_splits(self) -> None:
        """Refuse to go on with other splits than the run began with."""
        if self.checkpoints.latest_step is not None:
            check_manifest(
                self.workdir / "splits.json", self.dataset.splits, self.dataset.cases, set_aside=self.dataset.set_aside
            )

    def _start(self) -> tuple[TrainState, dict[str, Any] | None]:
        """The state to start from: the latest checkpoint's, or a new one."""
        if self.checkpoints.latest_step is None:
            return self.programs.make_state(), None
        state, progress = self.checkpoints.restore(self.programs.state_shapes)
        if progress["data"] != self.dataset.digest:
            raise BadInput(
                f"{self.workdir}: found other cases, labels or splits than when the run started, accepted are the same "
                f"(splits.json there says which they were) or a new workdir"
            )
        self.terminal.say(f"going on from step {int(state.step)}")
        return state, progress

    def _predictions(self, params: Any, split: str) -> Predictions:
        batches = evaluation_batches(self.dataset, split, batch_size=self.settings.evaluation.batch_size)
        with contextlib.closing(self._iterate(batches)) as read:
            return collect(lambda batch: self.predict(params, self.inputs.prepare(batch)), read)

    def _validate(self, state: TrainState) -> dict[str, float]:
        metrics = evaluate(self._predictions(state.params, "val"), self.dataset.chain)
        return {name: metrics[name].mean_accuracy for name in self.names}

    def _test(self, step: int, params: Any, best: dict[str, Best]) -> dict[str, ModelMetrics]:
        """Figures of each network on the test split, with the weights that were best on validation."""
        results, last_step = {}, step
        for name in self.names:
            release_freed_memory()
            wanted = best[name].step if name in best else last_step
            if wanted != step:
                step, params = wanted, None
                params = self.checkpoints.restore(self.programs.state_shapes, step)[0].params
            metrics = evaluate(self._predictions(params, "test"), self.dataset.chain)
            results[name] = metrics[name]
        return results

    def _report(
        self,
        results: dict[str, ModelMetrics],
        best: dict[str, Best],
        wall_seconds: float,
        metrics: MetricsLog,
        step: int,
    ) -> dict[str, Any]:
        report = report_dict(metrics=results, num_cases=self.dataset.num_cases, wall_seconds=wall_seconds)
        report["best"] = {name: {"step": entry.step, "validation_score": entry.score} for name, entry in best.items()}
        write_report(self.workdir / "report.json", report)
        numbers = {f"{name}/mean_accuracy": result.mean_accuracy for name, result in results.items()}
        metrics.write(
            "test",
            step=step,
            epoch=step // batches_per_epoch(self.dataset, self.settings.training.batch_size) - 1,
            numbers=numbers,
        )
        print(format_table(results))
        print(f"\n{wall_seconds:.0f} s; written to {self.workdir / 'report.json'}")
        _LOGGER.debug("report: %s", json.dumps(report))
        return report
