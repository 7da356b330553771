"""Finds the image files of a collection by their names, and reads their size without decoding them."""

import collections
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from PIL import JpegImagePlugin, PngImagePlugin

from stepcot_jax.data.records.record_reader import ImageLocator
from stepcot_jax.host.errors import BadInput

SUFFIXES = (".png", ".jpg", ".jpeg")
"""Of images, in small letters: copies of a collection are often stored as JPEG under the same names."""

_OPENERS = (PngImagePlugin.PngImageFile, JpegImagePlugin.JpegImageFile)
_ORIENTATION = 0x0112
_SIDEWAYS = (5, 6, 7, 8)
_NOT_A_NAME = frozenset("/\\\0")
_NUM_SHOWN = 80


class ImageFinder:
    """Finds the image of a name in the folders where a collection keeps its images.

    Args:
      root: the data root; nothing outside of it is found.
      folders: patterns of folders below the root, such as "images_*/images"; "." is the root itself.
      require_images: whether a name without a file is refused.
    """

    def __init__(self, root: Path, *, folders: Sequence[str], require_images: bool) -> None:
        self._locator = ImageLocator(root, require_images=require_images)
        self._folders = tuple(folders)
        self._require_images = require_images
        self._found: dict[str, list[str]] = collections.defaultdict(list)
        for folder in _list_folders(root, folders):
            for name in _list_names(root / folder):
                stem, suffix = os.path.splitext(name)  # noqa: PTH122
                if suffix.lower() in SUFFIXES:
                    self._found[stem].append(name if folder == "." else f"{folder}/{name}")

    def find(self, name: str) -> tuple[str, str]:
        """The image's path below the root, and with every link followed.

        A file of the same name but another image suffix counts, unless there is one with the same suffix.
        Without a file, where that is accepted, the path is the name in the folder "images".

        Args:
          name: of a file, without folders.

        Raises:
          BadInput: the name has folders in it, there is no such image, there are several, or it leads out of the root.
        """
        if name in ("", ".", "..") or not _NOT_A_NAME.isdisjoint(name):
            raise BadInput(f"found image {name[:_NUM_SHOWN]!r}, accepted is the name of a file without folders")
        paths = self._found.get(os.path.splitext(name)[0], [])  # noqa: PTH122
        exact = [path for path in paths if path.rpartition("/")[2] == name]
        paths = exact or paths
        if len(paths) > 1:
            raise BadInput(f"found image {name[:_NUM_SHOWN]!r} as {' and as '.join(paths[:4])}, accepted is one file")
        if not paths and self._require_images:
            raise BadInput(
                f"found no image {name[:_NUM_SHOWN]!r}, accepted is a file of this name with one of the endings "
                f"{', '.join(SUFFIXES)} in one of the folders {', '.join(self._folders)}"
            )
        path = paths[0] if paths else f"images/{name}"
        return path, self._locator.locate(path)


def _list_folders(root: Path, patterns: Iterable[str]) -> list[str]:
    folders: dict[str, None] = {}
    for pattern in patterns:
        if pattern == ".":
            folders["."] = None
            continue
        if ".." in Path(pattern).parts or Path(pattern).is_absolute() or not pattern.strip():
            raise BadInput(f"found image folder {pattern!r}, accepted is one below the data root, without '..'")
        for folder in sorted(root.glob(pattern)):
            if folder.is_dir():
                folders[folder.relative_to(root).as_posix()] = None
    return list(folders)


def _list_names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208
    except OSError as error:
        raise BadInput(f"{folder}: cannot be read ({error.strerror}), accepted is a folder with images") from error


def read_image_size(path: Path) -> tuple[int, int]:
    """Width and height in pixels as a viewer shows the picture, read from the header alone.

    Raises:
      BadInput: the file cannot be read or its header is not that of a PNG or JPEG file.
    """
    try:
        with Path(path).open("rb") as file:
            start = file.read(2)
            file.seek(0)
            opener = _OPENERS[0] if start == b"\x89P" else _OPENERS[1]
            with opener(file) as image:
                width, height = image.size
                # Asked for what is not in the header, Pillow would decode the picture to look behind it.
                sideways = "exif" in image.info and image.getexif().get(_ORIENTATION) in _SIDEWAYS
    # Pillow raises a dozen kinds of error on broken headers; each of them is the file's fault.
    except Exception as error:
        raise BadInput(
            f"{path}: size cannot be read: {type(error).__name__}: {str(error)[:200]}; accepted are PNG and JPEG images"
        ) from error
    return (height, width) if sideways else (width, height)
