"""Radiographs from DICOM files as a workstation shows them, without the patient's data.

Only the picture's elements are parsed. pydicom's messages quote values, so none reaches an error, a warning or a log.
"""

import contextlib
import dataclasses
import importlib
import logging
import math
import re
import struct
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float64, Int64, UInt8, UInt16

from stepcot_jax.data.images.dicom_fields import (
    EXTRA,
    RLE,
    SYNTAXES,
    Fields,
    HeaderFile,
    attempt,
)
from stepcot_jax.data.images.dicom_notes import OVERLAY_POSITIONS, OVERLAY_ROWS, PARSED, lift_groups, note_header
from stepcot_jax.data.images.file_formats import DICOM_START, RESAVE, Note, ignore_note, is_dicom
from stepcot_jax.data.projections import VIEWS, Projection, name_projection
from stepcot_jax.host.errors import BadInput

if TYPE_CHECKING:
    from pydicom import Dataset

_PADDED = 512  # bytes of zeros behind the pixels, at most (a block); one is usual
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
        elif len(data) < form.num_bytes or len(data) > form.num_bytes + _PADDED or any(data[form.num_bytes + 1 :]):
            raise fields.refuse(
                f"PixelData: {len(data)} bytes instead of {form.num_bytes}, Rows x Columns x samples x bytes of its "
                "header: is it cut, of several frames, or was it sent in text mode (FTP, mail)? Send it as binary"
            )
        pixels = _decode_with_pydicom(fields, form)
    if form.bits_stored == 8 and pixels.itemsize == 1:
        return pixels.astype(np.uint8, copy=False), form
    values = pixels.astype(np.uint16, copy=False)
    if (share := _share_beyond(values, form)) > 0:
        if form.bits_stored < precision <= 16:
            form = dataclasses.replace(form, bits_stored=precision)
        elif not any(tag in fields.dataset for tag in OVERLAY_POSITIONS):  # as old devices write an overlay
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


# `ViewPosition` decides, else the first code of `ViewCodeSequence` (PS3.16, context group 4010); no free text is read.

_SCHEMES = ("SCT", "SRT", "SNM3", "99SDM")


def find_projection(fields: Fields) -> Projection:
    """Return the projection that a header names; "" if it names none or cannot be read."""
    with contextlib.suppress(BadInput):
        position = fields.value("ViewPosition")
        if isinstance(position, str) and position.strip():
            return name_projection(position)
    with contextlib.suppress(BadInput):
        code = fields.item("ViewCodeSequence")
        if code is not None and str(code.value("CodingSchemeDesignator")).strip() in _SCHEMES:
            value = str(code.value("CodeValue")).strip()
            return next((projection for projection, codes in VIEWS["codes"].items() if value in codes), "")
    return ""


# A grey value depends on the stored value and not on the pixel, so it is computed once for each of the at most 65,536
# values (DICOM PS3.3 C.11.1 and C.11.2). pydicom's lookup tables are not used: `apply_modality_lut` fails on entries of
# 10, 12 or 14 bits, and `apply_voi` wraps indices above 255 where entries have 8 bits (pydicom 3.0.2).

_FUNCTIONS = ("LINEAR", "LINEAR_EXACT", "SIGMOID")
_MAX_ENTRIES = 65_536
_SHARE_CUT = 0.01  # of the pixels at either end, such as a burned-in marker, that do not count for the range
_LEAST_SHOWN = 255 / 10  # brightness that a window spreads the pixels over; a narrower one misses them


def make_tone_table(
    fields: Fields,
    form: PixelFormat,
    stored: UInt8[np.ndarray, "row column"] | UInt16[np.ndarray, "row column"],
    *,
    note: Note,
) -> UInt8[np.ndarray, "value"]:
    """Return the grey value for each stored value, indexed by its bits as an unsigned number."""
    values = np.arange(2**form.bits_stored, dtype=np.float64)
    if form.signed:
        values[values >= 2 ** (form.bits_stored - 1)] -= 2**form.bits_stored
    padding = _find_padding(fields, form, values)
    parts = np.array_split(stored.ravel(), 1 + (stored.size >> 20))  # bincount makes a copy of 64-bit numbers
    counts = np.sum([np.bincount(part, minlength=len(values)) for part in parts], axis=0)
    counts[padding] = 0
    physical = _apply_modality(fields, form, values)
    shown = np.clip(_choose_tones(fields, physical, counts, note=note), 0.0, 255.0)
    if form.photometric == "MONOCHROME1":
        shown = 255.0 - shown
    shown[padding] = 0.0
    return np.floor(shown + 0.5).astype(np.uint8)


