"""Sources of encoded images: one interface for folders, shards and any other source."""

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int64

from stepcot_jax.data.columns import TextColumn
from stepcot_jax.data.records.record_reader import ImageLocator
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import read_file

_BYTES_A_PIXEL = 8
_METADATA_BYTES = 16 * 2**20


@runtime_checkable
class ImageFiles(Protocol):
    """Encoded images by number; worker processes get a pickled copy.

    `digest(index)`, the SHA-256 of the content in hex, is optional: for sources that know it without reading.
    """

    def read(self, index: int) -> bytes:
        """Return the content of an image file; `BadInput` if it cannot be read or has changed."""
        ...

    def name(self, index: int) -> str:
        """Return the image's name for messages, such as its path."""
        ...


def digest_content(images: ImageFiles, index: int) -> str:
    """Return the SHA-256 of an image's content in hex."""
    known: Callable[[int], str] | None = getattr(images, "digest", None)
    return known(index) if known else hashlib.sha256(images.read(index)).hexdigest()


@dataclasses.dataclass(frozen=True)
class Selection:
    """Some images of another source, in a given order.

    Attributes:
      images: the other source.
      indices: index in the other source of each image.
    """

    images: ImageFiles
    indices: Sequence[int] | Int64[np.ndarray, " image"]

    def name(self, index: int) -> str:
        """See `ImageFiles`."""
        return self.images.name(self.indices[index])

    def read(self, index: int) -> bytes:
        """See `ImageFiles`."""
        return self.images.read(self.indices[index])

    def digest(self, index: int) -> str:
        """See `digest_content`."""
        return digest_content(self.images, self.indices[index])


def most_bytes(max_pixels: int) -> int:
    """Return the size limit of a file: 8 bytes a pixel (16-bit RGBA, uncompressed), and 16 MiB for metadata."""
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
    paths: Sequence[str] | TextColumn
    max_bytes: int

    def name(self, index: int) -> str:
        """Return the image's path."""
        return str(self.root / self.paths[index])

    def read(self, index: int) -> bytes:
        """Return the content of an image file.

        Raises:
          BadInput: the file is missing, too large, not an ordinary file, or a link leads out of the root now.
        """
        try:
            # A new locator each time: an old one caches folders, which may have become links since.
            path = ImageLocator(self.root, require_images=True).locate(self.paths[index])
            return read_file(Path(path), max_bytes=self.max_bytes)
        except BadInput as error:
            raise BadInput(str(error) if self.name(index) in str(error) else f"{self.name(index)}: {error}") from None
        except OSError as error:
            raise BadInput(f"{self.name(index)}: cannot be read ({error.strerror})") from None
