"""statistics.json: every figure has its own interval, and the file is strict JSON."""

import json
import math

import numpy as np
import pytest
from evaluation.small_splits import CHAIN, change, make_split, take

from stepcot_jax.chain import NOT_ANNOTATED
from stepcot_jax.evaluation.calibration import answer_sets, calibrated_probabilities, fit_calibration, step_reliability
from stepcot_jax.evaluation.chains import bootstrap, evaluate
from stepcot_jax.evaluation.consistency import answer_and_decode, decoding_figures, make_rules
from stepcot_jax.evaluation.statistics import as_plain, count_once
from stepcot_jax.evaluation.summary import describe, summarise

SPLIT = make_split(3, num_cases=120, num_patients=50)
CALIBRATION = fit_calibration(make_split(4, num_cases=120).predictions, CHAIN)
RULES = make_rules(CHAIN)
RULES.allowed[0, 1][0, 1] = RULES.allowed[0, 2][1, 0] = RULES.allowed[1, 2][2, 3] = False
TRUE_CHAINS = "share_of_true_chains_that_break_a_rule"
INTERVAL = {"value", "low", "high", "undefined"}


@pytest.fixture(scope="module")
def summary():
    return summarise(SPLIT, CHAIN, calibration=CALIBRATION, rules=RULES, num_resamples=300)


def leaves(tree, path=()):
    """Every number of a tree by its path; sequences by position."""
    if isinstance(tree, dict | list | tuple):
        for name, own in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from leaves(own, (*path, name))
    else:
        yield path, tree


def find(tree, path):
    for name in path:
        tree = tree[name]
    return tree


def beside_intervals(tree):
    """Every mapping that has intervals, with those intervals by figure name."""
    yield {TRUE_CHAINS: tree[TRUE_CHAINS]}, tree["intervals"]
    for model in tree["models"].values():
        for own in (*model["steps"].values(), model["consistent_decoding"]):
            yield {name: value for name, value in own.items() if name != "intervals"}, own["intervals"]


def test_every_figure_has_an_interval_of_its_own_value(summary):
    num_figures = 0
    for figures, intervals in beside_intervals(summary):
        for path, value in leaves(figures):
            interval = find(intervals, path)
            assert set(interval) == INTERVAL, path
            assert interval["value"] == value, path
            assert interval["low"] <= interval["high"], path
            assert interval["undefined"] == 0, path
            if path[0] not in ("ece", "ece_calibrated"):  # resamples are biased upwards: resampling adds noise
                assert interval["low"] <= value <= interval["high"], path
            num_figures += 1
    # Of the labels, and for each of 2 models 3 steps of 8 figures and 4 shares, coverage by 2 + 3 + 4 answers, and
    # decoding of 6 and 2 for 3 steps.
    assert num_figures == 1 + 2 * (3 * 12 + 9 + 6 + 6)


def test_coverage_by_answer_is_that_of_the_cases_with_it(summary):
    labels = SPLIT.predictions.labels
    for position, step in enumerate(CHAIN.steps):
        counts = {option: int((labels[:, position] == answer).sum()) for answer, option in enumerate(step.options)}
        assert summary["num_cases_by_answer"][step.name] == counts
        for model, logits in SPLIT.predictions.logits.items():
            probabilities = calibrated_probabilities(logits, model, CALIBRATION, CHAIN)
            sets = answer_sets(probabilities, model, CALIBRATION, CHAIN)[:, position]
            found = summary["models"][model]["steps"][step.name]
            by_answer = found["answer_set_coverage_by_answer"]
            for answer, option in enumerate(step.options):
                assert by_answer[option] == sets[labels[:, position] == answer, answer].mean()
            together = sum(by_answer[option] * count for option, count in counts.items()) / sum(counts.values())
            assert found["answer_set_coverage"] == pytest.approx(together)
    assert len(set(summary["models"]["student"]["steps"]["Diagnosis"]["answer_set_coverage_by_answer"].values())) > 1


