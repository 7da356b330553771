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

_TEXT_MODE = "was sent in text mode, which changes line ends: send it again in binary mode"

DICOM_START = 132  # bytes of the preamble and "DICM"
_MAGIC = b"DICM"

_PNG_TEXT = re.compile(rb"\x89PNG[\r\n]+\x1a[\r\n]+")
_MULTIPART = re.compile(
    rb"^--[^\r\n]{1,200}\r?\n(([\w-]+:[^\r\n]*\r?\n)*content-|\r?\n[\s\S]{128}DICM)", re.IGNORECASE | re.MULTILINE
)
_HEAD = re.compile(rb"\s*(HTTP/[\d.]+ [^\r\n]*\r?\n)?([\w-]+:[^\r\n]*\r?\n)*?(content|mime)-[\w-]+:", re.IGNORECASE)
_DICOM_KEY = re.compile(rb"[\"'][0-9a-f]{8}[\"']\s*:\s*\{\s*[\"'](vr|value|bulkdatauri)", re.IGNORECASE)

_CONVERT = "convert it to PNG"
_FETCH = "fetch the instance itself (WADO-RS, C-GET)"
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
    **dict.fromkeys(
        (b"\x5c\x01\0\0", b"\0\0\x01\x5c", b"\x1c\x02\0\0"), ("a NIfTI volume", "save the radiograph as PNG or DICOM")
    ),
    b"NRRD": ("an NRRD volume", "save the radiograph as PNG or DICOM"),
    b"BZh": ("a bzip2 archive", "unpack it"),
    b"data:image": (_BASE64 := "a picture as Base64 text", "decode it"),
    b"iVBORw0KGgo": (_BASE64, "decode it"),
    b"/9j/": (_BASE64, "decode it"),
    b"AAAAAAAAAAAAAAAAAAAA": (_BASE64, "decode it"),
    b"\xef\xbf\xbdPNG": (_RECODED := "a PNG or JPEG that was read and written as text", "copy it again as bytes"),
    b"\xef\xbf\xbd\xef\xbf\xbd": (_RECODED, "copy it again as bytes"),
    b"<svg": ("an SVG drawing", _CONVERT),
    b"<!doctype": (_PAGE := "a web page (HTML), not the image", _AGAIN := "sign in and download it again"),
    b"<html": (_PAGE, _AGAIN),
    b"<": ("an XML or HTML text, such as a store's error", _AGAIN),
    b"{": (_JSON := "a JSON text, such as a store's error", _AGAIN),
    b"[": (_JSON, _AGAIN),
}


def ignore_note(_: str) -> None:
    """Drop a note."""


def is_dicom(start: bytes) -> bool:
    """Whether a file with this start is DICOM: "DICM" after a preamble of 128 bytes."""
    return start[DICOM_START - len(_MAGIC) : DICOM_START] == _MAGIC


def say_text_mode(content: bytes, start: str = "", *, least: int = 4) -> str:
    """Return what to say where CR stands before each of `least` LF or more, no chance in compressed data; else ""."""
    return start + _TEXT_MODE if least <= content.count(b"\n") == content.count(b"\r\n") else ""


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
    if _PNG_TEXT.match(content):
        return f"is a PNG that {_TEXT_MODE}"
    if _MULTIPART.search(content[:4096]):
        return "is a multipart answer of DICOMweb: save its parts, each as a file of its own"
    if _HEAD.match(content[:4096]):
        return "is a server's answer with its head (Content-Type ...): save what follows the first empty line"
    if b"<NativeDicomModel" in content[:1024]:
        return f"is DICOM XML, which has no pixels: {_FETCH}"
    if content[:64].lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"[") and _DICOM_KEY.search(content[:65536]):
        return f"is DICOM JSON, which has no pixels: {_FETCH}"
    start = content[:64].removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    for magic, (kind, step) in _OTHER_FORMATS.items():
        if content.startswith(magic) or start.startswith(magic):
            return f"is {kind}, whatever its name says; {step}"
    if content[257:262] == b"ustar":
        return "is a tar archive, whatever its name says; unpack it"
    if content[4:8] == b"ftyp":
        return f"is a HEIC, AVIF or MP4 file, whatever its name says; {_CONVERT}"
    return f"starts with bytes {content[:8].hex(' ')}" if content else "is an empty file"
