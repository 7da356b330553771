"""Stored values of a DICOM file's picture, never more of them than its header says.

What a compressed picture says of its size is compared with the header before a decoder sees it.
"""

import contextlib
import dataclasses
import struct

import numpy as np
from jaxtyping import UInt8, UInt16

from stepcot_jax.data.images.dicom_fields import Fields
from stepcot_jax.data.images.dicom_syntaxes import RLE, SYNTAXES, Syntax


@dataclasses.dataclass(frozen=True)
class PixelFormat:
    """How pixels are stored.

    Attributes:
      num_rows: height.
      num_columns: width.
      num_samples: 1 for grey, 3 for colour.
      bits_allocated: bits that a sample takes up.
      bits_stored: bits of it that count, the lowest ones.
      signed: whether these bits are a two's complement.
      photometric: MONOCHROME1 (high is dark), MONOCHROME2 or RGB.
      planar: whether all of red comes first, then all of green, then all of blue.
    """

    num_rows: int
    num_columns: int
    num_samples: int
    bits_allocated: int
    bits_stored: int
    signed: bool
    photometric: str
    planar: bool

    @property
    def num_bytes(self) -> int:
        """Bytes of the picture when nothing is compressed."""
        return self.num_rows * self.num_columns * self.num_samples * self.bits_allocated // 8


def decode_stored(
    fields: Fields, form: PixelFormat
) -> UInt8[np.ndarray, "row column *sample"] | UInt16[np.ndarray, "row column *sample"]:
    """The stored values, their bits taken as unsigned numbers below 2 ** bits_stored.

    Raises:
      BadInput: the pixels are truncated, corrupt, of another size than the header says, or there is no decoder.
    """
    syntax = SYNTAXES[fields.syntax]
    data = fields.value("PixelData")
    if not isinstance(data, bytes):
        raise fields.refuse("PixelData: cannot be read, accepted are bytes")
    if fields.syntax == RLE:
        pixels = _decode_rle(_join_fragments(data, fields), fields, form)
    elif syntax.decoders:
        _require_size(_join_fragments(data, fields), fields, form)
        pixels = _decode_compressed(fields, form, syntax)
    else:
        pixels = _decode_native(data, fields, form, syntax)
    if form.bits_stored == 8:
        return pixels.astype(np.uint8, copy=False)
    return pixels.astype(np.uint16, copy=False) & np.uint16(2**form.bits_stored - 1)


def _shape(samples: np.ndarray, form: PixelFormat, *, planar: bool) -> np.ndarray:
    if form.num_samples == 1:
        return samples.reshape(form.num_rows, form.num_columns)
    if planar:
        return np.moveaxis(samples.reshape(form.num_samples, form.num_rows, form.num_columns), 0, -1)
    return samples.reshape(form.num_rows, form.num_columns, form.num_samples)


