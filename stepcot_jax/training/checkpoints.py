"""Checkpoints with Orbax: the latest states and the best of each network, each written atomically.

An interrupted checkpoint keeps a temporary name, and the next start removes it. A checkpoint that cannot be restored is
renamed, and the one before it is used.
"""

import asyncio
import contextlib
import dataclasses
import itertools
import math
import pathlib
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import msgspec
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint.checkpoint_managers import PolicyCheckpointInfo as CheckpointInfo
from orbax.checkpoint.checkpoint_managers import PreservationContext, PreservationPolicy

from stepcot_jax.host.errors import BadInput, RunStopped
from stepcot_jax.host.files import digest_file, read_json, write_whole
from stepcot_jax.host.machine import release_freed_memory
from stepcot_jax.host.untrusted import resolve
from stepcot_jax.training.processes import all_agree, any_process, gather_on_first, is_first, wait_for_all
from stepcot_jax.training.state import Params, TrainState, shapes_by_name

DIGESTS = "digests.json"
_OF_PROCESS = "digests_of_process_{}.json"
_WRITTEN_LATER = frozenset({DIGESTS, "_CHECKPOINT_METADATA", "commit_success.txt"})
"""Files of Orbax about the commit itself: no array and no number of a run stands in them."""


class Changed(Exception):
    """A file of a checkpoint that is not what was saved."""


def list_files(checkpoint: pathlib.Path) -> Iterator[str]:
    """Yield the files of a checkpoint that have digests, by their paths below it."""
    for path in sorted(checkpoint.rglob("*")):
        if path.is_file() and path.name not in _WRITTEN_LATER:
            yield path.relative_to(checkpoint).as_posix()


def write_digests(checkpoint: pathlib.Path) -> None:
    """Write the digests of a checkpoint that is about to be committed."""
    known: dict[str, tuple[int, str]] = {}
    written = [*checkpoint.rglob(_OF_PROCESS.format("*")), *checkpoint.glob(f"*/{DIGESTS}")]  # of processes, of items
    for part in written:
        folder = part.parent.relative_to(checkpoint).as_posix()
        known |= {f"{folder}/{name}": entry for name, entry in _read(part).items()}
        part.unlink()
    digests = {name: known.get(name) or digest_file(checkpoint / name) for name in list_files(checkpoint)}
    write_whole(checkpoint / DIGESTS, msgspec.json.format(msgspec.json.encode(digests)))


class DigestedPath(ocp.path.atomicity.AtomicRenameTemporaryPath):
    """The temporary folder of a checkpoint, or of an item in it, which gets digests before its final name."""

    async def finalize(self) -> None:
        """Write the digests, then rename the folder."""
        await asyncio.to_thread(write_digests, pathlib.Path(self.get()))
        await super().finalize()


class DigestingHandler(ocp.StandardCheckpointHandler):
    """Orbax's handler of a state, after which each of several processes hashes what it wrote."""

    async def async_save(self, directory: Any, *args: Any, **kwargs: Any) -> Any:
        """Start the writes, and the hashing behind them."""
        futures = list(await super().async_save(directory, *args, **kwargs) or ())
        return [*futures, _Hashing(pathlib.Path(directory))] if jax.process_count() > 1 else futures


def make_registry() -> ocp.handlers.CheckpointHandlerRegistry:
    """Return Orbax's handlers of the items of a checkpoint."""
    registry = ocp.handlers.DefaultCheckpointHandlerRegistry()
    state, progress = DigestingHandler(), ocp.JsonCheckpointHandler()
    for arguments in (ocp.args.StandardSave, ocp.args.StandardRestore):
        registry.add("state", arguments, state)
    for arguments in (ocp.args.JsonSave, ocp.args.JsonRestore):
        registry.add("progress", arguments, progress)
    return registry


