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
    """Return the SHA-256 of named values, 32 bytes.

    Args:
      kind: what the fields describe; equal fields of two kinds have different digests.
      **fields: strings, whole numbers, floats, and lists, tuples or mappings of them.
    """
    text = json.dumps(["stepcot_jax", _VERSION, kind, fields], sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).digest()


def digest_file(path: Path) -> str:
    """Return "file:" and the SHA-256 of a file in hex.

    Raises:
      BadInput: the file cannot be read.
    """
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


def image_key(*, encoder_digest: str, preprocessing: Preprocessing, content: str) -> bytes:
    """Return the key of an image's feature.

    Args:
      encoder_digest: of the encoder's weights and arithmetic.
      preprocessing: of the encoder.
      content: of the image, from `digest_file` or `digest_pixels`.
    """
    described = describe_preprocessing(preprocessing)
    return digest_fields("image", encoder=encoder_digest, preprocessing=described, content=content)


def prompt_key(*, encoder_digest: str, pooling: str, max_tokens: int, text: str) -> bytes:
    """Return the key of a text's feature.

    Args:
      encoder_digest: of the encoder's weights, tokenizer and arithmetic.
      pooling: of token vectors.
      max_tokens: length at which the text is truncated.
      text: the text.
    """
    return digest_fields("prompt", encoder=encoder_digest, pooling=pooling, max_tokens=int(max_tokens), text=text)


def imported_image_key(*, source_digest: str, image_path: str) -> bytes:
    """Return the key of an imported image feature.

    Args:
      source_digest: of the imported files.
      image_path: normalised path of the case's image.
    """
    return digest_fields("imported image", source=source_digest, image_path=image_path)


def imported_prompt_keys(*, source_digest: str, num_steps: int) -> list[bytes]:
    """Return the keys of imported prompt features, one per step."""
    return [digest_fields("imported prompt", source=source_digest, step=step) for step in range(num_steps)]
