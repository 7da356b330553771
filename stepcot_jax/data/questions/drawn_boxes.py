"""Boxes drawn on pictures: lines of 1 pixel, half white, that leave what they cover visible (MedCLM's easy stage)."""

from collections.abc import Sequence

from PIL import Image, ImageDraw

from stepcot_jax.box import Corners, convert, pixels

_BLEND = 0.5
"""Share of white in a drawn line, rounded to 255ths: 128 / 255."""


def scale_boxes(boxes: Sequence[Corners], image_size: tuple[int, int], shape: tuple[int, ...]) -> list[Corners]:
    """Return boxes of a picture in pixels of a mask or file of [height, width]."""
    target = pixels((shape[1], shape[0]))
    scaled = convert(list(boxes), source=pixels(image_size), target=target).tolist()
    return [(x1, y1, x2, y2) for x1, y1, x2, y2 in scaled]


def draw_boxes(picture: Image.Image, boxes: Sequence[Corners], image_size: tuple[int, int]) -> Image.Image:
    """Return a picture with boxes drawn: the outermost pixels of each, rounded, in lines of 1 pixel.

    A pixel of a line becomes (128 white + 127 picture) / 255 in each channel, once even where lines cross.

    Args:
      image_size: width and height that the boxes refer to; they are scaled to the picture.
    """
    base = picture.convert("RGB" if picture.mode not in ("L", "RGB") else picture.mode)
    lines = Image.new("L", base.size)
    drawing = ImageDraw.Draw(lines)
    for x1, y1, x2, y2 in scale_boxes(boxes, image_size, (base.size[1], base.size[0])):
        right, lower = max(round(x2) - 1, round(x1)), max(round(y2) - 1, round(y1))
        drawing.rectangle([round(x1), round(y1), right, lower], outline=round(255 * _BLEND), width=1)
    return Image.composite(Image.new(base.mode, base.size, "white"), base, lines)
