"""The script of the reading form: what it saves is what `score` takes, and what it opens is what it saved."""

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from readers.reader_samples import guess, make_sample, write_folder
from readers.test_readers_sample import Page
from report.browser import find_violations

from stepcot_jax.host.errors import BadInput
from stepcot_jax.readers import forms as sampling
from stepcot_jax.readers.forms import read_forms

SCRIPT = (Path(sampling.__file__).parent / "form.js").read_text()


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    return folder / "sample", make_sample(folder / "sample", write_folder(folder / "root"), num_cases=4)


@pytest.fixture(scope="module")
def form(sample):
    return json.loads(Page((sample[0] / "Bo" / "form.html").read_text()).data)


def run(expression, **values):
    """The value of an expression after the form's script has run, in node."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("needs node")
    names = "".join(f"const {name} = {json.dumps(value)};\n" for name, value in values.items())
    program = f"{SCRIPT}\n{names}console.log(JSON.stringify({expression}));\n"
    done = subprocess.run([node, "-"], input=program, capture_output=True, text=True, timeout=60, check=True)
    return json.loads(done.stdout)


def answer_rows(form, key, labels):
    """The answers as the page keeps them: name of the question and letter."""
    answers = []
    for place, row in enumerate(form["rows"]):
        number, step = key.find("Bo").order[place // 7], place % 7
        answers.append([row["name"], key.chain.steps[step].written(int(labels[number - 1][step]))])
    return answers


def test_what_the_page_saves_is_scored(sample, form, tmp_path):
    folder, key = sample
    labels = guess(key, 3)
    saved = tmp_path / form["file"]
    saved.write_text(run("writeAnswers(form, new Map(answers))", form=form, answers=answer_rows(form, key, labels)))
    found = read_forms(key, folder, [saved])[0]
    assert (found.reader, saved.name) == ("Bo", "Bo answers.csv")
    np.testing.assert_array_equal(found.labels, labels)


def test_unfinished_answers_are_opened_again_and_not_scored(sample, form, tmp_path):
    folder, key = sample
    answers = answer_rows(form, key, guess(key, 3))[5:19]
    text = run("writeAnswers(form, new Map(answers))", form=form, answers=answers)
    assert run("[...readAnswers(form, text)]", form=form, text=text) == answers
    saved = tmp_path / "saved.csv"
    saved.write_text(text)
    with pytest.raises(BadInput, match=r"Step 1: no answer, 13 more are missing"):
        read_forms(key, folder, [saved])


def test_the_page_opens_no_other_file(sample, form):
    text = run(
        "writeAnswers(form, new Map(answers))", form=form, answers=answer_rows(form, sample[1], guess(sample[1], 1))
    )
    changed = [text + "x", text[:-9], text.replace("Step 3", "Step 4", 1), text.replace(form["id"], "form-1"), ""]
    changed.append(text.replace(",A\r\n", ",Z\r\n", 1))
    assert text not in changed
    assert run("texts.map((text) => readAnswers(form, text))", form=form, texts=changed) == [None] * len(changed)


def test_the_next_open_question_is_found_going_around(form):
    first, last = form["cases"][0], form["cases"][-1]
    every = [[row["name"], "A"] for row in form["rows"]]
    without = [pair for pair in every if pair[0] != first[2]]
    expression = "[0, 1, 3].map((from) => nextOpen(form, new Map(answers), from))"
    assert run(expression, form=form, answers=without) == [0, 0, 0]
    assert run(expression, form=form, answers=every) == [-1, -1, -1]
    assert run(expression, form=form, answers=[pair for pair in every if pair[0] not in last]) == [3, 3, 3]


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        pytest.skip("needs chromium")
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def page(browser, sample):
    """The form of a reader as they open it, from a folder; what goes wrong in it fails the test."""
    context = browser.new_context(accept_downloads=True, viewport={"width": 1200, "height": 800})
    opened, problems = context.new_page(), []
    opened.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on("dialog", lambda dialog: dialog.accept())
    opened.goto((sample[0] / "Bo" / "form.html").as_uri())
    yield opened
    assert problems == []
    context.close()


def choose(page, names):
    for name, answer in names:
        page.locator(f'input[name="{name}"][value="{answer}"]').check()


def test_a_reader_answers_pauses_and_saves(page, sample, form, tmp_path):
    folder, key = sample
    labels = guess(key, 5)
    answers = answer_rows(form, key, labels)
    assert page.locator("section.case:visible").count() == 1
    assert page.evaluate("document.querySelector('section.case:not([hidden]) img').naturalWidth") == 10
    choose(page, answers[:5])
    page.reload()
    assert page.locator("#message").text_content() == "5 answers were kept by this browser."
    page.get_by_role("button", name="Next open question").click()
    assert page.locator("fieldset.open").count() == 2
    choose(page, answers[5:7])
    assert page.locator("#progress").text_content() == "1 of 4 cases are complete"
    with page.expect_download() as unfinished:
        page.get_by_role("button", name="Save answers").click()
    assert page.locator("#message").text_content() == (
        "Bo answers.csv is saved; 21 answers are missing. Open it here to go on."
    )
    unfinished.value.save_as(tmp_path / "unfinished.csv")

    page.evaluate("localStorage.clear()")
    page.reload()
    assert page.locator("input[type=radio]:checked").count() == 0
    page.locator("#load").set_input_files(tmp_path / "unfinished.csv")
    page.wait_for_function("document.querySelectorAll('input[type=radio]:checked').length === 7")
    for place in range(1, 4):
        page.get_by_role("button", name="Next", exact=True).click()
        choose(page, answers[7 * place : 7 * place + 7])
    with page.expect_download() as finished:
        page.get_by_role("button", name="Save answers").click()
    assert page.locator("#message").text_content() == "Complete: send Bo answers.csv back."
    finished.value.save_as(tmp_path / finished.value.suggested_filename)
    np.testing.assert_array_equal(read_forms(key, folder, [tmp_path / "Bo answers.csv"])[0].labels, labels)


def test_the_page_refuses_a_file_of_another_form_and_fits_a_phone(page, tmp_path):
    (tmp_path / "other.csv").write_text("form,case\r\n")
    page.locator("#load").set_input_files(tmp_path / "other.csv")
    page.wait_for_function("document.getElementById('message').textContent !== ''")
    assert page.locator("#message").text_content() == (
        "other.csv is not of this form, or was changed by another program."
    )
    page.locator("#contrast").fill("150")
    assert "contrast(1.5)" in page.locator("section.case:visible img").evaluate(
        "image => getComputedStyle(image).filter"
    )
    page.set_viewport_size({"width": 375, "height": 700})
    assert page.evaluate("document.documentElement.scrollWidth") <= 375
    page.screenshot(path=tmp_path / "phone.png", full_page=True)
    assert (tmp_path / "phone.png").stat().st_size > 5000


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_and_print_shows_every_case(page, scheme):
    page.emulate_media(color_scheme=scheme)
    assert find_violations(page) == []
    page.set_viewport_size({"width": 390, "height": 800})
    page.get_by_role("button", name="Next open question").click()
    assert find_violations(page) == []
    page.emulate_media(media="print")
    assert page.locator("section.case:visible").count() == 4
    assert not page.locator("header").is_visible()
