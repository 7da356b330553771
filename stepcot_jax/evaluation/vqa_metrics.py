"""Figures of replies to visual questions, with intervals by patient and paired differences between models.

GEMeX-RMCoT, Section 5.1: the A-score is the share of right answers of a kind of question, its average the unweighted
mean over the kinds; the V-score is the mean IoU. Weights of one give the figure itself, drawn weights its resamples.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from stepcot_jax.evaluation.intervals import Interval, McNemar, compare_accuracy, percentiles
from stepcot_jax.evaluation.resamples import Weights, count_once, divide, resample, weighted_mean
from stepcot_jax.record import KINDS

# Columns of one model's scored replies, which every figure is computed from.


A_SCORE, V_SCORE, GROUNDING, FORMAT = "a_score", "v_score", "grounding", "format"
SHARES = (V_SCORE, GROUNDING, FORMAT)
"""Figures that are means over replies; they are given for each kind, all replies, findings and regions."""

FINDINGS, REGIONS, BOTH = "findings", "regions", "both"

HEADED_FIGURES: tuple[tuple[str, tuple[str, str]], ...] = (
    ("mean A", (A_SCORE, "mean")),
    ("V", (V_SCORE, "all")),
    ("V on findings", (V_SCORE, FINDINGS)),
    ("V on regions", (V_SCORE, REGIONS)),
    ("passed", (GROUNDING, "all")),
    ("well formed", (FORMAT, "all")),
    *((f"{kind} {letter}", (key, kind)) for kind in KINDS for letter, key in (("A", A_SCORE), ("V", V_SCORE))),
)
"""Heading in tables and key of each figure of `vqa_metrics`."""


@dataclasses.dataclass(frozen=True)
class ScoredReplies:
    """Columns [reply] of one model's scored replies. NaN in a column: the reply takes no part in its figures.

    Attributes:
      kinds: of the questions, of `record.KINDS`.
      patients: "" for a patient of its own.
      references: what the true boxes show: "findings", "regions", "both", or "" without boxes.
      a_score: of the answer, 0 to 1; 0 if it could not be read, NaN if a judge gave no usable score.
      v_score: mean IoU of the reply, 0 to 1.
      grounding: 1 if the boxes pass, else 0.
      format: 1 if the reply is well formed, else 0.
      judged_reply: the judge's score of the answer; NaN without one.
      judged_reference: its score of the true answer; NaN without one.
    """

    kinds: npt.NDArray[np.str_]
    patients: npt.NDArray[np.str_]
    references: npt.NDArray[np.str_]
    a_score: npt.NDArray[np.float64]
    v_score: npt.NDArray[np.float64]
    grounding: npt.NDArray[np.float64]
    format: npt.NDArray[np.float64]
    judged_reply: npt.NDArray[np.float64]
    judged_reference: npt.NDArray[np.float64]

    def __post_init__(self) -> None:
        columns = {field.name: getattr(self, field.name).shape for field in dataclasses.fields(self)}
        if set(columns.values()) != {(len(self.kinds),)} or not len(self.kinds):
            raise ValueError(f"columns must have one shape [reply], at least one reply; got {columns}")
        unknown = set(self.kinds.tolist()) - set(KINDS)
        if unknown:
            raise ValueError(f"kinds must be of {', '.join(KINDS)}; got {', '.join(sorted(unknown))}")

    def groups(self) -> dict[str, npt.NDArray[np.bool_]]:
        """Return the replies [reply] of each kind that occurs, of all, and of each kind of reference that occurs."""
        found: dict[str, npt.NDArray[np.bool_]] = {kind: self.kinds == kind for kind in KINDS}
        found["all"] = np.ones(len(self.kinds), bool)
        found |= {name: self.references == name for name in (FINDINGS, REGIONS)}
        return {name: members for name, members in found.items() if members.any()}


def find_scored_kinds(*models: ScoredReplies) -> tuple[str, ...]:
    """Return the kinds of which every model has a scored answer, in the order of `record.KINDS`."""
    return tuple(kind for kind in KINDS if all((~np.isnan(each.a_score[each.kinds == kind])).any() for each in models))


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
