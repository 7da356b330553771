"""All figures of an evaluation: intervals, differences to the first model and counts, and the JSON of them."""

import collections
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from stepcot_jax.evaluation.intervals import Interval
from stepcot_jax.evaluation.paired import McNemar
from stepcot_jax.evaluation.reply_scores import MISSING, ReplyScore, ScoringSettings, as_columns
from stepcot_jax.evaluation.resamples import Weights, weighted_mean
from stepcot_jax.evaluation.scored_replies import FINDINGS, REGIONS, find_scored_kinds
from stepcot_jax.evaluation.stage_quality import stage_figures
from stepcot_jax.evaluation.vqa_metrics import (
    Figures,
    Key,
    bootstrap_figures,
    compare_answers,
    score_difference,
    score_models,
)
from stepcot_jax.reasoning.record import KINDS, STAGE_NAMES, VqaRecord
from stepcot_jax.rewards.grounding import LEAST_IOU

BASELINE = "majority answer + constant box"


@dataclasses.dataclass(frozen=True)
class Results:
    """Figures of every row.

    Attributes:
      counts: by model, counts of replies by kind and by what happened to them.
      figures: by model, with intervals; the baseline's first, where there is one.
      stages: by model whose replies have stages.
      num_stages: by model, number of scored stages of each name, those worth 0 of replies that do not count among them.
      differences: by model, its figures less those of the first model.
      tests: by model, McNemar's test against the first model, by kind.
      notes: what a reader of the tables must know.
    """

    settings: ScoringSettings
    num_resamples: int
    seed: int
    num_records: int
    num_patients: int
    counts: Mapping[str, Mapping[str, Mapping[str, int]]]
    figures: Mapping[str, Mapping[Key, Interval]]
    stages: Mapping[str, Mapping[Key, Interval]]
    num_stages: Mapping[str, Mapping[str, int]]
    differences: Mapping[str, Mapping[Key, Interval]]
    tests: Mapping[str, Mapping[str, McNemar]]
    notes: tuple[str, ...]


def summarise(
    records: Sequence[VqaRecord],
    models: Mapping[str, Sequence[ReplyScore]],
    settings: ScoringSettings,
    *,
    baseline: Sequence[ReplyScore] | None = None,
    num_resamples: int = 1000,
    seed: int = 0,
    notes: Sequence[str] = (),
) -> Results:
    """Compute every figure with its interval by patient.

    Args:
      models: scores by name, in the order of the records; the first is what the others are compared with.
    """
    everyone = {**({} if baseline is None else {BASELINE: baseline}), **models}
    replies = {name: as_columns(records, scores) for name, scores in everyone.items()}
    how: dict[str, Any] = {"num_resamples": num_resamples, "seed": seed}
    first, mean_kinds = next(iter(models)), find_scored_kinds(*replies.values())
    others = {name: own for name, own in replies.items() if name != first}
    differences = {
        name: score_difference(
            first=own, second=replies[first], open_score=settings.open_score, mean_kinds=mean_kinds, **how
        )
        for name, own in others.items()
    }
    tests = {name: compare_answers(first=own, second=replies[first]) for name, own in others.items()}
    patients = replies[first].patients
    counts = {name: count_replies(records, scores) for name, scores in everyone.items()}
    unscored = [
        f"{name}: {own[kind]['unscored']} {kind} unscored."
        for name, own in counts.items()
        for kind in KINDS
        if kind in own and own[kind]["unscored"]
    ]
    judged = [_describe_judged(name, records, scores) for name, scores in models.items()]
    return Results(
        settings=settings,
        num_resamples=num_resamples,
        seed=seed,
        num_records=len(records),
        num_patients=len(set(patients.tolist())),
        counts=counts,
        figures=score_models(replies, open_score=settings.open_score, **how),
        stages=_score_stages(models, patients, **how),
        num_stages={name: _count_stages(scores) for name, scores in models.items()},
        differences=differences,
        tests=tests,
        notes=(*notes, *unscored, *filter(None, judged), *_explain(settings, mean_kinds, replies[first].references)),
    )


def _describe_judged(name: str, records: Sequence[VqaRecord], scores: Sequence[ReplyScore]) -> str:
    """Say how many open answers a judge's figure rests on; "" if the judge scored all that could be read."""
    opened = [score for record, score in zip(records, scores, strict=True) if record.kind == "open"]
    num_unscored = sum(math.isnan(score.a_score) and MISSING not in score.problems for score in opened)
    num_judged = sum(score.judged is not None for score in opened)
    num_worthless = sum(score.judged is None and score.a_score == 0 for score in opened)
    if not num_unscored:
        return ""
    counted = f" and {num_worthless} that could not be read or are missing, as 0" if num_worthless else ""
    return f"{name}: open A rests on the {num_judged} of {len(opened)} answers that the judge scored{counted}."


