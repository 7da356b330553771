"""Consistent answers for phantom chests: the diagnosis first, then the steps that lead to it.

Every step is drawn from a table conditional on the diagnosis and restricted by the earlier answers, so that the
diagnosis alone determines no step and later steps depend on earlier ones.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias, get_args

import numpy as np

from stepcot_jax.chain import DEFAULT_CHAIN, DETECTION_OPTIONS, DIAGNOSIS_OPTIONS, NOT_APPLICABLE
from stepcot_jax.host.errors import BadInput

Prevalence: TypeAlias = Literal["published", "flat"]

NUM_PUBLISHED = dict(zip(DIAGNOSIS_OPTIONS, (6787, 851, 731, 723, 440, 276, 131, 88, 41), strict=True))
"""Cases of each diagnosis in the published train, validation and test sets together."""

_UPPER, _MIDDLE, _LOWER, _HILAR, _PLEURA, _CARDIAC, _ = DEFAULT_CHAIN.steps[3].options
_WELL, _ILL, _SPICULATED, _CALCIFIED, _ = DEFAULT_CHAIN.steps[4].options
_LOSS, _SHIFT, _FLUID, _AIR, _BIG_HEART, _NODES, _ = DEFAULT_CHAIN.steps[5].options

_PATTERN: dict[str, dict[str, float]] = {
    "Nodule": {"Nodular": 85, "Cavity": 15},
    "Atelectasis": {"Linear": 55, "Consolidation": 35, "Reticular": 10},
    "Infiltration": {"Reticular": 45, "Nodular": 25, "Linear": 15, "Consolidation": 15},
    "Effusion": {"N/A": 60, "Consolidation": 25, "Linear": 15},
    "Pneumonia": {"Consolidation": 70, "Reticular": 15, "Cavity": 15},
    "Cardiomegaly": {"N/A": 55, "Reticular": 25, "Linear": 20},
    "Mass": {"Nodular": 60, "Cavity": 25, "Consolidation": 15},
    "Pneumothorax": {"N/A": 70, "Linear": 30},
}
_DISTRIBUTION: dict[str, dict[str, float]] = {
    "Nodule": {"Focal": 55, "Multifocal": 30, "Diffuse": 15},
    "Atelectasis": {"Focal": 60, "Multifocal": 40},
    "Infiltration": {"Focal": 20, "Multifocal": 35, "Diffuse": 45},
    "Effusion": {"Focal": 60, "Multifocal": 25, "Diffuse": 15},
    "Pneumonia": {"Focal": 55, "Multifocal": 35, "Diffuse": 10},
    "Cardiomegaly": {"Multifocal": 30, "Diffuse": 70},
    "Mass": {"Focal": 85, "Multifocal": 15},
    "Pneumothorax": {"Focal": 65, "Multifocal": 10, "Diffuse": 25},
}
_LOCATION: dict[str, dict[str, float]] = {
    "Nodule": {_UPPER: 30, _MIDDLE: 25, _LOWER: 25, _HILAR: 10, _PLEURA: 10},
    "Atelectasis": {_UPPER: 15, _MIDDLE: 25, _LOWER: 50, _HILAR: 10},
    "Infiltration": {_UPPER: 25, _MIDDLE: 30, _LOWER: 30, _HILAR: 15},
    "Effusion": {_LOWER: 45, _PLEURA: 55},
    "Pneumonia": {_UPPER: 20, _MIDDLE: 25, _LOWER: 45, _HILAR: 10},
    "Cardiomegaly": {_CARDIAC: 75, _HILAR: 25},
    "Mass": {_UPPER: 30, _MIDDLE: 20, _LOWER: 15, _HILAR: 25, _PLEURA: 10},
    "Pneumothorax": {_UPPER: 40, _PLEURA: 60},
}
_MORPHOLOGY: dict[str, dict[str, float]] = {
    "Nodule": {_WELL: 35, _ILL: 20, _SPICULATED: 20, _CALCIFIED: 25},
    "Atelectasis": {_WELL: 35, _ILL: 40, "N/A": 25},
    "Infiltration": {_ILL: 60, "N/A": 30, _CALCIFIED: 10},
    "Effusion": {_WELL: 50, _ILL: 40, _CALCIFIED: 10, "N/A": 60},
    "Pneumonia": {_ILL: 75, _WELL: 15, "N/A": 10},
    "Cardiomegaly": {"N/A": 70, _ILL: 20, _CALCIFIED: 10},
    "Mass": {_WELL: 30, _ILL: 20, _SPICULATED: 40, _CALCIFIED: 10},
    "Pneumothorax": {_WELL: 60, "N/A": 40},
}
_SECONDARY: dict[str, dict[str, float]] = {
    "Nodule": {"N/A": 68, _NODES: 12, _FLUID: 7, _LOSS: 4, _BIG_HEART: 5, _AIR: 4},
    "Atelectasis": {"N/A": 45, _LOSS: 30, _SHIFT: 12, _FLUID: 10, _BIG_HEART: 3},
    "Infiltration": {"N/A": 65, _FLUID: 10, _BIG_HEART: 10, _NODES: 10, _LOSS: 5},
    "Effusion": {"N/A": 48, _SHIFT: 18, _BIG_HEART: 18, _LOSS: 10, _AIR: 6},
    "Pneumonia": {"N/A": 58, _FLUID: 20, _LOSS: 8, _NODES: 8, _AIR: 6},
    "Cardiomegaly": {"N/A": 55, _FLUID: 35, _NODES: 4, _LOSS: 6},
    "Mass": {"N/A": 45, _NODES: 20, _FLUID: 12, _LOSS: 13, _SHIFT: 10},
    "Pneumothorax": {"N/A": 42, _SHIFT: 24, _LOSS: 18, _FLUID: 16},
}
_SIGN_BY_LOCATION: dict[tuple[str, str], float] = {
    (_HILAR, _NODES): 3.0,
    (_LOWER, _FLUID): 2.0,
    (_UPPER, _FLUID): 0.4,
    (_UPPER, _AIR): 2.0,
}
_COLLAPSED_LUNG_SHARE = 0.12
_EMPHYSEMA_SHARE = 0.05
_UNLOCALISED_SHARE = 0.4


def draw_answers(index: int, *, seed: int, prevalence: Prevalence = "published") -> tuple[int, ...]:
    """Draw the labels of the seven steps of one phantom case, without its pixels.

    >>> len(draw_answers(0, seed=0, prevalence="flat"))
    7
    """
    answers = answer_texts(index, seed=seed, prevalence=prevalence)
    return tuple(step.options.index(answer) for step, answer in zip(DEFAULT_CHAIN.steps, answers, strict=True))


def answer_texts(index: int, *, seed: int, prevalence: Prevalence) -> tuple[str, ...]:
    """Return the answers of `draw_answers` as option texts."""
    if prevalence not in get_args(Prevalence):
        raise BadInput(f"phantom prevalence: {prevalence!r} is not one of {', '.join(get_args(Prevalence))}")
    rng = generator(seed, index, stream=1)
    shares = NUM_PUBLISHED if prevalence == "published" else dict.fromkeys(DIAGNOSIS_OPTIONS, 1)
    diagnosis = _draw(rng, shares)
    if diagnosis == "Normal":
        return (DETECTION_OPTIONS[0], *[NOT_APPLICABLE] * 5, diagnosis)
    pattern = _draw(rng, _PATTERN[diagnosis])
    distribution = _draw_distribution(rng, diagnosis, pattern)
    location = _draw_location(rng, diagnosis, pattern, distribution)
    morphology = _draw_morphology(rng, diagnosis, pattern, distribution)
    shares_of_signs = {
        sign: share * _SIGN_BY_LOCATION.get((location, sign), 1.0) for sign, share in _SECONDARY[diagnosis].items()
    }
    secondary = _draw(rng, shares_of_signs)
    detection = _detect(rng, diagnosis, pattern, secondary)
    return detection, distribution, pattern, location, morphology, secondary, diagnosis


def generator(seed: int, number: int, *, stream: int) -> np.random.Generator:
    """Return the random generator for one purpose (`stream`) of one case or patient (`number`).

    Separate streams keep the answers and the anatomy the same when the number of pixels changes.
    """
    if seed < 0 or number < 0:
        raise BadInput(f"phantom: seed {seed} and index {number} must be at least 0")
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence((seed, number), spawn_key=(stream,))))


def _draw(rng: np.random.Generator, shares: Mapping[str, float], *, without: frozenset[str] = frozenset()) -> str:
    options = [option for option in shares if option not in without]
    cumulative = np.cumsum([shares[option] for option in options])
    return options[int(np.searchsorted(cumulative, rng.random() * cumulative[-1], side="right"))]


def _draw_distribution(rng: np.random.Generator, diagnosis: str, pattern: str) -> str:
    if diagnosis == "Cardiomegaly" and pattern == NOT_APPLICABLE:
        return NOT_APPLICABLE  # a large heart before clear lungs: there is no lung lesion to distribute
    return _draw(rng, _DISTRIBUTION[diagnosis], without=frozenset({"Diffuse"} if pattern == "Cavity" else ()))


def _draw_location(rng: np.random.Generator, diagnosis: str, pattern: str, distribution: str) -> str:
    if distribution == "Diffuse" and diagnosis != "Cardiomegaly" and rng.random() < _UNLOCALISED_SHARE:
        return NOT_APPLICABLE
    without = {_PLEURA} if distribution == "Diffuse" and diagnosis == "Nodule" else set()
    if diagnosis == "Cardiomegaly" and pattern == NOT_APPLICABLE:
        without.add(_HILAR)
    return _draw(rng, _LOCATION[diagnosis], without=frozenset(without))


def _draw_morphology(rng: np.random.Generator, diagnosis: str, pattern: str, distribution: str) -> str:
    without: set[str] = set()
    if pattern == "Cavity":
        without |= {_CALCIFIED, NOT_APPLICABLE}
    if distribution == "Diffuse":
        without |= {_SPICULATED}
    has_edges = pattern in ("Consolidation", "Nodular", "Cavity") or diagnosis == "Effusion"
    if has_edges and distribution != "Diffuse":
        without |= {NOT_APPLICABLE}
    return _draw(rng, _MORPHOLOGY[diagnosis], without=frozenset(without))


def _detect(rng: np.random.Generator, diagnosis: str, pattern: str, secondary: str) -> str:
    if diagnosis == "Pneumothorax":
        mixed = rng.random() < _COLLAPSED_LUNG_SHARE or secondary == _FLUID
        return "Mixed" if mixed else "Decreased opacity"
    mixed = rng.random() < _EMPHYSEMA_SHARE or pattern == "Cavity" or secondary == _AIR
    return "Mixed" if mixed else "Increased opacity"


# Report sentences that state all seven answers, and the reasoning that quotes them.


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
    alternatives = [table[answer] for table, answer in zip(WORDINGS, answers, strict=True)]
    chosen = [wordings[int(rng.integers(len(wordings)))] for wordings in alternatives]
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
