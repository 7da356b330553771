"""All statistics of a split as one tree of plain values: the content of `statistics.json`.

Values and intervals come from the same functions, and all intervals from the same resamples. An expected calibration
error is a sum of distances, to which the noise of a resample only adds: its interval lies high, and a small error can
lie below its whole interval. The coverage of answer sets by true answer has few cases where an answer is rare: read it
with `num_cases_by_answer` and its interval.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from stepcot_jax.chain import NOT_ANNOTATED, Chain, find_one_answer
from stepcot_jax.evaluation.calibration import Calibration, answer_sets, calibrated_probabilities, calibration_figures
from stepcot_jax.evaluation.consistency import Rules, answer_and_decode, decoding_figures, inconsistent
from stepcot_jax.evaluation.intervals import ModelIntervals, bootstrap, percentiles
from stepcot_jax.evaluation.predictions import Predictions, SplitPredictions, evaluate, own_probabilities
from stepcot_jax.evaluation.resamples import (
    Weights,
    check_cases,
    count_once,
    count_patients,
    divide,
    resample,
    weighted_mean,
)
from stepcot_jax.host.errors import BadInput

# Statistics of one step beyond the metrics: calibration, answer sets and selective reading.


COVERAGES = (0.5, 0.7, 0.9, 1.0)
"""Shares of the cases that are read, the most confident first."""

SUREST, BY_ANSWER = "accuracy_of_the_surest", "answer_set_coverage_by_answer"
"""Figures of several numbers: one for each of `COVERAGES`, and one for each answer of the step."""


@dataclasses.dataclass(frozen=True)
class StepCases:
    """A model's predictions on every case at one step.

    Attributes:
      raw: [case, answer], the model's own probabilities.
      calibrated: [case, answer], after temperature scaling.
      sets: [case, answer], True for an answer in the answer set.
    """

    name: str
    labels: npt.NDArray[np.integer]
    raw: npt.NDArray[np.float64]
    calibrated: npt.NDArray[np.float64]
    sets: npt.NDArray[np.bool_]


def step_cases(predictions: Predictions, chain: Chain, *, model: str, calibration: Calibration) -> list[StepCases]:
    """Return a model's predictions at each step of the chain."""
    logits = predictions.logits[model]
    calibrated = calibrated_probabilities(logits, model, calibration, chain)
    sets = answer_sets(calibrated, model, calibration, chain)
    return [
        StepCases(
            name=step.name,
            labels=predictions.labels[:, position],
            raw=raw,
            calibrated=calibrated[:, position, : step.num_answers],
            sets=sets[:, position, : step.num_answers],
        )
        for position, (step, raw) in enumerate(
            zip(chain.steps, own_probabilities(logits, chain=chain, model=model), strict=True)
        )
    ]


def step_statistics(weights: Weights, cases: StepCases) -> dict[str, npt.NDArray[np.float64]]:
    """Compute the statistics of one step in each resample.

    Returns:
      By figure name [resample]; `accuracy_of_the_surest` is [resample, share] in the order of `COVERAGES`,
      `answer_set_coverage_by_answer` [resample, answer] is of the cases with each true answer. NaN where no annotated
    """
    raw, calibrated = (
        calibration_figures(weights, probabilities=own, labels=cases.labels) for own in (cases.raw, cases.calibrated)
    )
    annotated = cases.labels != NOT_ANNOTATED
    truth = np.where(annotated, cases.labels, 0)
    covered = cases.sets[np.arange(len(truth)), truth]
    covered_and_size = np.stack([covered, cases.sets.sum(axis=1)], axis=1)
    sets = weighted_mean(
        weights, values=covered_and_size, counted=np.broadcast_to(annotated[:, None], covered_and_size.shape)
    )
    has_answer = cases.labels[:, None] == np.arange(cases.sets.shape[1])
    by_answer = weighted_mean(weights, values=np.repeat(covered[:, None], has_answer.shape[1], 1), counted=has_answer)
    accuracies, area = selective_figures(weights, probabilities=cases.calibrated, labels=cases.labels, shares=COVERAGES)
    return {
        "ece": raw["ece"],
        "ece_calibrated": calibrated["ece"],
        "brier": raw["brier"],
        "nll": raw["nll"],
        "nll_calibrated": calibrated["nll"],
        "answer_set_coverage": sets[:, 0],
        "answer_set_size": sets[:, 1],
        BY_ANSWER: by_answer,
        SUREST: accuracies,
        "selective_area": area,
    }


