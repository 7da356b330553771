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
    check_answer,
    check_markup,
    check_no_coordinates,
    check_speech,
    find_word,
    names_any,
    refuse_words,
    require,
)
from stepcot_jax.annotate.llm.prompts import KNOWLEDGE_STYLES, LOCALISATION, LVKC_TRUST, LVKC_VOTE, RULE, VISUAL
from stepcot_jax.annotate.recipes.items import (
    Parts,
    Question,
    Request,
    Task,
    TaskSettings,
    add_provenance,
    bare_box,
    split_sentences,
)
from stepcot_jax.annotate.recipes.pictures import show_picture
from stepcot_jax.annotate.recipes.rmcot import require_assembled
from stepcot_jax.box import Corners
from stepcot_jax.chain import fold
from stepcot_jax.data.questions.vocabulary import (
    FACT_NAMES,
    NORMAL,
    PREAMBLE,
    enclose_boxes,
    knows_steps,
    name_place,
    state_finding,
    write_stages,
)
from stepcot_jax.reasoning.rules import KNOWLEDGE, SIGN_RULES
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

    @property
    def shown(self) -> str:
        """The region as provenance and hints write it."""
        return f"{self.variant}: {bare_box(self.box)}"


def list_rois(record: Record, *, num_regions: int, seed: int) -> list[Roi]:
    """Return the first variants of the box around all references, and the whole picture; a text cue is not varied."""
    width, height = record.image_size
    picture = Roi(WHOLE, (0.0, 0.0, float(width), float(height)))
    if not record.references or record.cue == "image":
        return [picture]
    box = enclose_boxes([reference.corners for reference in record.references])
    variants = VARIANTS[:1] if record.cue == "text" else VARIANTS
    return [*(Roi(name, vary_box(box, name, record, seed)) for name in variants[:num_regions]), picture]


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


def plan_trajectories(questions: Sequence[Question], settings: TaskSettings) -> list[Trajectory | Aside]:
    """Return M regions x T templates of every question."""
    return [
        Trajectory(question, roi, template)
        for question in questions
        for roi in list_rois(question.record, num_regions=settings.num_regions, seed=settings.seed)
        for template in range(settings.num_templates)
    ]


def write_parts(item: Trajectory) -> dict[str, str]:
    """Write the stages offline, from the facts of the image, or from the record's stages on the finding in question."""
    facts, written = item.question.record.facts, item.question.record.stages
    if "asked" in facts and written is not None:
        localisation = _LOCALISATIONS[item.roi.variant].format(written.localisation.removesuffix("."))
        rules = KNOWLEDGE.get(facts["asked"], SIGN_RULES)
        return {
            "localisation": f"{localisation}.",
            "visual": written.visual,
            "knowledge": rules[item.template % len(rules)],
        }
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
    return {"localisation": stages.localisation, "visual": visual, "knowledge": stages.knowledge}


def conclude(item: Trajectory) -> str:
    """Return the conclusion: the diagnosis, where the facts have it and the question is about it, and the answer."""
    facts, answer = item.question.record.facts, f"So the answer is {item.question.spoken_answer}."
    if "asked" in facts or not facts.get("diagnosis"):
        return answer
    return f"{state_finding(facts['diagnosis'], wording=item.template)} {answer}"


def assemble(item: Trajectory, parts: Parts) -> Record:
    """Return the question's record with the four stages; references are the unperturbed boxes."""
    record = item.question.record
    # Not checked here: `check` reports a blank part.
    stages = Stages(parts["localisation"], parts["visual"], parts["knowledge"], conclude(item))
    made = {"roi": item.roi.shown, "template": str(item.template + 1), "question": record.id}
    made_record = msgspec.structs.replace(record, id=item.id, thinking="", preamble=PREAMBLE, stages=stages)
    return add_provenance(made_record, made)


def check(item: Trajectory, parts: Parts, record: Record) -> None:
    """Require stages without the contents of other stages, and a record assembled from them."""
    question = item.question
    localisation, visual, rule = (parts[name] for name in STAGE_NAMES[:3])
    check_markup([localisation, visual, rule])
    for name in STAGE_NAMES[:3]:
        check_speech(parts[name], f"stage {name}")
        check_no_coordinates(parts[name], name)
        refuse_words(parts[name], HINT_WORDS, Reason.SPEAKS_OF_HINT, f"stage {name}")
        hidden = question.labels or (question.spoken_choices if name == "knowledge" else ())
        require(not names_any(parts[name], hidden), Reason.LABEL_NAMED, f"stage {name}")
    refuse_words(localisation, APPEARANCE_WORDS, Reason.APPEARANCE, "stage localisation")
    refuse_words(visual, INTERPRETATION_WORDS, Reason.INTERPRETATION, "stage visual")
    sentences = [set(map(fold, split_sentences(text))) for text in (localisation, visual, rule)]
    repeats = (sentences[2] & (sentences[0] | sentences[1])) or (sentences[0] & sentences[1])
    require(not repeats, Reason.REPETITION, "a sentence occurs in two stages")
    require(record.stages is not None, Reason.NOT_ASSEMBLED, "no stages")
    check_answer(record.stages.conclusion if record.stages else "", question)
    require_assembled(record, assemble(item, parts), dialect="lvkc")


def _localisation_data(item: Trajectory, _: Parts) -> dict[str, Any]:
    names = {
        item.question.region_of(statement) or statement.label: statement.sentence or statement.label
        for statement in item.question.statements
    }
    hint = {"region": item.roi.shown, "names": "; ".join(names)}
    return {"question": item.question.record.question, "hint": hint}


def _visual_data(item: Trajectory, parts: Parts) -> dict[str, Any]:
    return {"question": item.question.record.question, "region": parts["localisation"], "picture": item.observed()}


def _rule_data(item: Trajectory, parts: Parts) -> dict[str, Any]:
    question = item.question
    style = KNOWLEDGE_STYLES[item.template % len(KNOWLEDGE_STYLES)]
    hidden = question.record.lesion or question.spoken_answer
    return {"question": question.record.question, "visual": parts["visual"], "hidden_label": hidden, "style": style}


def _all_data(item: Trajectory) -> dict[str, Any]:
    return {**item.question.data(), "picture": item.observed()}


def _show_region(item: Trajectory, settings: TaskSettings) -> str:
    record = item.question.record
    region = None if item.roi.variant == WHOLE else (item.roi.box, record.image_size)
    return show_picture(record.image, settings, region=region)


def _of_all_templates(item: Trajectory) -> Trajectory:
    """Return the trajectory whose localisation and visual analysis all templates of its region share."""
    return dataclasses.replace(item, template=0)


_REQUESTS: tuple[Request[Trajectory], ...] = (
    Request(LOCALISATION, ("localisation",), _localisation_data, about=_of_all_templates),
    Request(VISUAL, ("visual",), _visual_data, about=_of_all_templates),
    Request(RULE, ("knowledge",), _rule_data, sees=False),
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
)
