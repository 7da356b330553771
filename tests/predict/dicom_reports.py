"""Radiographs as DICOM bytes, readings, and structured reports on them."""

import io
import warnings

import numpy as np
import pytest

pydicom = pytest.importorskip("pydicom")
highdicom = pytest.importorskip("highdicom")

from highdicom.sr import srread
from pydicom import uid
from pydicom.dataset import Dataset, FileMetaDataset

from stepcot_jax.chain import DEFAULT_CHAIN
from stepcot_jax.data.images.dicom import read_header
from stepcot_jax.data.phantom.phantom import draw_case
from stepcot_jax.extras.dicom_sr import ReportingNetwork, make_report
from stepcot_jax.reading.readings import ChainReading, ImageCheck, StepAnswer

NETWORK = ReportingNetwork("student", "1.2.3", "ab" * 32)
IMAGE_CLASS = uid.DigitalXRayImageStorageForPresentation
PIXELS = draw_case(1, seed=5, size=48).image
PATIENT = {
    "PatientName": "MARKER^Jane",
    "PatientID": "MARKER-4711",
    "PatientBirthDate": "19991231",
    "PatientSex": "F",
    "StudyDate": "20200102",
    "StudyTime": "030405",
    "StudyID": "7",
    "AccessionNumber": "MARKER-ACC",
    "StudyDescription": "MARKER STUDY",
    "ReferringPhysicianName": "MARKER^Doc",
    "Manufacturer": "Acme",
}
UIDS = {"SOPInstanceUID": "1.2.3.1", "SeriesInstanceUID": "1.2.3.2", "StudyInstanceUID": "1.2.3.3"}


def dicom(*, syntax=uid.ExplicitVRLittleEndian, **elements):
    image = Dataset()
    image.file_meta = FileMetaDataset()
    image.file_meta.TransferSyntaxUID = syntax
    image.file_meta.MediaStorageSOPInstanceUID = "1.2.3.1"
    image.file_meta.MediaStorageSOPClassUID = IMAGE_CLASS
    image.SOPClassUID, image.Modality = IMAGE_CLASS, "DX"
    image.Rows, image.Columns = PIXELS.shape
    image.SamplesPerPixel, image.PhotometricInterpretation = 1, "MONOCHROME2"
    image.BitsAllocated, image.BitsStored, image.HighBit, image.PixelRepresentation = 8, 8, 7, 0
    image.PixelData = PIXELS.tobytes()
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for keyword, value in (PATIENT | UIDS | elements).items():
            if value is not None:
                setattr(image, keyword, value)
            elif keyword in image:
                delattr(image, keyword)
        image.set_original_encoding(syntax.is_implicit_VR, syntax.is_little_endian)
        image.preamble = b"\0" * 128
        pydicom.dcmwrite(file, image, enforce_file_format=False)
    return file.getvalue()


def make_reading(source="x.dcm", *, steps=DEFAULT_CHAIN.steps, given=(), **changes):
    answers = []
    for place, step in enumerate(steps):
        shares = np.arange(1.0, step.num_answers + 1)
        shares /= shares.sum()
        last = step.num_answers - 1
        points = {0: (step.options[0], 0.9, 0.5, 0.5), last: (step.options[last], 0.1, 0.8, 0.7)}
        person = tuple(float(option == 0) for option in range(step.num_answers)) if place in given else ()
        answer_set = None if person else (step.options[last], step.options[0])
        label = 0 if person else last
        answers.append(
            StepAnswer(step, label, tuple(shares.tolist()), person, answer_set, None, {} if person else points)
        )
    check = ImageCheck("phantoms", 2.5, "lateral")
    words = {"coverage_of": "90 % of all cases", "rule": "a rule", "check": check} | changes
    return ChainReading(source, "student", True, 0.9, tuple(answers), **words)


def report_on(reading=None, **elements):
    header = read_header(dicom(**elements), name="x.dcm")
    return make_report(make_reading() if reading is None else reading, header, NETWORK)


def report_on_bytes(**elements):
    """A report on an image whose elements may be bytes, in no character set that the header names."""
    raw = {keyword: value for keyword, value in elements.items() if isinstance(value, bytes)}
    content = dicom(**elements | {keyword: "X" * len(value) for keyword, value in raw.items()})
    for value in raw.values():
        content = content.replace(b"X" * len(value), value)
    return make_report(make_reading(), read_header(content, name="x.dcm"), NETWORK)


def read_back(report):
    file = io.BytesIO()
    pydicom.dcmwrite(file, report, enforce_file_format=True)
    return srread(io.BytesIO(file.getvalue()))


def texts_of(items):
    return [(item.name.meaning, item.value) for item in items if item.ValueType == "TEXT"]


def groups_of(report):
    return report.content.get_image_measurement_groups()
