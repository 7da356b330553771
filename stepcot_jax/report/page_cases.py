"""The cases that a page can be browsed by: picture, report, and at each step truth, answer, confidence and map."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from stepcot_jax.chain import Chain
from stepcot_jax.report.embedded_pictures import write_map
from stepcot_jax.report.markup import Html, embed_json, join, show, tag


@dataclasses.dataclass(frozen=True)
class ShownCase:
    """One case of the page.

    Attributes:
      name: what the case is called, such as its image's path.
      about: origin and projection, in words; "" where unknown.
      picture: data URI; None where the page has no pictures.
      report: of the radiologist; "" where there is none.
      truth: int [step], `NOT_ANNOTATED` where nobody answered.
      probabilities: float [step, answer] of the network, calibrated where it was; padding beyond a step's answers.
      sets: bool [step, answer], the calibrated answer sets; None without calibration.
      inconsistent: which rule the answers break, in words; "" if none.
      maps: float [step, height, width], not negative; None where there are none.
    """

    name: str
    about: str
    picture: str | None
    report: str
    truth: Int[np.ndarray, "step"]
    probabilities: Float[np.ndarray, "step answer"]
    sets: Bool[np.ndarray, "step answer"] | None = None
    inconsistent: str = ""
    maps: Float[np.ndarray, "step height width"] | None = None


def draw_places(num_cases: int, num_shown: int, *, seed: int = 0) -> list[int]:
    """Places of the cases to show: all of them, or so many drawn at random, ascending."""
    if num_shown >= num_cases:
        return list(range(num_cases))
    return sorted(np.random.default_rng(seed).choice(num_cases, num_shown, replace=False).tolist())


def write_cases(cases: Sequence[ShownCase], chain: Chain, *, notes: Sequence[str]) -> Html:
    """The section's content: filters, gallery, the dialog of one case, and the data of all of them.

    Args:
      cases: those to show.
      chain: steps with their options.
      notes: what a reader has to know of them, one sentence each.
    """
    data = {
        "steps": [
            {"name": show(step.name), "question": show(step.question), "options": [show(text) for text in step.options]}
            for step in chain.steps
        ],
        "cases": [_as_data(case, chain) for case in cases],
    }
    return join(
        *(tag("p", note, class_="note") for note in notes),
        tag("noscript", tag("p", "The cases need JavaScript, which this page runs from its own text alone.")),
        _write_filters(cases, chain),
        tag("p", id="count", role="status"),
        tag("p", "No case is like that.", id="nothing", class_="note", hidden=True),
        tag("ul", id="gallery"),
        _write_dialog(),
        embed_json(data, name="case-data"),
    )


def _as_data(case: ShownCase, chain: Chain) -> dict[str, Any]:
    own = [row[:num_answers] for row, num_answers in zip(case.probabilities, chain.answers_per_step, strict=True)]
    sets = None
    if case.sets is not None:
        sets = [
            np.flatnonzero(row[:num_answers]).tolist()
            for row, num_answers in zip(case.sets, chain.answers_per_step, strict=True)
        ]
    return {
        "name": show(case.name),
        "about": show(case.about),
        "picture": case.picture,
        "report": show(case.report),
        "truth": [int(label) for label in case.truth],
        "answers": [int(row.argmax()) for row in own],
        "confidences": [round(float(row.max()), 4) for row in own],
        "sets": sets,
        "inconsistent": show(case.inconsistent),
        "maps": None if case.maps is None else [write_map(values) for values in case.maps],
    }


def _write_filters(cases: Sequence[ShownCase], chain: Chain) -> Html:
    """Shown by the script, without which they would do nothing."""
    choices = [
        tag("label", tag("input", type="radio", name="result", value=value, checked=value == "all"), text)
        for value, text in (("all", "All"), ("right", "Right"), ("wrong", "Wrong"))
    ]
    last = chain.num_steps - 1
    judged = [tag("option", "every step", value="chain")]
    judged += [tag("option", step.name, value=place, selected=place == last) for place, step in enumerate(chain.steps)]
    truths = [int(case.truth[last]) for case in cases]
    diagnoses = [tag("option", f"any ({len(cases)})", value="any")]
    diagnoses += [
        tag("option", f"{option} ({truths.count(label)})", value=label)
        for label, option in enumerate(chain.steps[last].options)
        if label in truths
    ]
    num_inconsistent = sum(case.inconsistent != "" for case in cases)
    box = tag("input", type="checkbox", name="inconsistent")
    return tag(
        "form",
        tag("fieldset", tag("legend", "Answered"), tag("div", *choices, class_="choices")),
        _write_field("judged at", tag("select", *judged, name="judged")),
        _write_field(f"truth: {chain.steps[last].name}", tag("select", *diagnoses, name="diagnosis")),
        tag("label", box, f" inconsistent only ({num_inconsistent})", class_="check"),
        id="filters",
        hidden=True,
    )


def _write_field(label: str, control: Html) -> Html:
    return tag("label", tag("span", label), control, class_="field")


def _write_dialog() -> Html:
    controls = [
        tag("button", text, type="button", id=f"case-{name}", aria_label=label)
        for name, text, label in (
            ("previous", "←", "previous case"),
            ("next", "→", "next case"),
            ("close", "Close", "close this case"),
        )
    ]
    place = tag("span", id="case-place", class_="note")
    bar = tag(
        "div",
        tag("h3", id="case-title"),
        tag("span", id="case-about", class_="note"),
        tag("div", place, *controls, class_="controls"),
        class_="bar-top",
    )
    return tag("dialog", bar, tag("div", id="case-body"), id="case", aria_labelledby="case-title")
