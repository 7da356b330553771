"""The answer to one question of a reading, with its probabilities, answer set and operating points."""

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float

from stepcot_jax.chain import Step
from stepcot_jax.predict.called_findings import Finding, Points, find_called, find_points
from stepcot_jax.predict.paragraph import percent

if TYPE_CHECKING:
    from stepcot_jax.evaluation.operating_point_files import OperatingPoints


@dataclasses.dataclass(frozen=True)
class StepAnswer:
    """The answer to one question.

    Attributes:
      step: the question with its options.
      label: of the most probable answer: the person's if one was given, else the network's.
      probabilities: the network's, one for each option, also if an answer was given.
      given_shares: the person's probability of each option; () if no answer was given.
      answer_set: the options of the conformal set, most probable first; None without calibration.
      coverage_range: 95 % range of the set's coverage (`Calibration.coverage_range`); None if unknown.
      points: operating points by label (`called_findings.find_points`), the same mapping for all images; empty without,
        and from a given answer on.
    """

    step: Step
    label: int
    probabilities: tuple[float, ...]
    given_shares: tuple[float, ...]
    answer_set: tuple[str, ...] | None
    coverage_range: tuple[float, float] | None = None
    points: Points = dataclasses.field(default_factory=dict, hash=False)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The answers with an operating point, most probable first."""
        return find_called(self.points, self.probabilities)

    @property
    def above(self) -> tuple[str, ...]:
        """The answers at or above their operating points, most probable first."""
        called = [label for label, point in self.points.items() if self.probabilities[label] >= point[1]]
        called.sort(key=lambda label: -self.probabilities[label])
        return tuple(self.step.options[label] for label in called)

    @property
    def given(self) -> bool:
        """Whether a person gave the answer."""
        return bool(self.given_shares)

    @property
    def answer(self) -> str:
        """The answer's text."""
        return self.step.options[self.label]

    @property
    def probability(self) -> float:
        """The network's probability of the answer."""
        return self.probabilities[self.label]

    def describe_certainty(self) -> str:
        """Return the probability and the other answers of the conformal set, in words."""
        if self.given:
            share = self.given_shares[self.label]
            return f"given{'' if share == 1 else f' at {percent(share)}'} (network: {percent(self.probability)})"
        others = [option for option in self.answer_set or () if option != self.answer]
        return " or ".join([percent(self.probability), *([", ".join(others)] if others else [])])


def answer_step(
    step: Step,
    probabilities: Float[np.ndarray, "case answer"],
    given: Float[np.ndarray, "step answer"],
    place: int,
    sets: Bool[np.ndarray, "case answer"] | None,
    points: "OperatingPoints | None",
    model: str,
    spread: tuple[float, float] | None = None,
) -> list[StepAnswer]:
    """Return the answers of all cases to a step.

    Args:
      given: distributions that a person gave, the same for all cases, zeros for the network's own.
    """
    own = probabilities[:, : step.num_answers]
    shares = tuple(given[place, : step.num_answers].tolist()) if given[place].any() else ()
    labels = [int(np.argmax(shares))] * len(own) if shares else own.argmax(axis=1).tolist()
    numbers = [tuple(row) for row in own.tolist()]
    if given[: place + 1].any():  # sets and operating points were fitted without given answers
        pairs = zip(labels, numbers, strict=True)
        return [StepAnswer(step, label, row, shares, None, spread) for label, row in pairs]
    orders, chosen = np.argsort(-own, axis=1, kind="stable").tolist(), find_points(step, points, model)
    included = [None] * len(own) if sets is None else sets.tolist()
    return [
        StepAnswer(
            step,
            label,
            row,
            (),
            None if held is None else tuple(step.options[option] for option in order if held[option]),
            spread,
            chosen,
        )
        for label, row, order, held in zip(labels, numbers, orders, included, strict=True)
    ]
