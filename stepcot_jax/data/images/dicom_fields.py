"""Elements of a DICOM file as plain numbers and codes, and the accepted transfer syntaxes.

Messages name an element that cannot be read and never quote its value.
"""

import contextlib
import dataclasses
import io
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.text import install_extra
from stepcot_jax.host.untrusted import exceeds, read_limits

if TYPE_CHECKING:
    from pydicom import Dataset
    from pydicom.tag import BaseTag

# pydicom turns an element or a sequence's item, which may have 8 bytes in the file, into objects of hundreds of bytes,
# and parses sequences of undefined length even if they are not asked for.

PIXELS = 0x7FE00010  # tag of PixelData
_READS_PER_ELEMENT = 3  # tag with type, length, value; an item is one read
_UNDEFINED = 0xFFFFFFFF
_PACKED = (None, "OB", "OW", "UN")
_ITEM_TAGS = (b"\xfe\xff\x00\xe0", b"\xff\xfe\xe0\x00")
_Parsed = TypeVar("_Parsed")


class HeaderFile(io.BytesIO):
    """Counts the header's elements and bytes that pydicom reads, and stops at `Limits.elements` and `header_bytes`.

    Pixels do not count: `watch` recognises them. Skipped values are not read, and do not count either.
    """

    def __init__(self, content: bytes, *, name: str) -> None:
        super().__init__(content)
        self._name, self._size, limits = name, len(content), read_limits()
        self._reads_left = _READS_PER_ELEMENT * limits.elements
        self._bytes_left = limits.header_bytes
        self._is_packed = False
        self.pixels_end, self.is_followed = len(content), True  # by a known element, or by nothing
        self._refusal: BadInput | None = None

    def read(self, size: int | None = -1, /) -> bytes:
        """Return the next bytes."""
        self._reads_left -= 1
        if self._reads_left < 0:
            self._refusal = exceeds(self._name, "its header has too many elements and items", "elements")
        if not self._is_packed:
            left = max(0, self._size - self.tell())
            self._bytes_left -= left if size is None or size < 0 else min(size, left)
            if self._bytes_left < 0:
                self._refusal = exceeds(self._name, "the elements of its header take too many bytes", "header_bytes")
        if self._refusal is not None:
            raise self._refusal
        return super().read(size)

    def watch(self, tag: int, kind: str | None, length: int) -> bool:
        """Note the element whose value comes next; as pydicom's `stop_when`, stop at none behind the pixels."""
        is_one_value = length != _UNDEFINED or (tag == PIXELS and kind != "UN")  # else pydicom looks for items
        self._is_packed = tag == PIXELS and kind in _PACKED and is_one_value
        if tag == PIXELS and length != _UNDEFINED:
            self.pixels_end = self.tell() + length
        self.is_followed = self.tell() <= self.pixels_end or tag > PIXELS or bool(_type_of(tag))
        return not self.is_followed

    def parse(self, parse: Callable[[], _Parsed], otherwise: BadInput) -> _Parsed:
        """Return what `parse` returns."""
        with contextlib.suppress(Exception):
            return parse()
        # Outside of an except block, as in `dicom_fields.attempt`.
        raise self._refusal or otherwise


def count_items(dataset: "Dataset", tag: "BaseTag") -> int:
    """Return an upper bound on the items in a value that pydicom has not parsed yet, without parsing it."""
    value = getattr(dataset.get_item(tag), "value", None)
    return max(map(value.count, _ITEM_TAGS)) if isinstance(value, bytes) else 0


def _type_of(tag: "BaseTag") -> str:
    from pydicom.datadict import dictionary_has_tag, dictionary_VR

    return dictionary_VR(tag) if dictionary_has_tag(tag) else ""


EXTRA = install_extra("dicom")
_Read = TypeVar("_Read")


@dataclasses.dataclass(frozen=True)
class Syntax:
    """A transfer syntax: how pixels are packed."""

    name: str
    decoders: tuple[str, ...] = ()  # of pydicom, the preferred first; not GDCM's, which ends the process on bad input
    install: str = EXTRA  # command that installs a decoder


RLE = "1.2.840.10008.1.2.5"
_LIBJPEG = "pip install pylibjpeg-libjpeg (GPL)"

# Accepted, by UID. Deflated is left out: it inflates to any size before its header can be read.
SYNTAXES: dict[str, Syntax] = {
    "1.2.840.10008.1.2": Syntax("Implicit VR Little Endian"),
    "1.2.840.10008.1.2.1": Syntax("Explicit VR Little Endian"),
    "1.2.840.10008.1.2.2": Syntax("Explicit VR Big Endian"),
    RLE: Syntax("RLE Lossless"),
    "1.2.840.10008.1.2.4.50": Syntax("JPEG Baseline", ("pillow", "pylibjpeg")),
    "1.2.840.10008.1.2.4.51": Syntax("JPEG Extended", ("pillow", "pylibjpeg")),
    "1.2.840.10008.1.2.4.57": Syntax("JPEG Lossless", ("pylibjpeg",), _LIBJPEG),
    "1.2.840.10008.1.2.4.70": Syntax("JPEG Lossless SV1", ("pylibjpeg",), _LIBJPEG),
    "1.2.840.10008.1.2.4.80": Syntax("JPEG-LS", ("pyjpegls", "pylibjpeg")),
    "1.2.840.10008.1.2.4.81": Syntax("JPEG-LS Near-Lossless", ("pyjpegls", "pylibjpeg")),
    "1.2.840.10008.1.2.4.90": Syntax("JPEG 2000 Lossless", ("pylibjpeg", "pillow")),
    "1.2.840.10008.1.2.4.91": Syntax("JPEG 2000", ("pylibjpeg", "pillow")),
    "1.2.840.10008.1.2.4.201": Syntax("High-Throughput JPEG 2000 Lossless", ("pylibjpeg",)),
    "1.2.840.10008.1.2.4.203": Syntax("High-Throughput JPEG 2000", ("pylibjpeg",)),
}


