"""A calibration on disk, as JSON, so that readings elsewhere have the probabilities and answer sets of the run."""

import math
import os
from typing import Annotated

import msgspec

from stepcot_jax.chain import Chain, Step
from stepcot_jax.evaluation.calibration import Calibration
from stepcot_jax.evaluation.distributions import describe_difference
from stepcot_jax.evaluation.report_table import write_report
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import read_json

_LAYOUT = "stepcot_jax calibration 1"
_MAX_BYTES = 2**24

_Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
_Threshold = _Share | None


class _FileStep(msgspec.Struct, frozen=True):
    name: str
    options: tuple[str, ...]
    temperature: Annotated[float, msgspec.Meta(gt=0)]
    threshold: _Threshold
    note: str = ""
    answer_thresholds: list[_Threshold] | None = None
    num_cases: list[Annotated[int, msgspec.Meta(ge=0)]] | None = None
    coverage_range: tuple[_Share, _Share] | None = None

    @property
    def limit(self) -> float:
        return _infinite_if_none(self.threshold)


class _File(msgspec.Struct, frozen=True):
    layout: str
    coverage: Annotated[float, msgspec.Meta(gt=0, lt=1)]
    models: dict[str, list[_FileStep]]
    confidence: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.0


def write_calibration(path: str | os.PathLike[str], calibration: Calibration, chain: Chain) -> None:
    """Write a JSON file atomically; an infinite threshold becomes null."""

    def describe(model: str, position: int, step: Step) -> dict[str, object]:
        described = {
            "name": step.name,
            "options": list(step.options),
            "temperature": calibration.temperatures[model][position],
            "threshold": _finite_or_none(calibration.thresholds[model][position]),
            "note": calibration.notes[model][position] if model in calibration.notes else "",
        }
        if calibration.coverage_by == "answer":
            limits = calibration.answer_thresholds[model][position]
            described["answer_thresholds"] = [_finite_or_none(limit) for limit in limits]
        if model in calibration.num_cases:
            described["num_cases"] = list(calibration.num_cases[model][position])
            described["coverage_range"] = calibration.coverage_range(model, position)
        return described

    steps = list(enumerate(chain.steps))
    models = {model: [describe(model, *each) for each in steps] for model in calibration.temperatures}
    aims = {"coverage": calibration.coverage, "confidence": calibration.confidence}
    write_report(path, {"layout": _LAYOUT, **aims, "models": models})


def read_calibration(path: str | os.PathLike[str], chain: Chain) -> Calibration:
    """Read a file of `write_calibration`."""
    found = read_json(path, _File, accepted="expected the calibration.json of a run", max_bytes=_MAX_BYTES)
    if found.layout != _LAYOUT:
        raise BadInput(f"{path}, 'layout': {found.layout[:80]!r} is not {_LAYOUT!r}")
    for model, steps in found.models.items():
        difference = describe_difference([(step.name, step.options) for step in steps], chain)
        if difference:
            raise BadInput(f"{path}, {model}: calibration of another chain: {difference}")
    by_answer = _read_answer_thresholds(path, found)
    return Calibration(
        coverage=found.coverage,
        temperatures={model: tuple(step.temperature for step in steps) for model, steps in found.models.items()},
        thresholds={model: tuple(step.limit for step in steps) for model, steps in found.models.items()},
        notes={model: tuple(step.note for step in steps) for model, steps in found.models.items()},
        answer_thresholds=by_answer,
        num_cases=_read_num_cases(path, found),
        confidence=found.confidence,
        coverage_ranges={model: tuple(step.coverage_range for step in steps) for model, steps in found.models.items()},
    )


def _read_num_cases(path: str | os.PathLike[str], found: _File) -> dict[str, tuple[tuple[int, ...], ...]]:
    """Return the validation cases by answer of each model that has them for all steps; older files have none."""
    counted = {model: steps for model, steps in found.models.items() if any(step.num_cases for step in steps)}
    for model, steps in counted.items():
        for step in steps:
            if len(step.num_cases or ()) != len(step.options):
                raise BadInput(
                    f"{path}, {model}, {step.name!r}, 'num_cases': {len(step.num_cases or ())} numbers for "
                    f"{len(step.options)} options"
                )
    return {model: tuple(tuple(step.num_cases or ()) for step in steps) for model, steps in counted.items()}


def _read_answer_thresholds(path: str | os.PathLike[str], found: _File) -> dict[str, tuple[tuple[float, ...], ...]]:
    """Return the thresholds by answer of all models and steps; empty if the file has none at all."""
    if all(step.answer_thresholds is None for steps in found.models.values() for step in steps):
        return {}
    for model, steps in found.models.items():
        for step in steps:
            if len(step.answer_thresholds or ()) != len(step.options):
                raise BadInput(
                    f"{path}, {model}, {step.name!r}, 'answer_thresholds': {step.answer_thresholds} is not one number "
                    f"or null for each of the {len(step.options)} options"
                )
    return {
        model: tuple(tuple(map(_infinite_if_none, step.answer_thresholds or ())) for step in steps)
        for model, steps in found.models.items()
    }


def _infinite_if_none(threshold: float | None) -> float:
    return math.inf if threshold is None else threshold


def _finite_or_none(threshold: float) -> float | None:
    return threshold if math.isfinite(threshold) else None
