"""Results of a tree of questions: the constant that says no to everything stands beside every figure."""

import pathlib
from collections.abc import Callable
from typing import Any

from stepcot_jax.data.dataset import Dataset
from stepcot_jax.evaluation import structured_reports
from stepcot_jax.evaluation.predictions import SplitPredictions
from stepcot_jax.evaluation.statistics import as_plain
from stepcot_jax.host.own_folder import save
from stepcot_jax.run.results import describe_best, write_splits
from stepcot_jax.run.task import REPORT, Outcome
from stepcot_jax.training.processes import is_first


def finish_tree(
    outcome: Outcome,
    workdir: pathlib.Path,
    dataset: Dataset,
    num_resamples: int,
    read: Callable[[str], SplitPredictions],
) -> dict[str, Any]:
    """Write predictions and report; print test scores, with 0.5 and the threshold chosen on validation.

    `read` returns the predictions of the best weights for a split; "test" is read after the choice.
    """
    validated = read("val")
    thresholds = {
        name: structured_reports.choose_threshold(logits, validated.predictions.labels, dataset.chain)
        for name, logits in validated.predictions.logits.items()
    }
    test, wall_seconds, best = read("test"), outcome.seconds(), outcome.best
    if not is_first():
        return {}
    chain = dataset.chain
    write_splits(workdir, chain, val=validated, test=test)
    given = {
        f"{name}, threshold {threshold}{how}": structured_reports.answer_tree(logits, chain, threshold=threshold)
        for name, logits in test.predictions.logits.items()
        for threshold, how in ((0.5, ""), (thresholds[name], " (chosen on validation)"))
    }
    scores, differences = structured_reports.score_reports(
        given,
        test.predictions.labels,
        chain,
        patients=test.facts["patient_id"],
        num_resamples=num_resamples,
    )
    report = {
        "num_cases": dataset.num_cases,
        "wall_seconds": round(wall_seconds, 1),
        "thresholds": thresholds,
        "best": describe_best(best),
        "test": as_plain(scores),
        "test_less_constant": as_plain(differences),
        "published_test_of_hi_vqa": structured_reports.PUBLISHED,
    }
    save(workdir / REPORT, report)
    print(structured_reports.format_scores(scores, differences))
    for model, parts in differences.items():
        gain = 100 * parts[structured_reports.ALL]["f1"].value
        print(f"{model}: F1 {gain:+.1f} points against the constant that says no to everything")
    print(f"\n{wall_seconds:.0f} s; written to {workdir / REPORT}")
    outcome.log({f"{model}/f1": parts[structured_reports.ALL]["f1"].value for model, parts in scores.items()})
    return report
