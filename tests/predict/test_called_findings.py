import csv
import dataclasses
import json
import math

import pytest
from PIL import Image
from trained_workdir import make_trained_workdir, write_operating_points

from stepcot_jax.chain import Step
from stepcot_jax.data.phantom.phantom import draw_case
from stepcot_jax.reading.image_reader import load
from stepcot_jax.reading.readings import Finding, StepAnswer, describe_called
from stepcot_jax.tools import predict

pytestmark = pytest.mark.usefixtures("small_encoder")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("called")
    make_trained_workdir(folder / "run", calibrated=True)
    Image.fromarray(draw_case(0, seed=5, size=48).image).save(folder / "a.png")
    return folder / "run", write_operating_points(folder / "run"), folder / "a.png"


def test_each_answer_is_compared_with_its_own_threshold_and_none_from_a_given_answer_on(made):
    workdir, points, image = made
    reader = load(workdir)
    reading, called = reader.read(image), []
    for step in reading.steps:
        own = points.of_step("student", step.step.name)
        assert {finding.answer for finding in step.findings} == set(own) == set(step.step.options[1:])
        for finding in step.findings:
            share = dict(zip(step.step.options, step.probabilities, strict=True))[finding.answer]
            assert finding.probability == share
            assert finding.is_above == (share >= own[finding.answer].threshold.value)
            called += [finding.answer] if finding.is_above else []
    assert called
    text = reading.describe(verbose=True)
    assert "above the operating point (sensitivity of 80 % or more on validation; figures of the test cases):" in text
    assert all(f"{answer} (sensitivity 80 %, specificity 70 %)" in text for answer in called)
    above = "; ".join(f"{step.step.name}: {', '.join(step.above)}" for step in reading.steps if step.above)
    assert f"<li>above the operating point: {above}</li>" in reading._repr_html_()
    given = reader.read(image, given={"Radiographic pattern": "Linear"})
    assert [bool(step.findings) for step in given.steps] == [True] * 2 + [False] * 5


def test_json_and_sheets_have_them(made, tmp_path, capsys):
    workdir, points, image = made
    assert predict.main([str(image), f"--checkpoint={workdir}", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    out = tmp_path / "answers.csv"
    assert predict.main([str(image), f"--checkpoint={workdir}", f"--out={out}"]) == 0
    with out.open(newline="", encoding="utf-8") as file:
        (row,) = csv.DictReader(file)
    assert found["operating_rule"] == "sensitivity of 80 % or more on validation"
    for step in found["steps"]:
        own = points.of_step("student", step["step"])
        assert step["operating_points"].keys() == own.keys()
        for answer, point in step["operating_points"].items():
            assert point["threshold"] == own[answer].threshold.value
            assert (point["sensitivity"], point["specificity"]) == (0.8, 0.7)
            assert point["above"] == (step["probabilities"][answer] >= point["threshold"])
        above = [answer for answer, point in step["operating_points"].items() if point["above"]]
        assert row[f"{step['step']} above"] == "; ".join(above)


def test_findings_are_told_and_the_most_probable_come_first():
    options = ("Mass", "Edema", "Effusion", "Normal")
    points = {label: (options[label], 0.2, 0.8, 0.7) for label in range(3)}
    answered = StepAnswer(Step("One", "?", options), 2, (0.2, 0.2, 0.5, 0.1), (), None, points=points)
    assert answered.above == ("Effusion", "Mass", "Edema")
    lower = dataclasses.replace(answered, probabilities=(0.1, 0.3, 0.0, 0.6))
    assert [finding.answer for finding in lower.findings] == ["Edema", "Mass", "Effusion"]
    assert lower.above == ("Edema",)
    never = Finding("Mass", 0.999, math.inf, math.nan, 1.0)
    assert never.as_dict() == {"threshold": None, "sensitivity": None, "specificity": 1.0, "above": False}
    assert str(never) == "Mass (specificity 100 %)"
    lines = describe_called({"One": (never,), "Two": ()}, "rule")
    assert lines == ["above the operating point (rule; figures of the test cases):", "  One: none"]
