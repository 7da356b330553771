"""Where encoded images come from: one interface for folders, shards and whatever else holds images."""

import dataclasses
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from stepcot_jax.data.records.record_reader import ImageLocator
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import read_file

_BYTES_A_PIXEL = 8
_METADATA_BYTES = 16 * 2**20


@runtime_checkable
class ImageFiles(Protocol):
    """Encoded images by number; worker processes get a pickled copy."""

    def read(self, index: int) -> bytes:
        """The content of an image file.

        Raises:
          BadInput: it cannot be read, or is not what it was.
        """
        ...

    def name(self, index: int) -> str:
        """What messages call the image, such as its path."""
        ...


@runtime_checkable
class DigestedFiles(Protocol):
    """Encoded images that know their digests without being read."""

    def digest(self, index: int) -> str:
        """SHA-256 of the content in hex."""
        ...


def digest_content(images: ImageFiles, index: int) -> str:
    """SHA-256 of an image's content in hex."""
    if isinstance(images, DigestedFiles):
        return images.digest(index)
    return hashlib.sha256(images.read(index)).hexdigest()


@dataclasses.dataclass(frozen=True)
class Selection:
    """Some of other images, in an order of its own.

    Attributes:
      images: the others.
      indices: number among the others of each image.
    """

    images: ImageFiles
    indices: Sequence[int]

    def name(self, index: int) -> str:
        """See `ImageFiles`."""
        return self.images.name(self.indices[index])

    def read(self, index: int) -> bytes:
        """See `ImageFiles`."""
        return self.images.read(self.indices[index])

    def digest(self, index: int) -> str:
        """See `DigestedFiles`."""
        return digest_content(self.images, self.indices[index])


def most_bytes(max_pixels: int) -> int:
    """Size of the largest file that may hold an image of so many pixels.

    No PNG or JPEG has pixels of more than 8 bytes (16-bit RGBA), and nothing is gained by storing them uncompressed;
    what is larger than that and a generous room for metadata is no image that would be accepted.
    """
    return _BYTES_A_PIXEL * max_pixels + _METADATA_BYTES


@dataclasses.dataclass(frozen=True)
class FolderFiles:
    """Image files below a data root and nowhere else.

    Attributes:
      root: the data root.
      paths: of the images, relative to it.
      max_bytes: a larger file is refused before it is read.
    """

    root: Path
    paths: Sequence[str]
    max_bytes: int

    def name(self, index: int) -> str:
        """The image's path."""
        return str(self.root / self.paths[index])

    def read(self, index: int) -> bytes:
        """The content of an image file; every link on its way must still lead below the root.

        Raises:
          BadInput: the file is missing, too large, no ordinary file, or outside the root.
        """
        try:
            # A new locator each time: one that is kept remembers where folders led, and they may have become links.
            path = ImageLocator(self.root, require_images=True).locate(self.paths[index])
            return read_file(Path(path), max_bytes=self.max_bytes)
        except BadInput as error:
            name = self.name(index)
            raise BadInput(str(error) if name in str(error) else f"{name}: {error}") from None
        except OSError as error:
            raise BadInput(
                f"{self.name(index)}: cannot be read ({error.strerror}), accepted is an image file"
            ) from None
