"""Figures of subgroups by origin, view, sex and age, with intervals."""

import dataclasses
import functools
import math

import numpy as np
import numpy.typing as npt

from stepcot_jax.chain import Chain, find_one_answer
from stepcot_jax.evaluation.evaluator import Predictions
from stepcot_jax.evaluation.intervals import ModelIntervals, bootstrap
from stepcot_jax.evaluation.prediction_files import SplitPredictions
from stepcot_jax.evaluation.resamples import count_patients
from stepcot_jax.host.errors import BadInput

GROUPINGS = ("origin", "view", "sex", "age")
MIN_PATIENTS = 10
UNKNOWN = "unknown"

_AGE_BANDS = ((18, "0-17"), (40, "18-39"), (65, "40-64"), (math.inf, "65+"))


@dataclasses.dataclass(frozen=True)
class Subgroup:
    """Cases that share a fact.

    Attributes:
      grouping: the fact, one of `GROUPINGS`.
      name: its value; `UNKNOWN` if there is none.
      models: figures by model name; None with too few patients.
    """

    grouping: str
    name: str
    num_cases: int
    num_patients: int
    models: dict[str, ModelIntervals] | None


def score_subgroups(
    split: SplitPredictions,
    chain: Chain,
    *,
    groupings: tuple[str, ...] = GROUPINGS,
    min_patients: int = MIN_PATIENTS,
    num_resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> tuple[Subgroup, ...]:
    """Compute the figures of every group, each with its own bootstrap by patient.

    Means over steps are over the same steps in every group: those with two or more answers in the whole split. The
    groups are many and small: one that stands out may do so by chance, and the answers of one group may be easier
    than those of another. The cases whose fact is unknown are a group too.

    Returns:
      The groups by grouping, then by name, with ages rising and the unknown last.
    """
    wrong = [grouping for grouping in groupings if grouping not in GROUPINGS]
    if wrong:
        raise BadInput(f"subgroups: {wrong[0]!r} is not one of {', '.join(GROUPINGS)}")
    left_out, found = find_one_answer(split.predictions.labels), []
    for grouping in groupings:
        names = _name_groups(grouping, split.facts[grouping])
        for name in sorted(set(names.tolist()), key=lambda name: (name == UNKNOWN, _age_order(name), name)):
            part = _choose(split, names == name)
            num_patients = count_patients(part.facts["patient_id"])
            scored = num_patients >= min_patients
            measure = functools.partial(bootstrap, num_resamples=num_resamples, level=level, seed=seed)
            models = measure(part, chain, left_out=left_out) if scored else None
            found.append(Subgroup(grouping, name, len(part.predictions.index), num_patients, models))
    return tuple(found)


def age_band(age: str) -> str:
    """Return the band of an age in years, given as text; `UNKNOWN` for "".

    >>> age_band("17.9"), age_band("18"), age_band("")
    ('0-17', '18-39', 'unknown')
    """
    if not age:
        return UNKNOWN
    return next(name for limit, name in _AGE_BANDS if float(age) < limit)


def _name_groups(grouping: str, values: npt.NDArray[np.str_]) -> npt.NDArray[np.str_]:
    name = age_band if grouping == "age" else lambda value: value.strip() or UNKNOWN
    return np.array([name(value) for value in values.tolist()], dtype=np.str_)


def _age_order(name: str) -> int:
    bands = [band for _, band in _AGE_BANDS]
    return bands.index(name) if name in bands else len(bands)


def _choose(split: SplitPredictions, chosen: npt.NDArray[np.bool_]) -> SplitPredictions:
    predictions = split.predictions
    return SplitPredictions(
        Predictions(
            index=predictions.index[chosen],
            labels=predictions.labels[chosen],
            logits={model: logits[chosen] for model, logits in predictions.logits.items()},
        ),
        {fact: values[chosen] for fact, values in split.facts.items()},
    )
