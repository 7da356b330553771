"""Radiographs and maps as text that a page carries in itself."""

import base64
import io

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image

MAX_SIDE = 288
"""Longest side of a picture in the page, in pixels: 200 of them stay well below 10 MB."""

_QUALITY = 82
_MAX_MAP_SIDE = 24


def write_picture(pixels: UInt8[np.ndarray, "height width 3"]) -> str:
    """A picture as a data URI: JPEG, grey where its channels are equal, at most `MAX_SIDE` pixels a side."""
    grey = bool((pixels == pixels[..., :1]).all())
    image = Image.fromarray(np.ascontiguousarray(pixels[..., 0]) if grey else pixels)
    image.thumbnail((MAX_SIDE, MAX_SIDE), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=_QUALITY, optimize=True)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()


def write_map(values: Float[np.ndarray, "height width"]) -> dict[str, int | str]:
    """A map as the bytes of a small grey picture: its lowest value at 0, its largest at 255; all 0 where it is even.

    Args:
      values: not negative; a larger map than 24 a side is averaged down.

    Returns:
      "width", "height" and "bytes" (base64, row by row).

    Raises:
      ValueError: a value is negative or not finite.
    """
    if not np.isfinite(values).all() or (values < 0).any():
        raise ValueError("found a map with values that are negative or not finite")
    image = Image.fromarray(np.asarray(values, np.float32))
    if max(image.size) > _MAX_MAP_SIDE:
        scale = _MAX_MAP_SIDE / max(image.size)
        size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
        image = image.resize(size, Image.Resampling.BOX)
    small = np.asarray(image)
    low, spread = float(small.min()), float(np.ptp(small))
    # What is even but for rounding points nowhere, and should not look as if it did.
    is_even = spread <= 1e-5 * abs(float(small.max()))
    levels = np.zeros(small.shape, np.uint8) if is_even else np.round((small - low) / spread * 255).astype(np.uint8)
    content = base64.b64encode(levels.tobytes()).decode()
    return {"width": image.width, "height": image.height, "bytes": content}


def write_overlay(pixels: UInt8[np.ndarray, "height width 3"], values: Float[np.ndarray, "row column"]) -> str:
    """A picture with a map over it as one data URI, in the colours of the page's script.

    Args:
      pixels: the picture.
      values: not negative, over the whole picture; an even map leaves it as it is.
    """
    height, width = pixels.shape[:2]
    low, spread = float(values.min()), float(np.ptp(values))
    part = (values - low) / spread if spread > 1e-5 * float(values.max()) else np.zeros(values.shape)
    smooth = Image.fromarray(part.astype(np.float32)).resize((width, height), Image.Resampling.BILINEAR)
    strength = np.asarray(smooth, np.float64)[..., None]
    red, green, blue = np.full_like(strength, 255), 60 + 180 * strength, 30 + 130 * strength**2
    colour = np.concatenate([red, green, blue], axis=-1)
    opacity = 190 / 255 * strength**1.5
    return write_picture(np.round((1 - opacity) * pixels + opacity * colour).astype(np.uint8))
