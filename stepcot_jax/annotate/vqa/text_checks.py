"""Checks of texts that a model or a template wrote; each failure has a named `Reason`."""

import json
import re
from collections.abc import Iterable

from stepcot_jax.annotate.annotation import CannotAnnotate, Reason
from stepcot_jax.annotate.vqa.items import Question, split_sentences
from stepcot_jax.chain import fold
from stepcot_jax.data.questions.vocabulary import write_box
from stepcot_jax.reasoning.replies import BOX, IN_ROUND_BRACKETS, corners_of, find_named_boxes
from stepcot_jax.record import Record

REPORT_WORDS = (
    r"reports?|reported|reporting|radiologists?|(?:stated|given|provided|supplied|listed|described|mentioned|noted|"
    r"documented|recorded) findings?|findings? (?:given|provided|supplied|stat\w+|list\w*|says?|said|mention\w*|"
    r"show\w*|describ\w+|support\w*|not(?:es?|ed|ing)|document\w*|section)|per (?:the )?findings?|"
    r"(?:based (?:up)?on|judging (?:by|from)|from|given|considering|in (?:the )?(?:light|view) of) (?:all )?(?:the )?"
    r"findings?|impression section|dictat\w+|"
    r"transcripts?|(?:medical|clinical) (?:records?|notes?)|according to|"
    r"as (?:stated|given|described|provided|written|documented|told|instructed)|"
    r"(?:study|source|input|given|provided|supplied|accompanying|clinical|original) (?:text|sentences?|statements?)|"
    r"(?:text|sentences?|statements?|information|descriptions?|answers?) (?:that (?:was|were) )?(?:given|provided|"
    r"supplied|says?|states?|mentions?|notes?|tells?)|(?:given|provided|supplied) (?:answers?|information|"
    r"descriptions?|regions?|box(?:es)?|labels?|coordinates|context)|"
    r"i(?: am|'m| was| were| have been|'ve been| had been)? (?:told|given|informed|asked|instructed)|"
    r"(?:the|this|my) (?:prompt|instructions?|data|json|system)|ground[- ]truth|annotations?|annotated|answer key|"
    r"(?:reference|gold|expected) answer|correct answer (?:given|provided)|previous instructions"
)
"""Words of texts that speak of a report instead of the picture."""

INSTRUCTION_WORDS = (
    r"ignore|disregard|override|forget|(?:system|assistant|user|developer|human|instructions?|prompt)\s*:|"
    r"vot(?:es?|ed|ers?|ing)|(?:always|must|should|shall|please|simply) (?:say|answer|reply|respond|output|return|"
    r"choose|select|pick|print|write|mark|rate|trust)|(?<!i )(?<!would )(?<!can )(?<!to )(?:say|answer|reply|respond) "
    r"(?:with|only|yes|no|correct|true)|(?:mark|rate|label|call|grade|score) (?:this|it|that|them|everything|all)"
    r"(?: answers?)?(?: as)? (?:correct|right|true|trusted)|(?:all|these|those|any|previous|prior|your|following|new) "
    r"(?:rules|instructions?|prompts?|guidelines)|(?:rules?|instructions?|prompts?) (?:above|below|before)|"
    r"(?:system|hidden|secret) (?:message|prompt)|pretend|you are (?:now|an?)|(?:language|ai) models?|chatbot|"
    r"jailbreak|trust (?:this|me|it)|end of (?:data|prompt|input)"
)
"""Imperatives, roles and words of votes: text that speaks to a model or to a voter, not of a picture."""

HINT_WORDS = (
    r"hints?|roi|regions? of interest|bounding|box(?:es)?|coordinates?|pixels?|marked|highlighted|annotat\w+|given"
)
"""Words of texts that speak of the hint."""

APPEARANCE_WORDS = (
    r"opaci\w+|densit\w+|dense\w*|lucen\w+|consolidat\w+|reticul\w+|nodul\w+|linear|cavit\w+|circumscribed|"
    r"(?:ill|well)[- ]defined|spiculat\w+|calcifi\w+|rounded|irregular|hazy|patchy|bright\w*|dark\w*|white|"
    r"blurred|margins?"
)
"""Words of the look, which the localisation leaves to the visual analysis."""

INTERPRETATION_WORDS = (
    r"consistent with|compatible with|suggest\w*|suspicious|indicat\w+|likely|probabl\w+|diagnos\w+|due to|caused? by|"
    r"because|represents?|representing|concerning for|typical of|characteristic of|in keeping with|therefore|means"
)
"""Words of an interpretation, which the visual analysis leaves to the conclusion."""

