"""Rewards of a reply: the weighted sum of answer, grounding, format and consistency, and three published presets."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Literal, get_args, get_type_hints

from stepcot_jax.box import EmptyBoxes, Matching
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.extras import find_misfit
from stepcot_jax.reasoning.replies import Judged, Reply
from stepcot_jax.record import Record
from stepcot_jax.rewards.answers import ChoiceReading, IllFormed, MultiChoice, OpenAnswer, answer_reward, format_reward
from stepcot_jax.rewards.boxes import LEAST_IOU, grounding_reward, localisation
from stepcot_jax.rewards.functions import read_numbers

GroundingReward = Literal["threshold", "mean_iou"]
Gate = Literal["none", "released"]
Consistency = Callable[[Record, Reply], float]
"""(record, reply) -> share of the reply's statements that agree with each other, 0 to 1; NaN without statements."""

_WEIGHTS = ("answer_weight", "grounding_weight", "format_weight", "consistency_weight")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RewardSettings:
    """Weights and definitions of the rewards; defaults are those of GEMeX-RMCoT, where the paper settles them.

    Attributes:
      answer_weight: weight of the answer reward.
      grounding_weight: weight of the grounding reward.
      format_weight: weight of the format reward.
      consistency_weight: weight of the consistency reward, which then needs a function.
      grounding: "threshold" for 1 or 0 by `least_iou`, "mean_iou" for the mean IoU over the greater number of boxes.
      least_iou: threshold of the mean IoU, exceeded strictly.
      matching: which box is compared with which; see `box.match`.
      empty_boxes: reward if neither side has a box.
      multi_choice: see `answers.answer_reward`, also for the next three.
      open_answer: how open answers are judged.
      choice_reading: whether hedged choices are refused.
      ill_formed: reward of a reply that violates its dialect's grammar.
      gate: "released" for no reward at all if the format is not 1, a conclusion is missing, or the record has
        references and the reply has another number of boxes (MEDSAGE's public code).
    """

    answer_weight: float = 1.0
    grounding_weight: float = 1.0
    format_weight: float = 0.0
    consistency_weight: float = 0.0
    grounding: GroundingReward = "threshold"
    least_iou: float = LEAST_IOU
    matching: Matching = "optimal"
    empty_boxes: EmptyBoxes = "one"
    multi_choice: MultiChoice = "exact"
    open_answer: OpenAnswer = "exact"
    choice_reading: ChoiceReading = "plain"
    ill_formed: IllFormed = "nothing"
    gate: Gate = "none"

    def __post_init__(self) -> None:
        for name in _WEIGHTS:
            if not 0 <= getattr(self, name) < math.inf:
                raise BadInput(f"rewards.{name}: {getattr(self, name)} is not a finite number >= 0")
        if not any(getattr(self, name) for name in _WEIGHTS):
            raise BadInput(f"rewards: all of {', '.join(_WEIGHTS)} are 0; at least one must be positive")
        if not 0 <= self.least_iou < 1:
            raise BadInput(f"rewards.least_iou: {self.least_iou} is not >= 0 and < 1")
        for name, kind in get_type_hints(type(self)).items():
            accepted, value = get_args(kind), getattr(self, name)
            if accepted and value not in accepted:
                raise BadInput(f"rewards.{name} must be one of {', '.join(accepted)}; got {value!r}")


PRESETS = {
    "gemex": RewardSettings(),
    "paper": RewardSettings(answer_weight=0.9, grounding_weight=0.0, format_weight=0.1, ill_formed="parts"),
    "released": RewardSettings(
        answer_weight=0.6,
        grounding_weight=0.3,
        format_weight=0.1,
        grounding="mean_iou",
        empty_boxes="zero",
        open_answer="equal",
        choice_reading="strict",
        gate="released",
    ),
}
"""GEMeX-RMCoT: answer + grounding. MEDSAGE's paper: answer and format, with the weights of EasyR1's example: a
right answer in a broken format earns the answer's share. MEDSAGE's public code: answer, mean IoU and format, all or
nothing.
"""


