"""Headers of DICOM files: elements, items and bytes are limited while they are parsed; bulk data are not counted."""

import struct
import warnings

import numpy as np
import pytest
from refusals import refuse

pydicom = pytest.importorskip("pydicom")

from data.images.test_dicom import make
from data.images.test_dicom import write as encode
from pydicom import uid
from pydicom.dataset import Dataset

from stepcot_jax.data.images.dicom import read_dicom
from stepcot_jax.data.images.image_decoding import read_projection
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.untrusted import VARIABLE

PIXELS = np.arange(64, dtype=np.uint8).reshape(8, 8)
SYNTAXES = [uid.ImplicitVRLittleEndian, uid.ExplicitVRLittleEndian, uid.ExplicitVRBigEndian]


def write(*, syntax=uid.ExplicitVRLittleEndian, change=lambda image: None):
    image = make(PIXELS, syntax=syntax)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        change(image)
    return encode(image)


def add_items(keyword, *, number, undefined):
    """What adds a sequence of empty items, 8 bytes each, or a few more where their length is undefined."""

    def change(image):
        setattr(image, keyword, [Dataset() for _ in range(number)])
        image[keyword].is_undefined_length = undefined

    return change


def read(content):
    return read_dicom(content, name="scan.dcm", max_pixels=100)


@pytest.mark.parametrize("syntax", SYNTAXES)
def test_items_of_a_sequence_that_nobody_wants_are_counted(monkeypatch, syntax):
    content = write(syntax=syntax, change=add_items("OtherPatientIDsSequence", number=1600, undefined=True))
    read(content)
    monkeypatch.setenv(VARIABLE, "elements=500")
    with pytest.raises(BadInput, match=r"^scan.dcm: its header has too many .* at most 500 .*elements=NUMBER") as found:
        read(content)
    assert found.value.__context__ is None


CHANGES = {
    "sequence": add_items("VOILUTSequence", number=200, undefined=False),
    "numbers": lambda image: setattr(image, "WindowCenter", ["1"] * 700),
    "character sets": lambda image: setattr(image, "SpecificCharacterSet", ["ISO_IR 100"] * 140),
}


@pytest.mark.parametrize("syntax", SYNTAXES)
@pytest.mark.parametrize("kind", CHANGES)
def test_values_are_limited_before_they_are_converted(monkeypatch, syntax, kind):
    content = write(syntax=syntax, change=CHANGES[kind])
    monkeypatch.setenv(VARIABLE, "header_bytes=1000")
    for reading in (lambda: read(content), lambda: read_projection(content, name="scan.dcm")):
        refuse(r"^scan.dcm: the elements of its header take too .* at most 1000 ", reading)


@pytest.mark.parametrize("syntax", SYNTAXES)
def test_overlays_private_values_and_pixels_do_not_count(monkeypatch, syntax):
    def change(image):
        image.private_block(0x0011, "ACME", create=True).add_new(1, "OB", b"x" * 5000)
        image.add_new(0x60003000, "OW", b"\0" * 5000)

    content = write(syntax=syntax, change=change)
    monkeypatch.setenv(VARIABLE, "header_bytes=1000")
    assert read(content).shape == (8, 8)


def nest(depth, *, undefined, syntax, innermost=b""):
    """An element of so many sequences in sequences, as bytes; pydicom would recurse to write it."""
    order = "<" if syntax.is_little_endian else ">"
    body = innermost
    for _ in range(depth):
        length = 0xFFFFFFFF if undefined else len(body)
        item = struct.pack(f"{order}HHI", 0xFFFE, 0xE000, length) + body
        item += struct.pack(f"{order}HHI", 0xFFFE, 0xE00D, 0) if undefined else b""
        kind = b"" if syntax.is_implicit_VR else b"SQ\0\0"
        length = 0xFFFFFFFF if undefined else len(item)
        body = struct.pack(f"{order}HH", 0x0010, 0x1002) + kind + struct.pack(f"{order}I", length) + item
        body += struct.pack(f"{order}HHI", 0xFFFE, 0xE0DD, 0) if undefined else b""
    return body


@pytest.mark.parametrize("syntax", SYNTAXES[:2])
@pytest.mark.parametrize("undefined", [False, True], ids=["explicit length", "undefined length"])
def test_nested_sequences_are_not_parsed(syntax, undefined):
    """OtherPatientIDsSequence in itself; with 400 levels of explicit length pydicom took 20 GB of the file's 13 KB."""

    def nested(depth):
        placeholder = nest(1, undefined=False, syntax=syntax, innermost=b"")
        content = write(syntax=syntax, change=lambda image: setattr(image, "OtherPatientIDsSequence", [Dataset()]))
        assert content.count(placeholder) == 1
        return content.replace(placeholder, nest(depth, undefined=undefined, syntax=syntax))

    assert read(nested(16)).shape == (8, 8)
    if not undefined:  # a picture's own sequences are read to their first level, and no others
        assert read(nested(400)).shape == (8, 8)


def test_items_are_counted_before_they_are_made(monkeypatch):
    monkeypatch.setenv(VARIABLE, "elements=1500")

    def add_views(image):
        del image.ViewPosition
        add_items("ViewCodeSequence", number=2000, undefined=False)(image)

    code = write(change=add_views)
    made, make = [], Dataset.__init__

    def count(self, *arguments, **options):
        made.append(self)
        make(self, *arguments, **options)

    monkeypatch.setattr(Dataset, "__init__", count)
    assert read_projection(code, name="scan.dcm") == ""
    assert len(made) < 100
