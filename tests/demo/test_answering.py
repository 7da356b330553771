"""The tab for a policy: uploads, questions, and the parts of a page with one tab or two."""

import types

import numpy as np
import pytest
from policies.policy_workdir import make_policy_workdir
from refusals import refuse

from stepcot_jax.box import Box
from stepcot_jax.chain import DEFAULT_CHAIN
from stepcot_jax.extras.demo import command
from stepcot_jax.extras.demo import page as page_module
from stepcot_jax.extras.demo.guard import Uploads
from stepcot_jax.extras.demo.page import answer_question, make_blocks, write_answer_view
from stepcot_jax.host.errors import BadInput
from stepcot_jax.reading.policy_reader import Answered, list_questions, load_reader
from stepcot_jax.reasoning.replies import Reply

PICTURE = np.full((40, 50), 128, np.uint8)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("answering") / "run"
    _, records, _ = make_policy_workdir(folder)
    return load_reader(folder), [record for record in records if record.split == "test"]


@pytest.mark.slow
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
    refuse(words, answer_question, run[0], picture, question, "", "guess", False, 0)


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
        notes=("its window misses <the> pixels",),
    )
    page = write_answer_view(answered)
    assert "<script>" not in page
    assert "&lt;i&gt;lung&lt;/i&gt;: 1, 2, 30, 40 in pixels of 50 x 40" in page
    assert "Not well formed: &lt;think&gt; is missing." in page
    assert "Note: its window misses &lt;the&gt; pixels." in page
    assert page.count("data:image/png;base64,") == 1


def test_offered_questions_are_the_runs(run, tmp_path):
    reader, records = run
    found = list_questions(reader.trained.workdir, most=3)
    assert len(found) == 3
    assert set(found) <= {record.question for record in records if not record.options}
    assert list_questions(tmp_path, most=3) == []


@pytest.mark.slow
def test_the_page_has_a_tab_for_each_run_and_a_policys_run_is_served(run, tmp_path, monkeypatch):
    gradio = pytest.importorskip("gradio", reason="needs gradio (the extra demo)")

    def parts_of(explainer):
        blocks = make_blocks(explainer, gradio, uploads=Uploads(tmp_path / "uploads"), reader=run[0]).blocks.values()
        names = {getattr(block, "elem_id", None) for block in blocks}
        return names, [block.label for block in blocks if type(block).__name__ == "Tab"]

    parts = {"asked-radiograph", "question", "choices", "kind", "ask", "answer"}
    alone, tabs = parts_of(None)
    assert (parts <= alone, "radiograph" in alone, tabs) == (True, False, [])
    trained = types.SimpleNamespace(chain=DEFAULT_CHAIN, trained_on="phantoms")
    monkeypatch.setattr(page_module, "takes_corrections", lambda _: True)
    monkeypatch.setattr(page_module, "follows_corrections", lambda *_, **__: True)
    both, tabs = parts_of(types.SimpleNamespace(trained=trained, model="teacher"))
    assert ({*parts, "radiograph", "view", "undo"} <= both, tabs) == (True, ["Steps", "Questions"])

    served = []
    monkeypatch.setattr(command, "serve", lambda explainer, _, **options: served.append((explainer, options)))
    assert command.main([f"--checkpoint={run[0].trained.workdir}"]) == 0
    ((explainer, options),) = served
    assert (explainer, options["reader"].trained.workdir) == (None, run[0].trained.workdir)
    with pytest.raises(BadInput, match="--examples applies to a run that reads steps"):
        command.main([f"--checkpoint={run[0].trained.workdir}", f"--examples={tmp_path}"])
