"""Hostile pictures for `hostile_files`: `data check` decodes them, as `predict`, training and all other readers do."""

import struct
import zlib
from collections.abc import Callable
from pathlib import Path

from benchmarks.hostile_inputs import MAKERS, MEGABYTE, Command, Make, published_folder

Write = Callable[[float], bytes]

_SIDE = 64


PICTURES: dict[str, tuple[str, Write]] = {}
"""By name: the ending of the file, and what makes its bytes with sizes times a factor."""


def _picture(name: str, suffix: str, write: Write) -> None:
    PICTURES[name] = (suffix, write)


def _check(suffix: str, write: Write) -> Make:
    """Return the maker of a folder of the published layout with one image of such bytes; the others are missing."""

    def make(root: Path, factor: float) -> Command:
        command = published_folder(root)
        images = root / "images"
        images.mkdir()
        (images / f"0{suffix}").write_bytes(write(factor))
        text = (root / "data.json").read_text()
        (root / "data.json").write_text(text.replace("images/0.png", f"images/0{suffix}"))
        return command[:-1]

    return make


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def _png(width: int, height: int, *between: bytes, pixels: bytes | None = None) -> bytes:
    rows = zlib.compress(bytes((width + 1) * height), 1) if pixels is None else pixels
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"".join(
        [b"\x89PNG\r\n\x1a\n", _chunk(b"IHDR", header), *between, _chunk(b"IDAT", rows), _chunk(b"IEND", b"")]
    )


def _bomb(num_bytes: float) -> bytes:
    """Compress zeros, a megabyte at a time."""
    packer, piece = zlib.compressobj(1), bytes(MEGABYTE)
    packed = [packer.compress(piece) for _ in range(max(1, round(num_bytes / MEGABYTE)))]
    return b"".join([*packed, packer.flush()])


def _element(group: int, element: int, kind: bytes, content: bytes) -> bytes:
    long = kind in (b"OB", b"OW", b"UN", b"SQ", b"UT")
    size = struct.pack("<2xI", len(content)) if long else struct.pack("<H", len(content))
    return struct.pack("<HH", group, element) + kind + size + content


def _dicom(*elements: bytes) -> bytes:
    """Return an explicit little-endian file with the elements after its meta information."""
    meta = _element(2, 0x10, b"UI", b"1.2.840.10008.1.2.1\0")
    head = _element(2, 0, b"UL", struct.pack("<I", len(meta)))
    return b"".join([bytes(128), b"DICM", head, meta, *elements])


def _dicom_sizes(rows: int, columns: int, *, frames: bytes = b"1 ") -> list[bytes]:
    shorts = [(0x02, 1), (0x10, rows), (0x11, columns), (0x100, 8), (0x101, 8), (0x102, 7), (0x103, 0)]
    found = {element: _element(0x28, element, b"US", struct.pack("<H", number)) for element, number in shorts}
    found[0x04] = _element(0x28, 0x04, b"CS", b"MONOCHROME2 ")
    found[0x08] = _element(0x28, 0x08, b"IS", frames)
    return [found[element] for element in sorted(found)]


_picture(".png: 60,000 x 60,000 pixels in its header", ".png", lambda _factor: _png(60_000, 60_000, pixels=_bomb(1)))
_picture(".png: rows that unpack to 2 GB", ".png", lambda factor: _png(_SIDE, _SIDE, pixels=_bomb(2e9 * factor)))
_picture(
    ".png: a text that unpacks to 2 GB",
    ".png",
    lambda factor: _png(_SIDE, _SIDE, _chunk(b"zTXt", b"a\0\0" + _bomb(2e9 * factor))),
)
_picture(
    ".png: 200 MB of text chunks",
    ".png",
    lambda factor: _png(_SIDE, _SIDE, _chunk(b"tEXt", b"a\0" + bytes(1000)) * round(2e5 * factor)),
)
_picture(
    ".png: a colour profile that unpacks to 2 GB",
    ".png",
    lambda factor: _png(_SIDE, _SIDE, _chunk(b"iCCP", b"a\0\0" + _bomb(2e9 * factor))),
)
_picture(".png: cut off", ".png", lambda _factor: _png(_SIDE, _SIDE)[:-30])
_picture(".jpg: 65,500 x 65,500 pixels in its header", ".jpg", lambda _factor: _jpeg(65_500))
_picture(".jpg: 200 MB of application segments", ".jpg", lambda factor: _jpeg(_SIDE, num_segments=round(3000 * factor)))
_picture(".jpg: script in its place", ".jpg", lambda _factor: b"<script>alert(1)</script>")
_picture(
    ".dcm: 65,535 x 65,535 pixels in its header",
    ".dcm",
    lambda _factor: _dicom(*_dicom_sizes(65_535, 65_535), _element(0x7FE0, 0x10, b"OW", bytes(64))),
)
_picture(
    ".dcm: 10^9 frames",
    ".dcm",
    lambda _factor: _dicom(
        *_dicom_sizes(_SIDE, _SIDE, frames=b"1000000000"), _element(0x7FE0, 0x10, b"OW", bytes(_SIDE * _SIDE))
    ),
)
_picture(
    ".dcm: a million elements",
    ".dcm",
    lambda factor: _dicom(
        *(_element(0x11 + 2 * (n // 4000), 0x1000 + n % 4000, b"LO", b"a ") for n in range(round(1e6 * factor)))
    ),
)
_picture(
    ".dcm: sequences nested 100,000 deep",
    ".dcm",
    lambda factor: _dicom(struct.pack("<HH", 0x40, 0xA730) + (_SEQUENCE + _ITEM) * max(10_000, round(1e5 * factor))),
)
_SEQUENCE = b"SQ\0\0\xff\xff\xff\xff"
_ITEM = b"\xfe\xff\x00\xe0\xff\xff\xff\xff" + struct.pack("<HH", 0x40, 0xA730)


def _jpeg(side: int, *, num_segments: int = 0) -> bytes:
    """Return a JPEG that ends after its header: a grey picture of that side."""
    frame = struct.pack(">HBHHB", 11, 8, side, side, 1) + b"\x01\x11\x00"
    scan = b"\xff\xda\x00\x08\x01\x01\x00\x00\x3f\x00"
    segment = b"\xff\xe5" + struct.pack(">H", 65_535) + bytes(65_533)
    return b"".join([b"\xff\xd8", segment * num_segments, b"\xff\xc0", frame, scan, b"\xff\xd9"])


MAKERS |= {f"image {name}": _check(*made) for name, made in PICTURES.items()}
