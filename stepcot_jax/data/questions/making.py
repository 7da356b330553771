"""Folders of reasoning records from phantoms or detection lists: records, images, masks and texts to train on."""

import collections
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from stepcot_jax.box import Box, Corners
from stepcot_jax.chain import DEFAULT_CHAIN, DIAGNOSIS_OPTIONS, NOT_ANNOTATED, Chain
from stepcot_jax.data import parquet
from stepcot_jax.data.identities import normalise_image_path
from stepcot_jax.data.images.image_decoding import MAX_PIXELS, most_bytes
from stepcot_jax.data.images.image_files import read_picture
from stepcot_jax.data.phantom.answers import Prevalence
from stepcot_jax.data.phantom.findings import Mark
from stepcot_jax.data.phantom.phantom import (
    PICTURE_FOLDERS,
    PhantomCase,
    PlannedCase,
    check_size,
    draw_planned,
    plan_case,
    write_pictures,
)
from stepcot_jax.data.questions.questions import ask_questions
from stepcot_jax.data.questions.record_files import FILE_NAME, write_vqa_records
from stepcot_jax.data.questions.vocabulary import (
    FACT_NAMES,
    HEART,
    LOOK_ALIKES,
    MEDIASTINUM,
    TERMS,
    Mask,
    canonical,
    diaphragm_name,
    enclose_boxes,
    find_regions,
    hilum_name,
    host_organ,
    split_lungs,
    zone_name,
)
from stepcot_jax.data.splits.making import PUBLISHED_FRACTIONS, split_by_patient
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import removing_half, write_whole, writing_whole
from stepcot_jax.reasoning.dialects import list_writable, write_question, write_reply
from stepcot_jax.record import Record

_LEAST_SIZE = 32
_MOST_BOXES = 3
_SIDELESS = "Cardiac"
_SIDES = {-1: "right", 1: "left"}
_ZONES = {"Upper lung zone": "upper", "Middle lung zone": "middle", "Lower lung zone": "lower"}


def ground_phantom(
    index: int, *, seed: int = 0, size: int = 64, prevalence: Prevalence = "flat"
) -> tuple[Record, PhantomCase]:
    """Draw a phantom and return it as a grounded image, and the drawn case."""
    return ground_planned(plan_case(index, seed=seed, prevalence=prevalence), size=size, prevalence=prevalence)


def ground_planned(planned: PlannedCase, *, size: int, prevalence: Prevalence = "flat") -> tuple[Record, PhantomCase]:
    """Draw a planned phantom as `ground_phantom` does; `prevalence` is the one it was planned with."""
    check_size(size, least=_LEAST_SIZE)
    drawn = draw_planned(planned, size=size)
    image = ground_marks(drawn.case, drawn.marks, side=drawn.side, lungs=drawn.lung_mask, heart=drawn.heart_mask)
    source = {"source": "phantom", "seed": str(planned.seed), "index": str(planned.index), "prevalence": prevalence}
    return msgspec.structs.replace(image, provenance=source), drawn


def ground_marks(
    case: Record, marks: Sequence[Mark], *, side: str, lungs: Mask, heart: Mask, chain: Chain = DEFAULT_CHAIN
) -> Record:
    """Return a drawn case as a grounded image without provenance."""
    facts = list_answers(case, chain)
    facts["side"] = side if _shows_side(marks, facts) else ""
    regions = find_regions(lungs, heart)
    findings = _find(case, marks, facts, {region.label: region.corners for region in regions})
    corners = [finding.corners for finding in findings if finding.label == facts["diagnosis"]]
    organs = {f"{name} lung": mask for name, mask in split_lungs(lungs).items()} | {"heart": heart}
    facts["organ"] = host_organ(corners[0], organs) if corners else ""
    size = (lungs.shape[1], lungs.shape[0])
    return as_grounded(case, size=size, findings=findings, regions=regions, facts=facts)


def as_grounded(
    case: Record,
    *,
    size: tuple[int, int],
    findings: tuple[Box, ...],
    regions: tuple[Box, ...],
    facts: dict[str, str],
) -> Record:
    """Return a case's image with its findings in boxes, what it does not show, regions and facts."""
    return Record(
        id=Path(case.image).stem,
        image=case.image,
        image_size=size,
        patient=case.patient,
        origin=case.origin,
        boxes=findings,
        regions=regions,
        absent=list_absent(findings),
        facts=facts,
    )


def _shows_side(marks: Sequence[Mark], facts: dict[str, str]) -> bool:
    """Whether marks or report show a side; an enlarged heart alone has none."""
    described = {canonical(facts["diagnosis"]), canonical(facts["secondary"])}
    return facts["zone"] != _SIDELESS or any(mark.side and canonical(mark.box.label) in described for mark in marks)


def list_answers(case: Record, chain: Chain) -> dict[str, str]:
    """Return the answers of a case by `vocabulary.FACT_NAMES`, "" where it has none."""
    answers = [
        step.options[label] if label != NOT_ANNOTATED else ""
        for step, label in zip(chain.steps, case.answers, strict=True)
    ]
    return dict(zip(FACT_NAMES, answers, strict=True))


