import io
import logging
import struct
import sys
import traceback
import tracemalloc
import warnings

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image
from refusals import refuse

pydicom = pytest.importorskip("pydicom")

from pydicom import uid
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.encaps import encapsulate
from pydicom.sequence import Sequence
from pydicom.sr.codedict import codes

from stepcot_jax.data.images.dicom import read_dicom
from stepcot_jax.data.images.dicom_fields import EXTRA
from stepcot_jax.data.images.file_formats import is_dicom
from stepcot_jax.data.images.image_decoding import decode_picture, read_projection
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.text import install_extra

MAX_PIXELS = 10_000
MARKERS = {"PatientName": "MARKER^JANE", "PatientID": "MARKER-4711", "PatientBirthDate": "19991231"}
MARKERS |= {"PatientAddress": "MARKER STREET", "ReferringPhysicianName": "MARKER^DOC"}
MARKERS |= dict.fromkeys(("InstitutionName", "StudyDescription", "PatientComments"), "MARKER NOTE")
RANDOM = np.random.default_rng(0)


def make(pixels=None, *, syntax=uid.ExplicitVRLittleEndian, data=None, **elements):
    """A data set with a picture; elements by keyword, None leaves one out."""
    dataset = Dataset()
    dataset.file_meta = FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = syntax
    dataset.file_meta.MediaStorageSOPClassUID = uid.DigitalXRayImageStorageForPresentation
    dataset.file_meta.MediaStorageSOPInstanceUID = "1.2.3"
    dataset.SOPClassUID, dataset.SOPInstanceUID = uid.DigitalXRayImageStorageForPresentation, "1.2.3"
    dataset.Modality, dataset.ViewPosition = "DX", "PA"
    for keyword, value in MARKERS.items():
        setattr(dataset, keyword, value)
    if pixels is not None:
        bits = 8 * pixels.itemsize
        dataset.Rows, dataset.Columns = pixels.shape[:2]
        dataset.SamplesPerPixel = 3 if pixels.ndim == 3 else 1
        dataset.PhotometricInterpretation = "RGB" if pixels.ndim == 3 else "MONOCHROME2"
        dataset.BitsAllocated = dataset.BitsStored = bits
        dataset.HighBit, dataset.PixelRepresentation = bits - 1, int(pixels.dtype.kind == "i")
        if pixels.ndim == 3:
            dataset.PlanarConfiguration = 0
        order = ">" if syntax == uid.ExplicitVRBigEndian else "<"
        dataset.PixelData = pixels.astype(pixels.dtype.newbyteorder(order)).tobytes() if data is None else data
        dataset["PixelData"].VR = "OW" if bits == 16 else "OB"
    for keyword, value in elements.items():
        if value is None:
            delattr(dataset, keyword)
        else:
            setattr(dataset, keyword, value)
    return dataset


def write(dataset):
    file = io.BytesIO()
    syntax = dataset.file_meta.TransferSyntaxUID
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dataset.set_original_encoding(syntax.is_implicit_VR, syntax.is_little_endian)
        dataset.preamble = b"\0" * 128
        pydicom.dcmwrite(file, dataset, enforce_file_format=True)
    return file.getvalue()


def read(content, **options):
    result = read_dicom(content, name="x", max_pixels=MAX_PIXELS, **options)
    assert (result.dtype, result.flags.writeable) == (np.uint8, True)
    return result


def decode(pixels, **settings):
    return read(write(make(pixels, **settings)))


def round_half_up(brightness):
    return np.floor(np.clip(brightness, 0, 1) * 255 + 0.5).astype(np.uint8)


