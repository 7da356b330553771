"""Resampling of patients; weighted means against means of repeated cases; McNemar's test against SciPy."""

import math

import numpy as np
import pytest
from evaluation.small_splits import make_split
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from stepcot_jax.evaluation.statistics import compare_accuracy, count_patients, draw_weights, resample, weighted_mean


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