_MARKUP = re.compile(r"[<>{}`\\]|https?:|www\.|[^\x20-\x7e\u00a0-\u1fff\u2010-\u2027\u2030-\u205f\u2070-\ud7ff]")
_NUMBERS = re.compile(r"\[[^\]]*\d|\d+(?:\.\d+)?\s*[,;x]\s*\d|\d{2,}|\bpixels?\b|\bx1\b", re.IGNORECASE)
_YES_NO = re.compile(r"\b(yes|no)\b", re.IGNORECASE)
_LETTER = re.compile(r"(?<![\w'-])([A-Z])(?![\w'-])")
_ASKED = re.compile(r"[?\u037e\u061f\uff1f]")
_ARTICLE = re.compile(r"\s+[a-z]")
_DENIED = re.compile(
    r"\b(?:no|not|never|neither|nor|cannot|without|unlikely|rather|instead|maybe|perhaps|possibl[ey]|might|unsure|unclear|"
    r"excluded?|wrong|false)\b|n't\b"
)
_VERDICT = re.compile(
    r"\b(?:(?P<affirms>fit(?:s|ted|ting)?|match(?:es|ed|ing)?|agrees?|appl(?:y|ies)|holds? true)|"
    r"(?:(?:is|are|looks?|seems?|can|could)(?:n't)?) (?:be |also |clearly |indeed |the |not |never )*"
    r"(?:(?P<is_right>right|correct|true|best|present|seen|visible|confirmed|supported)|(?:wrong|incorrect|false|"
    r"rejected|excluded|ruled out|dismissed|unlikely|implausible))|i (?:reject|exclude|dismiss|rule out))\b",
    re.IGNORECASE,
)
_PRONOUN = re.compile(r"\b(?:this|it|that|which|they|these|both)\b[^;,:]{0,20}$", re.IGNORECASE)
_CLAUSE = re.compile(r"[,;:]|\b(?:and|but|while|whereas|so)\b")
_NEGATED = re.compile(r"\b(?:no|not|never|neither|nor|cannot|nothing|hardly|none)\b|n't\b", re.IGNORECASE)
_NAMED_LETTER = re.compile(r"(?:options?|choices?|answers?(?: is| are)?:?)\s*\(?$", re.IGNORECASE)


def require(is_met: bool, reason: Reason, detail: str) -> None:
    """Raise `CannotAnnotate` unless a condition is met."""
    if not is_met:
        raise CannotAnnotate(reason, detail)


def find_word(text: str, words: str) -> str:
    """Return the first of the words (a pattern) in a text, case folded, or ""."""
    found = re.search(rf"(?<![\w-])(?:{words})(?![\w-])", fold(text).replace("\u2019", "'"))
    return found[0] if found else ""


def names_any(text: str, names: Iterable[str]) -> str:
    """Return the first of the names that a text has as words, or ""."""
    folded = fold(text)
    return next((name for name in names if re.search(rf"(?<!\w){re.escape(fold(name))}(?:e?s)?(?!\w)", folded)), "")


def check_markup(texts: Iterable[str]) -> None:
    """Require texts without markup, links, code and control characters: `MARKUP`."""
    for text in texts:
        found = _MARKUP.search(text)
        require(found is None, Reason.MARKUP, f"at character {found.start() if found else 0}")


def check_speech(text: str, name: str) -> None:
    """Require a text that speaks of the picture alone: `SPEAKS_OF_REPORT`, `INSTRUCTION`."""
    word = find_word(text, REPORT_WORDS)
    require(not word, Reason.SPEAKS_OF_REPORT, f"{name} says {word!r}")
    word = find_word(text, INSTRUCTION_WORDS)
    require(not word, Reason.INSTRUCTION, f"{name} says {word!r}")


def check_no_coordinates(text: str, stage: str) -> None:
    """Require a text without coordinates: `COORDINATES`."""
    require(not _NUMBERS.search(text), Reason.COORDINATES, f"stage {stage}")


def check_regions(text: str, question: Question) -> None:
    """Require at least one region, and under each region's name a box of the source: `NO_REGION`, `WRONG_BOX`."""
    accepted = {
        (fold(name), tuple(json.loads(write_box(said.box))))
        for said in question.statements
        for name in (said.name, said.label)
    }
    boxes = [corners_of(found) for found in BOX.finditer(text)]
    regions = [region for region, _, _ in find_named_boxes(text, IN_ROUND_BRACKETS)]
    require(bool(boxes), Reason.NO_REGION, "no box in the thinking")
    require(len(boxes) == len(regions), Reason.WRONG_BOX, "a box without the form **name** ([x1, y1, x2, y2])")
    for number, region in enumerate(regions, start=1):
        require((fold(region.label), region.corners) in accepted, Reason.WRONG_BOX, f"region {number} of the thinking")
    rest = BOX.sub("", text)
    require("[" not in rest and "]" not in rest, Reason.WRONG_BOX, "square brackets that hold no box")


