"""What a pipeline is: its items, its requests to a model or its templates, its checks, and the records made."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, Literal

from stepcot_jax.annotate.annotation import Aside, ItemT
from stepcot_jax.annotate.llm.prompt import Prompt
from stepcot_jax.annotate.vqa.items import Question
from stepcot_jax.host.errors import BadInput
from stepcot_jax.reasoning.record import VqaRecord

HostOrgan = Literal["coverage", "iou_mask", "iou_box"]
Parts = Mapping[str, str]
"""Texts of an answer by name."""


@dataclasses.dataclass(frozen=True)
class TaskSettings:
    """Settings of the pipelines.

    Attributes:
      root: folder that image paths are relative to.
      folder: folder of the result, for drawn pictures.
      num_regions: LVKC: variants of the reference boxes, from 0 to 4; the whole picture is added.
      num_templates: LVKC: wordings of each trajectory, from 1 to 3.
      seed: LVKC: of the perturbed boxes.
      host_organ: MedCLM: how a lesion's host organ is found.
      masks: MedCLM: folder of the masks; None for `masks` below `root`.
      sends_pictures: whether models see the pictures, where the task shows any.
    """

    root: Path
    folder: Path
    num_regions: int = 1
    num_templates: int = 1
    seed: int = 0
    host_organ: HostOrgan = "coverage"
    masks: Path | None = None
    sends_pictures: bool = False

    def __post_init__(self) -> None:
        for flag, found, least, greatest in (
            ("--num-regions", self.num_regions, 0, 4),
            ("--num-templates", self.num_templates, 1, 3),
        ):
            if not least <= found <= greatest:
                raise BadInput(f"{flag}: {found} must be from {least} to {greatest}")


@dataclasses.dataclass(frozen=True)
class Request(Generic[ItemT]):
    """One request to the annotator.

    Attributes:
      prompt: the task, whose answer is an object of texts.
      data: returns the request's data from the item and the texts so far.
      sees: whether the picture goes with it, if pictures are sent.
      about: returns the item that ledgers keep the answer under; items with the same one share the answer.
    """

    prompt: Prompt
    names: tuple[str, ...]
    data: Callable[[ItemT, Parts], dict[str, Any]]
    sees: bool = True
    about: Callable[[ItemT], ItemT] = lambda item: item


@dataclasses.dataclass(frozen=True)
class Task(Generic[ItemT]):
    """A pipeline.

    Attributes:
      units: what its items are, for funnels.
      plan: returns the items of the questions, and what cannot be one.
      requests: every request that the task makes.
      choose: returns the requests for one item, in order.
      write: the offline version: returns the texts, or raises `CannotAnnotate`.
      assemble: returns the record of an item and its texts.
      check: raises `CannotAnnotate` with a named reason.
      data: returns the data that trust and votes are asked about.
      trust: prompt of the trust question.
      show: returns the picture of an item as data URL; None for a task of text alone.
      picture: returns the path of an item's picture, which must be readable; None for a task that needs none.
      finish: writes what the records need besides themselves; None for nothing.
    """

    name: str
    units: str
    plan: Callable[[Sequence[Question], TaskSettings], list[ItemT | Aside]]
    requests: tuple[Request[ItemT], ...]
    choose: Callable[[ItemT], Sequence[Request[ItemT]]]
    write: Callable[[ItemT], dict[str, str]]
    assemble: Callable[[ItemT, Parts], VqaRecord]
    check: Callable[[ItemT, Parts, VqaRecord], None]
    data: Callable[[ItemT], dict[str, Any]]
    trust: Prompt
    vote: Prompt
    show: Callable[[ItemT, TaskSettings], str] | None = None
    picture: Callable[[ItemT], str] | None = None
    finish: Callable[[Sequence[VqaRecord], TaskSettings], None] | None = None
