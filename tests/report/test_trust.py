"""The sections on calibration and consistency: what the answer sets promise, and the rules that were not applied."""

import re

import numpy as np
import pytest
from evaluation.small_splits import CHAIN, make_split

from stepcot_jax.chain import DEFAULT_CHAIN
from stepcot_jax.evaluation.calibration import answer_sets, calibrated_probabilities, fit_calibration
from stepcot_jax.evaluation.consistency import count_pairs, write_pairs
from stepcot_jax.reading.finished import FinishedRun
from stepcot_jax.run.stored_reading import PAIRS_FILE
from stepcot_jax.tools.report.sections import Plausibility, write_calibration_section

VAL, TEST = make_split(3, num_cases=200), make_split(4, num_cases=100)


def finished(workdir, chain=CHAIN, calibration=None):
    return FinishedRun(
        workdir=workdir, settings=None, chain=chain, entries=(), report={}, split=TEST, calibration=calibration
    )


@pytest.mark.parametrize(
    ("by", "promise"),
    [("step", "90 % of all cases together, not of each answer"), ("answer", "90 % of the cases of each answer")],
)
def test_the_promise_of_the_sets_is_true_and_every_answer_has_its_coverage(tmp_path, by, promise):
    calibration = fit_calibration(VAL.predictions, CHAIN, coverage_by=by)
    section = write_calibration_section(finished(tmp_path, calibration=calibration))
    assert f"Answer sets aim to hold the true answer in {promise}." in section.lead
    logits, labels = TEST.predictions.logits["student"], TEST.predictions.labels
    probabilities = calibrated_probabilities(logits, "student", calibration, CHAIN)
    sets = answer_sets(probabilities, "student", calibration, CHAIN)[:, 2]
    page = section.body[section.body.index("<h3>Student</h3>") :]
    for answer, option in enumerate(CHAIN.steps[2].options):
        own = labels[:, 2] == answer
        row = rf"Diagnosis</th><td>{option}</td><td>{own.sum()}</td><td>{100 * sets[own, answer].mean():.1f}</td>"
        assert re.search(row, page), row


def test_without_calibration_there_is_no_coverage(tmp_path):
    section = write_calibration_section(finished(tmp_path))
    assert "fitted no temperatures" in section.lead
    assert "true answer" not in section.body


def test_a_rule_that_the_chains_contradict_is_said_not_to_be_applied(tmp_path):
    labels = np.array([[0, 3, 5, 6, 4, 6, 1]] * 50)
    write_pairs(tmp_path / PAIRS_FILE, count_pairs(labels, DEFAULT_CHAIN), DEFAULT_CHAIN)
    plausibility = Plausibility.of_run(finished(tmp_path, DEFAULT_CHAIN))
    assert plausibility.source.endswith(
        "Not applied: 'No abnormality' does not settle Diagnosis as 'Normal': "
        "50 of 50 training chains have another answer."
    )
    assert plausibility.broken_rules(labels) == [""] * 50
