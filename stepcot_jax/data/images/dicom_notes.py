"""What a DICOM header says of its picture: functional groups, orientation, body part, contradictions.

Notes name elements; values only if these are numbers or codes.
"""

import contextlib
import re
from collections.abc import Iterable

from stepcot_jax.data.images.dicom_fields import Fields
from stepcot_jax.data.images.file_formats import Note
from stepcot_jax.host.errors import BadInput

_SQUARE = 1.01  # sides of a square pixel differ by at most this factor
_CHEST = re.compile(
    "CHEST|THORA|TORA[XK]|LUNG|RIB|HEART|CARDI|CXR|STERN|CLAV|PULM|POUMON|BRUST|MEDIAST|TRUNK|BODY"
    "|^(?:UNKNOWN|OTHER|NONE|N/?A|NULL|DEFAULT|UNSPECIFIED|UNDEFINED)?$"
)
"""Parts of a body with a chest, and words that name none."""
_PROJECTIONS = ("", "CR", "DX", "DR", "RF", "XA", "RG", "OT", "SC")
GROUPS = ("SharedFunctionalGroupsSequence", "PerFrameFunctionalGroupsSequence")
_MACROS = (
    *("FrameVOILUTSequence", "PixelValueTransformationSequence", "PixelMeasuresSequence"),
    *("FrameDisplayShutterSequence", "PatientOrientationInFrameSequence"),
)


def lift_groups(fields: Fields, keywords: Iterable[str], note: Note) -> None:
    """Move the elements of the only frame's functional groups to the root, where they count instead of the root's."""
    macros = (group.item(macro) for name in GROUPS for group in fields.items(name) for macro in _MACROS)
    for macro in filter(None, macros):
        for keyword in keywords:
            value = macro.value(keyword)
            if value in (None, ""):
                continue
            if fields.value(keyword) not in (None, "", value):
                note(f"{keyword} of its functional groups differs from that of its root, and counts")
            fields.dataset[keyword] = macro.dataset[keyword]


def _describe_orientation(fields: Fields) -> str:
    """Return how a picture is shown otherwise than upright, the patient's left on the right side; "" if it is not."""
    value = fields.value("PatientOrientation")
    if value is None or isinstance(value, str) or len(value) != 2:
        return ""
    row, column = (str(direction).strip().upper() for direction in value)
    if not re.fullmatch("[LRAPHF]{1,3},[LRAPHF]{1,3}", f"{row},{column}"):
        return ""
    if row[0] in "HF" or column[0] not in "HF":
        how = "turned by a quarter"
    else:
        mirrored, inverted = row[0] == "R", column[0] == "H"
        how = ("", "mirrored", "upside down", "turned by half")[mirrored + 2 * inverted]
    return f"PatientOrientation {row}\\{column}: it is shown {how}" if how else ""


def _note_subject(fields: Fields, note: Note) -> None:
    with contextlib.suppress(BadInput):
        if how := _describe_orientation(fields):
            note(how)
    for keyword, accepted, what in (
        ("BodyPartExamined", _CHEST.search, "is no chest"),
        ("Modality", _PROJECTIONS.__contains__, "is no projection radiograph"),
    ):
        with contextlib.suppress(BadInput):
            code = str(fields.value(keyword) or "").strip().upper()
            if not accepted(code):
                note(f"{keyword} {code if re.fullmatch('[A-Z0-9 _]{1,16}', code) else 'of another code'} {what}")
    with contextlib.suppress(BadInput):
        if fields.value("ShutterShape") not in (None, ""):
            note("its display shutter (ShutterShape) is not applied: what it hides is shown")


def note_header(fields: Fields, photometric: str, note: Note) -> None:
    """Note what a workstation would show otherwise, and what is no chest radiograph."""
    _note_subject(fields, note)
    with contextlib.suppress(BadInput):
        shape = fields.choice("PresentationLUTShape", ("", "IDENTITY", "INVERSE"))
        if (photometric, shape) in (("MONOCHROME1", "IDENTITY"), ("MONOCHROME2", "INVERSE")):
            note(f"PresentationLUTShape {shape} contradicts PhotometricInterpretation {photometric}, which counts")
    for keyword in ("PixelSpacing", "ImagerPixelSpacing", "PixelAspectRatio"):
        with contextlib.suppress(BadInput):
            numbers = fields.numbers(keyword)
            if len(numbers) == 2:
                if min(numbers) > 0 and max(numbers) > _SQUARE * min(numbers):
                    note(f"its pixels are not square: {keyword} {numbers[0]:g} by {numbers[1]:g} (rows, columns)")
                break
