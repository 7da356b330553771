"""Easy, medium and hard views of training records (MedCLM's curriculum).

Easy draws the boxes, medium shows the bare picture, hard another case of the same domain with only its answer.
"""

import collections
import dataclasses
from collections.abc import Iterable, Sequence
from typing import Literal, get_args

import msgspec
import numpy as np
from jaxtyping import Int, UInt8
from PIL import Image

from stepcot_jax.box import Corners
from stepcot_jax.data.images.drawn_boxes import draw_boxes
from stepcot_jax.data.questions.vocabulary import canonical
from stepcot_jax.host.errors import BadInput
from stepcot_jax.record import Record

Stage = Literal["easy", "medium", "hard"]
STAGES: tuple[Stage, ...] = get_args(Stage)
DIALECTS_WITH_HARD = ("gemex", "medclm", "plain")
"""Dialects with a reply that has only the answer: "medclm", "plain"; "gemex" also names the answer's boxes."""

_STREAM = 3  # of draws of other cases, apart from those of the stages
_SEED_CASE = "seed case"


def domain_of(record: Record) -> str:
    """Return the domain of a record, LESION_MODALITY; "" if it has no lesion."""
    return f"{canonical(record.lesion)}_{record.modality}" if record.lesion else ""


@dataclasses.dataclass(frozen=True)
class StageView:
    """The record, picture and stage of a row of a batch."""

    record: Record
    index: int  # of the record in the dataset; its image is the one shown
    boxes: tuple[Corners, ...]  # drawn on the picture, corners in pixels of the record's `image_size`
    stage: Stage  # of the view; may differ from the requested stage, see `StageViews.view`
    with_thinking: bool  # whether prompt and target have the part before the answer


class StageViews:
    """Views of the records of one split."""

    def __init__(
        self,
        records: Sequence[Record],
        indices: Sequence[int] | Int[np.ndarray, " record"],
        *,
        dialect: str,
        with_thinking: bool = True,
    ) -> None:
        self._records = records
        self._dialect = dialect
        self._with_thinking = with_thinking
        self._of_domain: dict[tuple[str, str], list[int]] = collections.defaultdict(list)
        self._made: dict[tuple[str, str], dict[str, int]] = collections.defaultdict(dict)
        for index in map(int, indices):
            record = records[index]
            if made_stage := _made_stage(record):
                self._made[_made_key(record)][made_stage] = index
            elif domain := domain_of(record):
                self._of_domain[domain, record.kind].append(index)

    def view(self, index: int, stage: Stage, *, seed: int, update: int, row: int) -> StageView:
        """Return the view of a record at a stage."""
        record = self._records[index]
        if stage == "hard" and self._dialect not in DIALECTS_WITH_HARD:
            raise BadInput(
                f"config.vqa.dialect: {self._dialect!r} has no reply of the answer alone, which the hard stage of "
                f"config.curriculum needs; expected one of {', '.join(DIALECTS_WITH_HARD)}"
            )
        if _made_stage(record):
            return self._view_made(index, stage)
        if stage == "easy" and record.lesion and record.references:
            boxes = tuple(reference.corners for reference in record.references)
            return StageView(record, index, boxes, "easy", self._with_thinking)
        if stage == "hard" and (others := self._others(index)):
            rng = np.random.default_rng((_STREAM, seed, update, row))
            other = others[int(rng.integers(len(others)))]
            return StageView(self._strip(self._records[other]), other, (), "hard", False)
        return StageView(record, index, (), "medium", self._with_thinking)

    def shown_of(self, index: int) -> list[StageView]:
        """Return views with every text of a record that a row can show at any stage."""
        record = self._records[index]
        if made_stage := _made_stage(record):
            return [self._view_made(index, made_stage)]
        bare = StageView(record, index, (), "medium", self._with_thinking)
        if not domain_of(record) or self._dialect not in DIALECTS_WITH_HARD:
            return [bare]
        return [bare, StageView(self._strip(record), index, (), "hard", False)]

    def _others(self, index: int) -> list[int]:
        record = self._records[index]
        candidates = self._of_domain.get((domain_of(record), record.kind), [])
        others = [other for other in candidates if self._records[other].image != record.image]
        return [other for other in others if self._records[other].patient != record.patient] or others

    def _strip(self, record: Record) -> Record:
        """Return a record whose target is only the answer, in "gemex" with its boxes, which the grammar requires."""
        references = () if self._dialect == "medclm" else record.references
        return msgspec.structs.replace(record, thinking="", preamble="", stages=None, references=references)

    def _view_made(self, index: int, stage: Stage) -> StageView:
        """Return the record that was written for the stage, else for the medium one, else the record itself."""
        written = self._made[_made_key(self._records[index])]
        written_stage: Stage = next(name for name in STAGES if written.get(name) == index)
        shown: Stage = next((name for name in (stage, "medium") if name in written), written_stage)
        other = written[shown]
        return StageView(self._records[other], other, (), shown, self._with_thinking and shown != "hard")


def _made_stage(record: Record) -> Stage | None:
    named = record.provenance.get("stage") if _SEED_CASE in record.provenance else None
    return next((stage for stage in STAGES if stage == named), None)


def _made_key(record: Record) -> tuple[str, str]:
    return record.provenance[_SEED_CASE], canonical(record.lesion)


def draw_views(
    pixels: UInt8[np.ndarray, "row size size 3"], views: Iterable[StageView]
) -> UInt8[np.ndarray, "row size size 3"]:
    """Return pictures with the boxes of their views drawn, see `drawn_boxes`; the others unchanged."""
    drawn = pixels.copy()
    for picture, view in zip(drawn, views, strict=True):
        if view.boxes:
            picture[...] = np.asarray(draw_boxes(Image.fromarray(picture), view.boxes, view.record.image_size))
    return drawn
