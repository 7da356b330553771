"""Statistics of weighted cases against those of cases repeated by their weights."""

import dataclasses
import math
import warnings

import numpy as np
import pytest
from evaluation.small_splits import CHAIN, draw_labels, draw_logits, draw_step, make_split
from hypothesis import given
from hypothesis import strategies as st

from stepcot_jax.chain import NOT_ANNOTATED, find_one_answer
from stepcot_jax.evaluation.calibration import calibration_figures, fit_calibration, reliability
from stepcot_jax.evaluation.chains import selective_curve, selective_figures, step_cases, step_statistics
from stepcot_jax.evaluation.consistency import (
    answer_and_decode,
    decoding_figures,
    make_rules,
    share_inconsistent,
)
from stepcot_jax.evaluation.predictions import Predictions
from stepcot_jax.evaluation.statistics import count_once

SHARES = (0.001, 1 / 3, 0.5, 0.7, 0.9, 1.0)


def draw_rules(rng: np.random.Generator):
    """Rules that the chain of first answers satisfies; other pairs are forbidden at random."""
    rules = make_rules(CHAIN)
    allowed = {pair: rng.random(own.shape) < 0.6 for pair, own in rules.allowed.items()}
    for own in allowed.values():
        own[0, 0] = True
    return dataclasses.replace(rules, allowed=allowed)


def draw_weighted(seed: int, num_cases: int, num_answers: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weights of a step's cases: first all 0, then all 1, then 0 for every case of answer 0, then any."""
    probabilities, labels = draw_step(seed, num_cases, num_answers)
    weights = np.random.default_rng(seed).integers(0, 4, (6, num_cases))
    weights[0], weights[1] = 0, 1
    weights[2, labels == 0] = 0
    return weights, probabilities, labels


def accuracy_of_the_surest(curve, share: float) -> float:
    pairs = zip(curve.accuracy, curve.coverage, strict=True)
    return next((accuracy for accuracy, coverage in pairs if coverage >= share), math.nan)


steps = st.builds(draw_weighted, st.integers(0, 2**32 - 1), st.integers(0, 40), st.integers(2, 6))


@pytest.fixture(autouse=True)
def refuse_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@given(steps, st.sampled_from([1, 4, 15]))
def test_calibration_errors_are_those_of_the_repeated_cases(drawn, num_bins):
    weights, probabilities, labels = drawn
    found = calibration_figures(weights.astype(float), probabilities=probabilities, labels=labels, num_bins=num_bins)
    for number, own in enumerate(weights):
        repeated = reliability(
            probabilities=np.repeat(probabilities, own, axis=0), labels=np.repeat(labels, own), num_bins=num_bins
        )
        for name, values in found.items():
            assert values[number] == pytest.approx(getattr(repeated, name), abs=1e-12, nan_ok=True)


@given(steps)
def test_selective_reading_is_that_of_the_repeated_cases(drawn):
    weights, probabilities, labels = drawn
    accuracies, areas = selective_figures(
        weights.astype(float), probabilities=probabilities, labels=labels, shares=SHARES
    )
    assert accuracies.shape == (len(weights), len(SHARES))
    for own, read, area in zip(weights, accuracies, areas, strict=True):
        curve = selective_curve(probabilities=np.repeat(probabilities, own, axis=0), labels=np.repeat(labels, own))
        # Both divide the same integers, so the results are bit-identical.
        np.testing.assert_array_equal(read, [accuracy_of_the_surest(curve, share) for share in SHARES])
        assert area == pytest.approx(curve.area, abs=1e-12, nan_ok=True)


@given(st.integers(0, 2**32 - 1), st.integers(0, 25))
def test_the_effect_of_decoding_is_that_of_the_repeated_cases(seed, num_cases):
    rng = np.random.default_rng(seed)
    labels, rules = draw_labels(rng, num_cases, missing=0.4), draw_rules(rng)
    logits = draw_logits(rng, labels)
    predictions = Predictions(np.arange(num_cases, dtype=np.int32), labels, {"model": logits})
    before, after = answer_and_decode(predictions, CHAIN, rules, model="model")
    weights = rng.integers(0, 3, (5, num_cases))
    weights[0], weights[1] = 0, 1
    weights[2, labels[:, 1] == NOT_ANNOTATED] = 1
    weights[3, labels[:, 1] != NOT_ANNOTATED] = 0
    found = decoding_figures(weights.astype(float), before=before, after=after, labels=labels, rules=rules)
    for number, own in enumerate(weights):
        cases = np.repeat(np.arange(num_cases), own)
        repeated = {"before": before[cases], "after": after[cases], "labels": labels[cases]}
        expected = decoding_figures(count_once(len(cases)), **repeated, rules=rules)
        assert set(found) == set(expected)
        counted = ~find_one_answer(labels)  # the steps of the mean are those of the split in every resample
        for when in ("before", "after", "difference"):
            of_steps = expected[f"accuracy_{when}"][:, counted]
            known = of_steps[~np.isnan(of_steps)]
            expected[f"mean_accuracy_{when}"] = [known.mean() if len(known) else np.nan]
        for name, value in expected.items():
            np.testing.assert_allclose(found[name][number], value[0], atol=1e-12, err_msg=name)
        inconsistent = share_inconsistent(before[cases], rules)
        assert found["share_inconsistent"][number] == pytest.approx(inconsistent, nan_ok=True)


@pytest.mark.parametrize("seed", range(2))
def test_every_figure_of_a_step_is_that_of_the_repeated_cases(seed):
    split = make_split(seed, num_cases=80, missing=0.3)
    calibration = fit_calibration(make_split(seed + 100, num_cases=80).predictions, CHAIN, coverage=0.7)
    weights = np.random.default_rng(seed).integers(0, 3, (5, 80))
    weights[0], weights[1] = 0, 1
    weights[2, split.predictions.labels[:, 2] == 1] = 0
    for cases in step_cases(split.predictions, CHAIN, model="student", calibration=calibration):
        found = step_statistics(weights.astype(float), cases)
        for number, own in enumerate(weights):
            repeated = dataclasses.replace(
                cases,
                **{
                    name: np.repeat(getattr(cases, name), own, axis=0)
                    for name in ("labels", "raw", "calibrated", "sets")
                },
            )
            for name, value in step_statistics(count_once(len(repeated.labels)), repeated).items():
                np.testing.assert_allclose(found[name][number], value[0], atol=1e-12, err_msg=name)


def test_a_resample_without_the_sure_cases_reads_the_next_ones():
    """Two confident correct cases, two unconfident wrong ones; ties stay together, so a quarter of four is two."""
    probabilities = np.array([[0.9, 0.1], [0.9, 0.1], [0.6, 0.4], [0.6, 0.4]])
    weights = np.array([[1, 1, 1, 1], [0, 0, 3, 1], [1, 0, 3, 0], [0, 0, 0, 0]])
    accuracies, _ = selective_figures(
        weights.astype(float), probabilities=probabilities, labels=np.array([0, 0, 1, 1]), shares=(0.25, 0.5, 0.75)
    )
    np.testing.assert_array_equal(accuracies, [[1, 1, 0.5], [0, 0, 0], [1, 0.25, 0.25], [math.nan] * 3])
