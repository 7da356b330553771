"""Results of a finished run: predictions of the best weights, calibration, statistics and report."""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from jaxtyping import Int

from stepcot_jax.chain import Chain
from stepcot_jax.data.dataset import Dataset
from stepcot_jax.evaluation import consistency, operating_points
from stepcot_jax.evaluation.calibration import Calibration, fit_calibration, measure_errors
from stepcot_jax.evaluation.chains import evaluate
from stepcot_jax.evaluation.counting import (
    Counting,
    choose_counting,
    describe_corrections,
    fit_joints,
    measure_corrections,
)
from stepcot_jax.evaluation.interventions import as_probabilities, describe_reliance, measure_reliance
from stepcot_jax.evaluation.joint import JointModel, ReadLogits, add_joined, learn_tree, name_joined, write_joints
from stepcot_jax.evaluation.joint_fit import WrittenBack
from stepcot_jax.evaluation.operating_points import Rule
from stepcot_jax.evaluation.predictions import (
    FACTS,
    Predictions,
    SplitPredictions,
    ValidationPredictions,
    write_predictions,
)
from stepcot_jax.evaluation.statistics import MIN_PATIENTS, as_plain, count_patients
from stepcot_jax.evaluation.summary import describe, describe_normal, format_table, report_dict, summarise
from stepcot_jax.host.own_folder import save
from stepcot_jax.run.sections import EvaluationSettings
from stepcot_jax.run.stored_reading import (
    CALIBRATION_FILE,
    JOINT_FILE,
    PAIRS_FILE,
    POINTS_FILE,
    RESULT_FILES,
    STATISTICS_FILE,
    seal,
)
from stepcot_jax.run.task import REPORT
from stepcot_jax.training.checkpoints import Best

if TYPE_CHECKING:
    from stepcot_jax.evaluation.linear_heads import Rival

PREDICTIONS = "predictions"
NUM_GIVEN = 500
"""Largest number of cases of a split that are read with given answers."""


@dataclasses.dataclass(frozen=True)
class Validated:
    """Predictions of the best weights for the validation split."""

    answers: ValidationPredictions  # of every network
    written: Mapping[str, WrittenBack]  # of networks that take given answers, some cases under such answers


@dataclasses.dataclass(frozen=True)
class Chosen:
    """Choices on training and validation cases, made before the test split is opened."""

    calibration: Calibration
    counts: consistency.Counts
    joints: Mapping[str, JointModel]  # by network
    counting: Counting
    rules: consistency.Rules
    rule: Rule
    thresholds: operating_points.Thresholds


def choose(dataset: Dataset, validated: Validated, evaluation: EvaluationSettings) -> Chosen:
    """Return fitted calibration, joint models, rules and thresholds."""
    chain, validation = dataset.chain, validated.answers
    training, own = dataset.labels[np.asarray(dataset.splits.train, int)], validation.predictions
    tree = learn_tree(training, chain.answers_per_step)
    joints = fit_joints(tree, own, validated.written, chain)
    joined = add_joined(validation, joints)
    calibration = fit_calibration(
        joined.predictions,
        chain,
        coverage=evaluation.coverage,
        confidence=evaluation.coverage_confidence,
        patients=validation.facts["patient_id"],
        joined=[name_joined(name) for name in joints],
    )
    counts = consistency.count_pairs(training, chain)
    counting = choose_counting(tree, training, own.labels, chain)
    rule = Rule(evaluation.operating_point, evaluation.operating_target, evaluation.miss_cost)
    thresholds = operating_points.choose_thresholds(
        joined, chain, calibration=calibration, rule=rule, num_resamples=evaluation.num_resamples
    )
    rules = consistency.make_rules(chain, counts=counts)
    return Chosen(calibration, counts, joints, counting, rules, rule, thresholds)


@dataclasses.dataclass(frozen=True)
class Given:
    """What given answers change, on test cases."""

    reliance: Mapping[str, Mapping[str, Any]]  # by network
    corrections: Mapping[str, Any]


def measure_given(
    networks: Mapping[str, tuple[ReadLogits, Int[np.ndarray, "case step"]]], chosen: Chosen, chain: Chain
) -> Given:
    """Measure how networks follow given answers to the same cases, and what corrections are worth."""
    reliance, readers, labels = dict[str, Any](), dict[str, Any](), np.zeros((0, chain.num_steps), np.int32)
    for name, (read, labels) in networks.items():
        nothing = np.zeros((1, *labels.shape, max(chain.answers_per_step)), np.float32)
        logits, joint = np.asarray(read(nothing))[0], chosen.joints[name]
        readers[name] = joint.join(logits, read), np.exp(joint.calibrate(logits)[-1])
        if name != "plain":  # whose logits no answer moves
            reliance[name] = measure_reliance(as_probabilities(read), labels, chain)
    return Given(reliance, measure_corrections(readers, labels, chosen.counting, chain))


_FIELDS = {"patient_id": "patient", "image_path": "image"}
"""Facts -> fields of a record that have another name."""


