"""The demo's tab for a policy: a radiograph, a question, and the reply with its boxes drawn."""

import base64
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import UInt8

from stepcot_jax.data.images.boxed_pictures import write_png
from stepcot_jax.demo.sessions import SECONDS_KEPT
from stepcot_jax.demo.uploads import MAX_MEGABYTES, SUFFIXES, Uploads
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.pages import make_environment
from stepcot_jax.predict.asked_questions import list_questions
from stepcot_jax.predict.policy_reader import Answered, PolicyReader
from stepcot_jax.predict.radiographs import read_pixels
from stepcot_jax.reasoning.record import KINDS

_TEMPLATES = make_environment(pathlib.Path(__file__).parent)
_NOTHING_YET = "<p>Drop in a radiograph and ask a question about it.</p>"
_GUESSED = "guess"
_INTRODUCTION = """# A radiograph, asked about
Drop in a frontal chest radiograph and ask about it. The reply names boxes, which are drawn over the picture.

For research; **not a medical device**. Nothing is kept: a file is deleted as soon as it is read."""


def add_answering(reader: PolicyReader, gradio: Any, uploads: Uploads) -> None:
    """Add the tab's parts and events to the blocks that are open."""
    gradio.Markdown(_INTRODUCTION)
    picture = gradio.State(None, time_to_live=SECONDS_KEPT)
    label = f"Radiograph: PNG, JPEG or DICOM, at most {MAX_MEGABYTES} MB"
    file = gradio.File(label=label, file_types=SUFFIXES, height=150, elem_id="asked-radiograph")
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

    def take_picture(path: str | None) -> tuple[Any, str]:
        if not path:
            return None, _NOTHING_YET
        return say(lambda: read_pixels(uploads.take(path), max_pixels=reader.trained.max_pixels)), _NOTHING_YET

    file.upload(take_picture, file, [picture, view], **how)
    file.clear(lambda: (None, _NOTHING_YET), None, [picture, view], **how)
    asked = [picture, question, choices, kind, sample, seed]
    ask.click(lambda *asked: say(answer_question, reader, *asked), asked, view, **how)


def answer_question(
    reader: PolicyReader,
    picture: UInt8[np.ndarray, "height width *channel"] | None,
    question: str | None,
    choices: str,
    kind: str,
    sample: bool,
    seed: float | None,
) -> str:
    """Return the reply to what a visitor entered, as markup."""
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
    return write_answer_view(answered)


def write_answer_view(answered: Answered) -> str:
    """Write the answer, the picture with its boxes, and the whole reply."""
    source = "data:image/png;base64," + base64.b64encode(write_png(answered.draw())).decode()
    return _TEMPLATES.get_template("answered.html.j2").render(answered=answered, picture=source, boxes=_list(answered))


def _list(answered: Answered) -> Sequence[str]:
    width, height = answered.image_size
    return [
        f"{region.name or 'without a name'}: {', '.join(f'{number:.0f}' for number in region.box)} "
        f"in pixels of {width} x {height}"
        for region in answered.boxes
    ]
