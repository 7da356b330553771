"""Audits of a model: how often its answers change, follow or stay when the picture or the thinking is another.

A variant is a record whose provenance names the question that it is made of (`data.questions.variants`).
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stepcot_jax.box import mean_iou
from stepcot_jax.evaluation.replies import A_SCORE, ReplyScore, as_columns, score_models
from stepcot_jax.evaluation.statistics import Weights, bootstrap, weighted_mean
from stepcot_jax.host.ranges import Interval
from stepcot_jax.reasoning.thinking import in_words
from stepcot_jax.record import Record

LEAST_IOU = 0.5
"""Boxes have moved where their mean IoU with those of the own picture is lower."""

CASES, CHANGED, UNREAD, MOVED, A = "cases", "answers that change", "unread", "boxes that move", "A"
FOLLOWS, KEEPS, ELSE, AGREES = "follows the donor", "keeps", "says something else", "donor agrees anyway"

Row = dict[str, int | Interval]  # the number of cases, and shares with intervals by patient
Scored = Sequence[tuple[Record, ReplyScore]]


def made_of(record: Record) -> str:
    """Return the id of the question that a variant is made of."""
    return record.provenance.get("audit_of", record.id)


def audit_pictures(own: Mapping[str, ReplyScore], scored: Scored, **how: Any) -> Row:
    """Return how answers and boxes differ from those of the own picture, of which `own` has the scores by id.

    Questions whose own answer cannot be read take no part in shares of change.
    """
    shares: dict[str, list[float]] = {CHANGED: [], UNREAD: [], MOVED: []}
    for record, score in scored:
        first = own[made_of(record)]
        said, before = in_words(score.answer, record), in_words(first.answer, record)
        shares[CHANGED].append(float(bool(said) and said != before) if before else math.nan)
        shares[UNREAD].append(float(not said) if before else math.nan)
        shares[MOVED].append(_moves(first, score))
    replies = as_columns([record for record, _ in scored], [score for _, score in scored])
    return {**_take_means(shares, scored, **how), A: score_models({"": replies}, **how)[""][A_SCORE, "mean"]}


def _moves(first: ReplyScore, score: ReplyScore) -> float:
    before, after = ([box.corners for box in each.boxes] for each in (first, score))
    if not before or mean_iou(before, before) < LEAST_IOU:  # none, or without an area
        return math.nan
    return float(mean_iou(after, before) < LEAST_IOU)


def audit_thinking(own: Mapping[str, ReplyScore], scored: Scored, questions: Mapping[str, Record], **how: Any) -> Row:
    """Return how often an answer after another thinking follows the donor, keeps, or is something else or unread.

    Args:
      own: scores of the replies to the own picture, by id.
      questions: records by id, donors among them.
    """
    shares: dict[str, list[float]] = {FOLLOWS: [], KEEPS: [], ELSE: [], AGREES: []}
    for record, score in scored:
        said, kept = in_words(score.answer, record), in_words(own[made_of(record)].answer, record)
        donor = record.provenance.get("audit_donor", "")
        follows = float(said == in_words(own[donor].answer, questions[donor])) if donor else math.nan
        shares[FOLLOWS].append(follows)
        shares[KEEPS].append(float(said == kept))
        shares[ELSE].append(float(follows != 1 and said != kept))
        shares[AGREES].append(float(record.provenance.get("audit_agree", "nan")))
    return _take_means(shares, scored, **how)


def _take_means(shares: Mapping[str, Sequence[float]], scored: Scored, **how: Any) -> Row:
    """Return the number of records and the mean of each share over those that count in it; NaN does not."""
    kept = {name: column for name, column in shares.items() if not all(map(math.isnan, column))}
    values = np.array(list(kept.values()), np.float64).reshape(len(kept), len(scored)).T

    def compute(weights: Weights) -> dict[str, np.ndarray]:
        return dict(zip(kept, weighted_mean(weights, values=values, counted=~np.isnan(values)).T, strict=True))

    patients = np.array([record.patient for record, _ in scored])
    return {CASES: len(scored), **bootstrap(compute, patients, **how)}
