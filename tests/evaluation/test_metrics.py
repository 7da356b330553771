"""The figures of a step against plain counting, scikit-learn and the rank statistic."""

import math
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as sklearn_metrics

from stepcot_jax.chain import NOT_ANNOTATED, Step
from stepcot_jax.evaluation.chains import step_metrics


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
