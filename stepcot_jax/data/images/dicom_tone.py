"""Stored values of a DICOM file to grey values on a screen: modality, window, polarity, padding.

Each depends on the value alone and not on its place, so it is computed once for each of the at most 65,536 values
(DICOM PS3.3 C.11.1 and C.11.2). pydicom applies the windows. Its lookup tables are not used: `apply_modality_lut` fails
on entries of 10, 12 or 14 bits, and `apply_voi` wraps indices above 255 where entries have 8 bits (pydicom 3.0.2).
"""

import math

import numpy as np
from jaxtyping import Bool, Float64, UInt8, UInt16

from stepcot_jax.data.images.dicom_fields import Fields
from stepcot_jax.data.images.dicom_pixels import PixelFormat

_FUNCTIONS = ("LINEAR", "LINEAR_EXACT", "SIGMOID")
_MAX_ENTRIES = 65_536


def make_tone_table(
    fields: Fields, form: PixelFormat, stored: UInt8[np.ndarray, "row column"] | UInt16[np.ndarray, "row column"]
) -> UInt8[np.ndarray, "value"]:
    """Return the grey value for each stored value, indexed by its bits as an unsigned number.

    The pixels `stored` give the range if the file has no window.
    """
    values = np.arange(2**form.bits_stored, dtype=np.float64)
    if form.signed:
        values[values >= 2 ** (form.bits_stored - 1)] -= 2**form.bits_stored
    padding = _find_padding(fields, form, values)
    occurring = np.zeros(len(values), bool)
    occurring[stored] = True
    physical = _apply_modality(fields, form, values)
    shown = np.clip(_apply_window(fields, physical, occurring=occurring & ~padding), 0.0, 255.0)
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


def _apply_window(
    fields: Fields, physical: Float64[np.ndarray, "value"], *, occurring: Bool[np.ndarray, "value"]
) -> Float64[np.ndarray, "value"]:
    """Return the brightness for each value, 0 to 255 within the window."""
    item = fields.item("VOILUTSequence")
    if item is not None:
        entries, most = _look_up(item, physical, signed=bool(physical.min() < 0))
        return entries / most * 255.0
    if fields.numbers("WindowCenter") and fields.numbers("WindowWidth"):
        return _apply_pydicom_window(fields, physical)
    found = physical[occurring]
    if not found.size or found.min() == found.max():
        return np.zeros(physical.shape)
    return (physical - found.min()) / (found.max() - found.min()) * 255.0


def _apply_pydicom_window(fields: Fields, physical: Float64[np.ndarray, "value"]) -> Float64[np.ndarray, "value"]:
    from pydicom import Dataset
    from pydicom.pixels import apply_windowing

    centre = _read_number(fields, "WindowCenter", default=0.0)
    width = _read_number(fields, "WindowWidth", default=0.0)
    function = fields.choice("VOILUTFunction", _FUNCTIONS, default="LINEAR")
    least = 1 if function == "LINEAR" else 1e-6
    if width < least:
        raise fields.refuse(f"WindowWidth: {width:g}; expected at least {least:g} with {function}")
    # pydicom scales the window to the range of the stored values: here to that of 8 bits.
    window = Dataset()
    window.PhotometricInterpretation, window.BitsStored, window.PixelRepresentation = "MONOCHROME2", 8, 0
    window.WindowCenter, window.WindowWidth, window.VOILUTFunction = centre, width, function
    with np.errstate(over="ignore"):  # of the sigmoid's exponential, far below the window
        return apply_windowing(physical, window)


def _look_up(
    item: Fields, values: Float64[np.ndarray, "value"], *, signed: bool
) -> tuple[Float64[np.ndarray, "value"], float]:
    """Return the entries of a LUT for values, and the largest number that an entry can be.

    Values before the first entry get the first, values after the last get the last.
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
    places = np.clip(np.floor(values - first), 0, num_entries - 1).astype(np.int64)
    return entries[places], float(2**bits - 1)


def _read_entries(item: Fields, *, num_entries: int, bits: int) -> Float64[np.ndarray, "entry"]:
    data = item.value("LUTData")
    if isinstance(data, bytes):
        packed = bits == 8 and len(data) < 2 * num_entries
        entries = np.frombuffer(data, np.uint8 if packed else item.word, count=len(data) // (1 if packed else 2))
    else:
        entries = np.asarray(item.numbers("LUTData"))
    if len(entries) < num_entries:
        raise item.refuse(f"LUTData: {len(entries)} entries instead of {num_entries}, as its descriptor says")
    return np.clip(entries[:num_entries].astype(np.float64), 0, 2**bits - 1)


def _read_number(fields: Fields, keyword: str, *, default: float) -> float:
    numbers = fields.numbers(keyword)
    number = numbers[0] if numbers else default
    if not math.isfinite(number) or abs(number) > 1e9:
        raise fields.refuse(f"{keyword}: {number:g}; expected a number from -1e9 to 1e9")
    return number