def with_facts(dataset: Dataset, split: str, predictions: Predictions) -> SplitPredictions:
    """Return predictions with the facts about the cases that statistics need."""
    indices = dataset.splits.by_name()[split]
    cases = [dataset.cases[indices[position]] for position in predictions.index]

    def text(name: str) -> np.ndarray:
        values = [getattr(case, _FIELDS.get(name, name)) for case in cases]
        return np.array(["" if value is None else str(value) for value in values], dtype=np.str_)

    facts = {name: text(name) for name in FACTS if name != "case_id"}
    # An image is a case, so its path, which is unique within the data, names the case.
    return SplitPredictions(predictions, {"case_id": facts["image_path"], **facts})


def write_results(
    workdir: pathlib.Path,
    dataset: Dataset,
    *,
    validated: Validated,
    chosen: Chosen,
    test: SplitPredictions,
    given: Given,
    rival: "Rival | None" = None,
    best: Mapping[str, Best],
    wall_seconds: float,
    evaluation: EvaluationSettings,
) -> dict[str, Any]:
    """Write predictions, calibration, statistics and report; print the scores of the test split."""
    chain: Chain = dataset.chain
    write_splits(workdir, chain, val=validated.answers, test=test)
    joined = add_joined(test, chosen.joints)
    calibration = measure_errors(chosen.calibration, joined.predictions, chain)
    save(workdir / CALIBRATION_FILE, calibration)
    consistency.write_pairs(workdir / PAIRS_FILE, chosen.counts)
    if chosen.joints:
        write_joints(workdir / JOINT_FILE, chosen.joints)
    print("".join(f"consistency: {note}\n" for note in chosen.rules.notes), end="")
    statistics, points = _measure(test, joined, chain, chosen, evaluation.num_resamples)
    save(workdir / POINTS_FILE, points)
    statistics |= {"reliance": given.reliance or None, "corrections": as_plain(given.corrections)}
    save(workdir / STATISTICS_FILE, statistics)
    seal(workdir, RESULT_FILES)
    metrics = evaluate(test.predictions, chain)
    report = report_dict(metrics=metrics, num_cases=dataset.num_cases, wall_seconds=wall_seconds)
    for name, figures in report["test"].items():
        interval = statistics["models"][name]["intervals"]
        figures["consistency"] = statistics["models"][name]["consistency"]
        figures["interval"] = interval and [interval["mean_accuracy"][end] for end in ("low", "high")]
    ranked = rank_networks(validated.answers.predictions, chain)
    report |= {"best": describe_best(best), "default": next(iter(ranked))}
    errors = [f"{name}: {calibration.describe_error(name, chain.steps[-1].name)}" for name in statistics["models"]]
    report["notes"] = [*describe_normal(statistics), *errors]
    if rival is not None:
        report["heads"] = msgspec.to_builtins(rival)
    save(workdir / REPORT, report)
    print(format_table(metrics))
    if len(ranked) > 1:
        (default, highest), *others = ranked.items()
        rest = ", ".join(f"{name} {100 * accuracy:.1f}" for name, accuracy in others)
        print(f"default: {default} (best on validation: {100 * highest:.1f} %; {rest})")
    print()
    print("\n".join([*describe(statistics), *(rival.describe() if rival else ()), *report["notes"]]))
    print("\n".join(describe_reliance(given.reliance)))
    print("\n".join(describe_corrections(statistics["corrections"], chain)))
    if (num_patients := count_patients(test.facts["patient_id"])) < MIN_PATIENTS:
        cases = f"{len(test.predictions.labels)} test cases of {num_patients} patients"
        print(
            f"note: {cases} show nothing: with fewer than {MIN_PATIENTS} patients figures and intervals may be chance"
        )
    print(f"\n{wall_seconds:.0f} s; written to {workdir / REPORT}")
    return report


def rank_networks(validated: Predictions, chain: Chain) -> dict[str, float]:
    """Return the mean accuracy of the networks on validation without given answers, 0 to 1, best first.

    The first is the default of every reader. Of equal ones it is the later of teacher, student and plain.
    """
    evaluated, names = evaluate(validated, chain), list(validated.logits)
    ranked = sorted(names, key=lambda name: (evaluated[name].mean_accuracy, names.index(name)), reverse=True)
    return {name: evaluated[name].mean_accuracy for name in ranked}


def write_splits(workdir: pathlib.Path, chain: Chain, **splits: SplitPredictions | ValidationPredictions) -> None:
    """Write the predictions for splits."""
    (workdir / PREDICTIONS).mkdir(exist_ok=True)
    for split, answers in splits.items():
        write_predictions(workdir / PREDICTIONS / f"{split}.npz", answers, chain)


def describe_best(best: Mapping[str, Best]) -> dict[str, dict[str, float]]:
    """Return the update and validation score of each network's best weights."""
    return {name: {"step": entry.step, "validation_score": entry.score} for name, entry in best.items()}


def _measure(
    test: SplitPredictions, joined: SplitPredictions, chain: Chain, chosen: Chosen, num_resamples: int
) -> tuple[dict[str, Any], operating_points.OperatingPoints]:
    calibration = chosen.calibration
    statistics = summarise(test, chain, calibration=calibration, rules=chosen.rules, num_resamples=num_resamples)
    points = operating_points.measure_thresholds(
        chosen.thresholds, joined, chain, calibration=calibration, num_resamples=num_resamples
    )
    return statistics, operating_points.OperatingPoints.of_findings(chosen.rule, points)
