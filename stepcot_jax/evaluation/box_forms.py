"""The form of a model's boxes: coordinate space and order, stated by the user or tested against the true boxes."""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Literal, TypeVar, get_args

import numpy as np

from stepcot_jax.box import QWEN_ASPECT, SPACES, Box, Space, find_space, mean_iou, pixels
from stepcot_jax.host.errors import BadInput
from stepcot_jax.reasoning.replies import Reply
from stepcot_jax.record import Record

Order = Literal["", "xyxy", "xywh", "yxyx"]
_USUAL = ("100x100", *(f"{side}x{side}" for side in (224, 336, 448, 512, 896, 1024)))
"""Percent, and the sizes to which models stretch pictures: `find_better_form` tries them, too."""

_Item = TypeVar("_Item")
_NUM_TESTED = 300
_LEAST_TESTED = 4
_MOST_TESTED = 3000  # boxes of all tested replies together
_MARGIN = 0.1
"""Mean IoU that another form must have above the stated one before a note names it."""


@dataclasses.dataclass(frozen=True)
class BoxForm:
    """How boxes are written; "" is the dialect's own way.

    Attributes:
      space: a name that `box.find_space` knows.
    """

    space: str = ""
    order: Order = ""

    def __post_init__(self) -> None:
        if self.space:
            find_space(self.space, (1, 1))
        if self.order not in get_args(Order):
            raise BadInput(f"--box-order: {self.order[:40]!r} is not one of xyxy, xywh, yxyx")

    def describe(self) -> str:
        """Return the options that state this form."""
        options = {"--box-space": self.space, "--box-order": self.order}
        return " ".join(f"{name}={value}" for name, value in options.items() if value) or "the dialect's own form"


def place_boxes(reply: Reply, record: Record, form: BoxForm) -> tuple[Reply, int]:
    """Return a reply with its boxes x first and their corners in order, and the number of boxes that were turned.

    The corners of a box are sorted: a box that is written from right to left shows the same area.
    """
    if not reply.references or not all(record.image_size):
        return reply, 0
    own = reply.space or pixels(record.image_size)
    try:
        space = find_space(form.space, record.image_size) if form.space else Space(own.width, own.height)
    except BadInput as error:  # too narrow a strip for "qwen"
        raise BadInput(f"--box-space={form.space}, id {record.id[:80]!r}: {error}") from None
    y_first = form.order == "yxyx" or (not form.order and own.y_first)
    written = np.array([box.corners for box in reply.references], np.float64)
    corners = written[:, [1, 0, 3, 2]] if y_first else written
    if form.order == "xywh":
        corners = np.concatenate([corners[:, :2], corners[:, :2] + corners[:, 2:]], axis=1)
    ordered = np.concatenate(
        [np.minimum(corners[:, :2], corners[:, 2:]), np.maximum(corners[:, :2], corners[:, 2:])], axis=1
    )
    turned = int((ordered != corners).any(axis=1).sum())
    boxes = tuple(Box(box.label, tuple(row)) for box, row in zip(reply.references, ordered.tolist(), strict=True))
    return dataclasses.replace(reply, references=boxes, space=space), turned


def keep_smallest(items: Sequence[_Item], size: Callable[[_Item], int], *, most: int) -> list[_Item]:
    """Return the smallest items, in their order, whose sizes add up to `most`; at least as many as a test needs."""
    order = sorted(range(len(items)), key=lambda place: size(items[place]))
    sums = itertools.accumulate(size(items[place]) for place in order)
    kept = order[: max(_LEAST_TESTED, sum(total <= most for total in sums))]
    return [items[place] for place in sorted(kept)]


def find_better_form(replies: Sequence[Reply], records: Sequence[Record], form: BoxForm) -> str:
    """Return a note if the true boxes fit another space or order clearly better; "" otherwise.

    Args:
      replies: as they were read, before `place_boxes`.
    """
    pairs = [
        (reply, record)
        for reply, record in zip(replies, records, strict=True)
        if reply.references and record.references
        if max(record.image_size) <= QWEN_ASPECT * min(record.image_size)  # "qwen" is among the forms
    ]
    pairs = keep_smallest(pairs[:_NUM_TESTED], lambda pair: len(pair[0].references or ()), most=_MOST_TESTED)
    if len(pairs) < _LEAST_TESTED:
        return ""

    def score(form: BoxForm) -> float:
        overlaps = []
        for reply, record in pairs:
            true = [box.corners for box in record.references]
            overlaps.append(mean_iou(place_boxes(reply, record, form)[0].boxes(record.image_size), true))
        return float(np.mean(overlaps))

    stated = score(form)
    others = [BoxForm(space, order) for space, order in itertools.product(("", *SPACES, *_USUAL), get_args(Order))]
    overlap, best = max(((score(other), other) for other in others), key=lambda scored: scored[0])
    if overlap < stated + _MARGIN:
        return ""
    return (
        f"the boxes of {len(pairs)} replies overlap the true ones by {100 * stated:.1f} % as they are read "
        f"({form.describe()}), and by {100 * overlap:.1f} % with {best.describe()}"
    )
