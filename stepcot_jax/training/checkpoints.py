"""Checkpoints with Orbax: the latest states and the best of each network, each written atomically.

An interrupted checkpoint keeps a temporary name, and the next start removes it. A checkpoint that cannot be restored is
renamed, and the one before it is used.
"""

import contextlib
import dataclasses
import itertools
import pathlib
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import orbax.checkpoint as ocp

from stepcot_jax.host.errors import BadInput, RunStopped
from stepcot_jax.host.process_memory import release_freed_memory
from stepcot_jax.training.processes import all_agree, gather_on_first, is_first, wait_for_all
from stepcot_jax.training.retention import Best, LatestAndBest, forget_lost
from stepcot_jax.training.state import TrainState, shapes_by_name

__all__ = ["Best", "Checkpoints", "describe_damage", "saved_steps", "to_shapes"]

_LOOKS = 60
SMALL_BYTES = 2**26
"""Largest state that is written in the background on a CPU, where it shares memory with the training."""


def saved_steps(folder: pathlib.Path) -> list[int]:
    """Return the steps with a checkpoint below a folder, without opening any."""
    if not folder.is_dir():
        return []
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit())


def describe_damage(checkpoint: pathlib.Path, error: Exception) -> str:
    """Return the message for a checkpoint that cannot be restored."""
    others = [step for step in saved_steps(checkpoint.parent) if str(step) != checkpoint.name]
    reason = _in_short(error)
    return f"{checkpoint}: the checkpoint cannot be restored ({reason}); other checkpoints here: {others or 'none'}"


def _in_short(error: Exception) -> str:
    line = next(iter(str(error).strip().splitlines()), "")
    # The cause is at the end of what TensorStore says, after long paths.
    return f"{type(error).__name__}: {line if len(line) <= 200 else f'{line[:80]} ... {line[-115:]}'}"


def to_shapes(state: TrainState) -> TrainState:
    """Return the shapes, types and places of a state without its numbers."""

    def to_shape(leaf: Any) -> Any:
        return leaf if isinstance(leaf, jax.ShapeDtypeStruct) else ocp.utils.to_shape_dtype_struct(leaf)

    return jax.tree.map(to_shape, state)


