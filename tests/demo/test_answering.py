"""The tab for a policy: uploads, questions, and the page served with one tab or two."""

import os
import pathlib
import signal
import subprocess
import sys
import urllib.request

import numpy as np
import pytest
from PIL import Image
from policies.policy_workdir import make_policy_workdir
from report.browser import Watched, find_violations, open_browser, open_demo
from trained_workdir import make_trained_workdir, tiny_encoder

from stepcot_jax.box import Box
from stepcot_jax.contrib.demo.page import answer_question, make_blocks, write_answer_view
from stepcot_jax.contrib.demo.uploads import Uploads
from stepcot_jax.host.errors import BadInput
from stepcot_jax.reading.explain import Explainer
from stepcot_jax.reading.policy_reader import Answered, list_questions, load_reader
from stepcot_jax.reading.trained_model import load_trained
from stepcot_jax.reasoning.replies import Reply

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).parents[2]
IS_OPAQUE = """() => {
  let shown = document.querySelector("#answer img");
  while (shown !== null && getComputedStyle(shown).opacity === "1") shown = shown.parentElement;
  return shown === null;
}"""
"""An answer is faded until its event has ended."""
PICTURE = np.full((40, 50), 128, np.uint8)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("answering") / "run"
    _, records, _ = make_policy_workdir(folder)
    return load_reader(folder), [record for record in records if record.split == "test"]


def test_a_question_is_answered(run):
    reader, records = run
    single = next(record for record in records if record.kind == "single")
    answered = reader.answer(PICTURE, single.question, choices=single.options)
    choices = "\n".join(("", *single.options, " "))
    page = answer_question(reader, PICTURE, single.question, choices, "guess", False, None)
    assert page == write_answer_view(answered)
    drawn = answer_question(reader, PICTURE, single.question, choices, "multi", True, 5)
    assert drawn != page
    assert "(multi)" in drawn


@pytest.mark.parametrize(
    ("picture", "question", "words"),
    [(None, "Is there a mass?", "no radiograph yet"), (PICTURE, None, "question: blank"), (PICTURE, " ", "blank")],
)
def test_what_cannot_be_asked(run, picture, question, words):
    with pytest.raises(BadInput, match=words):
        answer_question(run[0], picture, question, "", "guess", False, 0)


def test_replies_are_escaped_and_boxes_listed():
    reply = Reply("gemex", answer="<b>Yes</b>", problems=("<think> is missing",))
    answered = Answered(
        question="?",
        kind="closed",
        choices=(),
        text="<script>alert(1)</script>",
        reply=reply,
        answer="Yes",
        boxes=(Box("<i>lung</i>", (1.2, 2.0, 30.0, 39.6)),),
        image_size=(50, 40),
        picture=np.repeat(PICTURE[..., None], 3, axis=2),
    )
    page = write_answer_view(answered)
    assert "<script>" not in page
    assert "&lt;i&gt;lung&lt;/i&gt;: 1, 2, 30, 40 in pixels of 50 x 40" in page
    assert "Not well formed: &lt;think&gt; is missing." in page
    assert page.count("data:image/png;base64,") == 1


def test_offered_questions_are_the_runs(run, tmp_path):
    reader, records = run
    found = list_questions(reader.trained.workdir, most=3)
    assert len(found) == 3
    assert set(found) <= {record.question for record in records if not record.options}
    assert list_questions(tmp_path, most=3) == []


def ids_of(blocks):
    return {getattr(block, "elem_id", None) for block in blocks.blocks.values()}


def tabs_of(blocks):
    return [block.label for block in blocks.blocks.values() if type(block).__name__ == "Tab"]


def test_the_page_has_a_tab_for_each_run(run, tmp_path):
    gradio = pytest.importorskip("gradio", reason="needs gradio (the extra demo)")
    parts = {"asked-radiograph", "question", "choices", "kind", "ask", "answer"}
    uploads = Uploads(tmp_path / "uploads")
    alone = make_blocks(None, gradio, uploads=uploads, reader=run[0])
    assert parts <= ids_of(alone)
    assert "radiograph" not in ids_of(alone)
    assert tabs_of(alone) == []
    make_trained_workdir(tmp_path / "steps")
    with tiny_encoder():
        explainer = Explainer(load_trained(tmp_path / "steps", names=("teacher",)), model="teacher")
    both = make_blocks(explainer, gradio, uploads=uploads, reader=run[0])
    assert {*parts, "radiograph", "view", "undo"} <= ids_of(both)
    assert tabs_of(both) == ["Steps", "Questions"]


@pytest.fixture(scope="module")
def served(run, tmp_path_factory):
    """The address of the page of a policy's run, in a process of its own, which Ctrl-C ends."""
    pytest.importorskip("gradio", reason="needs gradio (the extra demo)")
    command = [sys.executable, "-m", "stepcot_jax", "demo", f"--checkpoint={run[0].trained.workdir}", "--port=0"]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "TMPDIR": str(tmp_path_factory.mktemp("temporary"))}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        try:
            line = server.stdout.readline()
            assert line.startswith("http://127.0.0.1:"), server.stderr.read()
            yield line.split()[0]
            server.send_signal(signal.SIGINT)
            _, errors = server.communicate(timeout=30)
        finally:
            server.kill()
    assert server.returncode == 130
    assert "Traceback" not in errors


def test_a_policys_run_is_served(served):
    with urllib.request.urlopen(served, timeout=30) as answer:  # noqa: S310
        assert "asked-radiograph" in answer.read().decode()


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_axe_finds_nothing_before_and_after_a_question(served, tmp_path, width, scheme):
    Image.fromarray(PICTURE).save(tmp_path / "picture.png")
    with open_browser() as browser:
        page = Watched(browser, width=width, scheme=scheme)
        open_demo(page, served, "#asked-radiograph input[type=file]")
        assert find_violations(page.tab) == []
        page.tab.set_input_files("#asked-radiograph input[type=file]", tmp_path / "picture.png")
        page.tab.wait_for_selector("#asked-radiograph .file-preview")  # the upload has ended
        page.tab.locator("#question input, #question textarea").first.fill("Is there a mass?")
        page.tab.click("#ask")
        page.tab.wait_for_selector("#answer img")
        page.tab.wait_for_function(IS_OPAQUE)
        assert find_violations(page.tab) == []
        assert page.overflow <= 0
        page.close()
