"""The files of BIMCV PadChest-GR as they are documented: grounded reports in JSON, and the master table.

`grounded_reports_20240819.json` is an array of studies: StudyID, ImageID, PreviousStudyID, PreviousImageID and
findings, each with sentence_en, sentence_es, abnormal, boxes and extra_boxes ([x0, y0, x1, y1] as fractions of
the image's width and height, from the first reader and a second one), labels, locations and progression.
`master_table.csv` has a row a study and label. de Castro et al., "PadChest-GR", NEJM AI 2025
(arXiv 2411.05085).
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import msgspec

from stepcot_jax.data.sources.delimited import fold_column, read_table
from stepcot_jax.host.errors import BadInput

REPORTS = "grounded_reports*.json"
MASTER_TABLE = "master_table*.csv"

_SLACK = 1e-6
_MAX_AGE = 150
_SEXES = ("F", "M", "O")
_COLUMNS = ("StudyID", "PatientID", "PatientSex_DICOM", "PatientAge", "split")

Corners = tuple[float, float, float, float]


class GroundedFinding(msgspec.Struct, frozen=True):
    """One sentence of a report; those of what is absent have no boxes and often no labels."""

    sentence_en: str | None = None
    sentence_es: str | None = None
    abnormal: bool = False
    boxes: tuple[Corners, ...] | None = None
    extra_boxes: tuple[Corners, ...] | None = None
    labels: tuple[str, ...] | None = None


class GroundedStudy(msgspec.Struct, frozen=True, rename={"study": "StudyID", "image": "ImageID"}):
    """One frontal image with its report."""

    study: str | int
    image: str
    findings: tuple[GroundedFinding, ...]


class _Identity(msgspec.Struct, rename={"study": "StudyID", "image": "ImageID"}):
    study: object = None
    image: object = None


_DECODER = msgspec.json.Decoder(GroundedStudy)
_IDENTITY_DECODER = msgspec.json.Decoder(_Identity)


@dataclasses.dataclass(frozen=True)
class StudyFacts:
    """What the master table says of a study.

    Attributes:
      patient_id: as in the table.
      sex: "F", "M", "O" or "".
      age: in years; None where unknown or impossible.
      split: "train", "validation" or "test" of the release, which are disjoint by patient; "" where unknown.
      row: number of the study's first row.
    """

    patient_id: str
    sex: str
    age: float | None
    split: str
    row: int


def decode_study(raw: bytes, *, index: int) -> GroundedStudy:
    """One study of the grounded reports.

    Raises:
      BadInput: a field is missing or of another type, or a box is none; the message ends with the JSON path.
    """
    try:
        study = _DECODER.decode(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        here, message = f"`$[{index}]", str(error)
        raise BadInput(message.replace("`$", here) if "`$" in message else f"{message} - at {here}`") from error
    if not study.findings:
        raise BadInput(f"found no findings, accepted is one or more - at `$[{index}].findings`")
    for number, finding in enumerate(study.findings):
        for name in ("boxes", "extra_boxes"):
            for place, corners in enumerate(getattr(finding, name) or ()):
                if not _is_box(corners):
                    where = f"`$[{index}].findings[{number}].{name}[{place}]`"
                    accepted = "accepted are x0 < x1, y0 < y1 as fractions from 0 to 1"
                    raise BadInput(f"found box {list(corners)}, {accepted} - at {where}")
    return study


def identify(raw: bytes) -> tuple[str, str]:
    """Study and image of a record that may be bad otherwise, each "" where it cannot be read."""
    try:
        found = _IDENTITY_DECODER.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return "", ""
    study = str(found.study) if isinstance(found.study, str | int) else ""
    return study, found.image if isinstance(found.image, str) else ""


def read_master_table(path: Path) -> dict[str, StudyFacts]:
    """Patient, sex, age and split of each study.

    Raises:
      BadInput: the file is no table, a column is missing, or two rows of a study name different patients.
    """
    header, rows = read_table(path, known_columns={fold_column(name) for name in _COLUMNS})
    folded = [fold_column(name) for name in header]
    missing = [name for name in _COLUMNS[:2] if fold_column(name) not in folded]
    if missing:
        shown = [name[:40] for name in header[:30]]
        raise BadInput(f"{path}: found columns {shown} without {', '.join(missing)}, accepted is a table with them")
    places = [folded.index(fold_column(name)) if fold_column(name) in folded else None for name in _COLUMNS]
    studies: dict[str, StudyFacts] = {}
    for row in rows:
        study, patient, sex, age, split = (_cell(row.cells, place) for place in places)
        if not study or not patient:
            raise BadInput(f"{path}: row {row.number}: found no study or no patient, accepted are both")
        facts = StudyFacts(patient, sex if sex in _SEXES else "", _read_age(age), split, row.number)
        known = studies.setdefault(study, facts)
        if known.patient_id != patient:
            raise BadInput(f"{path}: row {row.number}: found another patient than row {known.row} has for the study")
    return studies


def _is_box(corners: Corners) -> bool:
    left, upper, right, lower = corners
    return -_SLACK <= left < right <= 1 + _SLACK and -_SLACK <= upper < lower <= 1 + _SLACK


def _cell(cells: Sequence[str], place: int | None) -> str:
    return cells[place] if place is not None and place < len(cells) else ""


def _read_age(written: str) -> float | None:
    try:
        age = float(written)
    except ValueError:
        return None
    return age if 0 <= age <= _MAX_AGE else None
