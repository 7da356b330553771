"""Elements of a DICOM file as plain numbers and codes, and the accepted transfer syntaxes.

Messages name an element that cannot be read and never quote its value.
"""

import contextlib
import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from stepcot_jax.data.images.dicom_bounds import count_items
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.text import install_extra
from stepcot_jax.host.untrusted import exceeds, read_limits

if TYPE_CHECKING:
    from pydicom import Dataset

EXTRA = install_extra("dicom")

_CODE = re.compile(r"[A-Z0-9 _]{1,16}")
_Read = TypeVar("_Read")


@dataclasses.dataclass(frozen=True)
class Syntax:
    """A transfer syntax: how pixels are packed.

    Attributes:
      decoders: pydicom's decoder plugins, the preferred first; none for uncompressed pixels and RLE. GDCM's is left
        out: it ends the whole process on unexpected input.
      install: command that installs a decoder.
    """

    name: str
    decoders: tuple[str, ...] = ()
    install: str = EXTRA


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
        return attempt(lambda: tuple(float(each) for each in several if each is not None and each != ""), otherwise)

    def integer(self, keyword: str, *, default: int | None = None, least: int = 0, most: int = 2**31 - 1) -> int:
        """Return an element's only value as an integer."""
        numbers = self.numbers(keyword)
        if not numbers and default is not None:
            return default
        if len(numbers) != 1 or not least <= numbers[0] <= most or numbers[0] != int(numbers[0]):
            found = f"{numbers[0]:g}" if len(numbers) == 1 else f"{len(numbers)} values"
            raise self.refuse(f"{keyword}: {found}; expected one integer from {least} to {most}")
        return int(numbers[0])

    def choice(self, keyword: str, accepted: Sequence[str], *, default: str = "") -> str:
        """Return an element's value; `BadInput`, without quoting it, if it is not one of `accepted`."""
        found = self.value(keyword)
        text = (found.strip().upper() if isinstance(found, str) else "") or default
        if text not in accepted:
            raise self.refuse(f"{keyword}: is not one of {', '.join(accepted)}")
        return text

    def code(self, keyword: str) -> str:
        """Return an element's value if it is a code string, else ""."""
        with contextlib.suppress(BadInput):
            value = self.value(keyword)
            if isinstance(value, str) and _CODE.fullmatch(value.strip()):
                return value.strip()
        return ""

    def item(self, keyword: str) -> "Fields | None":
        """Return the first item of a sequence, None where there is none; `BadInput` if unreadable."""
        from pydicom.datadict import tag_for_keyword
        from pydicom.tag import Tag

        if count_items(self.dataset, Tag(tag_for_keyword(keyword) or 0)) > read_limits().elements:
            raise exceeds(self.name, f"{keyword} has too many items", "elements")
        value = self.value(keyword)

        def parse_first() -> "Dataset | None":
            item = next(iter(value or ()), None)
            if item is not None:
                item.get("LUTDescriptor")
            return item

        otherwise = self.refuse(f"{keyword}: cannot be read; expected a sequence as in DICOM PS3.3")
        first = attempt(parse_first, otherwise)
        return None if first is None else Fields(first, name=f"{self.name}: {keyword}", syntax=self.syntax)
