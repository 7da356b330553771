"""Names of findings, where each would be, and how its sign looks."""

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
