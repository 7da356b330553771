"""Prepare radiographs from image files for an image encoder."""

import dataclasses
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Float32, UInt8
from PIL import Image

from stepcot_jax.data.images.file_formats import Note, ignore_note
from stepcot_jax.data.images.image_decoding import EXPECTED, MAX_PIXELS, decode_picture, most_bytes
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import read_file

CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
_WIDEST_RESIZED = 4


@dataclasses.dataclass(frozen=True)
class Preprocessing:
    """Input format of an image encoder."""

    size: int  # height and width in pixels
    mean: tuple[float, float, float] = CLIP_MEAN  # mean of red, green and blue in [0, 1], subtracted
    std: tuple[float, float, float] = CLIP_STD  # standard deviation of red, green and blue, > 0, divided by
    fit: Literal["crop", "pad", "stretch"] = "crop"  # the centre of the short side; black bars; both sides resized
    resized: int = 0  # short side ("crop") or both ("stretch") in pixels, of which the centre is cropped; 0: `size`
    resample: str = "bicubic"  # a name of `Image.Resampling` in lower case
    reduced_jpeg: bool = False  # decode JPEG at 1/2, 1/4 or 1/8 of its sides, not below twice `side`: other pixels

    def __post_init__(self) -> None:
        if not 1 <= self.size <= 4096:
            raise BadInput(f"preprocessing size: {self.size} is not 1 to 4096 pixels")
        if len(self.mean) != 3 or not np.all(np.isfinite(self.mean)):
            raise BadInput(f"preprocessing mean: {self.mean} is not 3 numbers")
        if len(self.std) != 3 or not np.all(np.isfinite(self.std)) or min(self.std) <= 0:
            raise BadInput(f"preprocessing std: {self.std} is not 3 numbers above 0")
        if self.fit not in ("crop", "pad", "stretch"):
            raise BadInput(f"preprocessing fit: {self.fit!r} is not 'crop', 'pad' or 'stretch'")
        if self.resized and not (self.fit != "pad" and self.size <= self.resized <= 4 * self.size):
            raise BadInput(
                f"preprocessing resized: {self.resized} with fit {self.fit!r}; expected 1 to 4 times the size"
            )
        if self.resample.upper() not in Image.Resampling.__members__:
            raise BadInput(f"preprocessing resample: {self.resample!r} is not a resampling of Pillow")

    @property
    def side(self) -> int:
        """Side in pixels that images are resized to, before a crop."""
        return self.resized or self.size

    @property
    def unusual(self) -> dict[str, int | str | bool]:
        """The fields beside size, colours and fit that differ from their defaults, for keys and descriptions."""
        resized = 0 if self.resized == self.size else self.resized
        fields = {"resized": resized, "resample": self.resample, "reduced_jpeg": self.reduced_jpeg}
        return {name: value for name, value in fields.items() if value not in (0, "bicubic")}


def decode_image(path: Path, *, max_pixels: int = MAX_PIXELS) -> UInt8[np.ndarray, "height width 3"]:
    """Decode an image file as `decode_image_bytes` does its content."""
    try:
        content = read_file(Path(path), max_bytes=most_bytes(max_pixels))
    except BadInput as error:
        raise BadInput(f"{error}; {EXPECTED}") from None
    except (OSError, ValueError) as error:
        raise BadInput(f"{path}: cannot be read: {error}; {EXPECTED}") from None
    return decode_image_bytes(content, name=str(path), max_pixels=max_pixels)


def decode_image_bytes(
    content: bytes, *, name: str, max_pixels: int = MAX_PIXELS, note: Note = ignore_note
) -> UInt8[np.ndarray, "height width 3"]:
    """Decode the content of a PNG, JPEG or DICOM file.

    16 bits: full scale is the smallest of 2^10 - 1, 2^12 - 1, 2^14 - 1 and 2^16 - 1 that holds the 99.9th percentile
    of the values within 0.1 %, since detectors of 10 to 14 bits write into the low bits of 16. Larger values saturate.
    Transparent pixels are blended onto black. The EXIF orientation is applied, so that the picture is as its reader saw
    it; the authors' code does not apply it, and their images have none. Of an animated PNG the first picture is used.
    DICOM: see `dicom.read_dicom`.
    """
    pixels = np.array(decode_picture(content, name=name, max_pixels=max_pixels, note=note))
    return repeat_grey(pixels) if pixels.ndim == 2 else pixels


