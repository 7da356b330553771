"""Claims of a reply's stages on side, zone, look and diagnosis: do they fit the facts, and each other?"""

import dataclasses
import re
from collections.abc import Mapping

import numpy as np

from stepcot_jax.chain import fold
from stepcot_jax.reasoning.replies import Reply

CHECKED_FACTS: Mapping[str, tuple[str, ...]] = {
    "localisation": ("side", "zone"),
    "visual": ("detection", "distribution", "pattern", "morphology", "secondary"),
    "knowledge": ("diagnosis",),
    "conclusion": ("diagnosis",),
}  # Names of the facts that a stage's claims are about

_COMPARED: Mapping[str, tuple[str, ...]] = {
    "side": ("localisation", "visual", "conclusion"),
    "zone": ("localisation", "visual", "conclusion"),
    "pattern": ("visual", "conclusion"),
    "diagnosis": ("knowledge", "conclusion"),
}  # Stages whose words about a fact are compared with each other

_WORDS: Mapping[str, Mapping[str, str]] = {
    "side": {"right": r"right|both|bilateral\w*", "left": r"left|both|bilateral\w*"},
    "zone": {
        "upper": r"upper|apex|apical",
        "middle": r"middle|mid",
        "lower": r"lower|bases?|basal|basilar",
        "hilar": r"hil(?:ar|um|a)|mediastin\w+",
        "pleura": r"pleura\w*|chest wall",
        "cardiac": r"cardiac|heart",
    },
    "detection": {
        "none": r"clear|unremarkable|no abnormal\w*",
        "mixed": r"mixed(?: opacity and lucency| increased and decreased opacity| \w+)?",
        "increased": r"increased (?:opacity|density)|opaci\w+|density|densities",
        "decreased": r"decreased (?:opacity|density)|(?:hyper)?lucen\w+",
    },
    "distribution": {
        "multifocal": r"multifocal|multiple|scattered",
        "focal": r"focal|solitary|locali[sz]ed",
        "diffuse": r"diffuse\w*|widespread",
    },
    "pattern": {
        "consolidation": r"consolidati\w+",
        "reticular": r"reticul\w+",
        "nodular": r"nodular",
        "linear": r"linear",
        "cavity": r"cavit\w+",
    },
    "morphology": {
        "circumscribed": r"(?:well[- ])?circumscribed|(?:well|sharply)[- ]defined",
        "ill-defined": r"ill[- ]defined|indistinct",
        "spiculated": r"spiculat\w+",
        "calcified": r"calcifi\w+",
    },
    "secondary": {
        "volume loss": r"volume loss|loss of volume",
        "shift": r"mediastinal shift|shift of the mediastinum|mediastinum is shifted",
        "effusion": r"effusions?",
        "pneumothorax": r"pneumothora\w+",
        "cardiomegaly": r"cardiomegaly|enlarged heart|heart is (?:also )?enlarged",
        "lymphadenopathy": r"lymphadenopathy|enlarged (?:hilar )?(?:lymph )?nodes",
    },
    "diagnosis": {
        "normal": r"normal|no abnormality",
        "nodule": r"nodules?",
        "atelectasis": r"atelecta\w+",
        "infiltration": r"infiltrat\w+",
        "effusion": r"effusions?",
        "pneumonia": r"pneumonia",
        "cardiomegaly": r"cardiomegaly|enlarged heart|heart is (?:also )?enlarged",
        "mass": r"mass(?:es)?",
        "pneumothorax": r"pneumothora\w+",
    },
}
_COMPILED = {
    name: {value: re.compile(rf"\b(?:{words})\b") for value, words in values.items()} for name, values in _WORDS.items()
}
_LOCATIONS = ("side", "zone")  # without a finding there is no location to claim or deny
_ANSWER = re.compile(r"\banswer\b")  # the answer has a score of its own
_CLAUSE = re.compile(r"[.;:!?\n]|, (?=but\b)|\bbut\b")
_DENIED = re.compile(r"\b(?:no|not|without|neither|nor|excludes?|rather than|absence of)\b")
_DENIED_AFTER = re.compile(r"\s(?:is|are) (?:not|absent|excluded)\b")


