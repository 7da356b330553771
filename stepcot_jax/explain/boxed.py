"""Radiographs with lesion boxes, at the encoder's size, for scoring maps."""

import dataclasses
import pathlib

import numpy as np
from jaxtyping import Bool, UInt8

from stepcot_jax.data.images.preprocessing import Preprocessing, decode_image, repeat_grey, resize_image
from stepcot_jax.data.phantom.phantom import draw_case
from stepcot_jax.data.records.cases import Box
from stepcot_jax.data.sources.chestxray8_tables import RELEASED_SIDE, read_box_list
from stepcot_jax.data.sources.layouts import read_source
from stepcot_jax.explain.geometry import fill_boxes
from stepcot_jax.host.errors import BadInput
from stepcot_jax.settings.run_settings import Settings

_MOST_DRAWN = 100
"""Phantoms drawn for each box wanted before giving up."""


@dataclasses.dataclass(frozen=True)
class BoxedPicture:
    """A radiograph with the locations of its lesions.

    Attributes:
      name: of the image.
      patient: the unit of resampling.
      picture: at the encoder's size.
      inside: whether each pixel is in a box.
    """

    name: str
    patient: str
    picture: UInt8[np.ndarray, "size size 3"]
    inside: Bool[np.ndarray, "size size"]


def draw_boxed(settings: Settings, preprocessing: Preprocessing, *, num_cases: int) -> list[BoxedPicture]:
    """Draw phantoms with boxes from the next seed, which no run of these settings has seen.

    Raises:
      BadInput: hardly any phantom has a box.
    """
    phantom = settings.phantom
    size = phantom.image_size if settings.data.source == "phantom" else preprocessing.size
    seed = (phantom.seed + 1) % 2**32
    pictures: list[BoxedPicture] = []
    for index in range(_MOST_DRAWN * num_cases):
        drawn = draw_case(index, seed=seed, size=size, prevalence=phantom.prevalence)
        pixels = repeat_grey(drawn.image)
        boxed = _make(drawn.case.image_path, drawn.case.patient_id, pixels, drawn.boxes, preprocessing)
        if boxed is not None:
            pictures.append(boxed)
        if len(pictures) == num_cases:
            return pictures
    raise BadInput(f"the phantom has only {len(pictures)} cases with boxes; {num_cases} are needed")


def read_boxed(
    root: pathlib.Path,
    preprocessing: Preprocessing,
    *,
    num_cases: int,
    box_list: pathlib.Path | None = None,
    max_pixels: int,
) -> list[BoxedPicture]:
    """Read the radiographs of a data root that have boxes.

    Args:
      root: in any layout; its own boxes are used unless there is a list.
      preprocessing: of the encoder.
      num_cases: most radiographs to read.
      box_list: ChestX-ray8's table of boxes, matched to images by name without suffix and scaled to their size.
      max_pixels: largest accepted width times height.

    Raises:
      BadInput: the root or the list cannot be read, or no image has a box.
    """
    collection = read_source(root, on_bad_record="skip", require_images=True)
    listed = None if box_list is None else _read_listed(box_list)
    pictures: list[BoxedPicture] = []
    for case in collection.cases:
        boxes = case.boxes if listed is None else listed.get(pathlib.PurePosixPath(case.image_path).stem, ())
        if not boxes:
            continue
        pixels = decode_image(collection.root / case.image_path, max_pixels=max_pixels)
        height, width = pixels.shape[:2]
        if listed is not None:
            boxes = tuple(_scale(box, width=width, height=height) for box in boxes)
        boxed = _make(case.image_path, case.patient_id, pixels, boxes, preprocessing)
        if boxed is not None:
            pictures.append(boxed)
        if len(pictures) == num_cases:
            break
    if not pictures:
        raise BadInput(
            f"{root} has no image with a box; expected data with boxes (docs/data.md), or --boxes with ChestX-ray8's "
            "BBox_List_2017.csv for images of that collection"
        )
    return pictures


def _read_listed(path: pathlib.Path) -> dict[str, tuple[Box, ...]]:
    """Return boxes by the image's name without suffix, in pixels of the released images."""
    by_name: dict[str, tuple[Box, ...]] = {}
    for row in read_box_list(path):
        if row.problem:
            raise BadInput(f"{path}: {row.problem}")
        stem = pathlib.PurePosixPath(row.image).stem
        box = Box(row.label, row.x, row.y, row.width, row.height)
        by_name[stem] = (*by_name.get(stem, ()), box)
    return by_name


def _scale(box: Box, *, width: int, height: int) -> Box:
    across, down = width / RELEASED_SIDE, height / RELEASED_SIDE
    return Box(box.label, box.x * across, box.y * down, box.width * across, box.height * down)


def _make(
    name: str, patient: str, pixels: np.ndarray, boxes: tuple[Box, ...], preprocessing: Preprocessing
) -> BoxedPicture | None:
    """Return a boxed picture; None if every box lies outside the encoder's square."""
    height, width = pixels.shape[:2]
    inside = fill_boxes(boxes, width=width, height=height, preprocessing=preprocessing)
    if not inside.any():
        return None
    return BoxedPicture(name, patient, resize_image(pixels, preprocessing), inside)
