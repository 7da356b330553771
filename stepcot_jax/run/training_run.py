"""One run: load the data, build the system, train, and leave the results of the best weights."""

import contextlib
import dataclasses
import functools
import pathlib
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax

from stepcot_jax.data.batches import batches_per_epoch
from stepcot_jax.data.dataset import write_account
from stepcot_jax.evaluation.evaluator import Predictions
from stepcot_jax.features.inputs import load_inputs
from stepcot_jax.features.sharing import Processes
from stepcot_jax.host.errors import make_workdir
from stepcot_jax.host.locks import lock_folder
from stepcot_jax.host.process_memory import release_freed_memory
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.run.feed import Feed
from stepcot_jax.run.results import NUM_GIVEN, SPLITS, GivenReadings, predict_splits, read_with_given, write_results
from stepcot_jax.run.run_checks import (
    check_annotated,
    check_earlier_run,
    check_same_data,
    check_same_splits,
    check_step_costs,
    explain_disk,
)
from stepcot_jax.run.stored_reading import write_reading
from stepcot_jax.settings.run_settings import Settings, load_settings, write_settings
from stepcot_jax.systems.registry import make_system
from stepcot_jax.systems.step_cot import StepCoT
from stepcot_jax.training.checkpoints import Best, Checkpoints
from stepcot_jax.training.epochs import Plan
from stepcot_jax.training.log import MetricsLog
from stepcot_jax.training.loop import Compiled, Loop
from stepcot_jax.training.parallel import Devices
from stepcot_jax.training.processes import Preemption, check_shared, is_first, wait_for_all
from stepcot_jax.training.state import TrainState, count_parameters
from stepcot_jax.training.stored_params import restore_params
from stepcot_jax.training.system import Batch, Phase, Stream


