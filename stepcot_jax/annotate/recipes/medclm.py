"""MedCLM: boxes and masks -> host organ -> seed sentence -> an easy, a medium and a hard view of each lesion.

Easy shows the boxes drawn, medium the bare picture, hard another case's of the same domain (lesion and modality).
"""

import dataclasses
import functools
import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from stepcot_jax.annotate.annotation import Aside, Reason
from stepcot_jax.annotate.checks import check_markup, check_no_coordinates, check_speech, is_denied, names_any, require
from stepcot_jax.annotate.llm.prompts import EASY, HARD, MEDCLM_TRUST, MEDCLM_VOTE, MEDIUM
from stepcot_jax.annotate.recipes.items import Parts, Question, Request, Task, TaskSettings, add_provenance
from stepcot_jax.annotate.recipes.organs import ORGAN_FROM, Hosts
from stepcot_jax.annotate.recipes.pictures import DRAWN_FOLDER, draw_views, show_picture
from stepcot_jax.annotate.recipes.rmcot import require_assembled
from stepcot_jax.box import UNIT_SQUARE, Box
from stepcot_jax.data.questions.stage_views import STAGES, Stage
from stepcot_jax.data.questions.vocabulary import accepted_names, canonical, term_of
from stepcot_jax.host.errors import BadInput
from stepcot_jax.reasoning.replies import BOX, write_boxes
from stepcot_jax.record import Record


@dataclasses.dataclass(frozen=True)
class View:
    """One stage of a lesion."""

    record: Record  # image of the view, with the lesion's boxes as references; in the hard stage another case's
    seed_case: str  # id of the question that the lesion comes from
    label: str
    stage: Stage

    @property
    def organ(self) -> str:
        """The lesion's host organ; "" if it is unknown, which no text mentions."""
        return self.record.organ

    @property
    def id(self) -> str:
        """Unique name within its source."""
        return f"{self.seed_case}.{self.label}.{self.stage}"

    @functools.cached_property
    def text(self) -> str:
        """Everything that an answer depends on."""
        return json.dumps([self.record.image, self.data()], sort_keys=True)

    @property
    def box_text(self) -> str:
        """The boxes as written in the reasoning: in the unit square, four decimals."""
        return ", ".join(f"**{self.label}** {box}" for box in write_boxes(self.record, UNIT_SQUARE))

    @property
    def location(self) -> str:
        """The host organ with " in the" before it; "" if it is unknown or the lesion's name has it."""
        return f" in the {self.organ}" if self.organ and self.organ not in term_of(self.label).phrase else ""

    @property
    def seed(self) -> str:
        """The seed sentence: lesion in organ."""
        return f"The picture shows {term_of(self.label).phrase}{self.location}."

    def data(self) -> dict[str, Any]:
        """Return the data of the request; in the hard stage only the domain."""
        domain = {"class": self.label, "picture_kind": Question(self.record, ()).picture}
        if self.stage == "hard":
            return domain
        # Only numbers: requests escape brackets, and the answer must contain them unescaped.
        boxes = {str(n): box.strip("[]") for n, box in enumerate(write_boxes(self.record, UNIT_SQUARE), start=1)}
        organ = {"host_organ": self.organ} if self.organ else {}
        return {"seed": self.seed, **domain, **organ, "box_text": boxes}


def plan_views(questions: Sequence[Question], settings: TaskSettings) -> list[View | Aside]:
    """Return the three views of each lesion; each image is used once, however many questions it has."""
    planned: list[View | Aside] = []
    lesions: dict[tuple[str, str], tuple[str, Record]] = {}
    boxless: dict[str, Aside] = {}
    for question in questions:
        image = question.record.image
        for label, record in _find_lesions(question):
            if (image, canonical(label)) not in lesions:
                lesions[image, canonical(label)] = (question.id, record)
        boxless.setdefault(image, Aside(question.id, Reason.NO_LESION, "no box of a lesion's class"))
    with_lesion = {image for image, _ in lesions}
    planned += [aside for image, aside in boxless.items() if image not in with_lesion]
    hosts = Hosts(settings, {image for image, _ in lesions})
    for key, (seed_case, record) in list(lesions.items()):
        try:
            lesions[key] = (seed_case, _add_organ(record, *hosts.find(record)))
        except BadInput as error:
            planned.append(Aside(f"{seed_case}.{record.lesion}", Reason.UNREADABLE_RECORD, str(error)))
            del lesions[key]
    domains: dict[tuple[str, str, str], list[Record]] = {}
    for (_, label), (_, record) in lesions.items():
        domains.setdefault((label, record.modality, record.split), []).append(record)
    for (_, label), (seed_case, record) in lesions.items():
        easy = View(record, seed_case, record.lesion, "easy")
        other = _find_other(record, domains[label, record.modality, record.split])
        hard = dataclasses.replace(easy, record=other or record, stage="hard")
        aside = Aside(hard.id, Reason.NO_OTHER_CASE, "the only image of its class and split")
        planned += [easy, dataclasses.replace(easy, stage="medium"), hard if other else aside]
    return planned


def _add_organ(record: Record, organ: str, source: str) -> Record:
    known = msgspec.structs.replace(record, organ=organ)
    return add_provenance(known, {ORGAN_FROM: source}) if source else known


