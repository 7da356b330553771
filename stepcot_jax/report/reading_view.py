"""One reading of a radiograph as markup: a panel a step with its map, and what a correction changed."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, UInt8

from stepcot_jax.predict.answers import ChainReading, StepAnswer
from stepcot_jax.predict.changes import describe_shifts
from stepcot_jax.report.embedded_pictures import write_overlay, write_picture
from stepcot_jax.report.markup import Html, join, tag


def write_reading_view(
    picture: UInt8[np.ndarray, "size size 3"],
    maps: Float[np.ndarray, "step row column"],
    reading: ChainReading,
) -> Html:
    """The radiograph, a panel for each step, the paragraph, and the answers that a correction changed.

    Args:
      picture: as the network saw it.
      maps: for each step, not negative.
      reading: the answers.
    """
    flipped = {flip.step: flip.before for flip in reading.flipped}
    whole = tag("figure", tag("img", src=write_picture(picture), alt="the radiograph"), tag("figcaption", "As read"))
    panels = [
        _write_panel(answer, write_overlay(picture, values), flipped.get(answer.step.name))
        for answer, values in zip(reading.steps, maps, strict=True)
    ]
    return tag(
        "div",
        tag("p", reading.paragraph, class_="paragraph"),
        _write_flips(reading, flipped),
        tag("div", whole, *panels, class_="panels"),
        tag("p", "Bright: what in the picture speaks for the answer of that step.", class_="legend"),
        class_="reading",
    )


def _write_panel(answer: StepAnswer, source: str, before: str | None) -> Html:
    share = "given" if answer.given else f"{100 * answer.probability:.0f} %"
    lines = [tag("b", answer.step.name), f"{answer.answer} ({share})"]
    if before is not None:
        lines.append(tag("em", f"was {before}"))
    caption = tag("figcaption", *_separate(lines))
    image = tag("img", src=source, alt=f"where the answer to {answer.step.name} comes from")
    css_class = "given" if answer.given else "flipped" if before is not None else None
    return tag("figure", image, caption, class_=css_class)


def _separate(lines: Sequence[str]) -> list[Html]:
    return [join(line, tag("br")) for line in lines]


def _write_flips(reading: ChainReading, flipped: dict[str, str]) -> Html | None:
    if not any(answer.given for answer in reading.steps):
        return None
    if not flipped:
        moved = describe_shifts(reading.shifted)
        return tag("p", f"The correction changed no other answer{moved and '; '}{moved}.", class_="changes")
    changes = "; ".join(f"{flip.step}: {flip.before} → {flip.after}" for flip in reading.flipped)
    return tag("p", f"Changed by the correction: {changes}.", class_="changes")
