"""A visitor's radiograph in the demo: an upload that is read and deleted, and corrections of its reading."""

import base64
import dataclasses
import json
import pathlib
from typing import Any

import numpy as np
from jaxtyping import UInt8

from stepcot_jax.data.images.preprocessing import repeat_grey, resize_image
from stepcot_jax.pages.pictures import write_map_layer, write_overlay, write_picture
from stepcot_jax.pages.shell import make_environment
from stepcot_jax.reading import corrections
from stepcot_jax.reading.asking import NextStep, find_next_steps
from stepcot_jax.reading.corrections import accepts_answers, given_distributions
from stepcot_jax.reading.explain import Explainer, Explanation
from stepcot_jax.reading.image_reader import explain_pictures
from stepcot_jax.reading.radiographs import Header, read_unresized, to_input
from stepcot_jax.reading.readings import ChainReading, describe_shifts

SECONDS_KEPT = 1800  # How long a radiograph stays in memory after the last click

MAX_DETAIL = 1024  # Side in pixels of the picture that can be zoomed into

SAVED_NAME = "reading.json"  # File name of a saved reading

_TEMPLATES = make_environment(pathlib.Path(__file__).parent)


@dataclasses.dataclass(frozen=True)
class Session:
    """A visitor's radiograph, which is kept in memory for the visit."""

    picture: UInt8[np.ndarray, "size size 3"]
    detail: UInt8[np.ndarray, "side side 3"]  # at most `MAX_DETAIL` a side
    given: dict[str, str] = dataclasses.field(default_factory=dict)
    header: Header = dataclasses.field(default_factory=Header)

    def correct(self, step: str, answer: str) -> "Session":
        """Return the same radiograph with a given answer in place of the network's."""
        return dataclasses.replace(self, given={**self.given, step: answer})

    def undo(self) -> "Session":
        """Return the same radiograph without corrections."""
        return dataclasses.replace(self, given={})


@dataclasses.dataclass(frozen=True)
class ShownStep:
    """One step as the page shows it."""

    label: str  # name of the step, and whether it was corrected
    answer: str
    choices: tuple[tuple[str, str], ...]  # (option with its probability, option)
    given: bool  # whether a person chose it


def start_session(image: Any, explainer: Explainer) -> Session:
    """Return the session of a radiograph, a file or pixels, at the encoder's size and with detail for the page."""
    trained, preprocessing = explainer.trained, explainer.trained.preprocessing
    pixels, header = read_unresized(image, max_pixels=trained.max_pixels)  # decoded once, for both sizes
    pixels = repeat_grey(pixels) if pixels.ndim == 2 else pixels
    shortest, longest = sorted(pixels.shape[:2])
    side = longest if preprocessing.fit == "pad" else shortest
    detail = min(MAX_DETAIL, max(side, preprocessing.size))
    resized = preprocessing.resized * detail // preprocessing.size
    larger = dataclasses.replace(preprocessing, size=detail, resized=resized)
    return Session(resize_image(pixels, preprocessing), resize_image(pixels, larger), header=header)


def read_session(session: Session, explainer: Explainer) -> tuple[str, tuple[ShownStep, ...]]:
    """Return the reading of a visitor's radiograph with its corrections, as markup and as steps."""
    chain = explainer.trained.chain
    given = given_distributions(session.given, chain)
    explained, (reading,) = explain_pictures(
        explainer, names=["radiograph"], pictures=[session.picture], given=given, headers=[session.header]
    )
    asked = None
    if takes_corrections(explainer) and follows_corrections(explainer):
        read = explainer.reader.given_reader(to_input([session.picture], explainer.trained.preprocessing))
        run = explainer.trained.run
        (asked,) = find_next_steps(read, given[None], chain, costs=run.step_costs, least_gain=run.least_gain)
    worth = asked.step.name if asked else None
    marks = {True: " (corrected)", False: ""}
    steps = tuple(
        ShownStep(
            label=answer.step.name + (" (worth checking)" if answer.step.name == worth else marks[answer.given]),
            answer=answer.answer,
            choices=tuple(
                (f"{option}  ({100 * share:.0f} %)", option)
                for option, share in zip(answer.step.options, answer.probabilities, strict=True)
            ),
            given=answer.given,
        )
        for answer in reading.steps
    )
    view = write_reading_view(session.picture, detail=session.detail, explained=explained, reading=reading, asked=asked)
    return view, steps


def write_reading_view(
    picture: UInt8[np.ndarray, "size size 3"],
    *,
    detail: UInt8[np.ndarray, "side side 3"] | None = None,
    explained: Explanation,
    reading: ChainReading,
    asked: NextStep | None = None,
) -> str:
    """Return markup with the radiograph, a panel, map and claim for each step, the paragraph, and changes."""
    return _TEMPLATES.get_template("reading.html.j2").render(
        reading=reading,
        changes=_describe_changes(reading),
        asked=asked,
        picture=write_picture(picture),
        detail=write_picture(picture if detail is None else detail, max_side=MAX_DETAIL),
        overlays=[write_overlay(picture, values) for values in explained.maps[0]],
        layers=[write_map_layer(values) for values in explained.maps[0]],
        claims=[str(claim) for claim in explained.claims[0]],
        has_sets=any(answer.answer_set is not None for answer in reading.steps),
        saved=_save(reading),
        saved_name=SAVED_NAME,
        flipped={flip.step: flip.before for flip in reading.flipped},
    )


def _save(reading: ChainReading) -> str:
    """Return a corrected reading as a data URI of the file that `predict --given` takes; "" without corrections."""
    if not reading.has_given:
        return ""
    content = json.dumps(reading.as_dict(), indent=1, ensure_ascii=False)
    return "data:application/json;base64," + base64.b64encode(content.encode()).decode()


def _describe_changes(reading: ChainReading) -> str:
    if not any(answer.given for answer in reading.steps):
        return ""
    if reading.flipped:
        flips = "; ".join(f"{flip.step}: {flip.before} → {flip.after}" for flip in reading.flipped)
        return f"Changed by the correction: {flips}."
    moved = describe_shifts(reading.shifted)
    return f"The correction changed no other answer{moved and '; '}{moved}."


def warm_up(explainer: Explainer) -> None:
    """Compile a reading and a correction, so that the first visitor does not wait."""
    size = explainer.trained.preprocessing.size
    session = start_session(np.zeros((size, size, 3), np.uint8), explainer)
    _, steps = read_session(session, explainer)
    if takes_corrections(explainer):
        read_session(session.correct(explainer.trained.chain.steps[0].name, steps[0].answer), explainer)


def takes_corrections(explainer: Explainer) -> bool:
    """Return whether the network takes given answers."""
    return explainer.reader.joint is not None or accepts_answers(explainer.trained, model=explainer.model)


def follows_corrections(explainer: Explainer) -> bool:
    """Return whether other answers follow given ones: by the joint model, or as the run measured."""
    measured = corrections.follows_corrections(explainer.trained, model=explainer.model)
    return explainer.reader.joint is not None or measured
