"""MEDSAGE: localisation, visual analysis, knowledge and conclusion, each from its own request (Algorithm 1)."""

import dataclasses
import functools
import hashlib
import json
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from stepcot_jax.annotate.annotation import Aside, CannotAnnotate, Reason
from stepcot_jax.annotate.checks import (
    APPEARANCE_WORDS,
    HINT_WORDS,
    INTERPRETATION_WORDS,
    check_markup,
    check_no_coordinates,
    check_speech,
    find_word,
    names_any,
    refuse_words,
    require,
)
from stepcot_jax.annotate.llm.prompts import (
    CONCLUSION,
    KNOWLEDGE_STYLES,
    LOCALISATION,
    LVKC_TRUST,
    LVKC_VOTE,
    PROPOSAL,
    REGION_VOTE,
    RULE,
    UNSUPPORTED,
    VISUAL,
)
from stepcot_jax.annotate.recipes.instructions import write_instruction
from stepcot_jax.annotate.recipes.items import (
    THOUSANDTHS,
    Parts,
    Question,
    Regions,
    Request,
    Task,
    TaskSettings,
    add_provenance,
    bare_box,
    split_sentences,
)
from stepcot_jax.annotate.recipes.pictures import read_picture, show_picture
from stepcot_jax.annotate.recipes.rmcot import require_assembled
from stepcot_jax.annotate.support import check_conclusion, require_support
from stepcot_jax.box import Corners, convert, pixels
from stepcot_jax.chain import fold
from stepcot_jax.data.questions.vocabulary import (
    FACT_NAMES,
    NORMAL,
    canonical,
    enclose_boxes,
    knows_steps,
    name_place,
    state_finding,
    write_stages,
)
from stepcot_jax.reasoning.rules import ENTRIES, Entry, retrieve
from stepcot_jax.record import STAGE_NAMES, Record, Stages

# Regions of interest, for MEDSAGE's reasoning-path augmentation (Equations 1 to 6; sizes are ours).


VARIANTS = ("given", "perturbed", "widened", "inner")
WHOLE = "whole"

MOST_SHIFT = 0.1
"""Greatest shift of a side, as a share of the box's width or height."""

WIDENED, INNER = 1.25, 0.75


@dataclasses.dataclass(frozen=True)
class Roi:
    """A region of interest."""

    variant: str  # one of `VARIANTS`, or "whole"
    box: Corners  # corners in pixels of the record's `image_size`
    is_proposed: bool = False  # whether a model is asked for the box

    @property
    def shown(self) -> str:
        """The region as provenance and hints write it."""
        return f"{self.variant}: {bare_box(self.box)}" if any(self.box) else self.variant


def lacks_region(record: Record) -> bool:
    """Return whether neither boxes nor a text say where to look."""
    return record.cue == "image" or (not record.references and (record.cue != "text" or record.stages is None))


def list_rois(record: Record, *, num_regions: int, seed: int, proposes: bool = False) -> list[Roi]:
    """Return the first variants of the box around all references, or left to a model, and the whole picture."""
    width, height = record.image_size
    picture = Roi(WHOLE, (0.0, 0.0, float(width), float(height)))
    if lacks_region(record) and proposes and num_regions:
        return [Roi(name, picture.box, is_proposed=True) for name in (*VARIANTS[:num_regions], WHOLE)]
    if not record.references or record.cue == "image":
        return [picture]
    box = enclose_boxes([reference.corners for reference in record.references])
    variants = VARIANTS[:1] if record.cue == "text" else VARIANTS
    return [*(Roi(name, vary_box(box, name, record, seed)) for name in variants[:num_regions]), picture]


def place_region(item: "Trajectory", box: Corners | None, settings: TaskSettings) -> "Trajectory":
    """Return the trajectory through a proposed region; without one only that through the whole picture is left."""
    if item.roi.variant == WHOLE:
        return item
    if box is None:
        raise CannotAnnotate(Reason.REGION_NOT_KEPT, "the whole picture stands for it")
    record = item.question.record
    if not all(record.image_size):  # unknown, as of a question without boxes
        record = msgspec.structs.replace(record, image_size=read_picture(record.image, settings).size)
    (corners,) = convert([box], source=pixels(THOUSANDTHS), target=pixels(record.image_size)).tolist()
    roi = dataclasses.replace(item.roi, box=vary_box(tuple(corners), item.roi.variant, record, settings.seed))
    return dataclasses.replace(item, roi=roi, question=dataclasses.replace(item.question, record=record))


