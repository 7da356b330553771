"""Find a collection's files by name and read the size of images without decoding them."""

import collections
import os
from collections.abc import Sequence
from pathlib import Path

from PIL import JpegImagePlugin, PngImagePlugin

from stepcot_jax.data.records.record_reader import ImageLocator
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.untrusted import open_untrusted

SUFFIXES = (".png", ".jpg", ".jpeg")
"""Lower-case image suffixes: copies of a collection often store JPEG under the same names."""

_OPENERS = {b"\x89P": PngImagePlugin.PngImageFile, b"\xff\xd8": JpegImagePlugin.JpegImageFile}
_ORIENTATION = 0x0112
_SIDEWAYS = (5, 6, 7, 8)
_NOT_A_NAME = frozenset("/\\\0")
_NUM_SHOWN = 80


def find_file(root: Path, *patterns: str) -> Path | None:
    """Return the one file of a data root that matches a pattern, None if there is none."""
    found = [path for pattern in patterns for path in sorted(root.glob(pattern)) if path.exists() and not path.is_dir()]
    if len(found) > 1:
        names = ", ".join(str(path.relative_to(root)) for path in found[:5])
        raise BadInput(f"{root}: several files {patterns[0]} ({names}); expected one")
    return found[0] if found else None


class ImageFinder:
    """Finds the image of a name in the folders where a collection keeps its images.

    Args:
      folders: patterns of folders below the root, such as "images_*/images"; "." is the root itself.
    """

    def __init__(self, root: Path, *, folders: Sequence[str], require_images: bool) -> None:
        self._locator = ImageLocator(root, require_images=require_images)
        self._folders = tuple(folders)
        self._require_images = require_images
        self._found: dict[str, list[str]] = collections.defaultdict(list)
        found: list[Path] = []
        for pattern in folders:
            found += [root] if pattern == "." else filter(Path.is_dir, sorted(root.glob(pattern)))
        for folder in dict.fromkeys(path.relative_to(root).as_posix() for path in found):
            try:
                names = sorted(os.listdir(root / folder))  # noqa: PTH208
            except OSError as error:
                problem = f"cannot be read ({error.strerror}); expected a folder with images"
                raise BadInput(f"{root / folder}: {problem}") from error
            for stem, suffix in map(os.path.splitext, names):
                if suffix.lower() in SUFFIXES:
                    self._found[stem].append(stem + suffix if folder == "." else f"{folder}/{stem}{suffix}")

    def find(self, name: str) -> tuple[str, str]:
        """Return the image's path below the root, and its real path with every link resolved.

        A file with another image suffix is found if no file has the same suffix. Without a file and with
        `require_images=False`, the path is the name in the folder "images".
        """
        if name in ("", ".", "..") or not _NOT_A_NAME.isdisjoint(name):
            raise BadInput(f"image {name[:_NUM_SHOWN]!r} is not a file name without folders")
        paths = self._found.get(os.path.splitext(name)[0], [])  # noqa: PTH122
        exact = [path for path in paths if path.rpartition("/")[2] == name]
        paths = exact or paths
        if len(paths) > 1:
            raise BadInput(f"image {name[:_NUM_SHOWN]!r} is ambiguous: {' and '.join(paths[:4])}")
        if not paths and self._require_images:
            raise BadInput(
                f"no image {name[:_NUM_SHOWN]!r}; expected a file of this name with suffix {', '.join(SUFFIXES)} in "
                f"one of the folders {', '.join(self._folders)}"
            )
        path = paths[0] if paths else f"images/{name}"
        return path, self._locator.locate(path)


def read_image_size(path: Path) -> tuple[int, int]:
    """Return width and height in pixels after EXIF orientation, from the header alone."""
    try:
        with open_untrusted(path, accepted="a PNG or JPEG image") as file:
            start = file.read(2)
            file.seek(0)
            if start not in _OPENERS:
                raise BadInput(f"{path}: size cannot be read: the file is neither a PNG nor a JPEG image")
            opener = _OPENERS[start]
            with opener(file) as image:
                width, height = image.size
                # Without this check Pillow would decode the picture to look for metadata behind it.
                sideways = "exif" in image.info and image.getexif().get(_ORIENTATION) in _SIDEWAYS
    except BadInput:
        raise
    # Pillow raises a dozen types of error on broken headers.
    except Exception as error:
        raise BadInput(
            f"{path}: size cannot be read: {type(error).__name__}: {str(error)[:200]}; expected a PNG or JPEG image"
        ) from error
    return (height, width) if sideways else (width, height)
