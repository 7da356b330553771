"""How sure an answer is: one temperature a step, and sets of answers that hold the true one as often as stated.

Both are fitted on the validation split. Temperature scaling divides the logits of a step by one number, which
changes how sure the answers are and never which one is the most probable (Guo et al. 2017). The answer sets are
split-conformal (Vovk et al. 2005; Sadinle et al. 2019): over cases drawn as the validation cases were, the set holds
the true answer at least as often as `coverage` says, whatever the model. Three things bend that promise a little: the
same cases chose the checkpoint and fitted the temperature, cases of one patient are not independent, and another
hospital's cases are not drawn as these were. What the test split shows is the check.
"""

import dataclasses
import math
import os
from collections.abc import Mapping
from typing import Annotated

import msgspec
import numpy as np
import numpy.typing as npt

from stepcot_jax.chain import NOT_ANNOTATED, Chain, Step
from stepcot_jax.evaluation.distributions import describe_difference, own_logits, softmax
from stepcot_jax.evaluation.evaluator import Predictions
from stepcot_jax.evaluation.report_table import write_report
from stepcot_jax.evaluation.temperature import fit_temperature
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import read_json

_LAYOUT = "stepcot_jax calibration 1"
_MAX_BYTES = 2**24


@dataclasses.dataclass(frozen=True)
class Calibration:
    """Temperatures and conformal thresholds of each model and step.

    Attributes:
      coverage: share of the cases whose answer set holds the true answer, in 0..1, of each step for itself.
      temperatures: by the model's name, what to divide each step's logits by.
      thresholds: by the model's name, for each step how much of the probability an answer may lack to be in
        the set; infinite where the cases are too few for the coverage, so that every answer is in the set.
      notes: by the model's name, for each step what could not be fitted and why; "" where nothing is to say.
    """

    coverage: float
    temperatures: Mapping[str, tuple[float, ...]]
    thresholds: Mapping[str, tuple[float, ...]]
    notes: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)


def fit_calibration(val: Predictions, chain: Chain, *, coverage: float = 0.9) -> Calibration:
    """Temperatures and thresholds of every model on the validation split.

    Args:
      val: labels and logits; a step's unannotated cases take no part in it.
      chain: the steps.
      coverage: wanted share of cases whose answer set holds the true answer, above 0 and below 1.

    Raises:
      ValueError: the coverage is outside, or the logits do not fit the chain.
    """
    if not 0 < coverage < 1:
        raise ValueError(f"coverage: found {coverage}, accepted is a share above 0 and below 1")
    temperatures, thresholds, notes = {}, {}, {}
    for model, logits in val.logits.items():
        fitted = [
            _fit_step(own, truth, coverage=coverage)
            for own, truth in zip(own_logits(logits, chain=chain, model=model), val.labels.T, strict=True)
        ]
        temperatures[model] = tuple(temperature for temperature, _, _ in fitted)
        thresholds[model] = tuple(threshold for _, threshold, _ in fitted)
        notes[model] = tuple(note for _, _, note in fitted)
    return Calibration(coverage=coverage, temperatures=temperatures, thresholds=thresholds, notes=notes)


def conformal_threshold(scores: npt.NDArray[np.float64], *, coverage: float) -> float:
    """The score that a new case's true answer exceeds with probability 1 - coverage at most.

    Args:
      scores: [case], 1 - probability of the true answer.
      coverage: wanted share, above 0 and below 1.

    Returns:
      The ceil((n + 1) * coverage)-th smallest of the n scores; infinite where there are fewer.

    >>> conformal_threshold(np.arange(19) / 19, coverage=0.9) == 17 / 19
    True
    """
    # Rounding must not ask for one case more than (n + 1) * coverage does.
    rank = math.ceil((len(scores) + 1) * coverage - 1e-9)
    return float(np.sort(scores)[rank - 1]) if rank <= len(scores) else math.inf


def calibrated_probabilities(
    logits: npt.NDArray[np.floating], model: str, calibration: Calibration, chain: Chain
) -> npt.NDArray[np.float64]:
    """Distributions after temperature scaling.

    Args:
      logits: [case, step, answer], padded.
      model: name of the model that gave them.
      calibration: its temperatures.
      chain: the steps.

    Returns:
      [case, step, answer], each in 0..1; 0 beyond a step's own answers.

    Raises:
      BadInput: the calibration knows no such model.
    """
    temperatures = _of_model(calibration.temperatures, model)
    probabilities = np.zeros(logits.shape)
    for position, own in enumerate(own_logits(logits, chain=chain, model=model)):
        probabilities[:, position, : own.shape[1]] = softmax(own / temperatures[position])
    return probabilities


