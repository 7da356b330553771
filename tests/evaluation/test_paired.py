"""Paired tests against enumeration, a covariance written out, scipy, and seeds against scipy's t interval."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from stepcot_jax.evaluation.paired import compare_accuracy, compare_areas
from stepcot_jax.evaluation.seeds import summarise_seeds


def delong_written_out(positive: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, float]:
    """Areas and the variance of their difference from the full kernel matrices (DeLong et al. 1988, eq. 4 to 7)."""
    kernels = [
        (own[positive][:, None] > own[~positive][None]) + 0.5 * (own[positive][:, None] == own[~positive][None])
        for own in scores
    ]
    areas = np.array([kernel.mean() for kernel in kernels])
    v10 = np.stack([kernel.mean(axis=1) for kernel in kernels])
    v01 = np.stack([kernel.mean(axis=0) for kernel in kernels])
    covariance = np.cov(v10) / positive.sum() + np.cov(v01) / (~positive).sum()
    return areas, covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1]


@given(st.integers(0, 2**32 - 1), st.integers(4, 40), st.sampled_from([4, 1000]))
def test_delong_agrees_with_the_covariance_written_out(seed, num_cases, num_levels):
    rng = np.random.default_rng(seed)
    positive = rng.permutation(np.arange(num_cases) < rng.integers(2, num_cases - 1))
    scores = rng.integers(0, num_levels, (2, num_cases)) + positive * rng.integers(0, 3)
    found = compare_areas(positive=positive, first=scores[0], second=scores[1])
    areas, variance = delong_written_out(positive, scores)
    np.testing.assert_allclose((found.first, found.second), areas, rtol=1e-12)
    np.testing.assert_allclose(found.standard_error**2, variance, atol=1e-12)
    assert (found.num_positive, found.num_negative) == (positive.sum(), (~positive).sum())
    if variance > 1e-9:
        z = (areas[0] - areas[1]) / math.sqrt(variance)
        assert found.p == pytest.approx(2 * stats.norm.sf(abs(z)), abs=1e-9)
        assert (found.low, found.high) == pytest.approx(
            stats.norm.interval(0.95, areas[0] - areas[1], math.sqrt(variance)), abs=1e-9
        )
    assert found.difference == pytest.approx(areas[0] - areas[1], abs=1e-12)


def test_delong_rejects_one_in_twenty_where_nothing_differs():
    rng = np.random.default_rng(0)
    rejected = []
    for _ in range(400):
        positive = np.arange(60) < 25
        common = rng.normal(0, 1, 60) + positive
        scores = common + rng.normal(0, 0.7, (2, 60))
        rejected.append(compare_areas(positive=positive, first=scores[0], second=scores[1]).p < 0.05)
    assert abs(np.mean(rejected) - 0.05) < 3.5 * math.sqrt(0.05 * 0.95 / 400)


def test_models_that_rank_alike_do_not_differ():
    scores = np.random.default_rng(0).normal(0, 1, 20)
    found = compare_areas(positive=np.arange(20) < 8, first=scores, second=np.exp(scores))
    assert (found.difference, found.standard_error, found.p) == (0, 0, 1)
    assert math.isnan(found.z)


def test_areas_that_differ_without_any_spread_have_no_p():
    positive = np.array([True, True, False, False])
    found = compare_areas(positive=positive, first=[2, 2, 1, 1], second=[1, 1, 2, 2])
    assert (found.difference, found.standard_error) == (1, 0)
    assert math.isnan(found.p)


@pytest.mark.parametrize("positive", [[True] * 4, [False] * 4, []])
def test_one_kind_of_case_leaves_the_areas_undefined(positive):
    found = compare_areas(positive=positive, first=np.arange(len(positive)), second=np.arange(len(positive)))
    assert found.num_positive + found.num_negative == len(positive)
    assert all(math.isnan(value) for value in (found.first, found.second, found.standard_error, found.p, found.low))


def test_a_single_positive_case_has_areas_but_no_error():
    found = compare_areas(positive=[True, False, False], first=[3, 1, 2], second=[2, 1, 3])
    assert (found.first, found.second) == (1.0, 0.5)
    assert math.isnan(found.standard_error)
    assert math.isnan(found.p)


def test_scores_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="one shape"):
        compare_areas(positive=[True, False], first=[1, 2, 3], second=[1, 2, 3])
    with pytest.raises(ValueError, match="not a number"):
        compare_areas(positive=[True, False], first=[1, math.nan], second=[1, 2])


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
        assert math.isnan(found.chi2)
        assert math.isnan(found.chi2_p)


def test_mcnemar_by_hand():
    # 10 cases only the first has right, 2 only the second: 2 * (1 + 12 + 66) / 4096, and (8 - 1)^2 / 12.
    labels = np.zeros(20, int)
    first, second = np.ones((2, 20), int)
    first[:10], second[10:12] = 0, 0
    first[12:15], second[12:15] = 0, 0
    found = compare_accuracy(labels=labels, first=first, second=second)
    assert (found.only_first, found.only_second) == (10, 2)
    assert found.exact_p == pytest.approx(158 / 4096)
    assert found.chi2 == pytest.approx(49 / 12)
    with pytest.raises(ValueError, match="one shape"):
        compare_accuracy(labels=labels, first=first[:3], second=second)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=8), st.sampled_from([0.9, 0.95]))
def test_seeds_agree_with_scipy(values, level):
    found = summarise_seeds(values, level=level)
    assert found.mean == pytest.approx(np.mean(values))
    assert found.deviation == pytest.approx(np.std(values, ddof=1), abs=1e-12)
    if found.deviation > 1e-9:
        expected = stats.t.interval(level, len(values) - 1, np.mean(values), stats.sem(values))
        assert (found.low, found.high) == pytest.approx(expected, abs=1e-9)


def test_few_or_undefined_seeds():
    single = summarise_seeds([0.5, math.nan])
    assert (single.num_seeds, single.num_undefined, single.mean) == (1, 1, 0.5)
    assert math.isnan(single.deviation)
    assert math.isnan(single.low)
    assert math.isnan(summarise_seeds([]).mean)
    with pytest.raises(ValueError, match="level"):
        summarise_seeds([0.5], level=1.0)
