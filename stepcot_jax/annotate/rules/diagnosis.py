"""The diagnosis of a report: one of its findings, a normal chest, or neither.

Findings rank by status (stated, likely, possible); companions of another finding rank after it; findings of the
impression, or after "most consistent with", before those of the findings section; the first of "atelectasis or
infiltrate" before the second; then by `URGENCY`. A possible finding is the diagnosis only if nothing more certain is
named. A heart of borderline size is no more than likely, and no diagnosis beside a shadow of the lungs.

A chest is normal if the report denies or praises something and asserts no finding. `INCIDENTAL` findings, artifacts
and anything outside the chest do not count, because no step of the chain can express them. Granulomas, scars,
emphysema, edema and acute fractures do count: alone, they are outside the taxonomy.
"""

import re
from collections.abc import Collection, Iterable

from stepcot_jax.annotate.annotation import CannotAnnotate, Reason
from stepcot_jax.annotate.rules import terms
from stepcot_jax.annotate.rules.assertions import Status
from stepcot_jax.annotate.rules.mentions import Mention, Reading

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
"""Order of findings that otherwise rank equal: the most urgent first."""

_DESCRIBED = re.compile(
    r"\b(?:left|right|bilateral\w*|small|large|moderate|tiny|trace|mild|upper|lower|middle|mid|bas\w+|api\w+|lingul\w+"
    r"|\d+(?:\.\d+)? ?(?:mm|cm)|calcified|stable|unchanged|persist\w+|increas\w+|decreas\w+|again|chronic)\b",
    re.IGNORECASE,
)
_ORDER = (*URGENCY, terms.LESION, terms.OPACITY, terms.LUCENCY, terms.GRANULOMA, terms.CALCIFICATION, terms.SCAR)
"""`URGENCY`, then lesions that may be active, then old ones (granulomas, calcifications, scars)."""

INCIDENTAL = frozenset(
    {terms.AGE_CHANGE, terms.DEVICE, terms.VESSEL, terms.LOW_VOLUME, terms.RAISED_DIAPHRAGM, terms.EVENTRATION}
)
"""Findings outside lungs, pleura and heart: bone ageing and old fractures, devices, an elongated or calcified aorta,
low lung volumes, a raised diaphragm."""

_ACTIVE = frozenset({terms.OPACITY, terms.LUCENCY, terms.LESION})
"""Shadows without one diagnosis, such as airspace disease, that a heart of borderline size does not explain."""

_BORDERLINE = re.compile(r"\bborderline\b|\bupper limits?\b|\btop[- ]normal\b", re.IGNORECASE)
_BESIDE_NAME = 25  # characters before and after a name: "borderline" and an adverb

_NORMAL = re.compile(
    r"\b(?:normal\w*|unremarkable|(?:not|non)-? ?remarkable|clear\w*|negative|within (?:\w+ )?limits"
    r"|no (?:\w+ ){0,4}?(?:abnormal\w*|disease|process|finding\w*)|well[- ]inflated|free of|intact|midline"
    r"|(?:well[- ])?(?:expanded|aerated)|satisfactory|stable|unchanged|sharp|symmetric\w*|preserved|without|no)\b",
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
    r"\b(?:artifact\w*|superimpos\w+ (?:structures?|shadows?|tissues?)|overlapping|overlying (?:\w+ )?(?:soft|breast"
    r"|tissue)|summation|confluence of|nipples?|breast (?:tissue|shadows?)|(?:epi|peri)cardial fat|fat pads?"
    r"|skin ?folds?|bone islands?|costochondral|companion shadows?|jewel\w+|necklaces?|piercings?|vascular shadows?"
    r"|vessels? (?:seen )?on[- ]end|(?:ekg|ecg) leads?)\b",
    re.IGNORECASE,
)