def _find_lesions(question: Question) -> Iterable[tuple[str, Record]]:
    """Yield the classes of a question's image, and a record that refers to the boxes of the class."""
    record, boxes = question.record, dict[str, list[Box]]()
    if question.from_list:
        for statement in question.statements:
            if statement in question.findings:
                boxes.setdefault(statement.label, []).append(Box(statement.label, statement.corners))
    elif record.lesion:
        same = [box for box in record.references if canonical(box.label) == canonical(record.lesion)]
        boxes = {record.lesion: same} if same else {}
    for label, references in boxes.items():
        yield label, msgspec.structs.replace(record, lesion=label, references=tuple(references))


def _find_other(record: Record, domain: Sequence[Record]) -> Record | None:
    """Return the next case of the domain, of another patient if there is one."""
    index = next(index for index, case in enumerate(domain) if case is record)
    others = [case for case in (*domain[index + 1 :], *domain[:index]) if case.image != record.image]
    other_patients = [case for case in others if case.patient != record.patient]
    return next(iter(other_patients or others), None)


def write_view(view: View) -> dict[str, str]:
    """Write a view offline."""
    name = term_of(view.label).name
    answer = f"{name[:1].upper()}{name[1:]}"
    if view.stage == "hard":
        return {"question": "What abnormality does this picture show?", "answer": f"{answer}."}
    where = f"The place is {view.box_text}."
    if view.stage == "easy":
        noun = "boxes" if len(view.record.references) > 1 else "box"
        verb = "do" if noun == "boxes" else "does"
        question = f"What {verb} the {noun} in this picture show?"
        return {"question": question, "reasoning": f"{view.seed} {where}", "answer": f"{answer}."}
    question = f"Is there an abnormality in this picture{', and where does it lie' if view.organ else ''}?"
    reasoning = f"I look over the whole picture. {view.seed} {where}"
    location = f" in the {view.organ}" if view.organ else ""
    return {"question": question, "reasoning": reasoning, "answer": f"{answer}{location}."}


def assemble(view: View, parts: Parts) -> Record:
    """Return the record of a view; the hard one has no boxes and no reasoning."""
    shown, is_hard = view.record, view.stage == "hard"
    path, made = shown.image, {"stage": view.stage, "seed case": view.seed_case}
    if view.stage == "easy":
        path, made = _drawn_path(view), {**made, "drawn from": path}
    return msgspec.structs.replace(
        shown,
        id=view.id,
        image=path,
        kind="open",
        topic=f"{view.stage} view",
        question=parts["question"],
        options=(),
        answer=parts["answer"],
        synonyms=accepted_names(view.label),
        references=() if is_hard else shown.references,
        thinking="" if is_hard else parts["reasoning"],
        preamble="",
        stages=None,
        provenance={**shown.provenance, **made},
    )


def _drawn_path(view: View) -> str:
    readable = re.sub(r"[^A-Za-z0-9_-]+", "_", view.id)[:80]
    return f"{DRAWN_FOLDER}/{readable}-{hashlib.sha256(view.id.encode()).hexdigest()[:8]}.png"


def check(view: View, parts: Parts, record: Record) -> None:
    """Require the boxes in the reasoning, the class in the answer, and no box in the hard stage."""
    check_markup(parts.values())
    for name, text in parts.items():
        check_speech(text, name)
    if view.stage == "hard":
        boxes = BOX.search(" ".join(parts.values())) or record.references or record.thinking
        require(not boxes, Reason.BOX_IN_HARD_STAGE, "a box, a reference or reasoning")
    else:
        written = set(write_boxes(view.record, UNIT_SQUARE))
        present = {match[0] for match in BOX.finditer(parts["reasoning"])}
        require(written <= present, Reason.NO_BOX_TEXT, f"{len(written - present)} of {len(written)} boxes")
        require(present <= written, Reason.WRONG_BOX, f"{len(present - written)} other boxes")
    for name in ("question", "answer"):
        check_no_coordinates(parts[name], name)
    names = accepted_names(view.label)
    is_named = bool(names_any(parts["answer"], names)) and not is_denied(parts["answer"], names)
    require(is_named, Reason.CLASS_NOT_NAMED, f"{view.stage} view")
    require_assembled(record, assemble(view, parts), dialect="medclm")


_REQUESTS: dict[Stage, Request[View]] = {
    stage: Request(prompt, tuple(prompt.schema["required"]), lambda view, _: view.data())
    for stage, prompt in zip(STAGES, (EASY, MEDIUM, HARD), strict=True)
}

TASK: Task[View] = Task(
    name="medclm",
    units="views",
    plan=plan_views,
    requests=tuple(_REQUESTS.values()),
    choose=lambda view: (_REQUESTS[view.stage],),
    write=write_view,
    assemble=assemble,
    check=check,
    data=lambda view: view.data(),
    trust=MEDCLM_TRUST,
    vote=MEDCLM_VOTE,
    show=lambda view, settings: (
        show_picture(view.record.image, settings, boxed=view.record if view.stage == "easy" else None),
    ),
    picture=lambda view: view.record.image,
    finish=draw_views,
)
