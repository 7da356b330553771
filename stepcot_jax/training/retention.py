"""Which checkpoints are kept: the latest, and the best of each network."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from orbax.checkpoint.checkpoint_managers import PolicyCheckpointInfo as CheckpointInfo
from orbax.checkpoint.checkpoint_managers import PreservationContext, PreservationPolicy


@dataclasses.dataclass
class Best:
    """The best score of a network so far and the step that reached it."""

    score: float
    step: int


class LatestAndBest(PreservationPolicy):
    """Keeps the latest two steps and the best step of each network, as of either of the two.

    Two, so that a run can go on from the one before when the latest turns out to be damaged; it needs the best as of
    then. `best_fn` with `max_to_keep` would delete the latest step as soon as it is not among the best.
    """

    def __init__(self) -> None:
        self._best: set[int] = set()
        self._best_before: set[int] = set()

    def start(self, best_steps: set[int]) -> None:
        """Take over what a restored checkpoint says is best."""
        self._best = self._best_before = best_steps

    def save(self, best_steps: set[int]) -> None:
        """Take in what is best as of the step that is saved now."""
        self._best_before, self._best = self._best, best_steps

    def should_preserve(
        self,
        checkpoints: Sequence[CheckpointInfo],
        *,
        context: PreservationContext,  # noqa: ARG002
    ) -> Sequence[bool]:
        """Which of the checkpoints to keep; Orbax asks before it deletes the others."""
        kept = {*sorted(info.step for info in checkpoints)[-2:], *self._best, *self._best_before}
        return [info.step in kept for info in checkpoints]


def forget_lost(best: dict[str, Mapping[str, Any]], steps: Sequence[int]) -> list[str]:
    """Take out of the best what is not among the steps, so that an epoch to come can be it; a warning for each."""
    lost = {name: entry["step"] for name, entry in best.items() if entry["step"] not in steps}
    for name in lost:
        del best[name]
    return [
        f"warning: checkpoint {step}, so far the best of the {name}, is not there; the best of the epochs to come "
        "takes its place"
        for name, step in lost.items()
    ]
