"""Operating points against scikit-learn, brute force and repeated cases; their file; what chooses and what measures."""

import dataclasses
import json
import math

import numpy as np
import pytest
from evaluation.small_splits import CHAIN, make_split
from hypothesis import given
from hypothesis import strategies as st
from oracles.operating_points import operating_points
from scipy import stats
from sklearn import metrics

from stepcot_jax.chain import NOT_ANNOTATED
from stepcot_jax.evaluation.calibration import calibrated_probabilities, fit_calibration
from stepcot_jax.evaluation.operating_points import (
    OperatingPoints,
    Rule,
    count_levels,
    describe_points,
    figures_at,
    read_points,
)
from stepcot_jax.evaluation.statistics import as_plain, count_once, draw_weights
from stepcot_jax.host.errors import BadInput

VAL = make_split(3, num_cases=120, num_patients=70)
TEST = make_split(4, num_cases=90, num_patients=40)
CALIBRATION = fit_calibration(VAL.predictions, CHAIN)
RULES = [
    Rule(),
    Rule("sensitivity", target=0.8),
    Rule("sensitivity", target=1.0),
    Rule("specificity", target=0.9),
    Rule("specificity", target=1.0),
    Rule("cost", miss_cost=3.0),
    Rule("cost", miss_cost=0.01),
]


def draw(seed, *, num_cases=None, num_levels=8):
    """Scores with ties, whole weights, and labels of both kinds or of one."""
    rng = np.random.default_rng(seed)
    num_cases = rng.integers(1, 25) if num_cases is None else num_cases
    scores = rng.integers(0, num_levels, num_cases) / num_levels
    return scores, rng.random(num_cases) < rng.choice([0.0, 0.3, 0.5, 1.0]), rng.integers(0, 4, num_cases)


def curve_of(scores, positive, weights):
    levels = count_levels(weights[None].astype(float), scores=scores, positive=positive)
    return levels.thresholds, levels.hits[0], levels.alarms[0]


@given(st.integers(0, 2**32 - 1))
def test_the_curves_are_those_of_scikit_learn(seed):
    rng = np.random.default_rng(seed)
    scores, _, weights = draw(seed, num_cases=rng.integers(4, 40))
    positive = rng.random(len(scores)) < 0.4
    positive[:2], weights = [True, False], weights + 1
    thresholds, hits, alarms = curve_of(scores, positive, weights)
    fpr, tpr, cuts = metrics.roc_curve(positive, scores, sample_weight=weights, drop_intermediate=False)
    np.testing.assert_array_equal(thresholds, cuts)
    np.testing.assert_allclose(hits / hits[-1], tpr)
    np.testing.assert_allclose(alarms / alarms[-1], fpr)
    precision, recall, cuts = metrics.precision_recall_curve(positive, scores, sample_weight=weights)
    np.testing.assert_array_equal(thresholds[1:], cuts[::-1])
    np.testing.assert_allclose((hits / np.maximum(hits + alarms, 1))[1:], precision[-2::-1])
    np.testing.assert_allclose((hits / hits[-1])[1:], recall[-2::-1])


@given(st.integers(0, 2**32 - 1), st.sampled_from(RULES))
def test_the_threshold_is_the_best_of_all_and_ties_take_the_stated_one(seed, rule):
    scores, positive, weights = draw(seed)
    chosen = float(rule.choose(count_levels(weights[None].astype(float), scores=scores, positive=positive))[0])
    num_positive, num_negative = weights[positive].sum(), weights[~positive].sum()
    if not num_positive or not num_negative:
        assert math.isnan(chosen)
        return
    tried = {}
    for threshold in [math.inf, *sorted(set(scores[weights > 0].tolist()), reverse=True)]:
        above = scores >= threshold
        hits, alarms = weights[above & positive].sum(), weights[above & ~positive].sum()
        tried[threshold] = (
            hits / num_positive,
            1 - alarms / num_negative,
            rule.miss_cost * (num_positive - hits) + alarms,
        )
    sensitivity, specificity, cost = tried[chosen]
    if rule.name == "youden":
        best = max(one + other for one, other, _ in tried.values())
        assert sensitivity + specificity == pytest.approx(best)
        equal = [at for at, (one, other, _) in tried.items() if one + other == pytest.approx(best)]
        assert chosen == max(equal)
    elif rule.name == "cost":
        assert cost == pytest.approx(min(each for *_, each in tried.values()))
        assert chosen == max(at for at, (*_, each) in tried.items() if each == pytest.approx(cost))
    elif rule.name == "sensitivity":
        assert chosen == max(at for at, (one, *_) in tried.items() if one >= rule.target - 1e-9)
    else:
        assert chosen == min(at for at, (_, other, _) in tried.items() if other >= rule.target - 1e-9)


