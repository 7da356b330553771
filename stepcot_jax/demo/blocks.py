"""The demo's page in Gradio: its parts and their events."""

import functools
import pathlib
from collections.abc import Callable
from typing import Any

from stepcot_jax.demo.sessions import MAX_MEGABYTES, Session, read_session, take_upload, takes_corrections
from stepcot_jax.explain.saliency import Explainer
from stepcot_jax.host.errors import BadInput
from stepcot_jax.predict.corrections import follows_corrections

_SUFFIXES = [".png", ".jpg", ".jpeg", ".dcm", ".dicom"]
_SECONDS_KEPT = 1800  # of a radiograph in memory after the last click
_INTRODUCTION = """# A radiograph, read step by step
Drop in a frontal chest radiograph. {correcting}

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


def make_blocks(explainer: Explainer, gradio: Any) -> Any:
    """Return the page as Gradio blocks.

    Args:
      explainer: of the network that reads, with batch size 1.
      gradio: the library, an optional dependency.
    """
    can_correct = takes_corrections(explainer)
    steps = explainer.trained.chain.steps
    # An upload that is never read, such as one replaced before its turn, is deleted within two minutes.
    with gradio.Blocks(title="Step-CoT", analytics_enabled=False, delete_cache=(60, 60)) as blocks:
        promise = _CORRECTING if follows_corrections(explainer.trained, model=explainer.model) else _IGNORING
        gradio.Markdown(_INTRODUCTION.format(correcting=promise if can_correct else ""))
        session = gradio.State(None, time_to_live=_SECONDS_KEPT)
        label = f"Radiograph: PNG, JPEG or DICOM, at most {MAX_MEGABYTES} MB"
        file = gradio.File(label=label, file_types=_SUFFIXES, height=150, elem_id="radiograph")
        with gradio.Row():
            with gradio.Column(scale=3, min_width=320):
                view = gradio.HTML(_NOTHING_YET, elem_id="view")
            with gradio.Column(scale=2, min_width=320):
                undo = gradio.Button("Undo corrections", interactive=False, visible=can_correct, elem_id="undo")
                radios = [
                    gradio.Radio(list(step.options), label=step.name, info=step.question, interactive=False)
                    for step in steps
                ]
        events = _Events(explainer, gradio, can_correct)
        outputs = [session, view, undo, *radios]
        how = {"outputs": outputs, "api_visibility": "private", "show_progress": "minimal"}
        file.upload(events.upload, file, **how)
        file.clear(events.forget, None, **how)
        undo.click(events.undo, session, **how)
        for step, radio in zip(steps, radios, strict=True):
            radio.input(functools.partial(events.choose, step.name), [session, radio], **how)
    return blocks


class _Events:
    """Handlers of the page's events; each returns the new state of every output."""

    def __init__(self, explainer: Explainer, gradio: Any, can_correct: bool) -> None:
        self._explainer, self._gradio, self._can_correct = explainer, gradio, can_correct

    def upload(self, path: str | None) -> list[Any]:
        """Read a dropped file."""
        return self._show(lambda: None if path is None else take_upload(pathlib.Path(path), self._explainer))

    def forget(self) -> list[Any]:
        """Forget the removed file."""
        return self._show(lambda: None)

    def undo(self, session: Session | None) -> list[Any]:
        """Remove the corrections."""
        return self._show(lambda: None if session is None else session.undo())

    def choose(self, step: str, session: Session | None, answer: str | None) -> list[Any]:
        """Correct the answer of a step."""
        return self._show(lambda: session if session is None or answer is None else session.correct(step, answer))

    def _show(self, change: Callable[[], Session | None]) -> list[Any]:
        """Return session, view, button and answers after a change; a failed change is reported and undone."""
        try:
            session = change()
            if session is None:
                return [None, _NOTHING_YET, self._gradio.update(interactive=False), *self._empty_answers()]
            view, steps = read_session(session, self._explainer)
        except BadInput as error:
            raise self._gradio.Error(str(error), print_exception=False) from None
        answers = [
            self._gradio.update(
                value=step.answer, choices=list(step.choices), label=step.label, interactive=self._can_correct
            )
            for step in steps
        ]
        return [session, view, self._gradio.update(interactive=any(step.given for step in steps)), *answers]

    def _empty_answers(self) -> list[Any]:
        return [
            self._gradio.update(value=None, choices=list(step.options), label=step.name, interactive=False)
            for step in self._explainer.trained.chain.steps
        ]
