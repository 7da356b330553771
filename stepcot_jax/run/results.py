"""Results at the end of a run: predictions or replies of the best weights, calibration, statistics and report.

Only the end of a run imports this module. Chains first, with plain heads beside their networks; then trees, policies.
"""

import dataclasses
import math
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import msgspec
import numpy as np
from jaxtyping import Int

from stepcot_jax.chain import Chain
from stepcot_jax.data.dataset import Dataset
from stepcot_jax.data.questions.record_files import write_replies
from stepcot_jax.evaluation import consistency, operating_points, replies, structured_reports
from stepcot_jax.evaluation.calibration import Calibration, fit_calibration, measure_errors
from stepcot_jax.evaluation.chains import evaluate
from stepcot_jax.evaluation.counting import (
    Counting,
    choose_counting,
    describe_corrections,
    fit_joints,
    measure_corrections,
)
from stepcot_jax.evaluation.gate import Gate, fit_gate
from stepcot_jax.evaluation.interventions import as_probabilities, describe_reliance, measure_reliance
from stepcot_jax.evaluation.joint import JointModel, ReadLogits, add_joined, learn_tree, name_joined, write_joints
from stepcot_jax.evaluation.joint_fit import WrittenBack
from stepcot_jax.evaluation.linear_heads import FittedHeads, Rival, compare_with_heads, fit_linear_heads
from stepcot_jax.evaluation.operating_points import Rule
from stepcot_jax.evaluation.predictions import (
    FACTS,
    Predictions,
    SplitPredictions,
    ValidationPredictions,
    write_predictions,
)
from stepcot_jax.evaluation.replies import BASELINE, Results, ScoringSettings
from stepcot_jax.evaluation.scored_baseline import score_baseline
from stepcot_jax.evaluation.statistics import MIN_PATIENTS, as_plain, count_patients
from stepcot_jax.evaluation.summary import describe, describe_normal, format_table, report_dict, summarise
from stepcot_jax.evaluation.unread import describe_unread
from stepcot_jax.host.files import write_whole
from stepcot_jax.host.own_folder import save
from stepcot_jax.record import KINDS, Record
from stepcot_jax.run.plain_network import name_plain_command
from stepcot_jax.run.sections import EvaluationSettings
from stepcot_jax.run.stored import (
    CALIBRATION_FILE,
    JOINT_FILE,
    MAX_CASES,
    MIN_CASES,
    PAIRS_FILE,
    POINTS_FILE,
    RESULT_FILES,
    STATISTICS_FILE,
    NormalPicture,
    seal,
)
from stepcot_jax.run.task import REPORT, Outcome
from stepcot_jax.systems.networks import encode_in_parts
from stepcot_jax.systems.step_cot import StepCoT
from stepcot_jax.training.checkpoints import Best
from stepcot_jax.training.processes import is_first
from stepcot_jax.training.system import System

if TYPE_CHECKING:
    from stepcot_jax.run.inputs import Feed

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


def predict(
    system: System,
    answer: Callable[[Any, str, "Feed"], Predictions],
    outcome: Outcome,
    split: str,
    feed: "Feed",
    read_given: Callable[[ReadLogits, np.ndarray], Any],
) -> tuple[SplitPredictions, dict[str, Any]]:
    """Return predictions of the best weights, and outputs of `read_given` for some cases by network."""
    logits, given = dict[str, Any](), dict[str, Any]()
    rows: dict[str, Any] = {"labels": np.zeros((0, 0), np.int32)}
    if system.takes_given:
        rows = feed.sample_rows(split, NUM_GIVEN) | feed.inputs.text
    labels, read_step = np.asarray(rows["labels"]), -1
    for name in system.names:
        params = outcome.params_of(name)
        if outcome.step_of(name) != read_step:
            answers, read_step = answer(params, split, feed), outcome.step_of(name)
        logits[name] = answers.logits[name]
        if system.takes_given:
            given[name] = read_given(system.given_reader(name, jax.device_get(params), dict(rows)), labels)
        del params
    return with_facts(feed.inputs.dataset, split, dataclasses.replace(answers, logits=logits)), given


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
    rival: Rival | None = None,
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


# The mean picture of normal training cases, which maps put in place of parts of a picture (`reading.explain`).


def mean_normal_picture(dataset: Dataset) -> NormalPicture | None:
    """Return the mean of training cases whose last answer denies a finding; None for fewer than `MIN_CASES`."""
    last = dataset.chain.steps[-1]
    if last.normal is None:
        return None
    train = np.asarray(dataset.splits.train, int)
    chosen = train[dataset.labels[train, -1] == last.normal][:MAX_CASES]
    if len(chosen) < MIN_CASES:
        return None
    total = np.zeros(dataset.pixels[int(chosen[0])].shape)
    for index in chosen.tolist():
        total += dataset.pixels[index]
    return NormalPicture(np.rint(total / len(chosen)).astype(np.uint8), len(chosen))


