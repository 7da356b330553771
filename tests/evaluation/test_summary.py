import json
import re

import numpy as np
import pytest
from evaluation.small_splits import CHAIN, make_split

from stepcot_jax.chain import NOT_ANNOTATED, Chain, Step
from stepcot_jax.evaluation.calibration import fit_calibration, step_reliability
from stepcot_jax.evaluation.chains import bootstrap, evaluate, step_cases
from stepcot_jax.evaluation.consistency import judge_normal, make_rules, share_inconsistent
from stepcot_jax.evaluation.statistics import as_plain
from stepcot_jax.evaluation.summary import (
    GROUPINGS,
    UNKNOWN,
    age_band,
    describe,
    describe_normal,
    score_subgroups,
    summarise,
)

SPLIT = make_split(3, num_cases=120, num_patients=50)
LABELS = SPLIT.predictions.labels
CALIBRATION = fit_calibration(make_split(4, num_cases=120).predictions, CHAIN)
RULES = make_rules(CHAIN)
RULES.allowed[0, 1][0, 1] = RULES.allowed[0, 2][1, 0] = RULES.allowed[1, 2][2, 3] = False
TRUE_CHAINS = "share_of_true_chains_that_break_a_rule"


def run(split=SPLIT, *, rules=RULES, num_resamples=20):
    return summarise(split, CHAIN, calibration=CALIBRATION, rules=rules, num_resamples=num_resamples)


@pytest.fixture(scope="module")
def summary():
    return run(num_resamples=300)


def leaves(tree, path=()):
    if isinstance(tree, dict | list | tuple):
        for name, own in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from leaves(own, (*path, name))
    else:
        yield path, tree


def with_intervals(tree):
    groups = [{TRUE_CHAINS: tree[TRUE_CHAINS], "intervals": tree["intervals"]}]
    for model in tree["models"].values():
        groups += [*model["steps"].values(), model["consistency"]]
    for figures in groups:
        for path, value in leaves({name: value for name, value in figures.items() if name != "intervals"}):
            interval = figures["intervals"]
            for name in path:
                interval = interval[name]
            yield path, value, interval


def test_every_figure_has_an_interval_of_its_own_value(summary):
    found = list(with_intervals(summary))
    for path, value, interval in found:
        assert set(interval) == {"value", "low", "high", "undefined"}, path
        assert (interval["value"], interval["undefined"]) == (value, 0), path
        assert interval["low"] <= interval["high"], path
        if path[0] not in ("ece", "ece_calibrated"):  # resamples are biased upwards: resampling adds noise
            assert interval["low"] <= value <= interval["high"], path
    # Of the labels, and for each of 2 models 3 steps of 8 figures and 4 shares, coverage by 2 + 3 + 4 answers, and
    # broken rules, normal cases called abnormal by two steps, and contradictions of these.
    assert len(found) == 1 + 2 * (3 * 12 + 9 + 1 + 3)


def test_values_and_resamples_are_those_of_the_plain_functions(summary):
    raw = step_reliability(SPLIT.predictions, CHAIN)
    scaled = step_reliability(SPLIT.predictions, CHAIN, calibration=CALIBRATION)
    metrics = bootstrap(SPLIT, CHAIN, num_resamples=300)
    for model, found in summary["models"].items():
        cases = step_cases(SPLIT.predictions, CHAIN, model=model, calibration=CALIBRATION)
        for position, (name, step) in enumerate(found["steps"].items()):
            one, other = raw[model][position], scaled[model][position]
            assert (step["ece"], step["brier"], step["nll"]) == (one.ece, one.brier, one.nll)
            assert (step["ece_calibrated"], step["nll_calibrated"]) == (other.ece, other.nll)
            truth, counts = LABELS[:, position], summary["num_cases_by_answer"][name]
            for answer, option in enumerate(CHAIN.steps[position].options):
                has_answer = truth == answer
                assert counts[option] == has_answer.sum()
                assert step["answer_set_coverage_by_answer"][option] == cases[position].sets[has_answer, answer].mean()
            held = sum(step["answer_set_coverage_by_answer"][option] * count for option, count in counts.items())
            assert step["answer_set_coverage"] == pytest.approx(held / sum(counts.values()))
            accuracy = as_plain(metrics[model].steps[position].accuracy)
            assert step["intervals"]["accuracy_of_the_surest"]["100%"] == pytest.approx(accuracy)
        share = share_inconsistent(SPLIT.predictions.logits[model].argmax(axis=2), RULES)
        assert found["consistency"]["share_inconsistent"] == share > 0


def test_no_resamples_leave_the_figures_and_no_intervals(summary):
    plain = run(num_resamples=0)
    assert (plain["subgroups"], plain["intervals"]) == (None, None)
    for model, found in plain["models"].items():
        assert found["intervals"] is None
        for name, step in found["steps"].items():
            assert step == {**summary["models"][model]["steps"][name], "intervals": None}
        assert found["consistency"]["intervals"] is None
    assert describe(plain) == []
    assert [line.count("%") for line in describe(summary)] == [3, 3]
    assert [line.count("[") for line in (*describe_normal(plain), *describe_normal(summary))] == [0, 0, 3, 3]