def prepare_image(
    content: bytes,
    *,
    name: str,
    preprocessing: Preprocessing,
    max_pixels: int = MAX_PIXELS,
    note: Note = ignore_note,
) -> UInt8[np.ndarray, "size size"] | UInt8[np.ndarray, "size size 3"]:
    """Decode and resize an image; one channel if all three are equal. `note`: see `decode_picture`."""
    least = 2 * preprocessing.side if preprocessing.reduced_jpeg else None
    picture = decode_picture(content, name=name, max_pixels=max_pixels, note=note, least_side=least)
    return drop_equal_channels(np.array(_resize(picture, preprocessing)))


def repeat_grey(pixels: UInt8[np.ndarray, "height width"]) -> UInt8[np.ndarray, "height width 3"]:
    """Return a grey image as equal red, green and blue."""
    return np.repeat(pixels[:, :, None], 3, axis=2)


def drop_equal_channels(
    pixels: UInt8[np.ndarray, "height width *channel"],
) -> UInt8[np.ndarray, "height width"] | UInt8[np.ndarray, "height width 3"]:
    """Return one channel if all three are equal, else the image unchanged."""
    if pixels.ndim == 2 or not all(np.array_equal(pixels[..., 0], pixels[..., channel]) for channel in (1, 2)):
        return pixels
    return np.ascontiguousarray(pixels[..., 0])


def resize_image(
    pixels: UInt8[np.ndarray, "height width *channel"], preprocessing: Preprocessing
) -> UInt8[np.ndarray, "size size *channel"]:
    """Resize a grey or RGB image to the encoder's size and fit, antialiased when shrinking."""
    return np.array(_resize(Image.fromarray(np.ascontiguousarray(pixels)), preprocessing))


def _resize(image: Image.Image, preprocessing: Preprocessing) -> Image.Image:
    size, side, resample = preprocessing.size, preprocessing.side, Image.Resampling[preprocessing.resample.upper()]
    if preprocessing.fit == "stretch":
        return _crop_centre(image.resize((side, side), resample), size=size)
    if preprocessing.fit == "crop":
        return _crop_centre(_resize_shorter(image, side=side, resample=resample), size=size)
    width, height = (max(1, round(side * size / max(image.size))) for side in image.size)
    padded = Image.new(image.mode, (size, size))
    corner = (size - width) // 2, (size - height) // 2
    padded.paste(image.resize((width, height), resample), corner)
    return padded


def _resize_shorter(image: Image.Image, *, side: int, resample: Image.Resampling) -> Image.Image:
    # Otherwise 1 x 60000 pixels would become 224 x 13440000 before the crop.
    longest = _WIDEST_RESIZED * min(image.size)
    if max(image.size) > longest:
        left, top = (max(0, side - longest) // 2 for side in image.size)
        width, height = (min(side, longest) for side in image.size)
        image = image.crop((left, top, left + width, top + height))
    shortest = min(image.size)
    width, height = (side * length // shortest for length in image.size)
    return image.resize((width, height), resample)


def _crop_centre(image: Image.Image, *, size: int) -> Image.Image:
    left, top = ((side - size) // 2 for side in image.size)
    return image if image.size == (size, size) else image.crop((left, top, left + size, top + size))


def normalise(pixels: UInt8[np.ndarray, "... 3"], preprocessing: Preprocessing) -> Float32[np.ndarray, "... 3"]:
    """Return (pixels / 255 - mean) / std of uint8 [..., 3] as float32, with mean and std of each channel."""
    std = np.asarray(preprocessing.std)
    scale = (1.0 / (255.0 * std)).astype(np.float32)
    shift = (np.asarray(preprocessing.mean) / std).astype(np.float32)
    return pixels.astype(np.float32) * scale - shift


def normalise_grey(pixels: UInt8[np.ndarray, "..."], preprocessing: Preprocessing) -> Float32[np.ndarray, "... 3"]:
    """Return `normalise` of grey images [...], bit for bit; each of the 256 grey values is computed once."""
    return np.take(normalised_values(preprocessing), pixels, axis=0)


def normalised_values(preprocessing: Preprocessing) -> Float32[np.ndarray, "256 3"]:
    """Return `normalise` of the values 0 to 255 in each channel: the table by which devices normalise, bit for bit."""
    return normalise(np.repeat(np.arange(256, dtype=np.uint8)[:, None], 3, axis=1), preprocessing)
