"""Report sentences that state all seven answers, and the reasoning that quotes them."""

from collections.abc import Sequence

import numpy as np

from stepcot_jax.chain import NOT_APPLICABLE

WORDINGS: tuple[dict[str, tuple[str, ...]], ...] = (
    {
        "Increased opacity": ("increased opacity", "abnormal increased density", "opacification"),
        "Decreased opacity": ("decreased opacity", "abnormal lucency", "hyperlucency"),
        "Mixed": ("mixed opacity and lucency", "mixed increased and decreased opacity", "mixed density"),
    },
    {
        "Focal": ("focal", "solitary", "localized"),
        "Multifocal": ("multifocal", "multiple areas of", "scattered multifocal"),
        "Diffuse": ("diffuse", "widespread", "extensive diffuse"),
        "N/A": ("",),
    },
    {
        "Consolidation": ("airspace consolidation", "a consolidative pattern"),
        "Reticular": ("a reticular pattern", "reticular markings"),
        "Nodular": ("a nodular pattern", "nodular change"),
        "Linear": ("a linear pattern", "linear bands"),
        "Cavity": ("cavitation", "a cavitary component"),
        "N/A": ("",),
    },
    {
        "Upper lung zone": ("in the {side} upper lung {zone}", "in the {side} upper {zone}"),
        "Middle lung zone": ("in the {side} middle lung {zone}", "in the {side} mid lung {zone}"),
        "Lower lung zone": ("in the {side} lower lung {zone}", "at the {side} lung {base}"),
        "Hilar/Mediastinal": ("in the {side} hilar region", "about the {side} {hilum}"),
        "Pleura/Chest wall": ("along the {side} pleura", "along the {side} chest wall"),
        "Cardiac": ("over the cardiac silhouette", "about the heart"),
        "N/A": ("without zonal predominance", ""),
    },
    {
        "Well-circumscribed": ("well-circumscribed margins", "sharply defined margins"),
        "Ill-defined": ("ill-defined margins", "indistinct margins"),
        "Spiculated": ("spiculated margins", "a spiculated contour"),
        "Calcified": ("calcified components", "internal calcification"),
        "N/A": ("",),
    },
    {
        "Volume loss": (
            "There is associated volume loss",
            "Associated elevation of the hemidiaphragm indicates volume loss",
        ),
        "Mediastinal shift": ("There is mediastinal shift", "The mediastinum is shifted"),
        "Pleural effusion": ("There is an associated pleural effusion", "A small pleural effusion accompanies this"),
        "Pneumothorax": ("There is an associated pneumothorax", "A small pneumothorax accompanies this"),
        "Cardiomegaly": ("There is associated cardiomegaly", "The heart is also enlarged"),
        "Lymphadenopathy": ("There is hilar lymphadenopathy", "Enlarged hilar lymph nodes accompany this"),
        "N/A": (
            "There are no associated signs",
            "No mediastinal shift or lymphadenopathy",
            "No secondary effects are seen",
        ),
    },
    {
        "Nodule": ("pulmonary nodule", "lung nodule"),
        "Atelectasis": ("atelectasis", "atelectatic change"),
        "Infiltration": ("infiltration", "pulmonary infiltrate"),
        "Effusion": ("pleural effusion",),
        "Pneumonia": ("pneumonia",),
        "Cardiomegaly": ("cardiomegaly", "enlarged heart"),
        "Mass": ("lung mass", "pulmonary mass"),
        "Pneumothorax": ("pneumothorax",),
    },
)
"""Wordings of each step's answers; no wording stands for two answers of a step."""

_CONCLUSIONS = ("most consistent with {}", "findings suggest {}", "impression: {}")
_NORMAL = (
    ("The lungs are clear", "No focal consolidation, effusion or pneumothorax", "Heart size is normal"),
    ("Clear lungs", "No pleural effusion or pneumothorax is seen", "No acute cardiopulmonary abnormality"),
    ("No abnormal opacity in either lung", "The cardiomediastinal silhouette is normal", "Normal chest radiograph"),
    ("Both lungs are well expanded and clear", "No pneumothorax or pleural fluid", "Normal heart and mediastinum"),
)
_SIDED = {"zone": ("zone", "zones"), "base": ("base", "bases"), "hilum": ("hilum", "hila")}


def write_report(answers: tuple[str, ...], side: str, rng: np.random.Generator) -> tuple[str, tuple[str, ...]]:
    """Write the report of a case and the reasoning of each step."""
    if answers[-1] == "Normal":
        sentences = _NORMAL[int(rng.integers(len(_NORMAL)))]
        none = f'No lesion to describe: "{sentences[0]}".'
        return ". ".join(sentences) + ".", (f'"{sentences[0]}".', *[none] * 5, f'"{sentences[2]}".')
    phrases = _choose_phrases(answers, side, rng)
    report = ". ".join(text[:1].upper() + text[1:] for text in _sentences(phrases, rng)) + "."
    return report, tuple(_cite(*pair, report) for pair in zip(answers, phrases, strict=True))


def _choose_phrases(answers: tuple[str, ...], side: str, rng: np.random.Generator) -> list[str]:
    found = [table[answer] for table, answer in zip(WORDINGS, answers, strict=True)]
    chosen = [wordings[int(rng.integers(len(wordings)))] for wordings in found]
    chosen[3] = name_side(chosen[3], side)
    return chosen


def name_side(wording: str, side: str) -> str:
    """Return a wording of a location with its side: "right", "left" or "bilateral".

    >>> name_side("in the {side} lower lung {zone}", "bilateral")
    'in the bilateral lower lung zones'
    """
    sided = {name: both if side == "bilateral" else one for name, (one, both) in _SIDED.items()}
    return wording.format(side=side, **sided)


def _sentences(phrases: Sequence[str], rng: np.random.Generator) -> tuple[str, str]:
    detection, distribution, pattern, location, morphology, secondary, diagnosis = phrases
    what = f"{distribution} {detection}".strip()
    nature = " and ".join(part for part in (pattern, morphology) if part)
    style = int(rng.integers(3))
    if style == 0:
        finding = f"There is {what} {location}".rstrip() + (f" with {nature}" if nature else "")
    elif style == 1:
        finding = f"{what} is seen {location}".rstrip() + (f", showing {nature}" if nature else "")
    else:
        finding = f"{what} {location}".rstrip() + (f"; {nature}" if nature else "")
    conclusion = _CONCLUSIONS[int(rng.integers(len(_CONCLUSIONS)))].format(diagnosis)
    return finding, f"{secondary}; {conclusion}"


def _cite(answer: str, phrase: str, report: str) -> str:
    if not phrase:
        return "The report names none."
    start = report.casefold().index(phrase.casefold())
    quoted = report[start : start + len(phrase)]
    return f'"{quoted}": none.' if answer == NOT_APPLICABLE else f'"{quoted}": {answer}.'
