"""Radiographs from DICOM files as a workstation shows them, without the patient's data.

Only the elements that the picture needs are parsed. Names, dates and identifiers are read by `read_header` alone, for
reports that are filed with the image. pydicom's and highdicom's messages quote values, so they are kept out of
exceptions, warnings and logs.
"""

import contextlib
import dataclasses
import importlib
import logging
import math
import re
import warnings
from typing import TYPE_CHECKING, Literal

import numpy as np
from jaxtyping import UInt8

from stepcot_jax.data.images.dicom_bounds import HeaderFile, clean_items, is_packed
from stepcot_jax.data.images.dicom_fields import EXTRA, SYNTAXES, Fields, attempt
from stepcot_jax.data.images.dicom_pixels import PixelFormat, decode_stored
from stepcot_jax.data.images.dicom_projection import Projection, find_projection
from stepcot_jax.data.images.dicom_tone import make_tone_table
from stepcot_jax.host.errors import BadInput

if TYPE_CHECKING:
    from pydicom import Dataset

_EXPECTED = "expected a DICOM file of one grey picture of 8 to 16 bits, or of one 8-bit RGB picture"

SpacingSource = Literal["PixelSpacing", "ImagerPixelSpacing", "NominalScannedPixelSpacing", ""]

_PREAMBLE_BYTES, _MAGIC = 128, b"DICM"
_MAX_SIDE = 65_535
_FILE_META_GROUP, _PIXELS = 2, 0x7FE00000
_PARSED = (
    *("SOPClassUID", "Modality", "ViewPosition", "ViewCodeSequence", "PixelSpacing", "ImagerPixelSpacing"),
    *("NominalScannedPixelSpacing", "SamplesPerPixel", "PhotometricInterpretation", "PlanarConfiguration"),
    *("NumberOfFrames", "Rows", "Columns", "BitsAllocated", "BitsStored", "HighBit", "PixelRepresentation"),
    *("PixelPaddingValue", "PixelPaddingRangeLimit", "RescaleIntercept", "RescaleSlope", "ModalityLUTSequence"),
    *("WindowCenter", "WindowWidth", "VOILUTFunction", "VOILUTSequence", "PixelData"),
)
_SPACINGS: tuple[SpacingSource, ...] = ("PixelSpacing", "ImagerPixelSpacing", "NominalScannedPixelSpacing")
_QUOTING = r"(pydicom|highdicom|pylibjpeg|openjpeg|libjpeg|rle|jpeg_ls|_CharLS|gdcm)(\.|$)"
_IGNORED = ("ignore", None, Warning, re.compile(_QUOTING), 0)


@dataclasses.dataclass(frozen=True)
class DicomImage:
    """A radiograph as a workstation shows it.

    Attributes:
      pixels: uint8 [height, width], high is bright (dense).
      pixel_spacing_mm: distance of rows and of columns in millimetres; None where the file has none above 0.
      spacing_source: element that the spacing comes from. "PixelSpacing" is meant for the patient,
        "ImagerPixelSpacing" is at the detector, where everything is magnified,
        "NominalScannedPixelSpacing" is on a scanned film.
      view: view position such as "PA"; "" where the file has none.
      modality: such as "DX" or "CR"; "" where the file has none.
    """

    pixels: UInt8[np.ndarray, "height width"]
    pixel_spacing_mm: tuple[float, float] | None
    spacing_source: SpacingSource
    view: str
    modality: str


def is_dicom(start: bytes) -> bool:
    """Whether a file with this start is DICOM: "DICM" after a preamble of 128 bytes."""
    return start[_PREAMBLE_BYTES : _PREAMBLE_BYTES + len(_MAGIC)] == _MAGIC


