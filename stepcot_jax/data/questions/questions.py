"""Questions of four kinds about a grounded image, with answer, references and thinking that agree with the image.

A record is a function of (seed, image, number of the question); findings are referred to by their boxes.
"""

import dataclasses
import hashlib
import string
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import numpy as np

from stepcot_jax.box import Box, Corners
from stepcot_jax.chain import DEFAULT_CHAIN, DIAGNOSIS_OPTIONS, NOT_APPLICABLE
from stepcot_jax.data.phantom.answers import generator
from stepcot_jax.data.questions.vocabulary import (
    BOTH_LUNGS,
    EXPLAINS,
    HEART,
    NORMAL,
    PREAMBLE,
    SIDES,
    accepted_names,
    canonical,
    describe,
    diaphragm_name,
    hilum_name,
    knows_steps,
    name_position,
    term_of,
    write_asked_stages,
    write_stages,
    write_thinking,
    zone_name,
)
from stepcot_jax.reasoning.imaging import picture_of
from stepcot_jax.reasoning.rules import PRESENCE
from stepcot_jax.record import KINDS, Cue, Kind, Record

# Drafts of questions: question, answer, references and what is seen there.

UNKNOWN = "unknown"
"""Modality of an image of any collection, which need not be a radiograph."""

_RADIOGRAPH = "xray"  # modality of images whose source names none
_OF_THE_CHEST = ("chest", "thorax", "lung", "heart")

_CHEST = "chest radiograph"
Reference = tuple[Box, str]
"""A box that an answer refers to, with the region that the thinking names, and what is seen there."""


@dataclasses.dataclass(frozen=True)
class Draft:
    """A question with its answer."""

    topic: str  # template that it comes from
    question: str
    answer: str | tuple[str, ...]
    spoken: str  # the answer as the thinking's last sentence words it
    references: tuple[Reference, ...] = ()
    choices: tuple[str, ...] = ()
    sentences: tuple[str, ...] = ()  # the thinking's sentence about each option
    synonyms: tuple[str, ...] = ()  # further accepted texts of an open answer
    asked: str | None = None  # label that the question is about, "" for several


def diagnosis_of(image: Record) -> str:
    """Return the diagnosis: of the facts, else the one label that the image has; "" if there is none or several."""
    labels = present_in(image)
    return image.facts.get("diagnosis") or (labels[0] if len(labels) == 1 else "")


def present_in(image: Record) -> tuple[str, ...]:
    """Return the labels of an image's findings, each once, in alphabetical order."""
    return tuple(sorted({canonical(finding.label) for finding in image.boxes}))


def absent_in(image: Record) -> tuple[str, ...]:
    """Return the labels that the source denies, each finding once, in its order."""
    present = present_in(image)
    return tuple(label for label in dict.fromkeys(map(canonical, image.absent)) if label not in present)


def findings_of(image: Record, label: str) -> tuple[Box, ...]:
    """Return the findings of a label or of another name for it."""
    return tuple(finding for finding in image.boxes if canonical(finding.label) == canonical(label))


def refer(image: Record, findings: Sequence[Box], rng: np.random.Generator) -> tuple[Reference, ...]:
    """Refer to findings: the facts describe a lesion of the diagnosis, its look a secondary sign."""
    wording, references = int(rng.integers(6)), []
    for finding in findings:
        term = term_of(finding.label)
        seen = term.look or f"signs of {term.name}"
        is_lesion = not term.look or (term.region == HEART and finding.region != HEART)  # congestion outside the heart
        if knows_steps(image.facts) and finding.label == image.facts["diagnosis"] and is_lesion:
            seen = describe(image.facts, wording=wording)
        region = region_of(finding, image, image.modality or _RADIOGRAPH)
        references.append((Box(finding.label, finding.corners, region=region), seen))
    return tuple(references)


def region_of(finding: Box, image: Record, modality: str) -> str:
    """Return a finding's region, else its place in a chest radiograph; "" for another picture."""
    is_chest = not image.organ or any(word in image.organ.lower() for word in _OF_THE_CHEST)
    is_placed = is_chest and modality == _RADIOGRAPH
    return finding.region or (name_position(finding.corners, image.image_size) if is_placed else "")


def refer_to_region(image: Record, name: str, seen: str) -> tuple[Reference, ...]:
    """Refer to a region; () if the image has no box of it."""
    box = image.region_box(name)
    return () if box is None else ((Box(name, box, region=name), seen),)


