"""The rule table: one rule of knowledge for each diagnosis in three wordings, and a search for rules in texts."""

from collections.abc import Mapping

from stepcot_jax.chain import fold

PRESENCE = "presence of "
"""Start of the topic of questions of presence; the finding's name follows."""

KNOWLEDGE: dict[str, tuple[str, str, str]] = {
    "Normal": (
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

_FOLDED = {diagnosis: tuple(map(fold, wordings)) for diagnosis, wordings in KNOWLEDGE.items()}
_DIAGNOSES = {fold(diagnosis): diagnosis for diagnosis in KNOWLEDGE} | {fold("No abnormality"): "Normal"}


def find_rules(text: str) -> frozenset[str]:
    """Return the diagnoses whose rule a text states, in one of the table's wordings.

    >>> find_rules("So:  air outside the lung leaves a zone without vessels beyond the lung's border.")
    frozenset({'Pneumothorax'})
    """
    folded = fold(text)
    return frozenset(
        diagnosis for diagnosis, wordings in _FOLDED.items() if any(wording in folded for wording in wordings)
    )


def ruled_diagnosis(facts: Mapping[str, str]) -> str:
    """Return the diagnosis of a record's facts as the table names it; "" if it is not known or has no rule."""
    return _DIAGNOSES.get(fold(facts.get("diagnosis", "")), "")
