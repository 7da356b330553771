"""PadChest-GR: grounded reports as answers of the chain, and as images with boxed findings."""

import dataclasses
import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from stepcot_jax.box import Box, Corners
from stepcot_jax.data.delimited import read_age, read_columns
from stepcot_jax.data.identities import read_patient
from stepcot_jax.data.sources.findings import DIAGNOSES, NORMAL, Finding, answer_findings, answer_normal
from stepcot_jax.data.sources.intake import ImageFinder, find_file, list_named
from stepcot_jax.data.sources.listed import FRACTIONS, How, Listed, Source, refused
from stepcot_jax.data.sources.released import convert_fields, read_objects
from stepcot_jax.host.errors import BadInput
from stepcot_jax.record import Record

# The files of BIMCV PadChest-GR, grounded reports in JSON and the master table, and its labels as findings.

REPORTS = "grounded_reports*.json"
MASTER_TABLE = "master_table*.csv"
_SLACK = 1e-6
_MAX_AGE = 150
_SEXES = ("F", "M", "O")
_COLUMNS = ("StudyID", "PatientID", "PatientSex_DICOM", "PatientAge")


class GroundedFinding(msgspec.Struct, frozen=True):
    """One sentence of a report; sentences about absent findings have no boxes and often no labels."""

    sentence_en: str | None = None
    sentence_es: str | None = None
    abnormal: bool = False
    boxes: tuple[Corners, ...] | None = None
    extra_boxes: tuple[Corners, ...] | None = None
    labels: tuple[str, ...] | None = None
    locations: Any = None


class GroundedStudy(msgspec.Struct, frozen=True, rename={"study": "StudyID", "image": "ImageID"}):
    """One frontal image with its report."""

    study: str | int
    image: str
    findings: tuple[GroundedFinding, ...]


@dataclasses.dataclass(frozen=True)
class StudyFacts:
    """A study in the master table: sex "F", "M", "O" or "", age in years or None, and the number of its first row."""

    patient_id: str
    sex: str
    age: float | None
    row: int


def read_study(fields: dict[str, Any]) -> GroundedStudy:
    """Return one study of the grounded reports."""
    study = convert_fields(fields, GroundedStudy)
    if not str(study.study).strip():
        raise BadInput("StudyID: is empty; a study's identifier is required")
    if not study.findings:
        raise BadInput("findings: none; at least one is required")
    for number, finding in enumerate(study.findings):
        for name in ("boxes", "extra_boxes"):
            for position, corners in enumerate(getattr(finding, name) or ()):
                left, upper, right, lower = corners
                if not (-_SLACK <= left < right <= 1 + _SLACK and -_SLACK <= upper < lower <= 1 + _SLACK):
                    expected = "expected x0 < x1, y0 < y1 as fractions from 0 to 1"
                    raise BadInput(f"findings[{number}].{name}[{position}]: box {list(corners)}; {expected}")
    return study


def read_master_table(path: Path) -> dict[str, StudyFacts]:
    """Return patient, sex and age of each study."""
    studies: dict[str, StudyFacts] = {}
    for row, (study, patient, sex, age), _ in read_columns(path, _COLUMNS[:2], optional=_COLUMNS[2:]):
        if not study or not read_patient(patient):
            raise BadInput(f"{path}: row {row.number}: study and patient are required")
        facts = StudyFacts(patient, sex if sex in _SEXES else "", read_age(age, most=_MAX_AGE), row.number)
        known = studies.setdefault(study, facts)
        if known.patient_id != patient:
            raise BadInput(f"{path}: row {row.number}: the study has another patient than in row {known.row}")
    return studies


_LABELS: dict[str, Any] = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))

# Findings of each label in lower case; any other label has none.
FINDINGS: dict[str, tuple[Finding, ...]] = {
    **dict.fromkeys(_LABELS["increased"], (Finding(density="increased"),)),
    **dict.fromkeys(_LABELS["decreased"], (Finding(density="decreased"),)),
}
for _diagnosis, _labels in _LABELS["diagnoses"].items():
    FINDINGS |= {label: (*FINDINGS.get(label, ()), DIAGNOSES[_diagnosis]) for label in _labels}


def find_findings(labels: Iterable[str]) -> tuple[Finding, ...]:
    """Return the findings that labels stand for."""
    folded = (" ".join(label.split()).casefold() for label in labels)
    return tuple(finding for label in folded for finding in FINDINGS.get(label, ()))


ORIGIN = "PadChest-GR"
_LICENCE = "PadChest-GR: BIMCV data use agreement"
_NORMAL_LABELS = ("normal", "unchanged")
_IMAGE_FOLDERS = (
    *(".", "images", "images_grounding", "PadChest_GR", "Padchest_GR_files", "Padchest_GR_files/PadChest_GR"),
)
_LOG = logging.getLogger(__name__)


