"""Compare the size that a source states for a picture, which its boxes refer to, with the picture's own."""

import dataclasses
import io
from collections.abc import Iterable
from pathlib import Path

from PIL import ExifTags, Image

from stepcot_jax.record import Record

Size = tuple[int, int]  # width and height in pixels
_SIDEWAYS = (5, 6, 7, 8)  # EXIF orientations


@dataclasses.dataclass
class StatedSizes:
    """Collects the pictures whose stated size has another shape; a proportional one is that of a larger copy."""

    field: str = "image_size"
    seen: set[int] = dataclasses.field(default_factory=set)  # numbers of the pictures
    other: dict[int, tuple[str, Size, Size, bool]] = dataclasses.field(default_factory=dict)

    def compare(self, number: int, name: str, sizes: Iterable[Size], picture: Size, source: Path | bytes) -> None:
        """Compare the stated sizes of a picture, whose file or its content is `source`; threads may call at a time."""
        self.seen.add(number)
        for stated in sizes:
            if min(stated) > 0 and not have_same_shape(stated, picture):
                is_turned = have_same_shape(stated, picture[::-1]) and _is_turned(source)
                self.other[number] = name, stated, picture, is_turned

    def note(self) -> str:
        """Return what was found; "" if every shape is the picture's."""
        if not self.other:
            return ""
        swapped = [
            turned for _, stated, picture, turned in self.other.values() if have_same_shape(stated, picture[::-1])
        ]
        name, stated, picture, _ = self.other[min(self.other)]
        fit = f"{len(swapped)} fit with sides swapped" + f", {sum(swapped)} of them before their EXIF turn" * any(
            swapped
        )
        first = f"first {name}: {stated[0]} by {stated[1]}, the picture {picture[0]} by {picture[1]}"
        number = f"{len(self.other)} of {len(self.seen)} pictures"
        return f"{self.field} has another shape than the picture in {number}, boxes are stretched: {fit} ({first})"


def list_sizes(records: Iterable[Record]) -> dict[str, tuple[Size, ...]]:
    """Return the sizes that records state for each image, in the order of their first records."""
    sizes: dict[str, dict[Size, None]] = {}
    for record in records:
        sizes.setdefault(record.image, {})[record.image_size] = None
    return {image: tuple(stated) for image, stated in sizes.items()}


def have_same_shape(first: Size, second: Size) -> bool:
    """Return whether one size is the other one scaled, rounded to whole pixels.

    >>> have_same_shape((3000, 2500), (512, 427)), have_same_shape((80, 40), (40, 80))
    (True, False)
    """
    (width, height), (larger_width, larger_height) = sorted((first, second))
    return (
        abs(larger_height * width / larger_width - height) <= 1
        or abs(larger_width * height / larger_height - width) <= 1
    )


def _is_turned(source: Path | bytes) -> bool:
    """Return whether the EXIF orientation of a PNG or JPEG turns it on its side."""
    try:
        with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=("PNG", "JPEG")) as image:
            return image.getexif().get(ExifTags.Base.Orientation) in _SIDEWAYS
    except Exception:  # Pillow's errors are of a dozen types; the note goes without the turn
        return False
