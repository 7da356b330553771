"""Folders of reasoning records from phantoms or detection lists: records, images, masks and texts to train on."""

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from stepcot_jax.chain import DIAGNOSIS_OPTIONS
from stepcot_jax.data.phantom.answers import Prevalence
from stepcot_jax.data.phantom.phantom import PICTURE_FOLDERS, PhantomCase, PlannedCase, plan_case, write_pictures
from stepcot_jax.data.questions.phantom_images import ground_phantom, ground_planned
from stepcot_jax.data.questions.questions import ask_questions
from stepcot_jax.data.questions.record_files import FILE_NAME, write_vqa_records
from stepcot_jax.data.records.data_json import normalise_image_path
from stepcot_jax.data.splits.making import PUBLISHED_FRACTIONS, split_by_patient, split_images
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import removing_half, writing_whole
from stepcot_jax.reasoning.dialects import write_question, write_reply
from stepcot_jax.record import Record

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
    """Copy the images of records that a source has written, and return the records unchanged."""
    kept, copied = [], set()
    for record in records:
        if record.image not in copied:
            _copy(record.image, source=root, target=out)
            copied.add(record.image)
        kept.append(record)
    return kept


def _copy(name: str, *, source: Path, target: Path) -> None:
    (target / name).parent.mkdir(parents=True, exist_ok=True)
    try:
        with removing_half(target / name):
            shutil.copyfile(source / name, target / name)
    except OSError as error:
        raise BadInput(f"{source / name}: cannot be copied ({error.strerror})") from None


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
