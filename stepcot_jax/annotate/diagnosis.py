"""Which finding of a report is its diagnosis, or that it is normal, or why it is neither.

The diagnosis is the finding that ranks first: what is stated ranks before what is likely, and that before what is only
possible; a finding named as the companion of another ranks behind it; what the impression (or a phrase such as "most
consistent with") names ranks before what only the findings name; of "atelectasis or infiltrate" the first; then the
order of `URGENCY`. A finding that is only possible becomes the diagnosis where nothing more certain is named.

A chest is normal where the report denies or praises something and asserts no finding. What no step of the chain can
express does not count, as devices do not count against "no finding" in other collections: `INCIDENTAL` findings,
artifacts and what lies outside the chest. Granulomas, scars, emphysema, edema or an acute fracture do count: alone,
they are outside the taxonomy.
"""

import re
from collections.abc import Iterable

from stepcot_jax.annotate import terms
from stepcot_jax.annotate.annotation import CONFLICTING_FINDINGS, NO_REPORT, OUTSIDE_TAXONOMY, CannotAnnotate
from stepcot_jax.annotate.assertions import Status
from stepcot_jax.annotate.report_reading import Mention, Reading

URGENCY = (
    terms.PNEUMOTHORAX,
    terms.MASS,
    terms.PNEUMONIA,
    terms.NODULE,
    terms.INFILTRATION,
    terms.EFFUSION,
    terms.ATELECTASIS,
    terms.CARDIOMEGALY,
)
"""Which of several findings that rank alike is the diagnosis: the one that must not be missed."""

_DESCRIBED = re.compile(
    r"\b(?:left|right|bilateral\w*|small|large|moderate|tiny|trace|mild|upper|lower|middle|mid|bas\w+|api\w+"
    r"|lingul\w+|\d+(?:\.\d+)? ?(?:mm|cm)|calcified|stable"
    r"|unchanged|persist\w+|increas\w+|decreas\w+|again|chronic)\b",
    re.IGNORECASE,
)
_ORDER = (*URGENCY, terms.LESION, terms.OPACITY, terms.LUCENCY, terms.GRANULOMA, terms.CALCIFICATION, terms.SCAR)
"""As `URGENCY`, then what may be active before granulomas and scars, which are old, and lymph nodes last."""

INCIDENTAL = frozenset(
    {terms.AGE_CHANGE, terms.DEVICE, terms.VESSEL, terms.LOW_VOLUME, terms.RAISED_DIAPHRAGM, terms.EVENTRATION}
)
"""Findings that leave lungs, pleura and heart as they are: age and old injuries of bones, devices, an elongated or
calcified aorta, a shallow breath, a diaphragm that stands high with nothing beside it."""

_NORMAL = re.compile(
    r"\b(?:normal\w*|unremarkable|(?:not|non)-? ?remarkable|clear\w*|negative|within (?:\w+ )?limits"
    r"|no (?:\w+ ){0,4}?(?:abnormal\w*|disease|process"
    r"|finding\w*)|well[- ]inflated|free of|intact|midline|(?:well[- ])?(?:expanded|aerated)|satisfactory"
    r"|stable|unchanged|sharp|symmetric\w*"
    r"|preserved|without|no)\b",
    re.IGNORECASE,
)
_ELSEWHERE = re.compile(
    r"\b(?:abdom\w+(?! (?:ct|exam\w*|scan|series|film))|pelvi\w+|quadrant|bowel|colon\w*|gastric|stomach"
    r"|liver|hepatic|splen\w+|kidneys?|renal|gallbladder"
    r"|cholecystectomy|lumbar|cervical|sacr\w+|hips?|femur|femoral|knees?|ankles?|tibia\w*|fibula\w*|foot|feet|toes?"
    r"|humer\w+|shoulders?|glenoid|acromi\w+|hands?|wrists?|fingers?|thumb|elbows?|forearm|radius|ulna\w*|skull|mandib\w+|sinus\w*)\b",
    re.IGNORECASE,
)
_IN_LUNG = re.compile(
    r"\b(?:lungs?|lobes?|pulmonary|pleura\w*|hil(?:ar|um|a)|api(?:cal|ces)|apex|bas(?:es?|al|ilar)|lingul\w+"
    r"|mid-?lungs?)\b",
    re.IGNORECASE,
)
_ARTIFACT = re.compile(
    r"\b(?:artifact\w*|superimpos\w+ (?:structures?|shadows?|tissues?)|overlapping"
    r"|overlying (?:\w+ )?(?:soft|breast|tissue)|summation|confluence of|nipples?|breast (?:tissue|shadows?)"
    r"|(?:epi|peri)cardial fat|fat pads?"
    r"|skin ?folds?|bone islands?|costochondral|companion shadows?|jewel\w+|necklaces?|piercings?"
    r"|vascular shadows?|vessels? (?:seen )?on[- ]end|(?:ekg|ecg) leads?)\b",
    re.IGNORECASE,
)