@dataclasses.dataclass(frozen=True)
class Rewards:
    """The rewards of one reply, unweighted, and their weighted sum.

    Attributes:
      answer: 0 to 1; NaN if unscored.
      grounding: 0 to 1.
      format: 0 or 1.
      consistency: 0 to 1; NaN if unscored, 0 without a function.
      total: weighted sum; NaN if a part of positive weight is unscored.
    """

    answer: float
    grounding: float
    format: float
    consistency: float
    total: float


def reward(
    reply: Reply,
    record: Record,
    settings: RewardSettings,
    *,
    judged: Judged | None = None,
    consistency: Consistency | None = None,
) -> Rewards:
    """Return the rewards of a reply.

    An ill-formed reply earns nothing, unless `settings.ill_formed` is "parts". A NaN total marks an unscored reply,
    which is left out of its group.

    Args:
      reply: the reply.
      record: its question, answer and boxes.
      settings: weights and definitions, such as `PRESETS["gemex"]`.
      judged: scores of the reply's open answer.
      consistency: function of record and reply; required with a positive `consistency_weight`.

    Raises:
      BadInput: the function is missing, or returns a number outside of 0 to 1.

    >>> from stepcot_jax.reasoning.dialects import read_reply
    >>> from stepcot_jax.record import Box
    >>> record = Record(id="1", image="1.png", image_size=(64, 64), patient="p", kind="closed", answer="Yes",
    ...                    question="Is the heart enlarged?", references=(Box("heart", (9, 9, 40, 40)),))
    >>> reply = read_reply("<answer> Yes <reason> It is wide. <location> [[9, 9, 40, 38]]", "gemex_plain")
    >>> reward(reply, record, PRESETS["gemex"]).total
    2.0
    """
    parts = {
        "answer": answer_reward(
            reply,
            record,
            multi_choice=settings.multi_choice,
            open_answer=settings.open_answer,
            choice_reading=settings.choice_reading,
            ill_formed=settings.ill_formed,
            judged=judged,
        ),
        "grounding": _grounding(reply, record, settings),
        "format": format_reward(reply),
        "consistency": _consistency(reply, record, settings, consistency),
    }
    weights = {name: getattr(settings, f"{name}_weight") for name in parts}
    total = math.fsum(weight * parts[name] for name, weight in weights.items() if weight)
    if settings.gate == "released" and not _passes_gate(reply, record):
        total = 0.0
    return Rewards(**parts, total=total)


def _grounding(reply: Reply, record: Record, settings: RewardSettings) -> float:
    by_threshold = functools.partial(grounding_reward, least_iou=settings.least_iou)
    score = by_threshold if settings.grounding == "threshold" else localisation
    return score(
        reply, record, matching=settings.matching, empty_boxes=settings.empty_boxes, ill_formed=settings.ill_formed
    )


def _consistency(reply: Reply, record: Record, settings: RewardSettings, function: Consistency | None) -> float:
    if not settings.consistency_weight and function is None:
        return 0.0
    if function is None:
        raise BadInput("rewards.consistency_weight is positive; a consistency function is required")
    if settings.ill_formed == "nothing" and not reply.is_well_formed:
        return 0.0
    if misfit := find_misfit(function, ("record", "reply")):
        raise BadInput(f"the consistency function {misfit}; expected (record, reply) -> a number")
    (share,) = read_numbers("the consistency function", [function(record, reply)], number=1)
    if not (0 <= share <= 1 or math.isnan(share)):
        raise BadInput(f"the consistency function must return 0 to 1, or NaN for unscored; got {share}")
    return float(share)


def _passes_gate(reply: Reply, record: Record) -> bool:
    """Return whether a reply is well formed, has a conclusion, and has as many boxes as the record, if that has any."""
    has_conclusion = bool(reply.answer and reply.stages.get("conclusion", reply.answer))
    are_counts_right = not record.references or len(reply.references or ()) == len(record.references)
    return reply.is_well_formed and has_conclusion and are_counts_right