def find_diagnosis(reading: Reading) -> Mention | None:
    """Return the mention that is the diagnosis; None for a normal chest."""
    if not reading.sentences:
        raise CannotAnnotate(Reason.NO_REPORT, "no sentence in findings or impression")
    chief = rank_first(mention for mention in reading.mentions if mention.sort == "diagnosis")
    if chief is not None:
        if is_contradicted(reading, chief.finding):
            raise CannotAnnotate(Reason.CONFLICTING_FINDINGS, f"{chief.finding.lower()} is asserted and denied")
        shadow = find_asserted(reading, _ACTIVE) if _is_borderline(chief) else None
        if shadow is not None:
            detail = f"{shadow.finding.lower()} beside a heart of borderline size"
            raise CannotAnnotate(Reason.OUTSIDE_TAXONOMY, detail)
        return chief
    other = [mention for mention in reading.mentions if mention.status > Status.PAST and not is_incidental(mention)]
    if other:
        raise CannotAnnotate(Reason.OUTSIDE_TAXONOMY, ", ".join(sorted({mention.finding.lower() for mention in other})))
    denied = any(mention.status == Status.ABSENT for mention in reading.mentions)
    if not denied and not any(_NORMAL.search(sentence.line) for sentence in reading.sentences):
        raise CannotAnnotate(Reason.OUTSIDE_TAXONOMY, "the report names no finding and does not say that all is normal")
    return None


def rank_first(mentions: Iterable[Mention]) -> Mention | None:
    """Return the highest-ranking finding that is at least possible, in the order of the module docstring."""
    held = [mention for mention in mentions if mention.status > Status.PAST]
    return min(held, key=_rank, default=None)


def _rank(mention: Mention) -> tuple[int, bool, bool, bool, int, int]:
    urgency = _ORDER.index(mention.finding) if mention.finding in _ORDER else len(_ORDER)
    leads = mention.concluded or mention.sentence.role == "impression"
    is_companion = mention.associated and not mention.concluded
    status = min(mention.status, Status.LIKELY) if _is_borderline(mention) else mention.status
    return -status, is_companion, not leads, mention.alternative, urgency, mention.number


def find_asserted(reading: Reading, findings: Collection[str]) -> Mention | None:
    """Return the first of these findings that is stated or likely, in the chest, and no artifact."""
    named = (mention for mention in reading.mentions if mention.finding in findings and mention.present)
    return next((mention for mention in named if not is_incidental(mention)), None)


def _is_borderline(mention: Mention) -> bool:
    """Whether the report calls the heart borderline or at the upper limit of its size."""
    if mention.finding != terms.CARDIOMEGALY:
        return False
    first, last = mention.clause
    start, end = max(first, mention.start - _BESIDE_NAME), min(last, mention.end + _BESIDE_NAME)
    return _BORDERLINE.search(mention.sentence.line, min(start, mention.start), max(end, mention.end)) is not None


def is_incidental(mention: Mention) -> bool:
    """Whether a finding is in `INCIDENTAL`, an artifact, or outside the chest; "lung and spleen" is in the chest."""
    text = mention.sentence.line
    if mention.finding in INCIDENTAL or _ARTIFACT.search(text):
        return True
    in_lung = mention.sort == "lesion" and _IN_LUNG.search(text, *mention.clause)
    return not in_lung and _ELSEWHERE.search(text) is not None


def is_contradicted(reading: Reading, finding: str) -> bool:
    """Whether the report asserts a finding in one sentence and denies it in another.

    An impression that asserts the finding overrules a denial in the findings section, because it is the conclusion. A
    finding stated with place, size or course overrules a denial in the findings section, which is often boilerplate.
    """
    named = [mention for mention in reading.mentions if mention.finding == finding]
    concluding = [mention for mention in named if mention.sentence.role == "impression"]
    weighed = concluding if any(mention.present for mention in concluding) else named
    asserted = {mention.number for mention in weighed if mention.present}
    described = any(mention.status == Status.STATED and _DESCRIBED.search(mention.sentence.line) for mention in weighed)
    denials = [mention for mention in weighed if mention.denied_wholly]
    denied = {mention.number for mention in denials if not described or mention.sentence.role == "impression"}
    return bool(asserted) and bool(denied - asserted)
