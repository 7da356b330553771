"""Collect the records of a source: cases, bad records, and records that a rule of the reader excludes."""

from pathlib import Path

from stepcot_jax.chain import Chain
from stepcot_jax.data.records.cases import Case, CaseTable
from stepcot_jax.data.records.records import Collection, OnBadRecord, SetAside, describe_bad_records
from stepcot_jax.host.errors import BadInput


class Intake:
    """Takes every record of a source in order and numbers them from 0.

    Args:
      on_bad_record: "stop" raises in `finish` if any record is bad, "skip" sets bad records aside.
    """

    def __init__(self, root: Path, *, file: str, layout: str, on_bad_record: OnBadRecord) -> None:
        self._root = root
        self._file = file
        self._layout = layout
        self._on_bad_record = on_bad_record
        self._cases: list[Case] = []
        self._bad: list[SetAside] = []
        self._left_out: list[SetAside] = []
        self._first: dict[str, str] = {}

    def keep(self, case: Case, *, real_path: str, place: str) -> None:
        """Add a case; it is a bad record if another case has its image."""
        known = self._first.setdefault(real_path, place)
        if known != place:
            reason = f"{place}: has the same image as {known}; expected one record per image"
            self.refuse(reason, image_path=case.image_path, patient_id=case.patient_id)
        else:
            self._cases.append(case)

    def refuse(self, reason: str, *, image_path: str = "", patient_id: str = "") -> None:
        """Add a bad record."""
        self._bad.append(SetAside(self._number(), image_path, reason, patient_id))

    def leave_out(self, reason: str, *, image_path: str, patient_id: str) -> None:
        """Add a valid record that a rule of the reader excludes."""
        self._left_out.append(SetAside(self._number(), image_path, reason, patient_id))

    def finish(self, chain: Chain) -> Collection:
        """Return all records as a collection."""
        path = self._root / self._file
        if self._bad and self._on_bad_record == "stop":
            raise BadInput(describe_bad_records(path, self._bad, num_good=self._number() - len(self._bad)))
        set_aside = sorted([*self._bad, *self._left_out], key=lambda aside: aside.record)
        if not self._cases:
            if not set_aside:
                raise BadInput(f"{path}: has no records")
            raise BadInput(describe_bad_records(path, set_aside, num_good=0))
        return Collection(self._root, chain, CaseTable(self._cases), tuple(set_aside), self._layout, self._file)

    def _number(self) -> int:
        return len(self._cases) + len(self._bad) + len(self._left_out)
