"""What `main` runs: load the data, build the networks, train, and leave the results of the best weights."""

import contextlib
import dataclasses
import pathlib
import time
from typing import Any

import jax

from stepcot_jax.data.dataset import write_account
from stepcot_jax.data.reading_ahead import ReadAhead
from stepcot_jax.evaluation.evaluator import Predictions, evaluate
from stepcot_jax.features.inputs import load_inputs
from stepcot_jax.features.sharing import Processes
from stepcot_jax.host.errors import make_workdir
from stepcot_jax.host.locks import lock_folder
from stepcot_jax.host.process_memory import release_freed_memory
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.run.feed import Feed
from stepcot_jax.run.results import predict_splits, write_results
from stepcot_jax.run.run_checks import (
    check_annotated,
    check_earlier_run,
    check_same_data,
    check_same_splits,
    explain_disk,
)
from stepcot_jax.run.stored_reading import write_reading
from stepcot_jax.settings.run_settings import Settings, write_settings
from stepcot_jax.systems.building import make_networks, make_objective, make_predict
from stepcot_jax.systems.programs import Programs
from stepcot_jax.training.checkpoints import Best, Checkpoints
from stepcot_jax.training.log import MetricsLog
from stepcot_jax.training.loop import Loop, Phase
from stepcot_jax.training.optimizers import Plateau
from stepcot_jax.training.parallel import Devices
from stepcot_jax.training.preemption import Preemption
from stepcot_jax.training.processes import check_shared, is_first, wait_for_all
from stepcot_jax.training.state import TrainState, count_parameters
from stepcot_jax.training.stored_params import restore_params


