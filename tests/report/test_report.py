import dataclasses
import html
import json
import pathlib
import re
import shutil

import numpy as np
import pytest
from refusals import refuse
from report.browser import find_broken_words, watch
from report.finished_workdir import make_finished_workdir, make_split, write_run_files

import stepcot_jax as sc
from stepcot_jax.chain import DEFAULT_CHAIN, NOT_ANNOTATED
from stepcot_jax.data.phantom.phantom import export_phantom
from stepcot_jax.data.records.records import read_records
from stepcot_jax.evaluation.chains import evaluate
from stepcot_jax.evaluation.operating_points import read_points
from stepcot_jax.evaluation.predictions import read_predictions, write_predictions
from stepcot_jax.reading.finished import read_run
from stepcot_jax.run.settings import read_settings, write_settings
from stepcot_jax.tools.report import answers
from stepcot_jax.tools.report.command import main

NUM_TEST = 12
pytestmark = pytest.mark.usefixtures("small_encoder")


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report") / "my <run>"
    make_finished_workdir(folder, num_test=NUM_TEST)
    return folder


@pytest.fixture(scope="module")
def page(workdir):
    assert main([str(workdir), "--num-cases=5"]) == 0
    return (workdir / "report.html").read_text()


def data_of(page):
    return json.loads(re.search(r'id="case-data">(.*?)</script>', page, re.DOTALL)[1])


def section(page, name):
    return re.search(rf'<section id="{name}".*?</section>', page, re.DOTALL)[0]


def read_row(text, name):
    row = re.search(rf'<tr><th scope="row">{name}</th>(.*?)</tr>', text)[1]
    return re.findall(r'class="value">([^<]*)<', row)


def read_test(workdir):
    return read_predictions(workdir / "predictions" / "test.npz", DEFAULT_CHAIN)


@pytest.mark.slow
def test_the_cases_are_those_of_the_predictions(page, workdir):
    split, data = read_test(workdir), data_of(page)
    assert len(data["cases"]) == len({case["picture"] for case in data["cases"]}) == 5
    assert [step["options"] for step in data["steps"]] == [list(step.options) for step in DEFAULT_CHAIN.steps]
    indices = {path: index for index, path in enumerate(split.facts["image_path"])}
    for case in data["cases"]:
        index = indices[case["name"]]
        assert case["truth"] == split.predictions.labels[index].tolist()
        logits = split.predictions.logits["student"][index]
        assert case["answers"] == logits.argmax(axis=1).tolist()
        # The fixture's temperature is 2; probabilities cover the step's own answers only.
        weights = np.exp(logits[6] / 2)
        assert case["confidences"][6] == pytest.approx(weights.max() / weights.sum(), abs=1e-3)
        assert case["answers"][6] in case["sets"][6]
        assert case["picture"].startswith("data:image/jpeg;base64,")
        assert case["report"]
        assert len(case["maps"]) == len(case["claims"]) == 7
        assert all("with the brightest tenth blurred" in claim for claim in case["claims"])
        if case["answers"][0] == 0 and (case["answers"][6] != 0 or case["answers"][2] != 5):
            assert "No abnormality" in case["inconsistent"]


def test_figures_are_the_evaluators(page, workdir):
    assert "Run my &lt;run&gt;" in page
    assert "Not a medical device" in page
    student = evaluate(read_test(workdir).predictions, DEFAULT_CHAIN)["student"]
    text = section(page, "results")
    shares = (student.mean_accuracy, student.steps[-1].accuracy, student.chain_accuracy)
    assert read_row(text, "student") == [f"{100 * share:.1f}" for share in shares]
    shares = (student.mean_majority_accuracy, student.steps[-1].majority_accuracy, student.majority_chain_accuracy)
    assert read_row(text, "majority") == [f"{100 * share:.1f}" for share in shares]
    assert f'<span class="value">{100 * student.steps[3].auc:.1f}</span>' in text
    row = 'teacher less the heads (points)</th><td class="text"><span class="value">+10.0</span><span class="interval">'
    assert f"{row}-1.0 to +20.0</span></td>" in text
    assert "These heads, fitted on 9,000 training cases, are weaker; train &lt;plain&gt;" in text
    counts = [int(count) for count in re.findall(r'<td class="heat[^>]*>(\d+)</td>', section(page, "confusion"))]
    assert sum(counts) == 2 * 7 * NUM_TEST