def options_named(text: str, record: Record) -> set[str]:
    """Return the letters of the options that a text names, by letter or by text."""
    named, rest = set(), fold(text)
    choices = sorted(zip(record.letters, record.options, strict=True), key=lambda choice: -len(choice[1]))
    for letter, choice in choices:  # longer texts first: "effusion" is a part of "pleural effusion"
        pattern = re.compile(rf"(?<!\w){re.escape(fold(choice))}(?!\w)")
        if pattern.search(rest):
            named.add(letter)
            rest = pattern.sub(" ", rest)
    for found in _LETTER.finditer(text):
        is_word = (
            found[1] in "AI" and _ARTICLE.match(text, found.end()) and not _NAMED_LETTER.search(text[: found.start()])
        )
        if found[1] in record.letters and not is_word:
            named.add(found[1])
    return named


def check_answer(text: str, question: Question) -> None:
    """Require that the last sentence states the answer alone, without denial, doubt or question: `WRONG_ANSWER`."""
    record, sentences = question.record, split_sentences(text)
    # An answer of several sentences takes as many.
    count = max(len(split_sentences(question.spoken_answer)), 1)
    last = " ".join(sentences[-count:])
    if record.kind == "open":
        is_right = bool(names_any(last, (question.spoken_answer, *record.accepted_texts)))
    elif record.kind == "closed":
        is_right = {found.casefold() for found in _YES_NO.findall(last)} == {str(record.answer).casefold()}
    else:
        is_right = options_named(last, record) == set(record.answer)
    require(is_right, Reason.WRONG_ANSWER, f"kind {record.kind}")
    names = (question.spoken_answer, *question.spoken_choices, *record.accepted_texts)
    require(not is_denied(last, names), Reason.WRONG_ANSWER, f"kind {record.kind}, denied or doubted")
    is_asked = _ASKED.search(_without(last, names)) is not None
    require(not is_asked, Reason.WRONG_ANSWER, f"kind {record.kind}, a question")


def check_options(text: str, question: Question) -> None:
    """Require that no sentence affirms a wrong option or denies a right one.

    A verdict ("fits", "is wrong", "I see no ...") belongs to the options named before it in its sentence, and one on
    "this" or "it" to those named last. A negation between them turns it.
    """
    last: set[str] = set()
    for sentence in split_sentences(text.replace("\u2019", "'")):
        place = 0
        for found in _VERDICT.finditer(sentence):
            said, verdict = sentence[place : found.start()], found["affirms"] or found["is_right"]
            named = options_named(said, question.record) or (last if _PRONOUN.search(said) else set())
            clause = _CLAUSE.split(_without(f"{said} {found[0]}", question.record.options))[-1]
            _judge(named, question, affirms=bool(verdict) != bool(_NEGATED.search(clause)))
            last, place = named or last, found.end()
        last = options_named(sentence[place:], question.record) or last
        _check_sight(sentence, question)


def _check_sight(sentence: str, question: Question) -> None:
    """Judge the options whose texts follow "I see" or "I see no"."""
    record, folded = question.record, fold(sentence)
    for letter, choice in zip(record.letters, record.options, strict=True):
        name = rf"{re.escape(fold(choice))}(?![\w-])(?! (?:on|in|at|of)\b)"
        signs = r"(?:an? |the |any |clear |definite |signs? of |evidence of )*"
        for found in re.finditer(
            rf"\bi (?:do |can |clearly |also )*(no[tn]? |cannot )?see (no )?{signs}{name}", folded
        ):
            _judge({letter}, question, affirms=not (found[1] or found[2]))


def _judge(letters: set[str], question: Question, *, affirms: bool) -> None:
    right = letters & set(question.record.answer)
    wrong, reason = letters - right, Reason.WRONG_OPTION_AFFIRMED if affirms else Reason.RIGHT_OPTION_DENIED
    misjudged = sorted(wrong if affirms else right)
    require(not misjudged, reason, f"option {', '.join(misjudged)}")


def _without(text: str, names: Iterable[str]) -> str:
    rest = fold(text)
    for name in sorted(names, key=len, reverse=True):
        rest = re.sub(rf"(?<!\w){re.escape(fold(name))}(?!\w)", " ", rest)
    return rest


def is_denied(text: str, names: Iterable[str]) -> bool:
    """Whether a text denies or doubts something outside of these names, which may themselves deny something."""
    return _DENIED.search(_without(text, names)) is not None
