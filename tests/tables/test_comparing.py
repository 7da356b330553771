import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from tables.finished_cells import CHAIN, LABELS, NUM_CASES, make_split

from stepcot_jax.chain import NOT_ANNOTATED
from stepcot_jax.evaluation.comparison import AnswerComparison, Evidence, decide, word_verdicts
from stepcot_jax.evaluation.statistics import compare_accuracy, correct
from stepcot_jax.host.ranges import Interval


def evidence(values, low, high, *, num_patients=60, p=None):
    return Evidence(Interval(float(np.mean(values)), low, high), tuple(values), num_patients, p)


@pytest.mark.parametrize(
    ("values", "low", "high", "said"),
    [
        *(([0.15], 0.05, 0.3, "higher"), ([0.1, 0.2], 0.05, 0.3, "higher"), ([-0.1, -0.2], -0.28, -0.01, "lower")),
        *(([0.1, -0.01], 0.01, 0.08, "no difference shown"), ([math.nan], math.nan, math.nan, "no difference shown")),
        ([0.15, 0.14, 0.16], 0.05, 0.25, "higher"),
        ([0.4, 0.02, 0.03], 0.05, 0.25, "no difference shown"),  # one run of three carries it
    ],
)
def test_a_difference_inside_its_interval_or_that_of_the_runs_is_none(values, low, high, said):
    assert decide([evidence(values, low, high)]) == [said]
    mirrored = {"higher": "lower", "lower": "higher"}.get(said, said)
    assert decide([evidence([-value for value in values], -high, -low)]) == [mirrored]


@pytest.mark.parametrize(
    ("num_patients", "p", "said"),
    [
        *((9, 0.001, "too few patients"), (10, 0.001, "higher")),
        *((10, 0.05, "no difference shown"), (10, math.nan, "no difference shown")),
    ],
)
def test_an_interval_without_width_is_not_believed_of_few_patients_or_against_mcnemar(num_patients, p, said):
    assert decide([evidence([1.0], 1.0, 1.0, num_patients=num_patients, p=p)]) == [said]


def test_all_patients_alike_are_no_better_than_their_number():
    for count, said in ((25, "higher"), (26, "no difference shown")):  # 25 * 2 ** -9 < 0.05
        assert decide([evidence([1.0], 1.0, 1.0, num_patients=10)] * count) == [said] * count


@given(st.floats(0.001, 0.2), st.floats(0.01, 0.5))
def test_alone_and_of_one_run_the_p_is_that_of_the_interval(width, value):
    said = decide([evidence([value], value - width, value + width)])
    assert said == ["higher" if value - width > 1e-9 else "no difference shown"] or abs(value - width) < 1e-6


def test_patients_and_runs_add_up_and_many_questions_ask_for_more():
    """Each alone would show it, both together do not."""
    values = [0.05, 0.10, 0.15]
    error = np.std(values, ddof=1) / math.sqrt(3)
    ends = 0.1 - 1.959964 * 0.045, 0.1 + 1.959964 * 0.045
    total = math.hypot(0.045, error)
    expected = 2 * stats.t.sf(0.1 / total, 2 * (total / error) ** 4)
    assert 0.03 < expected < 0.1
    assert ends[0] > 0
    assert (decide([evidence(values, *ends)]) == ["higher"]) == (expected < 0.05)
    # Shown with the 23 degrees of freedom of both errors, not with the fewer of a smaller share of the runs'.
    assert decide([evidence([0.07, 0.12, 0.17], *(end + 0.02 for end in ends))]) == ["higher"]
    tighter = 0.1 - 1.959964 * 0.005, 0.1 + 1.959964 * 0.005
    assert decide([evidence([0.09, 0.1, 0.11], *tighter)]) == ["higher"]
    assert decide([evidence([0.01, 0.1, 0.19], *tighter)]) == ["no difference shown"]
    clear, weak = evidence([0.1], 0.06, 0.14), evidence([0.1], 0.01, 0.19)
    assert decide([clear, weak]) == ["higher", "higher"]
    assert decide([clear, *[weak] * 3]) == ["higher", *["no difference shown"] * 3]
    assert decide([weak, *[evidence([0.1], 0.01, 0.19, num_patients=3)] * 3])[0] == "higher"


