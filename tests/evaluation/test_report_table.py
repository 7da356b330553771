"""The text table and the JSON report."""

import json

import numpy as np

from stepcot_jax.chain import NOT_ANNOTATED, Chain, Step
from stepcot_jax.evaluation.chains import ModelMetrics, evaluate
from stepcot_jax.evaluation.predictions import Predictions
from stepcot_jax.evaluation.summary import format_table, report_dict

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
    assert (set(report), report["num_cases"], report["wall_seconds"]) == (
        {"num_cases", "wall_seconds", "test"}, NUM_CASES, 12.5,
    )  # fmt: skip
    assert list(report["test"]) == ["teacher", "student"]
    for model in report["test"].values():
        names = ("mean_accuracy", "mean_majority_accuracy", "chain_accuracy", "majority_chain_accuracy", "steps")
        assert tuple(model) == names
        for step, name in zip(model["steps"], ("Detection", "Distribution", "Side"), strict=True):
            figures = {"accuracy", "majority_accuracy", "auc", "sensitivity", "specificity", "f1", "precision"}
            assert set(step) == {"name", "num_cases", "confusion", "answers", "left_out"} | figures
            assert step["name"] == name
    detection, distribution, side = report["test"]["teacher"]["steps"]
    assert detection["confusion"] == [[2, 0, 0], [1, 1, 0], [0, 0, 0]]
    assert detection["answers"] == ["No abnormality", "Increased opacity", "Mixed"]
    assert (detection["left_out"], side["left_out"]) == (["Mixed"], ["Left", "Right"])
    assert (distribution["auc"], distribution["specificity"], distribution["accuracy"]) == (None, None, 1.0)
    assert (side["num_cases"], side["accuracy"]) == (0, None)


def test_written_report_is_strict_json_even_when_everything_is_undefined():
    predictions = Predictions(
        np.arange(2), np.full((2, 3), NOT_ANNOTATED), {"teacher": np.zeros((2, 3, 3), np.float32)}
    )
    counts = {split: np.int64(count) for split, count in NUM_CASES.items()}
    report = report_dict(metrics=evaluate(predictions, CHAIN), num_cases=counts, wall_seconds=np.float32(1))
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    assert report["test"]["teacher"]["mean_accuracy"] is None
