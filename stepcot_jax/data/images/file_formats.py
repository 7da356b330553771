"""Formats of image files by their first bytes, and what a file is that is no accepted image."""

import re
import struct
from collections.abc import Callable

Note = Callable[[str], None]
"""Gets a sentence on what is odd about a readable file; the same sentence for the same oddity."""

RESAVE = (
    "re-save it with dcmconv (DCMTK), or with pydicom: dcmread(FILE, force=True), set file_meta.TransferSyntaxUID, "
    "save_as(NEW, enforce_file_format=True)"
)

DICOM_START = 132  # bytes of the preamble and "DICM"
_MAGIC = b"DICM"

_CONVERT = "convert it to PNG"
_OTHER_FORMATS: dict[bytes, tuple[str, str]] = {
    b"BM": ("a BMP file", _CONVERT),
    b"GIF8": ("a GIF file", _CONVERT),
    b"II*\0": ("a TIFF file", _CONVERT),
    b"MM\0*": ("a TIFF file", _CONVERT),
    b"RIFF": ("a WebP, AVI or WAV file", _CONVERT),
    b"\0\0\0\x0cjP": ("a JPEG 2000 file", _CONVERT),
    b"\xff\x4f\xff\x51": ("a JPEG 2000 file", _CONVERT),
    b"version https://git-lfs": ("a Git LFS pointer, not the image", "run `git lfs pull`"),
    b"%PDF": ("a PDF file", "export the image as PNG or DICOM"),
    b"PK": ("a ZIP archive", "unpack it"),
    b"\x1f\x8b": ("a gzip archive", "unpack it"),
    b"7z\xbc\xaf": ("a 7-Zip archive", "unpack it"),
    b"\x28\xb5\x2f\xfd": ("a Zstandard archive", "unpack it"),
    b"8BPS": ("a Photoshop file", _CONVERT),
    b"\x93numpy": ("a NumPy array", "pass its pixels, as sc.load(RUN).read(ARRAY) takes them, or save them as PNG"),
    b"\x5c\x01\0\0": ("a NIfTI volume", "save the radiograph as PNG or DICOM"),
    b"<svg": ("an SVG drawing", _CONVERT),
    b"<!doctype": (_PAGE := "a web page (HTML), not the image", _AGAIN := "sign in and download it again"),
    b"<html": (_PAGE, _AGAIN),
    b"<": ("an XML or HTML text, such as a store's error", _AGAIN),
    b"{": ("a JSON text, such as a store's error", _AGAIN),
    b"[": ("a JSON text, such as a store's error", _AGAIN),
}
_FETCH = "which has no pixels: fetch the instance itself (WADO-RS, application/dicom)"
_DICOM_TEXTS: dict[bytes, tuple[str, str]] = {
    rb"\A(?:--|http/1|mime-version:|content-type:)[^\0]{0,2000}content-type:\s*(?:application|image|multipart)/": (
        "a multipart answer of DICOMweb, or one with its HTTP head",
        "save its parts, each without its head",
    ),
    rb"\A(?:content-type:\s*(?:application|image|multipart)/)": (
        "an answer of DICOMweb with its head",
        "save its part without the head",
    ),
    rb"\A[\[{][\[{\s]*\"[0-9a-f]{8}\"\s*:\s*\{\s*\"": ("DICOM JSON", _FETCH),
    rb"\A[^\0]{0,400}<nativedicommodel": ("DICOM XML", _FETCH),
}


def ignore_note(_: str) -> None:
    """Drop a note."""


def is_dicom(start: bytes) -> bool:
    """Whether a file with this start is DICOM: "DICM" after a preamble of 128 bytes."""
    return start[DICOM_START - len(_MAGIC) : DICOM_START] == _MAGIC


def lacks_preamble(start: bytes) -> bool:
    """Whether a file starts as DICOM does after the preamble: with "DICM", or with an element of group 2 or 8."""
    if start.startswith(_MAGIC) or len(start) <= 8:
        return start.startswith(_MAGIC)
    is_explicit = start[4:6].isalpha() and start[4:6].isupper()
    for order in "<>":
        group, element, length = struct.unpack(f"{order}HHI", start[:8])
        in_order = (group == 2 and element <= 0x0102) or (group == 8 and element <= 0x0018)
        if in_order and (is_explicit or length <= 64):
            return True
    return False


def describe_other(content: bytes) -> str:
    """Return what a file is that is no accepted image, and the next step where it can be told."""
    if lacks_preamble(content):
        return f"is a DICOM file without the preamble of 128 bytes and DICM; {RESAVE}"
    start = content[:4096].removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    for pattern, (kind, step) in _DICOM_TEXTS.items():
        if re.match(pattern, start):
            return f"is {kind}, whatever its name says; {step}"
    for magic, (kind, step) in _OTHER_FORMATS.items():
        if content.startswith(magic) or start.startswith(magic):
            return f"is {kind}, whatever its name says; {step}"
    if content[4:8] == b"ftyp":
        return f"is a HEIC, AVIF or MP4 file, whatever its name says; {_CONVERT}"
    return f"starts with bytes {content[:8].hex(' ')}" if content else "is an empty file"
