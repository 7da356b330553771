"""What a DICOM header says besides how pixels are stored: groups of a single frame, and what to tell its user.

Notes name elements; values only if these are numbers or known codes.
"""

import contextlib
import re
from collections.abc import Sized

from stepcot_jax.data.images.dicom_fields import Fields
from stepcot_jax.data.images.file_formats import Note
from stepcot_jax.data.images.projections import VIEWS, Projection, name_projection
from stepcot_jax.host.errors import BadInput

GROUPS = ("PerFrameFunctionalGroupsSequence", "SharedFunctionalGroupsSequence")
_TONES = (
    *("RescaleSlope", "RescaleIntercept", "ModalityLUTSequence", "PixelPaddingValue", "PixelPaddingRangeLimit"),
    *("WindowCenter", "WindowWidth", "VOILUTFunction", "VOILUTSequence", "PresentationLUTShape"),
)
_PLACES = (
    *("PatientOrientation", "ImageOrientationPatient", "BodyPartExamined", "AnatomicRegionSequence"),
    *("ShutterShape", "ShutterLeftVerticalEdge", "ShutterRightVerticalEdge", "ShutterUpperHorizontalEdge"),
    *("ShutterLowerHorizontalEdge", "FieldOfViewRotation", "FieldOfViewHorizontalFlip"),
    *("ImageRotation", "ImageHorizontalFlip", "PixelSpacing", "ImagerPixelSpacing", "PixelAspectRatio"),
)
OVERLAYS = [tag + (number << 17) for tag in (0x60000010, 0x60000102) for number in range(16)]  # rows and bit position
NOTED = (*_TONES, *_PLACES, *GROUPS, "Modality", "PresentationIntentType")
"""Elements that are read, beside those that say how pixels are stored."""

_SQUARE = 1.01  # sides of a square pixel differ by at most this factor
_RADIOGRAPHS = ("", "CR", "DX", "DR", "RF", "XA", "RG", "OT", "SC", "HC", "DF")
_OTHER_KINDS = r"\b(CT|MR|Mammography|Ultrasound|Intra-Oral|Nuclear|Positron|VL|Ophthalmic|Tomosynthesis)\b"
_CHEST = (
    r"CHEST|THORA|TORA[XKC]|TORSO|TRUNK|LUNG|PULM|POUMON|\bRIB|HEART|CARD|CXR|STERN|CLAVIC|MEDIAST|BRONCH|PLEUR"
    r"|BRUST|POITRINE|WHOLE|ENTIRE BODY|胸"
)
_UNSTATED = ("", "UNKNOWN", "OTHER", "NONE", "N/A", "NA", "ANY", "UNSPECIFIED", "NULL", "DEFAULT")
_PARTS = (
    r"\b(SKULL|HEAD|NECK|[CTL]?-?SPINE|ABDOMEN|PELVIS|HIP|FEMUR|KNEE|LEG|ANKLE|FOOT|TOE|SHOULDER|HUMERUS|ELBOW|FOREARM"
    r"|WRIST|HAND|FINGER|ARM|BREAST|JAW|TEETH|EXTREMITY|SACRUM|PATELLA|CALCANEUS|BLADDER|KIDNEY|LIVER|BRAIN)S?\b"
)
_CHEST_CODES = (
    *("51185008", "43799004", "39607008", "80891009", "113197003", "78904004", "72410000", "416550000", "416775004"),
    *("816094009", "38266002", "T-D3000", "T-D3050", "T-D3300", "T-28000", "T-32000", "T-11300", "T-D0010"),
)


def take_frame_groups(fields: Fields) -> None:
    """Copy a single frame's elements from its functional groups to the root; two different values are refused."""
    from pydicom.datadict import keyword_for_tag

    for group in GROUPS:
        items = list(fields.items(group))
        if len(items) > 1:
            raise fields.refuse(f"{group}: {len(items)} items; expected 1, as NumberOfFrames says")
        for item in items:
            macros = filter(None, map(keyword_for_tag, item.dataset.keys()))
            nested = [name for name in macros if name.endswith("Sequence") and name not in NOTED]
            inner = [part for name in nested for part in item.items(name)]
            for part in (item, *inner):
                for keyword in _TONES:
                    _take(fields, part, keyword, group)
                for keyword in _PLACES:
                    with contextlib.suppress(BadInput):
                        _take(fields, part, keyword, group)


def _take(fields: Fields, part: Fields, keyword: str, group: str) -> None:
    read = Fields.numbers if keyword.startswith("PixelPadding") else Fields.value  # whose type depends on others
    found, known = read(part, keyword), read(fields, keyword)
    if _is_empty(found):
        return
    if _is_empty(known):
        fields.dataset[keyword] = part.dataset[keyword]
    elif known != found and keyword in _TONES:
        raise fields.refuse(f"{keyword}: {group} contradicts another value in this header; expected one value")


def _is_empty(value: object) -> bool:
    return value is None or (isinstance(value, Sized) and len(value) == 0)


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


def refuse_unprocessed(fields: Fields) -> None:
    """Raise `BadInput` for the raw picture of a detector."""
    intent = fields.value("PresentationIntentType")
    if str(intent).strip().upper() == "FOR PROCESSING" or fields.kind.endswith("For Processing"):
        raise fields.refuse(
            "is FOR PROCESSING, the raw picture of the detector (PresentationIntentType or SOPClassUID); expected "
            "FOR PRESENTATION: export the processed picture"
        )


def note_header(fields: Fields, note: Note) -> None:
    """Note what a header says that is not applied, or that contradicts the picture or a chest radiograph."""
    if any(tag in fields.dataset for tag in OVERLAYS):
        note("it has overlays, which are not drawn")
    for check in (
        _note_tones,
        _note_spacing,
        _note_orientation,
        _note_turns,
        _note_body,
        _note_modality,
        _note_shutter,
    ):
        with contextlib.suppress(BadInput):
            check(fields, note)


