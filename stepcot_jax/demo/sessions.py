"""What a visitor of the demo looks at: an upload that is read and deleted, and corrections of its reading."""

import dataclasses
import os
import pathlib

import numpy as np
from jaxtyping import UInt8

from stepcot_jax.explain.drawing import explain_pictures
from stepcot_jax.explain.saliency import Explainer
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import read_file
from stepcot_jax.predict.corrections import label_corrections
from stepcot_jax.predict.radiographs import read_picture
from stepcot_jax.report.reading_view import write_reading_view

MAX_MEGABYTES = 64
"""Largest upload: the largest detectors write about 50 MB without compression."""


@dataclasses.dataclass(frozen=True)
class Session:
    """A visitor's radiograph; it lives in memory and goes with the visit.

    Attributes:
      picture: at the encoder's size.
      given: corrected answers by step.
    """

    picture: UInt8[np.ndarray, "size size 3"]
    given: dict[str, str] = dataclasses.field(default_factory=dict)

    def correct(self, step: str, answer: str) -> "Session":
        """The same radiograph with the answer of a step given in place of the network's."""
        return dataclasses.replace(self, given={**self.given, step: answer})

    def undo(self) -> "Session":
        """The same radiograph without corrections."""
        return dataclasses.replace(self, given={})


@dataclasses.dataclass(frozen=True)
class ShownStep:
    """One step as the page shows it.

    Attributes:
      label: name of the step, and whether it was corrected.
      answer: the option that is chosen.
      choices: (option with its probability, option).
      given: whether a person chose it.
    """

    label: str
    answer: str
    choices: tuple[tuple[str, str], ...]
    given: bool


def take_upload(path: str | os.PathLike[str], explainer: Explainer) -> Session:
    """Read an uploaded file and delete it, whatever it holds.

    Args:
      path: of the upload.
      explainer: of the network that will read it.

    Raises:
      BadInput: it is too large, or no image that can be read.
    """
    upload = pathlib.Path(path)
    try:
        content = read_file(upload, max_bytes=MAX_MEGABYTES * 10**6)
    except OSError as error:
        raise BadInput(f"upload: cannot be read ({error.strerror}), accepted is an image file") from None
    finally:
        upload.unlink(missing_ok=True)
    trained = explainer.trained
    max_pixels = int(trained.settings.data.max_megapixels * 1e6)
    return Session(read_picture(content, trained.preprocessing, max_pixels=max_pixels))


def read_session(session: Session, explainer: Explainer) -> tuple[str, tuple[ShownStep, ...]]:
    """The reading of a visitor's radiograph with its corrections: markup of it, and its steps.

    Raises:
      BadInput: a correction cannot be taken.
    """
    labels = label_corrections(session.given, explainer.trained.chain)
    explained, (reading,) = explain_pictures(explainer, ["radiograph"], [session.picture], labels)
    steps = tuple(
        ShownStep(
            label=answer.step.name + (" (corrected)" if answer.given else ""),
            answer=answer.answer,
            choices=tuple(
                (f"{option}  ({100 * share:.0f} %)", option)
                for option, share in zip(answer.step.options, answer.probabilities, strict=True)
            ),
            given=answer.given,
        )
        for answer in reading.steps
    )
    return write_reading_view(session.picture, explained.maps[0], reading), steps


def warm_up(explainer: Explainer) -> None:
    """Compile what a reading needs, so that the first visitor does not wait for it."""
    size = explainer.trained.preprocessing.size
    session = Session(np.zeros((size, size, 3), np.uint8))
    _, steps = read_session(session, explainer)
    if takes_corrections(explainer):
        read_session(session.correct(explainer.trained.chain.steps[0].name, steps[0].answer), explainer)


def takes_corrections(explainer: Explainer) -> bool:
    """Whether the network can be corrected; the student and a teacher without memory cannot."""
    try:
        explainer.reader.check_takes_answers()
    except BadInput:
        return False
    return True
