"""Results of a run on structured reports: predictions and report, the constant beside every figure."""

import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np

from stepcot_jax.data.dataset import Dataset
from stepcot_jax.evaluation.joint_reports import COUNTING, fit_report_model, learn_report_tree, write_report_models
from stepcot_jax.evaluation.predictions import SplitPredictions, write_predictions
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
from stepcot_jax.run.stored_reading import JOINT_FILE, write_choices
from stepcot_jax.run.task import Outcome
from stepcot_jax.training.processes import is_first


def finish_tree(
    outcome: Outcome,
    workdir: pathlib.Path,
    dataset: Dataset,
    num_resamples: int,
    read: Callable[[str], SplitPredictions],
) -> dict[str, Any]:
    """Write predictions, joint models and report; print test scores, with 0.5 and the threshold chosen on validation.

    `read` returns the predictions of the best weights for a split; "test" is read after the choice.
    """
    validated = read("val")
    thresholds = {
        name: choose_threshold(logits, validated.predictions.labels, dataset.chain)
        for name, logits in validated.predictions.logits.items()
    }
    tree = learn_report_tree(dataset.labels[np.asarray(dataset.splits.train, int)], dataset.chain)
    joints = {
        name: fit_report_model(tree, logits, validated.predictions.labels)
        for name, logits in {**validated.predictions.logits, COUNTING: None}.items()
    }
    test, wall_seconds, best = read("test"), outcome.seconds(), outcome.best
    if not is_first():
        return {}
    chain, folder = dataset.chain, workdir / PREDICTIONS
    folder.mkdir(exist_ok=True)
    for split, answers in (("val", validated), ("test", test)):
        write_predictions(folder / f"{split}.npz", answers, chain)
    write_report_models(workdir / JOINT_FILE, joints)
    write_choices(workdir)
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
        "thresholds": thresholds,
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
    outcome.log({f"{model}/f1": parts[ALL]["f1"].value for model, parts in scores.items()})
    return report
