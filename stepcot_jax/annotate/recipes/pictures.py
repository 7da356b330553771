"""Pictures of MedCLM's easy views, boxes drawn in lines of 1 pixel, half white; and pictures for models to see."""

import base64
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import get_args

import numpy as np
from jaxtyping import Bool
from PIL import Image

from stepcot_jax.annotate.recipes.items import HostOrgan, TaskSettings
from stepcot_jax.box import Corners, iou
from stepcot_jax.data.images.drawn_boxes import draw_boxes, scale_boxes
from stepcot_jax.data.images.image_decoding import decode_picture, most_bytes
from stepcot_jax.data.images.image_files import FolderFiles
from stepcot_jax.data.questions.vocabulary import host_organ, split_lungs
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import make_workdir, write_whole
from stepcot_jax.record import Record

# The organ that hosts a lesion, from boxes and masks (MedCLM): by coverage, or as in its public code.


UNKNOWN = "unknown"

Mask = Bool[np.ndarray, "height width"]

_GREATEST_OUTSIDE = 127
MOST_PIXELS = 100_000_000
_SUFFIXES = {".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".gif"}


def name_host(record: Record, settings: TaskSettings) -> str:
    """Return the organs that host a record's boxes by its image's masks, or without masks the organ in the record."""
    folder, root = (settings.masks,) * 2 if settings.masks is not None else (settings.root / "masks", settings.root)
    masks = read_masks(folder, record.image, root=root)
    if not masks:
        return record.organ or UNKNOWN
    shape = next(iter(masks.values())).shape
    boxes = scale_boxes([box.corners for box in record.references], record.image_size, shape)
    return find_hosts(boxes, masks, method=settings.host_organ)


def find_hosts(boxes: Sequence[Corners], masks: Mapping[str, Mask], *, method: HostOrgan) -> str:
    """Return the organs that host boxes in alphabetical order, joined by "and"; "unknown" if no mask meets any box.

    "coverage": the share of the box in the mask; "iou_mask": their IoU; "iou_box": that of box and the mask's box.
    """
    if method not in get_args(HostOrgan):
        raise BadInput(f"--host-organ: {method!r} is not one of {', '.join(get_args(HostOrgan))}")
    hosts = {_find_host(box, masks, method) for box in boxes if masks}
    return " and ".join(sorted(filter(None, hosts))) or UNKNOWN


def _find_host(box: Corners, masks: Mapping[str, Mask], method: HostOrgan) -> str:
    if method == "coverage":
        return host_organ(box, masks)
    shares = {name: _overlap(box, mask, method) for name, mask in masks.items()}
    best = max(shares, key=lambda name: shares[name])
    return best if shares[best] > 0 else ""


def _overlap(box: Corners, mask: Mask, method: HostOrgan) -> float:
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    if not rows.size:
        return 0.0
    if method == "iou_box":
        return float(iou([box], [[columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]])[0, 0])
    x1, y1 = (int(np.floor(edge)) for edge in box[:2])
    x2, y2 = (int(np.ceil(edge)) for edge in box[2:])
    shared = int(mask[y1:y2, x1:x2].sum())
    return shared / ((x2 - x1) * (y2 - y1) + int(mask.sum()) - shared)


def read_masks(folder: Path, image_path: str, *, root: Path | None = None) -> dict[str, Mask]:
    """Return an image's masks by organ, of files ORGAN/IMAGE or IMAGE/ORGAN; a mask "lung" is split into two lungs."""
    stem = Path(image_path).stem
    files = {path.stem: path for path in _list_files(folder / stem)}
    if not files and folder.is_dir():
        organs = sorted(path for path in folder.iterdir() if path.is_dir())
        files = {organ.name: path for organ in organs for path in _list_files(organ, stem)}
    root = root or folder
    pictures = {organ: _read_file(root, path.relative_to(root).as_posix()) for organ, path in files.items()}
    masks = {organ: np.asarray(picture.convert("L")) > _GREATEST_OUTSIDE for organ, picture in pictures.items()}
    if len({mask.shape for mask in masks.values()}) > 1:
        raise BadInput(f"{folder}: masks of {image_path[:80]!r} differ in size")
    if set(masks) & {"lung"} and masks["lung"].any():
        masks = {f"{side} lung": mask for side, mask in split_lungs(masks.pop("lung")).items()} | masks
    return masks


def _list_files(folder: Path, stem: str | None = None) -> list[Path]:
    if not folder.is_dir():
        return []
    files = sorted(path for path in folder.iterdir() if path.suffix.lower() in _SUFFIXES and path.is_file())
    return [path for path in files if stem is None or path.stem == stem]


def _read_file(root: Path, name: str) -> Image.Image:
    files = FolderFiles(root, (name,), most_bytes(MOST_PIXELS))
    return decode_picture(files.read(0), name=files.name(0), max_pixels=MOST_PIXELS)


DRAWN_FOLDER = "boxed"

_LONGEST_SIDE = 768

Region = tuple[Corners, tuple[int, int]]
"""A box, and the width and height of the picture that it refers to."""


def draw_views(records: Sequence[Record], settings: TaskSettings) -> None:
    """Write the pictures of the easy views, with the boxes drawn, below the result's folder."""
    for record in records:
        if record.provenance["stage"] == "easy":
            picture = _draw_references(read_picture(record.provenance["drawn from"], settings), record)
            make_workdir(settings.folder / DRAWN_FOLDER)
            write_whole(settings.folder / record.image, _encode(picture))


def show_picture(
    image_path: str, settings: TaskSettings, *, boxed: Record | None = None, region: Region | None = None
) -> str:
    """Return an image, or its part in a region, as data URL of a PNG, its longer side at most 768 pixels."""
    picture = read_picture(image_path, settings)
    picture = picture if boxed is None else _draw_references(picture, boxed)
    picture = picture if region is None else _crop(picture, *region)
    picture.thumbnail((_LONGEST_SIDE, _LONGEST_SIDE))
    return write_data_url(picture)


def write_data_url(picture: Image.Image) -> str:
    """Return a picture as PNG in a data URL."""
    return f"data:image/png;base64,{base64.b64encode(_encode(picture)).decode()}"


def _draw_references(picture: Image.Image, record: Record) -> Image.Image:
    return draw_boxes(picture, [box.corners for box in record.references], record.image_size)


def _crop(picture: Image.Image, box: Corners, image_size: tuple[int, int]) -> Image.Image:
    """Return the pixels that a box touches, at least one."""
    ((x1, y1, x2, y2),) = scale_boxes([box], image_size, (picture.height, picture.width))
    left, upper = min(math.floor(x1), picture.width - 1), min(math.floor(y1), picture.height - 1)
    return picture.crop((left, upper, max(math.ceil(x2), left + 1), max(math.ceil(y2), upper + 1)))


def read_picture(image_path: str, settings: TaskSettings) -> Image.Image:
    """Return an image of the source."""
    return _read_file(settings.root, image_path)


def _encode(picture: Image.Image) -> bytes:
    written = io.BytesIO()
    picture.save(written, "PNG")
    return written.getvalue()
