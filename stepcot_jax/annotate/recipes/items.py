"""Questions with the grounded report from which reasoning is made, and how a source of them is read."""

import dataclasses
import functools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, Literal, get_args

import msgspec

from stepcot_jax.annotate.annotation import Aside, ItemT
from stepcot_jax.annotate.llm.prompts import Prompt
from stepcot_jax.annotate.recipes.instructions import BALANCES, Instructions
from stepcot_jax.box import Box, Corners
from stepcot_jax.chain import fold
from stepcot_jax.data.images.drawn_boxes import scale_boxes
from stepcot_jax.data.questions.making import split_images
from stepcot_jax.data.questions.questions import ask_questions, region_of
from stepcot_jax.data.questions.vocabulary import TERMS, accepted_names, canonical, write_box
from stepcot_jax.data.sources.grounded import list_grounded
from stepcot_jax.data.sources.intake import Intake
from stepcot_jax.data.sources.layout_table import AUTO, BOXED, QuestionLayout
from stepcot_jax.data.sources.layouts import detect_vqa_layout, read_detections, read_vqa_source
from stepcot_jax.data.sources.listed import How
from stepcot_jax.host.errors import BadInput
from stepcot_jax.reasoning.imaging import name_picture, picture_of
from stepcot_jax.reasoning.replies import IN_ROUND_BRACKETS, find_named_boxes, write_answer
from stepcot_jax.reasoning.rules import ENTRIES, Entry
from stepcot_jax.record import Record, SetAside

_CHEST = name_picture("xray", "chest")
_SENTENCE = re.compile(r"(?<=[.!?])\s+")


@dataclasses.dataclass(frozen=True)
class Question:
    """A question about an image, with the grounded report."""

    record: Record
    statements: tuple[Box, ...]  # of the grounded report, in pixels of the record's picture
    findings: tuple[Box, ...] = ()  # those that a detection list has
    from_list: bool = False  # whether it was asked about a detection list

    @property
    def id(self) -> str:
        """Unique name within its source."""
        return self.record.id

    @functools.cached_property
    def text(self) -> str:
        """Everything that an answer depends on."""
        return json.dumps(self.data(), ensure_ascii=False, sort_keys=True)

    @property
    def picture(self) -> str:
        """Kind of the picture by modality and body part, such as "a CT of the abdomen"."""
        record = self.record
        is_chest = record.provenance.get("maker") == "templates" or record.origin == "GEMeX"  # frontal, unless others
        if named := picture_of(record):
            return named
        if record.modality == "xray" and is_chest and name_picture("xray", record.organ or "chest") == _CHEST:
            return "a frontal chest radiograph"
        return name_picture(record.modality)

    @property
    def spoken_answer(self) -> str:
        """The answer as texts state it: choices with letter and text."""
        if not self.record.options:
            return write_answer(self.record).rstrip(".")
        chosen = zip(self.record.answer, self.spoken_choices, strict=True)
        return "; ".join(f"{letter}, {text}" for letter, text in chosen)

    @property
    def spoken_choices(self) -> tuple[str, ...]:
        """Texts of the right choices; empty for a question without choices."""
        record = self.record
        return tuple(record.options[record.letters.index(letter)] for letter in record.answer if record.options)

    @functools.cached_property
    def labels(self) -> tuple[str, ...]:
        """Names of the diagnosis, and accepted texts of an answer in words, which only a conclusion may contain."""
        record = self.record
        diagnosis = record.lesion or record.facts.get("diagnosis", "")
        names = [
            *(accepted_names(diagnosis) if diagnosis else ()),
            *record.accepted_texts * record.is_answered_in_words,
        ]
        return tuple(dict.fromkeys(name for name in names if fold(name) != "normal"))

    def region_of(self, statement: Box) -> str:
        """Return a statement's region, else its place in a radiograph; "" if neither is known."""
        return region_of(statement, self.record, self.record.modality)

    def data(self) -> dict[str, Any]:
        """Return kind of the picture, question, answer and grounded report as data of a request."""
        record = self.record
        choices = dict(zip(record.letters, record.options, strict=True))
        report = {
            str(number): {
                "sentence": statement.sentence or statement.label,
                **({"region": region} if (region := self.region_of(statement)) else {"finding": statement.label}),
                "box": bare_box(statement.corners),
            }
            for number, statement in enumerate(self.statements, start=1)
        }
        known = {"picture_kind": self.picture, "question": record.question, **({"choices": choices} if choices else {})}
        return {**known, "answer": self.spoken_answer, "grounded_report": report}


def bare_box(box: Corners) -> str:
    """Return a box without brackets, which requests escape."""
    return write_box(box).strip("[]")


def split_sentences(text: str) -> list[str]:
    """Return the sentences of a text."""
    return [sentence for sentence in _SENTENCE.split(text.strip()) if sentence]


