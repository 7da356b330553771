"""The demo's page in Gradio: its parts and their events."""

import functools
import html
import pathlib
from collections.abc import Callable
from typing import Any

from stepcot_jax.demo.answering import add_answering
from stepcot_jax.demo.examples import CLICKED, Example, write_examples
from stepcot_jax.demo.sessions import (
    SECONDS_KEPT,
    Session,
    read_session,
    start_session,
    takes_corrections,
)
from stepcot_jax.demo.uploads import MAX_MEGABYTES, SUFFIXES, Uploads
from stepcot_jax.explain.saliency import Explainer
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.text import escape_markdown
from stepcot_jax.predict.corrections import follows_corrections
from stepcot_jax.predict.policy_reader import PolicyReader

_INTRODUCTION = """# A radiograph, read step by step
Drop in a frontal chest radiograph. {correcting}

The network was trained on: {trained_on}.

For research; **not a medical device**. Nothing is kept: a file is deleted as soon as it is read."""
_CORRECTING = (
    "Click another answer of a step to correct it: later answers and their maps follow. The step marked *worth "
    "checking* is the one whose answer is expected to settle the last step most."
)
_IGNORING = (
    "Click another answer of a step to correct it. This run did not measure that its later answers follow a given one, "
    "so expect none to change (docs/corrections.md)."
)
_NOTHING_YET = "<p>Drop in a radiograph to see it read.</p>"
_ZOOM = (pathlib.Path(__file__).parent / "zoom.js").read_text(encoding="utf-8")


def make_blocks(
    explainer: Explainer | None,
    gradio: Any,
    *,
    uploads: Uploads,
    reader: PolicyReader | None = None,
    examples: tuple[Example, ...] = (),
) -> Any:
    """Return the page as Gradio blocks, with a tab for each of the two if both are given."""
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
    promise = _CORRECTING if follows_corrections(explainer.trained, model=explainer.model) else _IGNORING
    trained_on = escape_markdown(explainer.trained.trained_on)
    gradio.Markdown(_INTRODUCTION.format(correcting=promise if can_correct else "", trained_on=trained_on))
    session = gradio.State(None, time_to_live=SECONDS_KEPT)
    label = f"Radiograph: PNG, JPEG or DICOM, at most {MAX_MEGABYTES} MB"
    file = gradio.File(label=label, file_types=SUFFIXES, height=150, elem_id="radiograph")
    gallery = gradio.HTML(write_examples(examples), elem_id="examples", js_on_load=CLICKED, visible=bool(examples))
    with gradio.Row():
        with gradio.Column(scale=3, min_width=320):
            view = gradio.HTML(_NOTHING_YET, elem_id="view", js_on_load=_ZOOM)
        with gradio.Column(scale=2, min_width=320):
            undo = gradio.Button("Undo corrections", interactive=False, visible=can_correct, elem_id="undo")
            radios = [
                gradio.Radio(list(step.options), label=step.name, info=step.question, interactive=False)
                for step in steps
            ]
    show = functools.partial(_show, explainer, gradio, can_correct)
    outputs = [session, view, undo, *radios]
    how = {"outputs": outputs, "api_visibility": "private", "show_progress": "minimal"}
    file.upload(lambda path: show(lambda: path and start_session(uploads.take(path), explainer)), file, **how)
    file.clear(lambda: show(lambda: None), None, **how)

    def take_example(event: gradio.EventData) -> list[Any]:
        return show(lambda: start_session(examples[event.index].image, explainer))

    gallery.select(take_example, None, **how)
    undo.click(lambda session: show(lambda: session and session.undo()), session, **how)
    for step, radio in zip(steps, radios, strict=True):
        radio.input(functools.partial(_choose, show, step.name), [session, radio], **how)


def _choose(show: Callable[[Any], list[Any]], step: str, session: Session | None, answer: str | None) -> list[Any]:
    """Correct the answer of a step."""
    return show(lambda: session if session is None or answer is None else session.correct(step, answer))


def _show(explainer: Explainer, gradio: Any, can_correct: bool, change: Callable[[], Session | None]) -> list[Any]:
    """Return session, view, button and answers after a change; after one that failed the reason alone is shown."""
    said = _NOTHING_YET
    try:
        session = change()
        if session is not None:
            view, steps = read_session(session, explainer)
    except BadInput as error:  # as an error of Gradio's it would be repeated over every part of the page
        session, said = None, f'<p class="problem" role="alert">{html.escape(str(error))}</p>'
    if session is None:
        empty = [
            gradio.update(value=None, choices=list(step.options), label=step.name, interactive=False)
            for step in explainer.trained.chain.steps
        ]
        return [None, said, gradio.update(interactive=False), *empty]
    answers = [
        gradio.update(value=step.answer, choices=list(step.choices), label=step.label, interactive=can_correct)
        for step in steps
    ]
    return [session, view, gradio.update(interactive=any(step.given for step in steps)), *answers]
