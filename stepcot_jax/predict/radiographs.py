"""Radiographs that a person names: files and folders to what an encoder takes."""

import os
import pathlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from jaxtyping import Float32, UInt8

from stepcot_jax.data.images.image_decoding import MAX_PIXELS
from stepcot_jax.data.images.image_files import most_bytes
from stepcot_jax.data.images.preprocessing import Preprocessing, normalise, prepare_image, repeat_grey, resize_image
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import read_file

_SIGNS = ((0, b"\x89PNG\r\n\x1a\n"), (0, b"\xff\xd8\xff"), (128, b"DICM"))
_NUM_SIGN_BYTES = 132
_SUFFIXES = (".png", ".jpg", ".jpeg", ".dcm", ".dicom")

Pixels = UInt8[np.ndarray, "size size 3"]


def find_images(
    paths: Iterable[pathlib.Path], *, refuse: Callable[[str], None]
) -> tuple[list[pathlib.Path], list[str]]:
    """The image files among paths: files as they are named, folders with all below them, sorted.

    Args:
      paths: files and folders. In folders PNG, JPEG and DICOM files are known by their first bytes, and nothing is
        followed that leads out of the folder. A file that is called an image is taken for one, so that reading it
        tells what is wrong.
      refuse: told of a folder without images.

    Returns:
      The files, each once, and what was passed over in folders, in words.
    """
    found: dict[pathlib.Path, None] = {}
    notes: list[str] = []
    for path in paths:
        if not path.is_dir():
            found[path] = None
            continue
        below, num_others = _look_below(path)
        found |= dict.fromkeys(below)
        if not below:
            refuse(f"{path}: found no image in this folder, accepted are PNG, JPEG and DICOM files")
        elif num_others:
            notes.append(
                f"note: {path}: passed over {num_others} that are no PNG, JPEG or DICOM, or links that lead out of it"
            )
    return list(found), notes


def _look_below(folder: pathlib.Path) -> tuple[list[pathlib.Path], int]:
    """Images below a folder, sorted, and the number of other files."""
    images, num_others, root = [], 0, folder.resolve()
    for parent, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = pathlib.Path(parent, name)
            if _is_image(path) and path.resolve().is_relative_to(root):
                images.append(path)
            else:
                num_others += 1
    return sorted(images), num_others


def _is_image(path: pathlib.Path) -> bool:
    """Whether a file is an image by its first bytes, or by its name, which a damaged one keeps."""
    try:
        if not path.is_file():  # to open a pipe would be to wait for ever
            return False
        # Hidden files of such names are what file systems keep beside the images.
        if path.suffix.lower() in _SUFFIXES and not path.name.startswith("."):
            return True
        with path.open("rb") as file:
            start = file.read(_NUM_SIGN_BYTES)
    except OSError:
        return False
    return any(start[place : place + len(sign)] == sign for place, sign in _SIGNS)


def read_picture(
    image: Any, preprocessing: Preprocessing, *, max_pixels: int = MAX_PIXELS
) -> UInt8[np.ndarray, "size size 3"]:
    """A radiograph at the encoder's size.

    Args:
      image: a path, the bytes of a PNG, JPEG or DICOM file, or pixels uint8 [height, width] or [height, width, 3].
      preprocessing: what the encoder asks for.
      max_pixels: largest accepted width times height.

    Raises:
      BadInput: it cannot be read or decoded, or is something else.
    """
    if isinstance(image, np.ndarray):
        return _resize_pixels(image, preprocessing)
    if isinstance(image, bytes):
        content, name = image, "image"
    elif isinstance(image, str | os.PathLike):
        content, name = _read_file(pathlib.Path(image), max_pixels), str(image)
    else:
        raise BadInput(f"image: found {type(image).__name__}, accepted are a path, bytes of a file and uint8 pixels")
    pixels = prepare_image(content, name=name, preprocessing=preprocessing, max_pixels=max_pixels)
    return repeat_grey(pixels) if pixels.ndim == 2 else pixels


def _resize_pixels(pixels: np.ndarray, preprocessing: Preprocessing) -> Pixels:
    if pixels.dtype != np.uint8 or pixels.size == 0 or not (pixels.ndim == 2 or pixels.shape[2:] == (3,)):
        raise BadInput(
            f"image: found an array of {pixels.dtype} {pixels.shape}, accepted is uint8 [height, width] or "
            "[height, width, 3]"
        )
    return resize_image(repeat_grey(pixels) if pixels.ndim == 2 else pixels, preprocessing)


def _read_file(path: pathlib.Path, max_pixels: int) -> bytes:
    try:
        return read_file(path, max_bytes=most_bytes(max_pixels))
    except (OSError, ValueError) as error:
        if isinstance(error, BadInput):
            raise
        reason = error.strerror if isinstance(error, OSError) else error
        raise BadInput(f"{path}: cannot be read ({reason}), accepted is an image file") from None


def read_pictures(
    paths: Iterable[pathlib.Path],
    preprocessing: Preprocessing,
    *,
    batch_size: int,
    max_pixels: int,
    refuse: Callable[[str], None],
) -> Iterator[tuple[list[pathlib.Path], list[Pixels]]]:
    """Batches of files with their pixels; a file that cannot be read is left out, and `refuse` is told why."""
    names: list[pathlib.Path] = []
    pictures: list[Pixels] = []
    for path in paths:
        try:
            picture = read_picture(path, preprocessing, max_pixels=max_pixels)
        except BadInput as error:
            refuse(str(error))
            continue
        names.append(path)
        pictures.append(picture)
        if len(names) == batch_size:
            yield names, pictures
            names, pictures = [], []
    if names:
        yield names, pictures


def to_input(pictures: list[Pixels], preprocessing: Preprocessing) -> Float32[np.ndarray, "case size size 3"]:
    """Pictures as the encoder takes them."""
    return normalise(np.stack(pictures), preprocessing)