def test_values_are_those_of_the_plain_functions(summary):
    raw = step_reliability(SPLIT.predictions, CHAIN)
    scaled = step_reliability(SPLIT.predictions, CHAIN, calibration=CALIBRATION)
    for model, found in summary["models"].items():
        for position, step in enumerate(found["steps"].values()):
            for name, expected in (
                ("ece", raw[model][position].ece),
                ("ece_calibrated", scaled[model][position].ece),
                ("brier", raw[model][position].brier),
                ("nll", raw[model][position].nll),
                ("nll_calibrated", scaled[model][position].nll),
            ):
                assert step[name] == expected
        before, after = answer_and_decode(SPLIT.predictions, CHAIN, RULES, model=model)
        effect = decoding_figures(
            count_once(120), before=before, after=after, labels=SPLIT.predictions.labels, rules=RULES
        )
        assert found["consistent_decoding"]["chain_accuracy_after"] == effect["chain_accuracy_after"]
        known = SPLIT.predictions.labels[:, 0] != NOT_ANNOTATED
        right = (SPLIT.predictions.logits[model][:, 0].argmax(axis=1) == SPLIT.predictions.labels[:, 0])[known]
        assert found["steps"]["Detection"]["accuracy_of_the_surest"]["100%"] == right.mean()


def test_they_are_the_resamples_of_the_metrics(summary):
    """Accuracy before decoding equals the metrics' accuracy from other code, intervals included."""
    metrics = bootstrap(SPLIT, CHAIN, num_resamples=300)
    for model, found in summary["models"].items():
        decoding = found["consistent_decoding"]["intervals"]
        pairs = [
            (decoding["mean_accuracy_before"], metrics[model].mean_accuracy),
            (decoding["chain_accuracy_before"], metrics[model].chain_accuracy),
            *zip(decoding["accuracy_before"], (step.accuracy for step in metrics[model].steps), strict=True),
            *(
                (step["intervals"]["accuracy_of_the_surest"]["100%"], own.accuracy)
                for step, own in zip(found["steps"].values(), metrics[model].steps, strict=True)
            ),
        ]
        for interval, expected in pairs:
            assert interval == pytest.approx(as_plain(expected))


def test_differences_of_decoding_have_the_same_resamples_on_both_sides(summary):
    for model in summary["models"].values():
        effect = model["consistent_decoding"]
        for kind in ("mean_accuracy", "chain_accuracy"):
            value = {name: effect["intervals"][f"{kind}_{name}"]["value"] for name in ("difference", "before", "after")}
            assert value["difference"] == pytest.approx(value["after"] - value["before"])
        for position, difference in enumerate(effect["intervals"]["accuracy_difference"]):
            assert difference["value"] == effect["accuracy_after"][position] - effect["accuracy_before"][position]
    nothing, little = make_rules(CHAIN), make_rules(CHAIN)
    little.allowed[0, 2][0, 3] = False
    split = change(SPLIT, logits={"teacher": SPLIT.predictions.logits["teacher"]})
    same, near = (
        summarise(split, CHAIN, calibration=CALIBRATION, rules=rules, num_resamples=100)["models"]["teacher"][
            "consistent_decoding"
        ]
        for rules in (nothing, little)
    )
    zero = {"value": 0.0, "low": 0.0, "high": 0.0, "undefined": 0.0}
    for kind in ("mean_accuracy", "chain_accuracy"):
        assert same["intervals"][f"{kind}_difference"] == zero
        width, *apart = (
            near["intervals"][f"{kind}_{name}"]["high"] - near["intervals"][f"{kind}_{name}"]["low"]
            for name in ("difference", "before", "after")
        )
        assert 0 < width < 0.7 * math.hypot(*apart)  # the value with separate resamples per side
    assert same["intervals"]["accuracy_difference"] == [zero] * 3
    assert near["share_changed"] > 0


def test_subgroups_have_accuracy_and_auc_of_each_step(summary):
    wards = {group["name"]: group for group in summary["subgroups"] if group["grouping"] == "origin"}
    assert set(wards) == {"Ward A", "Ward B"}
    for model, expected in evaluate(take(SPLIT, SPLIT.facts["origin"] == "Ward A").predictions, CHAIN).items():
        for step, own in zip(wards["Ward A"]["steps"][model].items(), expected.steps, strict=True):
            name, found = step
            assert (name, found["num_cases"]) == (own.name, own.num_cases)
            for figure in ("accuracy", "auc"):
                assert found[figure]["value"] == getattr(own, figure)
                assert found[figure]["low"] <= found[figure]["value"] <= found[figure]["high"]
    few = [group for group in summary["subgroups"] if group["mean_accuracy"] is None]
    assert all(group["steps"] is None and group["num_patients"] < 10 for group in few)
    assert few


