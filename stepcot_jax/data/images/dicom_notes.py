"""What DICOM headers say beside the pixels: functional groups of the only frame, and notes of what is odd.

Notes name elements; values only if these are numbers or known codes.
"""

import contextlib
import functools
import itertools
import math
import operator
import re
from collections.abc import Iterator, Sequence
from typing import Any

from stepcot_jax.data.images.dicom_fields import Fields, attempt
from stepcot_jax.data.images.file_formats import Note
from stepcot_jax.data.projections import Projection
from stepcot_jax.host.errors import BadInput

OVERLAY_POSITIONS = tuple(0x60000102 + (number << 16) for number in range(0, 32, 2))
"""Tags of the bit that an overlay takes up in the pixels, one for each overlay."""
OVERLAY_ROWS = tuple(tag - 0xF2 for tag in OVERLAY_POSITIONS)

_GROUPS = ("SharedFunctionalGroupsSequence", "PerFrameFunctionalGroupsSequence")
_TONES = (
    ("ModalityLUTSequence", "RescaleSlope", "RescaleIntercept"),
    ("VOILUTSequence", "WindowCenter", "WindowWidth", "VOILUTFunction"),
    ("PixelPaddingValue", "PixelPaddingRangeLimit"),
)
_SPACINGS = ("PixelSpacing", "ImagerPixelSpacing", "NominalScannedPixelSpacing", "PixelAspectRatio")
_ORIENTATIONS = ("PatientOrientation", "ImageOrientationPatient")
_LATERALITIES = ("ImageLaterality", "FrameLaterality")
_EDGES = tuple(f"Shutter{edge}Edge" for edge in ("LeftVertical", "UpperHorizontal", "RightVertical", "LowerHorizontal"))
_OTHERS = (*_SPACINGS, *_ORIENTATIONS, *_LATERALITIES, "ShutterShape", *_EDGES, "AnatomicRegionSequence")
_KINDS = (*_TONES, *((keyword,) for keyword in (*_OTHERS, "PresentationLUTShape")))
_DEFAULTS = {"RescaleSlope": 1, "RescaleIntercept": 0, "VOILUTFunction": "LINEAR"}
PARSED = (
    *(
        *_GROUPS,
        *_OTHERS,
        "PresentationLUTShape",
        "Modality",
        "BodyPartExamined",
        "FieldOfViewHorizontalFlip",
        "FieldOfViewRotation",
    ),
    *(keyword for kind in _TONES for keyword in kind),
)
"""Keywords of the elements that this module looks at."""


def lift_groups(fields: Fields, note: Note) -> None:
    """Copy what the functional groups say of the only frame to where a plain picture has it."""
    for groups in _GROUPS:
        for number, group in enumerate(fields.items(groups)):
            if number:
                raise fields.refuse(f"{groups}: several items for one frame; expected 1")
            for holder, kind in itertools.product((group, *_open_macros(group)), _KINDS):
                found, known = _collect(kind, holder), _collect(kind, fields)
                words = f"{' or '.join(kind)}: {groups} contradicts what else the header says"
                alike = functools.partial(operator.eq, {**_DEFAULTS, **found}, {**_DEFAULTS, **known})
                for keyword in found if not known else ():
                    fields.dataset[keyword] = holder.dataset[keyword]
                if found and known and not attempt(alike, fields.refuse(f"{kind[0]}: cannot be read")):
                    if kind in _TONES:
                        raise fields.refuse(f"{words}; expected the same or one of them")
                    note(f"{words}, which counts")


def _open_macros(group: Fields) -> Iterator[Fields]:
    from pydicom.datadict import dictionary_VR, keyword_for_tag

    for tag in list(group.dataset.keys()):
        if (keyword := keyword_for_tag(tag)) and dictionary_VR(tag) == "SQ" and (macro := group.item(keyword)):
            yield macro


def _collect(kind: Sequence[str], fields: Fields) -> dict[str, Any]:
    return {keyword: value for keyword in kind if (value := fields.value(keyword)) not in (None, "", b"", [])}


_MODALITIES = ("CR", "DX", "RF", "XA", "DR", "RG", "OT", "SC", "")  # OT and SC are converted pictures
_OTHER_MODALITIES = ("CT", "MR", "MG", "US", "PT", "NM", "IO", "PX", "ES", "XC", "BMD", "IVUS", "OCT", "OP", "SM", "GM")
_OTHER_KINDS = re.compile(r"\b(CT|MR|Mammography|Ultrasound|Intra-Oral|Nuclear|Positron|Ophthalmic|Tomosynthesis)\b")
_CHEST = re.compile(
    "CHEST|THORA|TORA[XK]|LUNG|PULM|RIB|HEART|CARDI|CXR|BRUST|POUMON|STERN|CLAVIC|MEDIAST|TRUNK|TORSO|WHOLE|\u80f8"
)
_UNSAID = ("", "UNKNOWN", "OTHER", "NONE", "NA", "N/A", "NULL", "DEFAULT", "UNSPECIFIED", "UNDEFINED")
_OTHER_PARTS = re.compile(
    "SPINE|ABDOMEN|PELVIS|SKULL|HEAD|NECK|JAW|SHOULDER|HUMERUS|ELBOW|FOREARM|WRIST|HAND|FINGER|HIP|FEMUR|KNEE|TIBIA|"
    "LEG|ARM|ANKLE|FOOT|TOE|BREAST|EXTREMITY|BODY"
)
_CHEST_CODES = re.compile(
    "51185008|43799004|816094009|39607008|80891009|113197003|56873002|72410000|51299004|416152001|416319003|416550000|"
    "416775004|417437006|86598002|T-(D3000|28000|32000|11210|11300|12310|280A0|D3200|D3300)|R-FAB5[2-6]"
)  # of SNOMED CT and RT, for PS3.16's context group 4031
_DIRECTION = re.compile("[AFHLPR]{1,3}")
_SQUARE = 1.01  # sides of a square pixel differ by at most this factor


