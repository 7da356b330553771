"""Names of findings, the regions where they occur, and the look of their signs."""

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool

from stepcot_jax.box import Box, Corners, convert_rounded, pixels
from stepcot_jax.chain import NOT_APPLICABLE
from stepcot_jax.data.phantom.answers import WORDINGS, name_side
from stepcot_jax.host.errors import BadInput
from stepcot_jax.reasoning.rules import KNOWLEDGE, SIGN_RULES
from stepcot_jax.record import Stages

# Design: zones are thirds of a lung's box. This library's choice: hilar structures are the inner third of the middle
# zone, a hemidiaphragm reaches a quarter of the lung's height above and below its lower edge, and the mediastinum
# reaches from the heart to the top of the lungs. Names follow GEMeX where it has one.

Mask = Bool[np.ndarray, "height width"]
BOTH_LUNGS, HEART, MEDIASTINUM = "bilateral lung", "cardiac region", "mediastinum"
SIDES = ("right", "left")  # the patient's right is the picture's left
ZONES = ("upper", "middle", "lower")
_NONE = "no pixel inside; a mask of both lungs and one of the heart are required"


def zone_name(side: str, zone: str) -> str:
    """Return the name of a third of a lung."""
    return f"{side} {zone} lung zone"


def hilum_name(side: str) -> str:
    """Return the name of a lung's hilar structures."""
    return f"{side} hilar structures"


def diaphragm_name(side: str) -> str:
    """Return the name of a lung's half of the diaphragm."""
    return f"{side} hemidiaphragm"


def find_regions(lungs: Mask, heart: Mask) -> tuple[Box, ...]:
    """Return the boxes of all regions, in whole pixels."""
    both, (x1, y1, x2, y2) = _enclose(lungs, "lungs"), _enclose(heart, "heart")
    right, left = (_enclose(part, f"{side} lung") for side, part in split_lungs(lungs).items())
    boxes: dict[str, Corners] = {BOTH_LUNGS: both, HEART: (x1, y1, x2, y2)}
    for side, (inner, top, outer, bottom) in zip(SIDES, (right, left), strict=True):
        boxes[f"{side} lung"] = (inner, top, outer, bottom)
        rows = [top + np.floor((bottom - top) * part / 3 + 0.5) for part in range(4)]
        for number, zone in enumerate(ZONES):
            boxes[zone_name(side, zone)] = (inner, rows[number], outer, rows[number + 1])
        third = np.floor((outer - inner) / 3 + 0.5)
        ends = (outer - third, outer) if side == "right" else (inner, inner + third)
        boxes[hilum_name(side)] = (ends[0], rows[1], ends[1], rows[2])
        quarter = np.floor((bottom - top) / 4 + 0.5)
        boxes[diaphragm_name(side)] = (inner, bottom - quarter, outer, min(bottom + quarter, lungs.shape[0]))
    boxes[MEDIASTINUM] = (min(right[2], x1), min(both[1], y1), max(left[0], x2), y2)
    try:
        return tuple(Box(name, tuple(map(float, box))).check() for name, box in boxes.items())  # type: ignore[arg-type]
    except BadInput as error:
        raise BadInput(
            f"masks of {lungs.shape[1]} by {lungs.shape[0]} pixels are too small for regions: {error}"
        ) from None


USUAL_FRAME: Corners = (0.074, 0.098, 0.925, 0.849)
"""Median frame of both lungs in 435 masks that torchxrayvision ships, as shares of the picture's sides."""


