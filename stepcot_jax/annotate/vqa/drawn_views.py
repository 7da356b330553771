"""Pictures of MedCLM's easy views, boxes drawn in lines of 1 pixel, half white; and pictures for models to see."""

import base64
import io
import math
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from stepcot_jax.annotate.vqa.host_organs import MOST_PIXELS
from stepcot_jax.annotate.vqa.tasks import TaskSettings
from stepcot_jax.boxes import Corners
from stepcot_jax.data.grounded.drawn_boxes import draw_boxes, scale_boxes
from stepcot_jax.data.images.image_decoding import decode_picture, most_bytes
from stepcot_jax.data.records.record_reader import ImageLocator
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import make_workdir, read_file, write_whole
from stepcot_jax.reasoning.record import VqaRecord

DRAWN_FOLDER = "boxed"

_LONGEST_SIDE = 768

Region = tuple[Corners, tuple[int, int]]
"""A box, and the width and height of the picture that it refers to."""


def draw_views(records: Sequence[VqaRecord], settings: TaskSettings) -> None:
    """Write the pictures of the easy views, with the boxes drawn, below the result's folder."""
    for record in records:
        if record.provenance["stage"] == "easy":
            picture = _draw_references(_read_picture(record.provenance["drawn from"], settings), record)
            make_workdir(settings.folder / DRAWN_FOLDER)
            write_whole(settings.folder / record.image_path, _encode(picture))


def require_picture(image_path: str, settings: TaskSettings) -> None:
    """Require a picture that can be read."""
    _read_picture(image_path, settings)


def show_picture(
    image_path: str, settings: TaskSettings, *, boxed: VqaRecord | None = None, region: Region | None = None
) -> str:
    """Return an image as data URL of a PNG, its longer side at most 768 pixels.

    Args:
      region: box that the picture is cropped to, with the width and height that it refers to; None for the whole.
    """
    picture = _read_picture(image_path, settings)
    picture = picture if boxed is None else _draw_references(picture, boxed)
    picture = picture if region is None else _crop(picture, *region)
    picture.thumbnail((_LONGEST_SIDE, _LONGEST_SIDE))
    return f"data:image/png;base64,{base64.b64encode(_encode(picture)).decode()}"


def _draw_references(picture: Image.Image, record: VqaRecord) -> Image.Image:
    return draw_boxes(picture, [each.box for each in record.references], record.image_size)


def _crop(picture: Image.Image, box: Corners, image_size: tuple[int, int]) -> Image.Image:
    """Return the pixels that a box touches, at least one."""
    ((x1, y1, x2, y2),) = scale_boxes([box], image_size, (picture.height, picture.width))
    left, upper = min(math.floor(x1), picture.width - 1), min(math.floor(y1), picture.height - 1)
    return picture.crop((left, upper, max(math.ceil(x2), left + 1), max(math.ceil(y2), upper + 1)))


def _read_picture(image_path: str, settings: TaskSettings) -> Image.Image:
    path = Path(ImageLocator(settings.root, require_images=True).locate(image_path))
    try:
        content = read_file(path, max_bytes=most_bytes(MOST_PIXELS))
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror}); expected an image file") from None
    return decode_picture(content, name=str(path), max_pixels=MOST_PIXELS)


def _encode(picture: Image.Image) -> bytes:
    written = io.BytesIO()
    picture.save(written, "PNG")
    return written.getvalue()
