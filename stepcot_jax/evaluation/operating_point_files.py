"""Operating points in `statistics.json`, from which reports and readings elsewhere take them."""

import dataclasses
import functools
import math
import os
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from stepcot_jax.chain import Chain
from stepcot_jax.evaluation.intervals import Interval
from stepcot_jax.evaluation.operating_points import FIGURES, Finding, OperatingPoint, Rule
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import read_json

_MAX_BYTES = 2**28


class _FileInterval(msgspec.Struct, frozen=True):
    value: float | None
    low: float | None
    high: float | None
    undefined: float = 0.0

    def as_interval(self, missing: float = math.nan) -> Interval:
        """Return the interval; a value of None is `missing`."""
        low, high = (math.nan if end is None else end for end in (self.low, self.high))
        return Interval(missing if self.value is None else self.value, low, high, self.undefined)


class _FilePoint(msgspec.Struct, frozen=True):
    threshold: _FileInterval
    validation: tuple[int, int]
    test: tuple[int, int]
    sensitivity: _FileInterval
    specificity: _FileInterval
    ppv: _FileInterval
    npv: _FileInterval

    def as_point(self) -> OperatingPoint:
        """Return the point; a threshold of None is infinite."""
        figures = (getattr(self, name).as_interval() for name in FIGURES)
        return OperatingPoint(self.threshold.as_interval(math.inf), self.validation, self.test, *figures)


class _FilePoints(msgspec.Struct, frozen=True):
    rule: Rule
    models: dict[str, dict[str, dict[str, _FilePoint]]]


class _Statistics(msgspec.Struct, frozen=True):
    operating_points: _FilePoints | None = None


@dataclasses.dataclass(frozen=True)
class OperatingPoints:
    """The operating points of a run.

    Attributes:
      rule: by which they were chosen.
      points: by model, step and answer.
    """

    rule: Rule
    points: Mapping[Finding, OperatingPoint]

    def of_step(self, model: str, step: str) -> dict[str, OperatingPoint]:
        """Return the points of a step's answers that have one, by answer."""
        return self._by_step.get((model, step), {})

    @functools.cached_property
    def _by_step(self) -> dict[tuple[str, str], dict[str, OperatingPoint]]:
        found: dict[tuple[str, str], dict[str, OperatingPoint]] = {}
        for (model, step, answer), point in self.points.items():
            found.setdefault((model, step), {})[answer] = point
        return found


def describe_points(found: OperatingPoints) -> dict[str, Any]:
    """Return the points as plain types; numbers that are not finite become None in strict JSON."""
    models: dict[str, dict[str, dict[str, Any]]] = {}
    for (model, step, answer), point in found.points.items():
        models.setdefault(model, {}).setdefault(step, {})[answer] = dataclasses.asdict(point)
    return {"rule": dataclasses.asdict(found.rule), "models": models}


def read_points(path: str | os.PathLike[str], chain: Chain) -> OperatingPoints | None:
    """Read the operating points of a `statistics.json`; None if the run chose none."""
    accepted = "expected the statistics.json of a run"
    found = read_json(path, _Statistics, accepted=accepted, max_bytes=_MAX_BYTES).operating_points
    if found is None:
        return None
    known = {step.name: step.options for step in chain.steps}
    points = {}
    for finding, point in _walk(found):
        model, step, answer = finding
        if answer not in known.get(step, ()):
            raise BadInput(f"{path}, operating points of {model}: {answer!r} at {step!r} is no answer of this chain")
        points[finding] = point.as_point()
    return OperatingPoints(found.rule, points)


def _walk(found: _FilePoints) -> Iterator[tuple[Finding, _FilePoint]]:
    for model, steps in found.models.items():
        for step, answers in steps.items():
            for answer, point in answers.items():
                yield (model, step, answer), point