@dataclasses.dataclass(frozen=True)
class SelectiveCurve:
    """Accuracy of the most confident cases; cases of equal confidence are read together.

    Attributes:
      confidence: for each point the lowest confidence that is still read, falling.
      coverage: for each point the share of the cases read, rising to 1.
      accuracy: for each point the share of those that are correct.
      area: mean accuracy over all numbers of cases read, from one to all; cases of equal confidence stand for every
        order among themselves. It equals the accuracy where confidence carries no information; NaN without cases.
    """

    num_cases: int
    confidence: tuple[float, ...]
    coverage: tuple[float, ...]
    accuracy: tuple[float, ...]
    area: float


def selective_curve(*, probabilities: npt.ArrayLike, labels: npt.ArrayLike) -> SelectiveCurve:
    """Compute accuracy against coverage of one step (El-Yaniv and Wiener 2010), by the probability of the answer.

    >>> curve = selective_curve(probabilities=[[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]], labels=[0, 1, 1])
    >>> [f"{accuracy:.2f} of {share:.2f}" for accuracy, share in zip(curve.accuracy, curve.coverage)]
    ['1.00 of 0.33', '1.00 of 0.67', '0.67 of 1.00']
    """
    distributions, truth = np.asarray(probabilities, dtype=np.float64), np.asarray(labels)
    once = count_once(len(truth))
    levels, num_read, num_correct = _read_by_confidence(once, probabilities=distributions, labels=truth)
    num_cases = int((truth != NOT_ANNOTATED).sum())
    return SelectiveCurve(
        num_cases=num_cases,
        confidence=tuple(levels.tolist()),
        coverage=tuple((num_read[0] / max(num_cases, 1)).tolist()),
        accuracy=tuple((num_correct[0] / num_read[0]).tolist()),
        area=float(_area(num_read, num_correct)[0]),
    )