class Run:
    """One run of training and evaluation in a workdir.

    Args:
      settings: everything that decides the run.
      workdir: where its files go; made if missing.
    """

    def __init__(self, settings: Settings, workdir: pathlib.Path) -> None:
        self.settings, self.workdir, self.terminal = settings, workdir, Terminal(silent=not is_first())
        self.preemption = Preemption()
        with self.preemption.watch():  # of several processes jax itself would take the signal, and go on
            self._load()

    def _load(self) -> None:
        """Everything that a run needs before it has the workdir to itself."""
        settings, workdir = self.settings, self.workdir
        make_workdir(workdir)
        check_shared(workdir)
        if jax.config.jax_compilation_cache_dir is None:  # type: ignore[attr-defined]
            # A second start finds its programs compiled.
            jax.config.update("jax_compilation_cache_dir", str((workdir / "compilation_cache").resolve()))
        self.names = ("teacher", "student") if settings.job == "distill" else (settings.job,)
        with self._lock():  # a run that has the workdir is told of before anything is loaded
            check_earlier_run(settings, workdir)
        self.started = time.monotonic()
        parallel = settings.parallel
        self.devices = Devices(
            transform=parallel.transform, num_devices=parallel.num_devices, num_passes=parallel.num_passes
        )
        self.devices.check_batch_size(settings.training.batch_size)
        processes = Processes(jax.process_index(), jax.process_count(), wait_for_all)
        self.inputs = load_inputs(settings, workdir, self.terminal, processes=processes)
        wait_for_all("inputs")
        self.dataset = self.inputs.dataset
        self.feed = Feed(settings, self.inputs, self.devices)
        for note in check_annotated(self.dataset):
            self.terminal.say(note)
        networks = make_networks(settings, self.dataset.chain, self.inputs.image_encoder)
        self.programs = Programs(settings, networks, make_objective(settings, self.dataset), self.inputs, self.devices)
        self.predict = make_predict(networks, self.programs.text_features, self.names, whole=self.devices.whole)

    def _lock(self) -> contextlib.AbstractContextManager[None]:
        """Keep other runs out of the workdir; of several processes of this one the first does it for all."""
        return lock_folder(self.workdir) if is_first() else contextlib.nullcontext()

    def execute(self) -> dict[str, Any]:
        """Train (or go on training), evaluate the best weights on the test split, and write `report.json`.

        Returns:
          The report.

        Raises:
          RunStopped: training cannot go on; the last good state is kept.
          Preempted: the run was asked to end, and has saved.
        """
        preemption = self.preemption
        with contextlib.ExitStack() as stack:
            stack.enter_context(preemption.watch())
            stack.enter_context(explain_disk(self.workdir))
            stack.enter_context(self._lock())
            check_earlier_run(self.settings, self.workdir)  # another run may have had the workdir since this one looked
            # Not before the lock: it removes what is half written, which another run may be writing.
            self.checkpoints = Checkpoints(self.workdir / "checkpoints")
            # Its threads would outlive the program and complain.
            stack.callback(self.checkpoints.close)
            if self.checkpoints.latest_step is not None:
                check_same_splits(self.dataset, self.workdir)
            # Compiled before there is a state: a compilation takes more memory than anything else in a run.
            latest = self.checkpoints.latest_step or 0
            phases = self._compile_phases(latest)
            state, progress = self._start()
            wait_for_all("programs")
            step = int(jax.device_get(state.step))
            if step < latest:  # the latest could not be read: phases that seemed to be over may be needed
                phases = self._compile_phases(step)
            self._write_facts()
            seconds_before = 0.0 if progress is None else progress["seconds"]
            metrics = MetricsLog(self.workdir, first_step=step, silent=not is_first())
            stack.callback(metrics.close)
            batches = stack.enter_context(contextlib.closing(self.feed.training_batches()))
            loop = self._make_loop(phases, batches, metrics, preemption, seconds_before)
            with preemption.patience():
                state, best = loop.run(state, progress)
            step = int(jax.device_get(state.step))
            held = {step: state.params}
            del state  # what the optimizers hold is two thirds of it
            return self._finish(step, held, best, metrics, seconds_before)

    def _write_facts(self) -> None:
        """What the workdir says of the run, beside its checkpoints."""
        account = None
        if is_first():
            write_settings(self.workdir / "settings.json", self.settings)
            features, digest = self.inputs.text_features, self.inputs.encoder_digest
            write_reading(self.workdir, self.dataset.chain, features, encoder_digest=digest)
            account = write_account(self.dataset, self.workdir)
        if account:
            self.terminal.say(account)

    def _make_loop(
        self,
        phases: list[Phase],
        batches: ReadAhead,
        metrics: MetricsLog,
        preemption: Preemption,
        seconds_before: float,
    ) -> Loop:
        training = self.settings.training
        return Loop(
            phases=phases,
            batches=batches,
            batches_per_epoch=self.feed.batches_per_epoch,
            prepare=self.feed.put_training_batch,
            text_features=self.programs.text_features,
            validate=self._validate,
            checkpoints=self.checkpoints,
            metrics=metrics,
            terminal=self.terminal,
            chain=self.dataset.chain,
            batch_size=training.batch_size,
            log_every=training.log_every,
            best_by=self.settings.evaluation.best,
            plateau=self._make_plateau(),
            data_digest=self.dataset.digest,
            seconds=lambda: seconds_before + time.monotonic() - self.started,
            checkpoint_seconds=60 * training.checkpoint_minutes,
            asked_to_end=lambda: preemption.asked,
            keep={"settings": dataclasses.asdict(self.settings)},
        )

    def _compile_phases(self, step: int) -> list[Phase]:
        """The phases of the run; those that are over at `step` are not compiled."""
        sizes = {name: f"{count_parameters(tree):,}" for name, tree in self.programs.state_shapes.params.items()}
        self.terminal.say(f"cases: {self.dataset.num_cases}; parameters: {sizes}")
        if self.devices.num_devices > 1:
            self.terminal.say(
                f"devices: {self.devices.num_devices} of {jax.process_count()} processes, by {self.devices.transform}"
            )
        return self.programs.compile_phases(epochs_done=step // self.feed.batches_per_epoch, say=self.terminal.say)

    def _make_plateau(self) -> Plateau | None:
        if self.settings.job != "teacher":
            return None
        training = self.settings.training
        return Plateau(training.plateau_patience, training.plateau_factor, training.plateau_stop)

    def _start(self) -> tuple[TrainState, dict[str, Any] | None]:
        """The state to start from: the latest checkpoint's, or a new one."""
        if self.checkpoints.latest_step is None:
            return self.programs.make_state(), None
        state, progress, warnings = self.checkpoints.restore_latest(self.programs.state_shapes)
        for warning in warnings:
            self.terminal.say(warning)
        check_same_data(self.dataset, progress["data"], self.workdir)
        self.terminal.say(f"going on from step {int(jax.device_get(state.step))}")
        return state, progress

    def _predictions(self, params: Any, split: str) -> Predictions:
        return self.feed.answer(lambda batch: self.predict(params, batch), split)

    def _validate(self, state: TrainState) -> dict[str, float]:
        metrics = evaluate(self._predictions(state.params, "val"), self.dataset.chain)
        return {name: metrics[name].mean_accuracy for name in self.names}

    def _finish(
        self, step: int, held: dict[int, Any], best: dict[str, Best], metrics: MetricsLog, seconds_before: float
    ) -> dict[str, Any]:
        """Predictions of each network's best weights, and what is written of them; `held` are those of `step`."""

        def params_of(name: str) -> Any:
            wanted = best[name].step if name in best else step
            if wanted not in held:
                held.clear()
                release_freed_memory()
                held[wanted] = self.devices.put_whole(restore_params(self.checkpoints.folder, wanted))
            return held[wanted]

        predictions = predict_splits(self.names, params_of, self._predictions)
        wall_seconds = seconds_before + time.monotonic() - self.started
        report: dict[str, Any] = {}
        if is_first():
            report = write_results(
                self.workdir,
                self.dataset,
                predictions,
                best=best,
                wall_seconds=wall_seconds,
                evaluation=self.settings.evaluation,
            )
            numbers = {f"{name}/mean_accuracy": figures["mean_accuracy"] for name, figures in report["test"].items()}
            metrics.write("test", step=step, epoch=step // self.feed.batches_per_epoch - 1, numbers=numbers)
        wait_for_all("report")
        return report
