"""Statistics of weighted cases against those of cases repeated by their weights."""

import warnings

import numpy as np
import pytest
from evaluation.small_splits import draw_step
from hypothesis import given
from hypothesis import strategies as st

from stepcot_jax.evaluation.calibration import calibration_figures
from stepcot_jax.evaluation.chains import StepCases, step_figures, step_statistics
from stepcot_jax.evaluation.statistics import count_once


@pytest.fixture(autouse=True)
def refuse_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def check_repeated(compute, weights, **cases):
    """Each resample has the figures of the cases repeated by its weights."""
    found = compute(weights.astype(float), **cases)
    for number, own in enumerate(weights):
        repeated = {name: np.repeat(values, own, axis=0) for name, values in cases.items()}
        expected = compute(count_once(own.sum()), **repeated)
        assert found.keys() == expected.keys()
        for name, values in expected.items():
            np.testing.assert_allclose(found[name][number], values[0], atol=1e-12, err_msg=name)


def every_statistic(weights, **cases):
    figures = step_figures(weights, probabilities=cases["raw"], labels=cases["labels"])
    in_one_bin = calibration_figures(weights, probabilities=cases["raw"], labels=cases["labels"], num_bins=1)
    return step_statistics(weights, StepCases(name="", **cases)) | {"figures": figures, "one bin": in_one_bin["ece"]}


@given(seed=st.integers(0, 2**32 - 1), num_cases=st.integers(0, 40), num_answers=st.integers(2, 6))
def test_statistics_of_a_step_are_those_of_the_repeated_cases(seed, num_cases, num_answers):
    (raw, labels), rng = draw_step(seed, num_cases, num_answers), np.random.default_rng(seed)
    calibrated, sets = draw_step(seed + 1, num_cases, num_answers)[0], rng.random(raw.shape) < 0.5
    weights = rng.integers(0, 4, (6, num_cases))
    weights[0], weights[1] = 0, 1
    weights[2, labels == 0] = 0
    check_repeated(every_statistic, weights, labels=labels, raw=raw, calibrated=calibrated, sets=sets)