def read_dicom(content: bytes, *, name: str, max_pixels: int) -> DicomImage:
    """Return the picture of a DICOM file as a workstation first shows it.

    Stored values go through the modality LUT or slope and intercept, then through the first VOI LUT, else
    the first window (linear, linear exact or sigmoid; DICOM PS3.3 C.11.2); a file with neither is shown from its
    smallest to its largest value. MONOCHROME1 is inverted. Padding takes no part in the range and is black.
    RGB becomes grey with ITU-R 601 weights. Overlays and presentation states are not applied.
    """
    _silence_pydicom(name)
    fields = _read_fields(content, name=name)
    form = _read_format(fields, max_pixels=max_pixels)
    stored = decode_stored(fields, form)
    if form.num_samples == 1:
        pixels = make_tone_table(fields, form, stored)[stored]
    else:
        # Pillow's integer weights, so that DICOM and PNG colour give the same grey.
        red, green, blue = (stored[..., channel].astype(np.uint32) for channel in range(3))
        pixels = ((red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16).astype(np.uint8)
    spacing, source = _read_spacing(fields)
    return DicomImage(pixels, spacing, source, view=fields.code("ViewPosition"), modality=fields.code("Modality"))


def read_projection(content: bytes, *, name: str) -> Projection:
    """Return the projection that the header of a file names, without decoding its picture; "" if it is no DICOM file.

    Raises:
      BadInput: pydicom is missing, or the header cannot be read; the message begins with `name`.
    """
    if not is_dicom(content):
        return ""
    _silence_pydicom(name)
    return find_projection(_read_fields(content, name=name))


def read_header(content: bytes, *, name: str) -> Fields:
    """Return the elements of a file up to the pixels, without private ones and overlays: patient and study are there.

    Items of sequences come without names, comments and other texts (`clean_items`).
    """
    _silence_pydicom(name)
    fields = _read_fields(content, name=name, whole=True)
    otherwise = fields.refuse(f"cannot be read as DICOM; {_EXPECTED}")
    problem = attempt(lambda: clean_items(fields.dataset, name=name), otherwise)
    if problem is not None:
        raise problem
    return fields


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


def _read_fields(content: bytes, *, name: str, whole: bool = False) -> Fields:
    if not is_dicom(content):
        raise BadInput(f"{name}: is not a DICOM file; {_EXPECTED}")
    file = HeaderFile(content, name=name)
    file.seek(_PREAMBLE_BYTES + len(_MAGIC))
    otherwise = BadInput(f"{name}: cannot be read as DICOM; {_EXPECTED}")
    syntax = file.parse(lambda: _read_syntax(file), otherwise)
    if syntax not in SYNTAXES:
        from pydicom.uid import UID_dictionary

        # A known name only: the element of a corrupt file may hold anything.
        found = UID_dictionary[syntax][0] if syntax in UID_dictionary else "an unknown syntax"
        accepted = ", ".join(known.name for known in SYNTAXES.values())
        raise BadInput(f"{name}: TransferSyntaxUID: {found} is not one of {accepted}")
    dataset = file.parse(lambda: _read_dataset(file, syntax, whole=whole), otherwise)
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


def _read_dataset(file: HeaderFile, syntax: str, *, whole: bool) -> "Dataset":
    """Parse the picture's elements, or the `whole` header; `dcmread` would inflate a deflated file, to any size."""
    from pydicom.datadict import tag_for_keyword
    from pydicom.dataset import FileMetaDataset
    from pydicom.filereader import read_dataset
    from pydicom.tag import BaseTag, Tag
    from pydicom.uid import UID

    tags: list[BaseTag | int] = [Tag(tag) for keyword in _PARSED if (tag := tag_for_keyword(keyword)) is not None]
    uid = UID(syntax)
    implicit, little_endian = uid.is_implicit_VR, uid.is_little_endian
    if whole:
        dataset = read_dataset(
            file, implicit, little_endian, stop_when=lambda *element: file.watch(*element) or element[0] >= _PIXELS
        )
        for tag in filter(is_packed, list(dataset.keys())):
            del dataset[tag]
    else:
        dataset = read_dataset(file, implicit, little_endian, stop_when=file.watch, specific_tags=tags)
    dataset.set_original_encoding(implicit, little_endian)
    dataset.file_meta = FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = uid
    return dataset


def _read_format(fields: Fields, *, max_pixels: int) -> PixelFormat:
    """Return the pixel format; `BadInput` if it is not accepted."""
    if fields.value("PixelData") in (None, "", b""):
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


def _read_spacing(fields: Fields) -> tuple[tuple[float, float] | None, SpacingSource]:
    for source in _SPACINGS:
        with contextlib.suppress(BadInput):
            spacing = fields.numbers(source)
            if len(spacing) == 2 and all(math.isfinite(value) and value > 0 for value in spacing):
                return (spacing[0], spacing[1]), source
    return None, ""
