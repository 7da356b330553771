"""Compare the size that a source states for a picture, which its boxes refer to, with the picture's own."""

import io
import logging
from collections.abc import Iterable
from pathlib import Path

from PIL import ExifTags, Image

from stepcot_jax.host.untrusted import open_untrusted
from stepcot_jax.record import Record

_LOG = logging.getLogger(__name__)
Size = tuple[int, int]  # width and height in pixels
_SIDEWAYS = (5, 6, 7, 8)  # EXIF orientations


class StatedSizes:
    """Collects the pictures whose stated size has another shape; a proportional one is that of a larger copy."""

    def __init__(self, field: str = "image_size") -> None:
        self.field, self.seen = field, set[int]()
        self.other = dict[int, tuple[str, Size, Size, bool]]()

    def compare(self, number: int, name: str, sizes: Iterable[Size], picture: Size, source: Path | bytes) -> None:
        """Compare the stated sizes of a picture, whose file or its content is `source`; threads may call at a time."""
        self.seen.add(number)
        for stated in sizes:
            if min(stated) > 0 and not have_same_shape(stated, picture):
                is_turned = have_same_shape(stated, picture[::-1]) and _is_turned(source)
                self.other[number] = name, stated, picture, is_turned

    def list_notes(self) -> list[str]:
        """Return what was found, in at most one sentence."""
        if not self.other:
            return []
        turned = [
            is_turned for _, stated, size, is_turned in self.other.values() if have_same_shape(stated, size[::-1])
        ]
        name, (width, height), size, _ = self.other[min(self.other)]
        fit = f"{len(turned)} fit with sides swapped" + f", {sum(turned)} of them before their EXIF turn" * any(turned)
        first = f"first {name}: {width} by {height}, the picture {size[0]} by {size[1]}"
        number = f"{len(self.other)} of {len(self.seen)} pictures"
        return [f"{self.field} has another shape than the picture in {number}, boxes are stretched: {fit} ({first})"]

    def warn(self, where: Path) -> None:
        """Log what was found."""
        for note in self.list_notes():
            _LOG.warning("%s: %s", where, note)


def list_sizes(records: Iterable[Record]) -> dict[str, tuple[Size, ...]]:
    """Return the sizes that records state for each image, in the order of their first records."""
    sizes: dict[str, tuple[Size, ...]] = {}
    for record in records:
        sizes[record.image] = tuple(dict.fromkeys((*sizes.get(record.image, ()), record.image_size)))
    return sizes


def have_same_shape(first: Size, second: Size) -> bool:
    """Return whether one size is the other one scaled, rounded to whole pixels.

    >>> have_same_shape((3000, 2500), (512, 427)), have_same_shape((80, 40), (40, 80))
    (True, False)
    """
    (width, height), (wider, higher) = sorted((first, second))
    return abs(higher * width / wider - height) <= 1 or abs(wider * height / higher - width) <= 1


def _is_turned(source: Path | bytes) -> bool:
    """Return whether the EXIF orientation of a PNG or JPEG turns it on its side."""
    try:
        opened = io.BytesIO(source) if isinstance(source, bytes) else open_untrusted(source, accepted="an image")
        with opened as file, Image.open(file, formats=("PNG", "JPEG")) as image:
            return image.getexif().get(ExifTags.Base.Orientation) in _SIDEWAYS
    except Exception:  # Pillow's errors are of a dozen types; the note goes without the turn
        return False
