"""PadChest-GR: grounded reports as answers of the chain, and as images with boxed findings."""

import dataclasses
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from stepcot_jax.box import Box, Corners
from stepcot_jax.chain import DEFAULT_CHAIN
from stepcot_jax.data.identities import read_patient
from stepcot_jax.data.records.json_arrays import read_raw_records
from stepcot_jax.data.records.records import Collection, OnBadRecord
from stepcot_jax.data.sources.delimited import fold_column, read_age, read_table
from stepcot_jax.data.sources.findings import DIAGNOSES, NORMAL, Finding, answer_findings, answer_normal
from stepcot_jax.data.sources.intake import ImageFinder, Intake, Listing, Readers, find_file, read_image_size
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
            for position, corners in enumerate(getattr(finding, name) or ()):
                left, upper, right, lower = corners
                if not (-_SLACK <= left < right <= 1 + _SLACK and -_SLACK <= upper < lower <= 1 + _SLACK):
                    where = f"`$[{index}].findings[{number}].{name}[{position}]`"
                    expected = "expected x0 < x1, y0 < y1 as fractions from 0 to 1"
                    raise BadInput(f"box {list(corners)}: {expected} - at {where}")
    return study


def identify(raw: bytes) -> tuple[str, str]:
    """Return study and image of a bad record, each "" if it cannot be read."""
    try:
        fields = msgspec.json.decode(raw, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        return "", ""
    study, image = fields.get("StudyID"), fields.get("ImageID")
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
IMAGE_FOLDERS = (
    *(".", "images", "images_grounding", "PadChest_GR", "Padchest_GR_files", "Padchest_GR_files/PadChest_GR"),
)

_LOG = logging.getLogger(__name__)


def read_padchest_gr(
    root: Path, *, on_bad_record: OnBadRecord = "stop", require_images: bool = True, single_label: bool = True
) -> Collection:
    """Read `grounded_reports*.json`, and the patients from `master_table*.csv` if there is one.

    The report joins the English sentences in order, Spanish where a sentence has no English. Boxes are fractions of the
    image's width and height: a case without its file has no boxes, with a warning. Abnormal studies without one of the
    diagnoses and those that `single_label` excludes are set aside for any `on_bad_record`. Without a master table each
    study counts as one patient, with a warning.
    """
    root = Path(root)
    path = find_file(root, REPORTS)
    if path is None:
        raise BadInput(f"{root}: has no {REPORTS}")
    reader = _StudyReader(
        finder=ImageFinder(root, folders=IMAGE_FOLDERS, require_images=require_images),
        facts=read_facts(root, path=path),
        single_label=single_label,
        intake=Intake(root, file=path.name, layout="padchest_gr", on_bad_record=on_bad_record),
    )
    for index, raw in enumerate(read_raw_records(path)):
        try:
            reader.read(decode_study(raw, index=index), index=index)
        except BadInput as error:
            study, image = identify(raw)
            reader.intake.refuse(str(error), image_path=image, patient_id=reader.find_patient(study))
    collection = reader.intake.finish(DEFAULT_CHAIN)
    boxless = "%s: %d studies with boxes have no image file: their boxes are ignored"
    second = "%s: %d boxes of a second reader are ignored"
    for message, number in ((boxless, reader.num_boxless), (second, reader.num_second)):
        if number:
            _LOG.warning(message, path, number)
    return collection


def read_facts(root: Path, *, path: Path) -> Mapping[str, StudyFacts]:
    """Return the facts of each study in the master table; without it none, with a warning that names `path`."""
    # Unpacking the released archive makes a folder named like the table in it.
    table = find_file(root, MASTER_TABLE, f"{MASTER_TABLE}/{MASTER_TABLE}")
    if table is not None:
        return read_master_table(table)
    _LOG.warning("%s: no %s: each study counts as a patient of its own", path, MASTER_TABLE)
    return {}


@dataclasses.dataclass
class _StudyReader:
    """Reads single studies and counts for the warnings at the end."""

    finder: ImageFinder
    facts: Mapping[str, StudyFacts]
    single_label: bool
    intake: Intake
    num_boxless: int = 0
    num_second: int = 0

    def find_patient(self, study: str) -> str:
        return self.facts[study].patient_id if study in self.facts else study

    def read(self, study: GroundedStudy, *, index: int) -> None:
        study_id = str(study.study)
        if not study_id.strip():
            raise BadInput(f"the study's identifier is empty - at `$[{index}].StudyID`")
        if self.facts and study_id not in self.facts:
            raise BadInput(f"the study is not in the master table - at `$[{index}].StudyID`")
        try:
            image_path, real_path = self.finder.find(study.image)
            boxed = any(finding.boxes or finding.extra_boxes for finding in study.findings)
            size = read_image_size(Path(real_path)) if boxed and Path(real_path).is_file() else None
        except BadInput as error:
            raise BadInput(f"{error} - at `$[{index}].ImageID`") from error
        patient_id = self.find_patient(study_id)
        present = (finding.labels or () for finding in study.findings if finding.abnormal)
        labels = sorted({" ".join(label.split()) for names in present for label in names} - {""})
        findings = find_findings(labels)
        diagnoses = list(dict.fromkeys(finding.diagnosis for finding in findings if finding.diagnosis))
        if not any(finding.abnormal for finding in study.findings):
            answers, reasoning = answer_normal("PadChest-GR: no abnormal finding.")
        elif reason := self._find_no_use(diagnoses):
            where = f"at `$[{index}].findings`"
            self.intake.leave_out(f"{reason} - {where}", image_path=image_path, patient_id=patient_id)
            return
        else:
            stated = f"PadChest-GR labels: {', '.join(labels)}."
            answers, reasoning = answer_findings(
                findings, diagnosis=diagnoses[0] if len(diagnoses) == 1 else "", reason=stated
            )
        known = self.facts.get(study_id)
        case = Record(
            patient=patient_id,
            image=image_path,
            origin=ORIGIN,
            report=" ".join(filter(None, map(sentence_of, study.findings))),
            answers=answers,
            reasoning=reasoning,
            boxes=self._boxes(study, size=size),
            sex=known.sex if known else "",
            age=known.age if known else None,
        )
        self.intake.keep(case, real_path=real_path, location=f"record {index}")

    def _find_no_use(self, diagnoses: Sequence[str]) -> str:
        if not diagnoses:
            return f"the abnormal labels have none of {', '.join((NORMAL, *DIAGNOSES))}"
        if self.single_label and len(diagnoses) > 1:
            return f"{len(diagnoses)} diagnoses ({', '.join(sorted(diagnoses))}) instead of one (single_label)"
        return ""

    def _boxes(self, study: GroundedStudy, *, size: tuple[int, int] | None) -> tuple[Box, ...]:
        chosen = [(finding, box) for finding in study.findings for box in finding.boxes or ()]
        self.num_second += sum(len(finding.extra_boxes or ()) for finding in study.findings)
        if size is None:
            self.num_boxless += bool(chosen)
            return ()
        return tuple(_scale(finding, corners, size) for finding, corners in chosen)


def sentence_of(finding: GroundedFinding) -> str:
    """Return a finding's English sentence, else the Spanish one, else ""."""
    return (finding.sentence_en or "").strip() or (finding.sentence_es or "").strip()


def _scale(finding: GroundedFinding, corners: Corners, size: tuple[int, int]) -> Box:
    left, upper, right, lower = (min(max(corner, 0.0), 1.0) for corner in corners)
    label = ", ".join(" ".join(label.split()) for label in finding.labels or ())
    width, height = size
    return Box.of_size(
        label, left * width, upper * height, (right - left) * width, (lower - upper) * height, sentence_of(finding)
    )


_LICENCE = "PadChest-GR: BIMCV data use agreement"
_NORMAL = ("normal", "unchanged")


def list_padchest_gr(path: Path, require_images: bool, readers: Readers) -> Listing:
    """List the studies of the grounded reports."""
    del require_images
    finder = ImageFinder(path.parent, folders=IMAGE_FOLDERS, require_images=True)
    facts = read_facts(path.parent, path=path)
    for index, raw in enumerate(read_raw_records(path)):
        try:
            study = decode_study(raw, index=index)
            image = _ground(study, finder=finder, facts=facts, readers=readers)
            provenance = {"file": path.name, "row": str(index), "licence": _LICENCE}
            yield f"record {index}", msgspec.structs.replace(image, provenance=provenance)
        except BadInput as error:
            yield f"record {index}", error


def _ground(study: GroundedStudy, *, finder: ImageFinder, facts: Mapping[str, StudyFacts], readers: Readers) -> Record:
    study_id = str(study.study)
    if not study_id.strip() or (facts and study_id not in facts):
        raise BadInput(f"StudyID: {study_id[:80]!r} is {'not in the master table' if study_id.strip() else 'blank'}")
    image_path, real_path = finder.find(study.image)
    width, height = read_image_size(Path(real_path))
    findings, denied = [], []
    for sentence in study.findings:
        labels = [" ".join(label.split()) for label in sentence.labels or () if label.strip()]
        extra = sentence.extra_boxes or ()
        boxes = (*(sentence.boxes or ()), *(extra if readers == "all" else ()))
        if not sentence.abnormal and not boxes and not extra:
            denied += [label for label in labels if label.casefold() not in _NORMAL]
        names = sentence.locations if isinstance(sentence.locations, list) else []
        region = ", ".join(name for name in names if isinstance(name, str))
        for corners in boxes:
            x1, y1, x2, y2 = (min(max(corner, 0.0), 1.0) for corner in corners)
            box = (x1 * width, y1 * height, x2 * width, y2 * height)
            findings += [Box(label, box, sentence_of(sentence), region) for label in labels]
    present = {label.casefold() for sentence in study.findings if sentence.abnormal for label in sentence.labels or ()}
    present |= {finding.label.casefold() for finding in findings}
    return Record(
        id=study_id,
        image=image_path,
        image_size=(width, height),
        patient=facts[study_id].patient_id if facts else study_id,
        origin=ORIGIN,
        boxes=tuple(findings),
        absent=tuple(dict.fromkeys(label for label in denied if label.casefold() not in present)),
    )
