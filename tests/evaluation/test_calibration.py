"""Temperatures against a fine grid; answer sets against their stated coverage."""

import math

import numpy as np
import pytest
from evaluation.small_splits import CHAIN, make_split
from hypothesis import given
from hypothesis import strategies as st

from stepcot_jax.chain import NOT_ANNOTATED, Chain, Step
from stepcot_jax.evaluation.calibration import (
    Calibration,
    answer_sets,
    calibrated_probabilities,
    fit_calibration,
    fit_temperature,
)
from stepcot_jax.evaluation.conformal import conformal_threshold, spread_of_coverage
from stepcot_jax.evaluation.predictions import Predictions
from stepcot_jax.host.errors import BadInput

VAL = make_split(3, num_cases=200, num_patients=120).predictions
ONE_STEP = Chain((Step("Diagnosis", "What?", ("Normal", "Mass", "Effusion", "Nodule")),))


def draw_step(rng, num_cases: int, *, sharpness: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Logits and answers drawn from them such that the best temperature is `sharpness`."""
    logits = rng.normal(0, 2, (num_cases, 4))
    weights = np.exp(logits)
    shares = np.cumsum(weights / weights.sum(axis=1, keepdims=True), axis=1)
    labels = (rng.random((num_cases, 1)) > shares).sum(axis=1)
    return logits * sharpness, np.minimum(labels, 3)


def mean_nll(logits: np.ndarray, labels: np.ndarray, temperature: float) -> float:
    scaled = logits / temperature
    return float((np.logaddexp.reduce(scaled, axis=1) - scaled[np.arange(len(labels)), labels]).mean())


@given(st.integers(0, 2**32 - 1), st.floats(-2.5, 2.5))
def test_no_other_temperature_makes_the_true_answers_more_probable(seed, log_sharpness):
    logits, labels = draw_step(np.random.default_rng(seed), 60, sharpness=math.exp(log_sharpness))
    temperature, note = fit_temperature(logits, labels)
    best = mean_nll(logits, labels, temperature)
    if not note:
        for other in np.exp(np.linspace(math.log(0.01), math.log(100), 200)):
            assert best <= mean_nll(logits, labels, other) + 1e-12


@pytest.mark.parametrize("sharpness", [0.2, 1.0, 5.0])
def test_a_model_that_is_too_sure_by_a_factor_gets_that_factor(sharpness):
    logits, labels = draw_step(np.random.default_rng(0), 20_000, sharpness=sharpness)
    temperature, note = fit_temperature(logits, labels)
    assert (temperature, note) == (pytest.approx(sharpness, rel=0.05), "")


def test_what_fits_no_temperature_keeps_one_and_says_why():
    logits, labels = draw_step(np.random.default_rng(1), 40)
    assert fit_temperature(logits[:19], labels[:19]) == (1.0, "19 annotated cases, fewer than 20: temperature 1")
    assert fit_temperature(logits[:0], labels[:0])[0] == 1.0
    assert fit_temperature(logits, np.full(40, 2)) == (1.0, "every case has the same answer: temperature 1")
    temperature, note = fit_temperature(logits, logits.argmax(axis=1))
    assert temperature == 1.0
    assert "answered correctly" in note
    temperature, note = fit_temperature(logits, logits.argmin(axis=1))
    assert temperature == pytest.approx(100)
    assert "upper bound" in note


def test_a_temperature_changes_no_answer_and_padding_stays_impossible():
    calibration = fit_calibration(VAL, CHAIN)
    for model, logits in VAL.logits.items():
        probabilities = calibrated_probabilities(logits, model, calibration, CHAIN)
        np.testing.assert_allclose(probabilities.sum(axis=2), 1)
        np.testing.assert_array_equal(probabilities.argmax(axis=2), logits.argmax(axis=2))
        sets = answer_sets(probabilities, model, calibration, CHAIN)
        assert sets.any(axis=2).all()
        for position, step in enumerate(CHAIN.steps):
            assert (probabilities[:, position, step.num_answers :] == 0).all()
            assert not sets[:, position, step.num_answers :].any()


def test_each_step_is_fitted_by_its_own_annotated_cases():
    calibration = fit_calibration(VAL, CHAIN)
    for position, step in enumerate(CHAIN.steps):
        known = VAL.labels[:, position] != NOT_ANNOTATED
        own = VAL.logits["student"][known, position, : step.num_answers].astype(float)
        assert calibration.temperatures["student"][position] == fit_temperature(own, VAL.labels[known, position])[0]
        assert calibration.notes["student"][position] == ""


@given(st.integers(0, 2**32 - 1), st.integers(0, 40), st.sampled_from([0.5, 0.8, 0.9, 0.95]))
def test_the_threshold_is_the_smallest_with_enough_scores_below(seed, num_cases, coverage):
    scores = np.random.default_rng(seed).integers(0, 20, num_cases) / 20
    threshold = conformal_threshold(scores, coverage=coverage)
    enough = (num_cases + 1) * coverage - 1e-9
    candidates = [score for score in scores if (scores <= score).sum() >= enough]
    assert threshold == (min(candidates) if candidates else math.inf)


def test_too_few_cases_leave_every_answer_in_the_set_and_say_so():
    calibration = fit_calibration(make_split(0, num_cases=8, missing=0.0).predictions, CHAIN, coverage=0.9)
    assert calibration.thresholds["teacher"] == (math.inf,) * 3
    assert all("too few for a coverage of 0.9" in note for note in calibration.notes["teacher"])
    logits = VAL.logits["teacher"]
    probabilities = calibrated_probabilities(logits, "teacher", calibration, CHAIN)
    sizes = answer_sets(probabilities, "teacher", calibration, CHAIN).sum(axis=2)
    np.testing.assert_array_equal(sizes, np.tile([2, 3, 4], (200, 1)))


@pytest.mark.parametrize(("num_val", "coverage"), [(30, 0.9), (100, 0.8), (60, 0.95)])
def test_sets_hold_the_true_answer_as_often_as_stated(num_val, coverage):
    """Coverage of the whole fit, temperature included, over 300 draws of a validation and a test split.

    For a fixed score the expected coverage lies between coverage and coverage + 1 / (n + 1); the bounds
    add 3.5 standard errors. The model is miscalibrated, as real ones are.
    """
    rng = np.random.default_rng(7)
    num_draws, num_test = 300, 20
    shares = []
    for _ in range(num_draws):
        logits, labels = draw_step(rng, num_val + num_test, sharpness=3.0)
        val, test = logits[:num_val], logits[num_val:]
        calibration = fit_calibration(
            Predictions(np.arange(num_val), labels[:num_val, None], {"model": val[:, None]}),
            ONE_STEP,
            coverage=coverage,
        )
        threshold = calibration.thresholds["model"][0]
        probabilities = calibrated_probabilities(test[:, None], "model", calibration, ONE_STEP)[:, 0]
        bare = 1 - probabilities[np.arange(num_test), labels[num_val:]] <= threshold
        sets = answer_sets(probabilities[:, None], "model", calibration, ONE_STEP)[:, 0]
        held = sets[np.arange(num_test), labels[num_val:]]
        assert (held >= bare).all()
        shares.append((bare.mean(), held.mean()))
    bare_share, held_share = np.mean(shares, axis=0)
    # Test cases of one draw share a threshold, so the standard error is that of the draws' means.
    deviation = np.std(shares, axis=0)[0] / math.sqrt(num_draws)
    assert coverage - 3.5 * deviation <= bare_share <= coverage + 1 / (num_val + 1) + 3.5 * deviation
    assert held_share >= coverage - 3.5 * deviation


def test_a_set_by_hand():
    """An answer at the threshold is in the set; the most probable answer is always in it."""
    calibration = Calibration(coverage=0.9, temperatures={"model": (1.0,)}, thresholds={"model": (0.75,)})
    probabilities = np.array([[[0.5, 0.25, 0.125, 0.125]], [[0.25, 0.25, 0.25, 0.25]]])
    sets = answer_sets(probabilities, "model", calibration, ONE_STEP)
    assert sets[:, 0].tolist() == [[True, True, False, False], [True] * 4]
    strict = Calibration(coverage=0.1, temperatures={"model": (1.0,)}, thresholds={"model": (0.1,)})
    sets = answer_sets(probabilities, "model", strict, ONE_STEP)
    assert sets[:, 0].tolist() == [[True, False, False, False]] * 2


# Coverage by answer


def by_hand(labels: list[int], true_probabilities: list[float]) -> Predictions:
    """Predictions of `ONE_STEP` that give the true answer these probabilities, and the rest to the next answer."""
    probabilities = np.full((len(labels), 1, 4), 1e-9)
    rows = np.arange(len(labels))
    probabilities[rows, 0, labels] = true_probabilities
    probabilities[rows, 0, (np.array(labels) + 1) % 4] = 1 - np.array(true_probabilities)
    return Predictions(rows, np.array(labels)[:, None], {"model": np.log(probabilities).astype(np.float32)})


def test_each_answer_has_the_threshold_of_its_own_cases():
    """20 normal chests seen clearly, 10 masses hardly seen, 4 effusions: too few of them, and of the nodules none."""
    labels = [0] * 20 + [1] * 10 + [2] * 4
    val = by_hand(labels, [0.99] * 20 + [0.05] * 10 + [0.9] * 4)
    calibration = fit_calibration(val, ONE_STEP, coverage_by="answer")
    plain = fit_calibration(val, ONE_STEP)
    assert (calibration.thresholds, calibration.temperatures) == (plain.thresholds, plain.temperatures)
    assert (plain.coverage_by, plain.answer_thresholds) == ("step", {})
    probabilities = calibrated_probabilities(val.logits["model"], "model", calibration, ONE_STEP)
    limits = calibration.answer_thresholds["model"][0]
    for answer, own in ((0, probabilities[:20, 0]), (1, probabilities[20:30, 0])):
        assert limits[answer] == conformal_threshold(1 - own[:, answer], coverage=0.9)
    assert limits[2:] == (math.inf, math.inf)
    note = "in every set, with too few cases for a coverage of 0.9: Effusion (4), Nodule (0)"
    assert calibration.notes["model"] == (note,)
    sets = answer_sets(probabilities, "model", calibration, ONE_STEP)[:, 0]
    assert sets[:, 2:].all()
    assert sets[20:30, 1].all()
    assert calibration.describe_coverage() == "90 % of the cases of each answer"


def test_a_rare_answer_is_held_as_often_as_stated_by_answer_and_far_less_by_step():
    """200 draws of 300 cases, of which one in twelve has a mass that the model takes for normal: its coverage alone."""
    rng = np.random.default_rng(3)
    held = {"step": [], "answer": []}
    for _ in range(200):
        labels = (rng.random(600) < 1 / 12).astype(int)
        logits = rng.normal(0, 1, (600, 1, 4)).astype(np.float32) + np.array([3, 0, -4, -4], np.float32)
        logits[labels == 1, 0, 1] += 1
        val, test = (
            Predictions(np.arange(300), labels[part, None], {"model": logits[part]})
            for part in (slice(0, 300), slice(300, 600))
        )
        rare = test.labels[:, 0] == 1
        for by, shares in held.items():
            calibration = fit_calibration(val, ONE_STEP, coverage_by=by)
            probabilities = calibrated_probabilities(test.logits["model"], "model", calibration, ONE_STEP)
            sets = answer_sets(probabilities, "model", calibration, ONE_STEP)
            shares.append((sets[rare, 0, 1].mean(), sets[np.arange(300), 0, test.labels[:, 0]].mean()))
    (rare_by_step, all_by_step), (rare_by_answer, all_by_answer) = (np.mean(held[by], axis=0) for by in held)
    deviation = np.std(held["answer"], axis=0)[0] / math.sqrt(200)
    assert rare_by_answer > 0.9 - 3.5 * deviation
    assert rare_by_step < 0.7
    assert min(all_by_step, all_by_answer) > 0.89


@pytest.mark.parametrize(("num_cases", "coverage"), [(30, 0.9), (200, 0.9), (95, 0.8)])
def test_the_range_holds_the_coverage_of_95_percent_of_validation_splits(num_cases, coverage):
    # Scores are uniform in 0..1, so that the share of new cases below a threshold is the threshold itself.
    scores = np.random.default_rng(0).random((4000, num_cases))
    reached = np.array([conformal_threshold(own, coverage=coverage) for own in scores])
    low, high = spread_of_coverage(num_cases, coverage=coverage)
    assert np.mean(reached < low) == pytest.approx(0.025, abs=0.008)
    assert np.mean(reached > high) == pytest.approx(0.025, abs=0.008)


def test_the_range_of_a_step_counts_its_annotated_cases():
    chain = Chain(tuple(Step(name, "What?", ("No", "Yes")) for name in ("A", "B")))
    labels = np.array([[0, NOT_ANNOTATED]] * 30 + [[1, 0]] * 20 + [[1, 1]] * 2, dtype=np.int32)
    logits = np.random.default_rng(0).normal(size=(len(labels), 2, 2)).astype(np.float32)
    split = Predictions(np.arange(len(labels), dtype=np.int32), labels, {"model": logits})
    calibration = fit_calibration(split, chain)
    assert [sum(counts) for counts in calibration.num_cases["model"]] == [52, 22]
    ranges = [calibration.coverage_range("model", step) for step in (0, 1)]
    assert ranges == [spread_of_coverage(52, coverage=0.9), spread_of_coverage(22, coverage=0.9)]
    assert "with 22 validation cases" in calibration.describe_coverage("model")
    by_answer = fit_calibration(split, chain, coverage_by="answer")
    # The second step's second answer has 2 cases, too few for a threshold: it is in every set.
    assert by_answer.coverage_range("model", 0) == spread_of_coverage(22, coverage=0.9)
    assert by_answer.coverage_range("model", 1) == spread_of_coverage(20, coverage=0.9)
    assert spread_of_coverage(8, coverage=0.9) is None
    assert calibration.coverage_range("other", 0) is None


def test_an_unknown_model_or_coverage_is_refused():
    calibration = fit_calibration(VAL, CHAIN)
    with pytest.raises(BadInput, match="model 'reader' is not one of teacher, student"):
        calibrated_probabilities(VAL.logits["teacher"], "reader", calibration, CHAIN)
    for coverage in (0, 1, -0.1, math.nan):
        with pytest.raises(ValueError, match="coverage"):
            fit_calibration(VAL, CHAIN, coverage=coverage)