def refer_or_clear(image: Record, findings: Sequence[Box], rng: np.random.Generator) -> tuple[Reference, ...]:
    """Refer to findings, without any to both lungs as clear."""
    return refer(image, findings, rng) or refer_to_region(image, BOTH_LUNGS, "clear lungs")


def pick(rng: np.random.Generator, items: Sequence[Any], shares: Sequence[float] | None = None) -> Any:
    """Draw one of the items with probabilities proportional to their shares."""
    cumulative = np.cumsum(np.ones(len(items)) if shares is None else shares)
    return items[int(np.searchsorted(cumulative, rng.random() * cumulative[-1], side="right"))]


# Questions with four options, of which one or several are right.

_NUM_CHOICES = 4
_PATTERNS, _ZONES = (DEFAULT_CHAIN.steps[step].options[:-1] for step in (2, 3))
_FITS = "this fits what I see"
_STATEMENT_SHARE = 0.35
_DIAGNOSIS_SHARE = 2.0
"""Weights of statements among options and of the diagnosis among topics; they keep majority answers rare."""

_DIAGNOSIS = (
    "What is the most likely diagnosis?",
    "Which diagnosis fits this chest radiograph best?",
    "Which of these explains the picture best?",
)
_PRESENT = (
    "Which of these are present?",
    "Which of these does the picture show?",
    "Select all that the picture shows.",
)
_ONE_PRESENT = ("Which one of these is present?", "Which one of these does the picture show?")
_ZONE = ("In which zone does the main abnormality lie?", "Where is the main abnormality located?")
_PATTERN = ("Which radiographic pattern is seen?", "What is the predominant radiographic pattern?")


@dataclasses.dataclass(frozen=True)
class _Option:
    text: str
    rejected: str  # the thinking's words about it if it is wrong
    label: str = ""  # finding that it names; "" for another statement
    region: str = ""  # region that it is about if it names no finding
    seen: str = ""  # what is seen there if it is right


@dataclasses.dataclass(frozen=True)
class _Choice:
    """A single-choice question that can be asked: the right option and the wrong ones to draw from."""

    topic: str
    questions: tuple[str, ...]
    right: _Option
    wrong: tuple[_Option, ...]


def ask_single(image: Record, rng: np.random.Generator) -> Draft | None:
    """Ask for diagnosis, zone or pattern; None if no question has three options known to be wrong."""
    offers = [make(image) for make in (_offer_diagnoses, _offer_zones, _offer_patterns)]
    choices = [choice for choice in offers if choice is not None and len(choice.wrong) >= _NUM_CHOICES - 1]
    if not choices:
        return None
    choice: _Choice = pick(rng, choices, [_DIAGNOSIS_SHARE if choice.topic == "diagnosis" else 1 for choice in choices])
    wrong = [choice.wrong[index] for index in rng.permutation(len(choice.wrong))[: _NUM_CHOICES - 1]]
    options, letters = _shuffle(rng, [choice.right], wrong)
    references = refer_or_clear(image, findings_of(image, choice.right.label or diagnosis_of(image)), rng)
    return Draft(
        choice.topic,
        pick(rng, choice.questions),
        letters[0],
        f"{letters[0]}, {choice.right.text}",
        references,
        tuple(option.text for option in options),
        _judge(options, letters),
    )


def ask_multi(image: Record, rng: np.random.Generator) -> Draft | None:
    """Ask which of four are present, one to three of them true; None if too little is known for four options."""
    pools: dict[bool, list[_Option]] = {
        True: [_name_finding(label) for label in present_in(image)],
        False: [_name_finding(label) for label in absent_in(image)],
    }
    for option, is_true in _list_statements(image):
        pools[is_true].append(option)
    counts = [
        number
        for number in range(1, _NUM_CHOICES)
        if number <= len(pools[True]) and _NUM_CHOICES - number <= len(pools[False])
    ]
    if not counts:
        return None
    number = int(pick(rng, counts))
    right, wrong = (_draw(rng, pools[truth], size) for truth, size in ((True, number), (False, _NUM_CHOICES - number)))
    options, letters = _shuffle(rng, right, wrong)
    references: tuple[Reference, ...] = ()
    for option in [option for option in options if option in right]:
        references += refer(image, findings_of(image, option.label), rng) if option.label else ()
        references += refer_to_region(image, option.region, option.seen) if option.region else ()
    return Draft(
        "present",
        pick(rng, _PRESENT),
        letters,
        ", ".join(letters),
        references,
        tuple(option.text for option in options),
        _judge(options, letters),
        asked="",
    )


