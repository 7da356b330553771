"""The grounding reward of GEMeX-RMCoT (Section 4.2.2) and the localisation score of a reply."""

from stepcot_jax.box import EmptyBoxes, Matching, UnequalCounts, mean_iou
from stepcot_jax.reasoning.replies import Reply
from stepcot_jax.record import Record
from stepcot_jax.rewards.answers import suit
from stepcot_jax.rewards.options import LEAST_IOU, IllFormed

_ROUNDING = 1e-12


def grounding_reward(
    reply: Reply,
    record: Record,
    *,
    matching: Matching = "optimal",
    empty_boxes: EmptyBoxes = "one",
    least_iou: float = LEAST_IOU,
    ill_formed: IllFormed = "nothing",
) -> float:
    """Return 1 if the reply has as many boxes as the record and their mean IoU exceeds `least_iou`, else 0.

    Args:
      reply: the reply.
      record: its references are the true boxes.
      matching: which box is compared with which; see `box.match`.
      empty_boxes: reward of no box on either side, "one" or "zero".
      least_iou: threshold; a mean IoU equal to it, up to rounding errors of 1e-12, earns nothing.
      ill_formed: as in `rewards.answers.answer_reward`.
    """
    overlap = localisation(
        reply, record, matching=matching, unequal_counts="zero", empty_boxes=empty_boxes, ill_formed=ill_formed
    )
    if not record.references:
        return overlap  # 1 if the reply has no box either and `empty_boxes` is "one"
    return float(overlap - least_iou > _ROUNDING)


def localisation(
    reply: Reply,
    record: Record,
    *,
    matching: Matching = "optimal",
    unequal_counts: UnequalCounts = "penalise",
    empty_boxes: EmptyBoxes = "one",
    ill_formed: IllFormed = "nothing",
) -> float:
    """Return the mean IoU of the reply's and the record's boxes, from 0 to 1; 0 if the boxes cannot be read.

    The mean over questions is GEMeX-RMCoT's V-score.

    Args:
      reply: the reply.
      record: its references are the true boxes.
      matching: which box is compared with which; see `box.match`.
      unequal_counts: what surplus boxes cost; see `box.mean_iou`.
      empty_boxes: value of no box on either side, "one" or "zero".
      ill_formed: as in `rewards.answers.answer_reward`.
    """
    reply = suit(reply, record)
    if reply.references is None or (ill_formed == "nothing" and not reply.counts):
        return 0.0
    return mean_iou(
        reply.boxes(record.image_size),
        [reference.corners for reference in record.references],
        matching=matching,
        unequal_counts=unequal_counts,
        empty_boxes=empty_boxes,
    )
