"""Checkpoint retention: the latest two, and the best of each network."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from orbax.checkpoint.checkpoint_managers import PolicyCheckpointInfo as CheckpointInfo
from orbax.checkpoint.checkpoint_managers import PreservationContext, PreservationPolicy


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
    """Remove lost checkpoints from `best`, so that a later epoch can take their place; return a warning for each."""
    lost = {name: entry["step"] for name, entry in best.items() if entry["step"] not in steps}
    for name in lost:
        del best[name]
    return [
        f"warning: checkpoint {step}, the best {name} so far, is missing; the best of the coming epochs takes its place"
        for name, step in lost.items()
    ]
