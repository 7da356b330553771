"""Resampling of patients: weighted means, bootstrap intervals and their widths, McNemar's test against SciPy."""

import math

import numpy as np
import pytest
from evaluation.small_splits import CHAIN, make_split, of_arrays
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from stepcot_jax.chain import Chain, Step
from stepcot_jax.evaluation.chains import FIGURES, bootstrap, bootstrap_differences, evaluate, prepare_metrics
from stepcot_jax.evaluation.statistics import compare_accuracy, count_patients, draw_weights, resample, weighted_mean
from stepcot_jax.host.ranges import Interval


def test_patients_are_drawn_whole_in_blocks_of_any_size(monkeypatch):
    patients = np.array(["a", "b", "a", "", "c", "", "b"])
    weights = np.concatenate(list(draw_weights(patients, num_resamples=400, seed=0)))
    np.testing.assert_array_equal(weights[:, 0], weights[:, 2])
    np.testing.assert_array_equal(weights[:, 1], weights[:, 6])
    assert (weights[:, 3] != weights[:, 5]).any()
    assert (weights[:, [0, 1, 3, 4, 5]].sum(axis=1) == 5).all()
    assert weights[:, 0].mean() == pytest.approx(1, abs=0.2)
    assert count_patients(patients) == 5
    patients = make_split().facts["patient_id"]
    whole = list(draw_weights(patients, num_resamples=50, seed=1))
    parts = list(draw_weights(patients, num_resamples=50, seed=1, num_at_once=7 * 60))
    assert (len(whole), len(parts)) == (1, 8)
    np.testing.assert_array_equal(np.concatenate(whole), np.concatenate(parts))
    monkeypatch.setattr("stepcot_jax.evaluation.statistics.draw_weights", lambda *_, **__: iter(parts))
    joined = resample(lambda weights: {"weights": weights}, patients, num_resamples=50, seed=1)["weights"]
    np.testing.assert_array_equal(joined, whole[0])


@given(st.integers(0, 2**32 - 1), st.integers(0, 20))
def test_means_are_those_of_the_repeated_cases_that_count(seed, num_cases):
    rng = np.random.default_rng(seed)
    counted = rng.random((num_cases, 3)) < 0.6
    values = np.where(counted, rng.normal(0, 1, (num_cases, 3)), np.nan)
    weights = rng.integers(0, 3, (4, num_cases))
    found = weighted_mean(weights.astype(float), values=values, counted=counted)
    for own, means in zip(weights, found, strict=True):
        for column, mean in enumerate(means):
            kept = np.repeat(values[:, column], own)[np.repeat(counted[:, column], own)]
            assert mean == pytest.approx(kept.mean() if len(kept) else math.nan, abs=1e-12, nan_ok=True)


@given(st.integers(0, 2**32 - 1), st.integers(0, 40))
def test_mcnemar_agrees_with_the_binomial_test(seed, num_cases):
    rng = np.random.default_rng(seed)
    labels = rng.choice([0, 1, 2, -100], num_cases)
    first, second = rng.integers(0, 3, (2, num_cases))
    found = compare_accuracy(labels=labels, first=first, second=second)
    pairs = [(a == t, b == t) for t, a, b in zip(labels, first, second, strict=True) if t >= 0]
    only_first, only_second = pairs.count((True, False)), pairs.count((False, True))
    assert (found.num_cases, found.only_first, found.only_second) == (len(pairs), only_first, only_second)
    if only_first + only_second:
        assert found.exact_p == pytest.approx(stats.binomtest(only_first, only_first + only_second).pvalue)
        corrected = max(abs(only_first - only_second) - 1, 0) ** 2 / (only_first + only_second)
        assert found.chi2 == pytest.approx(corrected)
        assert found.chi2_p == pytest.approx(stats.chi2.sf(corrected, 1))
    else:
        assert found.exact_p == 1
        assert math.isnan(found.chi2 + found.chi2_p)


SPLIT = make_split()
YES_NO = Chain((Step("Detection", "Anything?", ("No", "Yes")),))


