"""Stored values of a DICOM picture, never more than its header declares.

pydicom decodes all but RLE; the size in the header and in a compressed picture is checked before a decoder runs.
"""

import contextlib
import dataclasses
import struct

import numpy as np
from jaxtyping import UInt8, UInt16

from stepcot_jax.data.images.dicom_fields import RLE, SYNTAXES, Fields, attempt

OVERLAY_POSITIONS = tuple(0x60000102 + (number << 16) for number in range(0, 32, 2))
"""Tags of the bit that an overlay takes up in the pixels, one for each overlay."""

_SIGNED = 0x80  # bit of a JPEG 2000 component's depth


@dataclasses.dataclass(frozen=True)
class PixelFormat:
    """How pixels are stored."""

    num_rows: int
    num_columns: int
    num_samples: int  # 1 for grey, 3 for colour
    bits_allocated: int  # bits that a sample takes up
    bits_stored: int  # bits of it that count, the lowest ones
    signed: bool  # whether these bits are a two's complement
    photometric: str  # MONOCHROME1 (high is dark), MONOCHROME2 or RGB
    planar: bool  # whether all of red comes first, then all of green, then all of blue

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows and columns, and samples if there are several."""
        return (self.num_rows, self.num_columns) + ((self.num_samples,) if self.num_samples > 1 else ())

    @property
    def num_bytes(self) -> int:
        """Bytes of the picture uncompressed."""
        return self.num_rows * self.num_columns * self.num_samples * self.bits_allocated // 8


def decode_stored(
    fields: Fields, form: PixelFormat
) -> tuple[UInt8[np.ndarray, "row column *sample"] | UInt16[np.ndarray, "row column *sample"], PixelFormat]:
    """Return the stored values, their bits taken as unsigned numbers below 2 ** bits_stored, and the true format.

    Of a compressed picture with values beyond BitsStored, the precision in its codestream counts, and so does the sign
    of a JPEG 2000 codestream.
    """
    data = fields.value("PixelData")
    if not isinstance(data, bytes):
        raise fields.refuse("PixelData: cannot be read; expected bytes")
    precision = form.bits_stored
    if fields.syntax == RLE:
        pixels = _decode_rle(_join_fragments(data, fields), fields, form)
    else:
        if SYNTAXES[fields.syntax].decoders:
            precision, signed = _check_compressed_size(_join_fragments(data, fields), fields, form)
            form = dataclasses.replace(form, signed=form.signed or signed)
        elif len(data) < form.num_bytes:
            raise fields.refuse(f"PixelData: {len(data)} bytes instead of {form.num_bytes}, as its header says")
        pixels = _decode_with_pydicom(fields, form)
    if form.bits_stored == 8 and pixels.itemsize == 1:
        return pixels.astype(np.uint8, copy=False), form
    values = pixels.astype(np.uint16, copy=False)
    if (share := _share_beyond(values, form)) > 0:
        if form.bits_stored < precision <= 16:
            form = dataclasses.replace(form, bits_stored=precision)
        elif not _has_packed_overlay(fields):
            raise fields.refuse(
                f"BitsStored: {form.bits_stored}, but {share:.2%} of the pixels have higher bits (largest value "
                f"{int(values.max())}); correct BitsStored and HighBit, or clear the bits above"
            )
    return values & np.uint16(2**form.bits_stored - 1), form


def _share_beyond(values: UInt16[np.ndarray, "..."], form: PixelFormat) -> float:
    """Return the share of values with bits above BitsStored that do not just repeat the sign."""
    if form.bits_stored == 16:
        return 0.0
    if form.signed:
        above = values >> np.uint16(form.bits_stored - 1)
        repeated = np.uint16(2 ** (17 - form.bits_stored) - 1)
        return float(((above > 1) & (above != repeated)).mean())
    return float((values >> np.uint16(form.bits_stored) > 0).mean())


def _has_packed_overlay(fields: Fields) -> bool:
    """Whether the header declares an overlay in the bits of the pixels, as old devices write it."""
    return any(tag in fields.dataset for tag in OVERLAY_POSITIONS)


def _decode_with_pydicom(fields: Fields, form: PixelFormat) -> np.ndarray:
    from pydicom.pixels import get_decoder, pixel_array

    # Devices leave these out where they have only one sensible value; pydicom requires them.
    fields.dataset.SamplesPerPixel, fields.dataset.PixelRepresentation = form.num_samples, int(form.signed)
    fields.dataset.PlanarConfiguration = int(form.planar)
    syntax = SYNTAXES[fields.syntax]
    available = get_decoder(fields.syntax).available_plugins
    for plugin in [name for name in syntax.decoders if name in available] if syntax.decoders else [""]:
        with contextlib.suppress(Exception):
            pixels = pixel_array(fields.dataset, decoding_plugin=plugin, raw=True, correct_unused_bits=False)
            if pixels.shape == form.shape:
                return pixels
    if syntax.decoders and not set(available) & set(syntax.decoders):
        raise fields.refuse(f"no decoder for {syntax.name} is installed: {syntax.install}")
    raise fields.refuse(f"PixelData: cannot be decoded as {syntax.name}")


def _join_fragments(data: bytes, fields: Fields) -> bytes:
    from pydicom.encaps import generate_frames

    otherwise = fields.refuse("PixelData: cannot be read as fragments of one compressed picture")
    return attempt(lambda: next(generate_frames(data, number_of_frames=1)), otherwise)


def _decode_rle(frame: bytes, fields: Fields, form: PixelFormat) -> np.ndarray:
    """Decode PS3.5 annex G up to the header's size; pydicom's decoder expands a segment to 64 times its size first."""
    bytes_a_sample = form.bits_allocated // 8
    num_segments = form.num_samples * bytes_a_sample
    num_values = form.num_rows * form.num_columns
    header = struct.unpack("<16L", frame[:64].ljust(64, b"\0"))
    if len(frame) < 64 or header[0] != num_segments:
        raise fields.refuse(f"PixelData: {header[0]} RLE segments instead of {num_segments}")
    bounds = [*header[1 : num_segments + 1], len(frame)]
    planes = np.empty((num_segments, form.num_rows, form.num_columns), np.uint8)
    for plane, start, stop in zip(planes, bounds[:-1], bounds[1:], strict=True):
        values = _unpack_segment(frame[start:stop], num_values=num_values)
        if len(values) < num_values:
            raise fields.refuse(f"PixelData: an RLE segment of {len(values)} bytes instead of {num_values}")
        plane[...] = np.frombuffer(values, np.uint8, count=num_values).reshape(plane.shape)
    if bytes_a_sample == 2:
        return planes[0].astype(np.uint16) << 8 | planes[1]
    return planes[0] if form.num_samples == 1 else np.moveaxis(planes, 0, -1)


def _unpack_segment(segment: bytes, *, num_values: int) -> bytearray:
    values = bytearray()
    position = 0
    while len(values) < num_values and position < len(segment) - 1:
        count = segment[position]
        if count < 128:
            values += segment[position + 1 : position + 2 + count]
            position += 2 + count
        else:
            values += segment[position + 1 : position + 2] * (257 - count if count > 128 else 0)
            position += 2 if count > 128 else 1
    return values


def _check_compressed_size(frame: bytes, fields: Fields, form: PixelFormat) -> tuple[int, bool]:
    """Check the size in a compressed picture, and return its bits a sample and whether these have a sign."""
    sizes = _read_jpeg_2000_sizes(frame) if frame.startswith(b"\xff\x4f") else _read_jpeg_sizes(frame)
    expected = (form.num_columns, form.num_rows, form.num_samples)
    if not sizes or any(size[:3] != expected for size in sizes):
        shown = " x ".join(map(str, sizes[0][:3])) if sizes else "no size"
        raise fields.refuse(
            f"PixelData: {shown} (columns x rows x samples) in the compressed picture instead of "
            f"{expected[0]} x {expected[1]} x {expected[2]}, as its header says"
        )
    depth = max(depth for *_, depth in sizes)
    return depth & ~_SIGNED, bool(depth & _SIGNED)


def _read_jpeg_sizes(frame: bytes) -> list[tuple[int, int, int, int]]:
    """Return columns, rows, samples and bits a sample of every frame header before the first scan."""
    sizes = []
    position = 2
    while frame.startswith(b"\xff\xd8") and position + 10 <= len(frame) and frame[position] == 0xFF:
        marker = frame[position + 1]
        if marker == 0xDA:
            break
        if marker == 0xFF:
            position += 1
            continue
        if marker == 0xF7 or (0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC)):
            precision, num_rows, num_columns, num_samples = struct.unpack_from(">BHHB", frame, position + 4)
            sizes.append((num_columns, num_rows, num_samples, precision))
        position += 2 + struct.unpack_from(">H", frame, position + 2)[0]
    return sizes


def _read_jpeg_2000_sizes(frame: bytes) -> list[tuple[int, int, int, int]]:
    if frame[2:4] != b"\xff\x51" or len(frame) < 43:
        return []
    _, _, right, bottom, left, top, *_, num_samples, depth = struct.unpack_from(">HHIIIIIIIIHB", frame, 4)
    return [(right - left, bottom - top, num_samples, (depth & ~_SIGNED) + 1 | depth & _SIGNED)]
