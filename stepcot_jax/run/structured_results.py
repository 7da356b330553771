"""Results of a run on structured reports: predictions and report, the constant beside every figure."""

import pathlib
from collections.abc import Mapping
from typing import Any

from stepcot_jax.chain import Chain
from stepcot_jax.data.dataset import Dataset
from stepcot_jax.evaluation.predictions import SplitPredictions, ValidationPredictions, write_predictions
from stepcot_jax.evaluation.statistics import as_plain
from stepcot_jax.evaluation.structured_reports import (
    ALL,
    PUBLISHED,
    answer_tree,
    choose_threshold,
    format_scores,
    score_reports,
)
from stepcot_jax.host.files import write_json
from stepcot_jax.run.results import PREDICTIONS, REPORT
from stepcot_jax.training.checkpoints import Best


def choose_thresholds(validation: ValidationPredictions, chain: Chain) -> dict[str, float]:
    """Return the threshold of each network with the highest F1 on validation."""
    predictions = validation.predictions
    return {name: choose_threshold(logits, predictions.labels, chain) for name, logits in predictions.logits.items()}


def write_structured_results(
    workdir: pathlib.Path,
    dataset: Dataset,
    *,
    validated: ValidationPredictions,
    thresholds: Mapping[str, float],
    test: SplitPredictions,
    best: Mapping[str, Best],
    wall_seconds: float,
    num_resamples: int,
) -> dict[str, Any]:
    """Write predictions and report; print the scores of the test split, with 0.5 and the chosen threshold."""
    chain, folder = dataset.chain, workdir / PREDICTIONS
    folder.mkdir(exist_ok=True)
    for split, answers in (("val", validated), ("test", test)):
        write_predictions(folder / f"{split}.npz", answers, chain)
    given = {
        f"{name}, threshold {threshold}{how}": answer_tree(logits, chain, threshold=threshold)
        for name, logits in test.predictions.logits.items()
        for threshold, how in ((0.5, ""), (thresholds[name], " (chosen on validation)"))
    }
    scores, differences = score_reports(
        given,
        test.predictions.labels,
        chain,
        patients=test.facts["patient_id"],
        num_resamples=num_resamples,
    )
    report = {
        "num_cases": dataset.num_cases,
        "wall_seconds": round(wall_seconds, 1),
        "thresholds": dict(thresholds),
        "best": {name: {"step": entry.step, "validation_score": entry.score} for name, entry in best.items()},
        "test": as_plain(scores),
        "test_less_constant": as_plain(differences),
        "published_test_of_hi_vqa": PUBLISHED,
    }
    write_json(workdir / REPORT, report)
    print(format_scores(scores, differences))
    for model, parts in differences.items():
        print(f"{model}: F1 {100 * parts[ALL]['f1'].value:+.1f} points against the constant that says no to everything")
    print(f"\n{wall_seconds:.0f} s; written to {workdir / REPORT}")
    return report