def attempt(read: Callable[[], _Read], otherwise: BadInput) -> _Read:
    """Return what `read` returns; where it raises, raise `otherwise` without the original error and its text."""
    with contextlib.suppress(Exception):
        return read()
    # Outside of an except block: the original error quotes values and would come along as the context.
    raise otherwise


class Fields:
    """Elements of a data set by their keywords."""

    def __init__(self, dataset: "Dataset", *, name: str, syntax: str) -> None:
        self.dataset = dataset
        self.name = name
        self.syntax = syntax

    def refuse(self, problem: str) -> BadInput:
        """Return the error for a problem with this file."""
        return BadInput(f"{self.name}: {problem}")

    @property
    def word(self) -> str:
        """NumPy's name for an unsigned 16-bit number in this file."""
        from pydicom.uid import UID

        return "<u2" if UID(self.syntax).is_little_endian else ">u2"

    @property
    def kind(self) -> str:
        """Name of the file's SOP class; "of an unknown kind" if the class is not a standard one."""
        from pydicom.uid import UID_dictionary

        with contextlib.suppress(Exception):
            return UID_dictionary[str(self.dataset.SOPClassUID)][0]
        return "of an unknown kind"

    def value(self, keyword: str) -> Any:
        """Return an element's value as pydicom gives it, None where it is missing; `BadInput` if unreadable."""
        otherwise = self.refuse(f"{keyword}: cannot be read; expected a value as in DICOM PS3.6")
        return attempt(lambda: self.dataset[keyword].value if keyword in self.dataset else None, otherwise)

    def numbers(self, keyword: str) -> tuple[float, ...]:
        """Return an element's values as numbers, () where it is missing or empty; `BadInput` if unreadable."""
        value = self.value(keyword)
        if value is None or value == "":
            return ()
        if isinstance(value, bytes):
            # The type of some elements depends on others, and pydicom leaves it open where those are missing.
            value = np.frombuffer(value[: len(value) // 2 * 2], self.word).tolist()
        several = value if isinstance(value, Sequence) and not isinstance(value, str | bytes) else (value,)
        otherwise = self.refuse(f"{keyword}: is not a number")
        return attempt(
            lambda: tuple(float(number) for number in several if number is not None and number != ""), otherwise
        )

    def integer(self, keyword: str, *, default: int | None = None, least: int = 0, most: int = 2**31 - 1) -> int:
        """Return an element's only value as an integer."""
        numbers = self.numbers(keyword)
        if not numbers and default is not None:
            return default
        if len(numbers) != 1 or not least <= numbers[0] <= most or numbers[0] != int(numbers[0]):
            shown = f"{numbers[0]:g}" if len(numbers) == 1 else f"{len(numbers)} values"
            raise self.refuse(f"{keyword}: {shown}; expected one integer from {least} to {most}")
        return int(numbers[0])

    def choice(self, keyword: str, accepted: Sequence[str], *, default: str = "") -> str:
        """Return an element's value; `BadInput`, without quoting it, if it is not one of `accepted`."""
        value = self.value(keyword)
        text = (value.strip().upper() if isinstance(value, str) else "") or default
        if text not in accepted:
            raise self.refuse(f"{keyword}: is not one of {', '.join(accepted)}")
        return text

    def item(self, keyword: str) -> "Fields | None":
        """Return the first item of a sequence, None where there is none; `BadInput` if unreadable."""
        return next(self.items(keyword), None)

    def items(self, keyword: str) -> "Iterator[Fields]":
        """Yield the items of a sequence; `BadInput` if one is unreadable."""
        from pydicom.datadict import tag_for_keyword
        from pydicom.tag import Tag

        if count_items(self.dataset, Tag(tag_for_keyword(keyword) or 0)) > read_limits().elements:
            raise exceeds(self.name, f"{keyword} has too many items", "elements")
        items = iter(self.value(keyword) or ())

        def parse_next() -> "Dataset | None":
            item = next(items, None)
            if item is not None:
                item.get("LUTDescriptor")
            return item

        otherwise = self.refuse(f"{keyword}: cannot be read; expected a sequence as in DICOM PS3.3")
        while (item := attempt(parse_next, otherwise)) is not None:
            yield Fields(item, name=f"{self.name}: {keyword}", syntax=self.syntax)