def list_padchest_gr(root: Path, how: How) -> Source:
    """List `grounded_reports*.json`, with the patients of `master_table*.csv` if there is one.

    The report joins the English sentences in order, Spanish where a sentence has no English. Boxes are fractions of the
    image's width and height: for questions one for each label, and the image is required. A rule excludes abnormal
    studies without one of the diagnoses and, with `single_label`, those with several. Without a master table each study
    counts as one patient, with a warning.
    """
    path = find_file(root, REPORTS)
    if path is None:
        raise BadInput(f"{root}: has no {REPORTS}")
    # Unpacking the released archive makes a folder named like the table in it.
    table = find_file(root, MASTER_TABLE, f"{MASTER_TABLE}/{MASTER_TABLE}")
    if table is None:
        _LOG.warning("%s: no %s: each study counts as a patient of its own", path, MASTER_TABLE)
    facts = {} if table is None else read_master_table(table)
    return Source(root, path.name, _list_studies(path, facts, how))


def _list_studies(path: Path, facts: Mapping[str, StudyFacts], how: How) -> Iterator[Listed]:
    require_images = how.require_images or not how.for_cases
    finder = ImageFinder(path.parent, folders=_IMAGE_FOLDERS, require_images=require_images)
    num_second = 0
    for location, fields in read_objects(path):
        try:
            if isinstance(fields, BadInput):
                raise fields
            study = read_study(fields)
            if facts and str(study.study) not in facts:
                raise BadInput("StudyID: the study is not in the master table")
        except BadInput as error:
            name, image = ("", "") if isinstance(fields, BadInput) else (fields.get("StudyID"), fields.get("ImageID"))
            name, image = str(name) if isinstance(name, str | int) else "", image if isinstance(image, str) else ""
            patient = facts[name].patient_id if name in facts else name
            yield refused(location, f"{location}: {error}", image=image, patient=patient)
            continue
        num_second += sum(len(finding.extra_boxes or ()) for finding in study.findings)
        record, rule = _read_study(study, facts.get(str(study.study)), how)
        provenance = {"file": path.name, "row": location.rpartition(" ")[2], "licence": _LICENCE}
        record = msgspec.structs.replace(record, provenance=provenance)
        yield list_named(location, record, finder.find, rule=rule)
    if num_second and how.for_cases:
        _LOG.warning("%s: %d boxes of a second reader are ignored", path, num_second)


def _read_study(study: GroundedStudy, known: StudyFacts | None, how: How) -> tuple[Record, str]:
    """Return a study with the name of its image, and the rule that excludes it."""
    present = [finding for finding in study.findings if finding.abnormal]
    labels = sorted({" ".join(label.split()) for finding in present for label in finding.labels or ()} - {""})
    findings = find_findings(labels)
    diagnoses = list(dict.fromkeys(finding.diagnosis for finding in findings if finding.diagnosis))
    rule = "" if not present else _find_no_use(diagnoses, single_label=how.single_label)
    if not present:
        answers, reasoning = answer_normal("PadChest-GR: no abnormal finding.")
    else:
        diagnosis, stated = diagnoses[0] if len(diagnoses) == 1 else "", f"PadChest-GR labels: {', '.join(labels)}."
        answers, reasoning = answer_findings(findings, diagnosis=diagnosis, reason=stated)
    boxes, absent = _list_boxes(study, how)
    record = Record(
        id=str(study.study),
        patient=known.patient_id if known else str(study.study),
        image=study.image,
        image_size=FRACTIONS,
        origin=ORIGIN,
        report=" ".join(filter(None, map(_sentence_of, study.findings))),
        answers=answers,
        reasoning=reasoning,
        boxes=boxes,
        absent=absent,
        sex=known.sex if known else "",
        age=known.age if known else None,
    )
    return record, rule


def _find_no_use(diagnoses: Sequence[str], *, single_label: bool) -> str:
    if not diagnoses:
        return f"the abnormal labels have none of {', '.join((NORMAL, *DIAGNOSES))}"
    if single_label and len(diagnoses) > 1:
        return f"{len(diagnoses)} diagnoses ({', '.join(sorted(diagnoses))}) instead of one (single_label)"
    return ""


def _list_boxes(study: GroundedStudy, how: How) -> tuple[tuple[Box, ...], tuple[str, ...]]:
    """Return boxes in fractions, and the labels that sentences without a box deny and no other sentence finds."""
    boxes: list[Box] = []
    denied: list[str] = []
    found = {label.casefold() for finding in study.findings if finding.abnormal for label in finding.labels or ()}
    for finding in study.findings:
        labels, extra = [" ".join(label.split()) for label in finding.labels or ()], finding.extra_boxes or ()
        corners = [*(finding.boxes or ()), *(extra if how.readers == "all" else ())]
        regions = finding.locations if isinstance(finding.locations, list) else []
        region = "" if how.for_cases else ", ".join(name for name in regions if isinstance(name, str))
        names = [", ".join(labels)] if how.for_cases else list(filter(None, labels))
        for each in corners:
            x1, y1, x2, y2 = (min(max(edge, 0.0), 1.0) for edge in each)
            boxes += [Box(name, (x1, y1, x2, y2), _sentence_of(finding), region) for name in names]
        if not finding.abnormal and not corners and not extra:
            denied += [label for label in labels if label and label.casefold() not in _NORMAL_LABELS]
    found |= {box.label.casefold() for box in boxes}
    return tuple(boxes), tuple(dict.fromkeys(label for label in denied if label.casefold() not in found))


def _sentence_of(finding: GroundedFinding) -> str:
    """Return a finding's English sentence, else the Spanish one, else ""."""
    return (finding.sentence_en or "").strip() or (finding.sentence_es or "").strip()
