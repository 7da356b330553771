"""Audits of a model: how often its answers change, follow or stay when the picture or the thinking is another.

Figures are shares with intervals by patient; NaN marks a case that takes no part in a share.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from stepcot_jax.box import mean_iou
from stepcot_jax.evaluation.replies import A_SCORE, ReplyScore, as_columns, score_models
from stepcot_jax.evaluation.statistics import bootstrap, weighted_mean
from stepcot_jax.host.ranges import Interval
from stepcot_jax.reasoning.thinking import in_words
from stepcot_jax.record import Record

LEAST_IOU = 0.5
"""Boxes of which the mean IoU with those of the own picture is lower have moved."""

CHANGED, UNREAD, MOVED, A = "answers that change", "unread", "boxes that move", "A"
FOLLOWS, KEEPS, ELSE, AGREE_ANYWAY = "follows the donor", "keeps", "says something else", "donor agrees anyway"

Shares = Mapping[str, npt.NDArray[np.float64]]  # [case] by figure
Ends = tuple[float | None, float | None, float | None]  # value, low, high; None where undefined


class Row(msgspec.Struct, frozen=True):
    """The figures of one variant."""

    variant: str
    num_cases: int
    figures: dict[str, Ends]


class Audit(msgspec.Struct, frozen=True):
    """One audit: a row for each variant."""

    name: str  # "looks", "thinks" or "counterfactual"
    title: str
    rows: list[Row]
    notes: list[str] = []


def make_row(variant: str, shares: Shares, patients: Sequence[str], *, num_resamples: int, seed: int = 0) -> Row:
    """Return the shares of one variant, with intervals by patient."""
    values = np.stack([np.asarray(of_figure, np.float64) for of_figure in shares.values()], axis=1)
    counted = ~np.isnan(values)

    def compute(weights: npt.NDArray[np.float64]) -> dict[str, npt.NDArray[np.float64]]:
        means = weighted_mean(weights, values=np.nan_to_num(values), counted=counted)
        return dict(zip(shares, means.T, strict=True))

    found: dict[str, Interval] = bootstrap(compute, np.array(patients), num_resamples=num_resamples, seed=seed)
    num_cases = int(counted.any(axis=1).sum())
    return Row(variant, num_cases, {name: _as_ends(interval) for name, interval in found.items()})


def _as_ends(interval: Interval) -> Ends:
    value, low, high = (
        None if math.isnan(end) else float(end) for end in (interval.value, interval.low, interval.high)
    )
    return value, low, high


Scored = Sequence[tuple[Record, ReplyScore]]


def audit_pictures(
    name: str, title: str, own: Mapping[str, ReplyScore], variants: Mapping[str, Scored], **how: Any
) -> Audit:
    """Return how answers and boxes differ from those of the own picture; `own` is by id, as `variants` are made of.

    Args:
      variants: by name in the table, the records with their scores; those whose own answer is unread take no part.
    """
    rows = []
    for variant, scored in variants.items():
        pairs = [(record, own[made_of(record)], score) for record, score in scored]
        shares = {
            CHANGED: [_changes(record, first, score) for record, first, score in pairs],
            UNREAD: [
                float(score.answer is None) if first.answer is not None else math.nan for _, first, score in pairs
            ],
            MOVED: [_moves(first, score) for _, first, score in pairs],
        }
        if not pairs:
            continue
        row = make_row(variant, {name: np.array(column) for name, column in shares.items()}, patients_of(scored), **how)
        rows.append(msgspec.structs.replace(row, figures={**row.figures, A: _accuracy(scored, **how)}))
    return Audit(name, title, rows)


def made_of(record: Record) -> str:
    """Return the id of the question that a variant is made of."""
    return record.provenance.get("audit_of", record.id)


def patients_of(scored: Scored) -> list[str]:
    """Return the patient of each record."""
    return [record.patient for record, _ in scored]


def _accuracy(scored: Scored, **how: Any) -> Ends:
    replies = as_columns([record for record, _ in scored], [score for _, score in scored])
    return _as_ends(score_models({"": replies}, **how)[""][A_SCORE, "mean"])


def _changes(record: Record, first: ReplyScore, score: ReplyScore) -> float:
    if first.answer is None:
        return math.nan
    return float(score.answer is not None and in_words(score.answer, record) != in_words(first.answer, record))


def _moves(first: ReplyScore, score: ReplyScore) -> float:
    before, after = ([box.corners for box in each.boxes] for each in (first, score))
    if not before or mean_iou(before, before) < LEAST_IOU:  # none, or without an area
        return math.nan
    return float(mean_iou(after, before) < LEAST_IOU)


def audit_thinking(
    title: str, own: Mapping[str, ReplyScore], variants: Mapping[str, Scored], records: Mapping[str, Record], **how: Any
) -> Audit:
    """Return how often an answer after another thinking follows the donor, keeps, or is something else.

    Args:
      records: by id, the questions, donors among them.
    """
    rows = []
    for variant, scored in variants.items():
        columns_of: dict[str, list[float]] = {}
        for record, score in scored:
            kept = in_words(own[made_of(record)].answer, record)
            donor = record.provenance.get("audit_donor", "")
            followed = in_words(own[donor].answer, records[donor]) if donor else frozenset()
            agree = float(record.provenance.get("audit_agree", "nan"))
            for name, share in compare(in_words(score.answer, record), kept, followed).items():
                columns_of.setdefault(name, []).append(share)
            columns_of.setdefault(AGREE_ANYWAY, []).append(agree)
        if scored:
            shares = {name: np.array(column) for name, column in columns_of.items()}
            rows.append(make_row(variant, shares, patients_of(scored), **how))
    return Audit("thinks", title, rows)


def compare(said: Any, kept: Any, followed: Any) -> dict[str, float]:
    """Return whether an answer follows the donor (NaN without one), keeps, or is something else or unread."""
    follows = bool(followed) and said == followed
    keeps = said == kept
    return {FOLLOWS: float(follows) if followed else math.nan, KEEPS: float(keeps), ELSE: float(not (follows or keeps))}