def note_header(fields: Fields, photometric: str, projection: Projection, note: Note) -> None:
    """Note what contradicts the picture or an upright chest radiograph; what cannot be read is passed over."""

    def read(keyword: str) -> str:
        with contextlib.suppress(BadInput):
            return str(fields.value(keyword) or "").strip().upper()
        return ""

    shape = read("PresentationLUTShape")
    if (photometric, shape) in (("MONOCHROME1", "IDENTITY"), ("MONOCHROME2", "INVERSE")):
        note(f"PresentationLUTShape {shape} contradicts PhotometricInterpretation {photometric}, which counts")
    if (modality := read("Modality")) not in _MODALITIES:
        shown = f" {modality}" if modality in _OTHER_MODALITIES else ""
        note(f"Modality{shown}: no projection radiograph; expected CR, DX, RF or XA")
    elif kind := _OTHER_KINDS.search(fields.kind):
        note(f"SOPClassUID of {kind[0]}: no projection radiograph; expected CR, DX, RF or XA")
    part = read("BodyPartExamined")
    if part not in _UNSAID and ("SPINE" in part or not _CHEST.search(part)):
        note(" ".join(("BodyPartExamined", *_OTHER_PARTS.findall(part)[:1])) + ": no chest")
    with contextlib.suppress(BadInput):
        region = fields.item("AnatomicRegionSequence") if part in _UNSAID else None
        if region and (code := str(region.value("CodeValue") or "").strip()) and not _CHEST_CODES.fullmatch(code):
            note("AnatomicRegionSequence: no code of the chest")
    for keyword in _LATERALITIES:
        if projection == "frontal" and (side := read(keyword)) in ("L", "R"):
            note(f"{keyword} {side} contradicts a frontal view: one side of the body")
    if read("ShutterShape") and not _shows_all(fields):
        note("its display shutter (ShutterShape) is not applied: a workstation covers a part of the picture")
    if any(tag in fields.dataset for tag in (*OVERLAY_POSITIONS, *OVERLAY_ROWS)):
        note("its overlays are not applied")
    turned = read("FieldOfViewHorizontalFlip") == "YES" or read("FieldOfViewRotation") not in ("", "360")
    if turned and not read("PatientOrientation"):
        note("FieldOfViewHorizontalFlip or -Rotation without PatientOrientation: it may be mirrored or turned")
    for found in (*_note_orientation(fields, projection), *_note_spacing(fields)):
        note(found)


def _shows_all(fields: Fields) -> bool:
    """Whether a shutter is a rectangle around the whole picture."""
    with contextlib.suppress(BadInput):
        left, top, right, bottom = (number for edge in _EDGES for number in fields.numbers(edge)[:1] or (math.nan,))
        shows_all = max(left, top) <= 1 and right >= fields.integer("Columns") and bottom >= fields.integer("Rows")
        return str(fields.value("ShutterShape")).strip().upper() == "RECTANGULAR" and shows_all
    return False


def _note_orientation(fields: Fields, projection: Projection) -> Iterator[str]:
    """Yield how the picture is mirrored or turned: its rows should run to the patient's left, its columns down."""
    for keyword in _ORIENTATIONS:
        with contextlib.suppress(BadInput):
            value: Any = fields.value(keyword) or ()
            directions = [value] if isinstance(value, str) else [str(item).strip().upper() for item in value]
            if keyword == "ImageOrientationPatient":
                directions = _name_directions(fields.numbers(keyword))
            if len(directions) != 2 or not all(map(_DIRECTION.fullmatch, directions)):
                if any(directions):
                    yield f"{keyword}: cannot be read; expected two directions, such as L\\F"
                continue
            pair, shown = directions[0][0] + directions[1][0], f"{keyword} {directions[0]}\\{directions[1]}"
            is_lateral = bool({"A", "P"} & {*pair}) and projection != "frontal"
            words = ["mirrored"] * (not is_lateral and pair in "LHRFL") + ["turned"] * (pair[1] != "F")
            if words:
                yield f"{shown}: shown {' and '.join(words)}; expected L\\F (to the patient's left, down)"
            elif {"frontal": "L", "lateral": "AP"}.get(projection, "LAP").find(pair[0]) < 0:
                yield f"{shown} contradicts a {projection} view"


def _name_directions(numbers: tuple[float, ...]) -> list[str]:
    largest = [max(zip(numbers[at : at + 3], ("LR", "PA", "HF"), strict=False), key=lambda axis: abs(axis[0]))
               for at in (0, 3) if len(numbers) == 6]  # fmt: skip
    return [letters[number < 0] for number, letters in largest]


def _note_spacing(fields: Fields) -> Iterator[str]:
    for keyword in _SPACINGS:
        with contextlib.suppress(BadInput):
            numbers = fields.numbers(keyword)
            if len(numbers) == 2:
                if min(numbers) > 0 and max(numbers) > _SQUARE * min(numbers):
                    yield f"its pixels are not square: {keyword} {numbers[0]:g} by {numbers[1]:g} (rows, columns)"
                return
