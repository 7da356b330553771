"""Paired differences and McNemar's test against SciPy and hand values."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from stepcot_jax.evaluation.statistics import compare_accuracy


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
