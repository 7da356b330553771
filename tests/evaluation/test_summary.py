"""statistics.json: every figure has its own interval, and the file is strict JSON."""

import dataclasses
import json
import math
import time

import numpy as np
import pytest
from evaluation.small_splits import CHAIN, make_split
from scipy.special import softmax

from stepcot_jax.chain import DEFAULT_CHAIN, NOT_ANNOTATED
from stepcot_jax.evaluation.calibration import answer_sets, calibrated_probabilities, fit_calibration, step_reliability
from stepcot_jax.evaluation.chains import bootstrap, step_metrics
from stepcot_jax.evaluation.consistency import count_pairs, decoding_effect, make_rules
from stepcot_jax.evaluation.predictions import FACTS, Predictions, SplitPredictions
from stepcot_jax.evaluation.statistics import as_plain, resample
from stepcot_jax.evaluation.summary import describe, prepare_statistics, summarise

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
    effects = decoding_effect(SPLIT.predictions, CHAIN, RULES)
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
        assert found["consistent_decoding"]["chain_accuracy_after"] == effects[model]["chain_accuracy_after"]
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


def test_differences_of_decoding_are_paired(summary):
    for model in summary["models"].values():
        effect = model["consistent_decoding"]
        for kind in ("mean_accuracy", "chain_accuracy"):
            difference, before, after = (
                effect["intervals"][f"{kind}_{name}"] for name in ("difference", "before", "after")
            )
            assert difference["value"] == pytest.approx(after["value"] - before["value"])
            assert difference["low"] <= difference["value"] <= difference["high"]
        for position, difference in enumerate(effect["intervals"]["accuracy_difference"]):
            assert difference["value"] == effect["accuracy_after"][position] - effect["accuracy_before"][position]


def test_a_difference_has_the_same_resamples_on_both_sides():
    nothing, little = make_rules(CHAIN), make_rules(CHAIN)
    little.allowed[0, 2][0, 3] = False
    split = dataclasses.replace(
        SPLIT,
        predictions=dataclasses.replace(SPLIT.predictions, logits={"teacher": SPLIT.predictions.logits["teacher"]}),
    )
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
    scored = [group for group in summary["subgroups"] if group["mean_accuracy"] is not None]
    wards = {group["name"]: group for group in scored if group["grouping"] == "origin"}
    assert set(wards) == {"Ward A", "Ward B"}
    chosen = SPLIT.facts["origin"] == "Ward A"
    for model, steps in wards["Ward A"]["steps"].items():
        assert list(steps) == [step.name for step in CHAIN.steps]
        answers = SPLIT.predictions.logits[model].argmax(axis=2)
        for position, step in enumerate(steps.values()):
            labels = SPLIT.predictions.labels[chosen, position]
            known = labels != NOT_ANNOTATED
            assert step["num_cases"] == known.sum()
            assert step["accuracy"]["value"] == (answers[chosen, position] == labels)[known].mean()
            logits = SPLIT.predictions.logits[model][chosen, position, : CHAIN.steps[position].num_answers]
            expected = step_metrics(
                step=CHAIN.steps[position], probabilities=softmax(logits.astype(float), axis=1), labels=labels
            )
            assert step["auc"]["value"] == expected.auc
            for figure in ("accuracy", "auc"):
                assert step[figure]["low"] <= step[figure]["value"] <= step[figure]["high"]
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
    split = dataclasses.replace(SPLIT, predictions=dataclasses.replace(SPLIT.predictions, labels=labels))
    found = summarise(split, CHAIN, calibration=CALIBRATION, rules=RULES, num_resamples=20)
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
    split = dataclasses.replace(SPLIT, predictions=dataclasses.replace(SPLIT.predictions, labels=labels))
    found = summarise(split, CHAIN, calibration=CALIBRATION, rules=RULES, num_resamples=20)
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


def test_a_large_test_split_takes_seconds():
    rng = np.random.default_rng(0)
    labels = np.stack([rng.integers(0, step.num_answers, 1500) for step in DEFAULT_CHAIN.steps], axis=1)
    logits = {model: rng.normal(0, 1, (1500, 7, 9)).astype(np.float32) for model in ("teacher", "student")}
    split = SplitPredictions(
        Predictions(np.arange(1500, dtype=np.int32), labels.astype(np.int32), logits),
        {**{fact: np.array([""] * 1500) for fact in FACTS}, "patient_id": rng.integers(0, 1200, 1500).astype(np.str_)},
    )
    rules = make_rules(DEFAULT_CHAIN, counts=count_pairs(labels, DEFAULT_CHAIN))
    calibration = fit_calibration(split.predictions, DEFAULT_CHAIN)
    compute = prepare_statistics(split, DEFAULT_CHAIN, calibration=calibration, rules=rules)
    started = time.process_time()
    resample(compute, split.facts["patient_id"], num_resamples=1000, seed=0)
    assert time.process_time() - started < 20  # 1.2 s on an idle machine
