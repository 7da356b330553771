"""What given answers changed in later steps."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

if TYPE_CHECKING:
    from stepcot_jax.predict.step_answers import StepAnswer

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


def find_changes(
    steps: Sequence["StepAnswer"], before: Float[np.ndarray, "step answer"]
) -> tuple[tuple[Flip, ...], tuple[Shift, ...]]:
    """Return the network's answers and probabilities that differ from those without given answers, `before`."""
    flips, shifts, has_given = [], [], False
    for answer, row in zip(steps, before, strict=True):
        has_given = has_given or answer.given
        if answer.given or not has_given:
            continue
        own = row[: answer.step.num_answers]
        without = answer.step.options[int(own.argmax())]
        if without != answer.answer:
            flips.append(Flip(answer.step.name, without, answer.answer))
        shifts.append(Shift(answer.step.name, float(np.abs(np.asarray(answer.probabilities) - own).max())))
    return tuple(flips), tuple(shifts)