def _find_padding(fields: Fields, form: PixelFormat, values: Float64[np.ndarray, "value"]) -> Bool[np.ndarray, "value"]:
    # Some devices write the element of a signed picture as an unsigned number, or the other way round.
    bounds = [
        _wrap(number, signed=form.signed)
        for keyword in ("PixelPaddingValue", "PixelPaddingRangeLimit")
        for number in fields.numbers(keyword)[:1]
    ]
    if not fields.numbers("PixelPaddingValue"):
        return np.zeros(values.shape, bool)
    return (values >= min(bounds)) & (values <= max(bounds))


def _wrap(number: float, *, signed: bool) -> float:
    if signed and number >= 2**15:
        return number - 2**16
    return number + 2**16 if not signed and number < 0 else number


def _apply_modality(
    fields: Fields, form: PixelFormat, values: Float64[np.ndarray, "value"]
) -> Float64[np.ndarray, "value"]:
    item = fields.item("ModalityLUTSequence")
    if item is not None:
        return _look_up(item, values, signed=form.signed)[0]
    slope = _read_number(fields, "RescaleSlope", default=1.0)
    intercept = _read_number(fields, "RescaleIntercept", default=0.0)
    if slope == 0:
        raise fields.refuse("RescaleSlope: 0 is not a slope")
    return values * slope + intercept


def _choose_tones(
    fields: Fields, physical: Float64[np.ndarray, "value"], counts: Int64[np.ndarray, "value"], *, note: Note
) -> Float64[np.ndarray, "value"]:
    """Return the brightness for each value by the first LUT or window that shows the pixels, else by their range."""
    num_missed = 0
    for brightness in _apply_windows(fields, physical):
        low, high = _find_range(np.clip(brightness, 0.0, 255.0), counts)
        if high - low >= _LEAST_SHOWN:
            break
        num_missed += 1
    else:
        low, high = _find_range(physical, counts)
        if low == high:  # a small bright spot on one grey
            low, high = _find_range(physical, counts, share_cut=0.0)
        brightness = (physical - low) / (high - low) * 255.0 if high > low else np.zeros(physical.shape)
    if num_missed:
        note("a window or VOI LUT of its DICOM header misses the pixels: the next one, or their range, is used")
    return brightness


def _find_range(
    values: Float64[np.ndarray, "value"], counts: Int64[np.ndarray, "value"], *, share_cut: float = _SHARE_CUT
) -> tuple[float, float]:
    """Return the smallest and the largest value of the pixels, without those at either end."""
    occurring = np.flatnonzero(counts)
    if not len(occurring):
        return 0.0, 0.0
    order = occurring[np.argsort(values[occurring], kind="stable")]
    sums = np.cumsum(counts[order])
    cut = int(share_cut * sums[-1])
    low, high = values[order[np.searchsorted(sums, [cut, sums[-1] - 1 - cut], side="right")]].tolist()
    return low, high


def _apply_windows(fields: Fields, physical: Float64[np.ndarray, "value"]) -> Iterator[Float64[np.ndarray, "value"]]:
    """Yield the brightness for each value by every VOI LUT, then by every window: 0 to 255 within it."""
    for item in fields.items("VOILUTSequence"):
        entries, most = _look_up(item, physical, signed=bool(physical.min() < 0))
        yield entries / most * 255.0
    for centre, width in zip(fields.numbers("WindowCenter"), fields.numbers("WindowWidth"), strict=False):
        yield _apply_window(fields, physical, centre=centre, width=width)


