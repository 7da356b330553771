"""The teacher's answers once the truth of the first steps is given: which later answers flip."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int
from markupsafe import Markup

from stepcot_jax.chain import NOT_ANNOTATED, Chain
from stepcot_jax.predict.asking import NextStep
from stepcot_jax.report.page import render

NOT_GIVEN = -1

ReadGiven = Callable[[Int[np.ndarray, "case step"]], Float[np.ndarray, "case step answer"]]
"""From given answers (`NOT_GIVEN` where the network answers) to the network's probabilities."""


@dataclasses.dataclass(frozen=True)
class Corrections:
    """Readings of the same cases, each with the truth of one more step given.

    Attributes:
      truth: [case, step], `NOT_ANNOTATED` where nobody answered; the network answers such a step itself.
      answers: [num_given, case, step], the network's own answers with the first `num_given` steps given, from 0.
      largest_shift: largest change of a later answer's probability when one more step was given, 0 to 1.
      asked: of each case the step worth checking as read; None for none.
    """

    names: Sequence[str]
    truth: Int[np.ndarray, "case step"]
    answers: Int[np.ndarray, "num_given case step"]
    largest_shift: float
    asked: Sequence[NextStep | None] = ()

    @property
    def flipped(self) -> Bool[np.ndarray, "num_given case step"]:
        """Whether a step that is not given has another answer than with one step less given; False at 0 given."""
        changed = np.zeros(self.answers.shape, bool)
        changed[1:] = self.answers[1:] != self.answers[:-1]
        return changed & _is_later(self.answers.shape[2])[:, None]


def read_corrections(
    read: ReadGiven, *, truth: Int[np.ndarray, "case step"], names: Sequence[str], asked: Sequence[NextStep | None] = ()
) -> Corrections:
    """Read the cases with 0, 1, ... and all but the last step given.

    Args:
      truth: [case, step], `NOT_ANNOTATED` where nobody answered.
      asked: of each case the step worth checking as read; () if that was not looked for.
    """
    given = np.where(truth == NOT_ANNOTATED, NOT_GIVEN, truth)
    num_steps = truth.shape[1]
    probabilities = np.stack(
        [read(np.where(np.arange(num_steps) < num_given, given, NOT_GIVEN)) for num_given in range(num_steps)]
    )
    shifts = np.abs(np.diff(probabilities, axis=0)).max(axis=-1, initial=0)
    later = shifts * _is_later(num_steps)[1:, None]
    return Corrections(tuple(names), truth, probabilities.argmax(axis=-1), float(later.max(initial=0)), tuple(asked))


def _is_later(num_steps: int) -> Bool[np.ndarray, "num_given step"]:
    return np.arange(num_steps) >= np.arange(num_steps)[:, None]


def write_corrections(corrections: Corrections, chain: Chain, *, num_shown: int = 4) -> Markup:
    """Write how many later answers flipped, for better or worse, and the cases with the most flips."""
    by_case = corrections.flipped.sum(axis=(0, 2))
    order = np.argsort(-by_case, kind="stable")[:num_shown]
    return render(
        "corrections.html.j2",
        summary=_summarise(corrections),
        headers=["Step", "Truth", "as read", *(f"{number} given" for number in range(1, len(corrections.answers)))],
        cases=[_list_rows(corrections, int(case), chain) for case in order if by_case[case]],
        worth=_list_worth(corrections),
        last=chain.steps[-1].name,
    )


def _list_worth(corrections: Corrections) -> list[dict[str, Any]]:
    """Return the cases in which an answer to the step worth checking changes the last step, the likeliest first."""
    rows = []
    for name, asked in zip(corrections.names, corrections.asked, strict=False):
        if asked is not None and asked.changing:
            chance = sum(outcome.probability for outcome in asked.changing)
            rows.append({"name": name, "asked": asked, "chance": chance})
    return sorted(rows, key=lambda row: -row["chance"])


def _summarise(corrections: Corrections) -> str:
    flipped, truth = corrections.flipped, corrections.truth
    before = np.concatenate([corrections.answers[:1], corrections.answers[:-1]])
    annotated = truth != NOT_ANNOTATED
    to_right = int((flipped & annotated & (corrections.answers == truth)).sum())
    to_wrong = int((flipped & annotated & (before == truth)).sum())
    num_cases, num_flips = flipped.shape[1], int(flipped.sum())
    num_changed = int(flipped.any(axis=(0, 2)).sum())
    if not num_flips:
        hardly = ": this teacher reads each step from the picture, and hardly from its earlier answers"
        return (
            f"In none of {num_cases} cases did a later answer change when the truth of earlier steps was given, and no "
            f"later probability moved by more than {100 * corrections.largest_shift:.2g} percentage points"
            f"{hardly if corrections.largest_shift < 0.01 else ''}."
        )
    return (
        f"In {num_changed} of {num_cases} cases a later answer changed when the truth of earlier steps was given: "
        f"{num_flips} changes, {to_right} of them from wrong to right, {to_wrong} from right to wrong and "
        f"{num_flips - to_right - to_wrong} between two wrong answers or without a truth to compare with."
    )


def _list_rows(corrections: Corrections, case: int, chain: Chain) -> dict[str, Any]:
    """Return a case's name and, for each step, its truth and one cell for each number of given steps."""
    rows = []
    for place, step in enumerate(chain.steps):
        truth = int(corrections.truth[case, place])
        annotated = truth != NOT_ANNOTATED
        cells: list[dict[str, Any] | None] = []
        for num_given, answers in enumerate(corrections.answers):
            answer = int(answers[case, place])
            flipped = bool(corrections.flipped[num_given, case, place])
            right = answer == truth if annotated else None
            is_given = place < num_given and annotated
            cells.append(None if is_given else {"answer": step.options[answer], "flipped": flipped, "right": right})
        rows.append({"step": step.name, "truth": step.options[truth] if annotated else "not annotated", "cells": cells})
    return {"name": corrections.names[case], "rows": rows}
