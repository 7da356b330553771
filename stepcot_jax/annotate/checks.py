"""Checks of annotators' chains and texts; each failure has a named `Reason`."""

import json
import re
from collections.abc import Iterable, Sequence

from stepcot_jax.annotate.annotation import Annotation, CannotAnnotate, Reason, Report
from stepcot_jax.annotate.recipes.items import Question
from stepcot_jax.annotate.recipes.items import split_sentences as _split_texts
from stepcot_jax.annotate.rules.annotator import URGENCY, find_asserted, is_contradicted
from stepcot_jax.annotate.rules.mentions import Status, read_report, split_sentences
from stepcot_jax.chain import NOT_ANNOTATED, NOT_APPLICABLE, Chain, fold
from stepcot_jax.data.questions.vocabulary import write_box
from stepcot_jax.reasoning.replies import BOX, IN_ROUND_BRACKETS, corners_of, find_named_boxes
from stepcot_jax.record import Record

_NONE = fold("No abnormality")
_NORMAL = fold("Normal")
_SAME_FINDING = {"effusion": "pleural effusion", "pneumothorax": "pneumothorax", "cardiomegaly": "cardiomegaly"}
"""Diagnoses that are also secondary effects; a diagnosis is not its own effect."""

_DENSE_DIAGNOSES = frozenset(fold(name) for name in URGENCY) - {"pneumothorax", "cardiomegaly"}
_LUCENT, _DENSE = fold("Decreased opacity"), fold("Increased opacity")

_QUOTED = re.compile(r'"([^"]{1,2000})"')
_ELLIPSIS = re.compile(r"\s*(?:\.\.\.|\[\.\.\.\])\s*")
_NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?![\w.]*\d)")
_STEP_NUMBER = re.compile(r"\bsteps?\s+\d+(?:\s*(?:,|-|to|and|through)\s*\d+)*", re.IGNORECASE)
_LEFT = re.compile(r"\b(?:left\w*|LUL|LLL|lingul\w+)\b", re.IGNORECASE)
_RIGHT = re.compile(r"\b(?:right-?(?:sided)?|RUL|RML|RLL)\b", re.IGNORECASE)
_BOTH = re.compile(r"\b(?:bilateral\w*|both|bi-?(?:bas|apic)\w+|bases|apices|hemidiaphragms)\b", re.IGNORECASE)
_PLAIN = str.maketrans({"\u201c": '"', "\u201d": '"', "\u2018": "'", "\u2019": "'", "\u2013": "-", "\u2014": "-"})


def check_report(report: Report) -> None:
    """Require a report with findings or impression and a frontal image."""
    if not split_sentences(report.text):
        raise CannotAnnotate(Reason.NO_REPORT, "no sentence in findings or impression")
    if not report.images:
        raise CannotAnnotate(Reason.NO_FRONTAL_IMAGE, "the source names none")


def check_annotation(report: Report, annotation: Annotation, *, chain: Chain) -> None:
    """Require an annotation that is consistent and supported by its report; early steps may stay open."""
    labels = annotation.labels
    if len(labels) != chain.num_steps:
        raise CannotAnnotate(Reason.INVALID_STEP, f"{len(labels)} answers for {chain.num_steps} steps")
    for step, label, reasoning in zip(chain.steps, labels, annotation.reasoning, strict=True):
        is_open = label == NOT_ANNOTATED and step is not chain.steps[-1] and not reasoning
        if not is_open and not 0 <= label < step.num_answers:
            raise CannotAnnotate(Reason.INVALID_STEP, f"step {step.name!r}: {label} is not a label")
    check_consistency(labels, chain=chain)
    words = _plain(report.text)
    for step, reasoning in zip(chain.steps, annotation.reasoning, strict=True):
        problem = _find_foreign_words(_plain(reasoning), words)
        if problem:
            raise CannotAnnotate(Reason.REASONING_NOT_IN_REPORT, f"step {step.name!r}: {problem}")
    _check_diagnosis(report, fold(chain.steps[-1].options[labels[-1]]))


