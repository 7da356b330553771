"""Reliability and selective reading against scikit-learn, plain counting and enumerated orders."""

import itertools
import math
import warnings

import numpy as np
import pytest
from evaluation.small_splits import draw_step
from hypothesis import given
from hypothesis import strategies as st

from stepcot_jax.chain import NOT_ANNOTATED
from stepcot_jax.evaluation.calibration import calibration_figures, compare_error, reliability
from stepcot_jax.evaluation.chains import StepCases, selective_figures, step_figures, step_statistics
from stepcot_jax.evaluation.statistics import count_once

cases = st.builds(draw_step, st.integers(0, 2**32 - 1), st.integers(0, 40), st.integers(2, 6))


@given(cases, st.sampled_from([1, 4, 15]))
def test_figures_agree_with_counting(drawn, num_bins):
    probabilities, labels = drawn
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = reliability(probabilities=probabilities, labels=labels, num_bins=num_bins)
    kept = [(row, label) for row, label in zip(probabilities, labels, strict=True) if label >= 0]
    assert found.num_cases == len(kept) == sum(own.num_cases for own in found.bins)
    if not kept:
        assert all(math.isnan(value) for value in (found.ece, found.brier, found.nll))
        return
    error = 0.0
    for number, own in enumerate(found.bins):
        inside = [
            (max(row), row.argmax() == label)
            for row, label in kept
            if number / num_bins < max(row) <= (number + 1) / num_bins
        ]
        assert own.num_cases == len(inside)
        if inside:
            confidence, accuracy = np.mean(inside, axis=0)
            assert (own.confidence, own.accuracy) == (pytest.approx(confidence), pytest.approx(accuracy))
            error += len(inside) * abs(confidence - accuracy)
        else:
            assert math.isnan(own.confidence)
    assert found.ece == pytest.approx(error / len(kept), abs=1e-12)
    rows, truth = np.array([row for row, _ in kept]), np.array([label for _, label in kept])
    one_hot = np.eye(probabilities.shape[1])[truth]
    assert found.brier == pytest.approx(((rows - one_hot) ** 2).sum(axis=1).mean(), abs=1e-12)
    assert found.nll == pytest.approx(-np.log((rows * one_hot).sum(axis=1)).mean(), abs=1e-12)


def test_a_calibrated_reader_shows_the_error_of_labels_drawn_from_its_probabilities():
    """By drawing labels, where the function draws which answers are right."""
    rng = np.random.default_rng(0)
    probabilities = rng.dirichlet(np.full(5, 0.7), 400)
    drawn = [np.array([rng.choice(5, p=row) for row in probabilities]) for _ in range(60)]
    errors = [reliability(probabilities=probabilities, labels=labels).ece for labels in drawn]
    error, exact = compare_error(probabilities, drawn[0])
    assert error == pytest.approx(errors[0], abs=1e-12)
    assert exact == pytest.approx(np.mean(errors), abs=3.5 * np.std(errors) * (1 / 60 + 1 / 200) ** 0.5)


def test_a_probability_of_zero_for_the_truth_is_finite_and_one_of_one_is_in_the_last_bin():
    found = reliability(probabilities=[[1.0, 0.0], [1.0, 0.0]], labels=[0, 1])
    assert found.nll == pytest.approx(-math.log(np.finfo(float).tiny) / 2)
    assert found.bins[-1].num_cases == 2
    assert (found.ece, found.brier) == (0.5, 1.0)


@given(st.integers(0, 2**32 - 1), st.integers(1, 6))
def test_the_area_is_the_mean_over_every_order_of_ties(seed, num_cases):
    rng = np.random.default_rng(seed)
    confidence = rng.choice([0.6, 0.8, 1.0], num_cases)
    right = rng.random(num_cases) < 0.6
    probabilities = np.stack([confidence, 1 - confidence], axis=1)
    levels = sorted(set(confidence.tolist()), reverse=True)
    shares = [(confidence >= level).mean() for level in levels]
    cases = {"probabilities": probabilities, "labels": np.where(right, 0, 1)}
    accuracies, area = selective_figures(count_once(num_cases), **cases, shares=shares)
    areas = [
        np.mean(np.cumsum(right[list(order)]) / np.arange(1, num_cases + 1))
        for order in itertools.permutations(range(num_cases))
        if (np.diff(confidence[list(order)]) <= 0).all()
    ]
    assert area[0] == pytest.approx(np.mean(areas))
    np.testing.assert_allclose(accuracies[0], [right[confidence >= level].mean() for level in levels])


@pytest.mark.parametrize(("labels", "expected"), [([NOT_ANNOTATED, 0], 1.0), ([NOT_ANNOTATED] * 2, math.nan)])
def test_unannotated_cases_take_no_part_in_selective_reading(labels, expected):
    cases = {"probabilities": np.array([[0.9, 0.1], [0.8, 0.2]]), "labels": np.array(labels)}
    accuracies, area = selective_figures(count_once(2), **cases, shares=(0.5, 1.0))
    np.testing.assert_array_equal([*accuracies[0], *area], [expected] * 3)


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
