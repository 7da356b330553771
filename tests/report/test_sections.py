import json
import re

import numpy as np
import pytest
from evaluation.small_splits import CHAIN, make_split

from stepcot_jax.chain import Chain, Step
from stepcot_jax.evaluation.calibration import answer_sets, calibrated_probabilities, fit_calibration
from stepcot_jax.evaluation.counting import Counting, measure_corrections
from stepcot_jax.evaluation.operating_points import OperatingPoints, Rule
from stepcot_jax.reading.finished import FinishedRun, Report
from stepcot_jax.run.settings import load_settings
from stepcot_jax.tools.report import sections as tested

VAL, TEST = make_split(3, num_cases=200), make_split(4, num_cases=100)
_TEXT = ' class="text"'


def cell_of(text, kind=""):
    return f'<td{kind}><span class="value">{text}</span></td>'


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
    page = section.body[section.body.index("<summary>Student</summary>") :]
    for answer, option in enumerate(CHAIN.steps[2].options):
        own = labels[:, 2] == answer
        share = f"{100 * sets[own, answer].mean():.1f}"
        row = f"Diagnosis</th>{cell_of(option, _TEXT)}{cell_of(own.sum())}{cell_of(share)}"
        assert re.search(row, page), row


LISTENING = Chain(tuple(Step(name, f"{name}?", ("no", "<yes>", "N/A")) for name in ("First", "Second", "Third")))


def test_what_true_answers_add_stands_beside_the_baseline(tmp_path):
    measured = {"curves": {"plain, joint reading": [0.5, None, 0.6], "plain x naive Bayes": [0.25, 0.75, 1.0]}}
    (tmp_path / "statistics.json").write_text(json.dumps({"corrections": measured}), encoding="utf-8")
    (section,) = tested.write_shares(tmp_path, LISTENING)
    rows = [re.findall(r'scope="row">(.*?)</th>|class="value">(.*?)<', row) for row in section.body.split("<tr>")[2:]]
    assert [["".join(cell) for cell in row] for row in rows] == [
        ["plain, joint reading", "50.0", "-", "60.0"],
        ["plain x naive Bayes", "25.0", "75.0", "100.0"],
    ]
    nothing = measure_corrections({}, np.ones((1, 3), int), Counting("joint model", None, None), LISTENING)
    (tmp_path / "statistics.json").write_text(json.dumps({"corrections": nothing}), encoding="utf-8")
    assert not list(tested.write_shares(tmp_path, LISTENING))


def test_every_part_of_the_students_loss_has_a_line():
    logged = {"student/total": 4.0, "student/gradient_norm": 1.0, "teacher/hard_label": 2.0}
    logged |= {f"student/{part}{step}": 1.0 for part in ("hard_label", "mine") for step in ("", "/Diagnosis")}
    entries = [{"kind": "train", "step": epoch, "epoch": epoch, **logged} for epoch in range(2)]
    chart = tested.write_curves(entries).body.partition("Parts of the student")[2]
    assert re.findall(r"<text[^>]*>([a-z ]+)</text>", chart) == ["epoch", "loss", "answers", "mine"]


ALWAYS = {"run", "data", "image_encoder", "training", "loggers", "parallel", "evaluation"}
FOLDER = {"data.source": "folder", "data.root": "a"}
FROZEN = {"image_encoder.name": "pretrained", "image_encoder.weights": "clip"}
QUESTIONS = {"vqa.source": "folder", "vqa.root": "a"}


@pytest.mark.parametrize(
    ("config", "changes", "expected"),
    [
        ("quickstart", {}, "phantom prompts teacher student loss start"),
        ("quickstart", {"job": "teacher", "teacher.text": False}, "phantom teacher loss start"),
        ("quickstart", FOLDER | FROZEN, "prompts features teacher student loss start"),
        ("quickstart", {"job": "own"}, "phantom prompts"),
        ("plain", FOLDER, "baseline loss"),
        ("plain", {"baseline.form": "student"}, "phantom student baseline loss"),
        ("vqa_quickstart", {"job": "sft"}, "phantom vqa policy sft"),
        ("vqa_quickstart", QUESTIONS | {"self_check.enabled": True}, "vqa policy sft grpo rewards self_check"),
        ("medclm", {"vqa.root": "a"}, "vqa policy sft curriculum"),
    ],
)
def test_settings_shown_are_those_that_the_job_reads(config, changes, expected):
    body = tested.write_settings(load_settings(config, **changes), Report()).body
    assert set(re.findall(r'scope="row">(\w+)</th>', body)) == ALWAYS | set(expected.split())