def _apply_window(
    fields: Fields, physical: Float64[np.ndarray, "value"], *, centre: float, width: float
) -> Float64[np.ndarray, "value"]:
    _check_number(fields, "WindowCenter", centre)
    _check_number(fields, "WindowWidth", width)
    function = fields.choice("VOILUTFunction", _FUNCTIONS, default="LINEAR")
    least = 1 if function == "LINEAR" else 1e-6
    if width < least:
        raise fields.refuse(f"WindowWidth: {width:g}; expected at least {least:g} with {function}")
    if function == "SIGMOID":
        with np.errstate(over="ignore"):  # far below the window
            return 255.0 / (1.0 + np.exp(-4.0 * (physical - centre) / width))
    if function == "LINEAR":
        centre, width = centre - 0.5, width - 1.0
    return ((physical - centre) / width + 0.5) * 255.0 if width else np.where(physical > centre, 255.0, 0.0)


def _look_up(
    item: Fields, values: Float64[np.ndarray, "value"], *, signed: bool
) -> tuple[Float64[np.ndarray, "value"], float]:
    """Return the entries of a LUT for values, and the largest number that an entry can be.

    Many devices write 16, the width of storage, or another number for entries of fewer bits: the largest entry decides.
    """
    descriptor = item.numbers("LUTDescriptor")
    if len(descriptor) != 3:
        raise item.refuse(f"LUTDescriptor: {len(descriptor)} values instead of 3")
    # The standard writes 65,536 entries as 0; pydicom may read the number as signed.
    num_entries = int(descriptor[0]) % _MAX_ENTRIES or _MAX_ENTRIES
    first = _wrap(descriptor[1], signed=signed)
    bits = int(descriptor[2])
    if not 8 <= bits <= 16:
        raise item.refuse(f"LUTDescriptor: entries of {bits} bits; expected 8 to 16")
    entries = _read_entries(item, num_entries=num_entries, bits=bits)
    bits = max(1, int(entries.max()).bit_length())
    indices = np.clip(np.floor(values - first), 0, num_entries - 1).astype(np.int64)
    return entries[indices], float(2**bits - 1)