@pytest.mark.slow
def test_the_first_screen_has_verdicts_and_a_case_and_a_phone_scrolls_little(page, workdir, browser):
    summary = section(page, "summary")
    for name, words in judge(read_run(workdir), {}).items():
        assert f"<b>{name.capitalize()}</b>: {html.escape(words)}." in summary
    settings = set(re.findall(r'scope="row">(\w+)</th>', section(page, "settings")))
    assert {"run", "data", "teacher", "student", "training"} <= settings
    assert settings.isdisjoint({"vqa", "policy", "grpo", "baseline", "curriculum"})
    with watch(browser, f"file://{workdir}/report.html") as wide:
        pictures = wide.tab.locator("#summary img")
        assert pictures.count() == 8
        assert pictures.first.bounding_box()["y"] < 700
    with watch(browser, f"file://{workdir}/report.html", width=390) as narrow:
        assert narrow.tab.evaluate("document.documentElement.scrollHeight") < 20_000
        assert narrow.overflow == 0
        assert find_broken_words(narrow.tab) == []


def test_means_leave_steps_with_one_answer_out_and_say_so(workdir, tmp_path):
    run = shutil.copytree(workdir, tmp_path / "run")
    split = read_test(run)
    split.predictions.labels[:, :5] = 1
    write_predictions(run / "predictions" / "test.npz", split, DEFAULT_CHAIN)
    assert main([str(run), "--without-data"]) == 0
    text = (run / "report.html").read_text()
    assert "mean of 2 of 7 steps" in text
    assert "Detection: every case has the same answer; the mean over the steps leaves it out." in text
    student = evaluate(split.predictions, DEFAULT_CHAIN)["student"]
    right = np.mean([step.accuracy for step in student.steps[5:]])
    assert read_row(section(text, "results"), "student")[0] == f"{100 * right:.1f}"


def judge(run, change, patients=None):
    """The verdicts, after a change of which answers of the cases are right."""
    labels, logits = run.split.predictions.labels, dict(run.split.predictions.logits)
    logits |= {name: np.zeros((*labels.shape, 9)) for name in change}
    for name, right in change.items():
        given = np.where(right, np.maximum(labels, 0), (labels + 1) % 3)
        np.put_along_axis(logits[name], given[..., None], 1.0, axis=2)
    facts = run.split.facts if patients is None else {**run.split.facts, "patient_id": patients}
    split = dataclasses.replace(run.split.change(logits=logits), facts=facts)
    return answers.judge_networks(dataclasses.replace(run, split=split), 1000)


def test_the_verdict_counts_steps_above_the_most_frequent_answer_and_compares_with_rivals(workdir):
    run = read_run(workdir)
    truth = run.split.predictions.labels
    right, wrong = np.ones(truth.shape, bool), np.zeros(truth.shape, bool)
    best, worst = judge(run, {"student": right, "teacher": wrong}), judge(run, {"student": wrong, "teacher": right})
    assert "at 7 of 7 steps; better than the teacher (+100.0 [+100.0, +100.0]" in best["student"]
    assert "at 0 of 7 steps; below the teacher (-100.0 [-100.0, -100.0]" in worst["student"]
    assert "; not shown to beat the teacher (" in judge(run, {"student": right, "teacher": right})["student"]
    known = truth[:, 0].copy()
    truth[:, 0] = [case % 2 if case < 8 else NOT_ANNOTATED for case in range(NUM_TEST)]  # of eight patients
    assert "at 6 of 7 steps; better than" in judge(run, {"student": right, "teacher": wrong})["student"]
    truth[:, 0] = known
    few = np.array([f"p{min(case, 8)}" for case in range(NUM_TEST)])
    assert judge(run, {"student": right, "teacher": wrong}, few)["student"] == "too few patients for a verdict"


def test_the_model_can_be_chosen_and_things_left_out(workdir, tmp_path):
    out = tmp_path / "sub" / "page.html"
    assert main([str(workdir), f"--out={out}", "--model=teacher", "--without-data"]) == 0
    page = out.read_text()
    cases = data_of(page)["cases"]
    expected = read_test(workdir).predictions.logits["teacher"].argmax(axis=2)
    assert [case["answers"] for case in cases] == expected.tolist()
    assert {case["picture"] for case in cases} == {None}
    assert "Pictures, reports and maps were left out." in page
    assert "data:image/jpeg" not in page
    refuse("has no predictions of 'studen'; it has teacher, student", main, [str(workdir), "--model=studen"])


