"""PNG, JPEG and DICOM to upright grey or RGB pictures, without trusting the files."""

import io
import warnings
from collections.abc import Callable
from typing import BinaryIO

import numpy as np
from jaxtyping import Integer, UInt8
from PIL import ExifTags, Image, ImageFile, ImageOps, JpegImagePlugin, PngImagePlugin

from stepcot_jax.host.errors import BadInput

MAX_PIXELS = 50_000_000
"""Largest image that is decoded unless told otherwise; the largest detectors write about 20 million pixels."""

MAX_SIDE = 65_535
"""Longest side in pixels (JPEG's own limit): resampling needs memory in proportion to it."""

ACCEPTED = "accepted are PNG (8- or 16-bit grey, palette, RGB, RGBA), JPEG (grey, RGB, CMYK) and DICOM images"
"""What messages say of the kinds of images."""

_OPENERS: dict[bytes, Callable[[BinaryIO], ImageFile.ImageFile]] = {
    b"\x89PNG\r\n\x1a\n": PngImagePlugin.PngImageFile,
    b"\xff\xd8\xff": JpegImagePlugin.JpegImageFile,
}
_DICOM_PLACE, _DICOM_MAGIC = slice(128, 132), b"DICM"
_TURNED = range(2, 9)  # values of the EXIF orientation
_FULL_SCALES = tuple(2**bits - 1 for bits in (10, 12, 14, 16))

# Pillow warns of metadata that plays no part in the pixels; what does play a part ends in BadInput.
warnings.filterwarnings("ignore", module=r"PIL\.")


def decode_picture(content: bytes, *, name: str, max_pixels: int) -> Image.Image:
    """The upright picture of a file's content; see `images.decode_image_bytes`, which gives it as an array.

    Args:
      content: of the file.
      name: what messages call it.
      max_pixels: largest accepted width times height.

    Returns:
      An image of mode "L" or "RGB".

    Raises:
      BadInput: the content cannot be decoded.
    """
    opener = next((opener for magic, opener in _OPENERS.items() if content.startswith(magic)), None)
    try:
        if opener is not None:
            return _open_and_load(opener(io.BytesIO(content)), name=name, max_pixels=max_pixels)
        if content[_DICOM_PLACE] == _DICOM_MAGIC:
            from stepcot_jax.data.images.dicom import decode_dicom  # here, because it needs an optional library

            return Image.fromarray(decode_dicom(content, name=name, max_pixels=max_pixels))
    except BadInput:
        raise
    # Pillow's decoders raise a dozen kinds of error on broken files; each of them is the file's fault.
    except Exception as error:
        raise BadInput(f"{name}: cannot be decoded: {type(error).__name__}: {str(error)[:200]}; {ACCEPTED}") from error
    found = f"bytes {content[:8].hex(' ')}" if content else "an empty file"
    raise BadInput(f"{name}: found {found} at its start; {ACCEPTED}")


def _open_and_load(image: ImageFile.ImageFile, *, name: str, max_pixels: int) -> Image.Image:
    with image:
        width, height = image.size
        if width * height > max_pixels or max(width, height) > MAX_SIDE:
            raise BadInput(
                f"{name}: found an image of {width} x {height} pixels in its header, "
                f"accepted are at most {max_pixels} pixels and {MAX_SIDE} a side"
            )
        image.load()
        return _as_grey_or_rgb(_upright(image))


def _upright(image: Image.Image) -> Image.Image:
    try:
        if image.getexif().get(ExifTags.Base.Orientation, 1) not in _TURNED:
            return image  # without the copy that Pillow would make: new memory costs as much as resizing it
        return ImageOps.exif_transpose(image)
    except Exception:  # broken metadata around a sound picture: it stays as stored
        return image


def _as_grey_or_rgb(image: Image.Image) -> Image.Image:
    """Mode "L" or "RGB" from any of Pillow's PNG and JPEG modes."""
    if image.mode.startswith("I"):
        return Image.fromarray(_scale_to_bytes(np.asarray(image)))
    if image.has_transparency_data:
        with_alpha = image.convert("RGBA")
        canvas = Image.new("RGB", image.size)
        canvas.paste(with_alpha.convert("RGB"), mask=with_alpha.getchannel("A"))
        return canvas
    wanted = "L" if image.mode in ("1", "L") else "RGB"
    return image if image.mode == wanted else image.convert(wanted)


def _scale_to_bytes(pixels: Integer[np.ndarray, "height width"]) -> UInt8[np.ndarray, "height width"]:
    """uint8 from integers in [0, 65535]."""
    largest = int(pixels.max())
    full_scale = next(scale for scale in _FULL_SCALES if largest <= scale)
    # One entry for each grey value: no array of floats as large as the picture.
    table = np.round(np.arange(full_scale + 1) * (255.0 / full_scale)).astype(np.uint8)
    return table[pixels]