def make_binary(right: np.ndarray, patients: np.ndarray):
    """One model with two answers, correct where `right` is true; both answers occur."""
    labels = np.arange(len(right)) % 2
    answers = np.where(right, labels, 1 - labels)
    logits = np.where(np.arange(2) == answers[:, None], 2.0, 0.0).astype(np.float32)[:, None]
    return of_arrays(labels[:, None], {"model": logits}, patient_id=patients)


def test_a_resample_is_the_evaluation_of_its_cases():
    weights = np.concatenate(list(draw_weights(SPLIT.facts["patient_id"], num_resamples=5, seed=3)))
    resampled = prepare_metrics(SPLIT, CHAIN)(weights)
    for number, own in enumerate(weights.astype(int)):
        repeated = SPLIT.take(np.repeat(np.arange(60), own))
        for model, expected in evaluate(repeated.predictions, CHAIN).items():
            for name in ("mean_accuracy", "chain_accuracy"):
                assert resampled[model, name][number] == pytest.approx(getattr(expected, name))
            for position, step in enumerate(expected.steps):
                figures = [getattr(step, name) for name in FIGURES]
                np.testing.assert_allclose(resampled[model, "steps"][number, position], figures)
    found = bootstrap(SPLIT, CHAIN, num_resamples=5, seed=3)["teacher"].mean_accuracy
    ends = np.quantile(resampled["teacher", "mean_accuracy"], [0.025, 0.975])
    assert (found.low, found.high) == pytest.approx(tuple(ends))


def test_intervals_hold_the_true_figure_about_as_often_as_stated():
    rng = np.random.default_rng(5)
    held = []
    for _ in range(200):
        skill = rng.normal(0, 1, 60)  # patients differ, so cases of one patient are not independent
        right = rng.random((60, 3)) < 1 / (1 + np.exp(-0.8 - skill[:, None]))
        split = make_binary(right.ravel(), np.repeat(np.arange(60), 3))
        interval = bootstrap(split, YES_NO, num_resamples=200)["model"].mean_accuracy
        held.append(interval.low <= 0.6601 <= interval.high)  # mean of the logistic of N(0.8, 1)
    assert 0.95 - 0.05 <= np.mean(held) <= 0.95 + 0.04


def test_a_figure_that_some_resamples_lack_says_how_many():
    """The only "Yes" is of one patient in ten: AUC and specificity exist in 1 - (1 - 1/10)^10 of resamples."""
    labels = (np.arange(10) == 4).astype(np.int32)[:, None]
    split = make_binary(np.ones(10, bool), np.arange(10)).change(labels=labels)
    step = bootstrap(split, YES_NO, num_resamples=3000)["model"].steps[0]
    assert step.auc.undefined == pytest.approx(0.9**10, abs=0.04)
    # A resample is incomplete without the one "Yes", and without any "No" (ten equal draws), which is rare.
    assert step.share_incomplete == pytest.approx(step.auc.undefined)
    assert step.accuracy.undefined == 0
    assert not math.isnan(step.auc.low)


def test_differences_are_paired():
    logits = dict(SPLIT.predictions.logits)
    logits |= {"twin": logits["teacher"].copy(), "near": logits["teacher"].copy()}
    logits["near"][np.flatnonzero(SPLIT.predictions.labels[:, 0] >= 0)[:3], 0] *= -1
    split = SPLIT.change(logits=logits)
    same = bootstrap_differences(split, CHAIN, first="teacher", second="twin", num_resamples=100)
    assert same.mean_accuracy == same.steps[2].auc == Interval(0.0, 0.0, 0.0)
    near = bootstrap_differences(split, CHAIN, first="teacher", second="near", num_resamples=200).mean_accuracy
    alone = bootstrap(split, CHAIN, num_resamples=200)
    assert near.high - near.low < 0.7 * (alone["near"].mean_accuracy.high - alone["near"].mean_accuracy.low)
    assert near.value == pytest.approx(alone["teacher"].mean_accuracy.value - alone["near"].mean_accuracy.value)
