"""One run: load its task, train in phases, resume, and write the results of the best weights."""

import contextlib
import dataclasses
import functools
import importlib.util
import json
import pathlib
import re
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax

from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.extras import find_extra
from stepcot_jax.host.files import read_json, write_whole
from stepcot_jax.host.machine import compile_seconds, release_freed_memory, use_compilation_cache
from stepcot_jax.host.terminal import Terminal, name_command
from stepcot_jax.host.text import install_extra, one_line
from stepcot_jax.host.untrusted import resolve
from stepcot_jax.run.given import Given, write_given
from stepcot_jax.run.places import Place, check_judge
from stepcot_jax.run.run_checks import check_earlier_run, describe_longer, explain_disk, remove_results
from stepcot_jax.run.sections import LoggerSettings, ParallelSettings
from stepcot_jax.run.settings import PATH_KEYS, Settings, flatten_settings, load_settings, write_settings
from stepcot_jax.run.task import Outcome, Task
from stepcot_jax.training.checkpoints import Best, Checkpoints, restore_params, saved_steps
from stepcot_jax.training.devices import Devices, MeshDevices
from stepcot_jax.training.log import Logger, MetricsLog
from stepcot_jax.training.loop import Compiled, Loop, Plan, Profiler
from stepcot_jax.training.processes import Preemption, is_first, wait_for_all
from stepcot_jax.training.state import TrainState, count_parameters
from stepcot_jax.training.system import Batch, Phase, System

# Further loggers of a run: opened by name from the extras, guarded, resumed by the ids in `loggers.json`.


_PRIVATE = frozenset({*PATH_KEYS, "rewards.judge_url"})  # an address may have a password
_PASSWORD = re.compile(r"//[^/@\s]*@")  # of an address, which libraries quote in their errors


def check_loggers(settings: LoggerSettings) -> None:
    """Refuse loggers whose packages are missing, before anything is loaded."""
    for name in settings.names:
        if importlib.util.find_spec(find_extra("writer", name, packages=name).package) is None:
            raise BadInput(f"config.loggers.names: {name!r} is not installed: {install_extra(name)}")


def open_loggers(
    workdir: pathlib.Path, settings: Settings, *, name: str = "", say: Callable[[str], None]
) -> list[Logger]:
    """Return the loggers of the settings; those that cannot be opened are reported and left out."""
    path, loggers = workdir / "loggers.json", list[Logger]()
    ids = read_json(path, dict[str, str], accepted="expected the ids of a run's loggers") if path.is_file() else {}
    options = settings.loggers
    title = options.run or name or resolve(workdir).name
    for logger in options.names:
        guarded = _Guarded(logger, say)
        with guarded.guard("cannot be opened"):
            guarded.logger = find_extra("writer", logger, packages=logger)(
                workdir,
                project=options.project,
                title=title,
                is_offline=options.mode == "offline",
                run_id=ids.get(logger),
                settings=describe_settings(settings),
            )
            ids[logger] = guarded.logger.id
            write_whole(path, (json.dumps(ids) + "\n").encode())
            say(f"{logger}: {guarded.logger.place}")
            loggers.append(guarded)
    return loggers


def describe_settings(settings: Settings) -> dict[str, Any]:
    """Return the settings by full name without "config.", leaving out paths and addresses."""
    return {name: value for name, value in flatten_settings(settings).items() if name not in _PRIVATE}


class _Guarded:
    """A logger that stops at its first failure, which it reports once, and never stops the run."""

    def __init__(self, name: str, say: Callable[[str], None]) -> None:
        self.logger: Any = None
        self._name, self._say = name, say

    def write(self, numbers: Mapping[str, float], *, step: int) -> None:
        if self.logger is not None:
            with self.guard("no longer gets numbers"):
                self.logger.write(numbers, step=step)

    def close(self) -> None:
        logger, self.logger = self.logger, None
        if logger is not None:
            with self.guard("could not be closed"):
                logger.close()

    @contextlib.contextmanager
    def guard(self, what: str) -> Iterator[None]:
        """Report a failure, and drop the logger."""
        try:
            yield
        except Exception as error:  # network, server or disk: libraries raise different kinds
            self.logger = None
            reason = _PASSWORD.sub("//", one_line(error))
            self._say(
                f"warning: {self._name} {what} ({type(error).__name__}: {reason}); training goes on, and metrics.jsonl "
                "has every number"
            )


