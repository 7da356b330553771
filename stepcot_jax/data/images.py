"""Radiographs from PNG and JPEG files to what an image encoder takes, without trusting the files."""

import dataclasses
import stat
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np
from jaxtyping import Float32, Integer, UInt8
from PIL import Image, ImageFile, ImageOps, JpegImagePlugin, PngImagePlugin

from stepcot_jax.errors import BadInput

CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)

MAX_PIXELS = 50_000_000
"""Largest image that is decoded unless told otherwise; the largest detectors write about 20 million pixels."""

MAX_SIDE = 65_535
"""Longest side in pixels (JPEG's own limit): resampling needs memory in proportion to it."""

_ACCEPTED = "accepted are PNG (8- or 16-bit grey, palette, RGB, RGBA) and JPEG (grey, RGB, CMYK) images"
_OPENERS: dict[bytes, Callable[[BinaryIO], ImageFile.ImageFile]] = {
    b"\x89PNG\r\n\x1a\n": PngImagePlugin.PngImageFile,
    b"\xff\xd8\xff": JpegImagePlugin.JpegImageFile,
}
_WIDEST_RESIZED = 4
_FULL_SCALES = tuple(2**bits - 1 for bits in (10, 12, 14, 16))

# Pillow warns of metadata that plays no part in the pixels; what does play a part ends in BadInput.
warnings.filterwarnings("ignore", module=r"PIL\.")


@dataclasses.dataclass(frozen=True)
class Preprocessing:
    """What an image encoder asks of its input.

    Attributes:
      size: height and width in pixels.
      mean: mean of red, green and blue in [0, 1], subtracted.
      std: standard deviation of red, green and blue, > 0, divided by.
      fit: how an image that is not square becomes so. "crop": short side to `size`, then the centre, as
        CLIP's processor does; "pad": long side to `size`, black bars, nothing is lost; "stretch": both
        sides to `size`.
    """

    size: int
    mean: tuple[float, float, float] = CLIP_MEAN
    std: tuple[float, float, float] = CLIP_STD
    fit: Literal["crop", "pad", "stretch"] = "crop"

    def __post_init__(self) -> None:
        if not 1 <= self.size <= 4096:
            raise BadInput(f"preprocessing size: found {self.size}, accepted are 1 to 4096 pixels")
        if len(self.mean) != 3 or not np.all(np.isfinite(self.mean)):
            raise BadInput(f"preprocessing mean: found {self.mean}, accepted are 3 numbers")
        if len(self.std) != 3 or not np.all(np.isfinite(self.std)) or min(self.std) <= 0:
            raise BadInput(f"preprocessing std: found {self.std}, accepted are 3 numbers above 0")
        if self.fit not in ("crop", "pad", "stretch"):
            raise BadInput(f"preprocessing fit: found {self.fit!r}, accepted are 'crop', 'pad', 'stretch'")


def decode_image(path: Path, *, max_pixels: int = MAX_PIXELS) -> UInt8[np.ndarray, "height width 3"]:
    """Pixels of a PNG or JPEG file.

    16-bit grey: full scale is the smallest of 2^10 - 1, 2^12 - 1, 2^14 - 1 and 2^16 - 1 that holds the
    image's largest pixel, since detectors of 10 to 14 bits write into the low bits of 16. Of 16-bit colour
    the high byte counts. What is transparent lies on black. The EXIF orientation is applied: the picture is
    as a viewer shows it, hence as its reader saw it. The authors' code, which opens with Pillow, does not
    apply it; their images have none. Of an animated PNG the first picture counts.

    Args:
      path: the file.
      max_pixels: largest accepted width times height; checked in the header, before anything is decoded.

    Returns:
      uint8 [height, width, 3].

    Raises:
      BadInput: the file is missing, empty, truncated, corrupt, too large or neither PNG nor JPEG.
    """
    path = Path(path)
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise BadInput(f"{path}: found no ordinary file; {_ACCEPTED}")
        with path.open("rb") as file:
            return _decode(file, path=path, max_pixels=max_pixels)
    except BadInput:
        raise
    # Pillow's decoders raise a dozen kinds of error on broken files; each of them is the file's fault.
    except Exception as error:
        raise BadInput(f"{path}: cannot be decoded: {type(error).__name__}: {str(error)[:200]}; {_ACCEPTED}") from error


