"""Readings of DICOM images as DICOM structured reports (Comprehensive SR), filed in the image's study.

A report holds the patient's data, copied from the image. Messages name elements and never quote their values.
"""

import dataclasses
import datetime
import hashlib
import io
import pathlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from stepcot_jax.data.images.dicom import read_header
from stepcot_jax.data.images.dicom_fields import Fields, attempt
from stepcot_jax.data.images.file_formats import is_dicom
from stepcot_jax.data.images.image_decoding import most_bytes
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import make_workdir, read_file, write_whole, writing_for
from stepcot_jax.host.text import install_extra, make_printable
from stepcot_jax.reading.image_reader import MAKER, ReportingNetwork
from stepcot_jax.reading.readings import ChainReading, StepAnswer

try:
    from highdicom import PatientSexValues, coding_schemes, sr
    from pydicom import Dataset, dcmwrite
    from pydicom.charset import python_encoding
    from pydicom.sr.codedict import codes
    from pydicom.uid import UID, generate_uid
    from pydicom.valuerep import DA, TM
except ImportError:
    raise BadInput(f"--dicom-out needs highdicom: {install_extra('sr')}") from None

# Content of a structured report: a measurement group for each step, after DICOM's template 1500 (PS3.16).
#
# Codes are DICOM's own where these exist. Questions and answers are in the words of a chain: their codes are of the
# private scheme 99STEPCOT, digests of these words, so that one code never means two things. No SNOMED codes are
# guessed.


SCHEME = "99STEPCOT"
NOT_A_DIAGNOSIS = (
    "Answers of a neural network, for research. Not a diagnosis and not from a medical device; no physician has "
    "verified them."
)

_LONGEST_MEANING, _LONGEST_CODE = 64, 16


def derive_uid(*parts: str) -> str:
    """Return a DICOM UID that is the same for the same texts."""
    return str(generate_uid(entropy_srcs=["\0".join((MAKER, *parts))]))


def make_content(reading: ChainReading, source: Dataset, network: ReportingNetwork) -> sr.MeasurementReport:
    """Return the content tree of a reading."""
    report = sr.MeasurementReport(
        observation_context=_observe(network),
        procedure_reported=codes.LN.XRUnspecifiedBodyRegion,
        imaging_measurements=[_make_group(answer, source, network) for answer in reading.steps],
        title=codes.DCM.ImagingMeasurementReport,
    )
    root = report[0].ContentSequence
    for item in _describe_reading(reading):  # in front of the measurements: viewers show the tree in its order
        root.insert(len(root) - 1, item)
    return report


def _observe(network: ReportingNetwork) -> sr.ObservationContext:
    device = sr.DeviceObserverIdentifyingAttributes(
        uid=derive_uid("device", *network.identity),
        name=network.title,
        manufacturer_name=MAKER,
        model_name=f"{network.title} {network.version}",
        serial_number=network.digest,
    )
    return sr.ObservationContext(
        observer_device_context=sr.ObserverContext(
            observer_type=codes.DCM.Device, observer_identifying_attributes=device
        )
    )


def _describe_reading(reading: ChainReading) -> Iterator[sr.ContentItem]:
    yield _text(codes.DCM.Comment, NOT_A_DIAGNOSIS)
    yield _text(codes.DCM.Summary, reading.paragraph)
    yield _text(_concept("network and its probabilities"), reading.describe_calibration())
    if any(answer.answer_set for answer in reading.steps):
        yield _text(_concept("answer sets"), f"such sets hold the true answer in {reading.coverage_of}")
    yield _text(_concept("training data and distance to them"), str(reading.check))
    if reading.check.outside is not None:
        verdict = codes.SCT.Yes if reading.check.outside else codes.SCT.No
        yield _code(_concept("outside of what it was trained on"), verdict)
    for warning in reading.warnings:
        yield _text(_concept("warning"), warning)
    for pair in reading.never_together:
        yield _text(_concept("answers never together in training"), pair)
    if reading.rule:
        yield _text(_concept("rule of the operating points"), f"{reading.rule}; figures of the test cases")


