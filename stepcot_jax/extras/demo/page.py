"""The demo's page in Gradio: its parts and their events."""

import base64
import dataclasses
import functools
import html
from collections.abc import Callable
from typing import Any

import numpy as np

from stepcot_jax.data.images.drawn_boxes import write_png
from stepcot_jax.extras.demo import readings
from stepcot_jax.extras.demo.guard import MAX_MEGABYTES, Uploads
from stepcot_jax.extras.demo.readings import Session, start_session
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.text import escape_markdown
from stepcot_jax.reading.explain import Explainer
from stepcot_jax.reading.policy_reader import Answered, PolicyReader, list_questions
from stepcot_jax.reading.radiographs import read_unresized

_SECONDS_KEPT = 1800  # how long a radiograph stays in memory after the last click
_INTRODUCTION = """# A radiograph, {how}
Drop in a frontal chest radiograph. {then}

For research; **not a medical device**. Nothing is kept: a file is deleted as soon as it is read."""
_UPLOAD: dict[str, Any] = {
    "label": f"Radiograph: PNG, JPEG or DICOM, at most {MAX_MEGABYTES} MB",
    "file_types": [".png", ".jpg", ".jpeg", ".dcm", ".dicom"],
    "height": 150,
}
# In turn: else the example that is read when the page opens could end after a file that was dropped meanwhile.
_HOW: dict[str, Any] = {"api_visibility": "private", "show_progress": "minimal", "concurrency_id": "reading"}


def make_blocks(gradio: Any, uploads: Uploads, reader: Explainer | PolicyReader) -> Any:
    """Return the page of a network or a policy as Gradio blocks."""
    with gradio.Blocks(title="Step-CoT", analytics_enabled=False, delete_cache=(60, 60)) as blocks:
        if isinstance(reader, PolicyReader):
            _add_answering(gradio, reader, uploads)
        else:
            _add_reading(gradio, blocks, reader, uploads)
    return blocks.queue(max_size=100)


def warm_up(reader: Explainer | PolicyReader) -> None:
    """Compile a reading or a reply, so that the first visitor does not wait."""
    if isinstance(reader, PolicyReader):
        reader.warm_up()
    else:
        readings.read_session(start_session(np.zeros((64, 64), np.uint8), reader), reader)


def _add_reading(gradio: Any, blocks: Any, explainer: Explainer, uploads: Uploads) -> None:
    examples = readings.draw_examples(explainer.trained)
    shown_first = next(iter(examples), None)
    can_correct, steps = readings.takes_corrections(explainer), explainer.trained.chain.steps
    follow = ", and see the others follow" if readings.follows_corrections(explainer) else ""
    then = f"Click another answer of a step to correct it{follow}. " if can_correct else ""
    then += f"The network was trained on: {escape_markdown(explainer.trained.trained_on)}."
    gradio.Markdown(_INTRODUCTION.format(how="read step by step", then=then))
    session = gradio.State(None, time_to_live=_SECONDS_KEPT)
    with gradio.Row():
        file = gradio.File(**_UPLOAD, elem_id="radiograph")
        about = {"label": "Or try one of these", "elem_id": "examples", "visible": bool(examples)}
        example = gradio.Radio(list(examples), value=shown_first, **about)
    with gradio.Row():
        with gradio.Column(scale=2, min_width=320):
            effect = gradio.HTML(elem_id="effect")
            radios = [
                gradio.Radio(list(step.options), label=step.name, info=step.question, interactive=False)
                for step in steps
            ]
            undo = gradio.Button("Undo corrections", interactive=False, visible=can_correct, elem_id="undo")
        with gradio.Column(scale=3, min_width=320):
            view = gradio.HTML(elem_id="view")

    def show(change: Callable[..., Session | None], *inputs: Any) -> list[Any]:
        """Return session, view, effect, button and answers after a change; after a failed one the error alone."""
        message = ""
        try:
            changed = change(*inputs)
            if changed is not None:
                markup, told, values = readings.read_session(changed, explainer)
                updates = [gradio.update(**value, interactive=can_correct) for value in values]
                return [changed, markup, told, gradio.update(interactive=bool(changed.given)), *updates]
        except BadInput as error:  # as an error of Gradio's it would be repeated over every part of the page
            message = f'<p class="problem" role="alert">{html.escape(str(error))}</p>'
        empty = [
            gradio.update(value=None, choices=list(step.options), label=step.name, interactive=False) for step in steps
        ]
        return [None, message, "", gradio.update(interactive=False), *empty]

    changes: list[tuple[Any, Callable[..., Session | None], Any]] = [
        (blocks.load, lambda: start_session(examples[shown_first], explainer) if shown_first else None, None),
        (file.upload, lambda path: start_session(uploads.read_once(path), explainer), file),
        (file.clear, lambda: None, None),
        (example.input, lambda name: start_session(examples[name], explainer), example),
        (undo.click, lambda now: now and now._replace(given={}), session),
    ]
    for step, radio in zip(steps, radios, strict=True):

        def correct(now: Session | None, answer: str | None, *, name: str = step.name) -> Session | None:
            return now and now._replace(given={**now.given, name: answer} if answer else now.given)

        changes.append((radio.input, correct, [session, radio]))
    for event, change, inputs in changes:
        event(functools.partial(show, change), inputs, [session, view, effect, undo, *radios], **_HOW)


def _add_answering(gradio: Any, reader: PolicyReader, uploads: Uploads) -> None:
    then = "Ask about it: the reply names boxes, which are drawn over the picture."
    gradio.Markdown(_INTRODUCTION.format(how="asked about", then=then))
    picture = gradio.State(None, time_to_live=_SECONDS_KEPT)
    file = gradio.File(**_UPLOAD, elem_id="asked-radiograph")
    known = list_questions(reader.trained.workdir, most=12)
    with gradio.Row():
        with gradio.Column(scale=2, min_width=320):
            asked = {"value": known[0] if known else "", "label": "Question", "allow_custom_value": True}
            question = gradio.Dropdown(known, **asked, elem_id="question")
            choices = gradio.Textbox(label="Choices, one a line; empty for none", lines=4, elem_id="choices")
            ask = gradio.Button("Ask", variant="primary", elem_id="ask")
        with gradio.Column(scale=3, min_width=320):
            view = gradio.HTML(elem_id="answer")

    def say(function: Callable[..., Any], *inputs: Any) -> Any:
        try:
            return function(*inputs)
        except BadInput as error:
            raise gradio.Error(str(error), print_exception=False) from None

    def read(path: str) -> tuple[Any, str]:
        return read_unresized(uploads.read_once(path), max_pixels=reader.trained.run.max_pixels), ""

    def answer(seen: Any, question: str | None, choices: str) -> str:
        if seen is None:
            raise BadInput("no radiograph yet; drop one in first")
        lines = [line.strip() for line in choices.splitlines() if line.strip()]
        answered = reader.answer(seen[0], question or "", choices=lines)
        return write_answer(dataclasses.replace(answered, notes=seen[1].notes))

    file.upload(functools.partial(say, read), file, [picture, view], **_HOW)
    file.clear(lambda: (None, ""), None, [picture, view], **_HOW)
    ask.click(functools.partial(say, answer), [picture, question, choices], view, **_HOW)


def write_answer(answered: Answered) -> str:
    """Return markup with the answer, the picture with its boxes, and the full reply."""
    source = "data:image/png;base64," + base64.b64encode(write_png(answered.draw())).decode()
    return readings.TEMPLATES.get_template("answered.html.j2").render(answered=answered, picture=source)
