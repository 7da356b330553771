"""Which answers of a reading lie at or above their operating points, with the figures that the points have on test."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stepcot_jax.chain import Step

if TYPE_CHECKING:
    from stepcot_jax.evaluation.operating_point_files import OperatingPoints


_FIGURES = ("threshold", "sensitivity", "specificity")
Points = Mapping[int, tuple[str, float, float, float]]
"""Of a step: by label the answer, its threshold, and the sensitivity and specificity on test."""


@dataclasses.dataclass(frozen=True)
class Finding:
    """An answer with an operating point.

    Attributes:
      threshold: probability from which the finding is called; infinite: it never is.
      sensitivity: at the threshold, of the test cases; NaN where no test case has the answer.
      specificity: the same; NaN where every test case has it.
    """

    answer: str
    probability: float
    threshold: float
    sensitivity: float
    specificity: float

    @property
    def is_above(self) -> bool:
        """Whether the probability is the threshold or more."""
        return self.probability >= self.threshold

    def as_dict(self) -> dict[str, Any]:
        """Return plain types, for JSON; None for numbers that are not finite."""
        numbers = {name: getattr(self, name) for name in ("threshold", "sensitivity", "specificity")}
        finite = {name: value if math.isfinite(value) else None for name, value in numbers.items()}
        return {**finite, "above": self.is_above}

    def __str__(self) -> str:
        shares = (("sensitivity", self.sensitivity), ("specificity", self.specificity))
        known = ", ".join(f"{name} {100 * share:.0f} %" for name, share in shares if not math.isnan(share))
        return f"{self.answer} ({known or 'not measured'})"


def find_points(step: Step, points: "OperatingPoints | None", model: str) -> Points:
    """Return the answers of a step that have an operating point."""
    chosen = {} if points is None else points.of_step(model, step.name)
    return {
        label: (option, *(getattr(chosen[option], name).value for name in _FIGURES))
        for label, option in enumerate(step.options)
        if option in chosen
    }


def find_called(points: Points, probabilities: Sequence[float]) -> tuple[Finding, ...]:
    """Return the answers with an operating point, most probable first, equal ones in the order of the options."""
    chosen = ((probabilities[label], points[label]) for label in sorted(points, key=lambda each: -probabilities[each]))
    return tuple(Finding(answer, share, *figures) for share, (answer, *figures) in chosen)


def describe_called(findings: Mapping[str, Sequence[Finding]], rule: str) -> list[str]:
    """Return a heading and a line for each step with answers at or above their operating points."""
    if not any(findings.values()):
        return []
    lines = [f"above the operating point ({rule}; figures of the test cases):"]
    for step, own in findings.items():
        called = [str(each) for each in own if each.is_above]
        lines += [f"  {step}: {', '.join(called) or 'none'}"] if own else []
    return lines