def _note_tones(fields: Fields, note: Note) -> None:
    if fields.value("ModalityLUTSequence") and fields.numbers("RescaleSlope") not in ((), (1.0,)):
        note("it has a ModalityLUTSequence, which counts, and a RescaleSlope")
    meaning = fields.choice("PhotometricInterpretation", ("MONOCHROME1", "MONOCHROME2", "RGB"))
    shape = fields.choice("PresentationLUTShape", ("", "IDENTITY", "INVERSE"))
    if (meaning, shape) in (("MONOCHROME1", "IDENTITY"), ("MONOCHROME2", "INVERSE")):
        note(f"PresentationLUTShape {shape} contradicts PhotometricInterpretation {meaning}, which counts")


def _note_spacing(fields: Fields, note: Note) -> None:
    for keyword in ("PixelSpacing", "ImagerPixelSpacing", "PixelAspectRatio"):
        with contextlib.suppress(BadInput):
            numbers = fields.numbers(keyword)
            if len(numbers) == 2:
                if min(numbers) > 0 and max(numbers) > _SQUARE * min(numbers):
                    note(f"its pixels are not square: {keyword} {numbers[0]:g} by {numbers[1]:g} (rows, columns)")
                break


def _find_orientation(fields: Fields) -> list[str]:
    """Return the codes of what is at the right and at the bottom edge, of the image plane where none are written."""
    codes = fields.value("PatientOrientation")
    codes = [str(code).strip().upper() for code in ([codes] if isinstance(codes, str) else codes or ())]
    cosines = fields.numbers("ImageOrientationPatient")
    if not any(codes) and len(cosines) == 6:
        for part in (cosines[:3], cosines[3:]):
            axis = [*map(abs, part)].index(max(map(abs, part)))
            codes.append(("RAF", "LPH")[part[axis] > 0][axis])
    return codes if any(codes) else []


def _note_orientation(fields: Fields, note: Note) -> None:
    """Upright is L or, of laterals, A or P at the right edge, and F at the bottom; codes may have further letters."""
    codes = _find_orientation(fields)
    if codes and (len(codes) != 2 or not all(re.fullmatch("[APLRHF]{1,3}", code) for code in codes)):
        note("PatientOrientation is not two codes of A, P, L, R, H, F: it may be shown mirrored or turned")
    elif codes and (codes[1][0] != "F" or codes[0][0] in "HF"):
        note(f"PatientOrientation {codes[0]}\\{codes[1]}: it is shown turned; expected L\\F (laterals: A\\F, P\\F)")
    elif codes and codes[0][0] == "R":
        note(f"PatientOrientation {codes[0]}\\{codes[1]}: it is shown mirrored; expected L\\F")
    elif codes and codes[0][0] in "AP" and find_projection(fields) == "frontal":
        note(f"PatientOrientation {codes[0]}\\{codes[1]} contradicts its frontal view; expected L\\F")


def _note_turns(fields: Fields, note: Note) -> None:
    """Those of the field of view are in the pixels already: they matter where the result's orientation is not said."""
    unsaid = "and no PatientOrientation says how it is shown"
    turns = [("ImageRotation", "ImageHorizontalFlip", "which is not applied")]
    turns += [("FieldOfViewRotation", "FieldOfViewHorizontalFlip", unsaid)] * (not _find_orientation(fields))
    for turn, flip, what in turns:
        if (fields.numbers(turn) or (0,))[0] % 360:
            note(f"{turn} turns it, {what}")
        if str(fields.value(flip) or "").strip().upper() in ("Y", "YES"):
            note(f"{flip} mirrors it, {what}")


def _note_body(fields: Fields, note: Note) -> None:
    part = re.sub("[_^]", " ", str(fields.value("BodyPartExamined") or "")).strip().upper()
    if part not in _UNSTATED:
        if not re.search(_CHEST, part) or "SPINE" in part:
            named = re.search(_PARTS, part)
            note(f"BodyPartExamined {named[0] if named else 'names another part'}: expected a chest")
        return
    region = fields.item("AnatomicRegionSequence")
    if region is not None:
        meaning = str(region.value("CodeMeaning") or "").upper()
        if str(region.value("CodeValue") or "").strip() not in _CHEST_CODES and not re.search(_CHEST, meaning):
            note("AnatomicRegionSequence names another part: expected a chest")


def _note_modality(fields: Fields, note: Note) -> None:
    modality = str(fields.value("Modality") or "").strip().upper()
    kind = re.search(_OTHER_KINDS, fields.kind)
    if modality not in _RADIOGRAPHS:
        named = modality if re.fullmatch("[A-Z]{2}", modality) else "is another one"
        note(f"Modality {named}: expected a radiograph (CR, DX, RF, XA)")
    elif kind:
        note(f"SOPClassUID names {kind[0]}: expected a radiograph (CR, DX, RF, XA)")


def _note_shutter(fields: Fields, note: Note) -> None:
    shapes = str(fields.value("ShutterShape") or "").strip().upper()
    names = ("LeftVertical", "UpperHorizontal", "RightVertical", "LowerHorizontal")
    edges = [number for name in names for number in fields.numbers(f"Shutter{name}Edge")[:1]]
    sides = fields.integer("Columns"), fields.integer("Rows")
    hides = len(edges) != 4 or max(edges[:2]) > 1 or edges[2] < sides[0] or edges[3] < sides[1]
    if shapes and (hides or shapes != "RECTANGULAR"):
        note("it has a display shutter (ShutterShape), which is not applied: what it hides is shown")
