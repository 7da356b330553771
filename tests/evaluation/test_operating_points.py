"""Operating points against scikit-learn, brute force and repeated cases; their file; what chooses and what measures."""

import dataclasses
import math

import numpy as np
import pytest
from evaluation.small_splits import CHAIN, make_split
from hypothesis import given
from hypothesis import strategies as st
from oracles.operating_points import operating_points
from refusals import refuse
from scipy import stats

from stepcot_jax.chain import NOT_ANNOTATED
from stepcot_jax.evaluation import operating_points as tested
from stepcot_jax.evaluation.calibration import calibrated_probabilities, fit_calibration
from stepcot_jax.evaluation.statistics import count_once, draw_weights
from stepcot_jax.host.own_folder import save

VAL = make_split(3, num_cases=120, num_patients=70)
TEST = make_split(4, num_cases=90, num_patients=40)
CALIBRATION = fit_calibration(VAL.predictions, CHAIN)
TARGETS = (("sensitivity", 0.8), ("sensitivity", 1.0), ("specificity", 0.9), ("specificity", 1.0))
RULES = [tested.Rule(), *(tested.Rule(name, target=target) for name, target in TARGETS)]
RULES += [tested.Rule("cost", miss_cost=cost) for cost in (3.0, 0.01)]


def draw(seed):
    """Scores with ties, labels of both kinds or of one, and whole weights."""
    rng = np.random.default_rng(seed)
    num_cases = rng.integers(1, 25)
    scores = rng.integers(0, 8, num_cases) / 8
    return scores, rng.random(num_cases) < rng.choice([0.0, 0.3, 0.5, 1.0]), rng.integers(0, 4, num_cases)


def levels_of(scores, positive, weights):
    return tested.count_levels(weights[None].astype(float), scores=scores, positive=positive)


@given(st.integers(0, 2**32 - 1), st.sampled_from(RULES))
def test_the_threshold_is_the_best_of_all_and_ties_take_the_stated_one(seed, rule):
    scores, positive, weights = draw(seed)
    chosen = float(rule.choose(levels_of(scores, positive, weights))[0])
    num_positive, num_negative = weights[positive].sum(), weights[~positive].sum()
    if not num_positive or not num_negative:
        assert math.isnan(chosen)
        return
    worth = {}
    for threshold in [math.inf, *sorted(set(scores[weights > 0].tolist()), reverse=True)]:
        above = scores >= threshold
        hits, alarms = weights[above & positive].sum(), weights[above & ~positive].sum()
        sensitivity, specificity = hits / num_positive, 1 - alarms / num_negative
        worth[threshold] = {
            "youden": sensitivity + specificity,
            "cost": -(rule.miss_cost * (num_positive - hits) + alarms),
            "sensitivity": float(sensitivity >= rule.target - 1e-9),
            "specificity": float(specificity >= rule.target - 1e-9),
        }[rule.name]
    best = [threshold for threshold, value in worth.items() if value == pytest.approx(max(worth.values()))]
    assert chosen == (min(best) if rule.name == "specificity" else max(best))


@given(st.integers(0, 2**32 - 1), st.sampled_from(RULES))
def test_weights_are_repeated_cases_and_the_order_of_cases_does_not_matter(seed, rule):
    scores, positive, weights = draw(seed)
    levels = levels_of(scores, positive, weights)
    repeated, truth = np.repeat(scores, weights), np.repeat(positive, weights)
    plain = tested.count_levels(count_once(len(repeated)), scores=repeated, positive=truth)
    np.testing.assert_array_equal(rule.choose(levels), rule.choose(plain))
    order = np.random.default_rng(seed).permutation(len(scores))
    moved = levels_of(scores[order], positive[order], weights[order])
    np.testing.assert_array_equal(rule.choose(levels), rule.choose(moved))
    for threshold in (*levels.thresholds, 0.33):
        own = tested.figures_at(weights[None].astype(float), scores=scores, positive=positive, threshold=threshold)[0]
        above = repeated >= threshold
        with np.errstate(invalid="ignore"):
            expected = [truth[above].sum() / truth.sum(), (~truth[~above]).sum() / (~truth).sum(),
                        truth[above].sum() / above.sum(), (~truth[~above]).sum() / (~above).sum()]  # fmt: skip
        np.testing.assert_allclose(own, expected)


def choose(rule=RULES[0], *, val=VAL, test=TEST, num_resamples=0):
    return operating_points(val, test, CHAIN, calibration=CALIBRATION, rule=rule, num_resamples=num_resamples)


def shares_and_truth(split, finding):
    """Scores of the annotated cases, whether they have the answer, and which cases they are."""
    model, name, option = finding
    place = [step.name for step in CHAIN.steps].index(name)
    answer = CHAIN.steps[place].options.index(option)
    known = split.predictions.labels[:, place] != NOT_ANNOTATED
    probabilities = calibrated_probabilities(split.predictions.logits[model], model, CALIBRATION, CHAIN)
    return probabilities[known, place, answer], split.predictions.labels[known, place] == answer, known