# The gate of each network, fitted on features of its training and validation images.


NUM_IMAGES = 2000
"""Largest number of images of a split on which a gate is fitted."""


def fit_gates(
    feed: "Feed", system: System, params_of: Callable[[str], Any], *, false_alarms: float, say: Callable[[str], None]
) -> dict[str, Gate]:
    """Return the gate of each network that reads images; none where validation images are too few for its limit."""
    if not false_alarms or not system.gated or feed.settings.image_encoder.name == "imported":
        return {}
    gates, gate, params = dict[str, Gate | None](), None, None
    trains_encoder = feed.inputs.image_encoder is not None
    for name in reversed(system.gated):  # the last was restored last
        own = params_of(name) if trains_encoder else {}
        if not gates or (trains_encoder and own is not params):  # else both networks read the same features
            params = own
            features = {split: _read_split(feed, system, jax.device_get(own), split) for split in ("train", "val")}
            gate = fit_gate(features["train"], features["val"], false_alarms=false_alarms)
        gates[name] = gate
    found = {name: gate for name in system.gated if (gate := gates[name]) is not None}
    if not found:
        say(
            f"no gate: config.evaluation.gate_false_alarms={false_alarms:g} needs at least "
            f"{math.ceil(1 / false_alarms - 1e-9) - 1} validation images"
        )
    return found


def _read_split(feed: "Feed", system: System, params: Any, split: str) -> np.ndarray:
    encoder_params = {name: params[name] for name in ("image_encoder",) if name in params}
    parts, size = [], 0
    for batch in feed.sample_batches(split, NUM_IMAGES):
        name = "images" if "images" in batch else "image_features"
        rows = batch[name]
        num_rows, size = len(rows), max(size, len(rows))  # the last batch is padded to the others' size
        rows = np.concatenate([rows, np.zeros((size - num_rows, *rows.shape[1:]), rows.dtype)])
        parts.append(np.asarray(system.moments(encoder_params, {name: rows}))[:num_rows])
    return np.concatenate(parts)


# Linear heads on the features of a finished run's encoder, beside its networks.


NUM_ROWS = 10_000
"""Largest number of images of training and validation that linear heads are fitted on, spread evenly over the split."""