def answer_sets(
    probabilities: npt.NDArray[np.float64], model: str, calibration: Calibration, chain: Chain
) -> npt.NDArray[np.bool_]:
    """The answers that cannot be ruled out at the stated coverage; never none of them.

    Args:
      probabilities: [case, step, answer] of `calibrated_probabilities`.
      model: name of the model that gave them.
      calibration: its thresholds.
      chain: the steps.

    Returns:
      [case, step, answer], True for an answer in the set. The most probable answer always is, which a bare
      conformal set does not promise and which can only raise the coverage.

    Raises:
      BadInput: the calibration knows no such model.
    """
    thresholds = _of_model(calibration.thresholds, model)
    included = np.zeros(probabilities.shape, dtype=bool)
    for position, step in enumerate(chain.steps):
        own = probabilities[:, position, : step.num_answers]
        included[:, position, : step.num_answers] = 1 - own <= thresholds[position]
        included[np.arange(len(own)), position, own.argmax(axis=1)] = True
    return included


def write_calibration(path: str | os.PathLike[str], calibration: Calibration, chain: Chain) -> None:
    """Writes a JSON file, whole or not at all; an infinite threshold is null there."""

    def describe(model: str, position: int, step: Step) -> dict[str, object]:
        threshold = calibration.thresholds[model][position]
        return {
            "name": step.name,
            "options": list(step.options),
            "temperature": calibration.temperatures[model][position],
            "threshold": threshold if math.isfinite(threshold) else None,
            "note": calibration.notes[model][position] if model in calibration.notes else "",
        }

    models = {
        model: [describe(model, position, step) for position, step in enumerate(chain.steps)]
        for model in calibration.temperatures
    }
    write_report(path, {"layout": _LAYOUT, "coverage": calibration.coverage, "models": models})


def read_calibration(path: str | os.PathLike[str], chain: Chain) -> Calibration:
    """Reads what `write_calibration` wrote.

    Raises:
      BadInput: the file is missing, damaged or of another chain.
    """
    accepted = "accepted is a calibration file as a run writes it"
    found = read_json(path, _File, accepted=accepted, max_bytes=_MAX_BYTES)
    if found.layout != _LAYOUT:
        raise BadInput(f"{path}: layout: found {found.layout[:80]!r}, accepted is {_LAYOUT!r}")
    for model, steps in found.models.items():
        difference = describe_difference([(step.name, step.options) for step in steps], chain)
        if difference:
            raise BadInput(f"{path}: {model}: calibration of another chain, {difference}")
    return Calibration(
        coverage=found.coverage,
        temperatures={model: tuple(step.temperature for step in steps) for model, steps in found.models.items()},
        thresholds={
            model: tuple(math.inf if step.threshold is None else step.threshold for step in steps)
            for model, steps in found.models.items()
        },
        notes={model: tuple(step.note for step in steps) for model, steps in found.models.items()},
    )


class _FileStep(msgspec.Struct, frozen=True):
    name: str
    options: tuple[str, ...]
    temperature: Annotated[float, msgspec.Meta(gt=0)]
    threshold: Annotated[float, msgspec.Meta(ge=0, le=1)] | None
    note: str = ""


class _File(msgspec.Struct, frozen=True):
    layout: str
    coverage: Annotated[float, msgspec.Meta(gt=0, lt=1)]
    models: dict[str, list[_FileStep]]


def _fit_step(
    logits: npt.NDArray[np.float64], labels: npt.NDArray[np.integer], *, coverage: float
) -> tuple[float, float, str]:
    annotated = labels != NOT_ANNOTATED
    logits, labels = logits[annotated], labels[annotated]
    temperature, note = fit_temperature(logits, labels)
    probabilities = softmax(logits / temperature)
    threshold = conformal_threshold(1 - probabilities[np.arange(len(labels)), labels], coverage=coverage)
    if math.isinf(threshold):
        few = f"{len(labels)} annotated cases are too few for a coverage of {coverage:g}: every answer is in the set"
        note = f"{note}; {few}" if note else few
    return temperature, threshold, note


def _of_model(values: Mapping[str, tuple[float, ...]], model: str) -> tuple[float, ...]:
    if model not in values:
        raise BadInput(f"calibration: found no model {model!r}, accepted are {', '.join(values)}")
    return values[model]