# The task of each `config.job`.


def make_task(settings: Settings, *, workdir: pathlib.Path, devices: Devices, terminal: Terminal) -> Task:
    """Return the task that the settings describe, with its data loaded."""
    for name in ("data", "vqa"):
        if getattr(settings, name).source == "given":
            raise BadInput(
                f"config.{name}.source: 'given' is of a dataset that a caller passed to sc.fit, which resumes its runs"
            )
    if settings.trains_policy:  # imported here: each kind of job needs the libraries of its own data
        from stepcot_jax.run.policy_task import PolicyTask

        return PolicyTask(settings, workdir=workdir, devices=devices, terminal=terminal)
    from stepcot_jax.run.chain_task import load_chain_task

    return load_chain_task(settings, workdir=workdir, devices=devices, terminal=terminal)


RUNS_ONCE = {"xla_backend_optimization_level": 1}
"""Compiles the first parameters in a third of the time, on a CPU, to the same bits."""


class Run:
    """One run of training and evaluation in a workdir.

    Args:
      settings: all settings of the run, or the name of a shipped config, or the path of a config file.
      workdir: folder of its files, made if missing, or gs://BUCKET/FOLDER as text.
      **overrides: settings to change, full names without "config." -> values.

    Attributes:
      workdir: the folder of its files on this machine.
      place: the storage of its files; `place.name` is the path or address that the user named.

    Raises:
      BadInput: the workdir holds another run, or settings, data or weights cannot be used.
    """

    def __init__(self, settings: Settings | str | pathlib.Path, workdir: str | pathlib.Path, **overrides: Any) -> None:
        if not isinstance(settings, Settings):
            settings = load_settings(settings, **overrides)
        elif overrides:
            settings = load_settings(dataclasses.asdict(settings), **overrides)
        self._open(settings, workdir, functools.partial(make_task, settings), Given(), ())

    @classmethod
    def of_values(
        cls,
        settings: Settings,
        workdir: str | pathlib.Path,
        make: Callable[..., Task],
        *,
        given: Given,
        writers: Sequence[Logger] = (),
    ) -> "Run":
        """Return the run of a caller's values, which `settings` and `given` describe."""
        run = cls.__new__(cls)
        run._open(settings, workdir, make, given, writers)
        return run

    def _open(
        self,
        settings: Settings,
        workdir: str | pathlib.Path,
        make: Callable[..., Task],
        given: Given,
        writers: Sequence[Logger],
    ) -> None:
        self.settings, self.given, self.writers, self._make_task = settings, given, tuple(writers), make
        self.report: dict[str, Any] = {}
        self.terminal = Terminal(silent=not is_first())
        check_loggers(settings.loggers)
        self.place = Place(workdir, say=self.terminal.say)
        self.workdir = self.place.folder
        self.preemption = Preemption()
        with self.preemption.watch():  # with several processes jax would handle the signal and continue
            self._load()

    def _load(self) -> None:
        """Load everything that a run needs before it locks the workdir."""
        settings, workdir = self.settings, self.workdir
        check_judge(settings, self.place)
        self.place.check()
        use_compilation_cache()
        self._num_compiled = len(compile_seconds())
        with self.place.hold():  # a workdir in use is refused before anything is loaded
            check_earlier_run(settings, workdir, self.given)
        self.started = time.monotonic()
        parallel = settings.parallel
        self.devices = _make_devices(parallel)
        self.task = self._make_task(workdir=workdir, devices=self.devices, terminal=self.terminal)
        wait_for_all("inputs")
        self.devices.shared = self.system.shared

    @property
    def system(self) -> System:
        """What the run trains."""
        return self.task.system

    def execute(self) -> dict[str, Any]:
        """Train or resume, evaluate the best weights on the test split, and write `report.json`.

        Returns:
          The report.

        Raises:
          RunStopped: training cannot continue; the last good state is kept.
          Preempted: the run was asked to end, and has saved its state.
        """
        preemption = self.preemption
        with contextlib.ExitStack() as stack:
            stack.enter_context(preemption.watch())
            stack.enter_context(explain_disk(self.workdir))
            stack.enter_context(self.place.hold())
            # Again: another run may have used the workdir since it was loaded.
            raised = check_earlier_run(self.settings, self.workdir, self.given)
            for change in raised:
                self.terminal.say(change.describe())
            # After the lock: it removes incomplete checkpoints, which another run may be writing.
            self.checkpoints = Checkpoints(self.workdir / "checkpoints", saved=self.place.saved)
            # Its threads must end before the interpreter does.
            stack.callback(self.checkpoints.close)
            if self.checkpoints.latest_step is not None:
                self.task.check_same_splits()
            stream = stack.enter_context(self.task.stream())
            plan = Plan(self.system.phases(), stream)
            self._say_sizes()
            # Compiled before the state is made: compilation has the highest peak memory of a run.
            latest = self.checkpoints.latest_step or 0
            compiled = self._compile_ahead(plan, latest, {})
            state, progress = self._start()
            if raised and self.system.is_done(state):
                self.terminal.say("the schedule has ended training before its last epoch: more epochs change nothing")
            elif raised and is_first():
                remove_results(self.workdir)
            wait_for_all("programs")
            step = int(jax.device_get(state.step))
            if step < latest:  # the latest could not be restored: phases that seemed over may be needed
                compiled = self._compile_ahead(plan, step, compiled)
            if is_first():
                write_settings(self.workdir / "settings.json", self.settings)
                write_given(self.workdir, self.given)
                self.task.write_facts()
            self.started -= 0.0 if progress is None else progress["seconds"]  # over all starts of the run
            with contextlib.closing(self._open_log(step)) as metrics:
                loop = self._make_loop(plan, compiled, metrics)
                with preemption.patience():
                    state, best = loop.run(state, progress)
                step = int(jax.device_get(state.step))
                held = {step: state.params}
                del state  # frees the optimizers' states, two thirds of it
                self.place.share()
                self.report = self._finish(plan, step, held, best, metrics)
            self.place.finish()
            return self.report

    def say_next(self) -> None:
        """Print the seconds of compiling, which commands read the finished run, and how to train it longer."""
        own = compile_seconds()[self._num_compiled :]
        took = f"took {sum(own):.0f} s ({len(own)} programs)"
        self.terminal.say(f"compiling, or loading what was compiled before, {took}")
        workdir = shlex.quote(self.place.name)
        for command in self.task.next_commands:
            self.terminal.say(f"next: {name_command()} {command.format(workdir=workdir)}")
        self.terminal.say(describe_longer(self.settings))

    def describe_resume(self) -> str:
        """Return where the same command resumes if the run ends now, as a line of text."""
        saved = saved_steps(self.workdir / "checkpoints")
        if not saved:
            return "no checkpoint was saved yet: the same command starts over"
        return f"the same command goes on from checkpoint {saved[-1]}"

    def _say_sizes(self) -> None:
        sizes = {name: f"{count_parameters(tree):,}" for name, tree in self.state_shapes.params.items()}
        self.terminal.say(f"{self.task.describe_data()}; parameters: {sizes}")
        if self.devices.num_devices > 1:
            mesh = self.devices.named_mesh
            how = self.devices.transform if mesh is None else f"mesh {dict(mesh.shape)}"
            self.terminal.say(f"devices: {self.devices.num_devices} of {jax.process_count()} processes, by {how}")

    def _open_log(self, step: int) -> MetricsLog:
        """Return the log of the updates after `step`; only the first process writes it and has loggers."""
        loggers, say = [], self.terminal.say
        if is_first():
            loggers = [*open_loggers(self.workdir, self.settings, name=self.place.title, say=say), *self.writers]
        wait_for_all("loggers")  # a server may be slow, and collectives of the first update time out
        return MetricsLog(self.workdir, first_step=step, silent=not is_first(), loggers=loggers)

    def _seconds(self) -> float:
        return time.monotonic() - self.started

    def _make_loop(self, plan: Plan, compiled: dict[str, Compiled], metrics: MetricsLog) -> Loop:
        training = self.settings.training
        return Loop(
            system=self.system,
            plan=plan,
            compile_update=self._compile,
            prepare=self.task.prepare,
            validate=self.task.validate,
            checkpoints=self.checkpoints,
            metrics=metrics,
            terminal=self.terminal,
            batch_size=self.task.batch_size,
            log_every=training.log_every,
            best_by=self.settings.evaluation.best,
            data_digest=self.task.digest,
            seconds=self._seconds,
            checkpoint_seconds=60 * training.checkpoint_minutes,
            asked_to_end=lambda: self.preemption.asked,
            keep={"settings": dataclasses.asdict(self.settings)},
            compiled=compiled,
            profiler=Profiler(self.workdir / "profile", training.profile_updates, say=self.terminal.say),
            pictures=self.task.pictures,
            further=self.task.numbers,
        )

    def _compile_ahead(self, plan: Plan, step: int, compiled: Mapping[str, Compiled]) -> dict[str, Compiled]:
        """Return the compiled updates of phases that `step` updates leave; others compile at their first batch."""
        if (shapes := self.task.batch_shapes) is None:
            return {**compiled}
        todo = [
            phase
            for phase in plan.phases
            if not (phase.collect or phase.stream or phase.name in compiled or plan.is_over(phase, step))
        ]
        ahead = {phase.name: self._compile(phase, self.state_shapes, shapes) for phase in todo}
        return {**compiled, **ahead}

    def _compile(self, phase: Phase, state: Any, batch: Batch) -> Compiled:
        with self.terminal.clock(f"compiling the {phase.name} update"):
            compiled = self.devices.compile_update(phase.update, state=state, batch=batch)
        release_freed_memory()
        return compiled

    @functools.cached_property
    def state_shapes(self) -> TrainState:
        """Shapes, dtypes and shardings of the state, for compiling and restoring before it is made."""
        shapes = jax.eval_shape(self._init)
        return jax.tree.map(
            lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
            shapes,
            self.devices.shardings(shapes),
        )

    def _init(self) -> TrainState:
        return self.system.init(jax.random.key(self.settings.seed), self.task.example)

    def _start(self) -> tuple[TrainState, dict[str, Any] | None]:
        """Return the state to start from: the latest checkpoint's, or a new one, a function of the seed."""
        if self.checkpoints.latest_step is None:
            shardings = self.devices.shardings(self.state_shapes)
            options = RUNS_ONCE if jax.default_backend() == "cpu" else None
            make = jax.jit(self._init, out_shardings=shardings, compiler_options=options)
            state = jax.block_until_ready(make())
            release_freed_memory()
            return self.task.begin(state), None
        state, progress, warnings = self.checkpoints.restore_latest(self.state_shapes)
        for warning in warnings:
            self.terminal.say(warning)
        self.task.check_same_data(progress["data"])
        self.terminal.say(f"resuming from step {int(jax.device_get(state.step))}")
        return state, progress

    def _finish(
        self, plan: Plan, step: int, held: dict[int, Any], best: dict[str, Best], metrics: MetricsLog
    ) -> dict[str, Any]:
        """Return the task's report of the best weights; `held` has the parameters of `step`."""

        def params_of(name: str) -> Any:
            wanted = best[name].step if name in best else step
            if wanted not in held:
                held.clear()
                release_freed_memory()
                held[wanted] = restore_params(self.checkpoints.folder, wanted, like=self.state_shapes.params)
            return held[wanted]

        def log(numbers: Mapping[str, float]) -> None:
            metrics.write("test", step=step, epoch=plan.epoch_of(step), numbers=numbers)

        with self.terminal.clock("evaluating the best weights"):
            report = self.task.finish(Outcome(step, best, params_of, self._seconds, log))
        wait_for_all("report")
        return report


def _make_devices(parallel: ParallelSettings) -> Devices:
    number, passes = parallel.num_devices, parallel.num_passes
    if parallel.transform == "mesh":  # imported here: the rules are those of Qwen's network
        from stepcot_jax.policies.qwen_policy import param_shardings

        return MeshDevices(param_shardings, num_devices=number, model_devices=parallel.model_devices, num_passes=passes)
    return Devices(transform=parallel.transform, num_devices=number, num_passes=passes)
