"""The text table and the JSON report."""

import json
import math

import numpy as np
import pytest

from stepcot_jax.chain import NOT_ANNOTATED, Chain, Step
from stepcot_jax.evaluation.chains import ModelMetrics, evaluate
from stepcot_jax.evaluation.predictions import Predictions
from stepcot_jax.evaluation.summary import format_table, report_dict
from stepcot_jax.host.files import write_json

CHAIN = Chain(
    (
        Step("Detection", "Anything?", ("No abnormality", "Increased opacity", "Mixed")),
        Step("Distribution", "How?", ("Focal", "Diffuse")),
        Step("Side", "Where?", ("Left", "Right")),
    )
)
LABELS = np.array([[0, 0, -100], [0, 0, -100], [1, 0, -100], [1, -100, -100]], np.int32)
NUM_CASES = {"train": 70, "val": 15, "test": 4}


def make_metrics() -> dict[str, ModelMetrics]:
    """Figures of a student and a teacher: one step without annotations, one with a single class."""
    teacher = np.zeros((4, 3, 3), np.float32)
    teacher[[0, 1, 2, 3], 0, [0, 0, 1, 0]] = [2, 3, 4, 1]
    student = np.zeros((4, 3, 3), np.float32)
    student[1, 1, 1] = 1
    return evaluate(Predictions(np.arange(4), LABELS, {"student": student, "teacher": teacher}), CHAIN)


def refuse_constant(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


TABLE = """\
teacher (%)       cases  accuracy  majority    AUC  sensitivity  specificity     F1  precision
----------------------------------------------------------------------------------------------
Detection             4      75.0      50.0  100.0         75.0         75.0   73.3       83.3
Distribution          3     100.0     100.0      -        100.0            -  100.0      100.0
----------------------------------------------------------------------------------------------
mean                         75.0      50.0  100.0         75.0         75.0   73.3       83.3
all annotated steps of a case correct: 75.0 (most frequent answers: 50.0)

student (%)       cases  accuracy  majority    AUC  sensitivity  specificity     F1  precision
----------------------------------------------------------------------------------------------
Detection             4      50.0      50.0   50.0         50.0         50.0   33.3       25.0
Distribution          3      66.7     100.0      -         66.7            -   80.0      100.0
----------------------------------------------------------------------------------------------
mean                         50.0      50.0   50.0         50.0         50.0   33.3       25.0
all annotated steps of a case correct: 25.0 (most frequent answers: 50.0)

Detection: left out of the macro averages because no case has them: Mixed
Distribution: left out of the macro averages because no case has them: Diffuse
Distribution: every case has the same answer, left out of the mean line
without labels, left out of the table: Side"""


def test_table_reads_as_intended():
    assert format_table(make_metrics()) == TABLE


def test_table_says_nothing_is_left_out_when_nothing_is():
    chain = Chain((Step("Side", "Where?", ("Left", "Right")),))
    predictions = Predictions(np.arange(2), np.array([[0], [1]]), {"teacher": np.zeros((2, 1, 2), np.float32)})
    last = format_table(evaluate(predictions, chain)).splitlines()[-1]
    assert last == "all annotated steps of a case correct: 50.0 (most frequent answers: 50.0)"


def test_long_names_and_many_absent_answers_stay_inside_the_width():
    options = tuple(f"A rather long option that no case of the test split has, number {n}" for n in range(9))
    chain = Chain((Step("Secondary effects and associated signs of disease", "Which?", options),))
    logits = np.random.default_rng(0).normal(size=(5, 1, 9)).astype(np.float32)
    predictions = Predictions(np.arange(5), np.zeros((5, 1), np.int32), {"a teacher of a very long name " * 3: logits})
    table = format_table(evaluate(predictions, chain))
    assert max(len(line) for line in table.splitlines()) <= 110
    assert all(f"number {n}" in " ".join(table.split()) for n in range(1, 9))


def test_report_has_exactly_the_agreed_keys():
    report = report_dict(metrics=make_metrics(), num_cases=NUM_CASES, wall_seconds=12.5)
    assert set(report) == {"num_cases", "wall_seconds", "test"}
    assert report["num_cases"] == NUM_CASES
    assert report["wall_seconds"] == 12.5
    assert list(report["test"]) == ["teacher", "student"]
    for model in report["test"].values():
        names = ("mean_accuracy", "mean_majority_accuracy", "chain_accuracy", "majority_chain_accuracy", "steps")
        assert tuple(model) == names
        assert [step["name"] for step in model["steps"]] == ["Detection", "Distribution", "Side"]
        for step in model["steps"]:
            figures = {"accuracy", "majority_accuracy", "auc", "sensitivity", "specificity", "f1", "precision"}
            assert set(step) == {"name", "num_cases", "confusion", "answers", "left_out"} | figures
    detection, distribution, side = report["test"]["teacher"]["steps"]
    assert detection["confusion"] == [[2, 0, 0], [1, 1, 0], [0, 0, 0]]
    assert detection["answers"] == ["No abnormality", "Increased opacity", "Mixed"]
    assert (detection["left_out"], side["left_out"]) == (["Mixed"], ["Left", "Right"])
    assert (distribution["auc"], distribution["specificity"], distribution["accuracy"]) == (None, None, 1.0)
    assert (side["num_cases"], side["accuracy"]) == (0, None)


def test_report_accepts_numpy_numbers_and_refuses_a_missing_split(tmp_path):
    counts = {split: np.int64(count) for split, count in NUM_CASES.items()}
    report = report_dict(metrics=make_metrics(), num_cases=counts, wall_seconds=np.float32(2))
    write_json(tmp_path / "report.json", report)
    with pytest.raises(KeyError, match="val"):
        report_dict(metrics={}, num_cases={"train": 1, "test": 1}, wall_seconds=0)


def test_written_report_is_strict_json_even_when_everything_is_undefined(tmp_path):
    predictions = Predictions(
        np.arange(2), np.full((2, 3), NOT_ANNOTATED), {"teacher": np.zeros((2, 3, 3), np.float32)}
    )
    report = report_dict(metrics=evaluate(predictions, CHAIN), num_cases=NUM_CASES, wall_seconds=1)
    write_json(tmp_path / "report.json", report)
    read = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"), parse_constant=refuse_constant)
    assert read == report
    assert read["test"]["teacher"]["mean_accuracy"] is None


def test_writing_replaces_the_earlier_report_and_leaves_nothing_else(tmp_path):
    path = tmp_path / "report.json"
    write_json(str(path), {"run": 1})
    write_json(path, {"run": 2})
    assert json.loads(path.read_text()) == {"run": 2}
    assert list(tmp_path.iterdir()) == [path]


def test_a_report_that_cannot_be_written_leaves_the_earlier_one(tmp_path, monkeypatch):
    path = tmp_path / "report.json"
    write_json(path, {"run": 1})
    with pytest.raises(ValueError, match="JSON"):
        write_json(path, {"run": math.nan})

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr("pathlib.Path.replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_json(path, {"run": 3})
    assert json.loads(path.read_text()) == {"run": 1}
    assert list(tmp_path.iterdir()) == [path]
