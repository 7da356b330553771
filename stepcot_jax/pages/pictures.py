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
    """Return a map, not negative, as bytes of a small grey picture, from its lowest value (0) to its highest (255)."""
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
    """Return a picture with a map over it as one data URI, in the colours of the report page's script."""
    height, width = pixels.shape[:2]
    smooth = Image.fromarray(_scale(values).astype(np.float32)).resize((width, height), Image.Resampling.BILINEAR)
    part = np.asarray(smooth, np.float64)[..., None]
    colour = np.concatenate([np.full_like(part, 255), 60 + 180 * part, 30 + 130 * part**2], axis=-1)
    opacity = 190 / 255 * part**1.5
    return write_picture(np.round((1 - opacity) * pixels + opacity * colour).astype(np.uint8))


def _scale(values: np.ndarray) -> np.ndarray:
    """Return values scaled to 0..1; 0 everywhere for a map that is constant up to rounding."""
    low, spread = float(values.min()), float(np.ptp(values))
    return (values - low) / spread if spread > 1e-5 * float(values.max()) else np.zeros(values.shape)
