"""What a picture is, in words for prompts: how it was made, and of which part of the body."""

import re

from stepcot_jax.chain import fold
from stepcot_jax.record import Record

_MODALITIES = {
    **dict.fromkeys(
        ("xray", "x-ray", "x ray", "cr", "dx", "dr", "radiography", "radiograph", "plain film"), "radiograph"
    ),
    **dict.fromkeys(("ct", "computed tomography", "ct scan"), "CT"),
    **dict.fromkeys(("mr", "mri", "magnetic resonance imaging", "mag-netic resonance imaging"), "MRI"),
    **dict.fromkeys(("us", "ultrasound", "ultrasonography"), "ultrasound image"),
    **dict.fromkeys(("mg", "mammography", "mammogram"), "mammogram"),
    **dict.fromkeys(("pt", "pet", "pet scan", "positron emission tomography"), "PET scan"),
    **dict.fromkeys(("microscopy", "microscopy images", "histopathology", "pathology", "sm"), "microscopy image"),
    **dict.fromkeys(("fundus", "fundus photography"), "fundus photograph"),
    **dict.fromkeys(("oct", "optical coherence tomography"), "OCT image"),
}
_ORGANS = {"abd": "abdomen", "thorax": "chest"}
_OF_CHESTS = re.compile(r"chest\b.*|(?:left |right |both )?lungs?|heart|mediastinum")
_IN_BRACKETS = re.compile(r"\s*\([^()]*\)?\s*$")  # "CT(Computed Tomography)"; one public set forgets the second bracket
_AN = re.compile(r"[aeio]|u(?!ni)|(?:MRI|OCT|X)\b", re.IGNORECASE)


def name_picture(modality: str, organ: str = "") -> str:
    """Return a picture in words, with its article.

    Args:
      modality: as sources write it; a word that is not known stands before "image". "" if unknown.
      organ: part of the body; "" if unknown.

    >>> [name_picture("CT(Computed Tomography)", "ABD"), name_picture("X-Ray", "hand"), name_picture("", "head")]
    ['a CT of the abdomen', 'a radiograph of the hand', 'a picture of the head']
    >>> [name_picture("xray", "Left lung"), name_picture("MR (Mag-netic Resonance Imaging)", "Brain_Tissue")]
    ['a chest radiograph', 'an MRI of the brain tissue']
    >>> [name_picture(one) for one in ("OCT (Optical Coherence Tomography", "Microscopy Images", "SPECT", "Endoscopy")]
    ['an OCT image', 'a microscopy image', 'a SPECT image', 'an endoscopy image']
    """
    written = " ".join(modality.split())
    name = _MODALITIES.get(fold(written)) or _MODALITIES.get(fold(_IN_BRACKETS.sub("", written)))
    if name is None:
        words = re.sub(r"\s+images?$", "", _IN_BRACKETS.sub("", written), flags=re.IGNORECASE)
        name = f"{words if words.isupper() else words.lower()} image" if words else "picture"
    part = fold(organ.replace("_", " "))
    part = _ORGANS.get(part, part)
    if name == "radiograph" and _OF_CHESTS.fullmatch(part):
        return "a chest radiograph"
    return f"{'an' if _AN.match(name) else 'a'} {name}" + (f" of the {part}" if part else "")


def picture_of(record: Record) -> str:
    """Return a record's picture in words; "" where nothing is known but that it may be a radiograph.

    The organ of a record with a lesion is the lesion's host, which a question may ask for: it is never named.
    """
    organ = "" if record.lesion else record.organ
    if not organ and record.modality in ("", "xray"):
        return ""
    return name_picture(record.modality, organ)
