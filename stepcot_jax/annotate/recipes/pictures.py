"""Pictures of MedCLM's easy views, boxes drawn in lines of 1 pixel, half white; and pictures for models to see."""

import base64
import io
import math
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from stepcot_jax.annotate.recipes.items import TaskSettings
from stepcot_jax.box import Corners
from stepcot_jax.data.images.drawn_boxes import draw_boxes, scale_boxes
from stepcot_jax.data.images.image_decoding import decode_picture, most_bytes
from stepcot_jax.data.images.image_files import FolderFiles
from stepcot_jax.host.files import make_workdir, write_whole
from stepcot_jax.record import Record

MOST_PIXELS = 100_000_000


def read_content(root: Path, name: str) -> tuple[bytes, str]:
    """Return a file below a root, which no link may leave, and its full name for messages."""
    files = FolderFiles(root, (name,), most_bytes(MOST_PIXELS))
    return files.read(0), files.name(0)


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
    content, name = read_content(settings.root, image_path)
    return decode_picture(content, name=name, max_pixels=MOST_PIXELS)


def _encode(picture: Image.Image) -> bytes:
    written = io.BytesIO()
    picture.save(written, "PNG")
    return written.getvalue()