def read_features(
    feed: "Feed", system: StepCoT, params: Any, split: str, num_cases: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield image features [case, width] and labels [case, step] of the rows of `Feed.sample_batches`."""
    for rows in feed.sample_batches(split, num_cases):
        yield encode_in_parts(system.networks, params, rows), rows["labels"]


def fit_heads(feed: "Feed", system: StepCoT, params: Any) -> tuple[FittedHeads, int]:
    """Return linear heads on the features that `params` give, and the number of training cases."""
    features, labels, dataset = {}, {}, feed.inputs.dataset
    for split in ("train", "val"):
        parts = zip(*read_features(feed, system, params, split, NUM_ROWS), strict=True)
        features[split], labels[split] = map(np.concatenate, parts)
    labels["train"] = dataset.training_targets[feed.sample("train", NUM_ROWS)]  # as of the networks
    return fit_linear_heads(features, labels, dataset.chain.answers_per_step), len(labels["train"])


def fit_rival(
    feed: "Feed", system: System, params_of: Callable[[str], Any]
) -> "Callable[[Feed, SplitPredictions], Rival] | None":
    """Return a function that measures linear heads on the test split; None in a run without a teacher."""
    if type(system) is not StepCoT:
        return None
    params = {name: tree for name, tree in params_of("teacher").items() if name == "image_encoder"}
    if not is_first():  # the others wait for the report
        return None
    params, settings, chain = jax.device_get(params), feed.settings, feed.inputs.dataset.chain
    name, note = "heads on the frozen encoder", "read the same frozen features as the networks"
    if params:
        trainer = "the teacher and the plain heads" if "plain" in system.names else "the teacher"
        name, note = "heads on the teacher's encoder", f"are the weaker rival: {trainer} trained the encoder. "
        note += f"A verdict needs the plain network: {name_plain_command(settings)}"
    heads, num_cases = fit_heads(feed, system, params)
    penalties = dict(zip((step.name for step in chain.steps), heads.penalties, strict=True))

    def measure(opened: "Feed", test: SplitPredictions) -> Rival:
        parts = read_features(opened, system, params, "test", len(test.predictions.index))
        logits = np.concatenate([heads.read(features) for features, _ in parts])
        figures = compare_with_heads(test, logits, chain, name=name, num_resamples=settings.evaluation.num_resamples)
        return Rival(name, num_cases, penalties, chain.steps[-1].name, figures, note)

    return measure


# A tree of questions: the constant that says no to everything stands beside every figure.


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


# A policy: replies, figures with intervals and a baseline.


REPLIES_FOLDER = "replies"

_SHOWN: tuple[tuple[str, replies.Key], ...] = (
    ("A", ("a_score", "mean")),
    *((f"A {kind}", ("a_score", kind)) for kind in KINDS),
    ("V", ("v_score", "all")),
    ("V findings", ("v_score", "findings")),
    ("V regions", ("v_score", "regions")),
    ("passed", ("grounding", "all")),
    ("well formed", ("format", "all")),
)


def write_policy_results(
    workdir: pathlib.Path,
    answered: "Mapping[str, replies.Answered]",
    *,
    train: Sequence[Record],
    scoring: ScoringSettings,
    outcome: Outcome,
    num_resamples: int,
    end_of_sft: int = 0,
) -> dict[str, Any]:
    """Write the test replies of each phase, statistics and report; print the figures; return the report."""
    for phase, answers in answered.items():
        write_replies(workdir / REPLIES_FOLDER / f"{phase}_test.jsonl", answers.records, answers.texts)
    records = next(iter(answered.values())).records
    baseline, remark = score_baseline(train, records, scoring)
    results = replies.summarise(
        records,
        {phase: answers.scores for phase, answers in answered.items()},
        scoring,
        baseline=baseline,
        num_resamples=max(num_resamples, 1),
        notes=[remark],
    )
    write_whole(workdir / STATISTICS_FILE, replies.encode(replies.to_json(results)))
    seal(workdir, [STATISTICS_FILE])
    told, notes = describe_unread(results.unread), []
    if end_of_sft and "sft" in outcome.best:
        notes.append(_note_start(outcome.best["sft"].step, end_of_sft, phase=list(answered)[-1].upper()))
    notes = [note for note in notes if note]
    report = {
        "num_questions": results.num_records,
        "num_patients": results.num_patients,
        "wall_seconds": outcome.seconds(),
        "best": describe_best(outcome.best),
        "baseline": _figures(results, BASELINE),
        "test": {phase: _figures(results, phase) for phase in answered},
        "unread": results.unread,
        "notes": notes,
    }
    write_whole(workdir / REPORT, msgspec.json.format(replies.encode(report), indent=2) + b"\n")
    print("\n".join([*told, *describe_results(results, with_intervals=num_resamples > 0), *notes]))
    print(f"\n{report['wall_seconds']:.0f} s; written to {workdir / REPORT}")
    return report


def _note_start(best: int, end_of_sft: int, *, phase: str = "GRPO") -> str:
    """Return a note on "GRPO less SFT" if GRPO, or DPO, did not begin at the row of SFT, else ""."""
    if best == end_of_sft:
        return ""
    return (
        f"{phase} began at the last weights of SFT (update {end_of_sft}); the row of SFT is of its best (update "
        f"{best}): a part of {phase} less SFT is fine-tuning."
    )


def _figures(results: Results, row: str) -> dict[str, float]:
    figures = results.figures[row]
    return {name.replace(" ", "_"): figures[key].value for name, key in _SHOWN if key in figures}


def describe_results(results: Results, *, with_intervals: bool = True) -> list[str]:
    """Return the figures of every row in %, and the differences of GRPO, as lines of text."""
    names = [name for name, key in _SHOWN if any(key in row for row in results.figures.values())]
    width = max(map(len, results.figures))
    lines = [f"{'test split, %':{width}}  " + "  ".join(f"{name:>11}" for name in names)]
    keys = dict(_SHOWN)
    for row, figures in results.figures.items():
        values = [figures[keys[name]].value if keys[name] in figures else math.nan for name in names]
        cells = [f"{'-' if math.isnan(value) else f'{100 * value:.1f}':>11}" for value in values]
        lines.append(f"{row:{width}}  " + "  ".join(cells))
    for row, figures in results.differences.items() if with_intervals else ():
        if row == BASELINE:
            continue
        shown = [
            f"{name} {100 * difference.value:+.1f} [{100 * difference.low:+.1f}, {100 * difference.high:+.1f}]"
            for name in ("A", "V", "V findings")
            if (difference := figures.get(keys[name])) is not None and not math.isnan(difference.value)
        ]
        lines.append(f"{row} less {next(iter(results.counts.keys() - {BASELINE, row}), 'sft')}: " + ", ".join(shown))
    return lines