def test_normal_cases_are_those_whose_last_answer_is_normal(summary):
    """By hand: 0 is "No" at the first step and "Normal" at the last, whatever the first true answer is."""
    lines = describe_normal(summary)
    for (model, logits), line in zip(SPLIT.predictions.logits.items(), lines, strict=True):
        answers, normal = logits.argmax(axis=2), LABELS[:, 2] == 0
        said = [100 * part.mean() for part in (answers[normal, 0] == 1, answers[normal, 2] > 0)]
        said.append(
            100 * ((answers[:, 0] == 1) & (answers[:, 2] == 0) | (answers[:, 0] == 0) & (answers[:, 2] > 0)).mean()
        )
        found = re.sub(r" \[[0-9., ]+\]", "", line)
        assert found == (
            f"{model}: normal called abnormal by Detection {said[0]:.1f} %, normal called abnormal by Diagnosis "
            f"{said[1]:.1f} %, Detection and Diagnosis contradict {said[2]:.1f} %"
        )
    assert summary["models"]["student"]["consistency"]["normal"].keys() == judge_normal(LABELS, LABELS, CHAIN).keys()
    unnamed = Chain((*CHAIN.steps[:2], Step("Diagnosis", "What?", ("Cold", "Mass", "Effusion", "Nodule"))))
    assert judge_normal(LABELS, LABELS, unnamed) == {}
    assert describe_normal({"models": {"student": {"consistency": {"normal": {}, "intervals": None}}}}) == []


@pytest.mark.parametrize("num_cases", [0, 4])
def test_fewer_than_two_patients_have_figures_without_ends(num_cases):
    found = run(make_split(6, num_cases=num_cases, num_patients=1, missing=0))
    for path, value, interval in with_intervals(found):
        assert interval == {"value": value, "low": None, "high": None, "undefined": 1.0}
        if path[0] != "answer_set_coverage_by_answer":  # four cases do not have every answer
            assert (value is None) == (num_cases == 0)
    json.dumps(found, allow_nan=False)


def test_it_is_strict_json_where_a_step_has_no_answer_at_all():
    labels = LABELS.copy()
    labels[:, 1] = NOT_ANNOTATED
    found = run(SPLIT.change(labels=labels))
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    step = found["models"]["student"]["steps"]["Distribution"]
    assert step["ece"] is None
    assert step["intervals"]["ece"] == {"value": None, "low": None, "high": None, "undefined": 1.0}
    assert step["intervals"]["accuracy_of_the_surest"]["50%"]["low"] is None
    assert step["answer_set_coverage_by_answer"] == {"Focal": None, "Diffuse": None, "N/A": None}
    assert found["num_cases_by_answer"]["Distribution"] == {"Focal": 0, "Diffuse": 0, "N/A": 0}
    assert found["models"]["student"]["consistency"]["intervals"]["share_inconsistent"]["high"] is not None
    assert found["intervals"][TRUE_CHAINS]["value"] is None


MIXED = make_split(0, num_cases=120, num_patients=60)
SUBGROUPS = score_subgroups(MIXED, CHAIN, num_resamples=30)


def test_every_case_is_in_one_group_of_each_grouping():
    for grouping in GROUPINGS:
        assert sum(group.num_cases for group in SUBGROUPS if group.grouping == grouping) == 120
    assert {group.models is None for group in SUBGROUPS} == {True, False}
    assert all((group.models is None) == (group.num_patients < 10) for group in SUBGROUPS)
    names = {grouping: [group.name for group in SUBGROUPS if group.grouping == grouping] for grouping in GROUPINGS}
    assert names == {
        "origin": ["Ward A", "Ward B"],
        "view": ["AP", "PA", UNKNOWN],
        "sex": ["F", "M", UNKNOWN],
        "age": ["0-17", "18-39", "40-64", "65+", UNKNOWN],
    }
    bands = [UNKNOWN, "0-17", "0-17", "18-39", "18-39", "40-64", "40-64", "65+", "65+"]
    assert list(map(age_band, ("", "0", "17.99", "18", "39.9", "40", "64", "65.0", "150"))) == bands
    patients = MIXED.facts["patient_id"]
    ten = MIXED.take(np.isin(patients, np.unique(patients)[:10]))
    ten.facts["origin"][:] = "Ward A"
    (group,) = (group for group in score_subgroups(ten, CHAIN, num_resamples=2) if group.grouping == "origin")
    assert (group.num_patients, group.models is None) == (10, False)


def test_a_group_has_the_figures_of_its_cases_alone():
    group = next(group for group in SUBGROUPS if group.name == "F")
    alone = MIXED.take(MIXED.facts["sex"] == "F")
    assert group.num_cases == len(alone.predictions.index)
    assert group.num_patients == len(set(alone.facts["patient_id"]))
    for model, expected in evaluate(alone.predictions, CHAIN).items():
        found = group.models[model]
        assert found.mean_accuracy.value == expected.mean_accuracy
        assert found.steps[2].auc.value == expected.steps[2].auc
        assert found.mean_accuracy.low < found.mean_accuracy.value < found.mean_accuracy.high


def test_means_of_all_groups_are_over_the_steps_of_the_whole_split():
    labels = MIXED.predictions.labels.copy()
    of_women = MIXED.facts["sex"] == "F"
    labels[of_women, 0] = 0  # one answer among women, two or more among men
    labels[:, 1] = np.where(labels[:, 1] < 0, labels[:, 1], 1)  # one answer in the whole split
    groups = score_subgroups(MIXED.change(labels=labels), CHAIN, num_resamples=2)
    for group in (group for group in groups if group.grouping == "sex"):
        for found in group.models.values():
            counted = [step.accuracy.value for place, step in enumerate(found.steps) if place != 1]
            assert found.mean_accuracy.value == pytest.approx(np.mean(counted))
