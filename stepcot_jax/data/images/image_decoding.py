"""Decode PNG, JPEG and DICOM to upright grey or RGB pictures, without trusting the files."""

import io
import warnings
from collections.abc import Callable
from typing import BinaryIO

import numpy as np
from jaxtyping import Integer, UInt8
from PIL import ExifTags, Image, ImageFile, ImageOps, JpegImagePlugin, PngImagePlugin

from stepcot_jax.data.images.dicom import is_dicom, read_dicom
from stepcot_jax.host.errors import BadInput

MAX_PIXELS = 50_000_000  # default limit of width times height; the largest detectors write about 20 million pixels
MAX_SIDE = 65_535  # longest side in pixels (JPEG's own limit): the memory of resampling is proportional to it
EXPECTED = "expected a PNG (8- or 16-bit grey, palette, RGB, RGBA), JPEG (grey, RGB, CMYK) or DICOM image"

_OPENERS: dict[bytes, Callable[[BinaryIO], ImageFile.ImageFile]] = {
    b"\x89PNG\r\n\x1a\n": PngImagePlugin.PngImageFile,
    b"\xff\xd8\xff": JpegImagePlugin.JpegImageFile,
}
_TURNED = range(2, 9)  # values of the EXIF orientation
_FULL_SCALES = tuple(2**bits - 1 for bits in (10, 12, 14, 16))

# Pillow warns of metadata that does not affect pixels; everything else becomes BadInput.
warnings.filterwarnings("ignore", module=r"PIL\.")


def most_bytes(max_pixels: int) -> int:
    """Return the size limit of a file: 8 bytes a pixel (16-bit RGBA, uncompressed), and 16 MiB for metadata."""
    return 8 * max_pixels + 16 * 2**20


def decode_picture(content: bytes, *, name: str, max_pixels: int) -> Image.Image:
    """Decode a file's content to an upright picture of mode "L" or "RGB", as `decode_image_bytes` does."""
    opener = next((opener for magic, opener in _OPENERS.items() if content.startswith(magic)), None)
    try:
        if opener is not None:
            return _open_and_load(opener(io.BytesIO(content)), name=name, max_pixels=max_pixels)
        if is_dicom(content):
            return Image.fromarray(read_dicom(content, name=name, max_pixels=max_pixels))
    except BadInput:
        raise
    # Pillow's decoders raise a dozen types of error on broken files.
    except Exception as error:
        raise BadInput(f"{name}: cannot be decoded: {type(error).__name__}: {str(error)[:200]}; {EXPECTED}") from error
    start = f"starts with bytes {content[:8].hex(' ')}" if content else "is an empty file"
    raise BadInput(f"{name}: {start}; {EXPECTED}")


def _open_and_load(image: ImageFile.ImageFile, *, name: str, max_pixels: int) -> Image.Image:
    with image:
        width, height = image.size
        if width * height > max_pixels or max(width, height) > MAX_SIDE:
            raise BadInput(
                f"{name}: {width} x {height} pixels in its header; "
                f"expected at most {max_pixels} pixels and sides of at most {MAX_SIDE}"
            )
        image.load()
        return _as_grey_or_rgb(_upright(image))


def _upright(image: Image.Image) -> Image.Image:
    try:
        if image.getexif().get(ExifTags.Base.Orientation, 1) not in _TURNED:
            return image  # Pillow would copy it: allocating costs as much as resizing
        return ImageOps.exif_transpose(image)
    except Exception:  # broken metadata of a good picture: keep the picture as stored
        return image


def _as_grey_or_rgb(image: Image.Image) -> Image.Image:
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
    largest = int(pixels.max())
    full_scale = next(scale for scale in _FULL_SCALES if largest <= scale)
    # A table with one entry for each grey value avoids a picture of floats.
    table = np.round(np.arange(full_scale + 1) * (255.0 / full_scale)).astype(np.uint8)
    return table[pixels]
