"""The answer to one question, and what answers that a person gives change in later ones."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from stepcot_jax.chain import Step


@dataclasses.dataclass(frozen=True)
class StepAnswer:
    """The answer to one question.

    Attributes:
      step: the question with its options.
      label: of the answer: the given one where one was given, else the network's most probable.
      probabilities: the network's, one an option; also where an answer was given.
      given: whether a person gave the answer.
      answer_set: the options that the conformal set holds, most probable first; None where there is none.
    """

    step: Step
    label: int
    probabilities: tuple[float, ...]
    given: bool
    answer_set: tuple[str, ...] | None

    @property
    def answer(self) -> str:
        """The answer's text."""
        return self.step.options[self.label]

    @property
    def probability(self) -> float:
        """The probability that the network gives to the answer."""
        return self.probabilities[self.label]


@dataclasses.dataclass(frozen=True)
class Flip:
    """A later answer that a correction changed."""

    step: str
    before: str
    after: str


@dataclasses.dataclass(frozen=True)
class Shift:
    """How far what was given has moved the probabilities of a later step, 0 to 1: the largest change of any."""

    step: str
    change: float


_LEAST_SHIFT = 0.001
"""Below this change of a probability nobody would see a difference."""


def find_flips(steps: Sequence[StepAnswer], before: Float[np.ndarray, "step answer"]) -> tuple[Flip, ...]:
    """The network's answers that are others than without the given ones.

    Args:
      steps: the answers.
      before: the probabilities without given answers.
    """
    flips = []
    for answer, row in zip(steps, before, strict=True):
        without = answer.step.options[int(row[: answer.step.num_answers].argmax())]
        if not answer.given and without != answer.answer:
            flips.append(Flip(answer.step.name, without, answer.answer))
    return tuple(flips)


def measure_shifts(steps: Sequence[StepAnswer], before: Float[np.ndarray, "step answer"]) -> tuple[Shift, ...]:
    """The largest change of a probability in each of the network's answers after the first given one."""
    shifts = []
    has_given = False
    for answer, row in zip(steps, before, strict=True):
        has_given = has_given or answer.given
        if has_given and not answer.given:
            change = np.abs(np.asarray(answer.probabilities) - row[: answer.step.num_answers]).max()
            shifts.append(Shift(answer.step.name, float(change)))
    return tuple(shifts)


def describe_shifts(shifts: Sequence[Shift]) -> str:
    """How far later probabilities moved at most, in words; nothing where no step is later."""
    if not shifts:
        return ""
    most = max(shifts, key=lambda shift: shift.change)
    if most.change < _LEAST_SHIFT:
        return "no later probability moved by 0.1 points: this network hardly uses its earlier answers"
    return f"largest change of a later probability: {100 * most.change:.1f} points ({most.step})"
