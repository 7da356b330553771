"""Training targets of uncertain answers: ignored, negative or positive (Irvin et al., CheXpert, AAAI 2019).

An uncertain answer is never among the labels: validation, test and calibration never count it as the truth.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from jaxtyping import Bool, Int, Int32, Integer

from stepcot_jax.chain import NEGATIVE_OPTIONS, Chain, find_one_answer
from stepcot_jax.data.splits.splits import SPLIT_NAMES
from stepcot_jax.host.errors import BadInput

Treatment = Literal["ignore", "negative", "positive"]
"""What training takes an uncertain answer for: not annotated, the step's negative option, or a certain answer."""


def make_targets(
    *,
    labels: Int[np.ndarray, "case step"],
    uncertain: Int[np.ndarray, "case step"],
    chain: Chain,
    treatment: Treatment,
) -> Int32[np.ndarray, "case step"]:
    """Return the labels that training compares the network's answers with; NOT_ANNOTATED without a loss."""
    labels, doubtful = labels.astype(np.int32), uncertain >= 0
    if treatment == "ignore" or not doubtful.any():
        return labels
    negative = treatment == "negative"
    taken = _find_negatives(chain, doubtful.sum(axis=0).tolist()) if negative else uncertain
    return np.where(doubtful, taken, labels).astype(np.int32)


def _find_negatives(chain: Chain, num_uncertain: Sequence[int]) -> Int32[np.ndarray, " step"]:
    """Return the label of each step's negative option, -1 for a step without one and without uncertain answers."""
    for step, number in zip(chain.steps, num_uncertain, strict=True):
        if number and step.negative is None:
            raise BadInput(
                f"config.data.uncertain: 'negative' needs a negative option; step {step.name!r} ({number} uncertain "
                f"training answers) offers none of {', '.join(NEGATIVE_OPTIONS)}; expected 'ignore' or 'positive'"
            )
    return np.array([-1 if step.negative is None else step.negative for step in chain.steps], np.int32)


_OF_ONE_ANSWER = {
    "train": ("nothing to learn there", "nothing to learn"),
    "val": ("not counted for the best weights", "no best weights can be chosen, the last are kept"),
    "test": ("not in the mean accuracy", "there is no mean accuracy"),
}
"""Consequence for a split whose annotated cases all have the same answer at a step, and at every step."""


def note_one_answers(
    labels: Integer[np.ndarray, "case step"],
    member: Bool[np.ndarray, "split case"],
    targets: Int32[np.ndarray, "case step"],
    chain: Chain,
) -> list[str]:
    """Return a note for each split whose annotated cases all have the same answer at some step; none for a tree."""
    if chain.is_tree:  # most of whose hundreds of steps are rarely asked
        return []
    notes = []
    for name, in_split in zip(SPLIT_NAMES, member, strict=True):
        counted = targets if name == "train" else labels[in_split]
        same = find_one_answer(counted)
        annotated = (counted >= 0).any(axis=0)
        if not same.any():
            continue
        steps = ", ".join(step.name for step, is_same in zip(chain.steps, same, strict=True) if is_same)
        of_a_step, of_all = _OF_ONE_ANSWER[name]
        follows = of_all if same.sum() == annotated.sum() else of_a_step
        share = f"{same.sum()} of {annotated.sum()} steps"
        notes.append(f"every case of the {name} split has the same answer at {steps} ({share}): {follows}")
    return notes