def name_position(box: Corners, image_size: Sequence[int]) -> str:
    """Return side and zone of a box in a frontal chest radiograph, by its place in the usual frame of the lungs.

    Sides are the patient's. A box with less than five sixths on either side is central; one taller than two zones has
    no zone. Only the place is named, not an organ.
    """
    (width, height), (left, top, right, bottom) = image_size, USUAL_FRAME
    middle, third = width * (left + right) / 2, height * (bottom - top) / 3
    of_right = min(max((middle - box[0]) / (box[2] - box[0]), 0.0), 1.0)
    side = "right" if of_right >= 5 / 6 else "left" if of_right <= 1 / 6 else "central"
    zone = min(max(int(((box[1] + box[3]) / 2 - height * top) // third), 0), 2)
    return f"{side} area" if box[3] - box[1] > 2 * third else f"{side} {('upper', 'middle', 'lower')[zone]} zone"


def split_lungs(lungs: Mask) -> dict[str, Mask]:
    """Return the patient's right and left lung: the parts on either side of the emptiest column of the middle third."""
    x1, _, x2, _ = map(int, _enclose(lungs, "lungs"))
    first, last = x1 + (x2 - x1) // 3, x2 - (x2 - x1) // 3
    counts = lungs[:, first:last].sum(axis=0)
    emptiest = np.flatnonzero(counts == counts.min()) if counts.size else np.zeros(1, int)
    column = first + int(emptiest[np.abs(emptiest - emptiest.mean()).argmin()])
    columns = np.arange(lungs.shape[1])
    return {"right": lungs & (columns < column), "left": lungs & (columns >= column)}


def host_organ(box: Corners, organs: Mapping[str, Mask]) -> str:
    """Return the organ that covers the greatest share of a box; "" if none covers any of it."""
    x1, y1 = (int(np.floor(edge)) for edge in box[:2])
    x2, y2 = (int(np.ceil(edge)) for edge in box[2:])
    shares = {name: float(mask[y1:y2, x1:x2].mean()) for name, mask in organs.items()}
    best = max(shares, key=lambda name: shares[name])
    return best if shares[best] > 0 else ""


def enclose_boxes(boxes: Sequence[Corners]) -> Corners:
    """Return the smallest box that holds all of at least one box."""
    x1, y1, x2, y2 = zip(*boxes, strict=True)
    return min(x1), min(y1), max(x2), max(y2)


def _enclose(mask: Mask, name: str) -> Corners:
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    if not rows.size:
        raise BadInput(f"mask of the {name}: {_NONE}")
    return float(columns[0]), float(rows[0]), float(columns[-1] + 1), float(rows[-1] + 1)


NORMAL = "Normal"


@dataclasses.dataclass(frozen=True)
class Term:
    """The words for a finding."""

    name: str  # without article, as in "no pleural effusion"
    phrase: str  # with article where English requires one, as in "Is there a pleural effusion?"
    look: str = ""  # what its box shows, without naming it; "" for a lesion that the facts describe
    region: str = BOTH_LUNGS
    share: float = 1.0  # how often it is asked about


_TABLES: dict[str, Any] = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
TERMS = {name: Term(**words) for name, words in _TABLES["terms"].items()}
"""The findings of the phantom; texts use labels of other sources unchanged."""

SAME: dict[str, str] = _TABLES["same"]  # other labels of the findings above
LOOK_ALIKES: dict[str, list[str]] = _TABLES["look_alikes"]
"""Findings that are not denied if another is present: both words may be true of one picture."""

EXPLAINS: dict[str, list[str]] = _TABLES["explains"]
"""Diagnoses that explain a secondary sign; no question is asked about other pairs."""

NORMAL_PHRASES = ("normal chest radiograph", "normal chest", "no abnormality", NORMAL)
_CANONICAL = {name.casefold(): name for name in TERMS} | {name.casefold(): label for name, label in SAME.items()}


def canonical(label: str) -> str:
    """Return the finding that a label stands for, in any letter case; other labels unchanged."""
    return _CANONICAL.get(label.casefold(), label)


def term_of(label: str) -> Term:
    """Return the words for a finding; for a label of another source the label itself."""
    name = canonical(label)
    return TERMS.get(name) or Term(name.lower(), name.lower())


def accepted_names(label: str) -> tuple[str, ...]:
    """Return the phrases of the report's tables for a finding, the preferred first, and its label."""
    if label == NORMAL:
        return NORMAL_PHRASES
    name = canonical(label)
    phrases = WORDINGS[6].get(name, ())
    return tuple(dict.fromkeys((*phrases, term_of(name).name, name)))


# Design: a thinking text has one sentence a reference, one an option, and one with the answer (GEMeX-RMCoT's pipeline,
# offline). Stages follow MEDSAGE: location, what is seen, a rule, the conclusion. No sentence mentions a report.

FACT_NAMES = ("detection", "distribution", "pattern", "zone", "morphology", "secondary", "diagnosis")
"""Names of the facts that hold the answers of the chain's seven steps; further facts are "side" and "organ"."""

PREAMBLE = "This is a frontal chest radiograph."
_SEEN = ("and see", "where I see", "which shows")
_LAST = ("So the answer is", "Therefore the answer is", "Hence the answer is")
_EACH = "Each option is held against what is seen."
_CONCLUSIONS = ("This is most consistent with {}.", "Together this suggests {}.", "The picture fits {}.")


def knows_steps(facts: Mapping[str, str]) -> bool:
    """Return whether facts answer all seven steps and name the side."""
    return all(facts.get(name) for name in FACT_NAMES) and "side" in facts


def write_box(box: Corners) -> str:
    """Return a box as thinking texts write it: whole pixels, rounded half up."""
    space = pixels((1, 1))
    return str([int(edge) for edge in convert_rounded([box], source=space, target=space)[0].tolist()])


def look_at(finding: Box, seen: str, *, wording: int = 0) -> str:
    """Return the sentence about one region: its name, its box, and what is seen there; without region the finding."""
    box = write_box(finding.corners)
    if not finding.region:
        return f"I see signs of **{finding.label}** ({box})."
    return f"I look at the **{finding.region}** ({box}) {_SEEN[wording % len(_SEEN)]} {seen}."


def write_thinking(
    seen: Iterable[tuple[Box, str]], *, answer: str, options: Iterable[str] = (), wording: int = 0
) -> str:
    """Return a thinking text."""
    sentences = [look_at(finding, what, wording=wording) for finding, what in seen]
    return " ".join([*sentences, *options, f"{_LAST[wording % len(_LAST)]} {answer}."])


def describe(facts: Mapping[str, str], *, wording: int = 0) -> str:
    """Return the lesion in words by steps 1, 2, 3 and 5, such as "focal increased opacity with cavitation"."""
    what = f"{_word(1, facts, wording)} {_word(0, facts, wording)}".strip()
    nature = " and ".join(part for part in (_word(2, facts, wording), _word(4, facts, wording)) if part)
    return f"{what} with {nature}" if nature else what


def name_place(facts: Mapping[str, str], *, wording: int = 0) -> str:
    """Return the location in words by step 4 and the side."""
    if facts["zone"] != NOT_APPLICABLE:
        return name_side(_word(3, facts, wording), facts["side"])
    lungs = "both lungs" if facts["side"] == "bilateral" else f"the {facts['side']} lung"
    return f"in {lungs} without a preferred zone"


def write_stages(facts: Mapping[str, str], *, answer: str, wording: int = 0, place: str = "") -> Stages:
    """Return MEDSAGE's stages of an image whose seven steps are known."""
    diagnosis = facts["diagnosis"]
    rules = KNOWLEDGE[diagnosis]
    if diagnosis == NORMAL:
        where = place and f"{place[:1].upper()}{place[1:]}."
        where = where or "No place stands out; both lungs and the heart are looked over."
        visual = "The lungs are clear and the heart is of normal size."
    else:
        where = f"The change lies {place or name_place(facts, wording=wording)}."
        visual = f"The picture shows {describe(facts, wording=wording)}. {_word(5, facts, wording)}."
    last = f"{_LAST[wording % len(_LAST)]} {answer}."
    return Stages(where, visual, rules[wording % len(rules)], f"{state_finding(diagnosis, wording=wording)} {last}")


def state_finding(diagnosis: str, *, wording: int = 0) -> str:
    """Return the sentence in which a conclusion states the diagnosis."""
    return _CONCLUSIONS[wording % len(_CONCLUSIONS)].format(accepted_names(diagnosis)[0])


def write_asked_stages(seen: Iterable[tuple[str, str]], *, asked: str, answer: str, wording: int = 0) -> Stages:
    """Return MEDSAGE's stages of a question that is not about the diagnosis, from what its references show."""
    shown = list(dict.fromkeys(seen))
    regions = list(dict.fromkeys(f"the {region}" for region, _ in shown))
    where = f"{', '.join(regions[:-1])} and {regions[-1]}" if len(regions) > 1 else regions[0]
    rules = KNOWLEDGE.get(asked, SIGN_RULES)
    judged = {"Yes": "What is asked about is seen there.", "No": "What is asked about is not seen there."}
    return Stages(
        f"The place to look at is {where}.",
        " ".join(f"In the {region} I see {what}." for region, what in shown),
        rules[wording % len(rules)],
        f"{judged.get(answer, _EACH)} {_LAST[wording % len(_LAST)]} {answer}.",
    )


def _word(step: int, facts: Mapping[str, str], wording: int) -> str:
    words = WORDINGS[step][facts[FACT_NAMES[step]]]
    return words[wording % len(words)]
