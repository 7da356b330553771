"""The figures of a split: collected batches, scikit-learn's figures of a step, and the printed table."""

import collections
import json
import math
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from evaluation.small_splits import CHAIN, draw_labels
from hypothesis import given
from hypothesis import strategies as st
from refusals import refuse
from sklearn import metrics as sklearn_metrics

from stepcot_jax.chain import NOT_ANNOTATED, Chain, Step
from stepcot_jax.evaluation.chains import ModelMetrics, evaluate, majority_chain_accuracy, step_metrics
from stepcot_jax.evaluation.predictions import Predictions, collect
from stepcot_jax.evaluation.summary import format_table, report_dict

ABSENT = -1e9
NUM_CASES = 11


def draw_logits(seed: int) -> np.ndarray:
    logits = np.random.default_rng(seed).normal(0, 2, (NUM_CASES, 3, 4)).astype(np.float32)
    for position, step in enumerate(CHAIN.steps):
        logits[:, position, step.num_answers :] = ABSENT
    return logits


TEACHER, STUDENT = draw_logits(1), draw_logits(2)
LABELS = draw_labels(np.random.default_rng(3), NUM_CASES, missing=0.25)


def make_batches(order: np.ndarray, size: int) -> list[dict[str, np.ndarray]]:
    """Batches of the cases in `order`; the last is padded with rows that look valid."""
    batches = []
    for start in range(0, len(order), size):
        index = order[start : start + size]
        padded = np.concatenate([index, np.zeros(size - len(index), int)]).astype(np.int32)
        batches.append({"index": padded, "labels": LABELS[padded], "present": np.arange(size) < len(index)})
    return batches


def look_up(batch):
    return {"teacher": TEACHER[batch["index"]], "student": STUDENT[batch["index"]]}


def in_order(size=4):
    return make_batches(np.arange(NUM_CASES), size)


def check_whole(predictions, rtol=0.0):
    np.testing.assert_array_equal(predictions.index, np.arange(NUM_CASES))
    np.testing.assert_array_equal(predictions.labels, LABELS)
    assert list(predictions.logits) == ["teacher", "student"]
    assert predictions.logits["teacher"].dtype == np.float32
    np.testing.assert_allclose(predictions.logits["teacher"], TEACHER, rtol=rtol)
    np.testing.assert_array_equal(predictions.logits["student"], STUDENT)


def evaluate_teacher(labels, logits=TEACHER):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return evaluate(Predictions(np.arange(len(labels)), labels, {"teacher": logits}), CHAIN)["teacher"]


@pytest.mark.parametrize("size", [1, 4, 11, 32])
def test_every_case_comes_once_in_the_order_of_the_split(size):
    check_whole(collect(look_up, make_batches(np.random.default_rng(0).permutation(NUM_CASES), size)))


def test_padding_rows_never_count_whatever_they_hold_and_wherever_they_stand():
    def spoil_padding(batch):
        return {name: np.where(batch["present"][:, None, None], rows, np.nan) for name, rows in look_up(batch).items()}

    spoilt = in_order(size=8)
    spoilt[-1]["labels"][~spoilt[-1]["present"]] = 77
    check_whole(collect(spoil_padding, spoilt))
    fronts = {"index": [0, 7], "labels": LABELS[[1, 2]], "present": [False, False]}
    batches = [{name: np.concatenate([fronts[name], batch[name]]) for name in fronts} for batch in in_order()]
    batches.insert(1, {**batches[0], "present": np.zeros(len(batches[0]["index"]), bool)})
    check_whole(collect(look_up, batches))


def test_predictions_on_the_device_and_in_bfloat16_arrive_as_float32_in_one_transfer_each(monkeypatch):
    @jax.jit
    def predict(index):
        return {"teacher": jnp.asarray(TEACHER, jnp.bfloat16)[index], "student": jnp.asarray(STUDENT)[index]}

    fetched, device_get = [], jax.device_get
    monkeypatch.setattr(jax, "device_get", lambda tree: fetched.append(tree) or device_get(tree))
    batches = [{name: jnp.asarray(array) for name, array in batch.items()} for batch in in_order()]
    with jax.transfer_guard_device_to_host("disallow"):
        found = collect(lambda batch: dict(reversed(predict(batch["index"]).items())), batches)  # JAX sorts the keys
    check_whole(found, rtol=2**-8)
    assert len(fetched) == 3


@pytest.mark.parametrize(
    ("predict", "batches", "words"),
    [
        (look_up, make_batches(np.array([0, 3, 5, 1, 3, 5, 5]), 4), r"2 cases .* the first at index \[3, 5\]"),
        (look_up, [], "no batch"),
        (lambda batch: dict(list(look_up(batch).items())[: 2 - (batch["index"][0] > 0)]), in_order(), "has models"),
        (lambda batch: {"teacher": TEACHER[batch["index"], :2]}, in_order(), r"teacher: logits \(4, 2, 4\)"),
    ],
)
def test_batches_that_are_no_split_are_refused(predict, batches, words):
    refuse(words, collect, predict, batches, error=ValueError)


