"""The cases to browse on the page: picture, report, and for each step the truth, answer, confidence and map."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int
from markupsafe import Markup

from stepcot_jax.chain import Chain
from stepcot_jax.host.pages import name_unseen
from stepcot_jax.report.embedded_pictures import write_map
from stepcot_jax.report.page import render


@dataclasses.dataclass(frozen=True)
class ShownCase:
    """One case of the page.

    Attributes:
      name: the case's name, such as its image's path.
      about: origin and projection, in words; "" where unknown.
      picture: data URI; None where the page has no pictures.
      report: of the radiologist; "" where there is none.
      truth: int [step], `NOT_ANNOTATED` where nobody answered.
      probabilities: float [step, answer] of the network, calibrated if the run was; padding beyond a step's answers.
      sets: bool [step, answer], the conformal answer sets; None without calibration.
      inconsistent: the rule that the answers break, in words; "" if none.
      maps: float [step, height, width], not negative; None without maps.
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

    @property
    def last_truth(self) -> int:
        """Label of the last step."""
        return int(self.truth[-1])


def write_cases(cases: Sequence[ShownCase], chain: Chain, *, notes: Sequence[str]) -> Markup:
    """Write the section's content: filters, gallery, the dialog of one case, and the data of all cases.

    Args:
      cases: those to show.
      chain: steps with their options.
      notes: one sentence each, above the filters.
    """
    # The page's script shows these texts as text, hence `name_unseen`, which the templates apply by themselves.
    steps = [
        {
            "name": name_unseen(step.name),
            "question": name_unseen(step.question),
            "options": [name_unseen(text) for text in step.options],
        }
        for step in chain.steps
    ]
    data = {"steps": steps, "cases": [_as_data(case, chain) for case in cases]}
    return render("cases.html.j2", notes=notes, cases=cases, steps=chain.steps, data=data)


def _as_data(case: ShownCase, chain: Chain) -> dict[str, Any]:
    own = [row[:num_answers] for row, num_answers in zip(case.probabilities, chain.answers_per_step, strict=True)]
    sets = None
    if case.sets is not None:
        rows = zip(case.sets, chain.answers_per_step, strict=True)
        sets = [np.flatnonzero(row[:num_answers]).tolist() for row, num_answers in rows]
    return {
        "name": name_unseen(case.name),
        "about": name_unseen(case.about),
        "picture": case.picture,
        "report": name_unseen(case.report),
        "truth": case.truth.tolist(),
        "answers": [int(row.argmax()) for row in own],
        "confidences": [round(float(row.max()), 4) for row in own],
        "sets": sets,
        "inconsistent": name_unseen(case.inconsistent),
        "maps": None if case.maps is None else [write_map(values) for values in case.maps],
    }