def check_consistency(labels: Sequence[int], *, chain: Chain) -> None:
    """Require labels, one per step, that do not contradict each other as far as the chain offers the answers."""
    answers = [
        "" if label == NOT_ANNOTATED else fold(step.options[label])
        for step, label in zip(chain.steps, labels, strict=True)
    ]
    detection, between, diagnosis = answers[0], answers[1:-1], answers[-1]
    offers_none = _NONE in map(fold, chain.steps[0].options)
    offers_normal = _NORMAL in map(fold, chain.steps[-1].options)
    is_known = bool(detection and diagnosis)
    if is_known and offers_none and offers_normal and (detection == _NONE) != (diagnosis == _NORMAL):
        raise CannotAnnotate(Reason.INCONSISTENT_CHAIN, f"{detection!r} contradicts the diagnosis {diagnosis!r}")
    if detection == _NONE or diagnosis == _NORMAL:
        for step, answer in zip(chain.steps[1:-1], between, strict=True):
            if fold(NOT_APPLICABLE) in map(fold, step.options) and answer not in ("", fold(NOT_APPLICABLE)):
                raise CannotAnnotate(Reason.INCONSISTENT_CHAIN, f"step {step.name!r}: {answer!r} in a normal chest")
    if _SAME_FINDING.get(diagnosis) in between:
        raise CannotAnnotate(Reason.INCONSISTENT_CHAIN, f"{diagnosis!r} is the diagnosis and its own effect")
    lucent = diagnosis == "pneumothorax"
    if (lucent and detection == _DENSE) or (diagnosis in _DENSE_DIAGNOSES and detection == _LUCENT):
        raise CannotAnnotate(Reason.INCONSISTENT_CHAIN, f"{detection!r} contradicts the diagnosis {diagnosis!r}")


def _find_foreign_words(reasoning: str, report: str) -> str:
    """Return the problem of a reasoning that cites words missing from the report, or ""."""
    for quote in _QUOTED.findall(reasoning):
        if not all(part.strip(" .,;:") in report for part in _ELLIPSIS.split(quote)):
            return "it quotes words that the report does not have"
    told = _STEP_NUMBER.sub(" ", reasoning)
    numbers = set(_NUMBER.findall(told)) - set(_NUMBER.findall(report))
    if numbers and told.strip(" .") not in report:
        return f"it names the number {min(numbers)}, which the report does not have"
    both = _BOTH.search(report) is not None
    for side, pattern in (("left", _LEFT), ("right", _RIGHT)):
        if pattern.search(reasoning) and not pattern.search(report) and not both:
            return f"it names the {side} side, which the report does not have"
    return ""


def _check_diagnosis(report: Report, diagnosis: str) -> None:
    finding = next((name for name in URGENCY if fold(name) == diagnosis), None)
    if finding is None and diagnosis != _NORMAL:
        return
    reading = read_report(report.text)
    if finding is None:
        asserted = find_asserted(reading, {mention.finding for mention in reading.mentions})
        if asserted is not None:
            raise CannotAnnotate(Reason.NOT_NORMAL, asserted.finding.lower())
        return
    named = [mention for mention in reading.mentions if mention.finding == finding]
    if is_contradicted(reading, finding):
        raise CannotAnnotate(Reason.CONFLICTING_FINDINGS, f"the report asserts and denies {diagnosis}")
    if any(mention.denied_wholly for mention in named) and all(mention.status == Status.ABSENT for mention in named):
        raise CannotAnnotate(Reason.CONFLICTING_FINDINGS, f"the report denies {diagnosis}")


def _plain(text: str) -> str:
    return fold(text.translate(_PLAIN))


# Texts by a model or a template.


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
    match = re.search(rf"(?<![\w-])(?:{words})(?![\w-])", fold(text).replace("\u2019", "'"))
    return match[0] if match else ""


def refuse_words(text: str, words: str, reason: Reason, name: str) -> None:
    """Require a text without these words."""
    word = find_word(text, words)
    require(not word, reason, f"{name} says {word!r}")


