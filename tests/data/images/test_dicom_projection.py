import pytest
from data.images.test_dicom import make, write
from pydicom.dataset import Dataset
from pydicom.sr.codedict import codes

from stepcot_jax.data.images.dicom import read_projection
from stepcot_jax.host.errors import BadInput

pytestmark = pytest.mark.filterwarnings("ignore")  # of values that are not in the standard


def header(**elements):
    """A DICOM file without a picture."""
    return write(make(PatientName="LATERAL^JANE", SeriesDescription="LATERAL", **{"ViewPosition": None, **elements}))


def coded(value, scheme="SCT"):
    item = Dataset()
    item.CodeValue, item.CodingSchemeDesignator, item.CodeMeaning = value, scheme, "LATERAL"
    return [item]


POSITIONS = {"LL": "lateral", "Lateral": "lateral", "XTABLE LATERAL": "lateral", "PA": "frontal", "AP AXIAL": "frontal"}
POSITIONS |= {"AP LLD": "decubitus", "LATERAL DECUB": "decubitus", "LAO": "oblique", "PA LAT": "", "PALL": ""}


@pytest.mark.parametrize(("position", "projection"), POSITIONS.items())
def test_view_position(position, projection):
    assert read_projection(header(ViewPosition=position), name="scan.dcm") == projection


VIEWS = {"LeftLateral": "lateral", "PosteroAnterior": "frontal", "RightAnteriorOblique": "oblique", "CranioCaudal": ""}


@pytest.mark.parametrize(("name", "projection"), VIEWS.items())
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
