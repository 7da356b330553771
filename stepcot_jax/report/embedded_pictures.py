"""Radiographs and maps as text that a page embeds."""

import base64
import io

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image

MAX_SIDE = 288
"""Longest side of an embedded picture in pixels: 200 of them stay well below 10 MB."""

_QUALITY = 82
_MAX_MAP_SIDE = 24


def write_picture(pixels: UInt8[np.ndarray, "height width 3"]) -> str:
    """Return a picture as a data URI: JPEG, grey if its channels are equal, at most `MAX_SIDE` pixels a side."""
    grey = bool((pixels == pixels[..., :1]).all())
    image = Image.fromarray(np.ascontiguousarray(pixels[..., 0]) if grey else pixels)
    image.thumbnail((MAX_SIDE, MAX_SIDE), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=_QUALITY, optimize=True)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()


def write_map(values: Float[np.ndarray, "height width"]) -> dict[str, int | str]:
    """Return a map as the bytes of a small grey picture, scaled from its lowest value (0) to its highest (255).

    Args:
      values: not negative; a map larger than 24 a side is averaged down, an even one becomes 0 everywhere.

    Returns:
      "width", "height" and "bytes" (base64, row by row).

    Raises:
      ValueError: a value is negative or not finite.
    """
    if not np.isfinite(values).all() or (values < 0).any():
        raise ValueError("map values must be finite and not negative")
    image = Image.fromarray(np.asarray(values, np.float32))
    if max(image.size) > _MAX_MAP_SIDE:
        scale = _MAX_MAP_SIDE / max(image.size)
        size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
        image = image.resize(size, Image.Resampling.BOX)
    levels = np.round(255 * _scale(np.asarray(image))).astype(np.uint8)
    content = base64.b64encode(levels.tobytes()).decode()
    return {"width": image.width, "height": image.height, "bytes": content}


def write_overlay(pixels: UInt8[np.ndarray, "height width 3"], values: Float[np.ndarray, "row column"]) -> str:
    """Return a picture with a map over it as one data URI, in the colours of the report page's script.

    Args:
      pixels: the picture.
      values: not negative, over the whole picture; an even map leaves it unchanged.
    """
    height, width = pixels.shape[:2]
    smooth = Image.fromarray(_scale(values).astype(np.float32)).resize((width, height), Image.Resampling.BILINEAR)
    strength = np.asarray(smooth, np.float64)[..., None]
    red, green, blue = np.full_like(strength, 255), 60 + 180 * strength, 30 + 130 * strength**2
    colour = np.concatenate([red, green, blue], axis=-1)
    opacity = 190 / 255 * strength**1.5
    return write_picture(np.round((1 - opacity) * pixels + opacity * colour).astype(np.uint8))


def _scale(values: np.ndarray) -> np.ndarray:
    """Return values scaled to 0..1; 0 everywhere for a map that is even up to rounding and so points nowhere."""
    low, spread = float(values.min()), float(np.ptp(values))
    return (values - low) / spread if spread > 1e-5 * float(values.max()) else np.zeros(values.shape)