def _offer_diagnoses(image: Record) -> _Choice | None:
    """Offer diagnoses; of an image with several labels and no diagnosis offer one of its labels."""
    diagnosis, present = diagnosis_of(image), present_in(image)
    wrong = [label for label in absent_in(image) if "diagnosis" not in image.facts or label in DIAGNOSIS_OPTIONS]
    if diagnosis and "diagnosis" in image.facts:
        wrong += [NORMAL] if diagnosis != NORMAL else []
        options = tuple(_Option(label, f"I see no {term_of(label).name}") for label in wrong if label != NORMAL)
        options += (_Option(NORMAL, "the chest is not normal"),) if NORMAL in wrong else ()
        return _Choice("diagnosis", _DIAGNOSIS, _Option(diagnosis, "", label=diagnosis), options)
    if not present:
        return None
    return _Choice("one present", _ONE_PRESENT, _name_finding(present[0]), tuple(map(_name_finding, wrong)))


def _offer_zones(image: Record) -> _Choice | None:
    right = image.facts.get("zone", NOT_APPLICABLE)
    if right == NOT_APPLICABLE or image.region_box(HEART) is None:
        return None
    boxes = [finding.corners for finding in findings_of(image, image.facts["diagnosis"])]
    pleural = image.facts["diagnosis"] in ("Effusion", "Pneumothorax")
    wrong = [
        zone
        for zone in _ZONES
        if zone != right
        and not (pleural and zone == "Pleura/Chest wall")
        and not any(_is_centred(box, image.region_box(name)) for box in boxes for name in _regions_of(zone))
    ]
    options = tuple(_Option(zone, "the main abnormality is not centred there") for zone in wrong)
    return _Choice("zone", _ZONE, _Option(right, ""), options)


def _regions_of(zone: str) -> tuple[str, ...]:
    if zone == "Cardiac":
        return (HEART,)
    if zone == "Hilar/Mediastinal":
        return tuple(map(hilum_name, SIDES))
    word = zone.partition(" ")[0].lower()
    return tuple(zone_name(side, word) for side in SIDES) if zone.endswith("zone") else ()


def _is_centred(box: Corners, region: Corners | None) -> bool:
    if region is None:
        return False
    x, y = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
    return region[0] <= x < region[2] and region[1] <= y < region[3]


def _offer_patterns(image: Record) -> _Choice | None:
    right = image.facts.get("pattern", NOT_APPLICABLE)
    if right == NOT_APPLICABLE:
        return None
    wrong = tuple(_Option(pattern, "I see no such pattern") for pattern in _PATTERNS if pattern != right)
    return _Choice("pattern", _PATTERN, _Option(right, ""), wrong)


def _name_finding(label: str) -> _Option:
    return _Option(term_of(label).name, f"I see no {term_of(label).name}", label=canonical(label))


def _list_statements(image: Record) -> list[tuple[_Option, bool]]:
    """Return statements about the normal anatomy whose truth is known, and whether they are true."""
    statements = []
    # Congestion within the box of the large heart has no separate box.
    hidden = image.facts.get("diagnosis") == "Cardiomegaly" and image.facts.get("pattern") != NOT_APPLICABLE
    known = {*present_in(image), *absent_in(image)}
    if image.region_box(HEART) is not None and "Cardiomegaly" in known:
        heart = _Option("normal heart size", "the heart is enlarged", region=HEART, seen="a heart of normal size")
        statements.append((heart, "Cardiomegaly" not in present_in(image)))
    for side, other in zip(SIDES, SIDES[::-1], strict=True):
        name = f"{side} lung"
        if image.region_box(name) is None or "diagnosis" not in image.facts:
            continue
        clear = _Option(f"clear {name}", f"the {name} is not clear", region=name, seen="nothing abnormal")
        if any(image.region_box(finding.region) is None for finding in image.boxes):
            continue  # a finding of unknown region may lie in either lung
        regions = {finding.region for finding in image.boxes if finding.label != "Lymphadenopathy"}
        affected = {region for region in regions if region.startswith(side) and region != diaphragm_name(side)}
        # Hilar lesions may reach the other lung; a shifted mediastinum or diaphragm changes a lung without a lesion.
        unsure = {hilum_name(other), diaphragm_name(side), "mediastinum"}
        if affected:
            statements.append((clear, False))
        elif not hidden and not unsure & regions and not findings_of(image, "Lymphadenopathy"):
            statements.append((clear, True))
    return statements


