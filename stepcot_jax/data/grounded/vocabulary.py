"""Names of findings, where each would be, how its sign looks, and one rule of knowledge for each diagnosis."""

import dataclasses

from stepcot_jax.data.grounded.regions import BOTH_LUNGS, HEART, MEDIASTINUM
from stepcot_jax.data.phantom.phantom_reports import WORDINGS

NORMAL = "Normal"


@dataclasses.dataclass(frozen=True)
class Term:
    """How a finding is spoken of.

    Attributes:
      name: without article, as in "no pleural effusion".
      phrase: with article where English wants one, as in "Is there a pleural effusion?".
      look: what its box shows, without naming it; "" for a lesion that the facts describe.
      region: where it would be.
      share: how often it is asked about, so that present and absent are asked about equally often in flat phantoms.
    """

    name: str
    phrase: str
    look: str = ""
    region: str = BOTH_LUNGS
    share: float = 1.0


TERMS: dict[str, Term] = {
    "Nodule": Term("pulmonary nodule", "a pulmonary nodule", share=1.55),
    "Atelectasis": Term("atelectasis", "atelectasis", share=1.03),
    "Infiltration": Term("pulmonary infiltrate", "a pulmonary infiltrate", share=1.17),
    "Effusion": Term("pleural effusion", "a pleural effusion", "fluid between lung and chest wall", share=2.05),
    "Pneumonia": Term("pneumonia", "pneumonia", share=1.18),
    "Cardiomegaly": Term("cardiomegaly", "an enlarged heart", "a large heart shadow", HEART, share=1.22),
    "Mass": Term("lung mass", "a lung mass", share=1.12),
    "Pneumothorax": Term("pneumothorax", "a pneumothorax", "air between lung and chest wall", share=1.04),
    "Volume loss": Term("volume loss", "volume loss of a lung", "a raised hemidiaphragm", share=0.66),
    "Mediastinal shift": Term(
        "mediastinal shift", "a mediastinal shift", "a displaced mediastinum", MEDIASTINUM, share=0.41
    ),
    "Lymphadenopathy": Term(
        "hilar lymphadenopathy", "hilar lymphadenopathy", "large hilar shadows", MEDIASTINUM, share=0.39
    ),
    "Emphysema": Term("emphysema", "emphysema", "rounded lucencies", share=0.15),
}
"""The findings of the phantom; labels of other sources are spoken of by their own names."""

SAME = {"Pleural effusion": "Effusion", "Infiltrate": "Infiltration"}
"""Other labels of the findings above."""

LOOK_ALIKES: dict[str, tuple[str, ...]] = {
    "Atelectasis": ("Volume loss",),
    "Volume loss": ("Atelectasis",),
    "Infiltration": ("Pneumonia", "Nodule"),
    "Pneumonia": ("Infiltration",),
    "Nodule": ("Mass",),
    "Mass": ("Nodule",),
}
"""Findings that are not denied beside another: both words may be true of one picture."""

EXPLAINS: dict[str, tuple[str, ...]] = {
    "Mediastinal shift": ("Atelectasis", "Effusion", "Pneumothorax", "Mass"),
    "Volume loss": ("Atelectasis", "Effusion", "Pneumothorax", "Mass"),
    "Pleural effusion": ("Pneumonia", "Cardiomegaly", "Mass"),
}
"""Diagnoses that explain a secondary sign, as medicine has it; of other pairs nothing is asked."""

NORMAL_PHRASES = ("normal chest radiograph", "normal chest", "no abnormality", NORMAL)

KNOWLEDGE: dict[str, tuple[str, str, str]] = {
    NORMAL: (
        "Clear lung fields, sharp lung borders and a heart of ordinary width leave nothing to explain.",
        "Where vessels taper evenly and neither density nor lucency stands out, disease is unlikely.",
        "A chest without change of density, of borders or of heart size needs no further explanation.",
    ),
    "Nodule": (
        "A small rounded density, less than about three centimetres wide, is set against aerated lung.",
        "Small round densities that keep their shape, single or several, are judged by size and margin.",
        "A compact density much smaller than a lung zone, with lung around it, is named by its small size.",
    ),
    "Atelectasis": (
        "Airless lung makes flat or wedge-shaped densities, often with displacement towards them.",
        "Where lung has lost its air, bands of density and signs of a smaller lung go together.",
        "Bands or plates of density that push nothing aside point to lung that is not expanded.",
    ),
    "Infiltration": (
        "Density spread through lung tissue without a compact core leaves the lung's outline in place.",
        "Hazy, net-like or speckled density over a part of the lung means that tissue is filled or thickened.",
        "Change that follows lung tissue rather than a single focus is diffuse filling or thickening.",
    ),
    "Effusion": (
        "Fluid outside the lung gathers at the base and along the chest wall and blunts the angle there.",
        "A dense zone with a level or a rim by the chest wall behaves like free fluid.",
        "Density that follows gravity and the lung's outer border lies outside the lung.",
    ),
    "Pneumonia": (
        "Airspaces filled by inflammation make patchy density with blurred borders in a part of the lung.",
        "Airspace filling in one or several areas without loss of volume suggests infection.",
        "Cloudy density inside the lung that does not respect a round shape fits inflamed airspaces.",
    ),
    "Cardiomegaly": (
        "A heart wider than half of the chest is large, whether or not the lungs are congested.",
        "The heart's width against the chest's width decides; congestion may follow.",
        "When the heart shadow takes more than its half of the chest, its chambers are enlarged.",
    ),
    "Mass": (
        "A compact density wider than about three centimetres is judged as a tumour until shown otherwise.",
        "A large focal density with its own outline, solid or hollow, is named by its large size.",
        "One large rounded density that takes much of a lung zone exceeds what small foci reach.",
    ),
    "Pneumothorax": (
        "Air outside the lung leaves a zone without vessels beyond the lung's border.",
        "A dark zone by the chest wall or apex in which vessels end lies outside the lung.",
        "Missing vessels beyond a visible or inferred lung border mean that the lung has come away.",
    ),
}
"""One rule for each diagnosis in three wordings (MEDSAGE's templates T); none names the diagnosis."""

SIGN_RULES = (
    "A sign counts as present only where the picture shows it.",
    "What is not seen at its usual place is taken as absent.",
    "Each sign is judged at its own place, apart from the others.",
)
"""The rule for signs that are no diagnosis, and for several findings, in three wordings."""

_CANONICAL = {name.casefold(): name for name in TERMS} | {name.casefold(): label for name, label in SAME.items()}


def canonical(label: str) -> str:
    """Return the finding that a label stands for, whatever its case; other labels as they are.

    >>> canonical("pleural effusion"), canonical("Rib fracture")
    ('Effusion', 'Rib fracture')
    """
    return _CANONICAL.get(label.casefold(), label)


def term_of(label: str) -> Term:
    """Return how a finding is spoken of; a label of another source by its own name."""
    name = canonical(label)
    return TERMS.get(name) or Term(name.lower(), name.lower())


def accepted_names(label: str) -> tuple[str, ...]:
    """Return the phrases of the report's tables for a finding, the preferred first, and its label."""
    if label == NORMAL:
        return NORMAL_PHRASES
    name = canonical(label)
    phrases = WORDINGS[6].get(name, ())
    return tuple(dict.fromkeys((*phrases, term_of(name).name, name)))
