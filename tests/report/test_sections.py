"""Sections of the page: what answer sets promise, rules that were not applied, and corrections."""

import json
import re

import numpy as np
import pytest
from evaluation.small_splits import CHAIN, make_split

from stepcot_jax.chain import DEFAULT_CHAIN, NOT_ANNOTATED, Chain, Step
from stepcot_jax.evaluation.calibration import answer_sets, calibrated_probabilities, fit_calibration
from stepcot_jax.evaluation.consistency import count_pairs, write_pairs
from stepcot_jax.evaluation.counting import Counting, measure_corrections
from stepcot_jax.evaluation.operating_points import OperatingPoints, Rule
from stepcot_jax.reading.finished import FinishedRun
from stepcot_jax.run.stored_reading import PAIRS_FILE
from stepcot_jax.tools.report import sections as tested

VAL, TEST = make_split(3, num_cases=200), make_split(4, num_cases=100)


def finished(workdir, chain=CHAIN, calibration=None):
    return FinishedRun(workdir, None, chain, (), {}, TEST, calibration, OperatingPoints(Rule(), {}))


def test_the_promise_of_the_sets_is_true_and_every_answer_has_its_coverage(tmp_path):
    calibration = fit_calibration(VAL.predictions, CHAIN)
    section = tested.write_calibration_section(finished(tmp_path, calibration=calibration))
    promise = "Answer sets aim to hold the true answer in 90 % of all cases together, not of each answer."
    assert promise in section.lead
    logits, labels = TEST.predictions.logits["student"], TEST.predictions.labels
    probabilities = calibrated_probabilities(logits, "student", calibration, CHAIN)
    sets = answer_sets(probabilities, "student", calibration, CHAIN)[:, 2]
    page = section.body[section.body.index("<h3>Student</h3>") :]
    for answer, option in enumerate(CHAIN.steps[2].options):
        own = labels[:, 2] == answer
        row = rf"Diagnosis</th><td>{option}</td><td>{own.sum()}</td><td>{100 * sets[own, answer].mean():.1f}</td>"
        assert re.search(row, page), row


def test_a_rule_that_the_chains_contradict_is_said_not_to_be_applied(tmp_path):
    labels = np.array([[0, 3, 5, 6, 4, 6, 1]] * 50)
    write_pairs(tmp_path / PAIRS_FILE, count_pairs(labels, DEFAULT_CHAIN))
    plausibility = tested.Plausibility.of_run(finished(tmp_path, DEFAULT_CHAIN))
    assert plausibility.source.endswith(
        "Not applied: 'No abnormality' does not settle Diagnosis as 'Normal': "
        "50 of 50 training chains have another answer."
    )
    assert plausibility.broken_rules(labels) == [""] * 50


LISTENING = Chain(tuple(Step(name, f"{name}?", ("no", "<yes>", "N/A")) for name in ("First", "Second", "Third")))


def follow(given):
    """A network that answers "no" first, then repeats the previous step's answer, given or predicted."""
    answers = np.zeros_like(given)
    for step in range(1, given.shape[1]):
        before = given[:, step - 1]
        answers[:, step] = np.where(before == tested.NOT_GIVEN, answers[:, step - 1], before)
    return certain(answers)


def certain(answers):
    """Probabilities: 0.8 for the network's answers, 0.1 for each other."""
    return 0.1 + 0.7 * np.eye(3)[answers]


def test_later_answers_that_follow_a_given_one_are_flips():
    truth = np.array([[1, 1, 0], [0, 0, 0], [NOT_ANNOTATED, 1, 1]])
    found = tested.read_corrections(follow, truth=truth, names=["a", "b", "c"])
    assert found.answers.shape == (3, 3, 3)
    expected = np.zeros((3, 3, 3), bool)
    expected[1, 0, 1:] = True  # given "yes" first, it answers "yes" twice
    expected[2, 2, 2] = True  # step 1 not annotated; "yes" given at step 2
    assert (found.flipped == expected).all()
    assert found.largest_shift == pytest.approx(0.7)


def test_what_changed_is_counted_for_better_and_worse():
    truth = np.array([[1, 1, 0], [0, 0, 0]])
    page = tested.write_corrections(tested.read_corrections(follow, truth=truth, names=["<a>", "b"]), LISTENING)
    assert "In 1 of 2 cases" in page
    assert "2 changes, 1 of them from wrong to right, 1 from right to wrong and 0 between" in page
    assert page.count('class="flipped"') == 2
    assert "&lt;a&gt;" in page
    assert "&lt;yes&gt;" in page
    assert "<yes>" not in page
    assert "<caption>b" not in page  # no flips there


def test_what_true_answers_add_stands_beside_the_baseline(tmp_path):
    measured = {"joined": {"teacher": [0.5, None]}, "without_picture": [0.25, 0.75], "baseline": "naive Bayes"}
    (tmp_path / "statistics.json").write_text(json.dumps({"corrections": measured}), encoding="utf-8")
    page = tested.write_shares(tmp_path, LISTENING)
    rows = [re.findall(r'scope="row">(.*?)</th>|<td>(.*?)</td>', row) for row in page.split("<tr>")[2:]]
    assert [["".join(cell) for cell in row] for row in rows] == [
        ["teacher, joint reading", "50.0", "\N{EN DASH}"],
        ["naive Bayes without the picture", "25.0", "75.0"],
    ]
    nothing = measure_corrections({}, np.ones((1, 3), int), Counting("joint model", None), LISTENING)
    (tmp_path / "statistics.json").write_text(json.dumps({"corrections": nothing}), encoding="utf-8")
    assert not tested.write_shares(tmp_path, LISTENING)


def test_a_network_that_does_not_listen_has_no_flips():
    truth = np.ones((2, 3), int)

    def lean(given):
        """Every given answer raises the last step's probability a little."""
        shares = certain(np.zeros_like(given))
        shares[:, -1, 0] += 0.01 * (given != tested.NOT_GIVEN).sum(axis=1)
        shares[:, 0, 0] += 0.2 * (given[:, 0] != tested.NOT_GIVEN)  # given, so not a later answer
        return shares

    found = tested.read_corrections(lean, truth=truth, names=["a", "b"])
    assert not found.flipped.any()
    assert found.largest_shift == pytest.approx(0.01)
    assert "In none of 2 cases" in tested.write_corrections(found, LISTENING)
