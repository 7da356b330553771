"""Read image files, folders and arrays as an encoder's input."""

import io
import os
import pathlib
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float32, UInt8
from PIL import Image

from stepcot_jax.data.images.image_decoding import MAX_PIXELS, decode_picture, most_bytes, read_projection
from stepcot_jax.data.images.preprocessing import (
    Preprocessing,
    drop_equal_channels,
    normalise,
    prepare_image,
    repeat_grey,
    resize_image,
)
from stepcot_jax.data.projections import Projection
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import read_file
from stepcot_jax.host.machine import map_in_threads
from stepcot_jax.host.text import make_printable, one_line
from stepcot_jax.host.untrusted import open_untrusted, resolve

_SIGNS = ((0, b"\x89PNG\r\n\x1a\n"), (0, b"\xff\xd8\xff"), (128, b"DICM"))
_NUM_SIGN_BYTES = 132
_SUFFIXES = (".png", ".jpg", ".jpeg", ".dcm", ".dicom")

_BATCHES_AHEAD = 4

Pixels = UInt8[np.ndarray, "size size 3"]


class Header(NamedTuple):
    """What the header of an image file says; empty for one that is not DICOM."""

    projection: Projection = ""
    notes: tuple[str, ...] = ()  # what is odd about the picture's elements, such as a window that misses the pixels


Scale = tuple[float, float]  # Values of an array that are black and white


class Complaints:
    """Prints messages on stderr, where control characters cannot reach the terminal, and counts refused files."""

    def __init__(self) -> None:
        self.num_refused = 0

    def refuse(self, line: str) -> None:
        """Report an image that cannot be read."""
        self.num_refused += 1
        self.note(line)

    def note(self, line: str) -> None:
        """Report any other message."""
        print(make_printable(line), file=sys.stderr, flush=True)


def find_images(
    paths: Iterable[pathlib.Path], *, refuse: Callable[[str], None], note: Callable[[str], None] = lambda _: None
) -> list[pathlib.Path]:
    """Return files as named, and all images below folders, sorted, by first bytes or suffix, but no links out."""
    images: dict[pathlib.Path, None] = {}
    for path in paths:
        if not os.path.isdir(path):  # noqa: PTH112 - pathlib's raises for a name that is too long
            images[path] = None
            continue
        below, num_others, num_links = _look_below(path, refuse)
        images |= dict.fromkeys(below)
        links = f"{num_links} links out of the folder were not followed: copy it with cp -rL" if num_links else ""
        if not below:
            refuse(f"{path} holds no PNG, JPEG or DICOM file" + (links and f"; {links}"))
            continue
        others = f"skipped {num_others} files that are not PNG, JPEG or DICOM images" if num_others else ""
        if links or others:
            note(f"note: {path}: {'; '.join(filter(None, (others, links)))}")
    return list(images)


def _look_below(folder: pathlib.Path, refuse: Callable[[str], None]) -> tuple[list[pathlib.Path], int, int]:
    """Return the images below a folder, sorted, the number of other files, and that of links out of the folder."""
    images, num_others, num_links, root = [], 0, 0, resolve(folder)
    for parent, folders, names in os.walk(folder):
        folders.sort()
        num_links += sum(pathlib.Path(parent, name).is_symlink() for name in folders)  # which are not walked
        for name in sorted(names):
            path = pathlib.Path(parent, name)
            try:
                is_below = resolve(path).is_relative_to(root)
            except BadInput as error:
                refuse(str(error))
                continue
            if not is_below:
                num_links += 1
            elif path.is_symlink() and not path.exists():
                refuse(f"{path}: a link to a file that is missing; expected an image")
            elif _is_image(path):
                images.append(path)
            else:
                num_others += 1
    return sorted(images), num_others, num_links


def _is_image(path: pathlib.Path) -> bool:
    """Return whether a file is an image by its first bytes, or by its suffix, which a damaged file keeps."""
    try:
        # Opening a pipe would block; a DICOMDIR is a DICOM file, but an index of the others.
        if not path.is_file() or path.stem.upper() == "DICOMDIR":
            return False
        # macOS keeps its own hidden files with these suffixes, such as ._image.png.
        if path.suffix.lower() in _SUFFIXES and not path.name.startswith("."):
            return True
        with open_untrusted(path, accepted="an image") as file:
            start = file.read(_NUM_SIGN_BYTES)
    except (OSError, BadInput):
        return False
    return any(start[offset : offset + len(sign)] == sign for offset, sign in _SIGNS)


def read_picture(
    image: Any, preprocessing: Preprocessing, *, max_pixels: int = MAX_PIXELS
) -> UInt8[np.ndarray, "size size 3"]:
    """Return a radiograph at the encoder's size; arguments and errors as for `read_radiograph`."""
    return read_radiograph(image, preprocessing, max_pixels=max_pixels)[0]


def read_radiograph(
    image: Any, preprocessing: Preprocessing, *, max_pixels: int = MAX_PIXELS, scale: Scale | None = None
) -> tuple[UInt8[np.ndarray, "size size 3"], Header]:
    """Return a radiograph at the encoder's size and its header; arguments as `ImageReader.read`."""
    if scale is not None:
        image = apply_scale(image, scale)
    if isinstance(image, np.ndarray):
        pixels = read_pixels(image, max_pixels=max_pixels)
        return resize_image(repeat_grey(pixels) if pixels.ndim == 2 else pixels, preprocessing), Header()
    content, name = _read_content(image, max_pixels)
    notes = list[str]()
    pixels = prepare_image(content, name=name, preprocessing=preprocessing, max_pixels=max_pixels, note=notes.append)
    header = Header(read_projection(content, name=name), tuple(notes))
    return repeat_grey(pixels) if pixels.ndim == 2 else pixels, header