def _score_stages(
    models: Mapping[str, Sequence[ReplyScore]], patients: np.ndarray, **how: int
) -> dict[str, dict[Key, Interval]]:
    """Quality of the stages of each model that has any, with the judge's scores ("rated") if there are any."""
    found = {}
    for name, scores in models.items():
        labels = np.array([score.stages for score in scores], np.float64)
        rated = np.array([score.rated_stages for score in scores], np.float64)

        def compute(weights: Weights, labels: np.ndarray = labels, rated: np.ndarray = rated) -> Figures:
            of_judge = weighted_mean(weights, values=rated, counted=~np.isnan(rated)).T
            keys = [("rated", stage) for stage in STAGE_NAMES]
            return {**stage_figures(weights, labels=labels), **dict(zip(keys, of_judge, strict=True))}

        figures = bootstrap_figures(compute, patients, **how)
        found[name] = {key: interval for key, interval in figures.items() if not math.isnan(interval.value)}
    return {name: figures for name, figures in found.items() if figures}


def _count_stages(scores: Sequence[ReplyScore]) -> dict[str, int]:
    scored = ~np.isnan(np.array([score.stages for score in scores], np.float64))
    return dict(zip(STAGE_NAMES, scored.sum(axis=0).tolist(), strict=True))


def count_replies(records: Sequence[VqaRecord], scores: Sequence[ReplyScore]) -> dict[str, dict[str, int]]:
    """Count, for each kind and for "all": questions, missing, not well formed, without answer and unscored."""
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for record, score in zip(records, scores, strict=True):
        missing = MISSING in score.problems
        for group in (record.kind, "all"):
            counts[group] += collections.Counter(
                questions=1,
                missing=missing,
                ill_formed=bool(score.problems) and not missing,
                without_answer=score.answer is None and not missing,
                unscored=math.isnan(score.a_score) and not missing,
            )
    names = ("questions", "missing", "ill_formed", "without_answer", "unscored")
    return {group: {name: counts[group][name] for name in names} for group in (*KINDS, "all") if group in counts}


def _explain(settings: ScoringSettings, mean_kinds: Sequence[str], references: np.ndarray) -> list[str]:
    missing = {"wrong": "counts as wrong", "skip": "takes no part", "stop": "is refused"}[settings.missing]
    reading = {
        "strict": "A reply that is not well formed earns nothing.",
        "parts": "The answer and the boxes of a reply that is not well formed count where that part can be read.",
    }[settings.reading]
    num_neither = int((~np.isin(references, (FINDINGS, REGIONS))).sum())
    return [
        f"A: right answers. Mean A: unweighted over the kinds that every row is scored on "
        f"({', '.join(mean_kinds) or 'none'}). V: mean IoU. Passed: replies whose boxes earn the grounding reward. "
        "Well formed: replies that follow the dialect.",
        f"{reading} A missing reply {missing}. Open questions: {settings.open_score}.",
        "V on findings and V on regions: by what the true boxes show. Boxes of regions hardly vary between pictures. "
        f"{num_neither} of {len(references)} records have boxes of both, or none, and are in neither.",
        "Intervals are 95 %, from resampling patients.",
    ]


def to_json(results: Results) -> dict[str, Any]:
    """Return every figure, shares of 1, for `encode`."""

    def figures(row: Mapping[Key, Interval]) -> dict[str, dict[str, Interval]]:
        nested: dict[str, dict[str, Interval]] = {}
        for (figure, group), interval in row.items():
            nested.setdefault(figure, {})[group] = interval
        return nested

    models: dict[str, dict[str, Any]] = {}
    for name, row in results.figures.items():
        models[name] = {"counts": results.counts[name], "figures": figures(row)}
        if name in results.stages:
            models[name]["stages"] = figures(results.stages[name])
            models[name]["num_stages"] = dict(results.num_stages[name])
        if name in results.differences:
            models[name]["less_first"] = figures(results.differences[name])
            models[name]["mcnemar"] = dict(results.tests[name])
    return {
        "settings": {
            **dataclasses.asdict(results.settings),
            "least_iou": LEAST_IOU,
            "num_resamples": results.num_resamples,
            "seed": results.seed,
            "level": 0.95,
        },
        "num_records": results.num_records,
        "num_patients": results.num_patients,
        "models": models,
        "notes": list(results.notes),
    }


def encode(value: Any) -> bytes:
    """Return a value as one line of JSON; null for a number that is not finite."""
    return _ENCODER.encode(value) + b"\n"


_ENCODER = msgspec.json.Encoder(enc_hook=float)  # NumPy's numbers
