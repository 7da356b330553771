"""Figures of replies to visual questions, with intervals by patient and paired differences between models.

GEMeX-RMCoT, Section 5.1: the A-score is the share of right answers of a kind of question, its average the unweighted
mean over the kinds; the V-score is the mean IoU. Weights of one give the figure itself, drawn weights its resamples.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from stepcot_jax.evaluation.intervals import Interval, percentiles
from stepcot_jax.evaluation.paired import McNemar, compare_accuracy
from stepcot_jax.evaluation.resamples import Weights, count_once, divide, resample, weighted_mean
from stepcot_jax.evaluation.scored_replies import A_SCORE, SHARES, ScoredReplies, find_scored_kinds
from stepcot_jax.reasoning.record import KINDS

OpenScore = Literal["relative", "within_two", "exact", "token_f1"]
JUDGED: tuple[OpenScore, ...] = ("relative", "within_two")
"""Ways of scoring open answers that need the scores of a judge."""

Key: TypeAlias = tuple[str, str]
"""Figure and group, such as ("a_score", "closed")."""

Figures: TypeAlias = dict[Key, npt.NDArray[np.float64]]
"""[resample] by key."""

_CLOSE = 2.0  # scores of a judge that differ by less are as good as each other (GEMeX-RMCoT, Section 4.2)


def prepare_figures(
    scored: ScoredReplies, *, open_score: OpenScore = "exact", mean_kinds: Sequence[str] | None = None
) -> Callable[[Weights], Figures]:
    """Return a function from weights [resample, reply] to every figure in each resample.

    Args:
      open_score: A-score of open questions. "relative": sum of the judge's scores of the answers over that of the true
        answers; a reply that could not be read counts like a question of average score answered with 0. "within_two":
        share whose two scores differ by less than 2. "exact" and "token_f1": mean of the column `a_score`.
      mean_kinds: kinds that the mean of the A-scores is over, NaN where one of them is; those with a scored answer by
        default.
    """
    if open_score not in get_args(OpenScore):
        raise ValueError(f"open_score must be one of {', '.join(get_args(OpenScore))}; got {open_score!r}")
    answers, groups = scored.a_score, scored.groups()
    kinds = [kind for kind in groups if kind in KINDS]
    averaged = find_scored_kinds(scored) if mean_kinds is None else mean_kinds
    judged = ~np.isnan(scored.judged_reply + scored.judged_reference) & ~np.isnan(answers)
    if open_score == "within_two":
        # Rounded like `answer_rewards.Judged.difference`: 4.1 and 2.1 differ by 2, not by less.
        near = np.abs(np.round(scored.judged_reply - scored.judged_reference, 9)) < _CLOSE
        answers = np.where((scored.kinds == "open") & judged, near, answers)
    of_kinds: list[tuple[Key, npt.NDArray, npt.NDArray[np.bool_]]] = [
        ((A_SCORE, kind), answers, groups[kind]) for kind in kinds
    ]
    of_groups = [((name, group), getattr(scored, name), who) for name in SHARES for group, who in groups.items()]
    keys, columns, members = zip(*of_kinds, *of_groups, strict=True)
    values, counted = np.stack(columns, axis=1), np.stack(members, axis=1)
    counted = counted & ~np.isnan(values)

    def compute(weights: Weights) -> Figures:
        found = dict(zip(keys, weighted_mean(weights, values=values, counted=counted).T, strict=True))
        if open_score == "relative" and "open" in kinds:
            found[A_SCORE, "open"] = _relative(weights, scored, judged)
        mean = (
            np.mean([found[A_SCORE, kind] for kind in averaged], axis=0) if averaged else np.full(len(weights), np.nan)
        )
        return {**{(A_SCORE, kind): found[A_SCORE, kind] for kind in kinds}, (A_SCORE, "mean"): mean, **found}

    return compute


def _relative(weights: Weights, scored: ScoredReplies, judged: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
    """Ratio of the sums of scores, times the share of the replies that could be read."""
    judged = judged & (scored.kinds == "open")
    unread = (scored.kinds == "open") & ~judged & ~np.isnan(scored.a_score)
    sums = [weights @ np.where(judged, column, 0.0) for column in (scored.judged_reply, scored.judged_reference)]
    num_judged, num_unread = weights @ judged.astype(np.float64), weights @ unread.astype(np.float64)
    ratio = divide(sums[0], sums[1]) * divide(num_judged, num_judged + num_unread)
    return np.where((num_judged == 0) & (num_unread > 0), 0.0, ratio)


def bootstrap_figures(
    compute: Callable[[Weights], Figures],
    patients: npt.NDArray[np.str_],
    *,
    num_resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> dict[Key, Interval]:
    """Compute figures and their percentile intervals by patient.

    Args:
      compute: from weights [resample, reply] to figures [resample].
    """
    if not 0 < level < 1:
        raise ValueError(f"level must be above 0 and below 1; got {level}")
    values = compute(count_once(len(patients)))
    resampled = resample(compute, patients, num_resamples=num_resamples, seed=seed)
    return {key: percentiles(float(values[key][0]), resampled[key], level=level) for key in values}


def score_models(
    models: Mapping[str, ScoredReplies],
    *,
    open_score: OpenScore = "exact",
    num_resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> dict[str, dict[Key, Interval]]:
    """Compute every figure of every model with its percentile interval by patient.

    The mean of the A-scores is over the kinds of which every model has a scored answer.
    """
    how: dict[str, Any] = {"num_resamples": num_resamples, "level": level, "seed": seed}
    kinds = find_scored_kinds(*models.values())
    return {
        name: _bootstrap((scored,), open_score=open_score, mean_kinds=kinds, **how) for name, scored in models.items()
    }


def score_difference(
    *,
    first: ScoredReplies,
    second: ScoredReplies,
    open_score: OpenScore = "exact",
    mean_kinds: Sequence[str] | None = None,
    num_resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> dict[Key, Interval]:
    """Compute every figure of the first model less that of the second, in the same resamples of patients.

    A reply that takes no part in a figure of one model takes no part in that of the other.
    """
    for column in ("kinds", "patients", "references"):
        if not np.array_equal(getattr(first, column), getattr(second, column)):
            raise ValueError(f"both models must have the same questions in the same order; their {column} differ")
    pair = _share_missing(first, second), _share_missing(second, first)
    kinds = find_scored_kinds(*pair) if mean_kinds is None else mean_kinds
    return _bootstrap(
        pair, open_score=open_score, mean_kinds=kinds, num_resamples=num_resamples, level=level, seed=seed
    )


def compare_answers(*, first: ScoredReplies, second: ScoredReplies) -> dict[str, McNemar]:
    """Run McNemar's test on the right answers of two models, for each kind and for "all" kinds together.

    Replies that a model was not scored on take no part; a kind with scores between 0 and 1 is left out. The test takes
    questions as independent although a patient has several: the interval of the difference goes by patient.
    """
    pair = _share_missing(first, second), _share_missing(second, first)
    kinds = {name: members for name, members in first.groups().items() if name in (*KINDS, "all")}
    found = {}
    for name, members in kinds.items():
        answers = [one.a_score[members & ~np.isnan(one.a_score)] for one in pair]
        if all(np.isin(column, (0, 1)).all() for column in answers):
            found[name] = compare_accuracy(
                labels=np.ones(len(answers[0]), int), first=answers[0] == 1, second=answers[1] == 1
            )
    return found


def _share_missing(one: ScoredReplies, other: ScoredReplies) -> ScoredReplies:
    """Return the columns of one model, NaN wherever the other's are."""
    names = (A_SCORE, *SHARES)
    columns = {name: np.where(np.isnan(getattr(other, name)), np.nan, getattr(one, name)) for name in names}
    return dataclasses.replace(one, **columns)


def _bootstrap(
    models: Sequence[ScoredReplies],
    *,
    open_score: OpenScore,
    mean_kinds: Sequence[str],
    num_resamples: int,
    level: float,
    seed: int,
) -> dict[Key, Interval]:
    """Intervals of a model's figures or, of two models, of their differences."""
    computes = [prepare_figures(scored, open_score=open_score, mean_kinds=mean_kinds) for scored in models]

    def compute(weights: Weights) -> Figures:
        first, *others = (compute(weights) for compute in computes)
        return {key: values - others[0][key] if others else values for key, values in first.items()}

    return bootstrap_figures(compute, models[0].patients, num_resamples=num_resamples, level=level, seed=seed)
