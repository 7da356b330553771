"""From stored values of a DICOM file to grey values on a screen: modality, window, polarity, padding.

All of it changes single values whatever their place, so it is worked out once for each value that may be
stored, at most 65,536, and not for each pixel (DICOM PS3.3 C.11.1 and C.11.2).
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
    """The grey value for each stored value, by its bits taken as an unsigned number.

    Args:
      fields: elements of the file.
      form: of its pixels.
      stored: its pixels, for the range where there is no window.

    Raises:
      BadInput: an element for it has a value that is not accepted.
    """
    values = np.arange(2**form.bits_stored, dtype=np.float64)
    if form.signed:
        values[values >= 2 ** (form.bits_stored - 1)] -= 2**form.bits_stored
    padding = _find_padding(fields, form, values)
    physical = _apply_modality(fields, form, values)
    shown = np.clip(_apply_window(fields, physical, occurring=_find_occurring(stored, form) & ~padding), 0.0, 1.0)
    if form.photometric == "MONOCHROME1":
        shown = 1.0 - shown
    shown[padding] = 0.0
    return np.floor(shown * 255.0 + 0.5).astype(np.uint8)


def _find_occurring(
    stored: UInt8[np.ndarray, "row column"] | UInt16[np.ndarray, "row column"], form: PixelFormat
) -> Bool[np.ndarray, "value"]:
    occurring = np.zeros(2**form.bits_stored, bool)
    occurring[stored] = True
    return occurring


def _find_padding(fields: Fields, form: PixelFormat, values: Float64[np.ndarray, "value"]) -> Bool[np.ndarray, "value"]:
    bounds = []
    for keyword in ("PixelPaddingValue", "PixelPaddingRangeLimit"):
        numbers = fields.numbers(keyword)
        # Some devices write the element of a signed picture as an unsigned number, or the other way round.
        bounds += [_wrap(number, signed=form.signed) for number in numbers[:1]]
    if not bounds or not fields.numbers("PixelPaddingValue"):
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
        raise fields.refuse("RescaleSlope: found 0, accepted is a number other than 0")
    return values * slope + intercept


def _apply_window(
    fields: Fields, physical: Float64[np.ndarray, "value"], *, occurring: Bool[np.ndarray, "value"]
) -> Float64[np.ndarray, "value"]:
    """Brightness for each value, 0 to 1 within the window."""
    item = fields.item("VOILUTSequence")
    if item is not None:
        entries, most = _look_up(item, physical, signed=bool(physical.min() < 0))
        return entries / most
    if fields.numbers("WindowCenter") and fields.numbers("WindowWidth"):
        centre = _read_number(fields, "WindowCenter", default=0.0)
        width = _read_number(fields, "WindowWidth", default=0.0)
        function = fields.choice("VOILUTFunction", _FUNCTIONS, default="LINEAR")
        return _window(fields, physical, centre=centre, width=width, function=function)
    if not occurring.any():
        return np.zeros(physical.shape)
    smallest, largest = physical[occurring].min(), physical[occurring].max()
    return (physical - smallest) / (largest - smallest) if largest > smallest else np.zeros(physical.shape)


def _window(
    fields: Fields, physical: Float64[np.ndarray, "value"], *, centre: float, width: float, function: str
) -> Float64[np.ndarray, "value"]:
    least = 1 if function == "LINEAR" else 0
    if width < max(least, 1e-6):
        accepted = "at least 1" if least else "at least 1e-6"
        raise fields.refuse(f"WindowWidth: found {width:g}, accepted with {function} is {accepted}")
    if function == "SIGMOID":
        return 1.0 / (1.0 + np.exp(np.clip(-4.0 * (physical - centre) / width, -700.0, 700.0)))
    if function == "LINEAR_EXACT":
        return (physical - centre) / width + 0.5
    if width == 1:
        return (physical > centre - 0.5).astype(np.float64)
    return (physical - (centre - 0.5)) / (width - 1.0) + 0.5


def _look_up(
    item: Fields, values: Float64[np.ndarray, "value"], *, signed: bool
) -> tuple[Float64[np.ndarray, "value"], float]:
    """Entries of a LUT for values, and the largest number that an entry can be.

    Values before the first entry get the first, values after the last get the last.
    """
    descriptor = item.numbers("LUTDescriptor")
    if len(descriptor) != 3:
        raise item.refuse(f"LUTDescriptor: found {len(descriptor)} values, accepted are 3")
    # The standard writes 65,536 entries as 0; a reader that takes the number as signed sees it below 0.
    num_entries = int(descriptor[0]) % _MAX_ENTRIES or _MAX_ENTRIES
    first = _wrap(descriptor[1], signed=signed)
    bits = int(descriptor[2])
    if not 8 <= bits <= 16:
        raise item.refuse(f"LUTDescriptor: found entries of {bits} bits, accepted are 8 to 16")
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
        raise item.refuse(f"LUTData: found {len(entries)} entries, accepted are {num_entries}, as its descriptor says")
    return np.clip(entries[:num_entries].astype(np.float64), 0, 2**bits - 1)


def _read_number(fields: Fields, keyword: str, *, default: float) -> float:
    numbers = fields.numbers(keyword)
    number = numbers[0] if numbers else default
    if not math.isfinite(number) or abs(number) > 1e9:
        raise fields.refuse(f"{keyword}: found {number:g}, accepted is a number from -1e9 to 1e9")
    return number
