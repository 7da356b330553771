"""What becomes of a bad record of a source that is read one record at a time: stop, or set it aside and go on."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from stepcot_jax.data.grounded.grounded_image import GroundedImage
from stepcot_jax.data.records.cases import SetAside
from stepcot_jax.data.records.records import OnBadRecord
from stepcot_jax.host.errors import BadInput

Readers = int | Literal["all"]

Listing = Iterator[tuple[str, GroundedImage | BadInput]]
"""Place of each image in its list, such as "row 7", and the image, or why it is bad."""


class Sorting:
    """Sorts the records of a source into good ones and those that take no part.

    Args:
      set_aside: list to which records that take no part are added; None for a list of its own.
    """

    def __init__(self, path: Path, *, on_bad_record: OnBadRecord, set_aside: list[SetAside] | None = None) -> None:
        if on_bad_record not in ("stop", "skip"):
            raise BadInput(f"on_bad_record: {on_bad_record!r:.80} is not 'stop' or 'skip'")
        self._path = path
        self._on_bad_record = on_bad_record
        self.set_aside = [] if set_aside is None else set_aside
        self._first: dict[str, str] = {}
        self._num_good = 0

    def keep(self, name: str, *, place: str) -> bool:
        """Take a good record, unless another one has its name; return whether it was taken."""
        known = self._first.setdefault(name, place)
        if known != place:
            self.refuse(f"{place}: has the same id {name[:80]!r} as {known}; expected one record per id")
            return False
        self.count()
        return True

    def count(self) -> None:
        """Take a good record whose name is unique by construction."""
        self._num_good += 1

    def refuse(self, reason: str, *, image_path: str = "", patient_id: str = "") -> None:
        """Take a bad record; `reason` begins with its file or row."""
        if self._on_bad_record == "stop":
            raise BadInput(f"{self._path}, {reason}; on_bad_record=skip sets bad records aside")
        self.leave_out(reason, image_path=image_path, patient_id=patient_id)

    def leave_out(self, reason: str, *, image_path: str = "", patient_id: str = "") -> None:
        """Take a valid record that a rule of the reader excludes."""
        number = self._num_good + len(self.set_aside)
        self.set_aside.append(SetAside(number, image_path, f"{self._path.name}, {reason}", patient_id))

    def finish(self) -> None:
        """Check that at least one record is good."""
        if not self._num_good:
            why = f"no record is valid ({self.set_aside[0].reason})" if self.set_aside else "has no records"
            raise BadInput(f"{self._path}: {why}")
