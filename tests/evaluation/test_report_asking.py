"""Expected information against sums over all reports, and figures after true answers."""

import itertools

import numpy as np
import pytest
from evaluation.test_joint_reports import CHAIN, LOGITS, MODEL, SIZES, TREE, N, draw_labels
from oracles.report_sums import condition, list_reports, report_probabilities, step_shares

from stepcot_jax.evaluation.interventions import entropy
from stepcot_jax.evaluation.joint import as_evidence
from stepcot_jax.evaluation.report_asking import ask_in_turn, expected_information, format_asking, measure_asking


def information(weights, question, told):
    """Sum over steps not told of I(question's answers; step), by sums over all reports."""
    answers = list_reports(CHAIN)[:, question]
    now = entropy(step_shares(CHAIN, weights))
    for answer in np.unique(answers, axis=0):
        chosen = np.where((answers == answer).all(axis=1), weights, 0)
        now -= chosen.sum() * entropy(step_shares(CHAIN, chosen / max(chosen.sum(), 1e-300)))
    return now[told == N].sum()


@pytest.mark.parametrize("told", [{}, {0: 0}, {0: 0, 1: 0}, {0: 0, 1: 0, 5: 2}, {0: 1, 7: 0}])
def test_expected_information_is_that_of_all_reports(told):
    labels = np.array([told.get(step, N) for step in range(8)])
    given = as_evidence(labels, SIZES)
    weights = report_probabilities(TREE, MODEL.calibrate(LOGITS)[2], MODEL.coupling)
    weights = condition(CHAIN, weights, given)
    gains = expected_information(MODEL.join(LOGITS[2:3]), given)
    for question, gain in zip(CHAIN.questions, gains, strict=True):
        opened = CHAIN.steps[question[0]].asked_if
        if labels[question[0]] != N or (opened and told.get(opened[0]) != opened[1]):
            assert gain == -np.inf
        else:
            exact = information(weights, list(question), labels)
            assert gain <= exact + 1e-6
            assert gain == pytest.approx(exact, abs=1e-6 if len(question) == 1 else 0.05)


def test_questions_are_asked_as_answers_open_them():
    truth = np.array([0, 0, 0, 1, 1, 2, 1, 1])
    read, rng = MODEL.join(LOGITS[:1]), np.random.default_rng(0)
    in_order = [given for _, given in ask_in_turn("tree order", read, truth, range(9), rng=rng)]
    asked = [np.flatnonzero(after & ~before).tolist() for before, after in itertools.pairwise(in_order)]
    assert asked == [[0], [1], [2, 3, 4], [5], [6], [7], [], []]
    ((_, first),) = ask_in_turn("information", read, truth, [1], rng=rng)
    gains = expected_information(read, np.zeros((8, 3)))
    assert np.flatnonzero(first).tolist() == list(CHAIN.questions[int(gains.argmax())])


def test_figures_after_true_answers():
    labels = draw_labels(12, seed=9)
    logits = np.random.default_rng(0).normal(size=(12, 8, 3))
    patients = np.array([f"p{case}" for case in range(12)])
    rows = measure_asking({"form": (MODEL, logits)}, labels, patients, counts=(0, 8), num_resamples=20)
    assert [(row.way, row.number) for row in rows] == [
        (way, number) for way in ("information", "tree order", "random") for number in (0, 8)
    ]
    for none, every in zip(rows[::2], rows[1::2], strict=True):
        assert none.f1.value < every.f1.value == every.report_accuracy.value == 1
        assert none.unasked_accuracy < 0.9
        assert np.isnan(every.unasked_accuracy)
        assert none.f1 == rows[0].f1
    table = format_asking(rows)
    assert (len(table), table[-1]) == (8, "| form | random | 8 | 100.0 [100.0, 100.0] | 100.0 [100.0, 100.0] | - |")
