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

_LEAST_LINES = 4  # by chance once in 256 ** 4
DICOM_START = 132  # bytes of the preamble and "DICM"
_MAGIC = b"DICM"

SENT_AS_TEXT = ("a file that was changed as text on its way (FTP's text mode, a mail, an editor)", "send it as binary")
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
    b"\x5c\x01\0\0": (_VOLUME := "a NIfTI volume", _SAVE := "save the radiograph as PNG or DICOM"),
    **dict.fromkeys((b"\0\0\x01\x5c", b"\x1c\x02\0\0", b"\0\0\x02\x1c"), (_VOLUME, _SAVE)),
    **dict.fromkeys((b"nrrd", b"objecttype"), ("a volume of ITK (NRRD, MetaImage)", _SAVE)),
    b"\x89HDF": ("an HDF5 file", _SAVE),
    **dict.fromkeys((b"BZh", b"\xfd7zXZ"), ("a bzip2 or xz archive", "unpack it")),
    **dict.fromkeys((b"\x89PNG", b"\x09PNG", b"\xc2\x89PNG", b"\xef\xbf\xbd", b"\xc3\xbf\xc3\x98"), SENT_AS_TEXT),
    **dict.fromkeys((b"data:image/", b"ivborw0kgg", b"/9j/", b"a" * 20), ("a picture in Base64", "decode it")),
    b"<svg": ("an SVG drawing", _CONVERT),
    b"<!doctype": (_PAGE := "a web page (HTML), not the image", _AGAIN := "sign in and download it again"),
    b"<html": (_PAGE, _AGAIN),
    b"<": ("an XML or HTML text, such as a store's error", _AGAIN),
    **dict.fromkeys((b"{", b"["), ("a JSON text, such as a store's error", _AGAIN)),
}
_LONGEST_HEAD = 4096
_NO_PIXELS = "which has no pixels: fetch the instance"
_MESSAGES = {
    rb"(^|\n)--[^\r\n]{1,74}\r?\n([\w-]+:[^\r\n]*\r?\n)*content-\w+:|^[^{<]*content-type: *multipart/": (
        "is a multipart answer of DICOMweb: save its parts"
    ),
    rb"^(http/[\d.]+ \d|content-[\w-]+:|mime-version:)": "is an answer with its head: save what follows the empty line",
    rb'^[\[{\s]*"[0-9a-f]{8}"\s*:': f"is DICOM JSON, {_NO_PIXELS}",
    rb"^(?=<)[^\0]*(<nativedicommodel|nema\.org|<dicomattribute)": f"is DICOM XML, {_NO_PIXELS}",
    rb"^(# *dicom-|dataset\.file_meta)": f"is a dump of a DICOM header, {_NO_PIXELS}",
}
"""What texts around DICOM are, by a pattern of their first bytes in small letters."""


def ignore_note(_: str) -> None:
    """Drop a note."""


def is_dicom(start: bytes) -> bool:
    """Whether a file with this start is DICOM: "DICM" after a preamble of 128 bytes."""
    return start[DICOM_START - len(_MAGIC) : DICOM_START] == _MAGIC


def looks_like_text(content: bytes) -> bool:
    """Whether every line feed of binary content follows a carriage return, or all is UTF-8: a transfer as text."""
    try:
        return content.count(b"\n") == content.count(b"\r\n") >= _LEAST_LINES or bool(content.decode())
    except UnicodeDecodeError:
        return False


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
    start = content[:_LONGEST_HEAD].removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    for pattern, sentence in _MESSAGES.items():
        if re.search(pattern, start):
            return sentence
    for magic, (kind, step) in _OTHER_FORMATS.items():
        if content.startswith(magic) or start.startswith(magic):
            return f"is {kind}, whatever its name says; {step}"
    if content[4:8] == b"ftyp":
        return f"is a HEIC, AVIF or MP4 file, whatever its name says; {_CONVERT}"
    if content[257:262] == b"ustar":
        return "is a tar archive, whatever its name says; unpack it"
    if (place := content[:_LONGEST_HEAD].find(_MAGIC)) >= 0:
        return f"has DICM at byte {place} instead of 128: was it sent in text mode, or with a head in front?"
    return f"starts with bytes {content[:8].hex(' ')}" if content else "is an empty file"