@given(st.integers(0, 2**32 - 1), st.sampled_from(RULES))
def test_weights_are_repeated_cases_and_the_order_of_cases_does_not_matter(seed, rule):
    scores, positive, weights = draw(seed)
    levels = count_levels(weights[None].astype(float), scores=scores, positive=positive)
    repeated, truth = np.repeat(scores, weights), np.repeat(positive, weights)
    plain = count_levels(count_once(len(repeated)), scores=repeated, positive=truth)
    np.testing.assert_array_equal(rule.choose(levels), rule.choose(plain))
    order = np.random.default_rng(seed).permutation(len(scores))
    moved = count_levels(weights[None, order].astype(float), scores=scores[order], positive=positive[order])
    np.testing.assert_array_equal(rule.choose(levels), rule.choose(moved))
    for threshold in (*levels.thresholds, 0.33):
        own = figures_at(weights[None].astype(float), scores=scores, positive=positive, threshold=threshold)[0]
        above = repeated >= threshold
        with np.errstate(invalid="ignore"):
            expected = [truth[above].sum() / truth.sum(), (~truth[~above]).sum() / (~truth).sum(),
                        truth[above].sum() / above.sum(), (~truth[~above]).sum() / (~above).sum()]  # fmt: skip
        np.testing.assert_allclose(own, expected)


def choose(rule=RULES[0], *, val=VAL, test=TEST, num_resamples=0, calibration=CALIBRATION):
    return operating_points(val, test, CHAIN, calibration=calibration, rule=rule, num_resamples=num_resamples)


def test_validation_chooses_and_test_measures():
    points = choose(Rule("sensitivity", target=0.9), num_resamples=200)
    assert len(points) == 2 * (2 + 3 + 4)
    for (model, name, option), point in points.items():
        place = [step.name for step in CHAIN.steps].index(name)
        answer = CHAIN.steps[place].options.index(option)
        shares, truths = [], []
        for split in (VAL, TEST):
            labels = split.predictions.labels[:, place]
            known = labels != NOT_ANNOTATED
            probabilities = calibrated_probabilities(split.predictions.logits[model], model, CALIBRATION, CHAIN)
            shares.append(probabilities[known, place, answer])
            truths.append(labels[known] == answer)
        assert point.threshold.value in shares[0][truths[0]]
        assert (shares[0][truths[0]] >= point.threshold.value).mean() >= 0.9
        above = shares[1] >= point.threshold.value
        assert point.sensitivity.value == above[truths[1]].mean()
        assert point.specificity.value == (~above)[~truths[1]].mean()
        assert point.test == (truths[1].sum(), (~truths[1]).sum())
        assert point.validation == (truths[0].sum(), (~truths[0]).sum())
        assert point.threshold.low <= point.threshold.value <= point.threshold.high
        assert point.sensitivity.low <= point.sensitivity.value <= point.sensitivity.high


def test_intervals_are_those_of_a_bootstrap_by_patient():
    point = choose(num_resamples=100)["teacher", "Diagnosis", "Mass"]
    known = TEST.predictions.labels[:, 2] != NOT_ANNOTATED
    truth = TEST.predictions.labels[known, 2] == 1
    shares = calibrated_probabilities(TEST.predictions.logits["teacher"], "teacher", CALIBRATION, CHAIN)[known, 2, 1]
    found = []
    for weights in draw_weights(TEST.facts["patient_id"], num_resamples=100, seed=0):
        found += [own[truth & (shares >= point.threshold.value)].sum() / own[truth].sum() for own in weights[:, known]]
    assert (point.sensitivity.low, point.sensitivity.high) == pytest.approx(tuple(np.quantile(found, [0.025, 0.975])))


