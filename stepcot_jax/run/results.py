"""Results of a finished run: predictions of the best weights, calibration, statistics and report."""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from stepcot_jax.chain import Chain
from stepcot_jax.data.dataset import Dataset
from stepcot_jax.evaluation.calibration import fit_calibration
from stepcot_jax.evaluation.calibration_files import write_calibration
from stepcot_jax.evaluation.consistency import count_pairs, make_rules
from stepcot_jax.evaluation.consistency_files import write_pairs
from stepcot_jax.evaluation.evaluator import Predictions, evaluate
from stepcot_jax.evaluation.interventions import describe_reliance, give_logits, measure_reliance
from stepcot_jax.evaluation.prediction_files import FACTS, SplitPredictions, write_predictions
from stepcot_jax.evaluation.report_table import format_table, report_dict, write_report
from stepcot_jax.evaluation.summary import describe, summarise
from stepcot_jax.settings.sections import EvaluationSettings
from stepcot_jax.systems.step_cot import StepCoT
from stepcot_jax.training.checkpoints import Best

PREDICTIONS = "predictions"
CALIBRATION = "calibration.json"
PAIRS = "pairs.json"
STATISTICS = "statistics.json"
REPORT = "report.json"
SPLITS = ("val", "test")
NUM_RELIANCE = 500
"""Test cases that the reliance of the steps is measured on."""

Predict = Callable[[Any, str], Predictions]


def predict_splits(names: tuple[str, ...], params_of: Callable[[str], Any], predict: Predict) -> dict[str, Predictions]:
    """Return the predictions of each network on validation and test split, with its own best weights.

    Args:
      names: of the networks.
      params_of: name -> parameters; called for one network at a time.
      predict: (parameters, split) -> predictions of all networks.
    """
    logits: dict[str, dict[str, Any]] = {split: {} for split in SPLITS}
    found: dict[str, Predictions] = {}
    for name in names:
        params = params_of(name)
        for split in SPLITS:
            found[split] = predict(params, split)
            logits[split][name] = found[split].logits[name]
        del params
    return {split: dataclasses.replace(found[split], logits=logits[split]) for split in SPLITS}


def measure_run_reliance(
    system: StepCoT, params_of: Callable[[str], Any], rows: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Return how much each network's steps rely on earlier answers (`evaluation.interventions.measure_reliance`).

    Args:
      system: with the networks.
      params_of: name -> parameters.
      rows: test cases on the host, and the prompts.
    """
    labels, found = np.asarray(rows["labels"]), {}
    for name in reversed(system.names):  # the last was restored last
        params = jax.device_get(params_of(name))
        read = give_logits(system.given_reader(name, params, dict(rows)))
        found[name] = measure_reliance(read, labels, system.chain)
    return {name: found[name] for name in system.names}


def with_facts(dataset: Dataset, split: str, predictions: Predictions) -> SplitPredictions:
    """Return predictions with the facts about the cases that statistics need."""
    indices = dataset.splits.by_name()[split]
    cases = [dataset.cases[indices[position]] for position in predictions.index]

    def text(name: str) -> np.ndarray:
        values = [getattr(case, name, None) for case in cases]
        return np.array(["" if value is None else str(value) for value in values], dtype=np.str_)

    facts = {name: text(name) for name in FACTS if name != "case_id"}
    # A case has no name of its own: an image is a case, and its path is unique within the data.
    return SplitPredictions(predictions, {"case_id": facts["image_path"], **facts})


def write_results(
    workdir: pathlib.Path,
    dataset: Dataset,
    predictions: Mapping[str, Predictions],
    *,
    best: Mapping[str, Best],
    wall_seconds: float,
    evaluation: EvaluationSettings,
    reliance: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    """Write predictions, calibration, statistics and report; print the scores of the test split.

    Returns:
      The report.
    """
    chain: Chain = dataset.chain
    folder = workdir / PREDICTIONS
    folder.mkdir(exist_ok=True)
    splits = {split: with_facts(dataset, split, found) for split, found in predictions.items()}
    for split, found in splits.items():
        write_predictions(folder / f"{split}.npz", found, chain)
    calibration = fit_calibration(
        predictions["val"], chain, coverage=evaluation.coverage, coverage_by=evaluation.coverage_by
    )
    write_calibration(workdir / CALIBRATION, calibration, chain)
    counts = count_pairs(dataset.labels[np.asarray(dataset.splits.train, int)], chain)
    write_pairs(workdir / PAIRS, counts, chain)
    rules = make_rules(chain, counts=counts)
    print("".join(f"consistency: {note}\n" for note in rules.notes), end="")
    statistics = summarise(
        splits["test"], chain, calibration=calibration, rules=rules, num_resamples=evaluation.num_resamples
    )
    statistics["reliance"] = reliance
    write_report(workdir / STATISTICS, statistics)
    metrics = evaluate(predictions["test"], chain)
    report = report_dict(metrics=metrics, num_cases=dataset.num_cases, wall_seconds=wall_seconds)
    report["best"] = {name: {"step": entry.step, "validation_score": entry.score} for name, entry in best.items()}
    write_report(workdir / REPORT, report)
    print(format_table(metrics))
    print()
    print("\n".join(describe(statistics, decoded=evaluation.decoding == "consistent")))
    print("\n".join(describe_reliance(reliance or {})))
    print(f"\n{wall_seconds:.0f} s; written to {workdir / REPORT}")
    return report
