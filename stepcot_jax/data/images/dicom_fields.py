"""Single elements of a DICOM file as plain numbers and codes; what cannot be read is named and never quoted."""

import contextlib
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from stepcot_jax.data.images.dicom_syntaxes import SYNTAXES
from stepcot_jax.host.errors import BadInput

if TYPE_CHECKING:
    from pydicom import Dataset

_CODE = re.compile(r"[A-Z0-9 _]{1,16}")


class Fields:
    """Elements of a data set by their keywords.

    Args:
      dataset: as parsed; values are converted when they are asked for.
      name: what messages call the file.
      syntax: UID of the transfer syntax.
    """

    def __init__(self, dataset: "Dataset", *, name: str, syntax: str) -> None:
        self.dataset = dataset
        self.name = name
        self.syntax = syntax

    def refuse(self, problem: str) -> BadInput:
        """The error for a problem with this file."""
        return BadInput(f"{self.name}: {problem}")

    @property
    def word(self) -> str:
        """NumPy's name for an unsigned 16-bit number in this file."""
        return "<u2" if SYNTAXES[self.syntax].little_endian else ">u2"

    @property
    def kind(self) -> str:
        """What the file is, as the standard calls it; "of an unknown kind" if its SOP class is not a standard one."""
        from pydicom.uid import UID_dictionary

        with contextlib.suppress(Exception):
            return UID_dictionary[str(self.dataset.SOPClassUID)][0]
        return "of an unknown kind"

    def has(self, keyword: str) -> bool:
        """Whether the element is there and not empty."""
        return self.value(keyword) not in (None, "", b"")

    def value(self, keyword: str) -> Any:
        """An element's value as pydicom gives it, None where there is none.

        Raises:
          BadInput: it cannot be read.
        """
        with contextlib.suppress(Exception):
            return self.dataset[keyword].value if keyword in self.dataset else None
        # Outside of an except block: pydicom's error quotes the value and would come along as the context.
        raise self.refuse(f"{keyword}: cannot be read, accepted is a value as DICOM PS3.6 has it")

    def numbers(self, keyword: str) -> tuple[float, ...]:
        """An element's values as numbers; none where it is missing or empty.

        Raises:
          BadInput: it cannot be read.
        """
        value = self.value(keyword)
        if value is None or value == "":
            return ()
        if isinstance(value, bytes):
            # The type of some elements depends on others, and is left open where those do not settle it.
            value = np.frombuffer(value[: len(value) // 2 * 2], self.word).tolist()
        several = value if isinstance(value, Sequence) and not isinstance(value, str | bytes) else (value,)
        with contextlib.suppress(Exception):
            return tuple(float(number) for number in several if number is not None and number != "")
        raise self.refuse(f"{keyword}: found no number, accepted are numbers")

    def integer(self, keyword: str, *, default: int | None = None, least: int = 0, most: int = 2**31 - 1) -> int:
        """An element's only value as an integer.

        Raises:
          BadInput: it is missing and has no default, cannot be read, is no integer or out of its range.
        """
        numbers = self.numbers(keyword)
        if not numbers and default is not None:
            return default
        if len(numbers) != 1 or not least <= numbers[0] <= most or numbers[0] != int(numbers[0]):
            found = f"{numbers[0]:g}" if len(numbers) == 1 else f"{len(numbers)} values"
            raise self.refuse(f"{keyword}: found {found}, accepted is an integer from {least} to {most}")
        return int(numbers[0])

    def choice(self, keyword: str, accepted: Sequence[str], *, default: str = "") -> str:
        """An element's value, which is one of those accepted.

        Raises:
          BadInput: it is another one; it is not quoted.
        """
        found = self.value(keyword)
        text = found.strip().upper() if isinstance(found, str) else default
        text = text or default
        if text not in accepted:
            raise self.refuse(f"{keyword}: found none of the accepted values, which are {', '.join(accepted)}")
        return text

    def code(self, keyword: str) -> str:
        """An element's value as a code string, "" where it is missing or none."""
        with contextlib.suppress(BadInput):
            value = self.value(keyword)
            if isinstance(value, str) and _CODE.fullmatch(value.strip()):
                return value.strip()
        return ""

    def item(self, keyword: str) -> "Fields | None":
        """The first item of a sequence, None where there is none.

        Raises:
          BadInput: it cannot be read.
        """
        value = self.value(keyword)
        if value is None:
            return None
        item = None
        with contextlib.suppress(Exception):
            if not len(value):
                return None
            item = value[0]
            item.get("LUTDescriptor")
        if item is None:
            raise self.refuse(f"{keyword}: cannot be read, accepted is a sequence as DICOM PS3.3 has it")
        return Fields(item, name=f"{self.name}: {keyword}", syntax=self.syntax)