def selective_figures(
    weights: Weights,
    *,
    probabilities: npt.NDArray[np.float64],
    labels: npt.NDArray[np.integer],
    shares: Sequence[float],
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Compute the accuracy among the most confident cases of one step, and the area, in each resample.

    Args:
      shares: smallest shares of the cases to read, above 0 and up to 1; cases of equal confidence are read together.

    Returns:
      Accuracies [resample, share] and `SelectiveCurve.area` [resample]; NaN where no case counts.
    """
    if not all(0 < share <= 1 for share in shares):
        raise ValueError(f"shares must be above 0 and up to 1; got {list(shares)}")
    _, num_read, num_correct = _read_by_confidence(weights, probabilities=probabilities, labels=labels)
    accuracies = np.full((len(weights), len(shares)), np.nan)
    if num_read.size:
        coverage = num_read / np.maximum(num_read[:, -1:], 1)
        rows = np.arange(len(weights))
        for column, share in enumerate(shares):
            # In a resample without cases no level suffices: the first one stands for it and gives NaN.
            place = (coverage >= share).argmax(axis=1)
            accuracies[:, column] = divide(num_correct[rows, place], num_read[rows, place])
    return accuracies, _area(num_read, num_correct)


def _read_by_confidence(
    weights: Weights, *, probabilities: npt.NDArray[np.float64], labels: npt.NDArray[np.integer]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Levels of confidence [level], falling; numbers of cases read and correct down to each [resample, level]."""
    check_cases(weights, probabilities=probabilities, labels=labels)
    annotated = np.flatnonzero(labels != NOT_ANNOTATED)
    confidence = probabilities[annotated].max(axis=1)
    order = np.argsort(-confidence, kind="stable")
    correct = (probabilities[annotated].argmax(axis=1) == labels[annotated])[order]
    last_of_level = np.flatnonzero(np.diff(confidence[order], append=-1.0))
    ordered = weights[:, annotated[order]]
    num_read = np.cumsum(ordered, axis=1)[:, last_of_level]
    num_correct = np.cumsum(ordered * correct, axis=1)[:, last_of_level]
    return confidence[order][last_of_level], num_read, num_correct


def _area(num_read: npt.NDArray[np.float64], num_correct: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Mean accuracy [resample] over all numbers of cases read."""
    if not num_read.size:
        return np.full(len(num_read), np.nan)
    total = num_read[:, -1]
    harmonic = np.concatenate([[0.0], np.cumsum(1 / np.arange(1, total.max(initial=0) + 1))])
    earlier, earlier_correct = (np.pad(own[:, :-1], ((0, 0), (1, 0))) for own in (num_read, num_correct))
    # Within a level the expected number of correct ones is a line, offset + slope * cases: its mean accuracies sum up
    # to the correct ones of the level and the offset times the sum of 1 / cases.
    slope = (num_correct - earlier_correct) / np.maximum(num_read - earlier, 1)
    sums = harmonic[num_read.astype(np.intp)]
    curved = (earlier_correct - slope * earlier) * np.diff(sums, prepend=0.0, axis=1)
    return divide(num_correct[:, -1] + curved.sum(axis=1), total)


# Figures of subgroups by origin, view, sex and age, with intervals.


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


TRUE_CHAINS = "share_of_true_chains_that_break_a_rule"

_DECODING = (
    "share_inconsistent",
    "share_changed",
    "accuracy_before",
    "accuracy_after",
    "mean_accuracy_before",
    "mean_accuracy_after",
    "chain_accuracy_before",
    "chain_accuracy_after",
)
_MAJORITIES = ("mean_majority_accuracy", "majority_chain_accuracy")
_LEVEL = 0.95
_SEED = 0  # one for all intervals, so that they share their resamples

Statistics = dict[tuple[str, str, str], npt.NDArray[np.float64]]
"""By model, step ("" for the whole chain) and figure: [resample] or, for several numbers, [resample, number]."""


def summarise(
    split: SplitPredictions, chain: Chain, *, calibration: Calibration, rules: Rules, num_resamples: int
) -> dict[str, Any]:
    """Compute intervals, calibration, answer sets, selective reading, consistency and subgroups of every model.

    Returns:
      Plain types by model name, shares in 0..1, None where undefined. Figures are numbers; the key `intervals` next to
    """
    compute = prepare_statistics(split, chain, calibration=calibration, rules=rules)
    values, resampled, intervals = compute(count_once(len(split.predictions.labels))), None, {}
    if num_resamples:
        intervals = bootstrap(split, chain, num_resamples=num_resamples, level=_LEVEL, seed=_SEED)
        resampled = resample(compute, split.facts["patient_id"], num_resamples=num_resamples, seed=_SEED)

    options = {step.name: step.options for step in chain.steps}

    def describe_figures(model: str, step: str, names: tuple[str, ...] | None = None) -> dict[str, Any]:
        own = {key[2]: values[key] for key in values if key[:2] == (model, step)}
        keys = {SUREST: [f"{share:.0%}" for share in COVERAGES], BY_ANSWER: options.get(step)}
        found = {name: _name_numbers(own[name][0].tolist(), keys.get(name)) for name in names or own}
        ends = resampled and {
            name: _interval(value, resampled[model, step, name], keys.get(name)) for name, value in own.items()
        }
        return {**found, "intervals": ends}

    metrics = evaluate(split.predictions, chain)
    found = {
        **_count_answers(split.predictions.labels, chain),
        "num_resamples": num_resamples,
        **describe_figures("", ""),
        "models": {
            model: {
                **{name: getattr(metrics[model], name) for name in _MAJORITIES},
                "intervals": dataclasses.asdict(intervals[model]) if model in intervals else None,
                "steps": {step.name: describe_figures(model, step.name) for step in chain.steps},
                "consistent_decoding": describe_figures(model, "", _DECODING),
            }
            for model in split.predictions.logits
        },
        "subgroups": None,
    }
    if num_resamples:
        groups = score_subgroups(split, chain, num_resamples=num_resamples, level=_LEVEL, seed=_SEED)
        found["subgroups"] = [_describe_subgroup(group) for group in groups]
    return without_nan(found)


def _count_answers(labels: npt.NDArray[np.integer], chain: Chain) -> dict[str, Any]:
    """Return the number of cases, also by answer of each step, and the steps with one answer."""
    return {
        "num_cases": len(labels),
        "num_cases_by_answer": {
            step.name: {option: int((own == answer).sum()) for answer, option in enumerate(step.options)}
            for step, own in zip(chain.steps, labels.T, strict=True)
        },
        "steps_with_one_answer": [
            step.name for step, has_one in zip(chain.steps, find_one_answer(labels), strict=True) if has_one
        ],
    }


def prepare_statistics(
    split: SplitPredictions, chain: Chain, *, calibration: Calibration, rules: Rules
) -> Callable[[Weights], Statistics]:
    """Return a function from weights [resample, case] to all statistics in each resample."""
    predictions, labels = split.predictions, split.predictions.labels
    complete = (labels != NOT_ANNOTATED).all(axis=1, keepdims=True)
    broken = inconsistent(labels, rules)[:, None]
    answers = {model: answer_and_decode(predictions, chain, rules, model=model) for model in predictions.logits}
    cases = {
        model: step_cases(predictions, chain, model=model, calibration=calibration) for model in predictions.logits
    }

    def compute(weights: Weights) -> Statistics:
        found = {("", "", TRUE_CHAINS): weighted_mean(weights, values=broken, counted=complete)[:, 0]}
        for model, (before, after) in answers.items():
            for step in cases[model]:
                found |= {(model, step.name, name): own for name, own in step_statistics(weights, step).items()}
            decoded = decoding_figures(weights, before=before, after=after, labels=labels, rules=rules)
            found |= {(model, "", name): own for name, own in decoded.items()}
        return found

    return compute


def describe(summary: Mapping[str, Any], *, decoded: bool) -> list[str]:
    """Describe each model's mean accuracy with its interval and, if `decoded`, the effect of consistent decoding."""
    lines = []
    left_out = summary["steps_with_one_answer"]
    if left_out:
        lines.append(f"every test case has the same answer at {', '.join(left_out)}: not in the mean over the steps")
    for model, found in summary["models"].items():
        if found["intervals"] is not None:
            mean = found["intervals"]["mean_accuracy"]
            value, low, high = (_percent(mean[name]) for name in ("value", "low", "high"))
            majority = _percent(found["mean_majority_accuracy"])
            lines.append(
                f"{model}: mean step accuracy {value} %, 95 % interval by patient {low} to {high}; "
                f"most frequent answers {majority} %"
            )
        if decoded:
            effect = found["consistent_decoding"]
            shares = (effect["share_inconsistent"], effect["chain_accuracy_before"], effect["chain_accuracy_after"])
            contradictory, whole_before, whole_after = map(_percent, shares)
            before, after = (_percent(effect[f"mean_accuracy_{when}"]) for when in ("before", "after"))
            lines.append(
                f"{model}: {contradictory} % of the chains contradict themselves; decoded to the most probable "
                f"consistent chains, mean step accuracy goes from {before} to {after} %, whole chains correct from "
                f"{whole_before} to {whole_after} %"
            )
    return lines


def _name_numbers(value: Any, keys: Sequence[str] | None) -> Any:
    """The numbers of a figure by their keys; unchanged without keys."""
    return value if keys is None else dict(zip(keys, value, strict=True))


def _interval(
    value: npt.NDArray[np.float64], resampled: npt.NDArray[np.float64], keys: Sequence[str] | None = None
) -> Any:
    """The fields of an `Interval`, or one such mapping for each number of the figure."""
    if value.ndim == 1:
        return dataclasses.asdict(percentiles(float(value[0]), resampled, level=_LEVEL))
    own = [_interval(value[:, place], resampled[:, place]) for place in range(value.shape[1])]
    return _name_numbers(own, keys)


def _describe_subgroup(group: Subgroup) -> dict[str, Any]:
    found: dict[str, Any] = {
        "grouping": group.grouping,
        "name": group.name,
        "num_cases": group.num_cases,
        "num_patients": group.num_patients,
        "mean_accuracy": None,
        "steps": None,
    }
    if group.models is not None:
        models = {model: dataclasses.asdict(own) for model, own in group.models.items()}
        kept = ("num_cases", "accuracy", "auc", "share_incomplete")
        found["mean_accuracy"] = {model: own["mean_accuracy"] for model, own in models.items()}
        found["steps"] = {
            model: {step["name"]: {name: step[name] for name in kept} for step in own["steps"]}
            for model, own in models.items()
        }
    return found


def without_nan(tree: Any) -> Any:
    """Return a tree of plain values with None in place of numbers that are not finite, for strict JSON."""
    if isinstance(tree, dict):
        return {name: without_nan(value) for name, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [without_nan(value) for value in tree]
    return None if isinstance(tree, float) and not math.isfinite(tree) else tree


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}"
