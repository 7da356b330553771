"""What the teacher answers when it is told the truth of the first steps: which later answers flip."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Bool, Float, Int

from stepcot_jax.chain import NOT_ANNOTATED, Chain
from stepcot_jax.report.markup import Html, join, tag
from stepcot_jax.report.result_tables import scrolled

NOT_GIVEN = -1

ReadGiven = Callable[[Int[np.ndarray, "case step"]], Float[np.ndarray, "case step answer"]]
"""From the answers given (`NOT_GIVEN` where the network is to answer) to the network's probabilities."""


@dataclasses.dataclass(frozen=True)
class Corrections:
    """Cases read again and again, each time with the truth of one step more.

    Attributes:
      names: what each case is called.
      truth: [case, step], `NOT_ANNOTATED` where nobody answered; such a step is left to the network.
      answers: [num_given, case, step], the network's own answers with the first `num_given` steps given, from 0.
      largest_shift: by how much the probability of any later answer moved at most when one step more was given.
    """

    names: Sequence[str]
    truth: Int[np.ndarray, "case step"]
    answers: Int[np.ndarray, "num_given case step"]
    largest_shift: float

    @property
    def flipped(self) -> Bool[np.ndarray, "num_given case step"]:
        """Whether a step that is not given is answered otherwise than with one step less; nothing at 0 given."""
        changed = np.zeros(self.answers.shape, bool)
        changed[1:] = self.answers[1:] != self.answers[:-1]
        return changed & _is_later(self.answers.shape[2])[:, None]


def read_corrections(read: ReadGiven, truth: Int[np.ndarray, "case step"], names: Sequence[str]) -> Corrections:
    """The answers with 0, 1, ... and all but the last step given.

    Args:
      read: the network.
      truth: [case, step], `NOT_ANNOTATED` where nobody answered.
      names: what each case is called.
    """
    given = np.where(truth == NOT_ANNOTATED, NOT_GIVEN, truth)
    read_again = []
    for num_given in range(truth.shape[1]):
        told = np.full_like(given, NOT_GIVEN)
        told[:, :num_given] = given[:, :num_given]
        read_again.append(read(told))
    probabilities = np.stack(read_again)
    shifts = np.abs(np.diff(probabilities, axis=0)).max(axis=-1, initial=0)
    later = shifts * _is_later(truth.shape[1])[1:, None]
    return Corrections(tuple(names), truth, probabilities.argmax(axis=-1), float(later.max(initial=0)))


def _is_later(num_steps: int) -> Bool[np.ndarray, "num_given step"]:
    """Which steps come after the given ones."""
    return np.arange(num_steps) >= np.arange(num_steps)[:, None]


def write_corrections(corrections: Corrections, chain: Chain, *, num_shown: int = 4) -> Html:
    """How many later answers flipped, for better or worse, and the cases with the most flips.

    Args:
      corrections: of some cases.
      chain: steps with their options.
      num_shown: number of cases that are shown step by step.
    """
    flipped = corrections.flipped
    by_case = flipped.sum(axis=(0, 2))
    order = np.argsort(-by_case, kind="stable")[:num_shown]
    shown = [_write_case(corrections, int(case), chain) for case in order if by_case[case]]
    return join(tag("p", _summarise(corrections)), *shown)


def _summarise(corrections: Corrections) -> str:
    flipped, truth = corrections.flipped, corrections.truth
    before = np.concatenate([corrections.answers[:1], corrections.answers[:-1]])
    annotated = truth != NOT_ANNOTATED
    to_right = int((flipped & annotated & (corrections.answers == truth)).sum())
    to_wrong = int((flipped & annotated & (before == truth)).sum())
    num_cases, num_flips = flipped.shape[1], int(flipped.sum())
    touched = int(flipped.any(axis=(0, 2)).sum())
    if not num_flips:
        hardly = ": this teacher reads each step from the picture, and hardly from its earlier answers"
        return (
            f"In none of {num_cases} cases did a later answer change when the truth of earlier steps was given, and no "
            f"later probability moved by more than {100 * corrections.largest_shift:.2g} percentage points"
            f"{hardly if corrections.largest_shift < 0.01 else ''}."
        )
    return (
        f"In {touched} of {num_cases} cases a later answer changed when the truth of earlier steps was given: "
        f"{num_flips} changes, {to_right} of them from wrong to right, {to_wrong} from right to wrong and "
        f"{num_flips - to_right - to_wrong} between answers that are both wrong or cannot be judged."
    )


def _write_case(corrections: Corrections, case: int, chain: Chain) -> Html:
    num_columns = len(corrections.answers)
    titles = ["Step", "Truth", "as read", *(f"{number} given" for number in range(1, num_columns))]
    rows = [tag("tr", *(tag("th", title, scope="col") for title in titles))]
    for place, step in enumerate(chain.steps):
        label = int(corrections.truth[case, place])
        truth = "not annotated" if label == NOT_ANNOTATED else step.options[label]
        cells = [_write_cell(corrections, num_given, case, place, step.options) for num_given in range(num_columns)]
        rows.append(tag("tr", tag("th", step.name, scope="row"), tag("td", truth), *cells))
    table = tag("table", tag("caption", corrections.names[case]), *rows, class_="correction")
    return scrolled(table, label=f"Corrections of {corrections.names[case]}")


def _write_cell(corrections: Corrections, num_given: int, case: int, place: int, options: Sequence[str]) -> Html:
    truth = int(corrections.truth[case, place])
    if place < num_given and truth != NOT_ANNOTATED:
        return tag("td", "given", class_="given")
    answer = int(corrections.answers[num_given, case, place])
    right, sign = ("right", "✓") if answer == truth else ("wrong", "✗")
    mark = tag("span", sign, class_=f"mark {right}", role="img", aria_label=right) if truth != NOT_ANNOTATED else None
    flipped = bool(corrections.flipped[num_given, case, place])
    return tag("td", mark, " ", options[answer], class_="flipped" if flipped else None)