class _Hashing(ocp.future.Future):
    """Hashes the files of this process when Orbax's background thread comes to it."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder

    def result(self, timeout: float | None = None) -> None:  # noqa: ARG002 - Orbax's signature
        number = jax.process_index()
        written = self._folder / f"ocdbt.process_{number}"
        names = [path.relative_to(self._folder).as_posix() for path in written.rglob("*") if path.is_file()]
        digests = {name: digest_file(self._folder / name) for name in names}
        write_whole(self._folder / _OF_PROCESS.format(number), msgspec.json.encode(digests))


def check_digests(checkpoint: pathlib.Path, *, below: str = "", part: int = 0, num_parts: int = 1) -> None:
    """Compare a checkpoint's files with its digests.

    Args:
      below: a folder of the checkpoint, to which the check is limited.
      part: of the `num_parts` that the files are divided into, so that processes share the work.

    Raises:
      Changed: a file was changed, is missing or was added, or the digests are missing.
    """
    if not (checkpoint / DIGESTS).is_file():
        raise Changed(f"{DIGESTS} is missing")
    try:
        digests = _read(checkpoint / DIGESTS)
    except BadInput as error:
        raise Changed(f"{DIGESTS} cannot be read: {error}") from None
    prefix = f"{below}/" if below else ""
    present = {name for name in list_files(checkpoint) if name.startswith(prefix)}
    named = {name for name in digests if name.startswith(prefix)}
    for name in sorted(present ^ named):
        raise Changed(f"{name} {'is missing' if name in named else 'was added'} since it was saved")
    for name in sorted(named)[part::num_parts]:
        path, (size, digest) = checkpoint / name, digests[name]
        if path.stat().st_size != size or digest_file(path) != (size, digest):
            raise Changed(f"{name} has changed since it was saved")


def _read(path: pathlib.Path) -> dict[str, tuple[int, str]]:
    return read_json(path, dict[str, tuple[int, str]], accepted="expected digests of files")


def committed_steps(folder: pathlib.Path) -> list[int]:
    """Return the steps below a folder whose checkpoints were committed, files missing since then or not."""
    marks = folder.glob("*/_CHECKPOINT_METADATA")
    return sorted(int(mark.parent.name) for mark in marks if mark.parent.name.isdigit())


def is_complete(checkpoint: pathlib.Path) -> bool:
    """Return whether a checkpoint was committed and no file is missing, without reading the arrays."""
    try:
        check_complete(checkpoint)
    except Changed:
        return False
    return True


def check_complete(checkpoint: pathlib.Path) -> None:
    """Raise Changed if a checkpoint was not committed or a file is missing, without reading the arrays."""
    names = ["_CHECKPOINT_METADATA", "state", "progress"]
    with contextlib.suppress(BadInput):  # damaged digests are named by the check on reading
        names += _read(checkpoint / DIGESTS)
    for name in names:
        if not (checkpoint / name).exists():
            raise Changed(f"{name} is missing since it was saved")


# Checkpoint retention: the latest two, and the best of each network.


@dataclasses.dataclass
class Best:
    """The best score of a network so far, and the step that reached it."""

    score: float
    step: int


class LatestAndBest(PreservationPolicy):
    """Keep the latest two steps, and the best step of each network as of either.

    Two, so that a run can resume from the one before if the latest is damaged; it then needs the best as of that step.
    `best_fn` with `max_to_keep` would delete the latest step as soon as it is not among the best.
    """

    def __init__(self) -> None:
        self._best: set[int] = set()
        self._best_before: set[int] = set()

    def start(self, best_steps: set[int]) -> None:
        """Set the best steps that a restored checkpoint names."""
        self._best = self._best_before = best_steps

    def save(self, best_steps: set[int]) -> None:
        """Set the best steps as of the checkpoint that is being saved."""
        self._best_before, self._best = self._best, best_steps

    def should_preserve(
        self,
        checkpoints: Sequence[CheckpointInfo],
        *,
        context: PreservationContext,  # noqa: ARG002
    ) -> Sequence[bool]:
        """Return which checkpoints to keep; Orbax deletes the others."""
        kept = {*sorted(info.step for info in checkpoints)[-2:], *self._best, *self._best_before}
        return [info.step in kept for info in checkpoints]


def forget_lost(best: dict[str, Mapping[str, Any]], steps: Sequence[int]) -> list[str]:
    """Remove entries of `best` whose checkpoint is missing, so that later epochs can replace them; return warnings."""
    lost = {name: entry["step"] for name, entry in best.items() if entry["step"] not in steps}
    for name in lost:
        del best[name]
    return [
        f"warning: checkpoint {step}, the best {name} so far, is missing; the best of the coming epochs takes its place"
        for name, step in lost.items()
    ]


_LOOKS = 60
SMALL_BYTES = 2**26
"""Largest state that is written in the background on a CPU, where it shares memory with the training."""


def saved_steps(folder: pathlib.Path) -> list[int]:
    """Return the steps with a complete checkpoint below a folder, without reading their arrays."""
    return [step for step in committed_steps(folder) if is_complete(folder / str(step))]


def describe_damage(checkpoint: pathlib.Path, error: Exception) -> str:
    """Return the message for a checkpoint that cannot be restored."""
    others = [step for step in saved_steps(checkpoint.parent) if str(step) != checkpoint.name]
    reason = _in_short(error)
    return f"{checkpoint}: the checkpoint cannot be restored ({reason}); other checkpoints here: {others or 'none'}"


def _in_short(error: Exception) -> str:
    line = next(iter(str(error).strip().splitlines()), "")
    if isinstance(error, Changed):
        return line
    # A message of TensorStore names long paths first and the cause last.
    return f"{type(error).__name__}: {line if len(line) <= 200 else f'{line[:80]} ... {line[-115:]}'}"


class Checkpoints:
    """The checkpoints below a folder.

    Args:
      saved: called after each checkpoint is written, before training goes on; None lets Orbax write in the background.
        With it, each process has a local folder with the same checkpoints; only the first writes new ones.
    """

    def __init__(self, folder: pathlib.Path, *, saved: Callable[[], None] | None = None) -> None:
        self.folder = resolve(folder)
        self._saved, self._is_local = saved, saved is not None and jax.process_count() > 1
        self._policy = LatestAndBest()
        if self._is_local:  # Orbax makes only the folder of the first process
            self.folder.mkdir(parents=True, exist_ok=True)
        self._manager = ocp.CheckpointManager(
            self.folder,
            options=ocp.CheckpointManagerOptions(
                preservation_policy=self._policy,
                cleanup_tmp_directories=True,
                create=not self._is_local,
                temporary_path_class=DigestedPath,
                multiprocessing_options=_multiprocessing_options(is_local=self._is_local),
            ),
            handler_registry=make_registry(),
        )
        self._agree_on_steps()
        self._latest = self._manager.latest_step()

    def _agree_on_steps(self) -> None:
        """Wait until all processes see the same checkpoints; network file systems may lag."""
        looks = 0
        while not all_agree(zlib.crc32(repr(sorted(self._manager.all_steps())).encode()) >> 1):
            looks += 1
            if looks > _LOOKS:
                raise BadInput(
                    f"{self.folder}: this process sees checkpoints {sorted(self._manager.all_steps())}, others do not; "
                    "the folder must be on a file system that all processes share"
                )
            time.sleep(1)
            self._manager.reload()

    @property
    def latest_step(self) -> int | None:
        """The newest saved step; None if there is none."""
        return self._latest if self._is_local else self._manager.latest_step()

    def save(self, state: TrainState, progress: dict[str, Any], best: dict[str, Best]) -> None:
        """Save a state and the progress that a resumed loop needs; delete checkpoints neither latest nor best."""
        step = int(jax.device_get(state.step))
        self._policy.save({entry.step for entry in best.values()})
        progress = {**progress, "best": {name: dataclasses.asdict(entry) for name, entry in best.items()}}
        stored = gather_on_first(state) if self._is_local else state
        self.wait()
        with self._explain_failure(f"step {step}"):
            if is_first():  # where Orbax cannot make a folder, its threads keep the program from ending for minutes
                tempfile.TemporaryFile(dir=self.folder).close()
            if is_first() or not self._is_local:
                items = {"state": ocp.args.StandardSave(stored), "progress": ocp.args.JsonSave(progress)}
                self._manager.save(step, args=ocp.args.Composite(**items))
        if jax.default_backend() == "cpu" and sum(leaf.nbytes for leaf in jax.tree.leaves(state)) > SMALL_BYTES:
            # On a CPU the state being written and the state being trained would both stay in memory.
            self.wait()
            release_freed_memory(generation=1)
        if self._saved is not None:
            self.wait()
            self._saved()
            self._latest = step
            wait_for_all("saved")

    def restore_latest(self, like: TrainState) -> tuple[TrainState, dict[str, Any], list[str]]:
        """Return the newest state that can be restored, its progress, and a warning for each newer one that cannot.

        `like` has the shapes, dtypes and shardings. Damaged checkpoints are renamed, none is deleted.
        """
        damages: dict[int, Exception] = {}
        for step in sorted(self._manager.all_steps(), reverse=True):
            try:
                state, progress = self._read(like, step)
            except _Damaged as damage:
                damages[step] = damage.error
            if any_process(step in damages):
                damages.setdefault(step, Changed("another process cannot read it"))
                continue
            warnings = self._put_aside(damages, step)
            warnings += forget_lost(progress["best"], self._manager.all_steps())
            return state, progress, warnings
        causes = "; ".join(f"{step}: {_in_short(error)}" for step, error in damages.items())
        raise BadInput(
            f"{self.folder}: no checkpoint can be restored ({causes}); nothing was changed here; "
            "a new workdir starts over"
        )

    def _read(self, like: TrainState, step: int) -> tuple[TrainState, dict[str, Any]]:
        self._compare_digests(step)
        self._check_shapes(like, step)
        try:
            restored = self._manager.restore(
                step, args=ocp.args.Composite(state=ocp.args.StandardRestore(like), progress=ocp.args.JsonRestore())
            )
            progress = restored.progress
            best_steps = {entry["step"] for entry in progress["best"].values()}
        except Exception as error:  # Orbax and TensorStore raise many kinds on damaged files
            raise _Damaged(error) from None
        self._policy.start(best_steps)
        return restored.state, progress

    def _compare_digests(self, step: int) -> None:
        """Raise in every process if one finds a changed file; processes with a shared folder divide the files."""
        part, num_parts = (0, 1) if self._is_local else (jax.process_index(), jax.process_count())
        error = None
        try:
            check_digests(self.folder / str(step), part=part, num_parts=num_parts)
        except (Changed, BadInput, OSError) as changed:
            error = changed
        if any_process(error is not None):
            raise _Damaged(error or Changed("another process reads other bytes than were saved"))

    def _check_shapes(self, like: TrainState, step: int) -> None:
        """Refuse a checkpoint of another chain or of other sizes: it is intact and must not be renamed."""
        try:
            metadata = ocp.PyTreeCheckpointHandler().metadata(self.folder / str(step) / "state")
            saved = shapes_by_name(metadata.tree)
        except Exception as error:  # as above
            raise _Damaged(error) from None
        if not saved:
            raise _Damaged(FileNotFoundError("it has no arrays"))
        expected = shapes_by_name(like)
        for name in sorted(saved.keys() | expected.keys(), key=lambda name: (not name.startswith("params/"), name)):
            if saved.get(name) != expected.get(name):
                raise BadInput(
                    f"{self.folder / str(step)}: {name} has shape {saved.get(name, 'none')}, "
                    f"expected {expected.get(name, 'none')}; "
                    "the checkpoint is of another chain or of other sizes: use a new workdir"
                )

    def _put_aside(self, damages: dict[int, Exception], resumed_step: int) -> list[str]:
        warnings = []
        for step, error in damages.items():
            names = itertools.chain([f"damaged-{step}"], (f"damaged-{step}-{number}" for number in itertools.count(2)))
            aside = next(path for path in map(self.folder.joinpath, names) if not path.exists())
            if is_first() or self._is_local:
                (self.folder / str(step)).rename(aside)
            warnings.append(
                f"warning: checkpoint {step} cannot be restored ({_in_short(error)}); it was renamed to {aside.name}, "
                f"and the run resumes from checkpoint {resumed_step}"
            )
        if damages:
            wait_for_all("damaged checkpoints")
            self._manager.reload()
            self._latest = self._manager.latest_step()
        return warnings

    def wait(self) -> None:
        """Wait until all checkpoints are on disk."""
        with self._explain_failure("a checkpoint"):
            self._manager.wait_until_finished()

    @contextlib.contextmanager
    def _explain_failure(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # TensorStore says "No space left on device" in a ValueError
            intact = saved_steps(self.folder)
            raise RunStopped(
                f"{self.folder}: {what} could not be written ({_in_short(error)}); "
                + (f"the latest intact checkpoint is {intact[-1]}" if intact else "there is no earlier checkpoint")
                + "; the same command resumes from there"
            ) from error

    def close(self) -> None:
        """Finish writing and stop the background threads."""
        with contextlib.suppress(Exception):  # reported when it happened
            self._manager.close()


def _multiprocessing_options(*, is_local: bool) -> ocp.options.MultiprocessingOptions:
    """Return Orbax's options for all processes together, or for this process alone."""
    if not is_local:
        return ocp.options.MultiprocessingOptions()
    index = jax.process_index()
    return ocp.options.MultiprocessingOptions(
        primary_host=index, active_processes={index}, barrier_sync_key_prefix=f"process-{index}"
    )


