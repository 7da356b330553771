"""Sources of encoded images: one interface for folders, shards and any other source."""

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
        """Return the content of an image file.

        Raises:
          BadInput: it cannot be read, or has changed.
        """
        ...

    def name(self, index: int) -> str:
        """Return the image's name for messages, such as its path."""
        ...


@runtime_checkable
class DigestedFiles(Protocol):
    """Encoded images with digests that need no reading."""

    def digest(self, index: int) -> str:
        """Return the SHA-256 of the content in hex."""
        ...


def digest_content(images: ImageFiles, index: int) -> str:
    """Return the SHA-256 of an image's content in hex."""
    if isinstance(images, DigestedFiles):
        return images.digest(index)
    return hashlib.sha256(images.read(index)).hexdigest()


@dataclasses.dataclass(frozen=True)
class Selection:
    """Some images of another source, in a given order.

    Attributes:
      images: the other source.
      indices: index in the other source of each image.
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
    """Return the size limit of a file with an image of at most `max_pixels`.

    PNG and JPEG store at most 8 bytes per pixel (16-bit RGBA) uncompressed; 16 MiB are added for metadata.
    """
    return _BYTES_A_PIXEL * max_pixels + _METADATA_BYTES


@dataclasses.dataclass(frozen=True)
class FolderFiles:
    """Image files below a data root; links may not lead out of it.

    Attributes:
      root: the data root.
      paths: of the images, relative to it.
      max_bytes: a larger file is refused before it is read.
    """

    root: Path
    paths: Sequence[str]
    max_bytes: int

    def name(self, index: int) -> str:
        """Return the image's path."""
        return str(self.root / self.paths[index])

    def read(self, index: int) -> bytes:
        """Return the content of an image file; every link in its path must lead below the root now.

        Raises:
          BadInput: the file is missing, too large, not an ordinary file, or outside the root.
        """
        try:
            # A new locator each time: an old one caches folders, which may have become links since.
            path = ImageLocator(self.root, require_images=True).locate(self.paths[index])
            return read_file(Path(path), max_bytes=self.max_bytes)
        except BadInput as error:
            name = self.name(index)
            raise BadInput(str(error) if name in str(error) else f"{name}: {error}") from None
        except OSError as error:
            raise BadInput(f"{self.name(index)}: cannot be read ({error.strerror})") from None
