"""How bounds are judged, against SciPy and by hand."""

import numpy as np
import pytest
from scipy import stats

from benchmarks import corrections
from benchmarks.corrections import Row, draw_careless, judge, measure_calibration, plan_conflicts
from stepcot_jax.chain import DEFAULT_CHAIN, NOT_ANNOTATED
from stepcot_jax.data.phantom.answers import draw_answers

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


def test_the_calibration_error_of_drawn_labels_is_that_of_chance():
    shares = RNG.dirichlet(np.ones(4), 3000)
    truth = np.array([RNG.choice(4, p=row) for row in shares])
    error, own = measure_calibration([shares[:1000], shares[1000:]], [truth[:1000], truth[1000:]], num_draws=20)
    assert error == pytest.approx(own, abs=0.015)
    sure = shares**3 / (shares**3).sum(axis=1, keepdims=True)
    assert measure_calibration([sure], [truth], num_draws=20)[0] > own + 0.1


def test_careless_readers_err_at_their_rate():
    labels = np.stack([RNG.integers(0, size, 4000) for size in DEFAULT_CHAIN.answers_per_step], axis=1)
    given = draw_careless(labels, 0.2, DEFAULT_CHAIN.answers_per_step, reliability=0.8)
    assert not given[:, -1].any()
    assert (given[:, :-1].argmax(axis=-1) != labels[:, :-1]).mean() == pytest.approx(0.2, abs=0.01)
    np.testing.assert_allclose(given[:, :-1].max(axis=-1), 0.8)
    np.testing.assert_allclose(given[:, :-1].sum(axis=-1), 1, rtol=1e-6)


def test_conflicting_chests_are_abnormal_and_of_no_training_chain():
    training = np.array([draw_answers(index, seed=0, prevalence="flat") for index in range(300)])
    planned = plan_conflicts(training, 12, seed=0, chain=DEFAULT_CHAIN)
    answers = np.array([shot.case.answers for shot in planned])
    assert (answers[:, -1] != 0).all()
    assert (answers != NOT_ANNOTATED).all()
    known = {tuple(chain) for chain in training.tolist()}
    assert sum(tuple(chain) in known for chain in answers.tolist()) < 6
    assert [shot.case.answers for shot in plan_conflicts(training, 3, seed=0, chain=DEFAULT_CHAIN)] == [
        shot.case.answers for shot in planned[:3]
    ]


def test_kinds_of_rows_do_not_depend_on_the_chosen_baseline():
    kinds = [
        corrections._name_kind(f"1 answers, less {name}") for name in ("naive Bayes", "joint model", "as published")
    ]
    assert kinds == ["baseline", "baseline", "today"]