def show_range(values):
    """Without the 1 % of the pixels at either end, rounded down."""
    values = values.astype(np.float64)
    ordered = np.sort(values, axis=None)
    low, high = ordered[cut := values.size // 100], ordered[-1 - cut]
    return round_half_up((values - low) / (high - low))


def refusal(content):
    with pytest.raises(BadInput) as caught:
        read_dicom(content, name="scan.dcm", max_pixels=MAX_PIXELS)
    message = str(caught.value)
    assert message.startswith("scan.dcm: ")
    assert "\n" not in message
    assert_no_marker(caught.value)
    return message


def assert_no_marker(error):
    text = "".join(traceback.format_exception(error))
    assert error.__context__ is None
    assert error.__cause__ is None
    for marker in ("MARKER", "4711", "19991231"):
        assert marker not in text


GREY8 = RANDOM.integers(0, 256, (5, 7), np.uint8)
GREY16 = RANDOM.integers(0, 2**16, (5, 7), np.uint16)
GREY12 = RANDOM.integers(0, 2**12, (40, 25), np.uint16)
SIGNED16 = RANDOM.integers(-(2**15), 2**15, (5, 7), np.int16)
SMOOTH = np.add.outer(np.arange(64), np.arange(64)) + RANDOM.integers(0, 9, (64, 64))
LARGE8, LARGE12 = SMOOTH.astype(np.uint8), (SMOOTH * 29).astype(np.uint16)
LARGE_SIGNED = (SMOOTH * 450 - 30000).astype(np.int16)
STORED12 = {"BitsStored": 12, "HighBit": 11}


@pytest.mark.parametrize("pixels", [GREY8, GREY16, SIGNED16, SIGNED16.astype(np.int8)], ids=lambda p: p.dtype.name)
@pytest.mark.parametrize("syntax", [uid.ImplicitVRLittleEndian, uid.ExplicitVRBigEndian])
def test_uncompressed(pixels, syntax):
    if syntax == uid.ExplicitVRBigEndian and pixels.itemsize == 1:
        pixels = pixels[:4]  # whole words
    np.testing.assert_array_equal(decode(pixels, syntax=syntax), show_range(pixels))
    np.testing.assert_array_equal(decode(np.full((3, 4), 900, np.uint16), syntax=syntax), np.zeros((3, 4)))


def compress(pixels, syntax, **elements):
    dataset = make(pixels, **elements)
    try:
        dataset.compress(syntax, generate_instance_uid=False)
    except (RuntimeError, NotImplementedError) as error:
        if "missing" not in str(error):
            raise
        pytest.skip("needs an encoder")
    return write(dataset)


LOSSLESS = [
    (uid.RLELossless, LARGE8),
    (uid.RLELossless, LARGE_SIGNED // 4000),  # with long runs
    *[(syntax, pixels) for syntax in (uid.JPEG2000Lossless, uid.JPEGLSLossless) for pixels in (LARGE8, LARGE12)],
    (uid.JPEG2000Lossless, LARGE_SIGNED),
]


@pytest.mark.parametrize(("syntax", "pixels"), LOSSLESS, ids=lambda v: getattr(v, "keyword", None) or v.dtype.name)
def test_lossless_compression(syntax, pixels):
    content = compress(pixels, syntax, **(STORED12 if pixels is LARGE12 else {}))
    np.testing.assert_array_equal(read(content), show_range(pixels))


def jpeg(pixels, **options):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=95, **options)
    return file.getvalue()


def test_jpeg_baseline():
    packed = jpeg(LARGE8)
    result = decode(LARGE8, syntax=uid.JPEGBaseline8Bit, data=encapsulate([packed]))
    np.testing.assert_array_equal(result, show_range(np.asarray(Image.open(io.BytesIO(packed)))))


@pytest.mark.parametrize("planar", [None, 0, 1])
def test_colour(planar):
    colour = RANDOM.integers(0, 256, (4, 6, 3), np.uint8)
    data = np.moveaxis(colour, -1, 0).tobytes() if planar else colour.tobytes()
    expected = np.asarray(Image.fromarray(colour).convert("L"))
    np.testing.assert_array_equal(decode(colour, data=data, PlanarConfiguration=planar), expected)


def test_unused_bits_are_not_part_of_the_value():
    """Old devices keep overlays in the bits above those that count."""
    signed = (GREY12.astype(np.int32) - 2048).astype(np.int16)
    above = RANDOM.integers(0, 16, GREY12.shape, np.uint16) << 12
    for clean, extra in ((GREY12, {}), (signed, {"PixelRepresentation": 1})):
        for syntax in (uid.ExplicitVRLittleEndian, uid.RLELossless):
            stored = clean.astype(np.uint16) & 0xFFF
            dirty = make(stored | above, **extra, **STORED12)
            if syntax == uid.RLELossless:
                dirty.compress(syntax, generate_instance_uid=False)
            share = np.mean(above > 0) if not extra else np.mean((above >> 12) != (stored >> 11) * 15 * (above > 0))
            assert f"BitsStored: 12, but {share:.2%} of the pixels have higher bits" in refusal(write(dirty))
            dirty.add_new(0x60020102, "US", 12)  # declares an overlay there
            result = read(write(dirty))
            np.testing.assert_array_equal(result, show_range(clean))
        np.testing.assert_array_equal(decode(clean, **extra, **STORED12), show_range(clean))  # signs repeated above


@pytest.mark.parametrize("syntax", [uid.JPEG2000Lossless, uid.JPEGLSLossless], ids=lambda syntax: syntax.keyword)
def test_the_precision_of_the_codestream_counts(syntax):
    """A header that states fewer bits than the codestream has."""
    dataset = make((SMOOTH * 100).astype(np.uint16), BitsStored=14, HighBit=13)
    dataset.compress(syntax, generate_instance_uid=False)
    dataset.BitsStored, dataset.HighBit = 12, 11
    result = read(write(dataset))
    np.testing.assert_array_equal(result, show_range(SMOOTH))
    if syntax == uid.JPEG2000Lossless:  # and its sign, with as many bits or more
        for stored in (14, 12):
            dataset = make((SMOOTH * 100 - 7000).astype(np.int16), BitsStored=14, HighBit=13)
            dataset.compress(syntax, generate_instance_uid=False)
            dataset.BitsStored, dataset.HighBit, dataset.PixelRepresentation = stored, stored - 1, 0
            result = read(write(dataset))
            np.testing.assert_array_equal(result, show_range(SMOOTH))


RAMP = np.tile(np.linspace(300, 1800, 64).astype(np.uint16), (64, 1))
MISSED = "a window or VOI LUT of its DICOM header misses the pixels"


@pytest.mark.parametrize("photometric", ["MONOCHROME1", "MONOCHROME2"])
def test_windows_that_miss_the_pixels(photometric):
    """The first that spreads them over a tenth of the brightness counts, else the range without a burned-in marker."""
    marked = RAMP.copy()
    marked[:5, :5] = 60_000
    flat = lut([700] * 4096, first=0, bits=10)
    linear = (RAMP - (2048 - 0.5)) / 4095 + 0.5
    cases = [
        (RAMP, {"WindowCenter": "40000", "WindowWidth": "4000"}, show_range(RAMP), 1),
        (marked, {"WindowCenter": "40000", "WindowWidth": "4000"}, show_range(marked), 1),
        (marked, {}, show_range(marked), 0),
        (RAMP, {"WindowCenter": ["40000", "2048"], "WindowWidth": ["100", "4096"]}, round_half_up(linear), 1),
        (RAMP, {"VOILUTSequence": flat, "WindowCenter": "2048", "WindowWidth": "4096"}, round_half_up(linear), 1),
        (RAMP // 16, {"WindowCenter": "2048", "WindowWidth": "4096"}, show_range(RAMP // 16), 1),
        (RAMP, {"WindowCenter": "2048", "WindowWidth": "4096"}, round_half_up(linear), 0),
    ]
    for pixels, elements, bright, number in cases:
        notes = []
        content = write(make(pixels, PhotometricInterpretation=photometric, **elements))
        result = read(content, note=notes.append)
        expected = bright if photometric == "MONOCHROME2" else 255 - bright.astype(int)
        np.testing.assert_allclose(result.astype(int), expected, rtol=0, atol=photometric == "MONOCHROME1")
        assert [note[: len(MISSED)] for note in notes] == [MISSED] * number


EDGES = [f"Shutter{edge}Edge" for edge in ("LeftVertical", "UpperHorizontal", "RightVertical", "LowerHorizontal")]
ROUND = [(GREY8.shape[1], ""), (3, "its display shutter (ShutterShape) is not applied")]
NOTES = [
    ({"PresentationLUTShape": "INVERSE"}, "PresentationLUTShape INVERSE contradicts PhotometricInterpretation MONOC"),
    ({"PresentationLUTShape": "IDENTITY"}, ""),
    ({"PixelSpacing": [0.4, 0.2]}, "its pixels are not square: PixelSpacing 0.4 by 0.2"),
    ({"ImagerPixelSpacing": [0.2, 0.2], "PixelAspectRatio": [2, 1]}, ""),
    ({"PixelAspectRatio": [2, 1]}, "its pixels are not square: PixelAspectRatio 2 by 1"),
    ({"PatientOrientation": ["R", "F"]}, "PatientOrientation R\\F: shown mirrored; expected L\\F"),
    ({"PatientOrientation": ["R", "H"]}, "PatientOrientation R\\H: shown turned"),
    ({"PatientOrientation": ["F", "L"]}, "PatientOrientation F\\L: shown mirrored and turned"),
    ({"PatientOrientation": ["MARKER", "F"]}, "PatientOrientation: cannot be read"),
    ({"PatientOrientation": ["LA", "F"]}, ""),
    ({"PatientOrientation": ["P", "F"]}, "PatientOrientation P\\F contradicts a frontal view"),
    ({"PatientOrientation": ["P", "F"], "ViewPosition": "LL"}, ""),
    ({"ImageOrientationPatient": [-1, 0, 0, 0, 0, -1]}, "ImageOrientationPatient R\\F: shown mirrored"),
    ({"BodyPartExamined": "KNEE"}, "BodyPartExamined KNEE: no chest"),
    ({"BodyPartExamined": "T SPINE"}, "BodyPartExamined SPINE: no chest"),
    ({"BodyPartExamined": "MARKER^JANE"}, "BodyPartExamined: no chest"),
    *(({"BodyPartExamined": part}, "") for part in ("", "CHEST 2 VIEWS", "THORAX", "LUNG", "RIBS", "HEART")),
    *(({"Modality": modality}, "") for modality in ("CR", "RF", "XA", "OT")),
    *(({"Modality": modality}, f"Modality {modality}: no projection radiograph") for modality in ("CT", "MG")),
    ({"ShutterShape": "CIRCULAR"}, "its display shutter (ShutterShape) is not applied"),
    *(
        ({"ShutterShape": "RECTANGULAR", **dict(zip(EDGES, (1, 1, right, 5), strict=True))}, found)
        for right, found in ROUND
    ),
    ({"PatientOrientation": ["", ""]}, ""),
    ({"SOPClassUID": uid.CTImageStorage}, "SOPClassUID of CT: no projection radiograph"),
    ({"BodyPartExamined": "WHOLEBODY"}, ""),
    ({"PixelData": GREY8.tobytes() + bytes(21)}, ""),
    ({"ImageLaterality": "L"}, "ImageLaterality L contradicts a frontal view"),
    ({"FieldOfViewHorizontalFlip": "YES"}, "FieldOfViewHorizontalFlip or -Rotation without PatientOrientation"),
    ({"FieldOfViewRotation": "180", "PatientOrientation": ["L", "F"]}, ""),
]


@pytest.mark.filterwarnings("ignore:Invalid value")  # of a marker
@pytest.mark.parametrize(("elements", "found"), NOTES)
def test_notes_of_headers_that_contradict_the_picture(elements, found):
    notes = []
    np.testing.assert_array_equal(read(write(make(GREY8, **elements)), note=notes.append), show_range(GREY8))
    assert [note[: len(found)] for note in notes] == ([found] if found else [])


WINDOWS = [("LINEAR", 2e3, 1500.0), ("LINEAR_EXACT", 2e3, 1500.0), ("SIGMOID", 2e3, 800.0), ("LINEAR", 1e3, 1)]


@pytest.mark.parametrize(("function", "centre", "width"), WINDOWS)
def test_window(function, centre, width):
    """One pixel at a time by the words of PS3.3 C.11.2.1.2 and C.11.2.1.3, after slope and intercept."""
    settings = {"RescaleSlope": "2", "RescaleIntercept": "-1024", "WindowCenter": [str(centre), "1"]}
    settings |= {"WindowWidth": [str(width), "1"], "VOILUTFunction": function, **STORED12}
    expected = np.empty(GREY12.shape)
    for place, stored in np.ndenumerate(GREY12):
        x = 2.0 * stored - 1024
        if function == "SIGMOID":
            y = 1 / (1 + np.exp(-4 * (x - centre) / width))
        elif function == "LINEAR_EXACT":
            y = 0 if x <= centre - width / 2 else 1 if x > centre + width / 2 else (x - centre) / width + 0.5
        elif x <= centre - 0.5 - (width - 1) / 2:
            y = 0
        elif x > centre - 0.5 + (width - 1) / 2:
            y = 1
        else:
            y = (x - (centre - 0.5)) / (width - 1) + 0.5
        expected[place] = y
    result = decode(GREY12, **settings)
    np.testing.assert_array_equal(result, round_half_up(expected))
    assert len(np.unique(result)) > (1 if width == 1 else 10)


def lut(entries, *, first, bits, packed=False):
    item = Dataset()
    signed = first < 0
    item.add_new("LUTDescriptor", "SS" if signed else "US", [len(entries) % 65536, first, bits])
    data = np.asarray(entries, np.uint8 if packed else "<u2").tobytes()
    item.add_new("LUTData", "OW", data)
    return Sequence([item])


@pytest.mark.parametrize("syntax", [uid.ExplicitVRLittleEndian, uid.ImplicitVRLittleEndian])
@pytest.mark.parametrize("pixels", [GREY12, (GREY12.astype(np.int32) - 2048).astype(np.int16)], ids=["u2", "i2"])
def test_voi_lut(pixels, syntax):
    entries, first = np.sort(RANDOM.integers(0, 1024, 1500)), int(pixels.min()) + 300
    dataset = make(pixels, syntax=syntax, VOILUTSequence=lut(entries, first=first, bits=10), **STORED12)
    places = np.clip(pixels.astype(int) - first, 0, 1499)
    np.testing.assert_array_equal(read(write(dataset)), round_half_up(entries[places] / 1023))


RANGES = [(16, 4095, 4095), (14, 4095, 4095), (12, 900, 1023), (16, 2500, 4095), (8, 4000, 4095), (8, 200, 255)]


@pytest.mark.parametrize(("bits", "largest", "range_"), RANGES)
def test_the_largest_entry_decides_whatever_a_lut_states(bits, largest, range_):
    entries = np.linspace(0, largest, 4096).astype(int)
    dataset = make(GREY12, VOILUTSequence=lut(entries, first=0, bits=bits), **STORED12)
    result = read(write(dataset))
    np.testing.assert_array_equal(result, round_half_up(entries[GREY12] / range_))


GROUPS = {
    "PixelValueTransformationSequence": {"RescaleSlope": -1, "RescaleIntercept": 4095},
    "FrameVOILUTSequence": {"WindowCenter": 1000, "WindowWidth": 2000, "VOILUTFunction": "SIGMOID"},
    "FrameDisplayShutterSequence": {"ShutterShape": "CIRCULAR"},
    "PatientOrientationInFrameSequence": {"PatientOrientation": ["R", "F"]},
    "PixelMeasuresSequence": {"PixelSpacing": [1, 2]},
    "FramePixelDataPropertiesSequence": {"PixelPaddingValue": 0, "PixelPaddingRangeLimit": 300},
}


def nest_in(keyword, **elements):
    item = Dataset()
    item.update(elements)
    return {keyword: Sequence([item])}


@pytest.mark.parametrize("syntax", [uid.ExplicitVRLittleEndian, uid.ImplicitVRLittleEndian])
@pytest.mark.parametrize("groups", ["SharedFunctionalGroupsSequence", "PerFrameFunctionalGroupsSequence"])
def test_functional_groups_of_one_frame_count_as_the_root(groups, syntax):
    table = lut(np.arange(4096)[::-1] // 2, first=0, bits=12)
    macros = list(GROUPS.items())
    macros += [("FrameVOILUTSequence", {"VOILUTSequence": table}), (None, {"ModalityLUTSequence": table})]
    plain = read(write(make(GREY12, syntax=syntax, **STORED12)))
    for macro, elements in macros:
        seen, shown = [], []
        grouped = nest_in(groups, **(nest_in(macro, **elements) if macro else elements))
        root = read(write(make(GREY12, syntax=syntax, **STORED12, **elements)), note=seen.append)
        result = read(write(make(GREY12, syntax=syntax, **STORED12, **grouped)), note=shown.append)
        np.testing.assert_array_equal(result, root)
        assert (seen, len(seen) + (root != plain).any()) == (shown, 1)
        both = write(make(GREY12, syntax=syntax, **STORED12, **grouped, **elements))
        np.testing.assert_array_equal(read(both), root)


def test_functional_groups_that_contradict_the_root():
    groups = nest_in("SharedFunctionalGroupsSequence", **nest_in("PixelValueTransformationSequence", RescaleSlope=-1))
    assert "SharedFunctionalGroupsSequence contradicts" in refusal(write(make(GREY8, RescaleSlope=1, **groups)))
    groups = nest_in("SharedFunctionalGroupsSequence", **nest_in("PixelMeasuresSequence", PixelSpacing=[1, 2]))
    notes = []
    read(write(make(GREY8, PixelSpacing=[1, 1], **groups)), note=notes.append)
    assert notes == ["PixelSpacing: SharedFunctionalGroupsSequence contradicts what else the header says, which counts"]


def test_text_mode_is_said_before_the_bits():
    content, data = write(make(GREY12, **STORED12)), GREY12.astype("<u2").tobytes()
    place = content.index(data)
    for changed in (data.replace(b"\1", b"\r\1"), data.replace(b"\1", b"")):
        assert f"PixelData: {len(changed) + len(changed) % 2} bytes instead" in refusal(
            write(make(GREY12, data=changed + b"\0" * (len(changed) % 2), **STORED12))
        )
    behind = data.replace(b"\1", b"\r\1")
    message = refusal(content[:place] + behind + content[place + len(data) :])
    assert f"PixelData: {len(behind) - len(data)} bytes more than its length says: was the file sent in tex" in message
    with pytest.raises(BadInput, match=r"^x: is a file that was changed as text on its way .*: has no PixelData"):
        decode_picture(content.replace(b"\n", b"\r\n") + b"\r\n" * 4, name="x", max_pixels=MAX_PIXELS)


@pytest.mark.parametrize("packed", [False, True])
def test_modality_lut_before_the_window(packed):
    entries = RANDOM.permutation(256)[:200]
    sequence = lut(entries, first=20, bits=8, packed=packed)
    dataset = make(GREY8, ModalityLUTSequence=sequence, WindowCenter="100", WindowWidth="150")
    physical = entries[np.clip(GREY8.astype(int) - 20, 0, 199)].astype(float)
    np.testing.assert_array_equal(read(write(dataset)), round_half_up((physical - 99.5) / 149 + 0.5))


@pytest.mark.parametrize("syntax", [uid.ExplicitVRLittleEndian, uid.ImplicitVRLittleEndian])
@pytest.mark.parametrize("photometric", ["MONOCHROME1", "MONOCHROME2"])
def test_padding(photometric, syntax):
    pixels = np.array([[-2000, -2000, 100], [300, 500, 400], [7, 7, 200]], np.int16)
    settings = {"syntax": syntax, "PhotometricInterpretation": photometric, "PixelPaddingValue": -2000}
    for limit, least in (({}, 7), ({"PixelPaddingRangeLimit": 10}, 100)):  # the smallest value of the picture itself
        brightness = (pixels - least) / (500 - least)
        expected = round_half_up(brightness if photometric == "MONOCHROME2" else 1 - brightness)
        expected[pixels < least] = 0
        np.testing.assert_array_equal(decode(pixels, **settings, **limit), expected)


REFUSED = [
    ({"NumberOfFrames": 3}, "NumberOfFrames: 3 instead of 1"),
    ({"PixelData": None}, "has no PixelData (Digital X-Ray Image Storage - For Presentation)"),
    ({"PixelData": None, "SOPClassUID": uid.EncapsulatedPDFStorage}, "has no PixelData (Encapsulated PDF Storage)"),
    ({"PixelData": bytes(10)}, "PixelData: 10 bytes instead of 35"),
    ({"Rows": 60000, "Columns": 60000}, "60000 x 60000 pixels in its header are more than 10000"),
    ({"SamplesPerPixel": 4}, "SamplesPerPixel: 4 with MONOCHROME2"),
    ({"PhotometricInterpretation": "PALETTE COLOR"}, "PhotometricInterpretation: is not one of MONOCHROME1"),
    *(({"BitsAllocated": 32}, "BitsStored: 8 in BitsAllocated 32"), ({"HighBit": 9}, "HighBit: 9; expected 7")),
    ({"PixelRepresentation": 2}, "PixelRepresentation: 2;"),
    ({"PresentationIntentType": "FOR PROCESSING"}, "is FOR PROCESSING, the raw picture of the detector"),
    ({"SOPClassUID": uid.DigitalXRayImageStorageForProcessing}, "expected FOR PRESENTATION"),
    ({"RescaleSlope": "0"}, "RescaleSlope: 0"),
    ({"WindowCenter": "10", "WindowWidth": "0"}, "WindowWidth: 0; expected at least 1 with LINEAR"),
    ({"WindowCenter": "1", "WindowWidth": "5", "VOILUTFunction": "MARKER"}, "is not one of LINEAR, LINEAR_EXACT, SIGM"),
    ({"VOILUTSequence": lut(range(9), first=0, bits=20)}, "LUTDescriptor: entries of 20 bits"),
]


@pytest.mark.parametrize(("settings", "found"), REFUSED, ids=[found for _, found in REFUSED])
def test_refused(settings, found):
    assert found in refusal(write(make(GREY8, **settings)))


SYNTAXES = [
    ("1.2.840.10008.1.2.1.99", "Deflated Explicit VR Little Endian is not one"),
    ("1.2.3.4711", "an unknown syn"),
]


@pytest.mark.parametrize(("syntax", "found"), SYNTAXES)
def test_refused_syntaxes(syntax, found):
    content, old = write(make(GREY8)), str(uid.ExplicitVRLittleEndian).encode() + b"\0"
    place, new = content.index(old, 132), syntax.encode() + b"\0" * (len(syntax) % 2)
    message = refusal(content[: place - 2] + struct.pack("<H", len(new)) + new + content[place + len(old) :])
    assert f"TransferSyntaxUID: {found}" in message


def test_bombs_stay_small():
    large = bytes(6 * 10**7)
    dataset = make(np.zeros((90, 90), np.uint8), syntax=uid.DeflatedExplicitVRLittleEndian, data=large)
    content = write(dataset)
    assert len(content) < 10**6
    tracemalloc.start()
    refusal(content)
    assert tracemalloc.get_traced_memory()[1] < 5 * 10**6
    tracemalloc.stop()
    segment = b"\x81\x07" * 500_000  # each pair asks for 128 bytes; only those that are due are made
    frame = struct.pack("<16L", 1, 64, *[0] * 14) + segment
    content = write(make(np.zeros((90, 90), np.uint8), syntax=uid.RLELossless, data=encapsulate([frame])))
    tracemalloc.start()
    np.testing.assert_array_equal(read(content), np.zeros((90, 90)))
    assert tracemalloc.get_traced_memory()[1] < 8 * 10**6
    tracemalloc.stop()
    for frame, found in (
        *((b"", "0 RLE segments"), (struct.pack("<16L", 2, 64, 65, *[0] * 13), "2 RLE segments instead of 1")),
        (struct.pack("<16L", 1, 64, *[0] * 14) + b"\x81\x07", "an RLE segment of 128 bytes instead of 8100"),
        (struct.pack("<16L", 1, 2**31, *[0] * 14) + b"\x81\x07", "an RLE segment of 0 bytes"),
    ):
        data = encapsulate([frame + b"\0" * (len(frame) % 2)]) if frame else encapsulate([bytes(64)])
        assert found in refusal(write(make(np.zeros((90, 90), np.uint8), syntax=uid.RLELossless, data=data)))


def test_a_missing_decoder_is_named_with_its_command(monkeypatch):
    from pydicom.pixels.decoders import base

    monkeypatch.setattr(base.Decoder, "available_plugins", property(lambda _: ("gdcm",)))
    message = refusal(write(make(GREY8, syntax=uid.JPEGBaseline8Bit, data=encapsulate([jpeg(GREY8)]))))
    assert f"no decoder for JPEG Baseline is installed: {install_extra('dicom')}" in message


def test_compressed_size_has_to_match():
    """A small header around a large picture never reaches a decoder."""
    large = np.zeros((300, 300), np.uint8)
    packed = {
        uid.JPEGBaseline8Bit: jpeg(large),
        uid.JPEGLSLossless: b"\xff\xd8\xff\xf7" + struct.pack(">HBHHB", 11, 8, 300, 300, 1) + bytes(20),
        uid.JPEG2000Lossless: struct.pack(">IHHIIIIIIIIH20x", 0xFF4FFF51, 41, 0, 310, 320, 10, 20, 300, 300, 0, 0, 1),
    }
    for syntax, frame in packed.items():
        message = refusal(write(make(GREY8, syntax=syntax, data=encapsulate([frame]))))
        assert "300 x 300 x 1 (columns x rows x samples) in the compressed picture" in message
        assert "7 x 5 x 1" in message
    for frame, found in ((bytes(40), "no size"), (jpeg(GREY8)[:300], "cannot be decoded as JPEG Baseline")):
        assert found in refusal(write(make(GREY8, syntax=uid.JPEGBaseline8Bit, data=encapsulate([frame]))))


def corrupt_values():
    kinds = {"Rows": "PN", "WindowCenter": "PN", "RescaleSlope": "LO", "PhotometricInterpretation": "PN"}
    for keyword, vr in (kinds | {"PixelData": "LT", "VOILUTSequence": "PN", "ViewPosition": "PN"}).items():
        dataset = make(GREY8, RescaleIntercept="0", WindowWidth="10")
        dataset.add_new(keyword, vr, "MARKER^JANE 4711 ")
        yield f"{keyword} as {vr}", write(dataset)
    good = write(make(GREY8, RescaleSlope="1.00", RescaleIntercept="0", WindowCenter="40.0", WindowWidth="10.0"))
    yield "RescaleSlope as text", good.replace(b"1.00", b"4711", 1).replace(b"40.0", b"MARK", 1)
    yield "UID as text", good.replace(b"1.2.840.10008.5.1.4.1.1.1.1", b"MARKER^JANE 4711 AAAAAAAAAA")
    place = good.index(b"MARKER^JANE")
    yield "length too long", good[: place - 2] + b"\xff\x7f" + good[place:]
    yield "type unknown", good[: place - 4] + b"ZZ" + good[place - 2 :]
    yield "type a number", good[: place - 4] + b"DS" + good[place - 2 :]
    yield "cut in it", good[: place + 4]
    yield "character set", good[: place - 8] + b"\x08\x00\x05\x00CS" + good[place - 2 :]


@pytest.mark.parametrize(("kind", "content"), list(corrupt_values()))
def test_no_patient_in_messages(kind, content, caplog, capfd):
    logging.getLogger("pydicom").setLevel(logging.DEBUG)
    with warnings.catch_warnings(record=True) as warned, caplog.at_level(logging.DEBUG):
        warnings.simplefilter("always")
        try:
            read_dicom(content, name="scan.dcm", max_pixels=MAX_PIXELS)
            said = read_projection(content, name="scan.dcm")
        except BadInput as error:
            assert_no_marker(error)
            said = str(error)
    said += " ".join(str(warning.message) for warning in warned) + caplog.text + "".join(capfd.readouterr())
    for marker in ("MARK", "JANE"):
        assert marker not in said, kind
    assert not caplog.records


VALID = {
    "native": write(
        make(GREY12, WindowCenter="9", WindowWidth="9", RescaleSlope="1", RescaleIntercept="0", **STORED12)
    ),
    "lut": write(make(GREY8, VOILUTSequence=lut(range(200), first=3, bits=8), PixelPaddingValue=3)),
    "jpeg": write(make(GREY8, syntax=uid.JPEGBaseline8Bit, data=encapsulate([jpeg(GREY8)]))),
    "rle": compress(GREY16, uid.RLELossless),
    "implicit": write(make(GREY8, syntax=uid.ImplicitVRLittleEndian, WindowCenter="90", WindowWidth="90")),
}


@given(
    st.sampled_from(sorted(VALID)),
    st.integers(0, 4000),
    st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 255)), max_size=6),
)
@example("native", 4000, [])
def test_any_damage(kind, length, changes):
    content = bytearray(VALID[kind][: max(132, length)])
    for place, value in changes:
        content[132 + place % max(1, len(content) - 132) if len(content) > 132 else 0] = value
    try:
        pixels = read(bytes(content))
    except BadInput as error:
        assert_no_marker(error)
    else:
        assert (pixels.dtype, pixels.ndim) == (np.uint8, 2)
        assert 0 < pixels.size <= MAX_PIXELS