def vary_box(box: Corners, variant: str, record: Record, seed: int) -> Corners:
    """Return a variant of a box within the picture, not empty."""
    corners = np.array(box, np.float64)
    sides = np.array([box[2] - box[0], box[3] - box[1]] * 2)
    if variant == "perturbed":
        digest = hashlib.sha256(f"{seed} {record.id}".encode()).digest()
        corners += np.random.default_rng(int.from_bytes(digest[:8])).uniform(-MOST_SHIFT, MOST_SHIFT, 4) * sides
    elif variant in ("widened", "inner"):
        grown = (WIDENED if variant == "widened" else INNER) - 1
        corners += np.array([-0.5, -0.5, 0.5, 0.5]) * grown * sides
    x1, y1, x2, y2 = np.clip(corners, 0, [*record.image_size, *record.image_size]).tolist()
    return x1, y1, x2, y2


_MOST_WORDINGS = 6
_LOCALISATIONS = {
    "given": "{}",
    "perturbed": "{}, near the centre of the area looked at",
    "widened": "{}, with some of its surroundings in view",
    "inner": "{}, seen from its centre",
    WHOLE: "{}, within the whole picture",
}


@dataclasses.dataclass(frozen=True)
class Trajectory:
    """A path through the stages: a question, a region of interest, and a template."""

    question: Question
    roi: Roi
    template: int
    entries: tuple[Entry, ...] = ENTRIES  # the knowledge base
    instruction: tuple[str, str] | None = None  # the question as an instruction of its task, and its name

    @property
    def id(self) -> str:
        """Unique name within its source."""
        return f"{self.question.id}.{self.roi.variant}.{self.template + 1}"

    @functools.cached_property
    def text(self) -> str:
        """Everything that an answer depends on."""
        return json.dumps([self.question.data(), self.roi.shown, self.template, self.observed()], sort_keys=True)

    def observed(self) -> dict[str, str]:
        """Return the text instead of the picture in a text-only request: facts without the diagnosis, and sentences."""
        facts = {name: fact for name, fact in self.question.record.facts.items() if name != "diagnosis"}
        sentences = {
            f"sentence {n}": statement.sentence for n, statement in enumerate(self.question.statements, start=1)
        }
        return {**facts, **{name: sentence for name, sentence in sentences.items() if sentence}}

    @property
    def label(self) -> str:
        """The finding that the knowledge is about, hidden from the texts before the conclusion."""
        record, facts = self.question.record, self.question.record.facts
        return facts.get("asked") or facts.get("diagnosis") or record.lesion or self.question.spoken_answer

    def find_entry(self, visual: str) -> Entry:
        """Return the entry of the knowledge base for this template: Equation 4's retrieval."""
        question, facts = self.question, self.question.record.facts
        names = (self.label, canonical(self.label)) if "asked" not in facts else (facts["asked"],)
        others = (*question.spoken_choices, *question.record.accepted_texts) if "asked" not in facts else ()
        found = retrieve(self.entries, names=(*names, *others, *map(canonical, others)), seen=visual)
        return found[self.template % len(found)]


def plan_trajectories(questions: Sequence[Question], settings: TaskSettings) -> list[Trajectory | Aside]:
    """Return M regions x T templates of every question."""
    is_task = settings.instructions == "by-task"
    return [
        Trajectory(
            question,
            roi,
            template,
            settings.knowledge,
            write_instruction(question.record, settings.seed) if is_task else None,
        )
        for question in questions
        for roi in list_rois(
            question.record, num_regions=settings.num_regions, seed=settings.seed, proposes=settings.proposes
        )
        for template in range(settings.num_templates)
    ]