def _decode_native(data: bytes, fields: Fields, form: PixelFormat, syntax: Syntax) -> np.ndarray:
    if len(data) < form.num_bytes:
        raise fields.refuse(f"PixelData: found {len(data)} bytes, accepted are {form.num_bytes}, as its header says")
    if form.bits_allocated == 16:
        samples = np.frombuffer(data, fields.word, count=form.num_bytes // 2)
        return _shape(samples.astype(np.uint16, copy=False), form, planar=form.planar)
    if not syntax.little_endian and fields.dataset["PixelData"].VR == "OW":
        # Two pixels a word, and the word's bytes are in the other order.
        words = np.frombuffer(data[: len(data) // 2 * 2], ">u2").astype("<u2")
        data = words.tobytes()
    if len(data) < form.num_bytes:
        raise fields.refuse(f"PixelData: found {len(data)} bytes, accepted are whole words for {form.num_bytes}")
    return _shape(np.frombuffer(data, np.uint8, count=form.num_bytes), form, planar=form.planar)


def _join_fragments(data: bytes, fields: Fields) -> bytes:
    from pydicom.encaps import generate_frames

    with contextlib.suppress(Exception):
        return next(generate_frames(data, number_of_frames=1))
    raise fields.refuse("PixelData: cannot be read as fragments of one compressed picture")


def _decode_rle(frame: bytes, fields: Fields, form: PixelFormat) -> np.ndarray:
    """PS3.5 annex G: one segment a byte of a sample, the highest byte first; stops at the size that is due."""
    bytes_a_sample = form.bits_allocated // 8
    num_segments = form.num_samples * bytes_a_sample
    num_due = form.num_rows * form.num_columns
    header = struct.unpack("<16L", frame[:64].ljust(64, b"\0"))
    if len(frame) < 64 or header[0] != num_segments:
        raise fields.refuse(f"PixelData: found {header[0]} RLE segments, accepted are {num_segments}")
    bounds = [*header[1 : num_segments + 1], len(frame)]
    planes = np.empty((num_segments, num_due), np.uint8)
    for plane, start, stop in zip(planes, bounds[:-1], bounds[1:], strict=True):
        plane[:] = _unpack_segment(frame[start:stop], fields, num_due=num_due)
    if bytes_a_sample == 1:
        return _shape(planes, form, planar=True)
    return _shape(planes[0].astype(np.uint16) << 8 | planes[1], form, planar=True)


def _unpack_segment(segment: bytes, fields: Fields, *, num_due: int) -> UInt8[np.ndarray, "value"]:
    values = bytearray()
    place = 0
    while len(values) < num_due and place < len(segment) - 1:
        count = segment[place]
        if count < 128:
            values += segment[place + 1 : place + 2 + count]
            place += 2 + count
        else:
            values += segment[place + 1 : place + 2] * (257 - count if count > 128 else 0)
            place += 2 if count > 128 else 1
    if len(values) < num_due:
        raise fields.refuse(f"PixelData: found an RLE segment of {len(values)} bytes, accepted are {num_due}")
    return np.frombuffer(values, np.uint8, count=num_due)


def _require_size(frame: bytes, fields: Fields, form: PixelFormat) -> None:
    sizes = _read_jpeg_2000_sizes(frame) if frame.startswith(b"\xff\x4f") else _read_jpeg_sizes(frame)
    due = (form.num_columns, form.num_rows, form.num_samples)
    if not sizes or any(size != due for size in sizes):
        found = f"{' x '.join(map(str, sizes[0]))}" if sizes else "no size"
        raise fields.refuse(
            f"PixelData: found {found} in the compressed picture, accepted is columns x rows x samples as in the "
            f"header, {due[0]} x {due[1]} x {due[2]}"
        )


def _read_jpeg_sizes(frame: bytes) -> list[tuple[int, int, int]]:
    """Columns, rows and samples of every frame header before the first scan."""
    sizes = []
    place = 2
    while frame.startswith(b"\xff\xd8") and place + 10 <= len(frame) and frame[place] == 0xFF:
        marker = frame[place + 1]
        if marker == 0xDA:
            break
        if marker == 0xFF:
            place += 1
            continue
        if marker == 0xF7 or (0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC)):
            num_rows, num_columns, num_samples = struct.unpack_from(">HHB", frame, place + 5)
            sizes.append((num_columns, num_rows, num_samples))
        place += 2 + struct.unpack_from(">H", frame, place + 2)[0]
    return sizes


def _read_jpeg_2000_sizes(frame: bytes) -> list[tuple[int, int, int]]:
    if frame[2:4] != b"\xff\x51" or len(frame) < 42:
        return []
    _, _, right, bottom, left, top, *_, num_samples = struct.unpack_from(">HHIIIIIIIIH", frame, 4)
    return [(right - left, bottom - top, num_samples)]


def _decode_compressed(fields: Fields, form: PixelFormat, syntax: Syntax) -> np.ndarray:
    from pydicom.pixels import get_decoder, pixel_array

    available = get_decoder(fields.syntax).available_plugins
    for plugin in (plugin for plugin in syntax.decoders if plugin in available):
        with contextlib.suppress(Exception):
            pixels = pixel_array(fields.dataset, decoding_plugin=plugin, raw=True)
            due = (form.num_rows, form.num_columns) + ((form.num_samples,) if form.num_samples > 1 else ())
            if pixels.shape == due:
                return pixels
    if not set(available) & set(syntax.decoders):
        raise fields.refuse(f"found {syntax.name}, for which no decoder is installed: {syntax.install}")
    raise fields.refuse(f"PixelData: cannot be decoded as {syntax.name}")
