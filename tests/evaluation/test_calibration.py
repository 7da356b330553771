"""Temperatures against a fine grid; answer sets against their stated coverage; the file of both."""

import math

import numpy as np
import pytest
from evaluation.small_splits import CHAIN, make_split
from hypothesis import given
from hypothesis import strategies as st
from refusals import refuse_edited
from scipy import special, stats

from stepcot_jax.chain import NOT_ANNOTATED, Chain, Step
from stepcot_jax.evaluation import calibration as tested
from stepcot_jax.evaluation.predictions import Predictions
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.own_folder import save

VAL = make_split(3, num_cases=200, num_patients=120).predictions
ONE_STEP = Chain((Step("Diagnosis", "What?", ("Normal", "Mass", "Effusion", "Nodule")),))
SEEDS = st.integers(0, 2**32 - 1)


def draw_step(rng, num_cases: int, *, sharpness: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Logits and answers drawn from them such that the best temperature is `sharpness`."""
    logits = rng.normal(0, 2, (num_cases, 4))
    weights = np.exp(logits)
    shares = np.cumsum(weights / weights.sum(axis=1, keepdims=True), axis=1)
    labels = (rng.random((num_cases, 1)) > shares).sum(axis=1)
    return logits * sharpness, np.minimum(labels, 3)


def of_step(labels, logits) -> Predictions:
    return Predictions(np.arange(len(labels)), np.asarray(labels)[:, None], {"model": logits[:, None]})


def sets_of(logits, calibration) -> np.ndarray:
    probabilities = tested.calibrated_probabilities(logits[:, None], "model", calibration, ONE_STEP)
    return tested.answer_sets(probabilities, "model", calibration, ONE_STEP)[:, 0]


def mean_nll(logits: np.ndarray, labels: np.ndarray, temperature: float) -> float:
    scaled = logits / temperature
    return float((np.logaddexp.reduce(scaled, axis=1) - scaled[np.arange(len(labels)), labels]).mean())


@given(SEEDS, st.floats(-2.5, 2.5))
def test_no_other_temperature_makes_the_true_answers_more_probable(seed, log_sharpness):
    logits, labels = draw_step(np.random.default_rng(seed), 60, sharpness=math.exp(log_sharpness))
    temperature, note = tested.fit_temperature(logits, labels)
    others = [mean_nll(logits, labels, other) for other in np.exp(np.linspace(math.log(0.01), math.log(100), 200))]
    assert note or mean_nll(logits, labels, temperature) <= min(others) + 1e-12


def test_what_fits_no_temperature_keeps_one_and_says_why():
    logits, labels = draw_step(np.random.default_rng(1), 40)
    for case, expected, words in (
        ((logits[:19], labels[:19]), 1, "19 annotated cases, fewer than 20: temperature 1"),
        ((logits[:0], labels[:0]), 1, "0 annotated cases"),
        ((logits, np.full(40, 2)), 1, "every case has the same answer: temperature 1"),
        ((logits, logits.argmax(axis=1)), 1, "answered correctly"),
        ((logits, logits.argmin(axis=1)), 100, "upper bound"),
    ):
        temperature, note = tested.fit_temperature(*case)
        assert temperature == pytest.approx(expected)
        assert words in note


def test_two_temperatures_are_fitted_where_one_cannot_serve_and_only_there():
    rng = np.random.default_rng(5)
    logits = rng.normal(size=(6000, 5)) * 2
    for world in ((0.4, 4.0, 0.3), (1.7, 1.7, 0.0)):
        shares = np.exp(tested.mix_temperatures(logits, world))
        first, second, share = world
        oracle = (1 - share) * special.softmax(logits / first, axis=1) + share * special.softmax(
            logits / second, axis=1
        )
        np.testing.assert_allclose(shares, oracle, rtol=1e-12)
        labels = (shares.cumsum(axis=1) < rng.random((6000, 1))).sum(axis=1)
        found = tested.fit_mixture(logits, labels)
        temperature, _ = tested.fit_temperature(logits, labels)
        if share:
            np.testing.assert_allclose(found, world, rtol=0.25)
        else:
            assert found == (temperature, temperature, 0.0)
        few = tested.fit_mixture(logits[:199], labels[:199])
        assert few[0] == few[1]
        assert few[2] == 0


def test_each_step_is_fitted_by_its_own_annotated_cases_and_padding_stays_impossible():
    calibration = tested.fit_calibration(VAL, CHAIN)
    for model, logits in VAL.logits.items():
        probabilities = tested.calibrated_probabilities(logits, model, calibration, CHAIN)
        np.testing.assert_allclose(probabilities.sum(axis=2), 1)
        np.testing.assert_array_equal(probabilities.argmax(axis=2), logits.argmax(axis=2))
        sets = tested.answer_sets(probabilities, model, calibration, CHAIN)
        assert sets.any(axis=2).all()
        for position, step in enumerate(CHAIN.steps):
            assert (probabilities[:, position, step.num_answers :] == 0).all()
            assert not sets[:, position, step.num_answers :].any()
            known = VAL.labels[:, position] != NOT_ANNOTATED
            own = logits[known, position, : step.num_answers].astype(float)
            expected, _ = tested.fit_temperature(own, VAL.labels[known, position])
            assert calibration.temperatures[model][position] == expected


@given(SEEDS, st.integers(0, 40), st.sampled_from([0.5, 0.8, 0.9, 0.95]))
def test_the_threshold_is_the_smallest_with_enough_scores_below(seed, num_cases, coverage):
    scores = np.random.default_rng(seed).integers(0, 20, num_cases) / 20
    enough = (num_cases + 1) * coverage - 1e-9
    candidates = [score for score in scores if (scores <= score).sum() >= enough]
    assert tested.conformal_threshold(scores, coverage=coverage) == min(candidates, default=math.inf)


@given(st.integers(0, 600), st.sampled_from([0.5, 0.8, 0.9, 0.99]), st.sampled_from([0.6, 0.9, 0.95, 0.999]))
def test_the_rank_is_the_lowest_that_reaches_the_coverage_at_the_confidence(num_cases, coverage, confidence):
    """Against the binomial distribution: so many of n uniform scores lie below the coverage."""
    plain = tested.find_rank(num_cases, coverage=coverage)
    reached = stats.binom.cdf(np.arange(num_cases + 1) - 1, num_cases, coverage) >= confidence
    enough = (k for k in range(plain, num_cases + 1) if reached[k])
    assert tested.find_rank(num_cases, coverage=coverage, confidence=confidence) == next(enough, num_cases + 1)


@pytest.mark.parametrize(("num_cases", "coverage", "confidence"), [(100, 0.9, 0.95), (60, 0.8, 0.9), (30, 0.9, 0)])
def test_splits_reach_the_coverage_as_often_as_stated_and_stay_within_the_range(num_cases, coverage, confidence):
    # Scores are uniform in 0..1, so that the share of new cases below a threshold is the threshold itself.
    scores = np.random.default_rng(0).random((3000, num_cases))
    reached = np.array([tested.conformal_threshold(own, coverage=coverage, confidence=confidence) for own in scores])
    low, high = tested.spread_of_coverage(num_cases, coverage=coverage, confidence=confidence)
    assert np.mean(reached < low) == pytest.approx(0.025, abs=0.01)
    assert np.mean(reached > high) == pytest.approx(0.025, abs=0.01)
    share = (reached >= coverage).mean()
    deviation = 3.5 * math.sqrt(confidence * (1 - confidence) / 3000)
    assert share >= confidence - deviation if confidence else share < 0.65


def test_sets_hold_the_true_answer_as_often_as_stated():
    """Coverage of the whole fit, temperature included, over 300 draws of a validation and a test split.

    For a fixed score the expected coverage lies between coverage and coverage + 1 / (n + 1); the bounds
    add 3.5 standard errors. The model is miscalibrated, as real ones are.
    """
    rng, num_val, num_test, coverage, shares = np.random.default_rng(7), 30, 20, 0.9, []
    for _ in range(300):
        logits, labels = draw_step(rng, num_val + num_test, sharpness=3.0)
        calibration = tested.fit_calibration(of_step(labels[:num_val], logits[:num_val]), ONE_STEP, coverage=coverage)
        test, truth = logits[num_val:], (np.arange(num_test), labels[num_val:])
        probabilities = tested.calibrated_probabilities(test[:, None], "model", calibration, ONE_STEP)[:, 0]
        bare = 1 - probabilities[truth] <= calibration.thresholds["model"][0]
        held = sets_of(test, calibration)[truth]
        assert (held >= bare).all()
        shares.append((bare.mean(), held.mean()))
    bare_share, held_share = np.mean(shares, axis=0)
    # Test cases of one draw share a threshold, so the standard error is that of the draws' means.
    deviation = 3.5 * np.std(shares, axis=0)[0] / math.sqrt(300)
    assert coverage - deviation <= bare_share <= coverage + 1 / (num_val + 1) + deviation
    assert held_share >= coverage - deviation


def test_an_answer_at_the_threshold_is_in_the_set_and_the_most_probable_one_always():
    probabilities = np.array([[[0.5, 0.25, 0.125, 0.125]], [[0.25, 0.25, 0.25, 0.25]]])
    for limit, expected in ((0.75, [[True, True, False, False], [True] * 4]), (0.1, [[True, False, False, False]] * 2)):
        calibration = tested.Calibration(coverage=0.9, temperatures={"model": (1.0,)}, thresholds={"model": (limit,)})
        assert tested.answer_sets(probabilities, "model", calibration, ONE_STEP)[:, 0].tolist() == expected


def test_the_range_of_a_step_counts_its_annotated_cases():
    chain = Chain(tuple(Step(name, "What?", ("No", "Yes")) for name in ("A", "B")))
    labels = np.array([[0, NOT_ANNOTATED]] * 30 + [[1, 0]] * 20 + [[1, 1]] * 2, dtype=np.int32)
    logits = np.random.default_rng(0).normal(size=(len(labels), 2, 2)).astype(np.float32)
    split = Predictions(np.arange(len(labels), dtype=np.int32), labels, {"model": logits})
    calibration = tested.fit_calibration(split, chain)
    assert calibration.num_cases["model"] == (52, 22)
    assert "with 22 validation cases" in calibration.describe_coverage("model")
    ranges = [calibration.coverage_range("model", step) for step in (0, 1)]
    assert ranges == [tested.spread_of_coverage(number, coverage=0.9) for number in (52, 22)]
    assert tested.spread_of_coverage(8, coverage=0.9) is calibration.coverage_range("other", 0) is None


def draw_patients(rng, num_patients: int):
    """Three cases of each patient with nearly the same logits, so that they are as good as one."""
    logits, labels = draw_step(rng, num_patients)
    logits, labels = np.repeat(logits, 3, axis=0), np.repeat(labels, 3)
    logits = (logits + rng.normal(0, 0.01, logits.shape)).astype(np.float32)
    return of_step(labels, logits), np.repeat([f"p{number}" for number in range(num_patients)], 3)


def test_one_case_of_each_patient_and_every_case_without_one():
    patients = np.array(["a", "b", "a", "", "c", "", "a"])
    chosen = tested.choose_one_per_patient(patients)
    assert sorted(patients[chosen].tolist()) == ["", "", "a", "b", "c"]
    assert (np.diff(chosen) > 0).all()
    np.testing.assert_array_equal(chosen, tested.choose_one_per_patient(patients))


def test_the_confidence_counts_one_case_of_each_patient_and_a_lack_of_cases_is_told():
    val, patients = draw_patients(np.random.default_rng(2), 300)
    found = tested.fit_calibration(val, ONE_STEP, confidence=0.95, patients=patients)
    assert found.num_cases["model"] == (300,)
    probabilities = tested.calibrated_probabilities(val.logits["model"], "model", found, ONE_STEP)
    chosen = tested.choose_one_per_patient(patients)
    scores = 1 - probabilities[chosen, 0, val.labels[chosen, 0]]
    assert found.thresholds["model"] == (tested.conformal_threshold(scores, coverage=0.9, confidence=0.95),)
    val, patients = draw_patients(np.random.default_rng(3), 28)
    found = tested.fit_calibration(val, ONE_STEP, confidence=0.95, patients=patients)
    assert (found.thresholds["model"], found.coverage_range("model", 0)) == ((math.inf,), None)
    assert sets_of(val.logits["model"][:, 0], found).all()
    (note,) = found.notes["model"]
    assert note.startswith("84 cases of 28 patients are too few for a coverage of 0.9 at a confidence of 0.95")
    val, patients = draw_patients(np.random.default_rng(4), 450)
    text = tested.fit_calibration(val, ONE_STEP, confidence=0.95, patients=patients).describe_coverage("model")
    assert text == (
        "90 % or more of all cases together, not of each answer, at a confidence of 95 % for each step (95 % range "
        "with 450 validation cases: 89.6 to 94.5 %)"
    )


def test_what_is_written_comes_back(tmp_path):
    path = tmp_path / "calibration.json"
    for val in (make_split(0, num_cases=8).predictions, VAL):
        calibration = tested.fit_calibration(val, CHAIN, coverage=0.8, confidence=0.6)
        save(path, calibration)
        assert tested.read_calibration(path, CHAIN) == calibration
    with pytest.raises(BadInput, match="model 'reader' is not one of teacher, student"):
        tested.calibrated_probabilities(VAL.logits["teacher"], "reader", calibration, CHAIN)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"coverage": "nan"}, r"\$\.coverage"),
        ({"temperatures": {"student": []}}, "calibration of another chain"),
        ({"more": " " * 2**26}, r"calibration\.json"),
        ({"temperatures": {"teacher": ["inf"]}}, r"\.temperatures\[\.\.\.\]\[0\]"),
        ({"thresholds": {"teacher": ["nan"]}}, r"\.thresholds\[\.\.\.\]\[0\]"),
        ({"num_cases": {"teacher": [-1]}}, r"num_cases\[\.\.\.\]\[0\]"),
        ({"stepcot_jax": "0.0.9", "coverage": 0}, r"written by stepcot_jax 0\.0\.9, read by "),
    ],
)
def test_a_file_that_cannot_be_used_is_named(tmp_path, changes, message):
    path = tmp_path / "calibration.json"
    save(path, tested.fit_calibration(VAL, CHAIN))
    refuse_edited(message, path, lambda found: found.update(changes), tested.read_calibration, CHAIN)
