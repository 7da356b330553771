"""Training targets of uncertain answers: ignored, negative, positive, or soft (Irvin et al., CheXpert, AAAI 2019).

An uncertain answer is never among the labels: validation and test never count it as the truth.
"""

import dataclasses
from collections.abc import Sequence
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float32, Int, Int32, Integer

from stepcot_jax.chain import NEGATIVE_OPTIONS, Chain, find_one_answer
from stepcot_jax.data.splits.splits import SPLIT_NAMES
from stepcot_jax.host.errors import BadInput

Treatment = Literal["ignore", "negative", "positive", "soft"]


@dataclasses.dataclass(frozen=True)
class UncertainAnswers:
    """How training treats uncertain answers."""

    treatment: Treatment = "ignore"  # as if nobody had answered
    weight: float = 0.5  # of a soft target: probability of the uncertain answer; the negative option has the rest


IGNORED = UncertainAnswers()  # uncertain answers add no loss


@dataclasses.dataclass(frozen=True)
class Targets:
    """Training targets, with which the losses compare the network's answers."""

    labels: Int32[np.ndarray, "case step"]  # NOT_ANNOTATED without a loss; the more probable answer of a soft target
    distributions: Float32[np.ndarray, "case step answer"] | None = None  # 0 without a loss; None if none is soft

    @property
    def has_one_answer(self) -> Bool[np.ndarray, " step"]:
        """Whether all targets of a step are the same certain answer (`chain.find_one_answer`)."""
        same = find_one_answer(self.labels)
        return same if self.distributions is None else same & (self.distributions.any(axis=0).sum(axis=1) == 1)


def make_targets(
    *,
    labels: Int[np.ndarray, "case step"],
    uncertain: Int[np.ndarray, "case step"],
    chain: Chain,
    rule: UncertainAnswers,
) -> Targets:
    """Return the targets of cases."""
    labels, doubtful = labels.astype(np.int32), uncertain >= 0
    if rule.treatment == "ignore" or not doubtful.any():
        return Targets(labels)
    if rule.treatment == "positive":
        return Targets(np.where(doubtful, uncertain, labels).astype(np.int32))
    negatives = _find_negatives(chain, doubtful.sum(axis=0).tolist(), treatment=rule.treatment)
    if rule.treatment == "negative":
        return Targets(np.where(doubtful, negatives, labels).astype(np.int32))
    spread = doubtful & (uncertain != negatives)  # an uncertain negative option is ignored: the alternative is unknown
    probable = np.where(spread, uncertain if rule.weight >= 0.5 else negatives, labels).astype(np.int32)
    answers = np.arange(max(chain.answers_per_step))
    sources = labels, np.where(spread, uncertain, -1), np.where(spread, negatives, -1)
    certain, positive, negative = ((source[..., None] == answers).astype(np.float32) for source in sources)
    weight = np.float32(rule.weight)
    return Targets(probable, certain + weight * positive + (np.float32(1) - weight) * negative)


def _find_negatives(chain: Chain, num_uncertain: Sequence[int], *, treatment: str) -> Int32[np.ndarray, " step"]:
    """Return the label of each step's negative option, -1 for a step without one and without uncertain answers."""
    for step, number in zip(chain.steps, num_uncertain, strict=True):
        if number and step.negative is None:
            raise BadInput(
                f"config.data.uncertain: {treatment!r} needs a negative option; step {step.name!r} ({number} uncertain "
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
    labels: Integer[np.ndarray, "case step"], member: Bool[np.ndarray, "split case"], targets: Targets, chain: Chain
) -> list[str]:
    """Return a note for each split whose annotated cases all have the same answer at some step; none for a tree."""
    if chain.is_tree:  # most of whose hundreds of steps are rarely asked
        return []
    notes = []
    for name, in_split in zip(SPLIT_NAMES, member, strict=True):
        counted = targets.labels if name == "train" else labels[in_split]
        same = targets.has_one_answer if name == "train" else find_one_answer(counted)
        annotated = (counted >= 0).any(axis=0)
        if not same.any():
            continue
        steps = ", ".join(step.name for step, is_same in zip(chain.steps, same, strict=True) if is_same)
        of_a_step, of_all = _OF_ONE_ANSWER[name]
        follows = of_all if same.sum() == annotated.sum() else of_a_step
        share = f"{same.sum()} of {annotated.sum()} steps"
        notes.append(f"every case of the {name} split has the same answer at {steps} ({share}): {follows}")
    return notes
