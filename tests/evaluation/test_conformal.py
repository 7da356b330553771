"""Thresholds at a confidence: simulated validation splits reach the coverage as often as stated."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from stepcot_jax.chain import Chain, Step
from stepcot_jax.evaluation.calibration import answer_sets, calibrated_probabilities, fit_calibration
from stepcot_jax.evaluation.conformal import choose_one_per_patient, conformal_threshold, find_rank, spread_of_coverage
from stepcot_jax.evaluation.predictions import Predictions

CHAIN = Chain((Step("Diagnosis", "What?", ("Normal", "Mass", "Effusion")),))
NUM_SPLITS = 3000


def within(share: float, expected: float) -> bool:
    return share >= expected - 3.5 * math.sqrt(expected * (1 - expected) / NUM_SPLITS)


@given(st.integers(0, 600), st.sampled_from([0.5, 0.8, 0.9, 0.99]), st.sampled_from([0.6, 0.9, 0.95, 0.999]))
def test_the_rank_is_the_lowest_that_reaches_the_coverage_at_the_confidence(num_cases, coverage, confidence):
    """Against the binomial distribution: so many of n uniform scores lie below the coverage."""
    rank = find_rank(num_cases, coverage=coverage, confidence=confidence)
    plain = find_rank(num_cases, coverage=coverage)
    reached = [stats.binom.cdf(k - 1, num_cases, coverage) >= confidence for k in range(num_cases + 1)]
    enough = [k for k in range(plain, num_cases + 1) if reached[k]]
    assert rank == (enough[0] if enough else num_cases + 1)
    assert rank >= min(plain, num_cases + 1)


@pytest.mark.parametrize(("num_cases", "coverage", "confidence"), [(100, 0.9, 0.95), (450, 0.9, 0.95), (60, 0.8, 0.9)])
def test_at_a_confidence_so_many_splits_reach_the_coverage_and_by_the_plain_rule_far_fewer(
    num_cases, coverage, confidence
):
    # Scores are uniform in 0..1, so that the share of new cases below a threshold is the threshold itself.
    scores = np.random.default_rng(0).random((NUM_SPLITS, num_cases))
    sure = np.array([conformal_threshold(own, coverage=coverage, confidence=confidence) for own in scores])
    plain = np.array([conformal_threshold(own, coverage=coverage) for own in scores])
    assert within((sure >= coverage).mean(), confidence)
    assert (plain >= coverage).mean() < 0.65
    low, high = spread_of_coverage(num_cases, coverage=coverage, confidence=confidence)
    assert np.mean(sure < low) == pytest.approx(0.025, abs=0.01)
    assert np.mean(sure > high) == pytest.approx(0.025, abs=0.01)


def draw_patients(rng, num_patients: int):
    """Three cases of each patient with nearly the same logits, so that they are as good as one."""
    own = np.repeat(rng.normal(0, 1.5, (num_patients, 3)), 3, axis=0)
    shares = np.exp(own) / np.exp(own).sum(axis=1, keepdims=True)
    labels = np.repeat((rng.random((num_patients, 1)) > np.cumsum(shares[::3], axis=1)).sum(axis=1), 3)
    logits = (own + rng.normal(0, 0.01, own.shape)).astype(np.float32)[:, None]
    split = Predictions(np.arange(len(labels)), np.minimum(labels, 2)[:, None].astype(np.int32), {"model": logits})
    return split, np.repeat([f"p{number}" for number in range(num_patients)], 3)


def test_patients_with_several_cases_count_once():
    """200 splits of 60 patients: with every case counted, far too few of them reach the coverage."""
    rng = np.random.default_rng(1)
    new, _ = draw_patients(rng, 20_000)
    reached = {"patients": 0, "cases": 0}
    for _ in range(200):
        val, patients = draw_patients(rng, 60)
        for by, known in (("patients", patients), ("cases", None)):
            found = fit_calibration(val, CHAIN, confidence=0.9, patients=known)
            sets = answer_sets(
                calibrated_probabilities(new.logits["model"], "model", found, CHAIN), "model", found, CHAIN
            )
            reached[by] += sets[np.arange(len(sets)), 0, new.labels[:, 0]].mean() >= 0.9
            assert sum(found.num_cases["model"][0]) == (60 if by == "patients" else 180)
    assert reached["patients"] >= 200 * 0.9 - 3.5 * math.sqrt(200 * 0.9 * 0.1)
    assert reached["cases"] < reached["patients"] - 15


def test_one_case_of_each_patient_and_every_case_without_one():
    patients = np.array(["a", "b", "a", "", "c", "", "a"])
    chosen = choose_one_per_patient(patients)
    assert sorted(patients[chosen].tolist()) == ["", "", "a", "b", "c"]
    assert (np.diff(chosen) > 0).all()
    np.testing.assert_array_equal(chosen, choose_one_per_patient(patients))
    assert choose_one_per_patient(np.array([], dtype=str)).tolist() == []


def test_coverage_by_answer_holds_at_the_confidence_for_each_answer():
    rng = np.random.default_rng(2)
    val, patients = draw_patients(rng, 300)
    found = fit_calibration(val, CHAIN, coverage_by="answer", confidence=0.95, patients=patients)
    counts = np.bincount(val.labels[::3, 0], minlength=3)
    assert found.num_cases["model"][0] == tuple(counts.tolist())
    probabilities = calibrated_probabilities(val.logits["model"], "model", found, CHAIN)
    for answer, limit in enumerate(found.answer_thresholds["model"][0]):
        own = np.flatnonzero(val.labels[:, 0] == answer)
        scores = 1 - probabilities[own[choose_one_per_patient(patients[own])], 0, answer]
        assert limit == conformal_threshold(scores, coverage=0.9, confidence=0.95)


def test_what_cannot_be_fitted_says_why():
    val, patients = draw_patients(np.random.default_rng(3), 28)
    found = fit_calibration(val, CHAIN, confidence=0.95, patients=patients)
    assert found.thresholds["model"] == (math.inf,)
    note = (
        "84 cases of 28 patients are too few for a coverage of 0.9 at a confidence of 0.95: every answer is in the set"
    )
    assert found.notes["model"] == (note,)
    assert found.coverage_range("model", 0) is None
    for confidence in (-0.1, 1, math.nan):
        with pytest.raises(ValueError, match="confidence must be from 0 to below 1"):
            fit_calibration(val, CHAIN, confidence=confidence)


def test_the_confidence_is_told():
    val, patients = draw_patients(np.random.default_rng(4), 450)
    text = fit_calibration(val, CHAIN, confidence=0.95, patients=patients).describe_coverage("model")
    assert text == (
        "90 % or more of all cases together, not of each answer, at a confidence of 95 % for each step (95 % range "
        "with 450 validation cases: 89.6 to 94.5 %)"
    )