def test_no_resamples_leave_the_figures_and_no_intervals(summary):
    plain = summarise(SPLIT, CHAIN, calibration=CALIBRATION, rules=RULES, num_resamples=0)
    assert plain["subgroups"] is None
    assert plain["intervals"] is None
    for model, found in plain["models"].items():
        assert found["intervals"] is None
        for name, step in found["steps"].items():
            assert step == {**summary["models"][model]["steps"][name], "intervals": None}
        assert found["consistent_decoding"]["intervals"] is None
    assert [line.count("%") for line in describe(plain, decoded=True)] == [3, 3]
    assert len(describe(summary, decoded=True)) == 4


def test_a_step_with_one_answer_leaves_the_mean_and_the_majority_stands_beside_it():
    labels = SPLIT.predictions.labels.copy()
    labels[:, 1] = np.where(labels[:, 1] == NOT_ANNOTATED, NOT_ANNOTATED, 2)
    found = summarise(change(SPLIT, labels=labels), CHAIN, calibration=CALIBRATION, rules=RULES, num_resamples=20)
    assert found["steps_with_one_answer"] == ["Distribution"]
    first, *lines = describe(found, decoded=False)
    assert first == "every test case has the same answer at Distribution: not in the mean over the steps"
    majority = np.mean([np.bincount(own[own >= 0]).max() / (own >= 0).sum() for own in labels.T[[0, 2]]])
    for model, line in zip(("teacher", "student"), lines, strict=True):
        right = SPLIT.predictions.logits[model].argmax(axis=2) == labels
        mean = np.mean([right[labels[:, step] >= 0, step].mean() for step in (0, 2)])
        assert found["models"][model]["intervals"]["mean_accuracy"]["value"] == pytest.approx(mean)
        assert found["models"][model]["mean_majority_accuracy"] == pytest.approx(majority)
        assert line.startswith(f"{model}: mean step accuracy {100 * mean:.1f} %")
        assert line.endswith(f"; most frequent answers {100 * majority:.1f} %")
        effect = found["models"][model]["consistent_decoding"]
        assert effect["mean_accuracy_before"] == pytest.approx(mean)


@pytest.mark.parametrize("num_cases", [0, 4])
def test_fewer_than_two_patients_have_figures_without_ends(num_cases):
    split = make_split(6, num_cases=num_cases, num_patients=1, missing=0)
    found = summarise(split, CHAIN, calibration=CALIBRATION, rules=RULES, num_resamples=10)
    for figures, intervals in beside_intervals(found):
        for path, value in leaves(figures):
            assert find(intervals, path) == {"value": value, "low": None, "high": None, "undefined": 1.0}
            if path[0] != "answer_set_coverage_by_answer":  # four cases do not have every answer
                assert (value is None) == (num_cases == 0)
    json.dumps(found, allow_nan=False)


def test_it_is_strict_json_where_a_step_has_no_answer_at_all():
    labels = SPLIT.predictions.labels.copy()
    labels[:, 1] = NOT_ANNOTATED
    found = summarise(change(SPLIT, labels=labels), CHAIN, calibration=CALIBRATION, rules=RULES, num_resamples=20)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    step = found["models"]["student"]["steps"]["Distribution"]
    assert step["ece"] is None
    assert step["intervals"]["ece"] == {"value": None, "low": None, "high": None, "undefined": 1.0}
    assert step["intervals"]["accuracy_of_the_surest"]["50%"]["low"] is None
    assert step["answer_set_coverage_by_answer"] == {"Focal": None, "Diffuse": None, "N/A": None}
    assert found["num_cases_by_answer"]["Distribution"] == {"Focal": 0, "Diffuse": 0, "N/A": 0}
    decoding = found["models"]["student"]["consistent_decoding"]["intervals"]
    assert decoding["accuracy_difference"][1]["high"] is None
    assert decoding["mean_accuracy_difference"]["high"] is not None
    assert found["intervals"][TRUE_CHAINS]["value"] is None