def find_diagnosis(reading: Reading) -> Mention | None:
    """The mention that is the diagnosis; None for a normal chest.

    Raises:
      CannotAnnotate: the report says nothing, contradicts itself about the diagnosis, or has findings of which none
        is a diagnosis of the chain.
    """
    if not reading.sentences:
        raise CannotAnnotate(NO_REPORT, "no sentence in findings or impression")
    chief = rank_first(mention for mention in reading.mentions if mention.sort == "diagnosis")
    if chief is not None:
        if is_contradicted(reading, chief.finding):
            raise CannotAnnotate(CONFLICTING_FINDINGS, f"{chief.finding.lower()} is asserted and denied")
        return chief
    other = [mention for mention in reading.mentions if mention.status > Status.PAST and not is_incidental(mention)]
    if other:
        raise CannotAnnotate(OUTSIDE_TAXONOMY, ", ".join(sorted({mention.finding.lower() for mention in other})))
    denied = any(mention.status == Status.ABSENT for mention in reading.mentions)
    if not denied and not any(_NORMAL.search(sentence.line) for sentence in reading.sentences):
        raise CannotAnnotate(OUTSIDE_TAXONOMY, "the report names no finding and does not say that all is normal")
    return None


def rank_first(mentions: Iterable[Mention]) -> Mention | None:
    """The first in rank of the findings that are at least possible, by the order that the module describes."""
    held = [mention for mention in mentions if mention.status > Status.PAST]
    return min(held, key=_rank, default=None)


def _rank(mention: Mention) -> tuple[int, bool, bool, bool, int, int]:
    urgency = _ORDER.index(mention.finding) if mention.finding in _ORDER else len(_ORDER)
    leads = mention.concluded or mention.sentence.role == "impression"
    return (
        -mention.status,
        mention.associated and not mention.concluded,
        not leads,
        mention.alternative,
        urgency,
        mention.number,
    )


def is_incidental(mention: Mention) -> bool:
    """Whether a finding leaves lungs, pleura and heart as they are, is an artifact, or is not in the chest.

    A granuloma of "lung and spleen" is in the chest.
    """
    text = mention.sentence.line
    if mention.finding in INCIDENTAL or _ARTIFACT.search(text):
        return True
    in_lung = mention.sort == "lesion" and _IN_LUNG.search(text, *mention.clause)
    return not in_lung and _ELSEWHERE.search(text) is not None


def is_contradicted(reading: Reading, finding: str) -> bool:
    """Whether the report asserts a finding in one sentence and denies it in another.

    An impression that asserts it overrules findings that deny it, since it is the conclusion; and a finding that is
    stated with its place, size or course overrules a phrase of the findings that denies it, since that is routine.
    """
    named = [mention for mention in reading.mentions if mention.finding == finding]
    concluding = [mention for mention in named if mention.sentence.role == "impression"]
    weighed = concluding if any(mention.present for mention in concluding) else named
    asserted = {mention.number for mention in weighed if mention.present}
    described = any(mention.status == Status.STATED and _DESCRIBED.search(mention.sentence.line) for mention in weighed)
    denials = [mention for mention in weighed if mention.denied_wholly]
    denied = {mention.number for mention in denials if not described or mention.sentence.role == "impression"}
    return bool(asserted) and bool(denied - asserted)