def _decode(file: BinaryIO, *, path: Path, max_pixels: int) -> UInt8[np.ndarray, "height width 3"]:
    start = file.read(8)
    file.seek(0)
    opener = next((opener for magic, opener in _OPENERS.items() if start.startswith(magic)), None)
    if opener is None:
        found = f"bytes {start.hex(' ')}" if start else "an empty file"
        raise BadInput(f"{path}: found {found} at its start; {_ACCEPTED}")
    # The format's own class instead of Image.open, which warns of large images before we can refuse them.
    with opener(file) as image:
        width, height = image.size
        if width * height > max_pixels or max(width, height) > MAX_SIDE:
            raise BadInput(
                f"{path}: found an image of {width} x {height} pixels in its header, "
                f"accepted are at most {max_pixels} pixels and {MAX_SIDE} a side"
            )
        image.load()
        return _as_rgb(_upright(image))


def _upright(image: Image.Image) -> Image.Image:
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # broken metadata around a sound picture: it stays as stored
        return image


def _as_rgb(image: Image.Image) -> UInt8[np.ndarray, "height width 3"]:
    """uint8 [height, width, 3] of a decoded image of any of Pillow's PNG and JPEG modes."""
    if image.mode.startswith("I"):
        return _repeat_grey(_scale_to_bytes(np.asarray(image)))
    if image.has_transparency_data:
        with_alpha = image.convert("RGBA")
        canvas = Image.new("RGB", image.size)
        canvas.paste(with_alpha.convert("RGB"), mask=with_alpha.getchannel("A"))
        return np.array(canvas)
    if image.mode in ("1", "L"):
        return _repeat_grey(np.asarray(image.convert("L")))
    return np.array(image.convert("RGB"))


def _scale_to_bytes(pixels: Integer[np.ndarray, "height width"]) -> UInt8[np.ndarray, "height width"]:
    """uint8 from integers in [0, 65535]."""
    largest = int(pixels.max())
    full_scale = next(scale for scale in _FULL_SCALES if largest <= scale)
    # One entry for each grey value: no array of floats as large as the picture.
    table = np.round(np.arange(full_scale + 1) * (255.0 / full_scale)).astype(np.uint8)
    return table[pixels]


def _repeat_grey(pixels: UInt8[np.ndarray, "height width"]) -> UInt8[np.ndarray, "height width 3"]:
    return np.repeat(pixels[:, :, None], 3, axis=2)


def resize_image(
    pixels: UInt8[np.ndarray, "height width 3"], preprocessing: Preprocessing
) -> UInt8[np.ndarray, "size size 3"]:
    """An image at the encoder's size; bicubic, smoothed when shrinking.

    Args:
      pixels: uint8 [height, width, 3].
      preprocessing: size and fit; see `Preprocessing`.

    Returns:
      uint8 [size, size, 3].
    """
    size = preprocessing.size
    if preprocessing.fit == "stretch":
        return _resample(pixels, height=size, width=size)
    if preprocessing.fit == "crop":
        return _crop_centre(pixels, size=size)
    height, width = pixels.shape[:2]
    new_height, new_width = (max(1, round(side * size / max(height, width))) for side in (height, width))
    top, left = (size - new_height) // 2, (size - new_width) // 2
    padded = np.zeros((size, size, 3), np.uint8)
    padded[top : top + new_height, left : left + new_width] = _resample(pixels, height=new_height, width=new_width)
    return padded


def _crop_centre(pixels: UInt8[np.ndarray, "height width 3"], *, size: int) -> UInt8[np.ndarray, "size size 3"]:
    # Without this a picture of 1 x 60000 pixels would become one of 224 x 13440000 before it is cropped.
    longest = _WIDEST_RESIZED * min(pixels.shape[:2])
    top, left = (max(0, side - longest) // 2 for side in pixels.shape[:2])
    pixels = pixels[top : top + longest, left : left + longest]
    height, width = pixels.shape[:2]
    new_height, new_width = (size * side // min(height, width) for side in (height, width))
    resized = _resample(pixels, height=new_height, width=new_width)
    top, left = (new_height - size) // 2, (new_width - size) // 2
    return np.ascontiguousarray(resized[top : top + size, left : left + size])


def _resample(
    pixels: UInt8[np.ndarray, "height width 3"], *, height: int, width: int
) -> UInt8[np.ndarray, "new_height new_width 3"]:
    image = Image.fromarray(np.ascontiguousarray(pixels))
    return np.array(image.resize((width, height), Image.Resampling.BICUBIC))


def normalise(pixels: UInt8[np.ndarray, "... 3"], preprocessing: Preprocessing) -> Float32[np.ndarray, "... 3"]:
    """(pixels / 255 - mean) / std.

    Args:
      pixels: uint8 [..., 3].
      preprocessing: mean and standard deviation of each channel.

    Returns:
      float32 [..., 3].
    """
    std = np.asarray(preprocessing.std)
    scale = (1.0 / (255.0 * std)).astype(np.float32)
    shift = (np.asarray(preprocessing.mean) / std).astype(np.float32)
    return pixels.astype(np.float32) * scale - shift