@pytest.fixture(scope="module")
def folder_run(workdir, tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    export_phantom(root, num_cases=30, seed=3, size=32)
    records = json.loads((root / "data.json").read_text())
    for number, record in enumerate(records):
        record["report"] = f'<script>alert({number})</script>"><img src=x onerror=alert(1)>\u202e </script>'
    (root / "data.json").write_text(json.dumps(records))
    run = shutil.copytree(workdir, tmp_path_factory.mktemp("run") / "run")
    settings = read_settings(run / "settings.json")
    settings = dataclasses.replace(settings, data=dataclasses.replace(settings.data, source="folder", root=str(root)))
    write_settings(run / "settings.json", settings)
    cases = read_records(root).cases
    write_run_files(run, val=make_split(cases[15:], seed=0), test=make_split(cases[:15], seed=1))
    return run


@pytest.mark.slow
def test_cases_of_a_folder_have_their_own_reports_as_text(folder_run, tmp_path):
    out = tmp_path / "page.html"
    assert main([str(folder_run), f"--out={out}", "--without-maps"]) == 0
    page = out.read_text()
    assert "<script>alert" not in page
    assert "onerror=alert" not in re.sub(r'id="case-data">.*?</script>', "", page, flags=re.DOTALL)
    for case in data_of(page)["cases"]:
        number = int(re.search(r"phantom_(\d+)", case["name"])[1])
        assert case["report"].startswith(f"<script>alert({number})</script>")
        assert "[U+202E]" in case["report"]
        assert case["maps"] is None
    assert "Maps were left out." in page


def test_data_that_changed_is_refused_with_a_way_out(folder_run, tmp_path):
    run, split = shutil.copytree(folder_run, tmp_path / "run"), read_test(folder_run)
    flags = [str(run), f"--out={tmp_path / 'page.html'}", "--without-maps"]

    def write(labels):
        predictions = dataclasses.replace(split.predictions, labels=labels)
        write_run_files(run, val=split, test=dataclasses.replace(split, predictions=predictions))

    labels = split.predictions.labels.copy()
    labels[0, 6] = (labels[0, 6] + 1) % 9
    write(labels)
    refuse(r"phantom_\d+\.png' in .* has another labels than in the run; .* --without-data", main, flags)
    # Steps that were not supervised may be annotated in the data.
    labels = split.predictions.labels.copy()
    labels[:, :6] = NOT_ANNOTATED
    write(labels)
    assert main(flags) == 0
    page = (tmp_path / "page.html").read_text()
    assert data_of(page)["cases"][0]["truth"][:6] == [NOT_ANNOTATED] * 6
    assert "no case was annotated" in page


def test_cases_that_a_caller_passed_cannot_be_shown(folder_run, tmp_path):
    run = shutil.copytree(folder_run, tmp_path / "run")
    settings = read_settings(run / "settings.json")
    given = dataclasses.replace(settings.data, source="given", root="")
    write_settings(run / "settings.json", dataclasses.replace(settings, data=given))
    refuse("passed to sc.fit; .*--without-data", main, [str(run), f"--out={tmp_path / 'page.html'}", "--without-maps"])


def test_the_styles_and_scripts_load_nothing():
    loads = r"https?:|//[a-z]|url\(|@import|fetch\(|XMLHttp|innerHTML|insertAdjacent|document\.write"
    for name in ("page.css", "browse.css", "page.js", "shared.js", "browse.js"):
        (path,) = pathlib.Path(sc.__file__).parent.rglob(name)
        assert not re.search(loads, path.read_text().replace("http://www.w3.org/2000/svg", "")), name


def test_operating_points_are_those_of_the_run(page, workdir):
    found, text = read_points(workdir / "points.json", DEFAULT_CHAIN), section(page, "operating")
    assert "Thresholds: sensitivity of 80 % or more on validation." in text
    rows = re.findall(r'<tr><th scope="row">.*', text)
    for row, ((_, step, answer), point) in zip(rows, found.points.items(), strict=True):
        assert row.startswith(
            f'<tr><th scope="row">{step}</th><td class="text"><span class="value">{answer}</span></td>'
        )
        assert f'<td><span class="value">{point.test[0]}</span></td>' in row
        if all(point.test):
            assert f">{100 * point.sensitivity.value:.1f}</span>" in row
            assert f">{100 * point.specificity.value:.1f}</span>" in row
