"""The files of BIMCV PadChest-GR, grounded reports in JSON and the master table, and its labels as findings.

`grounded_reports_20240819.json` is an array of studies: StudyID, ImageID, PreviousStudyID, PreviousImageID and
findings, each with sentence_en, sentence_es, abnormal, boxes and extra_boxes ([x0, y0, x1, y1] as fractions of
the image's width and height, from the first reader and a second one), labels, locations and progression.
`master_table.csv` has a row for each study and label. de Castro et al., "PadChest-GR", NEJM AI 2025 (arXiv 2411.05085).

PadChest's labels form a tree (Bustos et al., Medical Image Analysis 2020). A label stands for the diagnosis that it or
a label above it names: "laminar atelectasis" is below "atelectasis", "alveolar pattern" and "consolidation" are below
"infiltrates". Masses outside of the lung, calcified granulomas and pseudonodules (nipple shadows) stand for none.
"""

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from stepcot_jax.data.sources.delimited import fold_column, read_age, read_table
from stepcot_jax.data.sources.findings import DIAGNOSES, Finding
from stepcot_jax.host.errors import BadInput

REPORTS = "grounded_reports*.json"
MASTER_TABLE = "master_table*.csv"

_SLACK = 1e-6
_MAX_AGE = 150
_SEXES = ("F", "M", "O")
_COLUMNS = ("StudyID", "PatientID", "PatientSex_DICOM", "PatientAge")

Corners = tuple[float, float, float, float]


class GroundedFinding(msgspec.Struct, frozen=True):
    """One sentence of a report; sentences about absent findings have no boxes and often no labels."""

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


_DECODER = msgspec.json.Decoder(GroundedStudy)


@dataclasses.dataclass(frozen=True)
class StudyFacts:
    """A study in the master table: sex "F", "M", "O" or "", age in years or None, and the number of its first row."""

    patient_id: str
    sex: str
    age: float | None
    row: int


def decode_study(raw: bytes, *, index: int) -> GroundedStudy:
    """Decode one study of the grounded reports."""
    try:
        study = _DECODER.decode(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        here, message = f"`$[{index}]", str(error)
        raise BadInput(message.replace("`$", here) if "`$" in message else f"{message} - at {here}`") from error
    if not study.findings:
        raise BadInput(f"has no findings - at `$[{index}].findings`")
    for number, finding in enumerate(study.findings):
        for name in ("boxes", "extra_boxes"):
            for place, corners in enumerate(getattr(finding, name) or ()):
                left, upper, right, lower = corners
                if not (-_SLACK <= left < right <= 1 + _SLACK and -_SLACK <= upper < lower <= 1 + _SLACK):
                    where = f"`$[{index}].findings[{number}].{name}[{place}]`"
                    expected = "expected x0 < x1, y0 < y1 as fractions from 0 to 1"
                    raise BadInput(f"box {list(corners)}: {expected} - at {where}")
    return study


def identify(raw: bytes) -> tuple[str, str]:
    """Return study and image of a bad record, each "" if it cannot be read."""
    try:
        found = msgspec.json.decode(raw, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        return "", ""
    study, image = found.get("StudyID"), found.get("ImageID")
    return str(study) if isinstance(study, str | int) else "", image if isinstance(image, str) else ""


def read_master_table(path: Path) -> dict[str, StudyFacts]:
    """Return patient, sex and age of each study."""
    header, rows = read_table(path, known_columns={fold_column(name) for name in _COLUMNS})
    folded = [fold_column(name) for name in header]
    missing = [name for name in _COLUMNS[:2] if fold_column(name) not in folded]
    if missing:
        shown = [name[:40] for name in header[:30]]
        raise BadInput(f"{path}: columns {shown} lack {', '.join(missing)}")
    studies: dict[str, StudyFacts] = {}
    for row in rows:
        named = dict(zip(folded, row.cells, strict=False))
        study, patient, sex, age = (named.get(fold_column(name), "") for name in _COLUMNS)
        if not study or not patient:
            raise BadInput(f"{path}: row {row.number}: study and patient are required")
        facts = StudyFacts(patient, sex if sex in _SEXES else "", read_age(age, most=_MAX_AGE), row.number)
        known = studies.setdefault(study, facts)
        if known.patient_id != patient:
            raise BadInput(f"{path}: row {row.number}: the study has another patient than in row {known.row}")
    return studies


_LABELS_OF_DIAGNOSES = {
    "Nodule": ("nodule", "multiple nodules"),
    "Atelectasis": (
        *("atelectasis", "atelectasis basal", "laminar atelectasis", "lobar atelectasis", "round atelectasis"),
        *("segmental atelectasis", "total atelectasis"),
    ),
    "Infiltration": (
        *("infiltrates", "air bronchogram", "alveolar pattern", "consolidation", "ground glass pattern"),
        *("interstitial pattern", "miliary opacities", "reticular interstitial pattern"),
        *("reticulonodular interstitial pattern",),
    ),
    "Effusion": (
        *("pleural effusion", "empyema", "hemothorax", "hydropneumothorax", "loculated fissural effusion"),
        *("loculated pleural effusion",),
    ),
    "Pneumonia": ("pneumonia", "atypical pneumonia"),
    "Cardiomegaly": ("cardiomegaly",),
    "Mass": ("mass", "pulmonary mass"),
    "Pneumothorax": ("pneumothorax", "hydropneumothorax"),
}

_DENSER = (
    *("abscess", "calcified granuloma", "fibrotic band", "granuloma", "increased density", "kerley lines"),
    *("lepidic adenocarcinoma", "lung metastasis", "lymphangitis carcinomatosa", "post radiotherapy changes"),
    *("pulmonary edema", "pulmonary fibrosis", "tuberculosis", "tuberculosis sequelae"),
)
_MORE_TRANSPARENT = (
    *("air trapping", "bullas", "copd signs", "emphysema", "hyperinflated lung", "lung vascular paucity"),
)


# Findings of each label in lower case; any other label has none.
FINDINGS: dict[str, tuple[Finding, ...]] = {
    **dict.fromkeys(_DENSER, (Finding(density="increased"),)),
    **dict.fromkeys(_MORE_TRANSPARENT, (Finding(density="decreased"),)),
}
for _diagnosis, _labels in _LABELS_OF_DIAGNOSES.items():
    FINDINGS |= {label: (*FINDINGS.get(label, ()), DIAGNOSES[_diagnosis]) for label in _labels}


def find_findings(labels: Iterable[str]) -> tuple[Finding, ...]:
    """Return the findings that labels stand for.

    >>> [finding.diagnosis for finding in find_findings([" Laminar atelectasis", "scoliosis"])]
    ['Atelectasis']
    """
    folded = (" ".join(label.split()).casefold() for label in labels)
    return tuple(finding for label in folded for finding in FINDINGS.get(label, ()))
