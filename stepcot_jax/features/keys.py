"""The key of a feature: a digest of everything that decides its numbers.

A key is SHA-256 over a canonical JSON text of named fields, so that no two lists of ingredients can read the same
(as "ab" + "c" and "a" + "bc" do), and the kind and the version of the key are among the fields.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stepcot_jax.data.images.preprocessing import Preprocessing
from stepcot_jax.host.errors import BadInput

KEY_BYTES = 32

DECODING_VERSION = 1
"""Counts changes of `data.images` that change pixels: a new number makes every image's feature anew."""

_VERSION = 1
_CHUNK_BYTES = 1 << 20


def digest_fields(kind: str, /, **fields: Any) -> bytes:
    """SHA-256 of named values.

    Args:
      kind: what the fields describe; equal fields of two kinds have two digests.
      **fields: texts, whole numbers, floats, and lists, tuples or mappings of them.

    Returns:
      32 bytes.
    """
    text = json.dumps(["stepcot_jax", _VERSION, kind, fields], sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).digest()


def digest_file(path: Path) -> str:
    """SHA-256 of a file's bytes in hex, read in pieces.

    Raises:
      BadInput: the file cannot be read.
    """
    digest = hashlib.sha256()
    try:
        with Path(path).open("rb") as file:
            while piece := file.read(_CHUNK_BYTES):
                digest.update(piece)
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror}); accepted is a file that can") from error
    return f"file:{digest.hexdigest()}"


def digest_pixels(pixels: np.ndarray) -> str:
    """SHA-256 of an array's type, shape and values in hex, for images that are in no file.

    Args:
      pixels: any numeric array, such as uint8 [height, width, 3].
    """
    pixels = np.asarray(pixels)
    pixels = np.ascontiguousarray(pixels.astype(pixels.dtype.newbyteorder("<"), copy=False))
    digest = hashlib.sha256(f"{pixels.dtype.str} {pixels.shape} ".encode("ascii"))
    digest.update(pixels.data)
    return f"pixels:{digest.hexdigest()}"


def describe_preprocessing(preprocessing: Preprocessing) -> dict[str, Any]:
    """What is done to an image before it is encoded, for keys and for the description of a store."""
    return {
        "size": int(preprocessing.size),
        "mean": [float(value) for value in preprocessing.mean],
        "std": [float(value) for value in preprocessing.std],
        "fit": str(preprocessing.fit),
        "decoding_version": DECODING_VERSION,
    }


def image_key(*, encoder_digest: str, preprocessing: Preprocessing, content: str) -> bytes:
    """The key of an image's feature.

    Args:
      encoder_digest: of the encoder's weights, and of all else in it that decides its numbers.
      preprocessing: what the encoder asks of its input.
      content: of the image itself, from `digest_file` or `digest_pixels`.
    """
    described = describe_preprocessing(preprocessing)
    return digest_fields("image", encoder=encoder_digest, preprocessing=described, content=content)


def prompt_key(*, encoder_digest: str, pooling: str, max_tokens: int, text: str) -> bytes:
    """The key of a text's feature.

    Args:
      encoder_digest: as for `image_key`; the tokenizer is part of it.
      pooling: how token vectors become one.
      max_tokens: where the text is cut.
      text: the text.
    """
    return digest_fields("prompt", encoder=encoder_digest, pooling=pooling, max_tokens=int(max_tokens), text=text)


def imported_image_key(*, source_digest: str, image_path: str) -> bytes:
    """The key of an image's feature that was made elsewhere.

    Args:
      source_digest: of the files that were imported.
      image_path: the case's, as its record has it (normalised).
    """
    return digest_fields("imported image", source=source_digest, image_path=image_path)


def imported_prompt_keys(*, source_digest: str, num_steps: int) -> list[bytes]:
    """The keys of the prompt features that were made elsewhere, one a step in order."""
    return [digest_fields("imported prompt", source=source_digest, step=step) for step in range(num_steps)]


def distinct(keys: Sequence[bytes]) -> list[bytes]:
    """The keys without repetitions, in order of first appearance."""
    return list(dict.fromkeys(keys))
