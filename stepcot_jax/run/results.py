"""Results of a finished run: predictions of the best weights, calibration, statistics and report."""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from stepcot_jax.chain import Chain
from stepcot_jax.data.dataset import Dataset
from stepcot_jax.evaluation.calibration import Calibration, fit_calibration, write_calibration
from stepcot_jax.evaluation.chains import evaluate
from stepcot_jax.evaluation.consistency import (
    Counts,
    Rules,
    count_pairs,
    fit_pair_ratios,
    give_prefixes,
    make_rules,
    write_pairs,
)
from stepcot_jax.evaluation.interventions import describe_reliance, give_logits, measure_reliance
from stepcot_jax.evaluation.operating_points import OperatingPoints, Rule, choose_operating_points, describe_points
from stepcot_jax.evaluation.predictions import FACTS, Predictions, SplitPredictions, write_predictions
from stepcot_jax.evaluation.statistics import as_plain
from stepcot_jax.evaluation.summary import describe, format_table, report_dict, summarise
from stepcot_jax.host.files import write_json
from stepcot_jax.run.sections import EvaluationSettings
from stepcot_jax.run.stored_reading import CALIBRATION_FILE, PAIRS_FILE, STATISTICS_FILE
from stepcot_jax.training.checkpoints import Best
from stepcot_jax.training.system import System

PREDICTIONS = "predictions"
REPORT = "report.json"
SPLITS = ("val", "test")
NUM_GIVEN = 500
"""Most cases of a split that are read with answers given."""

Predict = Callable[[Any, str], Predictions]


def predict_splits(names: tuple[str, ...], params_of: Callable[[str], Any], predict: Predict) -> dict[str, Predictions]:
    """Return the predictions of each network on validation and test split, with its own best weights."""
    logits: dict[str, dict[str, Any]] = {split: {} for split in SPLITS}
    found: dict[str, Predictions] = {}
    for name in names:
        params = params_of(name)
        for split in SPLITS:
            found[split] = predict(params, split)
            logits[split][name] = found[split].logits[name]
        del params
    return {split: dataclasses.replace(found[split], logits=logits[split]) for split in SPLITS}


@dataclasses.dataclass(frozen=True)
class GivenReadings:
    """What the networks of a run answer when answers are given.

    Attributes:
      reliance: by network, see `evaluation.interventions.measure_reliance`; of test cases.
      logits: by network, [step, case, step, answer] of validation cases given `pair_ratios.give_prefixes`.
      labels: [case, step] of these validation cases.
    """

    reliance: dict[str, dict[str, Any]]
    logits: dict[str, np.ndarray]
    labels: np.ndarray


def read_with_given(
    system: System, chain: Chain, params_of: Callable[[str], Any], rows: Mapping[str, Mapping[str, Any]]
) -> GivenReadings:
    """Read cases with answers given."""
    labels = {split: np.asarray(own["labels"]) for split, own in rows.items()}
    prefixes, reliance, logits = give_prefixes(labels["val"], chain), {}, {}
    for name in reversed(system.names):  # the last was restored last
        params = jax.device_get(params_of(name))
        read = {split: system.given_reader(name, params, dict(own)) for split, own in rows.items()}
        reliance[name] = measure_reliance(give_logits(read["test"]), labels["test"], chain)
        logits[name] = read["val"](prefixes)
    return GivenReadings({name: reliance[name] for name in system.names}, logits, labels["val"])


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


def _weigh_pairs(
    given: GivenReadings, counts: Counts, calibration: Calibration, chain: Chain
) -> dict[str, tuple[float, ...]]:
    """Return the weights of pairs of answers of each network, chosen on validation cases."""
    return {
        name: fit_pair_ratios(
            logits, counts=counts, labels=given.labels, temperatures=calibration.temperatures[name], chain=chain
        ).weights
        for name, logits in given.logits.items()
    }


def write_results(
    workdir: pathlib.Path,
    dataset: Dataset,
    predictions: Mapping[str, Predictions],
    *,
    best: Mapping[str, Best],
    wall_seconds: float,
    evaluation: EvaluationSettings,
    given: GivenReadings | None = None,
) -> dict[str, Any]:
    """Write predictions, calibration, statistics and report; print the scores of the test split."""
    chain: Chain = dataset.chain
    folder = workdir / PREDICTIONS
    folder.mkdir(exist_ok=True)
    splits = {split: with_facts(dataset, split, found) for split, found in predictions.items()}
    for split, found in splits.items():
        write_predictions(folder / f"{split}.npz", found, chain)
    calibration = fit_calibration(
        predictions["val"],
        chain,
        coverage=evaluation.coverage,
        coverage_by=evaluation.coverage_by,
        confidence=evaluation.coverage_confidence,
        patients=splits["val"].facts["patient_id"],
    )
    write_calibration(workdir / CALIBRATION_FILE, calibration, chain)
    counts = count_pairs(dataset.labels[np.asarray(dataset.splits.train, int)], chain)
    weights = {} if given is None else _weigh_pairs(given, counts, calibration, chain)
    write_pairs(workdir / PAIRS_FILE, counts, chain, weights=weights)
    rules = make_rules(chain, counts=counts)
    print("".join(f"consistency: {note}\n" for note in rules.notes), end="")
    reliance = {} if given is None else given.reliance
    statistics = _measure(splits, chain, calibration, rules, evaluation) | {"reliance": reliance or None}
    write_json(workdir / STATISTICS_FILE, statistics)
    metrics = evaluate(predictions["test"], chain)
    report = report_dict(metrics=metrics, num_cases=dataset.num_cases, wall_seconds=wall_seconds)
    report["best"] = {name: {"step": entry.step, "validation_score": entry.score} for name, entry in best.items()}
    write_json(workdir / REPORT, report)
    print(format_table(metrics))
    print()
    print("\n".join(describe(statistics, decoded=evaluation.decoding == "consistent")))
    print("\n".join(describe_reliance(reliance)))
    print(f"\n{wall_seconds:.0f} s; written to {workdir / REPORT}")
    return report


def _measure(
    splits: Mapping[str, SplitPredictions],
    chain: Chain,
    calibration: Calibration,
    rules: Rules,
    evaluation: EvaluationSettings,
) -> dict[str, Any]:
    """Return the statistics of the test split, with operating points that the validation split chose."""
    num_resamples = evaluation.num_resamples
    statistics = summarise(splits["test"], chain, calibration=calibration, rules=rules, num_resamples=num_resamples)
    rule = Rule(evaluation.operating_point, evaluation.operating_target, evaluation.miss_cost)
    points = choose_operating_points(
        splits["val"], splits["test"], chain, calibration=calibration, rule=rule, num_resamples=num_resamples
    )
    statistics["operating_points"] = as_plain(describe_points(OperatingPoints(rule, points)))
    return statistics