class _Damaged(Exception):
    """A checkpoint that cannot be read, and why."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


# Parameters and best steps from checkpoints, without the run that wrote them.


MOST_BYTES = 4 * 2**30
"""Largest size of parameters: ten times that of the largest network that is trained from random weights."""


def read_best(folder: pathlib.Path) -> tuple[int, dict[str, Best]]:
    """Return the latest saved step below a folder, and the best of each network until then."""
    steps = committed_steps(folder)
    if not steps:
        raise BadInput(f"{folder}: no checkpoints; expected the workdir of a run that has finished an epoch")
    latest = resolve(folder) / str(steps[-1])
    try:
        check_complete(latest)
        check_digests(latest, below="progress")
        progress = ocp.JsonCheckpointHandler().restore(latest / "progress")
        best = {name: Best(float(entry["score"]), int(entry["step"])) for name, entry in progress["best"].items()}
    except Exception as error:  # Orbax raises many kinds on damaged files
        raise BadInput(describe_damage(latest, error)) from None
    return steps[-1], best


def restore_params(
    folder: pathlib.Path,
    step: int,
    *,
    parts: tuple[str, ...] | None = None,
    like: Any = None,
    most_bytes: int = MOST_BYTES,
) -> Params:
    """Return the parameters of a saved step, without the optimizer states."""
    if step not in committed_steps(folder):
        raise BadInput(f"{folder}: there is no checkpoint {step}; found {saved_steps(folder)}")
    checkpoint = resolve(folder) / str(step)
    handler = ocp.PyTreeCheckpointHandler()
    try:
        check_digests(checkpoint)
        shapes = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype),
            handler.metadata(checkpoint / "state").tree["params"],
        )
        if parts is not None:
            shapes = _pick(checkpoint, shapes, parts)
        if like is None:
            _check_bytes(checkpoint, shapes, most_bytes)
        wanted = {"params": shapes if like is None else like}
        restore = jax.tree.map(
            lambda leaf: (
                ocp.RestoreArgs(restore_type=np.ndarray)
                if like is None
                else ocp.ArrayRestoreArgs(sharding=leaf.sharding, dtype=leaf.dtype)
            ),
            wanted,
        )
        arguments = ocp.args.PyTreeRestore(item=wanted, restore_args=restore, partial_restore=True)
        with _quiet_if_failing():
            params: Params = handler.restore(checkpoint / "state", args=arguments)["params"]
    except BadInput:
        raise
    except Exception as error:  # Orbax and TensorStore raise many kinds on damaged files
        raise BadInput(describe_damage(checkpoint, error)) from None
    finally:
        handler.close()
    return params


def _pick(checkpoint: pathlib.Path, shapes: Params, parts: tuple[str, ...]) -> Params:
    missing = [name for name in parts if name not in shapes]
    if missing:
        raise BadInput(f"{checkpoint}: there is no part {missing[0]!r}; found {', '.join(sorted(shapes))}")
    return {name: shapes[name] for name in parts}


@contextlib.contextmanager
def _quiet_if_failing() -> Iterator[None]:
    """Silence the tracebacks of reads that outlive a failed one, which TensorStore reports to a closed event loop."""
    report = sys.unraisablehook

    def report_others(unraisable: Any) -> None:
        if not (isinstance(unraisable.exc_value, RuntimeError) and str(unraisable.exc_value) == "Event loop is closed"):
            report(unraisable)

    sys.unraisablehook = report_others
    yield  # after a failure the hook stays, since the end of the last read is unknown
    sys.unraisablehook = report


def _check_bytes(checkpoint: pathlib.Path, shapes: Params, most_bytes: int) -> None:
    num_bytes = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))
    if num_bytes > most_bytes:
        raise BadInput(f"{checkpoint}: the parameters take {num_bytes} bytes; the limit is {most_bytes}")
