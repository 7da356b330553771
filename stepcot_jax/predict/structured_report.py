"""Readings of DICOM images as DICOM structured reports (Comprehensive SR), filed in the image's study.

A report holds the patient's data, copied from the image. Messages name elements and never quote their values.
"""

import dataclasses
import datetime
import io
import pathlib
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from stepcot_jax.data.images.dicom import is_dicom, read_header
from stepcot_jax.data.images.dicom_fields import Fields, attempt
from stepcot_jax.data.images.image_decoding import most_bytes
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import make_workdir, read_file, write_whole
from stepcot_jax.host.text import install_extra
from stepcot_jax.predict.answers import ChainReading
from stepcot_jax.predict.structured_content import MAKER, SCHEME, ReportingNetwork, derive_uid, make_content

if TYPE_CHECKING:
    from highdicom.sr import ComprehensiveSR
    from pydicom import Dataset

FLAG = "--dicom-out"

_SERIES_NUMBER = 9901  # apart from those of scanners, which count from 1
_UIDS = ("SOPClassUID", "SOPInstanceUID", "SeriesInstanceUID", "StudyInstanceUID")
_MAY_BE_EMPTY = (
    *("PatientID", "PatientName", "PatientBirthDate", "PatientSex", "AccessionNumber", "StudyID", "StudyDate"),
    *("StudyTime", "ReferringPhysicianName"),
)
_UTF8 = "ISO_IR 192"
_TEXTS = frozenset({"LO", "LT", "PN", "SH", "ST", "UC", "UT"})  # those that SpecificCharacterSet is about
_ASCII_ALONE = frozenset({"", "ISO_IR 6", "ISO 2022 IR 6"})  # pydicom reads their other bytes as Latin-1, by guess
_NO_TIME = datetime.datetime(2000, 1, 1)


class ReportFolder:
    """Writes structured reports into a folder, a file for each, named by its UID.

    The UID is derived from everything that the report says, its time excepted: a repeated reading has the same UID, and
    its file is kept as it is.
    """

    def __init__(self, folder: pathlib.Path, network: ReportingNetwork, *, max_pixels: int) -> None:
        require_highdicom()
        make_workdir(folder)
        self._folder, self._network, self._max_bytes = folder, network, most_bytes(max_pixels)

    def attach(self, readings: Iterable[ChainReading], *, refuse: Callable[[str], None]) -> Iterator[ChainReading]:
        """Write the report of each reading, and yield the reading with its file's path or the reason for none."""
        for reading in readings:
            try:
                report = self._make(reading)
            except BadInput as error:
                refuse(f"no structured report: {error}")
                yield dataclasses.replace(reading, report=f"none: {error}")
            else:
                yield dataclasses.replace(reading, report=str(self._write(report)))

    def _make(self, reading: ChainReading) -> "ComprehensiveSR":
        path = pathlib.Path(reading.source)
        try:
            content = read_file(path, max_bytes=self._max_bytes)
        except OSError as error:
            raise BadInput(f"{path}: cannot be read ({error.strerror})") from None
        if not is_dicom(content):
            raise BadInput(f"{path}: is not a DICOM file, so there is no study to file a report in")
        return make_report(reading, read_header(content, name=str(path)), self._network)

    def _write(self, report: "ComprehensiveSR") -> pathlib.Path:
        path = self._folder / f"{report.SOPInstanceUID}.dcm"
        if not path.exists():
            try:
                write_whole(path, _encode(report))
            except OSError as error:
                raise BadInput(f"{FLAG}: {path} cannot be written ({error.strerror})") from None
        return path


def require_highdicom() -> None:
    """Import highdicom."""
    try:
        import highdicom.sr  # noqa: F401
    except ImportError:
        raise BadInput(f"{FLAG} needs highdicom: {install_extra('sr')}") from None


def make_report(reading: ChainReading, header: Fields, network: ReportingNetwork) -> "ComprehensiveSR":
    """Return the structured report of a reading: complete, preliminary and unverified.

    It is the only instance of its series, number 1: a number counted within a shared series would depend on which
    images were read before, and so would the report's UID.
    """
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


def _build(reading: ChainReading, source: "Dataset", network: ReportingNetwork) -> "ComprehensiveSR":
    from highdicom import coding_schemes
    from highdicom.sr import ComprehensiveSR

    return ComprehensiveSR(
        evidence=[source],
        content=make_content(reading, source, network)[0],
        # Until the content is known, its own identifiers are the image's.
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


def _check_header(header: Fields) -> "Dataset":
    """Return the header with decoded texts and every element that highdicom expects, empty where it may be."""
    from highdicom import PatientSexValues
    from pydicom.uid import UID
    from pydicom.valuerep import DA, TM

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
    """Refuse texts that pydicom decoded by guess: without a character set, by an unknown one, or with losses."""
    from pydicom.charset import python_encoding

    # Of the whole header: a report repeats some of its elements inside of sequences.
    texts = "".join(_list_texts(header.dataset))
    declared = header.dataset.get("SpecificCharacterSet") or []
    terms = [declared] if isinstance(declared, str) else list(declared)
    known = all(term in python_encoding for term in terms) and not set(terms) <= _ASCII_ALONE
    if "\ufffd" in texts or not (known or texts.isascii()):
        raise header.refuse("SpecificCharacterSet: does not say how the patient's or the study's texts are encoded")


def _list_texts(header: "Dataset") -> Iterator[str]:
    """Yield the values of all texts of a header, of those in sequences too."""
    for element in header.iterall():
        if element.VR in _TEXTS and element.value:
            values = element.value if element.VM > 1 else [element.value]
            yield from map(str, values)


def _stamp(report: "Dataset", when: datetime.datetime) -> None:
    """Set every time at which the report was made."""
    date, time = when.strftime("%Y%m%d"), when.strftime("%H%M%S")
    report.ContentDate = report.InstanceCreationDate = date
    report.ContentTime = report.InstanceCreationTime = time
    report.ContributingEquipmentSequence[-1].ContributionDateTime = date + time  # highdicom's own


def _encode(report: "Dataset") -> bytes:
    from pydicom import dcmwrite

    file = io.BytesIO()
    dcmwrite(file, report, enforce_file_format=True)
    return file.getvalue()