def write_parts(item: Trajectory) -> dict[str, str]:
    """Write the stages offline, from the facts of the image, or from the record's stages on the finding in question."""
    facts, written = item.question.record.facts, item.question.record.stages
    if "asked" in facts and written is not None:
        localisation = _LOCALISATIONS[item.roi.variant].format(written.localisation.removesuffix("."))
        return _complete(item, localisation=f"{localisation}.", visual=written.visual)
    if not knows_steps(facts):
        missing = next((name for name in (*FACT_NAMES, "side") if not facts.get(name)), "side")
        raise CannotAnnotate(Reason.NOT_KNOWN, f"fact {missing!r}")
    is_normal = facts["diagnosis"] == NORMAL
    area = "no place stands out" if is_normal else name_place(facts, wording=item.template)
    localisation = _LOCALISATIONS[item.roi.variant].format(area)
    stages = write_stages(facts, answer="-", wording=item.template, place=localisation)
    # Some wordings of a report interpret ("indicates volume loss"), which this stage must not.
    visuals = (write_stages(facts, answer="-", wording=item.template + more).visual for more in range(_MOST_WORDINGS))
    visual = next((text for text in visuals if not find_word(text, INTERPRETATION_WORDS)), stages.visual)
    return _complete(item, localisation=stages.localisation, visual=visual)


def _complete(item: Trajectory, *, localisation: str, visual: str) -> dict[str, str]:
    knowledge = item.find_entry(visual).statement
    return {"localisation": localisation, "visual": visual, "knowledge": knowledge, "conclusion": conclude(item)}


def conclude(item: Trajectory) -> str:
    """Return the offline conclusion: the diagnosis, where the facts have it and it is asked about, and the answer."""
    facts, answer = item.question.record.facts, f"So the answer is {item.question.spoken_answer}."
    if "asked" in facts or not facts.get("diagnosis"):
        return answer
    return f"{state_finding(facts['diagnosis'], wording=item.template)} {answer}"


def assemble(item: Trajectory, parts: Parts) -> Record:
    """Return the question's record with the four stages; references are the unperturbed boxes."""
    record, entry = item.question.record, item.find_entry(parts["visual"])
    # Not checked here: `check` reports a blank part.
    stages = Stages(*(parts[name] for name in STAGE_NAMES))
    made = {"roi": item.roi.shown, "template": str(item.template + 1), "question": record.id}
    made |= {"knowledge": f"{entry.finding}: {entry.statement} ({entry.source})"}
    changed = {"id": item.id, "thinking": "", "preamble": f"This is {item.question.picture}.", "stages": stages}
    if item.instruction is not None:
        changed["question"], made["instruction"] = item.instruction
    return add_provenance(msgspec.structs.replace(record, **changed), made)


def check_stage(item: Trajectory, parts: Parts) -> None:
    """Require a last stage without coordinates, the contents of later stages, and sentences of earlier ones."""
    (*before, (name, text)), question = parts.items(), item.question
    check_markup([text])
    check_speech(text, f"stage {name}")
    check_no_coordinates(text, name)
    refuse_words(text, HINT_WORDS, Reason.SPEAKS_OF_HINT, f"stage {name}")
    hidden = question.labels or (question.spoken_choices if name == "knowledge" else ())
    require(not names_any(text, hidden), Reason.LABEL_NAMED, f"stage {name}")
    if name == "localisation":
        refuse_words(text, APPEARANCE_WORDS, Reason.APPEARANCE, "stage localisation")
    if name == "visual":
        refuse_words(text, INTERPRETATION_WORDS, Reason.INTERPRETATION, "stage visual")
    told = {fold(sentence) for _, other in before for sentence in split_sentences(other)}
    repeats = told.intersection(map(fold, split_sentences(text)))
    require(not repeats, Reason.REPETITION, "a sentence occurs in two stages")


