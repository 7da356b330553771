"""Phantom chests: drawn frontal radiographs that show their seven answers, for runs without data.

Answers are drawn first, then the picture. A case depends on (seed, index, prevalence), its pixels also on the size.
"""

import dataclasses
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
from jaxtyping import Bool, UInt8

from stepcot_jax.box import Box
from stepcot_jax.chain import DEFAULT_CHAIN
from stepcot_jax.data.phantom.anatomy import (
    STYLES,
    Frame,
    Pose,
    Style,
    draw_anatomy,
    draw_pose,
    draw_style,
    expose,
    render_anatomy,
)
from stepcot_jax.data.phantom.answers import Prevalence, answer_texts, generator, write_report
from stepcot_jax.data.phantom.findings import Mark, Scene, draw_findings, plan_scene
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import removing_half
from stepcot_jax.host.own_folder import save
from stepcot_jax.host.text import write_csv
from stepcot_jax.record import Record

ORIGINS = tuple(style.origin for style in STYLES)  # names of the three origins, each with its own acquisition style
_PATIENTS_OF_BLOCK = (*range(12), 10, 11, 11)
"""Patient of each of 15 images: ten patients have one image, one has two and one has three."""

PATIENT_BLOCK = len(_PATIENTS_OF_BLOCK)
"""Images whose patients are their own, from a multiple of it on: chests beyond a run's last block have new patients."""

_LEAST_SIZE, _MOST_SIZE = 16, 4096
BOX_COLUMNS = ("image_path", "label", "x", "y", "width", "height", "side", "kind", "case_side")
"""Columns of `boxes.csv`; the last three are the mark's side and kind, and the side of the case."""

PICTURE_FOLDERS = ("images", "masks/lung", "masks/heart")  # folders of a phantom collection's images and masks


@dataclasses.dataclass(frozen=True)
class PhantomCase:
    """A case with its pixels."""

    case: Record
    image: UInt8[np.ndarray, "height width"]
    marks: tuple[Mark, ...]  # the findings with box, side and kind; empty for a normal chest
    side: str  # "right", "left" or "bilateral", as in the report; "" for a normal chest
    lung_mask: Bool[np.ndarray, "height width"]  # the aerated lungs, after findings changed heart and diaphragm
    heart_mask: Bool[np.ndarray, "height width"]  # the heart above the diaphragm, [height, width]

    @property
    def boxes(self) -> tuple[Box, ...]:
        """Boxes of the findings, in pixels of this image; empty for a normal chest."""
        return tuple(mark.box for mark in self.marks)


@dataclasses.dataclass(frozen=True)
class PlannedCase:
    """A case before its pixels; `plan_case` makes it and `draw_planned` draws it."""

    index: int  # number of the case, from 0
    seed: int
    case: Record
    scene: Scene
    style: Style
    pose: Pose


def draw_case(index: int, *, seed: int = 0, size: int = 224, prevalence: Prevalence = "published") -> PhantomCase:
    """Draw one phantom case.

    Args:
      index: number of the case, from 0.
      seed: seed of the collection, from 0.
      size: side of the square picture in pixels, 16 to 4096.
      prevalence: "published" for the diagnoses' published shares (67 % Normal), "flat" for equal shares.

    Returns:
      The case; another size shows the same patient with the same findings.

    Raises:
      BadInput: a setting is out of range.
    """
    return draw_planned(plan_case(index, seed=seed, prevalence=prevalence), size=size)


