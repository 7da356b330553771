"""Phantom chests: drawn frontal radiographs whose seven answers can be seen, for runs without data.

The answers are drawn first, then the picture from them. A case depends on (seed, index, prevalence) and its
pixels on the size as well, on nothing else: not on the cases drawn before it.
"""

import csv
import dataclasses
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
from jaxtyping import Bool, UInt8

from stepcot_jax.chain import DEFAULT_CHAIN
from stepcot_jax.data.phantom.anatomy import draw_anatomy, render_anatomy
from stepcot_jax.data.phantom.frame import Frame, Pose
from stepcot_jax.data.phantom.phantom_answers import Prevalence, answer_texts, draw_answers, generator
from stepcot_jax.data.phantom.phantom_findings import draw_findings
from stepcot_jax.data.phantom.phantom_reports import write_report
from stepcot_jax.data.phantom.planning import plan_scene
from stepcot_jax.data.phantom.scene import Scene
from stepcot_jax.data.phantom.styles import STYLES, Exposure, Style, draw_exposure, draw_pose, draw_style, expose
from stepcot_jax.data.records.cases import Box, Case
from stepcot_jax.data.records.records import write_records
from stepcot_jax.host.errors import BadInput

__all__ = ["Box", "PhantomCase", "Prevalence", "draw_answers", "draw_case", "export_phantom"]

ORIGINS = tuple(style.origin for style in STYLES)
"""Names of the three origins, each with a style of acquisition of its own."""

_PATIENTS_OF_BLOCK = (*range(12), 10, 11, 11)
"""Patient of each of 15 images: ten patients have one, one has two and one has three."""

_LEAST_SIZE = 16


@dataclasses.dataclass(frozen=True)
class PhantomCase:
    """A case with its pixels.

    Attributes:
      case: record of the case.
      image: grey levels, [height, width].
      boxes: where the findings are, in pixels of this image; none for a normal chest.
      lung_mask: the aerated lungs as they are with the findings' changes of heart and diaphragm, [height, width].
      heart_mask: the heart above the diaphragm, [height, width].
    """

    case: Case
    image: UInt8[np.ndarray, "height width"]
    boxes: tuple[Box, ...]
    lung_mask: Bool[np.ndarray, "height width"]
    heart_mask: Bool[np.ndarray, "height width"]


@dataclasses.dataclass(frozen=True)
class _Shot:
    """All of a case but its pixels."""

    case: Case
    scene: Scene
    style: Style
    pose: Pose
    exposure: Exposure


def draw_case(index: int, *, seed: int, size: int, prevalence: Prevalence = "published") -> PhantomCase:
    """One phantom case.

    Args:
      index: number of the case, from 0.
      seed: seed of the collection, from 0.
      size: side of the square picture in pixels, at least 16.
      prevalence: "published" for the diagnoses' published shares (67 % Normal), "flat" for equal shares.

    Returns:
      The case. At another size it is the same patient with the same findings.

    Raises:
      BadInput: a setting out of range.
    """
    return _develop(_plan(index, seed=seed, prevalence=prevalence), index=index, seed=seed, size=size)


def export_phantom(
    root: Path,
    *,
    num_cases: int,
    seed: int,
    size: int,
    prevalence: Prevalence = "published",
    progress: Callable[[Iterable[int]], Iterable[int]] = iter,
) -> None:
    """Writes phantom cases to a folder in the published layout.

    Beside `data.json` and `images/` it holds `boxes.csv` (image_path, label, x, y, width, height in pixels) and
    `masks/lung/`, `masks/heart/` (255 inside), named as the images are.

    Args:
      root: the folder; made if absent.
      num_cases: number of cases, from 1.
      seed: seed of the collection.
      size: side of a picture in pixels.
      prevalence: as in `draw_case`.
      progress: wraps the indices, so as to show a bar.
    """
    if num_cases < 1:
        raise BadInput(f"phantom: found {num_cases} cases, accepted are whole numbers from 1")
    root = Path(root)
    for folder in ("images", "masks/lung", "masks/heart"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    cases = []
    with (root / "boxes.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["image_path", "label", "x", "y", "width", "height"])
        for index in progress(range(num_cases)):
            drawn = draw_case(index, seed=seed, size=size, prevalence=prevalence)
            _write_pictures(root, drawn)
            table.writerows([drawn.case.image_path, *dataclasses.astuple(box)[:5]] for box in drawn.boxes)
            cases.append(drawn.case)
    write_records(root, chain=DEFAULT_CHAIN, cases=cases)


def _write_pictures(root: Path, drawn: PhantomCase) -> None:
    from PIL import Image

    name = Path(drawn.case.image_path).name
    Image.fromarray(drawn.image).save(root / drawn.case.image_path)
    for folder, mask in (("lung", drawn.lung_mask), ("heart", drawn.heart_mask)):
        Image.fromarray(mask.astype(np.uint8) * 255).save(root / "masks" / folder / name)


def _patient(index: int, *, seed: int) -> int:
    """Number of the patient of an image.

    Images come in blocks, and patients never leave their block: so that no other case need be drawn.
    """
    block, place = divmod(index, len(_PATIENTS_OF_BLOCK))
    order = generator(seed, block, stream=2).permutation(len(_PATIENTS_OF_BLOCK))
    return block * (max(_PATIENTS_OF_BLOCK) + 1) + _PATIENTS_OF_BLOCK[order[place]]


def _plan(index: int, *, seed: int, prevalence: Prevalence) -> _Shot:
    answers = answer_texts(index, seed=seed, prevalence=prevalence)
    patient = _patient(index, seed=seed)
    of_patient, of_image = generator(seed, patient, stream=3), generator(seed, index, stream=4)
    style, anatomy = draw_style(of_patient), draw_anatomy(of_patient)
    pose, exposure = draw_pose(of_image, style), draw_exposure(of_image)
    scene = plan_scene(answers, anatomy, of_image)
    report, reasoning = write_report(answers, scene.side, generator(seed, index, stream=5))
    case = Case(
        patient_id=f"P{patient:06d}",
        image_path=f"images/phantom_{index:06d}.png",
        origin=style.origin,
        report=report,
        labels=tuple(step.options.index(answer) for step, answer in zip(DEFAULT_CHAIN.steps, answers, strict=True)),
        reasoning=reasoning,
    )
    return _Shot(case, scene, style, pose, exposure)


def _develop(shot: _Shot, *, index: int, seed: int, size: int, healthy: bool = False) -> PhantomCase:
    """Draws the pixels; `healthy` leaves the findings out and keeps patient, pose, exposure and noise."""
    if size < _LEAST_SIZE:
        raise BadInput(f"phantom size: found {size}, accepted are whole numbers of pixels from {_LEAST_SIZE}")
    frame = Frame.of(shot.pose, size)
    scene = Scene(shot.scene.healthy, shot.scene.healthy) if healthy else shot.scene
    chest = render_anatomy(scene.anatomy, frame)
    margin = round(1.2 * shot.style.blur * size)
    attenuation, boxes = draw_findings(scene, chest=chest, frame=frame, margin=margin)
    image = expose(attenuation, style=shot.style, exposure=shot.exposure, rng=generator(seed, index, stream=6))
    heart_mask = chest.heart > 0.5
    lung_mask = (chest.lungs[-1] + chest.lungs[1] > 0.5) & ~heart_mask
    return PhantomCase(shot.case, image, boxes, lung_mask, heart_mask)