def test_validation_chooses_and_test_measures():
    points = choose(tested.Rule("sensitivity", target=0.9), num_resamples=200)
    assert len(points) == 2 * (2 + 3 + 4)
    for finding, point in points.items():
        (of_val, chosen_on, _), (shares, truth, _) = (shares_and_truth(split, finding) for split in (VAL, TEST))
        assert point.threshold.value in of_val[chosen_on]
        assert (of_val[chosen_on] >= point.threshold.value).mean() >= 0.9
        above = shares >= point.threshold.value
        assert point.sensitivity.value == above[truth].mean()
        assert point.specificity.value == (~above)[~truth].mean()
        assert point.test == (truth.sum(), (~truth).sum())
        assert point.validation == (chosen_on.sum(), (~chosen_on).sum())
        assert point.threshold.low <= point.threshold.value <= point.threshold.high
        assert point.sensitivity.low <= point.sensitivity.value <= point.sensitivity.high


def test_intervals_are_those_of_a_bootstrap_by_patient():
    finding = ("teacher", "Diagnosis", "Mass")
    point = choose(num_resamples=100)[finding]
    shares, truth, known = shares_and_truth(TEST, finding)
    found = []
    for weights in draw_weights(TEST.facts["patient_id"], num_resamples=100, seed=0):
        found += [own[truth & (shares >= point.threshold.value)].sum() / own[truth].sum() for own in weights[:, known]]
    assert (point.sensitivity.low, point.sensitivity.high) == pytest.approx(tuple(np.quantile(found, [0.025, 0.975])))


def test_where_all_cases_agree_the_interval_is_exact_over_patients():
    rule = tested.Rule("specificity", target=0.0)  # everything is called
    for finding, point in choose(rule, val=VAL, test=VAL, num_resamples=50).items():
        _, truth, known = shares_and_truth(VAL, finding)
        patients = VAL.facts["patient_id"][known]
        for share, cases, successes in ((point.sensitivity, truth, 1), (point.specificity, ~truth, 0)):
            number = len(set(patients[cases]))
            assert number < cases.sum()
            exact = stats.binomtest(successes * number, number).proportion_ci(0.95, "exact")
            assert (share.value, share.low, share.high) == pytest.approx((successes, exact.low, exact.high))
        assert math.isnan(point.npv.value)
        assert point.ppv.low < point.ppv.value < point.ppv.high
    never_wrong = choose(tested.Rule("specificity", target=1.0), val=VAL, test=VAL, num_resamples=50)
    for finding, point in never_wrong.items():
        shares, _, known = shares_and_truth(VAL, finding)
        number = len(set(VAL.facts["patient_id"][known][shares >= point.threshold.value]))
        exact = stats.binomtest(number, number).proportion_ci(0.95, "exact") if number else None
        assert exact is None or (point.ppv.value, point.ppv.low) == pytest.approx((1, exact.low))
    found = choose(rule, val=VAL, test=VAL)["student", "Detection", "Yes"].sensitivity
    assert found.value == 1
    assert math.isnan(found.low)


def test_an_answer_of_no_or_every_validation_case_has_no_point_and_one_missing_in_test_no_sensitivity():
    labels, of_test = VAL.predictions.labels.copy(), TEST.predictions.labels.copy()
    labels[:, 0] = np.where(labels[:, 0] == NOT_ANNOTATED, NOT_ANNOTATED, 1)
    labels[labels[:, 2] == 3, 2] = NOT_ANNOTATED
    of_test[of_test[:, 2] == 1, 2] = 0
    points = choose(val=VAL.change(labels=labels), test=TEST.change(labels=of_test), num_resamples=20)
    named = {finding[1:] for finding in points}
    assert not any(step == "Detection" for step, _ in named)
    assert ("Diagnosis", "Nodule") not in named
    mass = points["teacher", "Diagnosis", "Mass"]
    assert mass.test[0] == 0
    assert math.isnan(mass.sensitivity.value)
    assert 0 <= mass.specificity.value <= 1


@pytest.mark.parametrize(
    ("rule", "val"), [(RULES[3], VAL), (tested.Rule("cost", miss_cost=1e-6), make_split(5, skills=(-5.0, -5.0)))]
)
def test_what_is_written_comes_back_thresholds_of_what_is_never_called_too(tmp_path, rule, val):
    found = choose(rule, val=val, num_resamples=20)
    never = [point for point in found.values() if math.isinf(point.threshold.value)]
    assert (len(never) > 9) == (rule.name == "cost")
    assert all((point.sensitivity.value, point.specificity.value) == (0, 1) for point in never)
    save(tmp_path / "points.json", tested.OperatingPoints.of_findings(rule, found))
    back = tested.read_points(tmp_path / "points.json", CHAIN)
    assert (back.rule, back.points.keys()) == (rule, found.keys())
    for finding, point in found.items():
        for name, value in dataclasses.asdict(point).items():
            assert dataclasses.asdict(back.points[finding])[name] == pytest.approx(value, nan_ok=True)
    assert set(back.of_step("student", "Detection")) == {"No", "Yes"}
    other = {("teacher", "Diagnosis", "Fracture"): found["teacher", "Diagnosis", "Mass"]}
    save(tmp_path / "points.json", tested.OperatingPoints.of_findings(rule, other))
    refuse("'Fracture' at 'Diagnosis' is no answer of this chain", tested.read_points, tmp_path / "points.json", CHAIN)