def ground_record(record: Record, image: Record | None = None) -> Question:
    """Return a record's question; its grounded report is that of its image, or its thinking and references as they are.

    A region that both name keeps the record's box, under which the answer refers to it, and takes the sentence.
    """
    statements = []
    for sentence in split_sentences(record.thinking):
        regions = list(find_named_boxes(sentence, IN_ROUND_BRACKETS))
        words = " ".join(IN_ROUND_BRACKETS.sub("", sentence).replace("**", "").split())
        statements += [_state(region, record, re.sub(r" (?=[.,;:])", "", words)) for region, _, _ in regions]
    known = {write_box(statement.corners) for statement in statements}  # texts have whole pixels
    statements += [_state(box, record) for box in record.references if write_box(box.corners) not in known]
    if image is not None:
        told = _scale_report(image, record.image_size)
        sentences = {fold(box.region): box.sentence for box in told}
        statements = [
            msgspec.structs.replace(own, sentence=own.sentence or sentences.get(fold(own.region), ""))
            for own in statements
        ]
        named = {fold(own.region) for own in statements}
        statements += [box for box in told if fold(box.region) not in named]
    return Question(record, tuple(statements))


def _scale_report(image: Record, image_size: tuple[int, int]) -> list[Box]:
    """Return the sentences of a grounded report with their boxes in pixels of another size."""
    told = [box for box in (*image.boxes, *image.regions) if box.sentence]
    scaled = scale_boxes([box.corners for box in told], image.image_size, image_size[::-1])
    return [msgspec.structs.replace(box, corners=corners) for box, corners in zip(told, scaled, strict=True)]


def _read_reports(path: Path, set_aside: list[SetAside]) -> dict[str, Record]:
    """Return the images of grounded reports by their paths."""
    source = list_grounded(path, How(for_cases=False, require_images=False))
    images = Intake(source, on_bad_record="skip", set_aside=set_aside).read_images(with_normal=True)
    return {image.image: image for image in images}


def _state(box: Box, record: Record, sentence: str = "") -> Box:
    """Return a statement about a box that a record names by its region, or by a finding, whose region is unknown."""
    findings = [other.label for other in record.references if record.provenance.get("references") == "findings"]
    is_finding = canonical(box.label) in {*TERMS, canonical(record.lesion), *map(canonical, findings)}
    return Box(box.label, box.corners, sentence, "" if is_finding else box.label)


def ground_image(image: Record, *, seed: int) -> list[Question]:
    """Return the questions about an image of a detection list."""
    told = tuple(region for region in image.regions if region.sentence)
    questions, known = [], {statement.corners for statement in (*image.boxes, *told)}
    for record in ask_questions(image, seed=seed):
        more = [Box(box.label, box.corners, region=box.label) for box in record.references if box.corners not in known]
        bare = msgspec.structs.replace(record, thinking="", preamble="", stages=None)
        questions.append(Question(bare, (*image.boxes, *told, *more), image.boxes, from_list=True))
    return questions


def read_questions(
    source: Path,
    *,
    seed: int,
    box_size: tuple[int, int] | None,
    require_images: bool,
    set_aside: list[SetAside],
    layout: str = AUTO,
    with_normal: bool = False,
    grounded: Path | None = None,
) -> tuple[list[Question], Path]:
    """Read the questions of records, of released data, or about a detection list, split by patient as by `data vqa`."""
    root = source.parent if source.is_file() else source
    layout = detect_vqa_layout(source) if layout == AUTO else layout
    if layout in BOXED:
        if box_size is not None:
            raise BadInput(f"--box-size: the layout {layout} states the size of its boxes")
        if grounded is not None:
            raise BadInput(f"--grounded: the layout {layout} has boxes of its own; expected questions")
        images = read_detections(
            source,
            layout=layout,
            on_bad_record="skip",
            require_images=require_images,
            with_normal=with_normal,
            set_aside=set_aside,
        )
        return [
            question for image in split_images(images, seed=seed) for question in ground_image(image, seed=seed)
        ], root
    if with_normal:
        raise BadInput(f"--with-normal: the layout {layout} has questions of its own; expected a detection list")
    questions = read_vqa_source(
        source, layout=layout, box_size=box_size, on_bad_record="skip", require_images=require_images
    )
    set_aside += questions.set_aside
    reports = {} if grounded is None else _read_reports(grounded, set_aside)
    return [ground_record(record, reports.get(record.image)) for record in questions.records], questions.root


def add_provenance(record: Record, added: Mapping[str, str]) -> Record:
    """Return a record with more entries of its provenance."""
    return msgspec.structs.replace(record, provenance={**record.provenance, **added})


# A pipeline: its items, its requests to a model or its templates, its checks, and its records.