def list_absent(findings: Sequence[Box]) -> tuple[str, ...]:
    """Return the labels that are not among a phantom's findings and do not look like one of them."""
    present = {canonical(finding.label) for finding in findings}
    unknown = present.union(*(LOOK_ALIKES.get(label, ()) for label in present))
    return tuple(label for label in TERMS if label not in unknown)


def _find(case: Record, drawn: Sequence[Mark], facts: dict[str, str], regions: dict[str, Corners]) -> tuple[Box, ...]:
    by_label = collections.defaultdict(list)
    for mark in sorted(drawn, key=lambda mark: mark.box.label != facts["diagnosis"]):
        by_label[mark.box.label].append(mark)
    findings = []
    for label, marks in by_label.items():
        sentence = _sentence(case.report, label, facts)
        groups = [[mark] for mark in marks]
        if len(marks) > _MOST_BOXES:
            groups = [[mark for mark in marks if mark.side == side] for side in (0, -1, 1)]
        for group in filter(None, groups):
            box = enclose_boxes([corners_of(mark) for mark in group])
            findings.append(Box(label, box, sentence, _name_region(group, facts, box, regions)))
    return tuple(findings)


def _sentence(report: str, label: str, facts: dict[str, str]) -> str:
    first, _, second = report.partition(". ")
    return second.partition(";")[0] + "." if label == facts["secondary"] else first + "."


def corners_of(mark: Mark) -> Corners:
    """Return the box of a mark as corners."""
    x1, y1, x2, y2 = map(float, mark.box.corners)
    return x1, y1, x2, y2


def _name_region(marks: Sequence[Mark], facts: dict[str, str], box: Corners, regions: dict[str, Corners]) -> str:
    """Return the region of marks of one label: the lung where their box is not centred in the zone that they name."""
    names = {_name_one(mark, facts, box, regions) for mark in marks}
    side = _SIDES.get(marks[0].side)
    name = names.pop() if len(names) == 1 or side is None else f"{side} lung"
    zone = _ZONES.get(facts["zone"]) if marks[0].box.label == facts["diagnosis"] else None
    is_other = bool(zone and side) and name != zone_name(str(side), str(zone))
    is_beside = not regions[name][1] <= (box[1] + box[3]) / 2 < regions[name][3]
    return f"{side} lung" if name.endswith("lung zone") and (is_other or is_beside) else name


def _name_one(mark: Mark, facts: dict[str, str], box: Corners, regions: dict[str, Corners]) -> str:
    """Return the region of one mark: by step 4 for a lesion of the diagnosis, else by the kind of sign."""
    label, side = mark.box.label, _SIDES.get(mark.side)
    if side is None:
        return MEDIASTINUM if label == "Mediastinal shift" else HEART
    if mark.kind == "sign":
        return diaphragm_name(side)
    if mark.kind == "fluid":
        low = zone_name(side, "lower")
        return low if (box[1] + box[3]) / 2 >= regions[low][1] else f"{side} lung"
    if mark.kind == "air":
        return f"{side} lung"
    fixed = {"Lymphadenopathy": hilum_name(side), "Emphysema": zone_name(side, "upper")}
    fixed |= {"Effusion": zone_name(side, "middle")}  # consolidation or a fissure above the fluid
    if label in fixed:
        return fixed[label]
    if facts["zone"] == "Hilar/Mediastinal":
        return hilum_name(side)
    zone = _ZONES.get(facts["zone"])
    return zone_name(side, zone) if zone else f"{side} lung"


CONVERSATIONS = "conversations.jsonl"
Progress = Callable[[Iterable[Any]], Iterable[Any]]


def make_phantom_records(
    out: Path, *, num_cases: int, size: int, seed: int, prevalence: Prevalence = "flat", progress: Progress = iter
) -> list[Record]:
    """Draw phantoms, write their images and masks, and return records about them, split by patient."""
    if num_cases < 3:
        raise BadInput(f"--num-cases must be at least 3 (a patient for each split); got {num_cases}")
    ground_phantom(0, seed=seed, size=size, prevalence=prevalence)  # raises for bad settings before writing
    planned = plan_phantoms(num_cases=num_cases, seed=seed, prevalence=prevalence)
    for folder in PICTURE_FOLDERS:
        (out / folder).mkdir(parents=True, exist_ok=True)
    records: list[Record] = []
    for drawn, asked in draw_phantoms(planned, size=size, prevalence=prevalence, progress=progress):
        write_pictures(out, drawn)
        records += asked
    return records


Planned = tuple[PlannedCase, str]  # a phantom that is not drawn yet, and its split


def plan_phantoms(
    *,
    num_cases: int,
    seed: int,
    prevalence: Prevalence,
    split_seed: int | None = None,
    fractions: tuple[float, ...] = PUBLISHED_FRACTIONS,
) -> list[Planned]:
    """Return phantoms with their splits before anything is drawn."""
    planned = [plan_case(index, seed=seed, prevalence=prevalence) for index in range(num_cases)]
    cases = [plan.case for plan in planned]
    strata = [DIAGNOSIS_OPTIONS[case.answers[-1]] for case in cases]
    splits = split_by_patient(cases, strata, seed=seed if split_seed is None else split_seed, fractions=fractions)
    return list(zip(planned, splits, strict=True))


