"""Answer the seven steps from a report by rules, deterministically and offline.

Every answer cites its sentence, an implied one that of the diagnosis; steps that the report leaves open stay open.
"""

import itertools
import re
from collections.abc import Collection, Iterable

from stepcot_jax.annotate.annotation import Annotation, CannotAnnotate, Reason, Report
from stepcot_jax.annotate.rules import lesions, terms
from stepcot_jax.annotate.rules.language import find_foreign_words
from stepcot_jax.annotate.rules.lesions import Answer, Lesion, doubted
from stepcot_jax.annotate.rules.mentions import Mention, Reading, Status, read_report
from stepcot_jax.chain import DEFAULT_CHAIN, DIAGNOSIS_OPTIONS, NOT_ANNOTATED, NOT_APPLICABLE, Chain, fold
from stepcot_jax.host.errors import BadInput

# The diagnosis of a report: one of its findings, a normal chest, or neither.


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
"""Shadows without one diagnosis, such as airspace disease: beside them a heart of borderline size is uncertain."""

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
        return chief
    other = [mention for mention in reading.mentions if mention.status > Status.PAST and not is_incidental(mention)]
    if other:
        raise CannotAnnotate(Reason.OUTSIDE_TAXONOMY, ", ".join(sorted({mention.finding.lower() for mention in other})))
    open_questions = (mention for mention in reading.mentions if mention.sort == "diagnosis" and mention.unassessed)
    if unassessed := next(open_questions, None):
        raise CannotAnnotate(Reason.OUTSIDE_TAXONOMY, f"{unassessed.finding.lower()} could not be assessed")
    if doubtful := find_doubtful_denial(reading):
        raise CannotAnnotate(Reason.CONFLICTING_FINDINGS, f"{doubtful.finding.lower()} may be denied in part alone")
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
    """Return the first of these findings that is stated or likely, in the chest, and not an artifact."""
    named = (mention for mention in reading.mentions if mention.finding in findings and mention.present)
    return next((mention for mention in named if not is_incidental(mention)), None)


def _is_borderline(mention: Mention) -> bool:
    """Return whether the report calls the heart borderline or at the upper limit of its size."""
    if mention.finding != terms.CARDIOMEGALY:
        return False
    first, last = mention.clause
    start, end = max(first, mention.start - _BESIDE_NAME), min(last, mention.end + _BESIDE_NAME)
    return _BORDERLINE.search(mention.sentence.line, min(start, mention.start), max(end, mention.end)) is not None


def is_incidental(mention: Mention) -> bool:
    """Return whether a finding is in `INCIDENTAL`, an artifact, or outside the chest ("lung and spleen" is inside)."""
    text = mention.sentence.line
    if mention.finding in INCIDENTAL or _ARTIFACT.search(text):
        return True
    in_lung = mention.sort == "lesion" and _IN_LUNG.search(text, *mention.clause)
    return not in_lung and _ELSEWHERE.search(text) is not None


