"""Radiographs from image files to what an image encoder takes."""

import dataclasses
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Float32, UInt8
from PIL import Image

from stepcot_jax.data.images.image_decoding import ACCEPTED, MAX_PIXELS, decode_picture
from stepcot_jax.data.images.image_files import most_bytes
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import read_file

CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)

_WIDEST_RESIZED = 4


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
    """Pixels of an image file; see `decode_image_bytes`.

    Args:
      path: the file; larger than any image of `max_pixels`, it is refused before it is read.
      max_pixels: largest accepted width times height.

    Returns:
      uint8 [height, width, 3].

    Raises:
      BadInput: the file is missing or cannot be decoded.
    """
    path = Path(path)
    try:
        content = read_file(path, max_bytes=most_bytes(max_pixels))
    except BadInput as error:
        raise BadInput(f"{error}; {ACCEPTED}") from None
    except (OSError, ValueError) as error:
        raise BadInput(f"{path}: cannot be read: {error}; {ACCEPTED}") from None
    return decode_image_bytes(content, name=str(path), max_pixels=max_pixels)


def decode_image_bytes(
    content: bytes, *, name: str, max_pixels: int = MAX_PIXELS
) -> UInt8[np.ndarray, "height width 3"]:
    """Pixels of a PNG, JPEG or DICOM file's content.

    16-bit grey: full scale is the smallest of 2^10 - 1, 2^12 - 1, 2^14 - 1 and 2^16 - 1 that holds the
    image's largest pixel, since detectors of 10 to 14 bits write into the low bits of 16. Of 16-bit colour
    the high byte counts. What is transparent lies on black. The EXIF orientation is applied: the picture is
    as a viewer shows it, hence as its reader saw it. The authors' code, which opens with Pillow, does not
    apply it; their images have none. Of an animated PNG the first picture counts. DICOM: see `data.dicom`.

    Args:
      content: of the file.
      name: what messages call it, such as its path.
      max_pixels: largest accepted width times height; checked in the header, before anything is decoded.

    Returns:
      uint8 [height, width, 3].

    Raises:
      BadInput: the content is empty, truncated, corrupt, too large or of another kind.
    """
    pixels = np.array(decode_picture(content, name=name, max_pixels=max_pixels))
    return repeat_grey(pixels) if pixels.ndim == 2 else pixels


def prepare_image(
    content: bytes, *, name: str, preprocessing: Preprocessing, max_pixels: int = MAX_PIXELS
) -> UInt8[np.ndarray, "size size"] | UInt8[np.ndarray, "size size 3"]:
    """An image at the encoder's size: `resize_image(decode_image_bytes(...))`, with one channel where all are equal.

    Grey images stay so from the decoder on, which gives the same pixels for a third of the work.

    Args:
      content: of the file.
      name: what messages call it.
      preprocessing: size and fit.
      max_pixels: largest accepted width times height.

    Returns:
      uint8 [size, size], or [size, size, 3] where the channels differ.

    Raises:
      BadInput: the content cannot be decoded.
    """
    return drop_equal_channels(
        np.array(_resize(decode_picture(content, name=name, max_pixels=max_pixels), preprocessing))
    )


def repeat_grey(pixels: UInt8[np.ndarray, "height width"]) -> UInt8[np.ndarray, "height width 3"]:
    """Red, green and blue of a grey image."""
    return np.repeat(pixels[:, :, None], 3, axis=2)


def drop_equal_channels(
    pixels: UInt8[np.ndarray, "height width *channel"],
) -> UInt8[np.ndarray, "height width"] | UInt8[np.ndarray, "height width 3"]:
    """One channel of an image whose three are equal; any other as it is."""
    if pixels.ndim == 2:
        return pixels
    first = pixels[..., 0]
    if np.array_equal(first, pixels[..., 1]) and np.array_equal(first, pixels[..., 2]):
        return np.ascontiguousarray(first)
    return pixels


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
    return np.array(_resize(Image.fromarray(np.ascontiguousarray(pixels)), preprocessing))


def resize_grey(
    pixels: UInt8[np.ndarray, "height width"], preprocessing: Preprocessing
) -> UInt8[np.ndarray, "size size"]:
    """What `resize_image` makes of each channel of a grey image.

    Args:
      pixels: uint8 [height, width].
      preprocessing: size and fit.

    Returns:
      uint8 [size, size].
    """
    return np.array(_resize(Image.fromarray(np.ascontiguousarray(pixels)), preprocessing))


def _resize(image: Image.Image, preprocessing: Preprocessing) -> Image.Image:
    size = preprocessing.size
    if preprocessing.fit == "stretch":
        return image.resize((size, size), Image.Resampling.BICUBIC)
    if preprocessing.fit == "crop":
        return _crop_centre(image, size=size)
    width, height = (max(1, round(side * size / max(image.size))) for side in image.size)
    padded = Image.new(image.mode, (size, size))
    resized = image.resize((width, height), Image.Resampling.BICUBIC)
    padded.paste(resized, ((size - width) // 2, (size - height) // 2))
    return padded


def _crop_centre(image: Image.Image, *, size: int) -> Image.Image:
    # Without this a picture of 1 x 60000 pixels would become one of 224 x 13440000 before it is cropped.
    longest = _WIDEST_RESIZED * min(image.size)
    if max(image.size) > longest:
        left, top = (max(0, side - longest) // 2 for side in image.size)
        width, height = (min(side, longest) for side in image.size)
        image = image.crop((left, top, left + width, top + height))
    shortest = min(image.size)
    width, height = (size * side // shortest for side in image.size)
    resized = image.resize((width, height), Image.Resampling.BICUBIC)
    left, top = (width - size) // 2, (height - size) // 2
    return resized if width == height else resized.crop((left, top, left + size, top + size))


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


def normalise_grey(pixels: UInt8[np.ndarray, "..."], preprocessing: Preprocessing) -> Float32[np.ndarray, "... 3"]:
    """`normalise` of grey images, bit for bit: each of the 256 grey values is computed once.

    Args:
      pixels: uint8 [...], what red, green and blue have in common.
      preprocessing: mean and standard deviation of each channel.

    Returns:
      float32 [..., 3].
    """
    table = normalise(np.repeat(np.arange(256, dtype=np.uint8)[:, None], 3, axis=1), preprocessing)
    return np.take(table, pixels, axis=0)
