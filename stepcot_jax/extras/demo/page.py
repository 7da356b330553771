"""The demo's page in Gradio: its parts and their events."""

import base64
import dataclasses
import functools
import html
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import UInt8

from stepcot_jax.data.images.drawn_boxes import write_png
from stepcot_jax.extras.demo.examples import CLICKED, Example, write_examples
from stepcot_jax.extras.demo.guard import MAX_MEGABYTES, SUFFIXES, Uploads
from stepcot_jax.extras.demo.sessions import (
    SECONDS_KEPT,
    Session,
    follows_corrections,
    read_session,
    start_session,
    takes_corrections,
)
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.text import escape_markdown
from stepcot_jax.pages.shell import make_environment
from stepcot_jax.reading.explain import Explainer
from stepcot_jax.reading.policy_reader import Answered, PolicyReader, list_questions
from stepcot_jax.reading.radiographs import Header, read_unresized
from stepcot_jax.record import KINDS

# The demo's tab for a policy: a radiograph, a question, and the reply with its boxes drawn.


_TEMPLATES = make_environment(pathlib.Path(__file__).parent)
_NOTHING_YET = "<p>Drop in a radiograph and ask a question about it.</p>"
_GUESSED = "guess"
_LABEL = f"Radiograph: PNG, JPEG or DICOM, at most {MAX_MEGABYTES} MB"
_UPLOAD: dict[str, Any] = {"label": _LABEL, "file_types": SUFFIXES, "height": 150}
_INTRODUCTION = """# A radiograph, asked about
Drop in a frontal chest radiograph and ask about it. The reply names boxes, which are drawn over the picture.

For research; **not a medical device**. Nothing is kept: a file is deleted as soon as it is read."""