def names_any(text: str, names: Iterable[str]) -> str:
    """Return the first of the names that a text has as words, or ""."""
    folded = fold(text)
    return next((name for name in names if re.search(rf"(?<!\w){re.escape(fold(name))}(?:e?s)?(?!\w)", folded)), "")


def check_markup(texts: Iterable[str]) -> None:
    """Require texts without markup, links, code and control characters: `MARKUP`."""
    for text in texts:
        match = _MARKUP.search(text)
        require(match is None, Reason.MARKUP, f"at character {match.start() if match else 0}")


def check_speech(text: str, name: str) -> None:
    """Require a text that speaks of the picture alone: `SPEAKS_OF_REPORT`, `INSTRUCTION`."""
    refuse_words(text, REPORT_WORDS, Reason.SPEAKS_OF_REPORT, name)
    refuse_words(text, INSTRUCTION_WORDS, Reason.INSTRUCTION, name)


def check_no_coordinates(text: str, stage: str) -> None:
    """Require a text without coordinates: `COORDINATES`."""
    require(not _NUMBERS.search(text), Reason.COORDINATES, f"stage {stage}")


def check_regions(text: str, question: Question) -> None:
    """Require at least one region, and under each region's name a box of the source: `NO_REGION`, `WRONG_BOX`."""
    accepted = {
        (fold(name), tuple(json.loads(write_box(statement.corners))))
        for statement in question.statements
        for name in (question.region_of(statement), statement.label)
    }
    boxes = [corners_of(match) for match in BOX.finditer(text)]
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
    for match in _LETTER.finditer(text):
        is_word = (
            match[1] in "AI" and _ARTICLE.match(text, match.end()) and not _NAMED_LETTER.search(text[: match.start()])
        )
        if match[1] in record.letters and not is_word:
            named.add(match[1])
    return named


def check_answer(text: str, question: Question) -> None:
    """Require that the last sentence only states the answer, without denial, doubt or question: `WRONG_ANSWER`."""
    record, sentences = question.record, _split_texts(text)
    # An answer of several sentences is compared with as many.
    count = max(len(_split_texts(question.spoken_answer)), 1)
    last = " ".join(sentences[-count:])
    if record.is_answered_in_words:
        is_right = bool(names_any(last, (question.spoken_answer, *record.accepted_texts)))
    elif record.kind == "closed":
        is_right = {word.casefold() for word in _YES_NO.findall(last)} == {str(record.answer).casefold()}
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
    "this" or "it" to those named last. A negation between them reverses it.
    """
    last: set[str] = set()
    for sentence in _split_texts(text.replace("\u2019", "'")):
        start = 0
        for match in _VERDICT.finditer(sentence):
            before, verdict = sentence[start : match.start()], match["affirms"] or match["is_right"]
            named = options_named(before, question.record) or (last if _PRONOUN.search(before) else set())
            clause = _CLAUSE.split(_without(f"{before} {match[0]}", question.record.options))[-1]
            _judge(named, question, affirms=bool(verdict) != bool(_NEGATED.search(clause)))
            last, start = named or last, match.end()
        last = options_named(sentence[start:], question.record) or last
        _check_sight(sentence, question)


def _check_sight(sentence: str, question: Question) -> None:
    """Judge the options whose texts follow "I see" or "I see no"."""
    record, folded = question.record, fold(sentence)
    for letter, choice in zip(record.letters, record.options, strict=True):
        name = rf"{re.escape(fold(choice))}(?![\w-])(?! (?:on|in|at|of)\b)"
        signs = r"(?:an? |the |any |clear |definite |signs? of |evidence of )*"
        for match in re.finditer(
            rf"\bi (?:do |can |clearly |also )*(no[tn]? |cannot )?see (no )?{signs}{name}", folded
        ):
            _judge({letter}, question, affirms=not (match[1] or match[2]))


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
    """Return whether a text denies or doubts something, disregarding these names, which may contain a denial."""
    return _DENIED.search(_without(text, names)) is not None