def check_reasoning(item: Trajectory, parts: Parts) -> None:
    """Require a conclusion of the true answer that its stages support."""
    text = parts["conclusion"]
    if fold(text).strip(" .") == UNSUPPORTED:
        raise CannotAnnotate(Reason.UNSUPPORTED, "says the annotator", is_final=True)
    own = text.replace(item.question.spoken_answer, "")
    check_markup([own])
    check_speech(own, "stage conclusion")
    check_conclusion(item.question, parts, item.entries)


def check(item: Trajectory, parts: Parts, record: Record) -> None:
    """Require all stages as `check_stage`, that they agree, and a record assembled from them."""
    for count in (1, 2, 3):
        check_stage(item, {name: parts[name] for name in STAGE_NAMES[:count]})
    require_support(item.question, parts, item.entries)
    require(record.stages is not None, Reason.NOT_ASSEMBLED, "no stages")
    check_reasoning(item, parts)
    require_assembled(record, assemble(item, parts), dialect="lvkc")


def _asked_about(item: Trajectory) -> dict[str, Any]:
    return {"picture_kind": item.question.picture, "question": item.question.record.question}


def _localisation_data(item: Trajectory, _: Parts) -> dict[str, Any]:
    record, question = item.question.record, item.question
    names = {
        question.region_of(statement) or statement.label: statement.sentence or statement.label
        for statement in question.statements
    }
    hint = {"region": item.roi.shown, "names": "; ".join(names)}
    if record.cue == "text" and record.stages is not None and not record.references:
        hint["text"] = record.stages.localisation
    return {**_asked_about(item), "hint": hint}


def _visual_data(item: Trajectory, parts: Parts) -> dict[str, Any]:
    return {**_asked_about(item), "region": parts["localisation"], "picture": item.observed()}


def _rule_data(item: Trajectory, parts: Parts) -> dict[str, Any]:
    style, entry = KNOWLEDGE_STYLES[item.template % len(KNOWLEDGE_STYLES)], item.find_entry(parts["visual"])
    told = {"visual": parts["visual"], "hidden_label": item.label, "style": style}
    return {"question": item.question.record.question, **told, "entry": entry.statement, "source": entry.source}


def _conclusion_data(item: Trajectory, parts: Parts) -> dict[str, Any]:
    asked = item.question.data()
    del asked["grounded_report"], asked["picture_kind"]  # the stages alone lead to the answer
    return {**asked, **{name: parts[name] for name in STAGE_NAMES[:3]}}


def _all_data(item: Trajectory) -> dict[str, Any]:
    return {**item.question.data(), "picture": item.observed()}


def _show_region(item: Trajectory, settings: TaskSettings) -> tuple[str, ...]:
    """Return the crop and the whole picture (Equation 2), for the whole picture that alone."""
    record = item.question.record
    whole = show_picture(record.image, settings)
    if item.roi.variant == WHOLE:
        return (whole,)
    return show_picture(record.image, settings, region=(item.roi.box, record.image_size)), whole


def _of_all_templates(item: Trajectory) -> Trajectory:
    """Return the trajectory whose localisation and visual analysis all templates of its region share."""
    return dataclasses.replace(item, template=0)


def _require(item: Trajectory, parts: Parts) -> None:
    require_support(item.question, parts, item.entries)


_REQUESTS: tuple[Request[Trajectory], ...] = (
    Request(LOCALISATION, ("localisation",), _localisation_data, about=_of_all_templates, check=check_stage),
    Request(VISUAL, ("visual",), _visual_data, about=_of_all_templates, check=check_stage),
    Request(RULE, ("knowledge",), _rule_data, sees=False, check=check_stage),
    Request(CONCLUSION, ("conclusion",), _conclusion_data, sees=False, require=_require, check=check_reasoning),
)

TASK: Task[Trajectory] = Task(
    name="lvkc",
    units="trajectories",
    plan=plan_trajectories,
    requests=_REQUESTS,
    choose=lambda _: _REQUESTS,
    write=write_parts,
    assemble=assemble,
    check=check,
    data=_all_data,
    trust=LVKC_TRUST,
    vote=LVKC_VOTE,
    show=_show_region,
    region=Regions(PROPOSAL, REGION_VOTE, lambda item: item.question if item.roi.is_proposed else None, place_region),
)
