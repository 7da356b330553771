import dataclasses

import msgspec
import numpy as np
import pytest
from evaluation.small_splits import of_arrays
from refusals import refuse
from report.finished_workdir import RIVAL

from stepcot_jax.chain import Chain, Step
from stepcot_jax.evaluation.gate import fit_gate
from stepcot_jax.evaluation.predictions import write_predictions
from stepcot_jax.export.model_card import list_files, write_card
from stepcot_jax.host.own_folder import save, save_arrays
from tests.export import random_run


def write(run, name="student"):
    folder = run.workdir / "out"
    folder.mkdir(exist_ok=True)
    return write_card(run, {name: 5000}, {"models": {}, "platforms": ["cpu"]}, folder)


@pytest.fixture
def run(tmp_path):
    return random_run.make_run(tmp_path)


def test_it_says_what_everybody_must_know(run):
    card = write(run)
    assert card.startswith("---\nlibrary_name: stepcot-jax\n")
    assert "\n---\n\n# Model card: Step-CoT, student\n" in card
    known = ("**Not a medical device.**", "## Limits", "student 5,000", "no patients")
    for words in (*known, "had written no report", "had measured nothing"):
        assert words in card
    assert "| student | 2.00 | 0.50 | 1.25 |" in card
    assert "best updates teacher 845, student 910" in card
    assert "## Operating points\n\nNone: the run chose none." in card
    assert "No gate was fitted" in card
    features = np.random.default_rng(1).normal(size=(60, 16)).astype(np.float32)
    save_arrays(run.workdir / "gate.npz", {"student": fit_gate(features[:40], features[40:], false_alarms=0.05)})
    assert "`gate_scores` above 1 in load.py" in write(run)


def test_intervals_come_from_the_predictions(run):
    random_run.write_report(run)
    rng = np.random.default_rng(0)
    num_cases = 60
    labels = np.stack([rng.integers(0, count, num_cases) for count in run.chain.answers_per_step], axis=1)
    logits = rng.normal(size=(num_cases, 3, 5)).astype(np.float32)
    # The middle step is always right, so that its interval is known.
    logits[np.arange(num_cases), 1, labels[:, 1]] += 100
    patients = [f"p{case}" for case in range(num_cases)]
    split = of_arrays(labels, {"student": logits}, case_id=patients, patient_id=patients)
    write_predictions(run.workdir / "predictions" / "test.npz", split, run.chain)
    report = {"num_cases": {"train": 300, "val": 40, "test": 41}, "heads": msgspec.to_builtins(RIVAL)}
    save(run.workdir / "report.json", report)
    card = write(run)
    assert (
        "\n&lt;heads> (%): mean step accuracy 50.0 [40.0, 60.0], Diagnosis 25.0. teacher less the heads (points): mean "
        "step accuracy +10.0 [-1.0, +20.0], Diagnosis -. These heads, fitted on 9,000 training cases, are weaker; "
    ) in card
    assert "Cases: train 300, val 40, test 41." in card
    assert "With 95 % intervals" in card
    assert "| Side | 60 | 100.0 [100.0, 100.0] |" in card
    right = 100 * (logits[:, 2, :2].argmax(axis=1) == labels[:, 2]).mean()
    assert f"| Diagnosis | 60 | {right:.1f} [" in card
    majority = 100 * np.mean([np.bincount(own).max() for own in labels.T]) / num_cases
    assert f"(most frequent answers: {majority:.1f}); all steps right: " in card
    assert "teacher: not measured." in write_card(
        run, {"teacher": 1}, {"models": {}, "platforms": []}, run.workdir / "out"
    )


def test_names_from_the_data_stay_text(run):
    chain = Chain((Step("A|B\n# <script>alert(1)</script>", "?", ("yes", "no")), *run.chain.steps[1:]))
    run = dataclasses.replace(run, chain=chain)
    card = write(run)
    assert "<script" not in card
    assert "A\\|B # &lt;script>alert(1)&lt;/script>" in card


def test_a_damaged_report_is_refused(run):
    for content in ("{", "[]", '{"num_cases": []}'):
        (run.workdir / "report.json").write_text(content)
        refuse(r"report\.json: ", write, run)


def test_every_file_has_its_line_in_the_order_of_the_table_and_an_unknown_one_stops_the_export(tmp_path):
    for name in ("labels.json", "load.py", "a.stablehlo"):
        (tmp_path / name).touch()
    table = list_files(tmp_path, {"a.stablehlo": "the network", "labels.json": "questions"})
    assert table.splitlines() == [
        "| `load.py` | the loader |",
        "| `a.stablehlo` | the network |",
        "| `labels.json` | questions |",
        "| `SHA256SUMS` | digests of all files (`sha256sum -c SHA256SUMS`) |",
    ]
    (tmp_path / "stray").touch()
    refuse("no description of stray", list_files, tmp_path, {"a.stablehlo": "the network"}, error=ValueError)