HostOrgan = Literal["coverage", "iou_mask", "iou_box"]
OrganPrior = Literal["atlas", "none"]
Parts = Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class TaskSettings:
    """Settings of the pipelines."""

    root: Path  # folder that image paths are relative to
    folder: Path  # folder of the result, for drawn pictures
    num_regions: int = 1  # LVKC: variants of the reference boxes, from 0 to 4; the whole picture is added
    num_templates: int = 1  # LVKC: wordings of each trajectory, from 1 to 3
    knowledge: tuple[Entry, ...] = ENTRIES  # LVKC: the knowledge base
    # LVKC: votes of each verifier on a proposed region, and the share of "correct" that keeps it; 0 votes propose none
    region_passes: int = 3
    region_share: float = 0.5
    instructions: Instructions = "none"  # LVKC: whether questions are written as instructions of their task
    rl_sample: int = 0  # LVKC: questions of the balanced sample for reinforcement learning; 0 writes none
    rl_balance: tuple[str, ...] = ("instruction",)
    seed: int = 0  # of the questions about a detection list and its splits; LVKC: of the perturbed boxes
    layout: QuestionLayout = AUTO  # of the source; "auto" detects it
    box_size: tuple[int, int] | None = None  # width and height that the boxes of released data refer to
    with_normal: bool = False  # whether to ask about the images of a detection list that have no box
    grounded: Path | None = None  # RMCoT: JSON lines with the grounded reports of the questions' images
    host_organ: HostOrgan = "coverage"  # MedCLM: how a lesion's host organ is found
    masks: Path | None = None  # MedCLM: folder of the masks, or CheXmask's table; None for `masks` below `root`
    organ_prior: OrganPrior = "atlas"  # MedCLM: what names the organ in a radiograph without masks
    sends_pictures: bool = False  # whether models see the pictures, where the task shows any

    def __post_init__(self) -> None:
        for flag, value, least, greatest in (
            ("--num-regions", self.num_regions, 0, 4),
            ("--num-templates", self.num_templates, 1, 3),
            ("--region-passes", self.region_passes, 0, 100),
            ("--region-share", self.region_share, 0, 1),
            ("--rl-sample", self.rl_sample, 0, 10**9),
        ):
            if not least <= value <= greatest:
                raise BadInput(f"{flag}: {value} must be from {least} to {greatest}")
        for flag, values, accepted in (
            ("--instructions", (self.instructions,), get_args(Instructions)),
            ("--rl-balance", self.rl_balance, BALANCES),
        ):
            if not values or not set(values) <= set(accepted):
                raise BadInput(f"{flag}: {', '.join(values)!r:.80} is not of {', '.join(accepted)}")

    @property
    def proposes(self) -> bool:
        """Whether a model that sees the pictures proposes the regions that they lack."""
        return self.sends_pictures and self.region_passes > 0


@dataclasses.dataclass(frozen=True)
class Request(Generic[ItemT]):
    """One request to the annotator."""

    prompt: Prompt  # the task, whose answer is an object of texts
    names: tuple[str, ...]
    data: Callable[[ItemT, Parts], dict[str, Any]]  # returns the request's data from the item and the texts so far
    sees: bool = True  # whether the request includes the picture, if pictures are sent
    # returns the item under which ledgers keep the answer; items with the same one share the answer
    about: Callable[[ItemT], ItemT] = lambda item: item
    # raises `CannotAnnotate` if the texts so far allow no answer
    require: Callable[[ItemT, Parts], None] = lambda item, parts: None  # noqa: ARG005
    # raises `CannotAnnotate` for an answer, which is then asked for again; the parts have its texts
    check: Callable[[ItemT, Parts], None] = lambda item, parts: None  # noqa: ARG005


THOUSANDTHS = (1000, 1000)


@dataclasses.dataclass(frozen=True)
class Regions(Generic[ItemT]):
    """How regions are found for pictures without one."""

    proposal: Prompt
    vote: Prompt
    # returns the question whose picture needs a region; None if it has one
    question: Callable[[ItemT], Question | None]
    # returns the item in the region that was kept, in thousandths (None: the whole picture), or raises `CannotAnnotate`
    place: Callable[[ItemT, Corners | None, TaskSettings], ItemT]


@dataclasses.dataclass(frozen=True)
class Task(Generic[ItemT]):
    """A pipeline."""

    name: str
    units: str  # name of its items, for funnels
    # returns the items of the questions, and the questions set aside
    plan: Callable[[Sequence[Question], TaskSettings], list[ItemT | Aside]]
    requests: tuple[Request[ItemT], ...]  # every request that the task makes
    choose: Callable[[ItemT], Sequence[Request[ItemT]]]  # returns the requests for one item, in order
    write: Callable[[ItemT], dict[str, str]]  # the offline version: returns the texts, or raises `CannotAnnotate`
    assemble: Callable[[ItemT, Parts], Record]  # returns the record of an item and its texts
    check: Callable[[ItemT, Parts, Record], None]  # raises `CannotAnnotate` with a named reason
    data: Callable[[ItemT], dict[str, Any]]  # returns the data that trust and votes are asked about
    trust: Prompt  # prompt of the trust question
    vote: Prompt
    # returns the pictures of an item as data URLs; None for a task of text alone
    show: Callable[[ItemT, TaskSettings], tuple[str, ...]] | None = None
    region: Regions[ItemT] | None = None
    # returns the path of an item's picture, which must be readable; None for a task that needs none
    picture: Callable[[ItemT], str] | None = None
    # writes further files of the records; None for no files
    finish: Callable[[Sequence[Record], TaskSettings], None] | None = None
