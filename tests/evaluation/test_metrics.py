"""The figures of a step against plain counting, scikit-learn and the rank statistic."""

import math
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as sklearn_metrics

from stepcot_jax.chain import NOT_ANNOTATED, Step
from stepcot_jax.evaluation.chains import StepMetrics, answer_accuracy, step_metrics
from stepcot_jax.evaluation.statistics import count_once

FIGURES = ("accuracy", "majority_accuracy", "auc", "sensitivity", "specificity", "f1", "precision")


def make_step(num_answers: int) -> Step:
    return Step("Location", "Where?", tuple(f"Place {label}" for label in range(num_answers)))


def draw_cases(*, seed: int, num_cases: int, num_answers: int, num_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Coarse probabilities with frequent ties, and labels of which a third is missing."""
    rng = np.random.default_rng(seed)
    weights = rng.integers(0, 4, (num_cases, num_answers)) + 1
    classes = rng.choice(num_answers, num_classes, replace=False)
    labels = rng.choice(classes, num_cases)
    labels[rng.random(num_cases) < 1 / 3] = NOT_ANNOTATED
    return weights / weights.sum(axis=1, keepdims=True), labels.astype(np.int32)


cases = st.builds(
    lambda seed, num_cases, num_answers, share: draw_cases(
        seed=seed,
        num_cases=num_cases,
        num_answers=num_answers,
        num_classes=max(1, round(share * num_answers)),
    ),
    seed=st.integers(0, 2**32 - 1),
    num_cases=st.integers(0, 40),
    num_answers=st.integers(2, 9),
    share=st.floats(0, 1),
)


def rank_auc(scores: np.ndarray, positive: np.ndarray) -> float:
    """Mann-Whitney: the probability that a positive case outscores a negative one; ties count half."""
    above = scores[positive][:, None] - scores[~positive][None, :]
    return float(((above > 0) + 0.5 * (above == 0)).mean())


def count_by_hand(probabilities: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """All figures in plain Python loops over cases and classes."""
    kept = [(list(row), int(label)) for row, label in zip(probabilities, labels, strict=True) if label >= 0]
    pairs = [(label, row.index(max(row))) for row, label in kept]
    classes = sorted({truth for truth, _ in pairs})
    rates: dict[str, list[float]] = {name: [] for name in FIGURES[2:]}
    for c in classes:
        tp = sum(t == c and a == c for t, a in pairs)
        fp = sum(t != c and a == c for t, a in pairs)
        fn = sum(t == c and a != c for t, a in pairs)
        tn = sum(t != c and a != c for t, a in pairs)
        precision, recall = (tp / (tp + fp) if tp + fp else 0.0), tp / (tp + fn)
        rates["sensitivity"].append(recall)
        rates["precision"].append(precision)
        rates["f1"].append(2 * precision * recall / (precision + recall) if precision + recall else 0.0)
        if tn + fp:
            rates["specificity"].append(tn / (tn + fp))
            scores = np.array([row[c] for row, _ in kept])
            rates["auc"].append(rank_auc(scores, np.array([t == c for t, _ in pairs])))
    figures = {name: sum(values) / len(values) if values else math.nan for name, values in rates.items()}
    figures["accuracy"] = sum(t == a for t, a in pairs) / len(pairs) if pairs else math.nan
    figures["majority_accuracy"] = (
        max(sum(t == c for t, _ in pairs) for c in classes) / len(pairs) if pairs else math.nan
    )
    return figures


def chain_accuracy(*, answers, labels) -> float:
    return answer_accuracy(count_once(len(labels)), answers=answers, labels=labels)[1].item()


def assert_same(found: StepMetrics, expected: StepMetrics) -> None:
    for name in FIGURES:
        np.testing.assert_equal(getattr(found, name), getattr(expected, name), err_msg=name)
    assert (found.num_cases, found.confusion, found.left_out) == (
        expected.num_cases,
        expected.confusion,
        expected.left_out,
    )


@given(cases)
def test_agrees_with_counting_by_hand(drawn):
    probabilities, labels = drawn
    step = make_step(probabilities.shape[1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = step_metrics(step=step, probabilities=probabilities, labels=labels)
    expected = count_by_hand(probabilities, labels)
    for name in FIGURES:
        np.testing.assert_allclose(getattr(found, name), expected[name], rtol=1e-12, err_msg=name)
    present = set(labels[labels >= 0].tolist())
    assert found.num_cases == (labels >= 0).sum()
    assert found.left_out == tuple(option for label, option in enumerate(step.options) if label not in present)


@given(cases)
def test_agrees_with_scikit_learn(drawn):
    probabilities, labels = drawn
    annotated = labels >= 0
    truth, answers = labels[annotated], probabilities[annotated].argmax(axis=1)
    found = step_metrics(step=make_step(probabilities.shape[1]), probabilities=probabilities, labels=labels)
    if not annotated.any():
        return
    precision, sensitivity, f1, _ = sklearn_metrics.precision_recall_fscore_support(
        truth, answers, labels=np.unique(truth), average="macro", zero_division=0
    )
    np.testing.assert_allclose((found.precision, found.sensitivity, found.f1), (precision, sensitivity, f1), rtol=1e-12)
    every_label = np.arange(probabilities.shape[1])
    np.testing.assert_array_equal(found.confusion, sklearn_metrics.confusion_matrix(truth, answers, labels=every_label))


@given(cases)
def test_specificity_and_auc_agree_with_scikit_learn_answer_by_answer(drawn):
    probabilities, labels = drawn
    annotated = labels >= 0
    truth, scores = labels[annotated], probabilities[annotated]
    found = step_metrics(step=make_step(probabilities.shape[1]), probabilities=probabilities, labels=labels)
    occurring = np.unique(truth)
    if len(occurring) < 2:
        assert math.isnan(found.specificity)
        assert math.isnan(found.auc)
        return
    answers = scores.argmax(axis=1)
    specificities = [sklearn_metrics.recall_score(truth != label, answers != label) for label in occurring]
    areas = [sklearn_metrics.roc_auc_score(truth == label, scores[:, label]) for label in occurring]
    assert found.specificity == pytest.approx(np.mean(specificities))
    assert found.auc == pytest.approx(np.mean(areas))
    assert found.accuracy == pytest.approx(sklearn_metrics.accuracy_score(truth, answers))
    assert found.sensitivity == pytest.approx(
        sklearn_metrics.recall_score(truth, answers, labels=occurring, average="macro", zero_division=0)
    )


def test_auc_is_scikit_learns_multiclass_auc_when_every_answer_occurs():
    rng = np.random.default_rng(0)
    probabilities = rng.dirichlet(np.ones(5), 60)
    labels = np.concatenate([np.arange(5), rng.integers(0, 5, 55)])
    found = step_metrics(step=make_step(5), probabilities=probabilities, labels=labels)
    expected = sklearn_metrics.roc_auc_score(labels, probabilities, multi_class="ovr", average="macro")
    assert found.auc == pytest.approx(expected, rel=1e-12)


def test_numbers_worked_out_on_paper():
    # Truth 0 0 0 1 1 2, answers 0 0 1 1 0 0; answer 3 never occurs, the last case has no label.
    probabilities = [
        [0.7, 0.1, 0.1, 0.1],
        [0.6, 0.2, 0.1, 0.1],
        [0.3, 0.5, 0.1, 0.1],
        [0.2, 0.6, 0.1, 0.1],
        [0.4, 0.3, 0.2, 0.1],
        [0.5, 0.1, 0.3, 0.1],
        [0.0, 0.0, 0.0, 1.0],
    ]
    found = step_metrics(step=make_step(4), probabilities=probabilities, labels=[0, 0, 0, 1, 1, 2, -100])
    assert found.confusion == ((2, 1, 0, 0), (1, 1, 0, 0), (1, 0, 0, 0), (0, 0, 0, 0))
    assert found.num_cases == 6
    assert found.accuracy == pytest.approx(3 / 6)
    assert found.majority_accuracy == pytest.approx(3 / 6)
    assert found.sensitivity == pytest.approx((2 / 3 + 1 / 2 + 0) / 3)
    assert found.specificity == pytest.approx((1 / 3 + 3 / 4 + 1) / 3)
    assert found.precision == pytest.approx((2 / 4 + 1 / 2 + 0) / 3)
    assert found.f1 == pytest.approx((4 / 7 + 2 / 4 + 0) / 3)
    # Pairs ranked correctly: class 0: 3 + 3 + 1 of 9; class 1: 4 + 3 of 8; class 2: all 5.
    assert found.auc == pytest.approx((7 / 9 + 7 / 8 + 1) / 3)
    assert found.left_out == ("Place 3",)


def test_one_class_only_leaves_auc_and_specificity_undefined():
    found = step_metrics(step=make_step(3), probabilities=np.eye(3)[[1, 1, 2]], labels=[1, 1, 1])
    assert math.isnan(found.auc)
    assert math.isnan(found.specificity)
    assert (found.accuracy, found.sensitivity) == (pytest.approx(2 / 3), pytest.approx(2 / 3))
    assert (found.majority_accuracy, found.precision, found.f1) == (1.0, 1.0, pytest.approx(4 / 5))
    assert found.left_out == ("Place 0", "Place 2")


@pytest.mark.parametrize("num_cases", [0, 4])
def test_step_without_annotated_case_is_undefined_without_a_warning(num_cases):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = step_metrics(
            step=make_step(3), probabilities=np.full((num_cases, 3), 1 / 3), labels=np.full(num_cases, NOT_ANNOTATED)
        )
    assert found.num_cases == 0
    assert all(math.isnan(getattr(found, name)) for name in FIGURES)
    assert found.confusion == ((0, 0, 0),) * 3
    assert found.left_out == make_step(3).options


def test_equal_probabilities_give_the_first_answer_and_an_auc_of_half():
    found = step_metrics(step=make_step(3), probabilities=np.full((4, 3), 1 / 3), labels=[0, 1, 2, 2])
    assert found.confusion == ((1, 0, 0), (1, 0, 0), (2, 0, 0))
    assert found.auc == 0.5


@given(cases)
def test_a_masked_case_equals_a_dropped_one(drawn):
    probabilities, labels = drawn
    step = make_step(probabilities.shape[1])
    annotated = labels >= 0
    assert_same(
        step_metrics(step=step, probabilities=probabilities, labels=labels),
        step_metrics(step=step, probabilities=probabilities[annotated], labels=labels[annotated]),
    )


@given(cases, st.randoms(use_true_random=False))
def test_the_order_of_the_cases_does_not_matter(drawn, random):
    probabilities, labels = drawn
    order = np.array(random.sample(range(len(labels)), len(labels)), dtype=int)
    step = make_step(probabilities.shape[1])
    assert_same(
        step_metrics(step=step, probabilities=probabilities[order], labels=labels[order]),
        step_metrics(step=step, probabilities=probabilities, labels=labels),
    )


def test_a_float32_softmax_is_accepted():
    logits = np.random.default_rng(0).normal(0, 8, (200, 26)).astype(np.float32)
    weights = np.exp(logits)
    probabilities = (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)
    assert (
        step_metrics(step=make_step(26), probabilities=probabilities, labels=np.zeros(200, np.int32)).num_cases == 200
    )


def test_chain_accuracy_counts_cases_whose_annotated_steps_are_all_right():
    labels = [[0, 1, 2], [0, -100, 2], [0, 1, 2], [-100, -100, -100], [-100, -100, 1]]
    answers = [[0, 1, 2], [0, 3, 2], [0, 1, 1], [0, 0, 0], [0, 0, 0]]
    assert chain_accuracy(answers=answers, labels=labels) == pytest.approx(2 / 4)


@given(st.integers(0, 2**32 - 1), st.integers(0, 30), st.integers(1, 4))
def test_chain_accuracy_agrees_with_counting(seed, num_cases, num_steps):
    rng = np.random.default_rng(seed)
    answers = rng.integers(0, 2, (num_cases, num_steps))
    labels = rng.choice([0, 1, NOT_ANNOTATED], (num_cases, num_steps))
    outcomes = [
        all(a == t for a, t in zip(given_, truth, strict=True) if t != NOT_ANNOTATED)
        for given_, truth in zip(answers, labels, strict=True)
        if any(t != NOT_ANNOTATED for t in truth)
    ]
    expected = sum(outcomes) / len(outcomes) if outcomes else math.nan
    np.testing.assert_allclose(chain_accuracy(answers=answers, labels=labels), expected)


def test_chain_accuracy_without_annotated_cases_is_undefined():
    assert math.isnan(chain_accuracy(answers=np.zeros((3, 2), int), labels=np.full((3, 2), NOT_ANNOTATED)))
    assert math.isnan(chain_accuracy(answers=np.zeros((0, 2), int), labels=np.zeros((0, 2), int)))