def _read_entries(item: Fields, *, num_entries: int, bits: int) -> Float64[np.ndarray, "entry"]:
    data = item.value("LUTData")
    if isinstance(data, bytes):
        packed = bits == 8 and len(data) < 2 * num_entries
        entries = np.frombuffer(data, np.uint8 if packed else item.word, count=len(data) // (1 if packed else 2))
    else:
        entries = np.asarray(item.numbers("LUTData"))
    if len(entries) < num_entries:
        raise item.refuse(f"LUTData: {len(entries)} entries instead of {num_entries}, as its descriptor says")
    return np.clip(entries[:num_entries].astype(np.float64), 0, 2**16 - 1)


def _read_number(fields: Fields, keyword: str, *, default: float) -> float:
    numbers = fields.numbers(keyword)
    return _check_number(fields, keyword, numbers[0] if numbers else default)


def _check_number(fields: Fields, keyword: str, number: float) -> float:
    if not math.isfinite(number) or abs(number) > 1e9:
        raise fields.refuse(f"{keyword}: {number:g}; expected a number from -1e9 to 1e9")
    return number


def _refuse_unprocessed(fields: Fields) -> None:
    intent = fields.value("PresentationIntentType")
    if str(intent).strip().upper() == "FOR PROCESSING" or fields.kind.endswith("For Processing"):
        raise fields.refuse(
            "is FOR PROCESSING, the raw picture of the detector (PresentationIntentType or SOPClassUID); expected "
            "FOR PRESENTATION: export the processed picture"
        )


_EXPECTED = "expected a DICOM file of one grey picture of 8 to 16 bits, or of one 8-bit RGB picture"
_MAX_SIDE = 65_535
_FILE_META_GROUP = 2
_PARSED = (
    *("SOPClassUID", "ViewPosition", "ViewCodeSequence"),
    *("SamplesPerPixel", "PhotometricInterpretation", "PlanarConfiguration"),
    *("NumberOfFrames", "Rows", "Columns", "BitsAllocated", "BitsStored", "HighBit", "PixelRepresentation"),
    *("PixelData", "PresentationIntentType", *PARSED),
)

_QUOTING = r"(pydicom|pylibjpeg|openjpeg|libjpeg|rle|jpeg_ls|_CharLS|gdcm)(\.|$)"
_IGNORED = ("ignore", None, Warning, re.compile(_QUOTING), 0)


def read_dicom(
    content: bytes, *, name: str, max_pixels: int, note: Note = ignore_note
) -> UInt8[np.ndarray, "height width"]:
    """Return the picture of a DICOM file, high is bright, as a workstation first shows it.

    Stored values go through the modality LUT or slope and intercept, then through the first VOI LUT, else the first
    window (linear, linear exact or sigmoid; DICOM PS3.3 C.11.2). One that spreads the pixels over less than a tenth of
    the brightness is passed over, and `note` told. Without any, the range of the pixels is shown, less 1 % at either
    end. Functional groups of the only frame count as the root does. MONOCHROME1 is inverted. Padding does not count for
    the range and is black. RGB becomes grey with ITU-R 601 weights. Overlays, shutters and presentation states are not
    applied. Pictures FOR PROCESSING are refused.
    """
    _silence_pydicom(name)
    fields = _read_fields(content, name=name)
    _refuse_unprocessed(fields)
    form = _read_format(fields, max_pixels=max_pixels)
    lift_groups(fields, note)
    stored, form = decode_stored(fields, form)
    note_header(fields, form.photometric, find_projection(fields), note)
    if form.num_samples == 1:
        pixels = make_tone_table(fields, form, stored, note=note)[stored]
    else:
        # Pillow's integer weights, so that DICOM and PNG colour give the same grey.
        red, green, blue = (stored[..., channel].astype(np.uint32) for channel in range(3))
        pixels = ((red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16).astype(np.uint8)
    return pixels


def read_projection(content: bytes, *, name: str) -> Projection:
    """Return the projection that the header of a DICOM file names, without decoding its picture."""
    _silence_pydicom(name)
    return find_projection(_read_fields(content, name=name))


def read_size(start: bytes, *, name: str) -> tuple[int, int]:
    """Return width and height in pixels, of a DICOM file's first bytes."""
    _silence_pydicom(name)
    from pydicom.filereader import read_dataset
    from pydicom.tag import Tag
    from pydicom.uid import UID

    file, otherwise = HeaderFile(start, name=name), BadInput(f"{name}: cannot be read as DICOM; {_EXPECTED}")
    file.seek(DICOM_START)
    uid = UID(file.parse(lambda: _read_syntax(file), otherwise))
    tags: Any = [Tag("Rows"), Tag("Columns")]
    dataset = file.parse(
        lambda: read_dataset(
            file,
            uid.is_implicit_VR,
            uid.is_little_endian,
            stop_when=lambda tag, _vr, _length: tag > tags[1],
            specific_tags=tags,
        ),
        otherwise,
    )
    height, width = file.parse(lambda: [int(dataset[tag].value) for tag in tags], otherwise)
    return width, height


def _silence_pydicom(name: str) -> None:
    otherwise = BadInput(f"{name}: reading a DICOM file requires pydicom: {EXTRA}")
    attempt(lambda: importlib.import_module("pydicom.pixels"), otherwise)
    if _IGNORED not in warnings.filters:
        warnings.filterwarnings("ignore", module=_QUOTING)
    for logger_name in list(logging.root.manager.loggerDict):
        if re.match(_QUOTING, logger_name):
            logging.getLogger(logger_name).addFilter(_drop)


def _drop(_: logging.LogRecord) -> bool:
    return False


def _read_fields(content: bytes, *, name: str) -> Fields:
    if not is_dicom(content):
        raise BadInput(f"{name}: is not a DICOM file; {_EXPECTED}")
    file = HeaderFile(content, name=name)
    file.seek(DICOM_START)
    otherwise = BadInput(f"{name}: cannot be read as DICOM; {_EXPECTED}")
    syntax = file.parse(lambda: _read_syntax(file), otherwise)
    if not syntax:
        raise BadInput(f"{name}: TransferSyntaxUID is missing: no reader can tell how its pixels are packed; {RESAVE}")
    if syntax not in SYNTAXES:
        from pydicom.uid import UID_dictionary

        # A known name only: the element of a corrupt file may hold anything.
        syntax_name = UID_dictionary[syntax][0] if syntax in UID_dictionary else "an unknown syntax"
        accepted = ", ".join(known.name for known in SYNTAXES.values())
        raise BadInput(f"{name}: TransferSyntaxUID: {syntax_name} is not one of {accepted}")
    dataset = file.parse(lambda: _read_dataset(file, syntax), otherwise)
    behind = content[file.pixels_end :]
    if behind.strip(b"\0\r\n") and not (file.is_followed and len(behind) >= 8):
        raise BadInput(
            f"{name}: PixelData: {len(behind)} bytes more than its length says: was the file sent in text mode (FTP, "
            "mail), or saved with something behind it? Send it as binary"
        )
    return Fields(dataset, name=name, syntax=syntax)


def _read_syntax(file: HeaderFile) -> str:
    from pydicom.filereader import read_dataset

    meta = read_dataset(
        file,
        is_implicit_VR=False,
        is_little_endian=True,
        stop_when=lambda tag, _vr, _length: tag >> 16 != _FILE_META_GROUP,
    )
    return str(meta.get("TransferSyntaxUID", ""))


def _read_dataset(file: HeaderFile, syntax: str) -> "Dataset":
    """Parse the picture's elements; `dcmread` would inflate a deflated file, to any size."""
    from pydicom.datadict import tag_for_keyword
    from pydicom.dataset import FileMetaDataset
    from pydicom.filereader import read_dataset
    from pydicom.tag import BaseTag, Tag
    from pydicom.uid import UID

    tags: list[BaseTag | int] = [Tag(tag) for keyword in _PARSED if (tag := tag_for_keyword(keyword)) is not None]
    tags += map(Tag, (*OVERLAY_POSITIONS, *OVERLAY_ROWS))
    uid = UID(syntax)
    implicit, little_endian = uid.is_implicit_VR, uid.is_little_endian
    dataset = read_dataset(file, implicit, little_endian, stop_when=file.watch, specific_tags=tags)
    dataset.set_original_encoding(implicit, little_endian)
    dataset.file_meta = FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = uid
    return dataset


def _read_format(fields: Fields, *, max_pixels: int) -> PixelFormat:
    if fields.value("PixelData") in (None, "", b""):
        if fields.value("DirectoryRecordSequence") is not None or fields.kind == "Media Storage Directory Storage":
            raise fields.refuse(f"is a DICOMDIR, the index of other files, which hold the pictures; {_EXPECTED}")
        raise fields.refuse(f"has no PixelData ({fields.kind}); {_EXPECTED}")
    num_frames = fields.integer("NumberOfFrames", default=1)
    if num_frames != 1:
        raise fields.refuse(f"NumberOfFrames: {num_frames} instead of 1")
    form = PixelFormat(
        num_rows=fields.integer("Rows", least=1, most=_MAX_SIDE),
        num_columns=fields.integer("Columns", least=1, most=_MAX_SIDE),
        num_samples=fields.integer("SamplesPerPixel", default=1),
        bits_allocated=fields.integer("BitsAllocated"),
        bits_stored=fields.integer("BitsStored"),
        signed=fields.integer("PixelRepresentation", default=0, least=0, most=1) == 1,
        photometric=fields.choice("PhotometricInterpretation", ("MONOCHROME1", "MONOCHROME2", "RGB")),
        planar=fields.integer("PlanarConfiguration", default=0, least=0, most=1) == 1,
    )
    if form.num_rows * form.num_columns > max_pixels:
        raise fields.refuse(f"{form.num_columns} x {form.num_rows} pixels in its header are more than {max_pixels}")
    colour = form.photometric == "RGB"
    if form.num_samples != (3 if colour else 1):
        raise fields.refuse(
            f"SamplesPerPixel: {form.num_samples} with {form.photometric}; expected 1 for grey and 3 for RGB"
        )
    if form.bits_allocated not in ((8,) if colour else (8, 16)) or not 8 <= form.bits_stored <= form.bits_allocated:
        raise fields.refuse(
            f"BitsStored: {form.bits_stored} in BitsAllocated {form.bits_allocated}; expected 8 to 16 in 8 or 16 "
            "(RGB: 8 in 8)"
        )
    high_bit = fields.integer("HighBit", default=form.bits_stored - 1)
    if high_bit != form.bits_stored - 1:
        raise fields.refuse(f"HighBit: {high_bit}; expected {form.bits_stored - 1}, BitsStored less 1")
    return form