def apply_scale(image: Any, scale: Scale) -> UInt8[np.ndarray, "..."]:
    """Return numbers as uint8: those of `scale` become 0 and 255, and numbers beyond are clipped.

    >>> apply_scale(np.array([-1.0, 0.0, 0.5, 2.0]), (0, 1)).tolist()
    [0, 0, 128, 255]
    """
    numbers = image if isinstance(image, np.ndarray) else None
    if numbers is None or numbers.dtype.kind not in "buif" or np.isnan(numbers).any():
        kind = type(image).__name__ if numbers is None else f"{numbers.dtype} {numbers.shape}"
        raise BadInput(f"image: a scale needs an array of numbers without NaN; got {kind}")
    black, white = map(float, scale)
    if not np.isfinite([black, white]).all() or black == white:
        raise BadInput(f"scale: {scale} is not two different numbers (black, white)")
    shares = np.clip((numbers.astype(np.float64) - black) / (white - black), 0.0, 1.0)
    return np.floor(255 * shares + 0.5).astype(np.uint8)


def read_pixels(
    image: Any, *, max_pixels: int = MAX_PIXELS
) -> UInt8[np.ndarray, "height width"] | UInt8[np.ndarray, "height width 3"]:
    """Return a radiograph at its own size; arguments and errors as for `read_picture`."""
    return read_unresized(image, max_pixels=max_pixels)[0]


def read_unresized(
    image: Any, *, max_pixels: int = MAX_PIXELS
) -> tuple[UInt8[np.ndarray, "height width"] | UInt8[np.ndarray, "height width 3"], Header]:
    """Return a radiograph at its own size, and its header; arguments and errors as for `read_radiograph`."""
    if isinstance(image, np.ndarray):
        if image.dtype != np.uint8 or image.size == 0 or not (image.ndim == 2 or image.shape[2:] == (3,)):
            raise BadInput(
                f"image: an array must be uint8 [height, width] or [height, width, 3]; got {image.dtype} {image.shape}"
                + (" (state its scale, such as scale=(0, 1))" if image.dtype != np.uint8 else "")
            )
        return image, Header()
    content, name = _read_content(image, max_pixels)
    notes = list[str]()
    picture = decode_picture(content, name=name, max_pixels=max_pixels, note=notes.append)
    return drop_equal_channels(np.array(picture)), Header(read_projection(content, name=name), tuple(notes))


def _read_content(image: Any, max_pixels: int) -> tuple[bytes, str]:
    """Return the bytes of an image file, and its name for messages."""
    if isinstance(image, bytes):
        return image, "image"
    if isinstance(image, str | os.PathLike):
        return _read_file(pathlib.Path(image), max_pixels), str(image)
    if isinstance(image, Image.Image):  # as a file, so that depth and transparency mean the same
        content = io.BytesIO()
        try:
            image.save(content, "PNG")
        except (OSError, ValueError) as error:
            raise BadInput(f"image: a PIL image of mode {image.mode} cannot be read ({one_line(error)})") from None
        return content.getvalue(), "image"
    raise BadInput(
        f"image must be a path, the bytes of a file, a PIL image or an array of pixels; got {type(image).__name__}"
    )


def _read_file(path: pathlib.Path, max_pixels: int) -> bytes:
    try:
        if ".parquet#" in path.name:
            from stepcot_jax.data.parquet import find_cell, read_cell  # of pictures in tables alone

            if cell := find_cell(str(path)):
                return read_cell(pathlib.Path(cell.file), cell, max_bytes=most_bytes(max_pixels))
        return read_file(path, max_bytes=most_bytes(max_pixels))
    except BadInput:
        raise
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = error.strerror if isinstance(error, OSError) else error
        raise BadInput(f"{path} cannot be read ({reason}); expected an image file") from None


def read_pictures(
    paths: Iterable[pathlib.Path],
    preprocessing: Preprocessing,
    *,
    batch_size: int,
    max_pixels: int,
    num_threads: int,
    refuse: Callable[[str], None],
) -> Iterator[tuple[list[pathlib.Path], list[Pixels], list[Header]]]:
    """Yield batches of files, pixels and headers in order, read ahead by threads; `refuse` gets unreadable ones."""

    def read(path: pathlib.Path) -> tuple[Pixels, Header] | BadInput:
        try:
            return read_radiograph(path, preprocessing, max_pixels=max_pixels)
        except BadInput as error:
            return error

    names: list[pathlib.Path] = []
    pictures: list[Pixels] = []
    headers: list[Header] = []
    for path, result in map_in_threads(read, paths, num_threads=num_threads, num_ahead=_BATCHES_AHEAD * batch_size):
        if isinstance(result, BadInput):
            refuse(str(result))
            continue
        picture, header = result
        names.append(path)
        pictures.append(picture)
        headers.append(header)
        if len(names) == batch_size:
            yield names, pictures, headers
            names, pictures, headers = [], [], []
    if names:
        yield names, pictures, headers


def to_input(pictures: list[Pixels], preprocessing: Preprocessing) -> Float32[np.ndarray, "case size size 3"]:
    """Return pictures as the encoder's input: normalised float32."""
    return normalise(np.stack(pictures), preprocessing)
