"""Questions with four options, of which one or several are right."""

import dataclasses
import string
from collections.abc import Sequence

import numpy as np

from stepcot_jax.boxes import Corners
from stepcot_jax.chain import DEFAULT_CHAIN, DIAGNOSIS_OPTIONS, NOT_APPLICABLE
from stepcot_jax.data.grounded.drafts import (
    Draft,
    Reference,
    absent_in,
    diagnosis_of,
    findings_of,
    pick,
    present_in,
    refer,
    refer_to_region,
)
from stepcot_jax.data.grounded.grounded_image import GroundedImage
from stepcot_jax.data.grounded.regions import BOTH_LUNGS, HEART, SIDES, diaphragm_name, hilum_name, zone_name
from stepcot_jax.data.grounded.vocabulary import NORMAL, canonical, term_of

_NUM_CHOICES = 4
_PATTERNS, _ZONES = (DEFAULT_CHAIN.steps[step].options[:-1] for step in (2, 3))
_FITS = "this fits what I see"
_STATEMENT_SHARE = 0.35
_DIAGNOSIS_SHARE = 2.0
"""Weights of statements among options, and of the diagnosis among topics, against majorities that decide a topic."""

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
    """An option.

    Attributes:
      rejected: what the thinking says of it where it is wrong.
      label: finding that it names; "" for another statement.
      region: region that it speaks of if it names no finding.
      seen: what is seen there where it is right.
    """

    text: str
    rejected: str
    label: str = ""
    region: str = ""
    seen: str = ""


@dataclasses.dataclass(frozen=True)
class _Choice:
    """A single-choice question that can be asked: the right option and the wrong ones to draw from."""

    topic: str
    questions: tuple[str, ...]
    right: _Option
    wrong: tuple[_Option, ...]


def ask_single(image: GroundedImage, rng: np.random.Generator) -> Draft | None:
    """Ask for diagnosis, zone or pattern; None if no question has three options known to be wrong."""
    found = [make(image) for make in (_offer_diagnoses, _offer_zones, _offer_patterns)]
    choices = [choice for choice in found if choice is not None and len(choice.wrong) >= _NUM_CHOICES - 1]
    if not choices:
        return None
    choice: _Choice = pick(rng, choices, [_DIAGNOSIS_SHARE if choice.topic == "diagnosis" else 1 for choice in choices])
    wrong = [choice.wrong[place] for place in rng.permutation(len(choice.wrong))[: _NUM_CHOICES - 1]]
    options, letters = _shuffle(rng, [choice.right], wrong)
    references = refer(image, findings_of(image, choice.right.label or diagnosis_of(image)), rng)
    return Draft(
        choice.topic,
        pick(rng, choice.questions),
        letters[0],
        f"{letters[0]}, {choice.right.text}",
        references or refer_to_region(image, BOTH_LUNGS, "clear lungs"),
        tuple(option.text for option in options),
        _judge(options, letters),
    )


def ask_multi(image: GroundedImage, rng: np.random.Generator) -> Draft | None:
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
    for option in (each for each in options if each in right):
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


def _offer_diagnoses(image: GroundedImage) -> _Choice | None:
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


def _offer_zones(image: GroundedImage) -> _Choice | None:
    """Offer zones; wrong is only a zone in which no box of the diagnosis is centred."""
    right = image.facts.get("zone", NOT_APPLICABLE)
    if right == NOT_APPLICABLE or image.region_box(HEART) is None:
        return None
    boxes = [finding.box for finding in findings_of(image, image.facts["diagnosis"])]
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
    """Return the regions that a zone of step 4 consists of; the pleura has none."""
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


def _offer_patterns(image: GroundedImage) -> _Choice | None:
    right = image.facts.get("pattern", NOT_APPLICABLE)
    if right == NOT_APPLICABLE:
        return None
    wrong = tuple(_Option(pattern, "I see no such pattern") for pattern in _PATTERNS if pattern != right)
    return _Choice("pattern", _PATTERN, _Option(right, ""), wrong)


def _name_finding(label: str) -> _Option:
    return _Option(term_of(label).name, f"I see no {term_of(label).name}", label=canonical(label))


def _list_statements(image: GroundedImage) -> list[tuple[_Option, bool]]:
    """Return statements about the normal anatomy whose truth is known, and whether they are true."""
    statements = []
    # Congestion that lies within the box of the large heart has no box of its own.
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
        if any(image.region_box(finding.region) is None for finding in image.findings):
            continue  # a finding of unknown region may lie in either lung
        regions = {finding.region for finding in image.findings if finding.label != "Lymphadenopathy"}
        own = {region for region in regions if region.startswith(side) and region != diaphragm_name(side)}
        # Hilar lesions may reach the other lung; a shifted mediastinum or diaphragm changes a lung without a lesion.
        unsure = {hilum_name(other), diaphragm_name(side), "mediastinum"}
        if own:
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
    """Return the options in random order, and the letters of the right ones."""
    options = [*right, *wrong]
    options = [options[place] for place in rng.permutation(len(options))]
    return options, tuple(
        letter for letter, option in zip(string.ascii_uppercase, options, strict=False) if option in right
    )


def _judge(options: Sequence[_Option], letters: Sequence[str]) -> tuple[str, ...]:
    """Return the thinking's sentence about each option."""
    return tuple(
        f"Option {letter}, {option.text}: {_FITS if letter in letters else option.rejected}."
        for letter, option in zip(string.ascii_uppercase, options, strict=False)
    )