@dataclasses.dataclass(frozen=True)
class Claims:
    """Number of a text's claims that the facts confirm, contradict, or do not tell."""

    agreeing: int = 0  # number that the facts confirm
    contradicting: int = 0  # number that the facts contradict
    unsupported: int = 0  # number whose fact is not known

    @property
    def total(self) -> int:
        """Number of all claims."""
        return self.agreeing + self.contradicting + self.unsupported


def find_claims(text: str, *, stage: str, facts: Mapping[str, str]) -> Claims:
    """Count a stage's claims that fit the facts, each value once; a denied one fits facts that do not hold it."""
    counts = {True: 0, False: 0, None: 0}
    for name in CHECKED_FACTS[stage]:
        known = read_fact(name, facts.get(name))
        if known is UNCHECKED:
            continue
        for value, is_affirmed in find_values(text, name, {**_COMPILED[name], **(known or {})}).items():
            counts[None if known is None else is_affirmed == (value in known)] += 1
    return Claims(counts[True], counts[False], counts[None])


def states_answer_alone(text: str) -> bool:
    """Return whether every clause of a text speaks of the answer, which has a score of its own; not of an empty text.

    >>> states_answer_alone("So the answer is Yes."), states_answer_alone("A mass. So the answer is Yes.")
    (True, False)
    """
    clauses = [clause for clause in _CLAUSE.split(_fold_lines(text)) if clause.strip()]
    return bool(clauses) and all(_ANSWER.search(clause) for clause in clauses)


def stage_consistency(reply: Reply) -> float:
    """Return the share of side, zone, pattern and diagnosis that the stages of a reply agree on; NaN without any."""
    agreed = []
    for name, stages in _COMPARED.items():
        named = [find_values(reply.stages.get(stage, ""), name) for stage in stages]
        affirmed = [{value for value, is_affirmed in values.items() if is_affirmed} for values in named]
        affirmed = [values for values in affirmed if values]
        if len(affirmed) > 1:
            agreed.append(bool(set.intersection(*affirmed)))
    return float(np.mean(agreed)) if agreed else np.nan


def find_values(text: str, name: str, words_of: Mapping[str, re.Pattern[str]] | None = None) -> dict[str, bool]:
    """Return the values of a fact that a text names, and whether it affirms each somewhere."""
    clauses = [clause for clause in _CLAUSE.split(_fold_lines(text)) if not _ANSWER.search(clause)]
    values = {}
    for value, words in (words_of or _COMPILED[name]).items():
        affirmations = []
        for index, clause in enumerate(clauses):
            match = words.search(clause)
            if match:
                affirmations.append(not _is_denied(clause, match))
                if name not in _LOCATIONS:  # "bilateral" claims two sides, "mixed opacity" claims no other opacity
                    clauses[index] = words.sub("*", clause)
        if affirmations:
            values[value] = any(affirmations)
    return values


def _is_denied(clause: str, match: re.Match[str]) -> bool:
    return bool(_DENIED.search(clause[: match.start()]) or _DENIED_AFTER.match(clause, match.end()))


def _fold_lines(text: str) -> str:
    return "\n".join(fold(line) for line in text.splitlines())


UNCHECKED: dict[str, re.Pattern[str]] = {}


def read_fact(name: str, fact: str | None) -> dict[str, re.Pattern[str]] | None:
    """Return the values in a fact's text with their words, else the text itself; None if unknown, or `UNCHECKED`."""
    if fact is None:
        return None
    text = fold(fact)
    if text in ("", "n/a", "none"):
        return UNCHECKED if name in _LOCATIONS else {}
    if text == "no abnormality":
        text = "normal" if name == "diagnosis" else "clear"
    values = {value: words for value, words in _COMPILED[name].items() if words.search(text)}
    return values or {text: re.compile(rf"(?<!\w){re.escape(text)}(?!\w)")}