class Checkpoints:
    """The checkpoints below a folder.

    Args:
      saved: called when a checkpoint is on the disk, before training goes on; None lets Orbax write in the background.
        With it, each process has a folder of its own with the same checkpoints; the first alone writes new ones.
    """

    def __init__(self, folder: pathlib.Path, *, saved: Callable[[], None] | None = None) -> None:
        self.folder = folder.resolve()
        self._saved, self._is_apart = saved, saved is not None and jax.process_count() > 1
        self._policy = LatestAndBest()
        if self._is_apart:  # Orbax makes the first process's folder alone
            self.folder.mkdir(parents=True, exist_ok=True)
        self._manager = ocp.CheckpointManager(
            self.folder,
            options=ocp.CheckpointManagerOptions(
                preservation_policy=self._policy,
                cleanup_tmp_directories=True,
                create=not self._is_apart,
                multiprocessing_options=_apart() if self._is_apart else ocp.options.MultiprocessingOptions(),
            ),
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
        return self._latest if self._is_apart else self._manager.latest_step()

    def save(self, state: TrainState, progress: dict[str, Any], best: dict[str, Best]) -> None:
        """Save a state with the progress that a resumed loop needs, and delete what is neither latest nor best."""
        step = int(jax.device_get(state.step))
        self._policy.save({entry.step for entry in best.values()})
        progress = {**progress, "best": {name: dataclasses.asdict(entry) for name, entry in best.items()}}
        stored = gather_on_first(state) if self._is_apart else state
        self.wait()
        with self._explain_failure(f"step {step}"):
            if is_first():  # where Orbax cannot make a folder, its threads keep the program from ending for minutes
                tempfile.TemporaryFile(dir=self.folder).close()
            if is_first() or not self._is_apart:
                written, also = ocp.args.StandardSave(stored), ocp.args.JsonSave(progress)
                self._manager.save(step, args=ocp.args.Composite(state=written, progress=also))
        if jax.default_backend() == "cpu" and sum(leaf.nbytes for leaf in jax.tree.leaves(state)) > SMALL_BYTES:
            # On a CPU the state being written and the state being trained would both stay in memory.
            self.wait()
            release_freed_memory(generation=1)
        if self._saved is not None:
            self.wait()
            self._saved()
            self._latest = step
            wait_for_all("saved")

    def restore(self, like: TrainState, step: int) -> tuple[TrainState, dict[str, Any]]:
        """Return the state of a step and the progress saved beside it.

        Args:
          like: a state of the same shapes, or its shapes; says where the arrays go.
        """
        if step not in self._manager.all_steps():
            raise BadInput(f"{self.folder}: there is no checkpoint {step}; found {self._manager.all_steps()}")
        try:
            return self._read(like, step)
        except _Damaged as damage:
            raise BadInput(describe_damage(self.folder / str(step), damage.error)) from None

    def restore_latest(self, like: TrainState) -> tuple[TrainState, dict[str, Any], list[str]]:
        """Return the newest state that can be restored, its progress, and a warning for each newer one that cannot.

        Those are renamed to "damaged-STEP", so that the run can save these steps again; none is deleted.
        """
        damages: dict[int, Exception] = {}
        for step in sorted(self._manager.all_steps(), reverse=True):
            try:
                state, progress = self._read(like, step)
            except _Damaged as damage:
                damages[step] = damage.error
                continue
            if not all_agree(step):
                raise BadInput(
                    f"{self.folder / str(step)}: other processes cannot restore this checkpoint; check their disks"
                )
            warnings = self._put_aside(damages, step)
            warnings += forget_lost(progress["best"], self._manager.all_steps())
            return state, progress, warnings
        causes = "; ".join(f"{step}: {_in_short(error)}" for step, error in damages.items())
        raise BadInput(
            f"{self.folder}: no checkpoint can be restored ({causes}); nothing was changed here; "
            "a new workdir starts over"
        )

    def _read(self, like: TrainState, step: int) -> tuple[TrainState, dict[str, Any]]:
        target = to_shapes(like)
        self._check_shapes(target, step)
        try:
            restored = self._manager.restore(
                step, args=ocp.args.Composite(state=ocp.args.StandardRestore(target), progress=ocp.args.JsonRestore())
            )
            progress = restored.progress
            best_steps = {entry["step"] for entry in progress["best"].values()}
        except Exception as error:  # Orbax and TensorStore raise many kinds on damaged files
            raise _Damaged(error) from None
        self._policy.start(best_steps)
        return restored.state, progress

    def _check_shapes(self, target: TrainState, step: int) -> None:
        """Refuse a checkpoint of another chain or of other sizes: it is intact and must not be renamed."""
        try:
            metadata = ocp.PyTreeCheckpointHandler().metadata(self.folder / str(step) / "state")
            found = shapes_by_name(metadata.tree)
        except Exception as error:  # as above
            raise _Damaged(error) from None
        if not found:
            raise _Damaged(FileNotFoundError("it has no arrays"))
        wanted = shapes_by_name(target)
        for name in sorted(found.keys() | wanted.keys(), key=lambda name: (not name.startswith("params/"), name)):
            if found.get(name) != wanted.get(name):
                raise BadInput(
                    f"{self.folder / str(step)}: {name} has shape {found.get(name, 'none')}, "
                    f"expected {wanted.get(name, 'none')}; "
                    "the checkpoint is of another chain, of other sizes or of another version: use a new workdir"
                )

    def _put_aside(self, damages: dict[int, Exception], taken: int) -> list[str]:
        warnings = []
        for step, error in damages.items():
            names = itertools.chain([f"damaged-{step}"], (f"damaged-{step}-{number}" for number in itertools.count(2)))
            aside = next(path for path in map(self.folder.joinpath, names) if not path.exists())
            if is_first() or self._is_apart:
                (self.folder / str(step)).rename(aside)
            warnings.append(
                f"warning: checkpoint {step} cannot be restored ({_in_short(error)}); it was renamed to {aside.name}, "
                f"and the run resumes from checkpoint {taken}"
            )
        if damages:
            wait_for_all("damaged checkpoints")
            self._manager.reload()
            self._latest = self._manager.latest_step()
        return warnings

    def wait(self) -> None:
        """Wait until everything is on disk."""
        with self._explain_failure("a checkpoint"):
            self._manager.wait_until_finished()

    @contextlib.contextmanager
    def _explain_failure(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # TensorStore says "No space left on device" in a ValueError
            whole = saved_steps(self.folder)
            raise RunStopped(
                f"{self.folder}: {what} could not be written ({_in_short(error)}); "
                + (f"the latest intact checkpoint is {whole[-1]}" if whole else "there is no earlier checkpoint")
                + "; the same command resumes from there"
            ) from error

    def close(self) -> None:
        """Finish writing and stop the background threads."""
        with contextlib.suppress(Exception):  # reported when it happened
            self._manager.close()


def _apart() -> ocp.options.MultiprocessingOptions:
    """Let Orbax work in this process alone."""
    own = jax.process_index()
    return ocp.options.MultiprocessingOptions(
        primary_host=own, active_processes={own}, barrier_sync_key_prefix=f"process-{own}"
    )


class _Damaged(Exception):
    """A checkpoint that cannot be read, and why."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error