def test_figures_are_those_of_each_steps_own_answers():
    found = evaluate_teacher(LABELS, STUDENT)
    accuracies, majorities = [], []
    for position, step in enumerate(CHAIN.steps):
        weights, own = np.exp(STUDENT[:, position, : step.num_answers].astype(np.float64)), LABELS[:, position]
        probabilities = weights / weights.sum(axis=1, keepdims=True)
        expected = step_metrics(step=step, probabilities=probabilities, labels=own)
        assert found.steps[position].confusion == expected.confusion
        assert found.steps[position].auc == pytest.approx(expected.auc)
        truth = own[own != NOT_ANNOTATED]
        accuracies.append(expected.accuracy)
        majorities.append(np.bincount(truth).max() / len(truth))
    assert found.mean_accuracy == pytest.approx(np.mean(accuracies))
    assert found.mean_majority_accuracy == pytest.approx(np.mean(majorities))
    right = (STUDENT.argmax(axis=2) == LABELS) | (LABELS == NOT_ANNOTATED)
    assert found.chain_accuracy == pytest.approx(right[(LABELS != NOT_ANNOTATED).any(axis=1)].all(axis=1).mean())
    logits = STUDENT * np.where(STUDENT == ABSENT, 1, 1e30).astype(np.float32)
    assert evaluate_teacher(LABELS, logits).mean_accuracy == found.mean_accuracy


def test_steps_with_one_answer_or_none_are_left_out_of_the_means_and_keep_their_figures():
    labels = LABELS.copy()
    labels[:, 1] = np.where(labels[:, 1] == NOT_ANNOTATED, NOT_ANNOTATED, 1)
    labels[:, 2] = NOT_ANNOTATED
    for one_case in (False, True):  # a single case is one answer too
        if one_case:
            labels[0, 2] = 0
        found = evaluate_teacher(labels)
        assert found.mean_accuracy == found.steps[0].accuracy
        assert found.mean_majority_accuracy == found.steps[0].majority_accuracy < 1
        assert [step.has_one_answer for step in found.steps] == [False, True, one_case]
        assert found.steps[1].majority_accuracy == 1
        assert found.steps[2].num_cases == one_case
    alike = evaluate_teacher(np.zeros_like(LABELS))
    assert (math.isnan(alike.mean_accuracy), alike.majority_chain_accuracy) == (True, 1)
    nothing = evaluate_teacher(np.full_like(LABELS, NOT_ANNOTATED))
    assert math.isnan(nothing.mean_accuracy + nothing.mean_majority_accuracy + nothing.chain_accuracy)


def test_the_majority_of_whole_chains_is_the_better_of_two_constant_chains():
    rng = np.random.default_rng(4)
    for _ in range(50):
        labels = rng.integers(-1, 2, (rng.integers(1, 9), 3))
        labels[labels < 0] = NOT_ANNOTATED
        known = labels[(labels >= 0).any(axis=1)]
        frequent = [max((0, 1), key=[*own[own >= 0]].count) for own in known.T]
        counts = collections.Counter(map(tuple, known.tolist()))
        most = max(counts.values(), default=0)
        repeated = [chain for chain, count in counts.items() if count == most]
        chains = [frequent, *(np.where(np.array(chain) >= 0, chain, frequent) for chain in repeated)]
        shares = [((known < 0) | (known == chain)).all(axis=1).mean() for chain in chains] if len(known) else []
        found = majority_chain_accuracy(labels)
        # Of several most frequent chains any may be taken.
        assert (math.isnan(found) and not shares) or shares[0] <= found <= max(shares) + 1e-12


def test_a_case_without_labels_equals_a_dropped_case_and_unfit_logits_are_refused():
    kept = np.arange(NUM_CASES) % 3 != 0
    masked = np.where(kept[:, None], LABELS, NOT_ANNOTATED)
    assert evaluate_teacher(masked) == evaluate_teacher(LABELS[kept], TEACHER[kept])
    for bad in (math.nan, math.inf):
        logits = STUDENT.copy()
        logits[[2, 5], 1, 0] = bad
        with pytest.raises(FloatingPointError, match="teacher, step 'Distribution': logits of 2 cases are not finite"):
            evaluate_teacher(LABELS, logits)
    for logits in (TEACHER[:, :2], TEACHER[:, :, :3]):
        refuse(r"\[case, 3, 4 or more\]", evaluate_teacher, LABELS, logits, error=ValueError)


