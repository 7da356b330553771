"""What given answers changed in later steps."""

import dataclasses
from collections.abc import Sequence

_LEAST_SHIFT = 0.001
"""Smaller changes of a probability are below the precision that readings are shown with."""


@dataclasses.dataclass(frozen=True)
class Flip:
    """A later answer that a given answer changed."""

    step: str
    before: str
    after: str


@dataclasses.dataclass(frozen=True)
class Shift:
    """Largest change of a probability in a later step, 0 to 1, that the given answers caused."""

    step: str
    change: float


def describe_shifts(shifts: Sequence[Shift]) -> str:
    """Return the largest change of a later probability in words; "" if no step is later."""
    if not shifts:
        return ""
    most = max(shifts, key=lambda shift: shift.change)
    if most.change < _LEAST_SHIFT:
        return "no later probability moved by 0.1 points"
    return f"largest change of a later probability: {100 * most.change:.1f} points ({most.step})"
