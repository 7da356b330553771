"""Images as Qwen2.5-VL's processor prepares them: sides rounded to whole units, normalised, cut into patches."""

import dataclasses
import math
import pathlib
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32, UInt8
from PIL import Image

from stepcot_jax.data.images.preprocessing import CLIP_MEAN, CLIP_STD
from stepcot_jax.encoders.checkpoint_files import BICUBIC, ConfigFile, read_colours, read_image_processor
from stepcot_jax.host.errors import BadInput
from stepcot_jax.models.qwen_vision import VisionSizes

MOST_ASPECT = 200
"""Longest side over shortest, of the processor."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class QwenPreprocessing:
    """Input format of the vision tower.

    Attributes:
      patch_size: height and width of a patch, px.
      merge_size: sides of an image are multiples of merge_size patches.
      min_pixels: of an image; a smaller one is enlarged.
      max_pixels: of an image; a larger one is shrunk. Published files allow 12,845,056, or 16,384 tokens.
      mean: of red, green and blue in [0, 1], subtracted.
      std: of red, green and blue, > 0, divided by.
    """

    patch_size: int = 14
    merge_size: int = 2
    min_pixels: int = 56 * 56
    max_pixels: int = 28 * 28 * 16_384
    mean: tuple[float, float, float] = CLIP_MEAN
    std: tuple[float, float, float] = CLIP_STD

    def __post_init__(self) -> None:
        unit = (self.patch_size * self.merge_size) ** 2
        if not unit <= self.min_pixels <= self.max_pixels:
            raise BadInput(
                f"min_pixels {self.min_pixels} and max_pixels {self.max_pixels} are not {unit} or more in order"
            )
        if min(self.std) <= 0 or not np.all(np.isfinite((*self.mean, *self.std))):
            raise BadInput(f"mean {self.mean} and std {self.std} are not finite numbers, the latter above 0")


class CutImage(NamedTuple):
    """An image as patches; those that the merger joins follow each other, units row by row.

    Attributes:
      patches: float32 [patch, feature]; features are colour, frame (both are equal), row, column.
      num_rows: units (merged patches) from top to bottom.
      num_columns: units from left to right.
    """

    patches: Float32[np.ndarray, "patch feature"]
    num_rows: int
    num_columns: int


def read_qwen_preprocessing(folder: pathlib.Path, vision: VisionSizes) -> QwenPreprocessing:
    """Return the preprocessing of a checkpoint's preprocessor_config.json or processor_config.json."""
    config = read_image_processor(folder)
    if config is None:
        raise BadInput(
            f"{folder}: no preprocessor_config.json or processor_config.json with an image processor (expected one "
            "beside config.json)"
        )
    # A processor's null means its default, as does a missing key.
    config = ConfigFile(config.where, {key: value for key, value in config.found.items() if value is not None})
    for key in ("do_resize", "do_rescale", "do_normalize", "do_convert_rgb"):
        config.one_of(key, (True,), True)
    config.one_of("resample", (BICUBIC,), BICUBIC)
    config.one_of("temporal_patch_size", (2,), 2)
    config.one_of("patch_size", (vision.patch_size,), 14)
    config.one_of("merge_size", (vision.merge_size,), 2)
    factor = config.number("rescale_factor", 1 / 255, least=0.0, most=1.0)
    if abs(factor * 255 - 1) > 1e-6:
        raise BadInput(f"{config.where}.rescale_factor: {factor!r} is not 1/255")
    least, most = _pixel_limits(config)
    mean, std = (read_colours(config, f"image_{key}", of) for key, of in (("mean", CLIP_MEAN), ("std", CLIP_STD)))
    return QwenPreprocessing(
        patch_size=vision.patch_size,
        merge_size=vision.merge_size,
        min_pixels=least,
        max_pixels=most,
        mean=mean,
        std=std,
    )


def _pixel_limits(config: ConfigFile) -> tuple[int, int]:
    """Return the least and most pixels: keys of their own in published files, an object in newer ones."""
    size = config.group("size")

    def limit(key: str, edge: str) -> int:
        return config.whole(key, most=2**40) if key in config.found else size.whole(edge, most=2**40)

    return limit("min_pixels", "shortest_edge"), limit("max_pixels", "longest_edge")


def fit_size(height: int, width: int, preprocessing: QwenPreprocessing) -> tuple[int, int]:
    """Return the height and width that an image is resized to, px.

    Multiples of a unit, nearest to the image's own; if those have too many or too few pixels, the largest that fit or
    the smallest that suffice at about the same aspect.

    >>> fit_size(480, 640, QwenPreprocessing())
    (476, 644)
    """
    if max(height, width) > MOST_ASPECT * min(height, width):
        raise BadInput(f"image of {width} x {height} px: one side is more than {MOST_ASPECT} times the other")
    unit = preprocessing.patch_size * preprocessing.merge_size
    # Python rounds halves to even, as the processor does.
    rows, columns = round(height / unit), round(width / unit)
    pixels = rows * columns * unit**2
    if pixels > preprocessing.max_pixels:
        shrink = math.sqrt(height * width / preprocessing.max_pixels)
        rows, columns = (max(1, math.floor(side / shrink / unit)) for side in (height, width))
    elif pixels < preprocessing.min_pixels:
        grow = math.sqrt(preprocessing.min_pixels / (height * width))
        rows, columns = (math.ceil(side * grow / unit) for side in (height, width))
    return rows * unit, columns * unit


def cut_image(
    pixels: UInt8[np.ndarray, "height width 3"], preprocessing: QwenPreprocessing, *, name: str = "image"
) -> CutImage:
    """Resize an image (bicubic), normalise it and cut it into patches."""
    if pixels.ndim != 3 or pixels.shape[2] != 3 or not pixels.size or pixels.dtype != np.uint8:
        raise BadInput(f"{name}: {pixels.dtype} of shape {list(pixels.shape)} is not uint8 [height, width, 3]")
    try:
        height, width = fit_size(pixels.shape[0], pixels.shape[1], preprocessing)
    except BadInput as error:
        raise BadInput(f"{name}: {error}") from None
    resized = np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling.BICUBIC), np.float32)
    mean, std = (np.asarray(each, np.float32) for each in (preprocessing.mean, preprocessing.std))
    normal = (resized * np.float32(1 / 255) - mean) / std
    side, merge = preprocessing.patch_size, preprocessing.merge_size
    rows, columns = height // (side * merge), width // (side * merge)
    # [unit row, merged row, pixel row, unit column, merged column, pixel column, colour]
    cut = normal.reshape(rows, merge, side, columns, merge, side, 3).transpose(0, 3, 1, 4, 6, 2, 5)
    frames = np.repeat(cut[:, :, :, :, :, None], 2, axis=5)
    return CutImage(np.ascontiguousarray(frames.reshape(rows * columns * merge**2, -1)), rows, columns)