def measure(probabilities, labels):
    options = tuple(f"Place {label}" for label in range(probabilities.shape[1]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return step_metrics(step=Step("Location", "Where?", options), probabilities=probabilities, labels=labels)


@st.composite
def cases(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    num_cases, num_answers = draw(st.integers(0, 40)), draw(st.integers(2, 9))
    weights = rng.integers(0, 4, (num_cases, num_answers)) + 1
    labels = rng.choice(rng.choice(num_answers, draw(st.integers(1, num_answers)), replace=False), num_cases)
    labels[rng.random(num_cases) < 1 / 3] = NOT_ANNOTATED
    return weights / weights.sum(axis=1, keepdims=True), labels.astype(np.int32)


@given(cases())
def test_agrees_with_scikit_learn(drawn):
    probabilities, labels = drawn
    annotated = labels >= 0
    truth, scores = labels[annotated], probabilities[annotated]
    found, occurring, answers = measure(probabilities, labels), np.unique(truth), scores.argmax(axis=1)
    assert found.num_cases == len(truth)
    assert set(found.left_out) == {option for label, option in enumerate(found.answers) if label not in occurring}
    if len(occurring) < 2:
        assert math.isnan(found.auc)
        assert math.isnan(found.specificity)
    if not len(truth):
        assert math.isnan(found.accuracy + found.majority_accuracy + found.f1)
        return
    assert found.accuracy == pytest.approx((truth == answers).mean())
    assert found.majority_accuracy == pytest.approx(np.bincount(truth).max() / len(truth))
    means = sklearn_metrics.precision_recall_fscore_support(
        truth, answers, labels=occurring, average="macro", zero_division=0
    )
    np.testing.assert_allclose((found.precision, found.sensitivity, found.f1), means[:3], rtol=1e-12)
    every_label = np.arange(probabilities.shape[1])
    np.testing.assert_array_equal(found.confusion, sklearn_metrics.confusion_matrix(truth, answers, labels=every_label))
    if len(occurring) > 1:
        specificities = [sklearn_metrics.recall_score(truth != label, answers != label) for label in occurring]
        areas = [sklearn_metrics.roc_auc_score(truth == label, scores[:, label]) for label in occurring]
        np.testing.assert_allclose((found.specificity, found.auc), (np.mean(specificities), np.mean(areas)))


@given(cases(), st.randoms(use_true_random=False))
def test_a_masked_case_equals_a_dropped_one_and_order_does_not_matter(drawn, random):
    probabilities, labels = drawn
    order = np.array(random.sample(range(len(labels)), len(labels)), dtype=int)
    one = measure(probabilities, labels)
    for rows in (np.flatnonzero(labels >= 0), order):
        np.testing.assert_equal(vars(measure(probabilities[rows], labels[rows])), vars(one))


DETECTION = Step("Detection", "Anything?", ("No abnormality", "Increased opacity", "Mixed"))
OTHERS = Step("Distribution", "How?", ("Focal", "Diffuse")), Step("Side", "Where?", ("Left", "Right"))
SHOWN = Chain((DETECTION, *OTHERS))
SHOWN_LABELS = np.array([[0, 0, -100], [0, 0, -100], [1, 0, -100], [1, -100, -100]], np.int32)
NUM_SHOWN = {"train": 70, "val": 15, "test": 4}


def make_metrics() -> dict[str, ModelMetrics]:
    teacher = np.zeros((4, 3, 3), np.float32)
    teacher[[0, 1, 2, 3], 0, [0, 0, 1, 0]] = [2, 3, 4, 1]
    return evaluate(Predictions(np.arange(4), SHOWN_LABELS, {"teacher": teacher}), SHOWN)


TABLE = """\
teacher (%)       cases  accuracy  majority    AUC  sensitivity  macro spec.     F1  precision
----------------------------------------------------------------------------------------------
Detection             4      75.0      50.0  100.0         75.0         75.0   73.3       83.3
Distribution          3     100.0     100.0      -        100.0            -  100.0      100.0
----------------------------------------------------------------------------------------------
mean                         75.0      50.0  100.0         75.0         75.0   73.3       83.3
all annotated steps of a case correct: 75.0 (most frequent answers: 50.0)

Detection: left out of the macro averages because no case has them: Mixed
Distribution: left out of the macro averages because no case has them: Diffuse
Distribution: every case has the same answer, left out of the mean line
without labels, left out of the table: Side"""


def test_table_reads_as_intended():
    assert format_table(make_metrics()) == TABLE


def test_the_report_is_strict_json_with_null_for_what_is_undefined():
    report = report_dict(metrics=make_metrics(), num_cases=NUM_SHOWN, wall_seconds=12.5)
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    detection, distribution, side = report["test"]["teacher"]["steps"]
    assert detection["confusion"] == [[2, 0, 0], [1, 1, 0], [0, 0, 0]]
    assert detection["answers"] == ["No abnormality", "Increased opacity", "Mixed"]
    assert (detection["left_out"], side["left_out"]) == (["Mixed"], ["Left", "Right"])
    assert (distribution["auc"], distribution["specificity"], distribution["accuracy"]) == (None, None, 1.0)
    assert (side["num_cases"], side["accuracy"]) == (0, None)
