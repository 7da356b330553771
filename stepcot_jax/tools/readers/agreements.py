"""Agreement among readers and models by step, and an exact test by patient of the models' gains."""

import dataclasses
import itertools

import numpy as np
from jaxtyping import Float64, Int32, Int64

from stepcot_jax.annotate.agreement import cohen_kappa, fleiss_kappa
from stepcot_jax.chain import NOT_ANNOTATED, Chain
from stepcot_jax.evaluation.intervals import Interval, percentiles
from stepcot_jax.evaluation.metrics import weighted_confusion
from stepcot_jax.evaluation.resamples import count_once, weighted_mean
from stepcot_jax.tools.readers.forms import Key

LEVEL = 0.95
"""Share of the resampled figures inside an interval."""

Answers = dict[str, Int32[np.ndarray, "case step"]]


@dataclasses.dataclass(frozen=True)
class Agreement:
    """Agreement of two readers, a reader and a model, or all readers at a step.

    Attributes:
      kind: of the kappa: "Fleiss" of all readers, "Cohen" of two.
      num_cases: cases that all of them have answered, with or without a known true answer.
      share: of these cases, those with the same answer from all.
      kappa: NaN where only one answer occurs.
    """

    names: tuple[str, ...]
    kind: str
    num_cases: int
    share: Interval
    kappa: Interval


def measure_agreements(
    people: Answers, models: Answers, chain: Chain, weights: Float64[np.ndarray, "resample case"]
) -> tuple[tuple[Agreement, ...], ...]:
    """Measure the agreement of all readers, of each two, and of each reader with each model.

    Args:
      weights: how often a case counts in each resample; zeros if nothing can be resampled.
    """
    compared = [(people, "Fleiss")] if len(people) > 1 else []
    pairs = [*itertools.combinations(people, 2), *itertools.product(people, models)]
    compared += [({one: people[one], other: (people | models)[other]}, "Cohen") for one, other in pairs]
    return tuple(
        tuple(_measure(answers, kind, place, step.num_answers, weights) for answers, kind in compared)
        for place, step in enumerate(chain.steps)
    )


def _measure(
    answers: Answers, kind: str, place: int, num_answers: int, weights: Float64[np.ndarray, "resample case"]
) -> Agreement:
    found = np.stack([labels[:, place] for labels in answers.values()], axis=1)
    answered = (found != NOT_ANNOTATED).all(axis=1)
    found, weights = found[answered], weights[:, answered]
    alike = (found == found[:, :1]).all(axis=1, keepdims=True)

    def compute(weights: Float64[np.ndarray, "resample case"]) -> tuple[Float64[np.ndarray, "resample"], ...]:
        if kind == "Fleiss":
            kappa = fleiss_kappa((found[:, :, None] == np.arange(num_answers)).sum(axis=1), weights)
        else:
            one, other = found.T
            kappa = cohen_kappa(weighted_confusion(weights, truth=one, answers=other, num_answers=num_answers))
        return weighted_mean(weights, values=alike, counted=np.ones_like(alike))[:, 0], kappa

    whole, resampled = compute(count_once(len(found))), compute(weights)
    share, corrected = (
        percentiles(float(value[0]), drawn, level=LEVEL) for value, drawn in zip(whole, resampled, strict=True)
    )
    return Agreement(tuple(answers), kind, len(found), share, corrected)


def compare_signs(key: Key, people: Answers, models: Answers) -> tuple[list[int], dict[str, list[float]]]:
    """Count the patients with a known answer by step, and test each model's gain over all readers together.

    Returns:
      Numbers of patients by step, and by model the p of each step by `flip_signs`.
    """
    truth = np.array([case.labels for case in key.cases], np.int32)
    patients = np.array([case.patient_id for case in key.cases], np.str_)
    # As in the bootstrap, a case without a patient is a patient of its own.
    own = np.where(patients == "", np.char.add("\n", np.arange(len(patients)).astype(np.str_)), patients)
    names, member = np.unique(own, return_inverse=True)
    known = truth != NOT_ANNOTATED
    of_readers = np.sum([(answers == truth) & known for answers in people.values()], axis=0)
    p_values = {}
    for model, answers in models.items():
        # Times the number of readers, so that all are whole numbers: +2 where the model and one of three is correct.
        more = len(people) * ((answers == truth) & known) - of_readers
        summed = np.zeros((len(names), truth.shape[1]), np.int64)
        np.add.at(summed, member, more)
        p_values[model] = [flip_signs(column) for column in summed.T]
    return [len(np.unique(own[column])) for column in known.T], p_values


def flip_signs(differences: Int64[np.ndarray, "patient"]) -> float:
    """Return the exact two-sided p of a sum of differences under random signs (Fisher's randomisation test of pairs).

    With one reader and one case per patient it is the exact McNemar test; unlike that test it goes by patient and
    takes several readers together.

    >>> flip_signs(np.array([1, 1, 1, 0, 0]))
    0.25
    """
    sizes = np.abs(differences[differences != 0])
    chances = np.ones(1)  # of the sums from -sizes.sum() on, in steps of 2
    for size in sizes.tolist():
        chances = np.pad(chances / 2, (0, size)) + np.pad(chances / 2, (size, 0))
    sums = 2 * np.arange(len(chances)) - sizes.sum()
    return min(1.0, float(chances[np.abs(sums) >= abs(differences.sum())].sum()))
