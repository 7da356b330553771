"""Options of the package's rewards, and three published presets; settings import this module, so that it is light."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal, get_args, get_type_hints

from stepcot_jax.box import EmptyBoxes, Matching
from stepcot_jax.host.errors import BadInput

MultiChoice = Literal["exact", "jaccard"]
OpenAnswer = Literal["judge", "exact", "equal", "token_f1"]
ChoiceReading = Literal["plain", "strict"]
IllFormed = Literal["nothing", "parts"]
GroundingReward = Literal["threshold", "mean_iou"]
Gate = Literal["none", "released"]

LEAST_IOU = 0.75


def read_weights(texts: Sequence[str]) -> dict[str, float]:
    """Return names and weights of rewards.

    Args:
      texts: one "name=weight" for each reward.

    Raises:
      BadInput: a repeated name, a weight that is not a finite number >= 0, or none above 0.

    >>> read_weights(("answer=1", "well_formed=0.1"))
    {'answer': 1.0, 'well_formed': 0.1}
    """
    weights: dict[str, float] = {}
    for text in texts:
        name, _, number = text.partition("=")
        try:
            weight = math.nan if name in weights else float(number)
        except ValueError:
            weight = math.nan
        if not 0 <= weight < math.inf:
            raise BadInput(f"rewards.functions: {text!r} is not NAME=WEIGHT with a new name and a finite weight >= 0")
        weights[name] = weight
    if not any(weights.values()):
        raise BadInput(f"rewards.functions: {tuple(texts)} has no weight above 0")
    return weights


@dataclasses.dataclass(frozen=True, kw_only=True)
class RewardSettings:
    """Weights and definitions of the rewards; defaults are those of GEMeX-RMCoT, where the paper settles them.

    Attributes:
      functions: "name=weight" of each reward, by its name in `functions.FUNCTIONS`; one of weight 0 is logged alone.
      grounding: "threshold" for 1 or 0 by `least_iou`, "mean_iou" for the mean IoU over the greater number of boxes.
      least_iou: threshold of the mean IoU, exceeded strictly.
      matching: which box is compared with which; see `box.match`.
      empty_boxes: reward if neither side has a box.
      multi_choice: see `answers.answer_reward`, also for the next three.
      open_answer: how open answers are judged.
      choice_reading: whether hedged choices are refused.
      ill_formed: reward of a reply that violates its dialect's grammar.
      gate: "released" for no reward at all if the reply is not well formed, a conclusion is missing, or the record has
        references and the reply has another number of boxes (MEDSAGE's public code).
    """

    functions: tuple[str, ...] = ("answer=1", "grounding=1", "well_formed=0")
    grounding: GroundingReward = "threshold"
    least_iou: float = LEAST_IOU
    matching: Matching = "optimal"
    empty_boxes: EmptyBoxes = "one"
    multi_choice: MultiChoice = "exact"
    open_answer: OpenAnswer = "exact"
    choice_reading: ChoiceReading = "plain"
    ill_formed: IllFormed = "nothing"
    gate: Gate = "none"

    @property
    def weights(self) -> dict[str, float]:
        """The weight of each reward by its name."""
        return read_weights(self.functions)

    def __post_init__(self) -> None:
        read_weights(self.functions)
        if not 0 <= self.least_iou < 1:
            raise BadInput(f"rewards.least_iou: {self.least_iou} is not >= 0 and < 1")
        for name, kind in get_type_hints(type(self)).items():
            accepted, value = get_args(kind), getattr(self, name)
            if name != "functions" and accepted and value not in accepted:
                raise BadInput(f"rewards.{name} must be one of {', '.join(accepted)}; got {value!r}")


PRESETS = {
    "gemex": RewardSettings(),
    "paper": RewardSettings(functions=("answer=0.9", "grounding=0", "well_formed=0.1"), ill_formed="parts"),
    "released": RewardSettings(
        functions=("answer=0.6", "grounding=0.3", "well_formed=0.1"),
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