def _draw(rng: np.random.Generator, pool: Sequence[_Option], number: int) -> list[_Option]:
    """Draw options without replacement; statements are drawn less often than findings."""
    left, drawn = list(pool), []
    for _ in range(number):
        drawn.append(pick(rng, left, [1.0 if option.label else _STATEMENT_SHARE for option in left]))
        left.remove(drawn[-1])
    return drawn


def _shuffle(
    rng: np.random.Generator, right: Sequence[_Option], wrong: Sequence[_Option]
) -> tuple[list[_Option], tuple[str, ...]]:
    options = [*right, *wrong]
    options = [options[index] for index in rng.permutation(len(options))]
    return options, tuple(
        letter for letter, option in zip(string.ascii_uppercase, options, strict=False) if option in right
    )


def _judge(options: Sequence[_Option], letters: Sequence[str]) -> tuple[str, ...]:
    return tuple(
        f"Option {letter}, {option.text}: {_FITS if letter in letters else option.rejected}."
        for letter, option in zip(string.ascii_uppercase, options, strict=False)
    )


References = Literal["findings", "regions", "both", "none"]
"""What a record's references show, kept as its provenance "references"."""

_CUES: dict[str, Cue] = {"findings": "box", "both": "box", "regions": "text", "none": "image"}
_NORMALITY_SHARE = {True: 0.5, False: 1 / 16}
"""Share of closed questions about normality, of normal images and of others: equal numbers in flat phantoms."""
_PRESENT_SHARE = 8 / 15
"""Share of the other closed questions about abnormal images that ask for a finding that is present: half of all."""

_CLOSED = ("Is there {phrase}?", "Is there any sign of {name}?", "Is {phrase} visible in this picture?")
_NORMALITY = ("Is this chest radiograph normal?", "Is this chest radiograph abnormal?")
_MAIN = (
    "Describe the main abnormality of this chest radiograph.",
    "What is the main abnormality?",
    "What does this chest radiograph show?",
)
_ALL = ("Which abnormalities does this chest radiograph show?", "Name the abnormalities of this chest radiograph.")
_REGION = ("What does the {name} show?", "Describe the {name}.", "What do you see in the {name}?")
_CAUSE = ("What explains the {name}?", "What is the most likely cause of the {name}?")


def ask_questions(image: Record, *, seed: int) -> tuple[Record, ...]:
    """Ask one question of each kind about an image."""
    number = _number_of(image)
    makers: dict[Kind, Callable[[Record, np.random.Generator], Draft | None]] = {
        "open": _ask_open,
        "closed": _ask_closed,
        "single": ask_single,
        "multi": ask_multi,
    }
    records = []
    for position, kind in enumerate(KINDS):
        rng = generator(seed, number * len(KINDS) + position, stream=7)
        draft = makers[kind](image, rng)
        if draft is not None:
            records.append(_record(image, kind, draft, wording=int(rng.integers(6)), seed=seed))
    return tuple(records)


def _name_picture(image: Record) -> str:
    """Return how questions name an image; that of a collection without a modality is a chest radiograph."""
    if image.modality == UNKNOWN:
        return "picture"
    return picture_of(image).partition(" ")[2] or _CHEST


def _number_of(image: Record) -> int:
    """Return the phantom's index, or a number made from the image's name."""
    index = image.provenance.get("index", "")
    return int(index) if index.isdecimal() else int(hashlib.sha256(image.id.encode()).hexdigest()[:12], 16)


def _record(image: Record, kind: Kind, draft: Draft, *, wording: int, seed: int) -> Record:
    diagnosis = diagnosis_of(image)
    shown = _sort_references(image, (box for box, _ in draft.references))
    facts, stages, with_stages = dict(image.facts), None, knows_steps(image.facts)
    if with_stages and draft.asked is None:
        stages = write_stages(facts, answer=draft.spoken, wording=wording)
    elif with_stages:
        regions = [(box.region, seen) for box, seen in draft.references]
        stages = write_asked_stages(regions, asked=draft.asked or "", answer=draft.spoken, wording=wording)
        facts["asked"] = draft.asked or "several findings"
    return Record(
        id=f"{image.id}_{kind}",
        image=image.image,
        image_size=image.image_size,
        patient=image.patient,
        origin=image.origin,
        split=image.split,
        kind=kind,
        topic=draft.topic,
        question=draft.question.replace(_CHEST, _name_picture(image)),
        options=draft.choices,
        answer=draft.answer,
        synonyms=draft.synonyms,
        references=tuple(Box(box.label, box.corners) for box, _ in draft.references),
        thinking=write_thinking(draft.references, options=draft.sentences, answer=draft.spoken, wording=wording),
        preamble=PREAMBLE if with_stages else "",
        stages=stages,
        cue=_CUES[shown],
        lesion="" if diagnosis == NORMAL else diagnosis,
        organ=facts.get("organ", "") or image.organ,
        modality="" if image.modality == UNKNOWN else image.modality or _RADIOGRAPH,
        report=image.report,
        facts=facts,
        provenance={**image.provenance, "maker": "templates", "question_seed": str(seed), "references": shown},
    )


