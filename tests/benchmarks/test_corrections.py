"""How bounds are judged, against SciPy and by hand."""

import numpy as np
import pytest
from scipy import stats

from benchmarks.corrections import Row, judge

RNG = np.random.default_rng(0)


def make_row(means, *, bound=1, what="one", spread=0.5, **aims):
    """Sets of 400 cases of 200 patients with the given means."""
    values = []
    for mean in means:
        noise = RNG.normal(size=400) * spread
        values.append((noise - noise.mean() + mean, np.repeat(np.arange(200), 2)))
    return Row(bound, "teacher", what, tuple(values), **aims)


def test_differences_are_tested_over_the_sets_and_corrected_within_a_bound():
    strong, weak, other = [0.1, 0.11, 0.09, 0.1, 0.12], [0.01, 0.05, -0.02, 0.03, 0.06], [0.01, 0.05, 0.04, 0.03, 0.06]
    judged = judge([make_row(strong), make_row(weak), make_row(other, bound=2)], num_resamples=200)
    p_values = [stats.ttest_1samp(means, 0).pvalue for means in (strong, weak, other)]
    found = [row[6] for row in judged]
    assert found == pytest.approx([2 * p_values[0], p_values[1], p_values[2]])
    interval = stats.ttest_1samp(weak, 0).confidence_interval(0.95)
    assert judged[1][4] == pytest.approx((interval.low, interval.high))
    assert [row[8] for row in judged] == [True, False, True]
    low, high = judged[0][5]
    assert low < 0.104 < high
    assert high - low == pytest.approx(2 * 1.96 * 0.5 / np.sqrt(5 * 400), rel=0.25)


def test_margins_are_one_sided_and_no_gain_is_none_that_is_significant():
    means = [-0.002, 0.001, -0.004, 0.0, 0.002]
    (row,) = judge([make_row(means, least=-0.01)], num_resamples=50)
    assert row[6] == pytest.approx(stats.ttest_1samp(means, -0.01, alternative="greater").pvalue)
    assert row[8]
    assert not judge([make_row([-0.02, 0.0, 0.01, -0.03, 0.0], least=-0.01)], num_resamples=50)[0][8]
    none, gain = judge([make_row(sets, least=None, most=0.0) for sets in (means, [0.1, 0.11, 0.1, 0.09, 0.1])])
    assert (none[8], gain[8]) == (True, False)
    assert np.isnan(none[6])


def test_one_set_is_judged_by_its_patients():
    above, near = judge([make_row([0.1]), make_row([0.01])], num_resamples=200)
    assert np.isnan(above[6])
    assert (above[8], near[8]) == (True, False)
