import io
import warnings

import pydicom
import pytest
from pydicom import uid
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.sr.codedict import codes

from stepcot_jax.data.images.dicom import read_projection
from stepcot_jax.host.errors import BadInput


def header(**elements):
    """A DICOM file without a picture."""
    dataset = Dataset()
    dataset.file_meta = FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = uid.ExplicitVRLittleEndian
    dataset.file_meta.MediaStorageSOPClassUID = dataset.SOPClassUID = uid.DigitalXRayImageStorageForPresentation
    dataset.file_meta.MediaStorageSOPInstanceUID = dataset.SOPInstanceUID = "1.2.3"
    dataset.PatientName, dataset.SeriesDescription = "LATERAL^JANE", "LATERAL"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of values that are not in the standard
        for keyword, value in elements.items():
            setattr(dataset, keyword, value)
        file = io.BytesIO()
        dataset.preamble = b"\0" * 128
        pydicom.dcmwrite(file, dataset, enforce_file_format=True)
    return file.getvalue()


def coded(value, scheme="SCT"):
    item = Dataset()
    item.CodeValue, item.CodingSchemeDesignator, item.CodeMeaning = value, scheme, "LATERAL"
    return [item]


@pytest.mark.parametrize(
    ("position", "projection"),
    [
        ("LL", "lateral"),
        ("Lateral", "lateral"),
        ("XTABLE LATERAL", "lateral"),
        ("PA", "frontal"),
        ("AP AXIAL", "frontal"),
        ("AP LLD", "decubitus"),
        ("LATERAL DECUB", "decubitus"),
        ("LAO", "oblique"),
        ("PA LAT", ""),
        ("PALL", ""),
    ],
)
def test_view_position(position, projection):
    assert read_projection(header(ViewPosition=position), name="scan.dcm") == projection


@pytest.mark.parametrize(
    ("name", "projection"),
    [
        ("LeftLateral", "lateral"),
        ("PosteroAnterior", "frontal"),
        ("RightAnteriorOblique", "oblique"),
        ("CranioCaudal", ""),
    ],
)
def test_view_code_where_the_position_is_absent(name, projection):
    code = getattr(codes.CID4010, name)
    assert read_projection(header(ViewCodeSequence=coded(code.value)), name="scan.dcm") == projection
    assert read_projection(header(ViewPosition="", ViewCodeSequence=coded(code.value)), name="x") == projection
    assert read_projection(header(ViewCodeSequence=coded(code.value, "99VENDOR")), name="x") == ""
    assert read_projection(header(ViewPosition="AP", ViewCodeSequence=coded(code.value)), name="x") == "frontal"


def test_other_files():
    assert read_projection(b"\x89PNG\r\n\x1a\n", name="x.png") == ""
    broken = header()[:140] + b"\xff" * 40
    with pytest.raises(BadInput, match=r"^scan.dcm: "):
        read_projection(broken, name="scan.dcm")
