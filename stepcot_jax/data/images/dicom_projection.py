"""The projection of a radiograph by its DICOM header: frontal, lateral, oblique or decubitus.

`ViewPosition` decides, else the first code of `ViewCodeSequence` (PS3.16, context group 4010). Free text such as
`SeriesDescription` is not read, and no value of the header is passed on: the projection is one of four words.
"""

import contextlib
import re
from typing import Literal

from stepcot_jax.data.images.dicom_fields import Fields
from stepcot_jax.host.errors import BadInput

Projection = Literal["frontal", "lateral", "oblique", "decubitus", ""]
"""What a header says of the projection; "" if nothing, or nothing known."""

# In order: "AP LLD" is a decubitus view, "XTABLE LATERAL" a lateral one. "PA LAT" names two, and tells nothing.
_WORDS: dict[Projection, frozenset[str]] = {
    "decubitus": frozenset({"LLD", "RLD", "DECUB", "DECUBITUS", "LLDECUB", "RLDECUB"}),
    "oblique": frozenset({"LLO", "RLO", "LAO", "RAO", "LPO", "RPO", "OBL", "OBLIQUE"}),
    "lateral": frozenset({"LL", "RL", "LAT", "LATERAL", "LLAT", "RLAT"}),
    "frontal": frozenset({"AP", "PA", "FRONTAL", "ANTEROPOSTERIOR", "POSTEROANTERIOR"}),
}

# SNOMED CT, and the older SNOMED RT identifier of the same concept.
_CODES: dict[Projection, frozenset[str]] = {
    "frontal": frozenset({"399348003", "R-10206", "272479007", "R-10214", "R-40888", "399033003", "R-10202"}),
    "lateral": frozenset(
        {"399067008", "R-102CD", "399173006", "R-10236", "399198007", "R-10232"}
        | {"399260004", "R-10224", "399352003", "R-10228", "30730003", "G-A145"}
    ),
    "oblique": frozenset(
        {"399182000", "R-102C1", "399135007", "R-10220", "399006002", "R-10212", "399356000", "R-40985"}
        | {"399038007", "R-10210", "399184004", "R-10238", "399236003", "R-10234", "399312000", "R-10208"}
        | {"399059000", "R-10216", "260427002", "R-40783", "399160007", "R-10204"}
    ),
}
_SCHEMES = ("SCT", "SRT", "SNM3", "99SDM")


def find_projection(fields: Fields) -> Projection:
    """Return the projection that a header names; "" if it names none or cannot be read."""
    with contextlib.suppress(BadInput):
        position = fields.value("ViewPosition")
        if isinstance(position, str) and position.strip():
            return _read_position(position)
    with contextlib.suppress(BadInput):
        code = fields.item("ViewCodeSequence")
        if code is not None and str(code.value("CodingSchemeDesignator")).strip() in _SCHEMES:
            value = str(code.value("CodeValue")).strip()
            return next((projection for projection, codes in _CODES.items() if value in codes), "")
    return ""


def _read_position(position: str) -> Projection:
    words = set(re.findall("[A-Z]+", position[:80].upper()))
    named = [projection for projection, known in _WORDS.items() if words & known]
    if "decubitus" in named:
        return "decubitus"
    if "frontal" in named and "lateral" in named:
        return ""
    return named[0] if named else ""