def _sort_references(image: Record, boxes: Iterable[Box]) -> References:
    regions = {region.label for region in image.regions}
    are_regions = {box.label in regions for box in boxes}
    by_kind: dict[frozenset[bool], References] = {
        frozenset(): "none",
        frozenset([True]): "regions",
        frozenset([False]): "findings",
    }
    return by_kind.get(frozenset(are_regions), "both")


def _ask_closed(image: Record, rng: np.random.Generator) -> Draft | None:
    diagnosis = image.facts.get("diagnosis")
    if diagnosis and rng.random() < _NORMALITY_SHARE[diagnosis == NORMAL]:
        return _ask_normality(image, rng)
    present, absent = present_in(image), absent_in(image)
    if not absent:
        return None  # every answer would be "Yes"
    if present and rng.random() < _PRESENT_SHARE:
        label, answer = pick(rng, present), "Yes"
        references = refer(image, findings_of(image, label), rng)
    else:
        label, answer = pick(rng, absent, [term_of(label).share for label in absent]), "No"
        references = refer_to_region(image, term_of(label).region, f"no {term_of(label).name}")
    term = term_of(label)
    wordings = (*_CLOSED, "Is the heart enlarged?") if term.name == "cardiomegaly" else _CLOSED
    question = pick(rng, wordings).format(phrase=term.phrase, name=term.name)
    is_diagnosis = answer == "Yes" and all(finding.label == diagnosis for finding in findings_of(image, label))
    asked = None if is_diagnosis else canonical(label)
    return Draft(f"{PRESENCE}{term.name}", question, answer, answer, references, asked=asked)


def _ask_normality(image: Record, rng: np.random.Generator) -> Draft:
    is_normal, wording = image.facts["diagnosis"] == NORMAL, int(rng.integers(2))
    answer = "Yes" if is_normal == (wording == 0) else "No"
    references = refer_or_clear(image, findings_of(image, image.facts["diagnosis"]), rng)
    return Draft("normality", _NORMALITY[wording], answer, answer, references)


def _ask_open(image: Record, rng: np.random.Generator) -> Draft | None:
    """Ask for the main abnormality, for the cause of a sign that the diagnosis explains, or for all abnormalities."""
    diagnosis, secondary = diagnosis_of(image), image.facts.get("secondary", "")
    if not diagnosis:
        return _ask_for_all(image, rng)
    references = refer_or_clear(image, findings_of(image, diagnosis), rng)
    answer, *synonyms = accepted_names(diagnosis)
    topic, question = "main abnormality", pick(rng, _MAIN)
    if diagnosis in EXPLAINS.get(secondary, ()) and rng.random() < 0.5:
        topic = f"cause of {term_of(secondary).name}"
        question = pick(rng, _CAUSE).format(name=term_of(secondary).name)
    return Draft(topic, question, answer, answer, references, synonyms=tuple(synonyms))


def _ask_for_all(image: Record, rng: np.random.Generator) -> Draft | None:
    """Ask for every label of an image without a diagnosis; either order of two is accepted."""
    names = [accepted_names(label)[0] for label in present_in(image)]
    if not names:
        return _ask_for_region(image, rng)
    findings = [finding for label in present_in(image) for finding in findings_of(image, label)]
    answer, reverse = (" and ".join(ordered) for ordered in (names, names[::-1]))
    return Draft("all abnormalities", pick(rng, _ALL), answer, answer, refer(image, findings, rng), synonyms=(reverse,))


def _ask_for_region(image: Record, rng: np.random.Generator) -> Draft | None:
    """Ask for what a grounded report says of a region, where its sentences have no labels."""
    told = [region for region in image.regions if region.sentence and region.region]
    if not told:
        return None
    region: Box = pick(rng, told)
    question, answer = pick(rng, _REGION).format(name=region.region), region.sentence.rstrip(".")
    seen = f"{answer[:1].lower()}{answer[1:]}"
    boxes = [other for other in told if (other.region, other.sentence) == (region.region, region.sentence)]
    return Draft("region", question, answer, answer, tuple((box, seen) for box in boxes))
