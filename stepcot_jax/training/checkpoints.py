"""Checkpoints with Orbax: the latest state and the best of each network, each saved whole or not at all."""

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint.checkpoint_managers import PolicyCheckpointInfo as CheckpointInfo
from orbax.checkpoint.checkpoint_managers import PreservationContext, PreservationPolicy

from stepcot_jax.errors import BadInput
from stepcot_jax.process_memory import release_freed_memory
from stepcot_jax.training.state import TrainState


@dataclasses.dataclass
class Best:
    """The best score of a network so far and the step that reached it."""

    score: float
    step: int


class _LatestAndBest(PreservationPolicy):
    """Keeps the latest step and the best step of each network.

    `best_fn` with `max_to_keep` would delete the latest step as soon as it is not among the best.
    """

    def __init__(self) -> None:
        self.best_steps: set[int] = set()

    def should_preserve(
        self,
        checkpoints: Sequence[CheckpointInfo],
        *,
        context: PreservationContext,  # noqa: ARG002
    ) -> Sequence[bool]:
        latest = max((info.step for info in checkpoints), default=None)
        return [info.step == latest or info.step in self.best_steps for info in checkpoints]


def saved_steps(folder: pathlib.Path) -> list[int]:
    """The steps with a checkpoint below a folder, without opening any."""
    if not folder.is_dir():
        return []
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit())


def describe_damage(checkpoint: pathlib.Path, error: Exception) -> str:
    """What to say of a checkpoint that cannot be restored."""
    first_line = next(iter(str(error).strip().splitlines()), "")[:200]
    others = [step for step in saved_steps(checkpoint.parent) if str(step) != checkpoint.name]
    return (
        f"{checkpoint}: found a checkpoint that cannot be restored ({type(error).__name__}: {first_line}), accepted "
        f"is a whole one of the same chain and sizes; other checkpoints here: {others or 'none'}; removing this "
        "folder goes on from the latest of them"
    )


def to_shapes(state: TrainState) -> TrainState:
    """A state's shapes, types and places without its numbers; one that has none stays as it is."""

    def to_shape(leaf: Any) -> Any:
        return leaf if isinstance(leaf, jax.ShapeDtypeStruct) else ocp.utils.to_shape_dtype_struct(leaf)

    return jax.tree.map(to_shape, state)


class Checkpoints:
    """The checkpoints below a folder.

    Args:
      folder: where they are kept; made if missing.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self._policy = _LatestAndBest()
        self._manager = ocp.CheckpointManager(
            folder.resolve(),
            options=ocp.CheckpointManagerOptions(preservation_policy=self._policy, cleanup_tmp_directories=True),
        )

    @property
    def latest_step(self) -> int | None:
        """The newest step that was saved whole; None if there is none."""
        return self._manager.latest_step()

    def save(self, state: TrainState, progress: dict[str, Any], best: dict[str, Best]) -> None:
        """Save a state, with what the loop has to know to go on, and delete what is neither latest nor best."""
        self._policy.best_steps = {entry.step for entry in best.values()}
        progress = {**progress, "best": {name: dataclasses.asdict(entry) for name, entry in best.items()}}
        self._manager.save(
            int(state.step),
            args=ocp.args.Composite(state=ocp.args.StandardSave(state), progress=ocp.args.JsonSave(progress)),
        )
        if jax.default_backend() == "cpu":
            # There what is being written and what training goes on with share one memory, twice the state and more.
            self.wait()
            release_freed_memory()

    def restore(self, like: TrainState, step: int | None = None) -> tuple[TrainState, dict[str, Any]]:
        """The state of a step (the latest by default), with the progress saved beside it.

        Args:
          like: a state of the same shapes or its shapes alone, which says where the arrays go.
          step: a saved step.

        Raises:
          BadInput: there is no such step, or its shapes are not those of `like`.
        """
        step = self.latest_step if step is None else step
        if step is None or step not in self._manager.all_steps():
            raise BadInput(f"{self._manager.directory}: found checkpoints {self._manager.all_steps()}, wanted {step}")
        target = to_shapes(like)
        try:
            restored = self._manager.restore(
                step, args=ocp.args.Composite(state=ocp.args.StandardRestore(target), progress=ocp.args.JsonRestore())
            )
        except Exception as error:  # Orbax and TensorStore raise many kinds on damaged files
            raise BadInput(describe_damage(pathlib.Path(str(self._manager.directory)) / str(step), error)) from None
        progress = restored.progress
        self._policy.best_steps = {entry["step"] for entry in progress["best"].values()}
        return restored.state, progress

    def wait(self) -> None:
        """Return when everything is on disk."""
        self._manager.wait_until_finished()

    def close(self) -> None:
        """Finish writing and stop the background threads."""
        self._manager.close()