class Run:
    """One run of training and evaluation in a workdir.

    Args:
      settings: everything that decides the run; or the name of a shipped config, or the path of a config file.
      workdir: where its files go; made if missing.
      **overrides: settings to change, full names without "config." -> values.

    Raises:
      BadInput: the workdir holds another run, or settings, data or weights cannot be used.
    """

    def __init__(self, settings: Settings | str | pathlib.Path, workdir: str | pathlib.Path, **overrides: Any) -> None:
        if isinstance(settings, Settings):
            settings = load_settings(dataclasses.asdict(settings), **overrides) if overrides else settings
        else:
            settings = load_settings(settings, **overrides)
        self.settings = settings
        self.workdir, self.terminal = pathlib.Path(workdir), Terminal(silent=not is_first())
        self.preemption = Preemption()
        with self.preemption.watch():  # of several processes jax itself would take the signal, and go on
            self._load()

    def _load(self) -> None:
        """Load everything that a run needs before it has the workdir to itself."""
        settings, workdir = self.settings, self.workdir
        make_workdir(workdir)
        check_shared(workdir)
        if jax.config.jax_compilation_cache_dir is None:  # type: ignore[attr-defined]
            # A second start finds its programs compiled.
            jax.config.update("jax_compilation_cache_dir", str((workdir / "compilation_cache").resolve()))
        with self._lock():  # a workdir in use is refused before anything is loaded
            check_earlier_run(settings, workdir)
        self.started = time.monotonic()
        parallel = settings.parallel
        self.devices = Devices(
            transform=parallel.transform, num_devices=parallel.num_devices, num_passes=parallel.num_passes
        )
        self.devices.check_batch_size(settings.training.batch_size)  # before minutes of loading
        processes = Processes(jax.process_index(), jax.process_count(), wait_for_all)
        self.inputs = load_inputs(settings, workdir, self.terminal, processes=processes)
        wait_for_all("inputs")
        self.dataset = self.inputs.dataset
        check_step_costs(settings, self.dataset.chain)
        for note in check_annotated(self.dataset):
            self.terminal.say(note)
        self.batches_per_epoch = batches_per_epoch(self.dataset, settings.training.batch_size)
        self.system = make_system(
            settings, self.dataset, self.inputs.image_encoder, batches_per_epoch=self.batches_per_epoch
        )
        self.devices.shared = self.system.shared
        self.feed = Feed(settings, self.inputs, self.devices)

    def _lock(self) -> contextlib.AbstractContextManager[None]:
        """Keep other runs out of the workdir; of several processes of this one the first does it for all."""
        return lock_folder(self.workdir) if is_first() else contextlib.nullcontext()

    def execute(self) -> dict[str, Any]:
        """Train or resume, evaluate the best weights on the test split, and write `report.json`.

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
            check_earlier_run(self.settings, self.workdir)  # another run may have had the workdir meanwhile
            # Not before the lock: it removes what is half written, which another run may be writing.
            self.checkpoints = Checkpoints(self.workdir / "checkpoints")
            # Its threads would outlive the program and complain.
            stack.callback(self.checkpoints.close)
            if self.checkpoints.latest_step is not None:
                check_same_splits(self.dataset, self.workdir)
            batches = stack.enter_context(contextlib.closing(self.feed.training_batches()))
            plan = Plan(self.system.phases(), Stream(batches, self.batches_per_epoch))
            self._say_sizes()
            # Compiled before there is a state: a compilation takes more memory than anything else in a run.
            latest = self.checkpoints.latest_step or 0
            compiled = self._compile_ahead(plan, latest, {})
            state, progress = self._start()
            wait_for_all("programs")
            step = int(jax.device_get(state.step))
            if step < latest:  # the latest could not be restored: phases that seemed to be over may be needed
                compiled = self._compile_ahead(plan, step, compiled)
            self._write_facts()
            seconds_before = 0.0 if progress is None else progress["seconds"]
            metrics = MetricsLog(self.workdir, first_step=step, silent=not is_first())
            stack.callback(metrics.close)
            loop = self._make_loop(plan, compiled, metrics, seconds_before)
            with preemption.patience():
                state, best = loop.run(state, progress)
            step = int(jax.device_get(state.step))
            held = {step: state.params}
            del state  # what the optimizers hold is two thirds of it
            return self._finish(plan, step, held, best, metrics, seconds_before)

    def _say_sizes(self) -> None:
        sizes = {name: f"{count_parameters(tree):,}" for name, tree in self.state_shapes.params.items()}
        self.terminal.say(f"cases: {self.dataset.num_cases}; parameters: {sizes}")
        if self.devices.num_devices > 1:
            self.terminal.say(
                f"devices: {self.devices.num_devices} of {jax.process_count()} processes, by {self.devices.transform}"
            )

    def _write_facts(self) -> None:
        """Write what the workdir says of the run, beside its checkpoints."""
        account = None
        if is_first():
            write_settings(self.workdir / "settings.json", self.settings)
            features, digest = self.inputs.text_features, self.inputs.encoder_digest
            write_reading(self.workdir, self.dataset.chain, features, encoder_digest=digest)
            account = write_account(self.dataset, self.workdir)
        if account:
            self.terminal.say(account)

    def _make_loop(self, plan: Plan, compiled: dict[str, Compiled], metrics: MetricsLog, seconds_before: float) -> Loop:
        training = self.settings.training
        return Loop(
            system=self.system,
            plan=plan,
            compile_update=self._compile,
            prepare=self.feed.put_training_batch,
            validate=self._validate,
            checkpoints=self.checkpoints,
            metrics=metrics,
            terminal=self.terminal,
            batch_size=training.batch_size,
            log_every=training.log_every,
            best_by=self.settings.evaluation.best,
            data_digest=self.dataset.digest,
            seconds=lambda: seconds_before + time.monotonic() - self.started,
            checkpoint_seconds=60 * training.checkpoint_minutes,
            asked_to_end=lambda: self.preemption.asked,
            keep={"settings": dataclasses.asdict(self.settings)},
            compiled=compiled,
        )

    def _compile_ahead(self, plan: Plan, step: int, compiled: Mapping[str, Compiled]) -> dict[str, Compiled]:
        """Compile the updates of the phases that `step` updates leave to do; others compile at their first batch."""
        todo = [
            phase
            for phase in plan.phases
            if phase.collect is None
            and phase.stream is None
            and phase.name not in compiled
            and not plan.is_over(phase, step)
        ]
        shapes = self.feed.batch_shapes
        return {**compiled, **{phase.name: self._compile(phase, self.state_shapes, shapes) for phase in todo}}

    def _compile(self, phase: Phase, state: Any, batch: Batch) -> Compiled:
        self.terminal.say(f"compiling the {phase.name} update")
        compiled = self.devices.compile_update(phase.update, state=state, batch=batch)
        release_freed_memory()
        return compiled

    @functools.cached_property
    def state_shapes(self) -> TrainState:
        """Shapes, types and places of the state, to compile for and to restore to before there is one."""
        place = self.devices.whole
        shapes = jax.eval_shape(self._init)
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place), shapes)

    def _init(self) -> TrainState:
        return self.system.init(jax.random.key(self.settings.seed), self.feed.example)

    def _start(self) -> tuple[TrainState, dict[str, Any] | None]:
        """Return the state to start from: the latest checkpoint's, or a new one, a function of the seed."""
        if self.checkpoints.latest_step is None:
            state = jax.block_until_ready(jax.jit(self._init, out_shardings=self.devices.whole)())
            release_freed_memory()
            return state, None
        state, progress, warnings = self.checkpoints.restore_latest(self.state_shapes)
        for warning in warnings:
            self.terminal.say(warning)
        check_same_data(self.dataset, progress["data"], self.workdir)
        self.terminal.say(f"resuming from step {int(jax.device_get(state.step))}")
        return state, progress

    @functools.cached_property
    def predict(self) -> Any:
        """The compiled prediction: (params, batch on the devices) -> padded logits of each network, of all rows."""
        return jax.jit(self.system.predict, out_shardings=self.devices.whole)

    def _predictions(self, params: Any, split: str) -> Predictions:
        return self.feed.answer(lambda batch: self.predict(params, batch), split)

    def _validate(self, state: TrainState) -> dict[str, float]:
        return self.system.evaluate(self._predictions(state.params, "val"))

    def _read_with_given(self, params_of: Callable[[str], Any]) -> GivenReadings | None:
        """Read some validation and test cases with answers given; None for a system that takes none."""
        if not isinstance(self.system, StepCoT):
            return None
        features = self.inputs.text_features
        shared = {} if features is None else {"text_features": features}
        rows = {split: self.feed.sample_rows(split, NUM_GIVEN) | shared for split in SPLITS}
        return read_with_given(self.system, params_of, rows)

    def _finish(
        self,
        plan: Plan,
        step: int,
        held: dict[int, Any],
        best: dict[str, Best],
        metrics: MetricsLog,
        seconds_before: float,
    ) -> dict[str, Any]:
        """Predict with each network's best weights and write the results; `held` has the parameters of `step`."""

        def params_of(name: str) -> Any:
            wanted = best[name].step if name in best else step
            if wanted not in held:
                held.clear()
                release_freed_memory()
                held[wanted] = self.devices.put_whole(restore_params(self.checkpoints.folder, wanted))
            return held[wanted]

        predictions = predict_splits(self.system.names, params_of, self._predictions)
        given = self._read_with_given(params_of)
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
                given=given,
            )
            numbers = {f"{name}/mean_accuracy": figures["mean_accuracy"] for name, figures in report["test"].items()}
            metrics.write("test", step=step, epoch=plan.epoch_of(step), numbers=numbers)
        wait_for_all("report")
        return report