def export_phantom(
    root: Path,
    *,
    num_cases: int,
    seed: int,
    size: int,
    prevalence: Prevalence = "published",
    progress: Callable[[Iterable[int]], Iterable[int]] = iter,
) -> None:
    """Write phantom cases to a folder in the published layout."""
    from stepcot_jax.data.records.records import write_records  # a run draws its phantoms and writes no records

    if num_cases < 1:
        raise BadInput(f"phantom: {num_cases} cases; expected at least 1")
    check_size(size)
    root = Path(root)
    for folder in PICTURE_FOLDERS:
        (root / folder).mkdir(parents=True, exist_ok=True)
    cases = []
    boxes = root / "boxes.csv"
    with removing_half(boxes), boxes.open("w", newline="", encoding="utf-8") as file:
        write_csv(file, [BOX_COLUMNS])
        for index in progress(range(num_cases)):
            drawn = draw_case(index, seed=seed, size=size, prevalence=prevalence)
            write_pictures(root, drawn)
            for mark in drawn.marks:
                numbers = (mark.box.x1, mark.box.y1, *mark.box.size, mark.side)
                write_csv(file, [[drawn.case.image, mark.box.label, *numbers, mark.kind, drawn.side]])
            cases.append(drawn.case)
    write_records(root, chain=DEFAULT_CHAIN, cases=cases)
    save(root / "phantom.json", {"num_cases": num_cases, "seed": seed, "size": size, "prevalence": prevalence})


def write_pictures(root: Path, drawn: PhantomCase) -> None:
    """Write image and masks as PNG into `PICTURE_FOLDERS`, which must exist below `root`."""
    from PIL import Image

    name = Path(drawn.case.image).name
    pictures = {root / drawn.case.image: drawn.image}
    for folder, mask in (("lung", drawn.lung_mask), ("heart", drawn.heart_mask)):
        pictures[root / "masks" / folder / name] = mask.astype(np.uint8) * 255
    for path, pixels in pictures.items():
        with removing_half(path):
            Image.fromarray(pixels).save(path)


def check_size(size: int, *, least: int = _LEAST_SIZE) -> None:
    """Raise `BadInput` for a size that cannot be drawn in reasonable memory and time."""
    if not least <= size <= _MOST_SIZE:
        raise BadInput(f"phantom size: {size} pixels; expected {least} to {_MOST_SIZE}")


def _patient(index: int, *, seed: int) -> int:
    block, position = divmod(index, len(_PATIENTS_OF_BLOCK))
    order = generator(seed, block, stream=2).permutation(len(_PATIENTS_OF_BLOCK))
    return block * (max(_PATIENTS_OF_BLOCK) + 1) + _PATIENTS_OF_BLOCK[order[position]]


def plan_case(index: int, *, seed: int = 0, prevalence: Prevalence = "published") -> PlannedCase:
    """Return a case without drawing it, in a fifth of the time; arguments and errors are those of `draw_case`."""
    answers = answer_texts(index, seed=seed, prevalence=prevalence)
    patient = _patient(index, seed=seed)
    of_patient, of_image = generator(seed, patient, stream=3), generator(seed, index, stream=4)
    look = draw_style(of_patient)
    anatomy = draw_anatomy(of_patient)
    pose = draw_pose(of_image, look)
    scene = plan_scene(answers, anatomy, of_image)
    report, reasoning = write_report(answers, scene.side, generator(seed, index, stream=5))
    case = Record(
        patient=f"P{patient:06d}",
        image=f"images/phantom_{index:06d}.png",
        origin=look.origin,
        report=report,
        answers=tuple(step.options.index(answer) for step, answer in zip(DEFAULT_CHAIN.steps, answers, strict=True)),
        reasoning=reasoning,
    )
    return PlannedCase(index, seed, case, scene, look, pose)


def draw_planned(shot: PlannedCase, *, size: int, healthy: bool = False) -> PhantomCase:
    """Draw the pixels of a planned case."""
    check_size(size)
    frame = Frame.of(shot.pose, size)
    scene = Scene(shot.scene.healthy, shot.scene.healthy) if healthy else shot.scene
    chest = render_anatomy(scene.anatomy, frame)
    margin = round(1.2 * shot.style.blur * size)
    attenuation, marks = draw_findings(scene, chest=chest, frame=frame, margin=margin)
    image = expose(attenuation, style=shot.style, pose=shot.pose, rng=generator(shot.seed, shot.index, stream=6))
    heart_mask = chest.heart > 0.5
    lung_mask = (chest.lungs[-1] + chest.lungs[1] > 0.5) & ~heart_mask
    return PhantomCase(shot.case, image, marks, scene.side, lung_mask, heart_mask)
