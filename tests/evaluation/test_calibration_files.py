"""What is read is what was written; damaged files and those of another chain are refused by name."""

import json

import pytest
from evaluation.small_splits import CHAIN, make_split

from stepcot_jax.evaluation.calibration import fit_calibration, read_calibration, write_calibration
from stepcot_jax.host.errors import BadInput

VAL = make_split(3, num_cases=200, num_patients=120).predictions


def test_what_is_written_comes_back(tmp_path):
    path = tmp_path / "calibration.json"
    for val in (VAL, make_split(0, num_cases=8).predictions):
        for by in ("step", "answer"):
            calibration = fit_calibration(val, CHAIN, coverage=0.8, coverage_by=by, confidence=0.6)
            write_calibration(path, calibration, CHAIN)
            assert read_calibration(path, CHAIN) == calibration
            assert ("answer_thresholds" in path.read_text()) == (by == "answer")


def test_a_file_without_the_numbers_of_cases_is_read_and_has_no_range(tmp_path):
    path = tmp_path / "calibration.json"
    write_calibration(path, fit_calibration(VAL, CHAIN), CHAIN)
    found = json.loads(path.read_text())
    assert all(
        0 < low < 0.9 < high < 1 for low, high in (step["coverage_range"] for step in found["models"]["teacher"])
    )
    for step in (step for steps in found["models"].values() for step in steps):
        del step["num_cases"], step["coverage_range"]
    del found["confidence"]
    path.write_text(json.dumps(found))
    calibration = read_calibration(path, CHAIN)
    assert calibration.num_cases == {}
    assert calibration.confidence == 0
    assert calibration.coverage_range("teacher", 0) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda found: found.update(coverage=1.5), r"\$\.coverage"),
        (lambda found: found.update(confidence=1), r"\$\.confidence"),
        (lambda found: found.update(layout="other"), "'layout': 'other'"),
        (lambda found: found["models"]["teacher"][0].update(temperature=0), r"\.temperature"),
        (lambda found: found["models"]["teacher"][0].update(threshold="x"), r"\.threshold"),
        (
            lambda found: found["models"]["teacher"][1].update(answer_thresholds=[0.5, None]),
            r"teacher, 'Detection', 'answer_thresholds': None is not one number or null for each of the 2 options",
        ),
        (lambda found: found["models"]["teacher"][0].update(answer_thresholds=[2, None]), r"answer_thresholds\[0\]"),
        (lambda found: found["models"]["teacher"][0].update(num_cases=[2]), "'num_cases': 1 numbers for 2 options"),
        (lambda found: found["models"]["teacher"][0].update(num_cases=[2, -1]), r"num_cases\[1\]"),
        (lambda found: found["models"]["teacher"][0].update(name="Finding"), "teacher: calibration of another chain"),
        (lambda found: found["models"]["student"].pop(), "student: calibration of another chain: it has 2 steps"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(tmp_path, change, message):
    path = tmp_path / "calibration.json"
    write_calibration(path, fit_calibration(VAL, CHAIN), CHAIN)
    found = json.loads(path.read_text())
    change(found)
    path.write_text(json.dumps(found))
    with pytest.raises(BadInput, match=message) as refused:
        read_calibration(path, CHAIN)
    assert str(path) in str(refused.value)


def test_no_file_or_no_json_or_too_much_is_refused(tmp_path):
    path = tmp_path / "calibration.json"
    with pytest.raises(BadInput, match="cannot be read"):
        read_calibration(path, CHAIN)
    for content, message in (
        (b"\xff{", "calibration.json"),
        (b"[" * 10**6, "calibration"),
        (b" " * 2**25, "33554432 bytes"),
    ):
        path.write_bytes(content)
        with pytest.raises(BadInput, match=message):
            read_calibration(path, CHAIN)
