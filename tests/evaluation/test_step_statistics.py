"""Statistics of weighted cases against those of cases repeated by their weights."""

import warnings

import numpy as np
import pytest
from evaluation.small_splits import CHAIN, draw_labels, draw_logits, draw_step, make_split
from hypothesis import given
from hypothesis import strategies as st

from stepcot_jax.chain import NOT_ANNOTATED
from stepcot_jax.evaluation.calibration import calibration_figures, fit_calibration
from stepcot_jax.evaluation.chains import StepCases, selective_figures, step_cases, step_figures, step_statistics
from stepcot_jax.evaluation.consistency import answer_and_decode, decoding_figures, make_rules
from stepcot_jax.evaluation.predictions import Predictions
from stepcot_jax.evaluation.statistics import count_once

OF_A_STEP = {
    "figures": lambda weights, **cases: {"": step_figures(weights, **cases)},
    "calibration": calibration_figures,
    "calibration in one bin": lambda weights, **cases: calibration_figures(weights, **cases, num_bins=1),
    "selective": lambda weights, **cases: dict(
        zip("ab", selective_figures(weights, **cases, shares=(0.001, 1 / 3, 0.5, 0.9, 1.0)), strict=True)
    ),
}


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


def draw_weights(rng, labels):
    """Weights that are all 0, all 1, 0 for every case of answer 0, and any."""
    weights = rng.integers(0, 4, (6, len(labels)))
    weights[0], weights[1] = 0, 1
    weights[2, labels == 0] = 0
    return weights


@pytest.mark.parametrize("name", OF_A_STEP)
@given(seed=st.integers(0, 2**32 - 1), num_cases=st.integers(0, 40), num_answers=st.integers(2, 6))
def test_figures_of_a_step_are_those_of_the_repeated_cases(name, seed, num_cases, num_answers):
    probabilities, labels = draw_step(seed, num_cases, num_answers)
    weights = draw_weights(np.random.default_rng(seed), labels)
    check_repeated(OF_A_STEP[name], weights, probabilities=probabilities, labels=labels)


@pytest.mark.parametrize("seed", range(2))
def test_every_statistic_of_a_step_is_that_of_the_repeated_cases(seed):
    split = make_split(seed, num_cases=80, missing=0.3)
    calibration = fit_calibration(make_split(seed + 100, num_cases=80).predictions, CHAIN, coverage=0.7)
    for cases in step_cases(split.predictions, CHAIN, model="student", calibration=calibration):
        columns = {name: getattr(cases, name) for name in ("labels", "raw", "calibrated", "sets")}
        weights = draw_weights(np.random.default_rng(seed), cases.labels)
        check_repeated(lambda weights, **own: step_statistics(weights, StepCases(name="", **own)), weights, **columns)


@given(st.integers(0, 2**32 - 1), st.integers(0, 25))
def test_the_effect_of_decoding_is_that_of_the_repeated_cases(seed, num_cases):
    rng = np.random.default_rng(seed)
    labels, rules = draw_labels(rng, num_cases, missing=0.4), make_rules(CHAIN)
    for allowed in rules.allowed.values():  # the chain of first answers keeps every rule
        allowed &= rng.random(allowed.shape) < 0.6
        allowed[0, 0] = True
    predictions = Predictions(np.arange(num_cases), labels, {"model": draw_logits(rng, labels)})
    before, after = answer_and_decode(predictions, CHAIN, rules, model="model")

    def compute(weights, **cases):
        figures = decoding_figures(weights, **cases, rules=rules)
        # The steps of a mean are those of the split in every resample.
        return {name: values for name, values in figures.items() if not name.startswith("mean")}

    weights = rng.integers(0, 3, (4, num_cases))
    weights[0], weights[1] = 0, 1
    weights[2, labels[:, 1] != NOT_ANNOTATED] = 0
    check_repeated(compute, weights, before=before, after=after, labels=labels)
