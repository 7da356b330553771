"""Paired differences and McNemar's test against SciPy and hand values."""

import math

import numpy as np
import pytest
from evaluation.small_splits import CHAIN, make_split
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from stepcot_jax.evaluation.intervals import (
    Interval,
    bootstrap_difference,
    bootstrap_differences,
    compare_accuracy,
    is_difference,
)
from stepcot_jax.host.errors import BadInput

SPLIT = make_split()


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
    # Only the first is right in 10 cases, only the second in 2: 2 * (1 + 12 + 66) / 4096, and (8 - 1)^2 / 12.
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


def test_one_difference_is_that_of_all_and_its_sign_turns():
    both = bootstrap_differences(SPLIT, CHAIN, first="teacher", second="student", num_resamples=150)
    one = bootstrap_difference(
        SPLIT, CHAIN, first="teacher", second="student", figure="auc", step="Diagnosis", num_resamples=150
    )
    assert one == both.steps[2].auc
    turned = bootstrap_difference(
        SPLIT, CHAIN, first="student", second="teacher", figure="auc", step="Diagnosis", num_resamples=150
    )
    assert (turned.value, turned.low, turned.high) == pytest.approx((-one.value, -one.high, -one.low))
    assert one.low < one.value < one.high


def test_a_gain_is_above_zero_with_its_whole_interval():
    split = make_split(skills=(5.0, 0.0))
    gain, loss = (
        bootstrap_difference(split, CHAIN, first=first, second=second, num_resamples=100)
        for first, second in (("teacher", "student"), ("student", "teacher"))
    )
    assert is_difference(gain)
    assert is_difference(loss)
    assert loss.high < 0 < gain.low
    for low, high in ((-0.1, 0.2), (0.0, 0.2), (-0.2, 0.0), (math.nan, math.nan)):
        assert not is_difference(Interval(0.05, low, high))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"first": "reader"}, "model 'reader' is not one of teacher, student"),
        ({"step": "Size"}, "step 'Size' is not one of Detection, Distribution, Diagnosis"),
        ({"figure": "auc"}, "figure 'auc' of the chain is not one of mean_accuracy, chain_accuracy"),
        ({"figure": "mean_accuracy", "step": "Diagnosis"}, "of Diagnosis is not one of accuracy, auc"),
    ],
)
def test_what_does_not_exist_is_named(options, message):
    with pytest.raises(BadInput, match=message):
        bootstrap_difference(SPLIT, CHAIN, **{"first": "teacher", "second": "student", **options})
