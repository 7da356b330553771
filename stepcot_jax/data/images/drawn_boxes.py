"""Draw boxes on pictures: with names for readers, and as thin half-white lines (MedCLM's easy stage)."""

import io
from collections.abc import Sequence

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageDraw, ImageFont

from stepcot_jax.box import Box, Corners, convert, pixels

TRUE, PREDICTED = (0x37, 0xD6, 0x7A), (0xFF, 0xAB, 0x40)
"""Colours of true and of predicted boxes, red, green and blue; those of the pages of replies."""

LEAST_SIDE = 384  # smaller pictures are enlarged to this many pixels, so that lines and names can be read
_MOST_SIDE = 1536
_LONGEST_NAME = 40
_TEXT_HEIGHT = 14


def draw_named_boxes(
    pixels: UInt8[np.ndarray, "height width 3"],
    boxes: Sequence[Box],
    *,
    colour: tuple[int, int, int] = PREDICTED,
    least_side: int = LEAST_SIDE,
) -> UInt8[np.ndarray, "height2 width2 3"]:
    """Return a picture with boxes drawn over it, enlarged if it is small, at most 1536 pixels a side."""
    picture = Image.fromarray(np.ascontiguousarray(pixels))
    scale = min(max(1.0, least_side / min(picture.size)), _MOST_SIDE / max(picture.size))
    if scale != 1.0:
        width, height = (max(1, round(side * scale)) for side in picture.size)
        picture = picture.resize((width, height), Image.Resampling.BICUBIC)
    drawing, font = ImageDraw.Draw(picture), ImageFont.load_default(size=_TEXT_HEIGHT)
    line = max(2, round(min(picture.size) / 250))
    for box in boxes:
        left, upper, right, lower = _clip_box(box.corners, scale, picture.size)
        for grown, ink, thickness in ((1, (0, 0, 0), line + 2), (0, colour, line)):
            drawing.rectangle([left - grown, upper - grown, right + grown, lower + grown], outline=ink, width=thickness)
        if box.label:
            _write_name(drawing, box.label, colour=colour, font=font, corner=(left, upper), size=picture.size)
    return np.asarray(picture)


def _clip_box(box: Corners, scale: float, size: tuple[int, int]) -> tuple[int, int, int, int]:
    width, height = size
    left, right = (min(max(round(number * scale), 0), width) for number in (box[0], box[2]))
    upper, lower = (min(max(round(number * scale), 0), height) for number in (box[1], box[3]))
    left, upper = min(left, width - 1), min(upper, height - 1)
    return left, upper, max(right - 1, left), max(lower - 1, upper)


def _write_name(
    drawing: ImageDraw.ImageDraw,
    name: str,
    *,
    colour: tuple[int, int, int],
    font: ImageFont.FreeTypeFont | ImageFont.ImageFont,
    corner: tuple[int, int],
    size: tuple[int, int],
) -> None:
    """Write a box's name on a dark plate above it, or within it at the picture's upper edge."""
    name = name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"
    name = "".join(letter if letter.isprintable() else "?" for letter in name)
    width, height = round(drawing.textlength(name, font=font)) + 6, _TEXT_HEIGHT + 5
    left = max(0, min(corner[0], size[0] - width))
    upper = corner[1] - height if corner[1] >= height else corner[1]
    drawing.rectangle([left, upper, left + width, upper + height - 1], fill=(0, 0, 0))
    drawing.text((left + 3, upper + 1), name, fill=colour, font=font)


def write_png(pixels: UInt8[np.ndarray, "height width 3"]) -> bytes:
    """Return a picture as the bytes of a PNG file."""
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(buffer, "PNG")
    return buffer.getvalue()


_BLEND = 0.5  # share of white in a drawn line, rounded to 255ths: 128 / 255


def scale_boxes(boxes: Sequence[Corners], image_size: tuple[int, int], shape: tuple[int, ...]) -> list[Corners]:
    """Return boxes of a picture in pixels of a mask or file of [height, width]."""
    if not boxes:
        return []
    target = pixels((shape[1], shape[0]))
    scaled = convert(list(boxes), source=pixels(image_size), target=target).tolist()
    return [(x1, y1, x2, y2) for x1, y1, x2, y2 in scaled]


def draw_boxes(picture: Image.Image, boxes: Sequence[Corners], image_size: tuple[int, int]) -> Image.Image:
    """Return a picture with boxes drawn: the outermost pixels of each, rounded, in lines of 1 pixel."""
    base = picture.convert("RGB" if picture.mode not in ("L", "RGB") else picture.mode)
    lines = Image.new("L", base.size)
    drawing = ImageDraw.Draw(lines)
    for x1, y1, x2, y2 in scale_boxes(boxes, image_size, (base.size[1], base.size[0])):
        right, lower = max(round(x2) - 1, round(x1)), max(round(y2) - 1, round(y1))
        drawing.rectangle([round(x1), round(y1), right, lower], outline=round(255 * _BLEND), width=1)
    return Image.composite(Image.new(base.mode, base.size, "white"), base, lines)
