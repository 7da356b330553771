"""Keys of stored features: digests of everything that determines a feature's numbers.

A key is the SHA-256 of a canonical JSON text of named fields, with the kind and version of the key among them, so that
different ingredients never give the same text.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from stepcot_jax.data.images.preprocessing import Preprocessing
from stepcot_jax.host import files
from stepcot_jax.host.errors import BadInput

KEY_BYTES = 32

DECODING_VERSION = 1
"""Version of the pixels that `data.images` decodes; a new version gives every image a new key."""

_VERSION = 1


def digest_fields(kind: str, /, **fields: Any) -> bytes:
    """Return the SHA-256 of named values, 32 bytes."""
    text = json.dumps(["stepcot_jax", _VERSION, kind, fields], sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).digest()


def digest_file(path: Path) -> str:
    """Return "file:" and the SHA-256 of a file in hex."""
    try:
        return f"file:{files.digest_file(path)[1]}"
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror})") from error


def digest_pixels(pixels: np.ndarray) -> str:
    """Return "pixels:" and the SHA-256 of an array's type, shape and values in hex, for images without a file.

    Args:
      pixels: any numeric array, such as uint8 [height, width, 3].
    """
    pixels = np.asarray(pixels)
    pixels = np.ascontiguousarray(pixels.astype(pixels.dtype.newbyteorder("<"), copy=False))
    digest = hashlib.sha256(f"{pixels.dtype.str} {pixels.shape} ".encode("ascii"))
    digest.update(pixels.data)
    return f"pixels:{digest.hexdigest()}"


def describe_preprocessing(preprocessing: Preprocessing) -> dict[str, Any]:
    """Return a preprocessing as JSON values, for keys and store descriptions."""
    return {
        "size": int(preprocessing.size),
        "mean": [float(value) for value in preprocessing.mean],
        "std": [float(value) for value in preprocessing.std],
        "fit": str(preprocessing.fit),
        "decoding_version": DECODING_VERSION,
    }
