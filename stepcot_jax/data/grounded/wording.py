"""Sentences of thinking texts and stages; each states facts that can be checked against the picture.

Design: a thinking text has one sentence a reference, one an option, and one with the answer (GEMeX-RMCoT's pipeline,
offline). Stages follow MEDSAGE: where, what is seen, a rule, the conclusion. No sentence speaks of a report.
"""

from collections.abc import Iterable, Mapping

from stepcot_jax.boxes import Corners, convert_rounded, pixels
from stepcot_jax.chain import NOT_APPLICABLE
from stepcot_jax.data.grounded.vocabulary import NORMAL, accepted_names
from stepcot_jax.data.phantom.phantom_reports import WORDINGS, name_side
from stepcot_jax.reasoning.record import Stages, VqaBox
from stepcot_jax.reasoning.rules import KNOWLEDGE, SIGN_RULES

FACT_NAMES = ("detection", "distribution", "pattern", "zone", "morphology", "secondary", "diagnosis")
"""Names of the facts that hold the answers of the chain's seven steps; "side" and "organ" stand beside them."""

PREAMBLE = "This is a frontal chest radiograph."

_SEEN = ("and see", "where I see", "which shows")
_LAST = ("So the answer is", "Therefore the answer is", "Hence the answer is")
_EACH = "Each option is held against what is seen."
_CONCLUSIONS = ("This is most consistent with {}.", "Together this suggests {}.", "The picture fits {}.")


def knows_steps(facts: Mapping[str, str]) -> bool:
    """Return whether facts answer all seven steps and name the side."""
    return all(facts.get(name) for name in FACT_NAMES) and "side" in facts


def write_box(box: Corners) -> str:
    """Return a box as thinking texts write it: whole pixels, rounded half up.

    >>> write_box((1, 2, 3.5, 4))
    '[1, 2, 4, 4]'
    """
    space = pixels((1, 1))
    return str([int(edge) for edge in convert_rounded([box], source=space, target=space)[0].tolist()])


def look_at(place: VqaBox, seen: str, *, wording: int = 0) -> str:
    """Return the sentence about one region: its name, its box, and what is seen there.

    >>> look_at(VqaBox("left lung", (1, 2, 3, 4)), "no lung mass")
    'I look at the **left lung** ([1, 2, 3, 4]) and see no lung mass.'
    """
    return f"I look at the **{place.label}** ({write_box(place.box)}) {_SEEN[wording % len(_SEEN)]} {seen}."


def write_thinking(
    seen: Iterable[tuple[VqaBox, str]], *, answer: str, options: Iterable[str] = (), wording: int = 0
) -> str:
    """Return a thinking text.

    Args:
      seen: for each reference its region, as label, with its box, and what is seen there.
    """
    sentences = [look_at(place, what, wording=wording) for place, what in seen]
    return " ".join([*sentences, *options, f"{_LAST[wording % len(_LAST)]} {answer}."])


def describe(facts: Mapping[str, str], *, wording: int = 0) -> str:
    """Return what steps 1, 2, 3 and 5 say of the lesion, such as "focal increased opacity with cavitation"."""
    what = f"{_word(1, facts, wording)} {_word(0, facts, wording)}".strip()
    nature = " and ".join(part for part in (_word(2, facts, wording), _word(4, facts, wording)) if part)
    return f"{what} with {nature}" if nature else what


def name_place(facts: Mapping[str, str], *, wording: int = 0) -> str:
    """Return what step 4 says, with the side."""
    if facts["zone"] != NOT_APPLICABLE:
        return name_side(_word(3, facts, wording), facts["side"])
    lungs = "both lungs" if facts["side"] == "bilateral" else f"the {facts['side']} lung"
    return f"in {lungs} without a preferred zone"


def write_stages(facts: Mapping[str, str], *, answer: str, wording: int = 0, place: str = "") -> Stages:
    """Return MEDSAGE's stages of an image whose seven steps are known.

    Args:
      wording: number of the wording of every stage, from 0; the rule of knowledge has three.
    """
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
    """Return the sentence in which a conclusion states the diagnosis.

    >>> state_finding("Effusion", wording=1)
    'Together this suggests pleural effusion.'
    """
    return _CONCLUSIONS[wording % len(_CONCLUSIONS)].format(accepted_names(diagnosis)[0])


def write_asked_stages(seen: Iterable[tuple[str, str]], *, asked: str, answer: str, wording: int = 0) -> Stages:
    """Return MEDSAGE's stages of a question that is not about the diagnosis, from what its references show.

    >>> write_asked_stages([("left lung", "no lung mass")], asked="Mass", answer="No").visual
    'In the left lung I see no lung mass.'
    """
    places = list(dict.fromkeys(seen))
    regions = list(dict.fromkeys(f"the {region}" for region, _ in places))
    where = f"{', '.join(regions[:-1])} and {regions[-1]}" if len(regions) > 1 else regions[0]
    rules = KNOWLEDGE.get(asked, SIGN_RULES)
    judged = {"Yes": "What is asked about is seen there.", "No": "What is asked about is not seen there."}
    return Stages(
        f"The place to look at is {where}.",
        " ".join(f"In the {region} I see {what}." for region, what in places),
        rules[wording % len(rules)],
        f"{judged.get(answer, _EACH)} {_LAST[wording % len(_LAST)]} {answer}.",
    )


def _word(step: int, facts: Mapping[str, str], wording: int) -> str:
    found = WORDINGS[step][facts[FACT_NAMES[step]]]
    return found[wording % len(found)]