def _make_group(
    answer: StepAnswer, source: Dataset, network: ReportingNetwork
) -> sr.MeasurementsAndQualitativeEvaluations:
    """Return the group of one step: its answer as a code, the network's probability of it, and remarks."""
    name = answer.step.name
    coded = [(_concept(name), answer.answer)]
    coded += [(_concept("in the answer set"), option) for option in answer.answer_set or ()]
    coded += [(_concept("at or above its operating point"), option) for option in answer.above]
    group = sr.MeasurementsAndQualitativeEvaluations(
        tracking_identifier=sr.TrackingIdentifier(
            uid=derive_uid("step", source.SOPInstanceUID, *network.identity, name), identifier=make_printable(name)
        ),
        algorithm_id=None if answer.given else _identify(network),
        measurements=[
            sr.Measurement(
                name=_concept("network's probability of the given answer")
                if answer.given
                else codes.DCM.CertaintyOfFinding,
                value=round(100 * answer.probability, 2),
                unit=codes.UCUM.Percent,
            )
        ],
        qualitative_evaluations=[
            sr.QualitativeEvaluation(concept, _concept(f"{name}\n{option}", meaning=option))
            for concept, option in coded
        ],
        source_images=[sr.SourceImageForMeasurementGroup.from_source_image(source)],
    )
    group[0].ContentSequence.extend(_describe_step(answer))
    return group


def _identify(network: ReportingNetwork) -> sr.AlgorithmIdentification:
    return sr.AlgorithmIdentification(
        name=network.title,
        version=network.version,
        parameters=[f"SHA-256 of the weights: {network.digest}"],
        family=codes.DCM.ArtificialIntelligence,
        manufacturer=MAKER,
    )


def _describe_step(answer: StepAnswer) -> Iterator[sr.ContentItem]:
    yield _text(_concept("question"), answer.step.question)
    if _fit_meaning(answer.answer) != answer.answer:
        yield _text(_concept("answer in full"), answer.answer)
    if answer.given:
        yield _text(_concept("answer given by a person"), answer.describe_certainty())
    if answer.findings:
        called = ", ".join(str(finding) for finding in answer.findings if finding.is_above)
        yield _text(_concept("figures of the operating points"), called or "no answer is above its operating point")


def _concept(text: str, *, meaning: str | None = None) -> sr.CodedConcept:
    """Return the private code of a text, which is its meaning unless another is given."""
    value = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_LONGEST_CODE]
    return sr.CodedConcept(
        value=value, scheme_designator=SCHEME, meaning=_fit_meaning(text if meaning is None else meaning)
    )


def _fit_meaning(text: str) -> str:
    """Return a text as the meaning of a code: at most 64 printable characters, no backslash (PS3.5, LO)."""
    shown = make_printable(text).replace("\\", "/")
    return shown if len(shown) <= _LONGEST_MEANING else f"{shown[: _LONGEST_MEANING - 3]}..."


def _text(name: Any, text: str) -> sr.ContentItem:
    return sr.TextContentItem(
        name=name, value=make_printable(text), relationship_type=sr.RelationshipTypeValues.CONTAINS
    )


def _code(name: Any, value: Any) -> sr.ContentItem:
    return sr.CodeContentItem(name=name, value=value, relationship_type=sr.RelationshipTypeValues.CONTAINS)


_SERIES_NUMBER = 9901  # unlike those of scanners, which count from 1
_UIDS = ("SOPClassUID", "SOPInstanceUID", "SeriesInstanceUID", "StudyInstanceUID")
_MAY_BE_EMPTY = (
    *("PatientID", "PatientName", "PatientBirthDate", "PatientSex", "AccessionNumber", "StudyID", "StudyDate"),
    *("StudyTime", "ReferringPhysicianName"),
)
_UTF8 = "ISO_IR 192"
_TEXTS = frozenset(
    {"LO", "LT", "PN", "SH", "ST", "UC", "UT"}
)  # value representations that SpecificCharacterSet applies to
_ASCII_ALONE = frozenset({"", "ISO_IR 6", "ISO 2022 IR 6"})  # pydicom reads their other bytes as Latin-1, by guess
_NO_TIME = datetime.datetime(2000, 1, 1)


class ReportFolder:
    """Writes structured reports, named by the UID of their content without times: none is written twice."""

    def __init__(self, folder: pathlib.Path, network: ReportingNetwork, *, max_pixels: int) -> None:
        make_workdir(folder)
        self._folder, self._network, self._max_bytes = folder, network, most_bytes(max_pixels)

    def attach(self, readings: Iterable[ChainReading], *, refuse: Callable[[str], None]) -> Iterator[ChainReading]:
        """Write the report of each reading, and yield the reading with the path of the report or the error."""
        for reading in readings:
            try:
                report = self._make(reading)
            except BadInput as error:
                refuse(f"no structured report: {error}")
                yield dataclasses.replace(reading, report=f"none: {error}")
            else:
                yield dataclasses.replace(reading, report=str(self._write(report)))

    def _make(self, reading: ChainReading) -> sr.ComprehensiveSR:
        path = pathlib.Path(reading.source)
        try:
            content = read_file(path, max_bytes=self._max_bytes)
        except OSError as error:
            raise BadInput(f"{path}: cannot be read ({error.strerror})") from None
        if not is_dicom(content):
            raise BadInput(f"{path}: is not a DICOM file, so there is no study to file a report in")
        return make_report(reading, read_header(content, name=str(path)), self._network)

    def _write(self, report: sr.ComprehensiveSR) -> pathlib.Path:
        path = self._folder / f"{report.SOPInstanceUID}.dcm"
        if not path.exists():
            with writing_for("--dicom-out", path):
                write_whole(path, _encode(report))
        return path