@given(st.lists(st.floats(0, 1) | st.just(math.nan), max_size=8))
def test_holm_is_scipys_step_down(p_values):
    known = [(p, place) for place, p in enumerate(p_values) if not math.isnan(p)]
    found = correct(p_values)
    rejected, order = set(), sorted(known)
    for rank, (p, place) in enumerate(order):  # the definition: go down until the first that fails
        if p * (len(order) - rank) >= 0.05:
            break
        rejected.add(place)
    assert {place for _, place in known if found[place] < 0.05} == rejected
    assert all(math.isnan(found[place]) == math.isnan(p) for place, p in enumerate(p_values))


def test_two_patients_give_no_verdict_however_narrow_their_interval():
    """The first step is annotated in the two cases of two patients, where one model is right and the other wrong."""
    labels = LABELS.copy()
    labels[:, 0] = NOT_ANNOTATED
    labels[[0, 2], 0] = LABELS[[0, 2], 0]
    split = make_split({"right": 1.0, "wrong": 0.0}, labels=labels)
    split.predictions.logits["wrong"] -= 30 * (np.arange(9) == LABELS[..., None]).astype(np.float32)
    comparison = AnswerComparison([split], 60, chain=CHAIN)
    found = comparison.difference("right", "wrong", "accuracy", 0)
    assert (found.value, found.low, found.high) == (1, 1, 1)
    assert comparison.p_value("right", "wrong", "accuracy", 0) == 0.5
    assert comparison.num_patients("accuracy", 0) == 2
    # The mean counts that step as much as any other, a whole chain does not.
    for figure, place in (("accuracy", 0), ("auc", 0), ("mean_accuracy", None)):
        assert word_verdicts([comparison.evidence("right", "wrong", figure, place)]) == ["too few patients"]
    assert word_verdicts([comparison.evidence("right", "wrong", "chain_accuracy")]) == ["higher in this run"]
    assert comparison.num_patients("chain_accuracy") == NUM_CASES // 2


def test_verdicts_are_worded_for_the_training_runs():
    qualities = {"better": 0.9, "worse": 0.3}
    splits = [make_split(qualities, seed=seed) for seed in range(3)]
    for count, said in ((1, "lower in this run"), (2, "lower in both runs"), (3, "lower")):
        comparison = AnswerComparison(splits[:count], 60, chain=CHAIN)
        assert word_verdicts([comparison.evidence("worse", "better", "accuracy", 1)]) == [said]


def test_p_is_the_larger_of_two_runs_and_twice_the_median_of_three():
    splits = [make_split({"one": 0.6, "other": 0.45}, seed=seed) for seed in range(3)]
    each = []
    for split in splits:
        answers = {name: found[:, 2, : CHAIN.steps[2].num_answers].argmax(-1)
                   for name, found in split.predictions.logits.items()}  # fmt: skip
        each.append(compare_accuracy(labels=LABELS[:, 2], first=answers["one"], second=answers["other"]).exact_p)
    comparisons = [AnswerComparison(splits[:count], 60, chain=CHAIN) for count in (1, 2, 3)]
    found = [comparison.p_value("one", "other", "accuracy", 2) for comparison in comparisons]
    assert found == [each[0], max(each[:2]), min(1, 2 * sorted(each)[1])]
    unknown = make_split({"one": 0.6, "other": 0.45}, labels=np.full_like(LABELS, NOT_ANNOTATED))
    assert math.isnan(AnswerComparison([unknown], 60, chain=CHAIN).p_value("one", "other", "accuracy", 2))