def draw_phantoms(
    planned: Sequence[Planned], *, size: int, prevalence: Prevalence, progress: Progress = iter
) -> Iterator[tuple[PhantomCase, list[Record]]]:
    """Draw planned phantoms and yield each with the records about it."""
    for plan, split in progress(planned):
        image, drawn = ground_planned(plan, size=size, prevalence=prevalence)
        yield drawn, ask_questions(msgspec.structs.replace(image, split=split), seed=plan.seed)


def split_images(images: Sequence[Record], *, seed: int) -> list[Record]:
    """Return the images with splits by patient, stratified by diagnosis and origin; splits of the source are kept."""
    named = [image for image in images if image.split]
    if named:
        if len(named) < len(images):
            raise BadInput(f"{len(images) - len(named)} of {len(images)} images have no split; expected all or none")
        return list(images)
    strata = [
        image.facts.get("diagnosis") or (canonical(image.boxes[0].label) if image.boxes else "") for image in images
    ]
    splits = split_by_patient(images, strata, seed=seed)
    return [msgspec.structs.replace(image, split=split) for image, split in zip(images, splits, strict=True)]


def make_folder_records(
    out: Path, images: Sequence[Record], *, root: Path, seed: int, with_images: bool = True, progress: Progress = iter
) -> list[Record]:
    """Copy the images of a detection list, with the masks of a phantom folder, and return records about them."""
    records: list[Record] = []
    for image in progress(split_images(images, seed=seed)):
        path = normalise_image_path(image.image)
        masks = [f"{folder}/{Path(path).name}" for folder in PICTURE_FOLDERS if folder.startswith("masks")]
        for name in (path, *(mask for mask in masks if (root / mask).is_file())) if with_images else ():
            _copy(name, source=root, target=out)
        records += ask_questions(msgspec.structs.replace(image, image=path), seed=seed)
    if not records:
        raise BadInput(f"{root}: no question can be asked; findings or labels that the source denies are required")
    return records


def copy_images(out: Path, records: Iterable[Record], *, root: Path) -> list[Record]:
    """Copy the images of records, and return the records; a picture of a table's cell becomes a file below images."""
    kept, copied = [], dict[str, str]()
    for record in records:
        if record.image not in copied and parquet.find_cell(record.image):
            content = read_picture(root, record.image, max_bytes=most_bytes(MAX_PIXELS))
            name = re.sub(r"[^\w.-]", "_", record.image) + (".png" if content.startswith(b"\x89PNG") else ".jpg")
            (out / "images").mkdir(parents=True, exist_ok=True)
            write_whole(out / "images" / name, content)
            copied[record.image] = f"images/{name}"
        elif record.image not in copied:
            _copy(record.image, source=root, target=out)
            copied[record.image] = record.image
        kept.append(msgspec.structs.replace(record, image=copied[record.image]))
    return kept


def _copy(name: str, *, source: Path, target: Path) -> None:
    (target / name).parent.mkdir(parents=True, exist_ok=True)
    try:
        with removing_half(target / name):
            shutil.copyfile(source / name, target / name)
    except OSError as error:
        raise BadInput(f"{source / name}: cannot be copied ({error.strerror})") from None


def write_texts(record: Record, dialect: str, *, with_thinking: bool = True) -> tuple[str, str]:
    """Return the prompt and the reply of a record, from which a run learns."""
    written = record if with_thinking else msgspec.structs.replace(record, thinking="")
    try:
        reply = write_reply(written, dialect)
    except BadInput as error:
        able = " or ".join(list_writable(written))
        other = f"; config.vqa.dialect={able} can write it" if able else ""
        raise BadInput(f"record {record.id[:80]!r}, {error}{other}") from None
    return write_question(record, dialect, with_thinking=with_thinking), reply


def write_records(out: Path, records: Sequence[Record], *, dialect: str | None = None) -> int:
    """Write `records.jsonl`, and with a dialect `conversations.jsonl`; return the number of conversations."""
    number, problem = 0, ""
    if dialect is not None:
        with writing_whole(out / CONVERSATIONS) as file:
            for record in records:
                try:
                    line = _converse(record, dialect)
                except BadInput as error:
                    problem = problem or f"record {record.id}, {error}"
                    continue
                file.write(line + b"\n")
                number += 1
            if not number:
                raise BadInput(f"--dialect: {dialect} can write none of {len(records)} records ({problem})")
    write_vqa_records(out / FILE_NAME, records)
    return number


def _converse(record: Record, dialect: str) -> bytes:
    prompt = f"<image>\n{write_question(record, dialect, with_thinking=bool(record.thinking))}"
    turns = [{"from": "human", "value": prompt}, {"from": "gpt", "value": write_reply(record, dialect)}]
    named = {"id": record.id, "split": record.split, "images": [record.image]}
    return msgspec.json.encode({**named, "conversations": turns})
