import json

import numpy as np

from stepcot_jax.chain import Chain, Step
from stepcot_jax.evaluation.chains import ModelMetrics, evaluate
from stepcot_jax.evaluation.predictions import Predictions
from stepcot_jax.evaluation.summary import format_table, report_dict

DETECTION = Step("Detection", "Anything?", ("No abnormality", "Increased opacity", "Mixed"))
OTHERS = Step("Distribution", "How?", ("Focal", "Diffuse")), Step("Side", "Where?", ("Left", "Right"))
CHAIN = Chain((DETECTION, *OTHERS))
LABELS = np.array([[0, 0, -100], [0, 0, -100], [1, 0, -100], [1, -100, -100]], np.int32)
NUM_CASES = {"train": 70, "val": 15, "test": 4}


def make_metrics() -> dict[str, ModelMetrics]:
    teacher = np.zeros((4, 3, 3), np.float32)
    teacher[[0, 1, 2, 3], 0, [0, 0, 1, 0]] = [2, 3, 4, 1]
    student = np.zeros((4, 3, 3), np.float32)
    student[1, 1, 1] = 1
    return evaluate(Predictions(np.arange(4), LABELS, {"student": student, "teacher": teacher}), CHAIN)


TABLE = """\
teacher (%)       cases  accuracy  majority    AUC  sensitivity  macro spec.     F1  precision
----------------------------------------------------------------------------------------------
Detection             4      75.0      50.0  100.0         75.0         75.0   73.3       83.3
Distribution          3     100.0     100.0      -        100.0            -  100.0      100.0
----------------------------------------------------------------------------------------------
mean                         75.0      50.0  100.0         75.0         75.0   73.3       83.3
all annotated steps of a case correct: 75.0 (most frequent answers: 50.0)

student (%)       cases  accuracy  majority    AUC  sensitivity  macro spec.     F1  precision
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


def test_the_report_is_strict_json_with_null_for_what_is_undefined():
    report = report_dict(metrics=make_metrics(), num_cases=NUM_CASES, wall_seconds=12.5)
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    detection, distribution, side = report["test"]["teacher"]["steps"]
    assert detection["confusion"] == [[2, 0, 0], [1, 1, 0], [0, 0, 0]]
    assert detection["answers"] == ["No abnormality", "Increased opacity", "Mixed"]
    assert (detection["left_out"], side["left_out"]) == (["Mixed"], ["Left", "Right"])
    assert (distribution["auc"], distribution["specificity"], distribution["accuracy"]) == (None, None, 1.0)
    assert (side["num_cases"], side["accuracy"]) == (0, None)