def test_where_all_cases_agree_the_interval_is_exact_over_patients():
    rule = Rule("specificity", target=0.0)  # everything is called
    points = choose(rule, val=VAL, test=VAL, num_resamples=50)
    patients = np.asarray(VAL.facts["patient_id"])
    for (_, name, option), point in points.items():
        place = [step.name for step in CHAIN.steps].index(name)
        own = VAL.predictions.labels[:, place] == CHAIN.steps[place].options.index(option)
        other = (VAL.predictions.labels[:, place] != NOT_ANNOTATED) & ~own
        for share, cases, successes in ((point.sensitivity, own, 1), (point.specificity, other, 0)):
            number = len(set(patients[cases]))
            assert number < cases.sum()
            exact = stats.binomtest(successes * number, number).proportion_ci(0.95, "exact")
            assert (share.value, share.low, share.high) == pytest.approx((successes, exact.low, exact.high))
        assert math.isnan(point.npv.value)
        assert point.ppv.low < point.ppv.value < point.ppv.high
    found = choose(rule, val=VAL, test=VAL)["student", "Detection", "Yes"].sensitivity
    assert found.value == 1
    assert math.isnan(found.low)


def test_an_answer_of_no_or_every_validation_case_has_no_point_and_one_missing_in_test_no_sensitivity():
    labels = VAL.predictions.labels.copy()
    labels[:, 0] = np.where(labels[:, 0] == NOT_ANNOTATED, NOT_ANNOTATED, 1)
    labels[labels[:, 2] == 3, 2] = NOT_ANNOTATED
    val = dataclasses.replace(VAL, predictions=dataclasses.replace(VAL.predictions, labels=labels))
    of_test = TEST.predictions.labels.copy()
    of_test[of_test[:, 2] == 1, 2] = 0
    test = dataclasses.replace(TEST, predictions=dataclasses.replace(TEST.predictions, labels=of_test))
    points = choose(val=val, test=test, num_resamples=20)
    named = {finding[1:] for finding in points}
    assert not any(step == "Detection" for step, _ in named)
    assert ("Diagnosis", "Nodule") not in named
    mass = points["teacher", "Diagnosis", "Mass"]
    assert mass.test[0] == 0
    assert math.isnan(mass.sensitivity.value)
    assert 0 <= mass.specificity.value <= 1


def test_a_finding_that_is_best_never_called_has_an_infinite_threshold_and_comes_back(tmp_path):
    rule = Rule("cost", miss_cost=1e-6)
    points = choose(rule, val=make_split(5, skills=(-5.0, -5.0)), num_resamples=20)
    never = {finding for finding, point in points.items() if math.isinf(point.threshold.value)}
    assert len(never) > 9
    assert all(points[finding].sensitivity.value == 0 for finding in never)
    assert all(points[finding].specificity.value == 1 for finding in never)
    path = tmp_path / "statistics.json"
    content = as_plain(describe_points(OperatingPoints(rule, points)))
    path.write_text(json.dumps({"num_cases": 3, "operating_points": content}, allow_nan=False))
    back = read_points(path, CHAIN)
    assert back.rule == rule
    assert back.points.keys() == points.keys()
    assert {finding for finding, point in back.points.items() if math.isinf(point.threshold.value)} == never


@pytest.mark.parametrize("num_resamples", [0, 30])
def test_what_is_written_comes_back(tmp_path, num_resamples):
    found = OperatingPoints(RULES[3], choose(RULES[3], num_resamples=num_resamples))
    path = tmp_path / "statistics.json"
    path.write_text(json.dumps({"operating_points": as_plain(describe_points(found))}))
    back = read_points(path, CHAIN)
    for finding, point in found.points.items():
        for name, value in dataclasses.asdict(point).items():
            assert dataclasses.asdict(back.points[finding])[name] == pytest.approx(value, nan_ok=True)
    assert set(back.of_step("student", "Detection")) == {"No", "Yes"}
    assert back.of_step("student", "Other") == {}


def test_a_run_without_points_and_damaged_files_are_told(tmp_path):
    path = tmp_path / "statistics.json"
    path.write_text("{}")
    assert read_points(path, CHAIN) is None
    content = as_plain(describe_points(OperatingPoints(RULES[0], choose())))
    content["models"]["teacher"]["Diagnosis"]["Fracture"] = content["models"]["teacher"]["Diagnosis"]["Mass"]
    path.write_text(json.dumps({"operating_points": content}))
    with pytest.raises(BadInput, match="operating points of teacher: 'Fracture' at 'Diagnosis' is no answer"):
        read_points(path, CHAIN)
    path.write_text('{"operating_points": {"rule": 3}}')
    with pytest.raises(BadInput, match=r"statistics\.json"):
        read_points(path, CHAIN)