def test_without_pydicom(monkeypatch):
    monkeypatch.setitem(sys.modules, "pydicom.pixels", None)
    assert is_dicom(VALID["native"])
    assert f"scan.dcm: reading a DICOM file requires pydicom: {EXTRA}" in refusal(VALID["native"])


def view_header(**elements):
    return write(make(PatientName="LATERAL^JANE", SeriesDescription="LATERAL", **{"ViewPosition": None, **elements}))


def coded(value, scheme="SCT"):
    item = Dataset()
    item.CodeValue, item.CodingSchemeDesignator, item.CodeMeaning = value, scheme, "LATERAL"
    return [item]


POSITIONS = {"LL": "lateral", "Lateral": "lateral", "XTABLE LATERAL": "lateral", "PA": "frontal", "AP AXIAL": "frontal"}
POSITIONS |= {"AP LLD": "decubitus", "LATERAL DECUB": "decubitus", "LAO": "oblique", "PA LAT": "", "PALL": ""}


@pytest.mark.filterwarnings("ignore")  # of values that are not in the standard
@pytest.mark.parametrize(("position", "projection"), POSITIONS.items())
def test_view_position(position, projection):
    assert read_projection(view_header(ViewPosition=position), name="scan.dcm") == projection


CODES = {"LeftLateral": "lateral", "PosteroAnterior": "frontal", "RightAnteriorOblique": "oblique", "CranioCaudal": ""}


@pytest.mark.parametrize(("name", "projection"), CODES.items())
def test_view_code_where_the_position_is_absent(name, projection):
    code = getattr(codes.CID4010, name).value
    cases = [({}, coded(code), projection), ({"ViewPosition": ""}, coded(code), projection)]
    cases += [({}, coded(code, "99VENDOR"), ""), ({"ViewPosition": "AP"}, coded(code), "frontal")]
    for elements, sequence, expected in cases:
        assert read_projection(view_header(ViewCodeSequence=sequence, **elements), name="x") == expected


def test_projections_of_other_files():
    assert read_projection(b"\x89PNG\r\n\x1a\n", name="x.png") == ""
    refuse(r"^scan.dcm: ", lambda: read_projection(view_header()[:140] + b"\xff" * 40, name="scan.dcm"))