def add_answering(reader: PolicyReader, gradio: Any, uploads: Uploads) -> None:
    """Add the tab's parts and events to the blocks that are open."""
    gradio.Markdown(_INTRODUCTION)
    picture = gradio.State(None, time_to_live=SECONDS_KEPT)
    file = gradio.File(**_UPLOAD, elem_id="asked-radiograph")
    known = list_questions(reader.trained.workdir, most=12)
    with gradio.Row():
        with gradio.Column(scale=2, min_width=320):
            question = gradio.Dropdown(
                known, value=known[0] if known else "", label="Question", allow_custom_value=True, elem_id="question"
            )
            choices = gradio.Textbox(label="Choices, one a line; empty for none", lines=4, elem_id="choices")
            kind = gradio.Radio([_GUESSED, *KINDS], value=_GUESSED, label="Kind", elem_id="kind")
            sample = gradio.Checkbox(False, label="Draw the reply instead of taking the likeliest")
            seed = gradio.Number(0, label="Seed of the draw", precision=0, minimum=0)
            ask = gradio.Button("Ask", variant="primary", elem_id="ask")
        with gradio.Column(scale=3, min_width=320):
            view = gradio.HTML(_NOTHING_YET, elem_id="answer")
    how = {"api_visibility": "private", "show_progress": "minimal"}

    def say(function: Any, *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except BadInput as error:
            raise gradio.Error(str(error), print_exception=False) from None

    def read_picture(path: str | None) -> tuple[Any, str]:
        if not path:
            return None, _NOTHING_YET
        limit = reader.trained.max_pixels
        return say(lambda: read_unresized(uploads.read_once(path), max_pixels=limit)), _NOTHING_YET

    def answer(seen: Any, *asked: Any) -> str:
        picture, header = seen or (None, Header())
        return say(lambda: answer_question(reader, picture, *asked, notes=header.notes))

    file.upload(read_picture, file, [picture, view], **how)
    file.clear(lambda: (None, _NOTHING_YET), None, [picture, view], **how)
    asked = [picture, question, choices, kind, sample, seed]
    ask.click(answer, asked, view, **how)


def answer_question(
    reader: PolicyReader,
    picture: UInt8[np.ndarray, "height width *channel"] | None,
    question: str | None,
    choices: str,
    kind: str,
    sample: bool,
    seed: float | None,
    *,
    notes: tuple[str, ...] = (),
) -> str:
    """Return the reply to a visitor's question, as markup."""
    if picture is None:
        raise BadInput("no radiograph yet; drop one in first")
    lines = [line.strip() for line in choices.splitlines() if line.strip()]
    answered = reader.answer(
        picture,
        question or "",
        choices=lines,
        kind=None if kind == _GUESSED else kind,
        greedy=not sample,
        seed=int(seed or 0),
    )
    return write_answer_view(dataclasses.replace(answered, notes=notes))


def write_answer_view(answered: Answered) -> str:
    """Return markup with the answer, the picture with its boxes, and the full reply."""
    source = "data:image/png;base64," + base64.b64encode(write_png(answered.draw())).decode()
    return _TEMPLATES.get_template("answered.html.j2").render(answered=answered, picture=source, boxes=_list(answered))


def _list(answered: Answered) -> Sequence[str]:
    width, height = answered.image_size
    return [
        f"{region.label or 'without a name'}: {', '.join(f'{number:.0f}' for number in region.corners)} "
        f"in pixels of {width} x {height}"
        for region in answered.boxes
    ]


_READING_INTRODUCTION = """# A radiograph, read step by step
Drop in a frontal chest radiograph. {correcting}

The network was trained on: {trained_on}.

For research; **not a medical device**. Nothing is kept: a file is deleted as soon as it is read."""
_CORRECTING = (
    "Click another answer of a step to correct it: the other answers follow. The step marked *worth checking* is the "
    "one whose answer is expected to raise the accuracy of the last step most."
)
_IGNORING = (
    "Click another answer of a step to correct it. This run did not measure that its later answers follow a given one, "
    "so expect none to change (docs/corrections.md)."
)
_NOTHING_READ = "<p>Drop in a radiograph to see it read.</p>"
_ZOOM = (pathlib.Path(__file__).parent / "zoom.js").read_text(encoding="utf-8")


def make_blocks(
    explainer: Explainer | None,
    gradio: Any,
    *,
    uploads: Uploads,
    reader: PolicyReader | None = None,
    examples: tuple[Example, ...] = (),
) -> Any:
    """Return the page as Gradio blocks, with tabs if explainer and reader are given."""
    # An upload that is never read, such as one replaced before its turn, is deleted within two minutes.
    with gradio.Blocks(title="Step-CoT", analytics_enabled=False, delete_cache=(60, 60)) as blocks:
        if explainer is not None and reader is not None:
            with gradio.Tab("Steps"):
                _add_reading(explainer, gradio, examples, uploads)
            with gradio.Tab("Questions"):
                add_answering(reader, gradio, uploads)
        elif explainer is not None:
            _add_reading(explainer, gradio, examples, uploads)
        elif reader is not None:
            add_answering(reader, gradio, uploads)
    return blocks.queue(max_size=100)


def _add_reading(explainer: Explainer, gradio: Any, examples: tuple[Example, ...], uploads: Uploads) -> None:
    can_correct = takes_corrections(explainer)
    steps = explainer.trained.chain.steps
    promise = _CORRECTING if follows_corrections(explainer) else _IGNORING
    trained_on = escape_markdown(explainer.trained.trained_on)
    gradio.Markdown(_READING_INTRODUCTION.format(correcting=promise if can_correct else "", trained_on=trained_on))
    session = gradio.State(None, time_to_live=SECONDS_KEPT)
    file = gradio.File(**_UPLOAD, elem_id="radiograph")
    gallery = gradio.HTML(write_examples(examples), elem_id="examples", js_on_load=CLICKED, visible=bool(examples))
    with gradio.Row():
        with gradio.Column(scale=3, min_width=320):
            view = gradio.HTML(_NOTHING_READ, elem_id="view", js_on_load=_ZOOM)
        with gradio.Column(scale=2, min_width=320):
            undo = gradio.Button("Undo corrections", interactive=False, visible=can_correct, elem_id="undo")
            radios = [
                gradio.Radio(list(step.options), label=step.name, info=step.question, interactive=False)
                for step in steps
            ]
    show = functools.partial(_show, explainer, gradio, can_correct)
    outputs = [session, view, undo, *radios]
    how = {"outputs": outputs, "api_visibility": "private", "show_progress": "minimal"}
    file.upload(lambda path: show(lambda: path and start_session(uploads.read_once(path), explainer)), file, **how)
    file.clear(lambda: show(lambda: None), None, **how)

    def read_example(event: gradio.EventData) -> list[Any]:
        return show(lambda: start_session(examples[event.index].image, explainer))

    gallery.select(read_example, None, **how)
    undo.click(lambda session: show(lambda: session and session.undo()), session, **how)
    for step, radio in zip(steps, radios, strict=True):
        radio.input(functools.partial(_choose, show, step.name), [session, radio], **how)


def _choose(show: Callable[[Any], list[Any]], step: str, session: Session | None, answer: str | None) -> list[Any]:
    return show(lambda: session if session is None or answer is None else session.correct(step, answer))


def _show(explainer: Explainer, gradio: Any, can_correct: bool, change: Callable[[], Session | None]) -> list[Any]:
    """Return session, view, button and answers after a change; after a failed one, the view is the error alone."""
    message = _NOTHING_READ
    try:
        session = change()
        if session is not None:
            view, steps = read_session(session, explainer)
    except BadInput as error:  # as an error of Gradio's it would be repeated over every part of the page
        session, message = None, f'<p class="problem" role="alert">{html.escape(str(error))}</p>'
    if session is None:
        empty = [
            gradio.update(value=None, choices=list(step.options), label=step.name, interactive=False)
            for step in explainer.trained.chain.steps
        ]
        return [None, message, gradio.update(interactive=False), *empty]
    answers = [
        gradio.update(value=step.answer, choices=list(step.choices), label=step.label, interactive=can_correct)
        for step in steps
    ]
    return [session, view, gradio.update(interactive=any(step.given for step in steps)), *answers]