def make_report(reading: ChainReading, header: Fields, network: ReportingNetwork) -> sr.ComprehensiveSR:
    """Return the structured report of a reading: preliminary, unverified, and the only instance of its series."""
    source = _check_header(header)
    otherwise = header.refuse("its patient and study cannot be copied; expected elements as in DICOM PS3.3")
    report = attempt(lambda: _build(reading, source, network), otherwise)
    _refuse_lost_text(header)
    _stamp(report, _NO_TIME)
    uid = derive_uid("report", attempt(lambda: _encode(report), otherwise).hex())
    report.SOPInstanceUID = report.file_meta.MediaStorageSOPInstanceUID = uid
    report.SeriesInstanceUID = derive_uid("series", uid)
    _stamp(report, datetime.datetime.now())
    return report


def _build(reading: ChainReading, source: Dataset, network: ReportingNetwork) -> sr.ComprehensiveSR:
    return sr.ComprehensiveSR(
        evidence=[source],
        content=make_content(reading, source, network)[0],
        # The report has the image's identifiers until its content is known.
        series_instance_uid=source.SeriesInstanceUID,
        series_number=_SERIES_NUMBER,
        sop_instance_uid=source.SOPInstanceUID,
        instance_number=1,
        manufacturer=MAKER,
        manufacturer_model_name=network.title,
        software_versions=network.version,
        device_serial_number=network.digest,
        series_description="Answers of a neural network, not verified",
        content_qualification="RESEARCH",
        is_complete=True,
        is_final=False,
        is_verified=False,
        coding_schemes=[
            coding_schemes.CodingSchemeIdentificationItem(
                SCHEME, name=f"Questions and answers of {MAKER}", responsible_organization=MAKER
            )
        ],
        specific_character_set=_UTF8,
    )


def _check_header(header: Fields) -> Dataset:
    """Return the header with decoded texts and all elements that highdicom expects; optional ones may be empty."""
    for keyword in _UIDS:
        if not header.value(keyword):
            raise header.refuse(f"{keyword}: missing; a report names the image that it is of, its series and its study")
        if not UID(str(header.value(keyword))).is_valid:
            raise header.refuse(f"{keyword}: is no UID as in DICOM PS3.5")
    source = header.dataset
    attempt(source.decode, header.refuse("its texts cannot be decoded; expected those that SpecificCharacterSet names"))
    for keyword in _MAY_BE_EMPTY:
        if keyword not in source:
            setattr(source, keyword, "")
    kinds: dict[str, Callable[[Any], object]] = {
        "PatientBirthDate": DA,
        "StudyDate": DA,
        "StudyTime": TM,
        "PatientSex": PatientSexValues,
    }
    for keyword, kind in kinds.items():
        value = header.value(keyword)
        if value:
            attempt(lambda kind=kind, value=value: kind(value), header.refuse(f"{keyword}: is not as in DICOM PS3.3"))
    return source


def _refuse_lost_text(header: Fields) -> None:
    """Refuse texts that pydicom guessed: without a character set, with an unknown one, or decoded with losses."""
    # All of the header: a report repeats some of its elements inside sequences.
    texts = "".join(_list_texts(header.dataset))
    declared = header.dataset.get("SpecificCharacterSet") or []
    terms = [declared] if isinstance(declared, str) else list(declared)
    known = all(term in python_encoding for term in terms) and not set(terms) <= _ASCII_ALONE
    if "\ufffd" in texts or not (known or texts.isascii()):
        raise header.refuse("SpecificCharacterSet: does not say how the patient's or the study's texts are encoded")


def _list_texts(header: Dataset) -> Iterator[str]:
    """Yield the values of all texts of a header, of those in sequences too."""
    for element in header.iterall():
        if element.VR in _TEXTS and element.value:
            values = element.value if element.VM > 1 else [element.value]
            yield from map(str, values)


def _stamp(report: Dataset, when: datetime.datetime) -> None:
    date, time = when.strftime("%Y%m%d"), when.strftime("%H%M%S")
    report.ContentDate = report.InstanceCreationDate = date
    report.ContentTime = report.InstanceCreationTime = time
    report.ContributingEquipmentSequence[-1].ContributionDateTime = date + time  # highdicom's own


def _encode(report: Dataset) -> bytes:
    file = io.BytesIO()
    dcmwrite(file, report, enforce_file_format=True)
    return file.getvalue()