def is_contradicted(reading: Reading, finding: str) -> bool:
    """Return whether the report asserts a finding in one sentence and denies it in another.

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


# Denials that may not reach what follows them, so that a report is set aside instead of being a certain Normal.


_JOINED = re.compile(r"\b(?:n?or|and)\b|[,/&]")
_LIST_ENDS = re.compile(r"\b(?:n?or|and)\b|/")
_PLACE = r"(?:left|right|upper|lower|middle|apical|basal|basilar|bibasilar|lingular|retrocardiac|perihilar)"
_PLACED_BEHIND = re.compile(rf" (?:is |seen |noted )?(?:in|at|of|within|along|over) (?:the )?{_PLACE}\b", re.IGNORECASE)
_PLACED_BEFORE = re.compile(rf",\s*(?:an? )?(?:{_PLACE} ){{1,2}}(?:(?:lobe|lung|zone) )?$", re.IGNORECASE)
_BOTH_SIDES = re.compile(
    r"\b(?:left|right)\b[\w -]{0,20}(?:\b(?:n?or|and|versus|than|to)\b|/)[\w ]{0,9}\b(?:left|right)\b", re.I
)
_SIDE = re.compile(r"\b(left|right)(?:-sided)?\b", re.IGNORECASE)
_EXCEPT = re.compile(
    r"\b(?:except(?:ion of)?|other than|apart from|aside from|save for|but|only|yet)\b[^.;]{0,40}\b(?:left|right)\b",
    re.IGNORECASE,
)
_FINE = re.compile(r"\b(?:normal\w*|clear\w*|unremarkable|intact|no|without|free|sharp|well|not)\b", re.IGNORECASE)
_FURTHEST = 60  # characters from a denied finding to the exception


def find_doubtful_denial(reading: Reading) -> Mention | None:
    """Return a denied finding that the report may state after all; None if every denial is plain.

    A denial is in doubt where it reaches a second finding across neither a conjunction nor a comma, or across a comma
    to one with its place ("no effusion, nodule in the left lung"); where it names one side and the text goes on to the
    other side without naming a finding; and where an exception to it follows.
    """
    denied = [mention for mention in reading.mentions if mention.status == Status.ABSENT and mention.sort != "other"]
    for first, second in itertools.pairwise(denied):
        if first.number == second.number and not second.signed and not _reaches(first, second):
            return second
    for mention in denied:
        if not mention.signed and (_goes_on_to_the_other_side(mention, reading) or _has_exception(mention, reading)):
            return mention
    return None


def _reaches(first: Mention, second: Mention) -> bool:
    line = second.sentence.line
    between = line[first.end : second.start]
    if first.clause != second.clause or re.search(r"\b(?:no|not|without|nor|neither)\b", between, re.IGNORECASE):
        return True
    if not _JOINED.search(between) and re.search(r"[^\w\s-]", between):
        return False
    if _LIST_ENDS.search(between) or _LIST_ENDS.search(line, second.end, second.clause[1]):
        return True
    is_placed = _PLACED_BEHIND.match(line, second.end) or _PLACED_BEFORE.search(line, first.end, second.start)
    return is_placed is None


def _goes_on_to_the_other_side(mention: Mention, reading: Reading) -> bool:
    line = mention.sentence.line
    sides = [(side[1].lower(), side.start()) for side in _SIDE.finditer(line)]
    named = [other for other in reading.mentions if other.number == mention.number]
    if not sides or _BOTH_SIDES.search(line) or any(other.start > mention.end for other in named):
        return False
    if len({side for side, _ in sides}) == 2:
        return _FINE.search(line, mention.end) is None
    following = reading.sentences[mention.number + 1 : mention.number + 2]
    is_named = any(other.number == mention.number + 1 for other in reading.mentions)
    others = {side[1].lower() for sentence in following for side in _SIDE.finditer(sentence.line)}
    goes_on = bool(others - {sides[0][0]}) and not is_named
    return goes_on and not any(_FINE.search(sentence.line) for sentence in following)


def _has_exception(mention: Mention, reading: Reading) -> bool:
    found = _EXCEPT.search(mention.sentence.line, mention.end)
    if found is None or found.start() > mention.end + _FURTHEST:
        return False
    return not any(other.number == mention.number and other.start > mention.end for other in reading.mentions)


# The answers of all steps.


SECONDARY = {
    terms.SHIFT: "Mediastinal shift",
    terms.PNEUMOTHORAX: "Pneumothorax",
    terms.EFFUSION: "Pleural effusion",
    terms.VOLUME_LOSS: "Volume loss",
    terms.RAISED_DIAPHRAGM: "Volume loss",
    terms.NODES: "Lymphadenopathy",
    terms.CARDIOMEGALY: "Cardiomegaly",
}
"""Findings that answer step 6 beside another diagnosis, in order of precedence."""

_LUCENT = frozenset({terms.PNEUMOTHORAX, terms.LUCENCY, terms.EMPHYSEMA})
_DENSE = frozenset({*DIAGNOSIS_OPTIONS, *terms.LESIONS, terms.EDEMA}) - {
    *_LUCENT,
    *(terms.NORMAL, terms.CARDIOMEGALY, terms.CALCIFIED_NODE),
}
"""Findings denser than lung. A large heart implies nothing about the lungs, nor does a calcified node."""

_EXPLAINABLE = (terms.OPACITY, terms.LUCENCY)
"""Lesions that another finding may explain: "opacity, which may represent atelectasis"."""


def annotate_report(report: Report | str, *, chain: Chain = DEFAULT_CHAIN) -> Annotation:
    """Annotate a report.

    Args:
      report: the report, or its text.
      chain: the steps; options must be those of `DEFAULT_CHAIN`, in any order.

    Raises:
      CannotAnnotate: the report is empty, contradicts itself, or its findings are outside the taxonomy.
      BadInput: the chain has other options.
    """
    reading = _read(report if isinstance(report, str) else report.text)
    return _annotation(_answers(reading, find_diagnosis(reading)), chain)


def describe_report(report: Report) -> Annotation:
    """Annotate the first-ranking lesion of lung or pleura, whether or not it is a diagnosis of the chain."""
    reading = _read(report.text)
    return _annotation(_answers(reading, _find_lesion(reading) or find_diagnosis(reading)), DEFAULT_CHAIN)


def _read(text: str) -> Reading:
    foreign = find_foreign_words(text)
    if foreign:
        raise CannotAnnotate(Reason.NOT_ENGLISH, ", ".join(foreign[:3]))
    return read_report(text)


def _find_lesion(reading: Reading) -> Mention | None:
    """Return the first-ranking lesion; a certain granuloma or scar precedes a merely possible diagnosis."""
    mentions = [mention for mention in reading.mentions if mention.finding != terms.CARDIOMEGALY]
    named = rank_first(mention for mention in mentions if mention.sort == "diagnosis")
    other = rank_first(mention for mention in mentions if mention.sort == "lesion" and not is_incidental(mention))
    if named is None or other is None:
        return named or other
    return other if other.present and not named.present and other.finding not in _EXPLAINABLE else named


def _answers(reading: Reading, chief: Mention | None) -> list[Answer | None]:
    if chief is None:
        return _normal_answers(reading)
    lesion = Lesion(reading, chief)
    named = chief.finding in DIAGNOSIS_OPTIONS
    is_doubtful = not chief.present or (_is_borderline(chief) and find_asserted(reading, _ACTIVE) is not None)
    about = [lesion.distribution(), lesion.pattern(), lesion.location(), lesion.morphology()]
    return [
        _detection(reading, chief, lesion),
        *(answer if lesion.is_asserted or answer is None else doubted(answer) for answer in about),
        _secondary(reading, chief),
        Answer(chief.finding, chief.sentence.text, uncertain=is_doubtful) if named else None,
    ]


def _normal_answers(reading: Reading) -> list[Answer | None]:
    denied = (item for item in reading.mentions if item.status == Status.ABSENT and item.sort == "lesion")
    clear = (sentence for sentence in reading.sentences if "lung" in sentence.line.lower())
    concluding = (sentence for sentence in reading.sentences if sentence.role == "impression")
    last = next(concluding, reading.sentences[-1]).text
    first = [*(sentence.text for sentence in clear), *(item.sentence.text for item in denied), last][0]
    none = Answer(NOT_APPLICABLE, first)
    return [Answer(lesions.NO_ABNORMALITY, first), *[none] * 5, Answer(terms.NORMAL, last)]


def _detection(reading: Reading, chief: Mention, lesion: Lesion) -> Answer | None:
    """Return the answer of step 1; None if the report describes no density, as with only a large heart."""
    described = lesion.density()
    if described:
        return described
    lucent = chief if chief.finding in _LUCENT else find_asserted(reading, _LUCENT)
    dense = chief if chief.finding in _DENSE else find_asserted(reading, _DENSE)
    group = _LUCENT if chief is lucent else _DENSE
    doubtful = not chief.present and chief in (lucent, dense) and find_asserted(reading, group) is None
    if lucent and dense:
        sentences = " ".join(dict.fromkeys(item.sentence.text for item in (lucent, dense)))
        return Answer(lesions.MIXED, sentences, doubtful)
    if lucent:
        return Answer(lesions.DECREASED, lucent.sentence.text, doubtful)
    return Answer(lesions.INCREASED, dense.sentence.text, doubtful) if dense else None


def _secondary(reading: Reading, chief: Mention) -> Answer:
    beside = {
        item.finding: item for item in reversed(reading.mentions) if item.present and item.finding != chief.finding
    }
    for finding, answer in SECONDARY.items():
        if finding in beside:
            return Answer(answer, beside[finding].sentence.text)
    named = [item for item in reading.mentions if item.finding in SECONDARY and item.finding != chief.finding]
    if possible := [item for item in named if item.status == Status.POSSIBLE]:
        return Answer(NOT_APPLICABLE, possible[0].sentence.text, uncertain=True)
    denied = [item for item in reading.mentions if item.finding in SECONDARY and item.status == Status.ABSENT]
    return Answer(NOT_APPLICABLE, (denied or [chief])[0].sentence.text)


def _annotation(answers: list[Answer | None], chain: Chain) -> Annotation:
    if chain.num_steps != len(answers):
        raise BadInput(f"--annotator=rules answers the {len(answers)} default steps; the chain has {chain.num_steps}")
    labels, reasoning, uncertain = [], [], []
    for step, expected, answer in zip(chain.steps, DEFAULT_CHAIN.steps, answers, strict=True):
        options = {fold(option): label for label, option in enumerate(step.options)}
        missing = [option for option in expected.options if fold(option) not in options]
        if missing:
            raise BadInput(
                f"--annotator=rules: step {step.name!r} has no option {missing[0]!r}; use the default options"
            )
        labels.append(options[fold(answer.text)] if answer else NOT_ANNOTATED)
        reasoning.append(answer.sentence if answer else "")
        uncertain.append(answer is not None and answer.uncertain)
    return Annotation(tuple(labels), tuple(reasoning), uncertain=tuple(uncertain) if any(uncertain) else ())
