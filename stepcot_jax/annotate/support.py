"""Does a conclusion follow from localisation, visual analysis and knowledge, and is it the truth (MEDSAGE, A.3.4)?

Findings are read with their denials, as those of reports are. What no word list knows decides nothing.
"""

import dataclasses
import functools
import re
from collections.abc import Sequence

from stepcot_jax.annotate.annotation import Reason
from stepcot_jax.annotate.checks import check_answer, names_any, require
from stepcot_jax.annotate.recipes.items import Parts, Question, split_sentences
from stepcot_jax.annotate.rules.annotator import is_incidental
from stepcot_jax.annotate.rules.mentions import Assertions, Mention, Status, find_terms, read_report
from stepcot_jax.annotate.rules.terms import EMPHYSEMA, NODES, SHIFT, VOLUME_LOSS
from stepcot_jax.chain import DIAGNOSIS_OPTIONS, fold
from stepcot_jax.data.questions.vocabulary import NORMAL, NORMAL_PHRASES, accepted_names, canonical
from stepcot_jax.reasoning.claims import find_values
from stepcot_jax.reasoning.mentions import find_mentions
from stepcot_jax.reasoning.rules import ENTRIES, Entry, find_rules

_FINDINGS = frozenset(DIAGNOSIS_OPTIONS) - {NORMAL} | {EMPHYSEMA, VOLUME_LOSS, SHIFT, NODES}
_LOBES = {f"{side[0]}{zone[0]}L": f"{side} {zone} lobe" for side in ("Right", "Left") for zone in ("Upper", "Lower")}
_SHORT = dict(RML="right middle lobe", PTX="pneumothorax", PNA="pneumonia", Rt="right", Lt="left", **_LOBES)
_ABBREVIATION = re.compile(rf"\b({'|'.join(_SHORT)})\b\.?(?! \d)")
_WITHIN = re.compile(r"\bwithin the region\b\W*(.*)", re.IGNORECASE | re.DOTALL)
_CLAUSES = re.compile(
    r"[.;:!?\n]|,? \b(?:but|while|whereas|although)\b|,? and (?=(?:the|both|no|an?|its|there)\b)"
    r"|, (?=(?:the|both|no|with|without)\b)| with (?=(?:normal|clear)\b)"
)
_NORMAL_CLAUSE = re.compile(r"\b(?:normal|unremarkable|within (?:\w+ )?limits|preserved)\b")
_BEYOND_NORMAL = re.compile(r"\b(?:than|above|beyond|exceed\w+) (?:the )?(?:upper )?(?:limits? of )?normal\b")
_NOT_ALL = re.compile(r"\b(?:are|were|do|neither|none)(?: not|n't|\b(?=.*\bnor\b))")  # several options are denied
_DENIES = re.compile(r"no|without|absen\w*|lack\w*|missing")
_NEGATED = re.compile(r"\b(?:no|not|without|absent|absence|free|excluded?)\b|n't\b")
_LIMITED = re.compile(
    r"\b(?:left|right|upper|lower|middle|bilateral|large|small|tiny|moderate|massive|tension|calcified|multiple|new"
    r"|acute|chronic|more|increased|bigger)\b"
)
"""Words of a question whose "No" does not deny its finding altogether."""
_NORMALITY = re.compile(r"\b(?:radiograph|x-?ray|picture|image|scan|study|film) (ab)?normal\b")
_OF_HEART = re.compile(
    r"\b(?:right|left)(?:[ -]sided?)?,? (?=(?:\w+ ){0,2}(?:heart|cardiac|ventric\w+|atri\w+|half|border)\b)"
    r"|\b(?:right|left)(?: side| half| part| portion| edge)? (?=of the (?:picture|image|film|chest|heart|midline)\b)"
    r"|\b(?:is|are|has|have|had|was|were|nothing|what) left\b"
)
"""Sides that are not the patient's, or of a part of what lies on both."""
_WITHIN_NAME = re.compile(r"\b(?:not|exclud\w+|rul\w+ out|without)\b")  # "the heart is not enlarged"
_LUNG = re.compile(r"\b(?:lungs?|lob\w+|apex|apical)\b")
_OF_LUNG = re.compile(
    r"\b(?:consolidat\w+|bronchogram|air-?space|nodul|cavit|patchy|hazy|infiltrat|spiculat|cloudy|blunt)"
)
_ZONE = re.compile(r"\b(upper|lower)(?: \w+)? (?:lobes?|zones?|lungs?|fields?|thirds?)\b")
_CONCLUDES = re.compile(
    r"\b(?:consistent|compatible|keeping|fits?|suggests?|indicates?|points?|diagnos\w+|explain\w*|most likely"
    r"|represents?|favou?rs?|conclu\w+|typical|characteristic|means?)\b[^.;]{0,60}$",
    re.IGNORECASE,
)


@dataclasses.dataclass(frozen=True)
class _Truth:
    """What the true answer says of findings."""

    present: frozenset[str] = frozenset()
    absent: frozenset[str] = frozenset()
    is_normal: bool = False
    others: frozenset[str] = frozenset()  # findings of the picture that the question is not about


def _spell_out(text: str) -> str:
    return _ABBREVIATION.sub(lambda match: _SHORT[match[1]], text).replace("\u2019", "'")


def _plain(text: str) -> str:
    return _BEYOND_NORMAL.sub("large", fold(_spell_out(text)))


@functools.lru_cache(maxsize=4096)
def _read(text: str) -> tuple[Mention, ...]:
    return tuple(mention for mention in read_report(_spell_out(text)).mentions if not is_incidental(mention))


def _denies_itself(mention: Mention) -> bool:
    return _WITHIN_NAME.search(mention.sentence.line, mention.start, mention.end) is not None


def _asserted(text: str) -> set[str]:
    return {mention.finding for mention in _read(text) if mention.present and not _denies_itself(mention)}


def _denied(text: str) -> set[str]:
    """Return the findings that a text denies altogether and asserts nowhere."""
    absent = (mention for mention in _read(text) if mention.status == Status.ABSENT)
    return {mention.finding for mention in absent if mention.denied_wholly or _denies_itself(mention)} - _asserted(text)


def _truth_of(question: Question, entries: Sequence[Entry]) -> _Truth:
    record, facts = question.record, question.record.facts
    own = [entry.finding for entry in entries if entry not in ENTRIES and entry.finding not in _FINDINGS]
    known = (facts.get("diagnosis", ""), facts.get("secondary", ""), record.lesion)
    others = frozenset(canonical(name) for name in (*known, *(box.label for box in record.references))) & _FINDINGS
    if record.kind == "closed" and not record.is_answered_in_words:
        plain, is_yes = _plain(record.question), record.answer == "Yes"
        asked = frozenset(name for name, _, _ in find_terms(plain)) & _FINDINGS
        asked |= {finding for finding in own if names_any(plain, [finding])}
        if normality := _NORMALITY.search(plain):
            return _Truth(is_normal=is_yes != bool(normality[1]), others=others)
        if len(asked) != 1 or _NEGATED.search(plain) or (_LIMITED.search(plain) and not is_yes):
            return _Truth(others=others)
        return _Truth(asked, others=others) if is_yes else _Truth(absent=asked, others=others)
    texts = question.spoken_choices or record.accepted_texts[:1]
    is_normal = any(fold(text) in map(fold, NORMAL_PHRASES) for text in texts)
    present = frozenset().union(*map(_asserted, texts)) & _FINDINGS
    present |= {finding for finding in own if any(fold(text) == fold(finding) for text in texts)}
    return _Truth(present, is_normal=is_normal, others=others)


def _word(written: str) -> re.Pattern[str]:
    stems = (re.escape(stem.rstrip("*")) + r"\w*" * stem.endswith("*") for stem in written.split("/"))
    return re.compile(rf"(?<!\w)(?:{'|'.join(stems)})(?!\w)")


@functools.lru_cache(maxsize=1024)
def _compile(signs: str) -> tuple[tuple[re.Pattern[str], ...], ...]:
    return tuple(tuple(map(_word, sign.split())) for sign in signs.split(";") if sign.strip())


def _has_sign(text: str, signs: str, *, in_normal: bool = False) -> bool:
    """Return whether a clause has all words of a sign, none of them denied; one that says "normal" has none."""
    for clause in _CLAUSES.split(_plain(text)):
        if not in_normal and _NORMAL_CLAUSE.search(clause):
            continue
        assertions = Assertions(clause)
        for words in _compile(signs):
            matches = [word.search(clause) for word in words]
            is_absence = any(match and _DENIES.fullmatch(match[0]) for match in matches)
            if all(match and (is_absence or assertions.status(*match.span()) >= Status.POSSIBLE) for match in matches):
                return True
    return False


def _within(visual: str) -> str:
    """Return the part of a visual analysis that is about the region."""
    match = _WITHIN.search(visual)
    return match[1] if match else visual


def _supports(finding: str, parts: Parts, entries: Sequence[Entry]) -> bool:
    """Return whether what is seen has a sign of a finding, or its place is looked at and no look of lungs is told."""
    own = [entry for entry in entries if entry.finding == finding]
    signs = ";".join(entry.signs for entry in own if entry.signs)
    if not signs or _has_sign(parts["visual"], signs) or finding in _asserted(parts["visual"]):
        return True
    places, rest = ";".join(entry.place for entry in own if entry.place), _plain(_within(parts["visual"]))
    is_of_lung = _OF_LUNG.search(rest) is not None
    for _, start, end in reversed(find_terms(rest)):  # "associated pleural effusion" is no place
        rest = f"{rest[:start]} {rest[end:]}"
    return bool(places) and _has_sign(parts["localisation"], places) and not (is_of_lung or _LUNG.search(rest))


def require_support(question: Question, parts: Parts, entries: Sequence[Entry]) -> None:
    """Require that localisation, visual analysis and knowledge agree, and support the true answer."""
    truth, visual = _truth_of(question, entries), parts["visual"]
    within = _within(visual)
    regions = " ".join(statement.region or statement.label for statement in question.statements)
    _require_same_place(parts["localisation"], regions, "localisation and its region")
    _require_same_place(within, parts["localisation"], "visual analysis and localisation")
    denied = (truth.present & _denied(visual)) or (truth.absent & _asserted(visual))
    require(not denied, Reason.CONTRADICTION, "visual analysis and answer")
    lesions = {mention.finding for mention in _read(within) if mention.present and mention.sort != "other"}
    require(not (truth.is_normal and lesions), Reason.CONTRADICTION, "visual analysis and a normal picture")
    for finding in sorted(truth.present):
        against = ";".join(entry.against for entry in entries if entry.finding == finding and entry.against)
        is_against = bool(against) and _has_sign(visual, against, in_normal=True)
        require(not is_against, Reason.CONTRADICTION, "visual analysis and answer")
        require(_supports(finding, parts, entries), Reason.UNSUPPORTED, "visual analysis without a sign of the answer")
    about, ruled = truth.present | truth.absent | truth.others, find_rules(parts["knowledge"])
    require(not (ruled and about and not ruled & about), Reason.CONTRADICTION, "knowledge and answer")


def check_conclusion(question: Question, parts: Parts, entries: Sequence[Entry]) -> None:
    """Require a conclusion that states the true answer alone, and nothing that its stages contradict or lack."""
    conclusion, truth = parts["conclusion"], _truth_of(question, entries)
    check_answer(conclusion, question)
    before = " ".join(split_sentences(conclusion)[: -max(len(split_sentences(question.spoken_answer)), 1)])
    _check_letters(before, question)
    stated = _asserted_on(before)
    wrong = (truth.present & _denied(before) - stated) or (truth.absent & stated)
    require(not wrong, Reason.OTHER_ANSWER, "a sentence before the answer")
    known = truth.present | truth.others
    chosen = {mention.finding for mention in _read(before) if _is_concluded(mention) and mention.finding in stated}
    is_about = question.record.kind != "multi" and truth.present
    others = (chosen & _FINDINGS) - known if is_about else set()
    require(not others, Reason.OTHER_ANSWER, "another diagnosis before the answer")
    for finding in sorted((stated & _FINDINGS) - known):
        require(_supports(finding, parts, entries), Reason.UNSUPPORTED, "conclusion with a finding of its own")
    seen = f"{parts['localisation']}. {_within(parts['visual'])}"
    _require_same_place(_without_options(before, question), seen, "conclusion and the stages before it")


def _check_letters(text: str, question: Question) -> None:
    """Require that no letter of a wrong option is affirmed, and none of a right one denied alone."""
    record = question.record
    if not record.options:
        return
    for clause in re.split(r"[.;\n]", text):
        named = [] if _NOT_ALL.search(clause) else find_mentions(clause, record.options).found
        labelled = {mention.letter for mention in named if mention.is_labelled and not mention.is_listed}
        denied = {mention.letter for mention in named if mention.is_denied}
        affirmed = {mention.letter for mention in named if mention.is_stated and not mention.is_doubted} - denied
        require(labelled & affirmed <= set(record.answer), Reason.WRONG_OPTION_AFFIRMED, "before the answer")
        is_denied = bool(labelled) and labelled <= denied & set(record.answer)  # one beside others may be spared
        require(not is_denied, Reason.RIGHT_OPTION_DENIED, "before the answer")


def _is_concluded(mention: Mention) -> bool:
    return mention.concluded or _CONCLUDES.search(mention.sentence.line[: mention.start]) is not None


def _asserted_on(text: str) -> set[str]:
    """Return the findings that a conclusion asserts; one that it only rejects, weighs or lists is none."""
    text = re.sub(r"\bagainst\b", "no", text)
    names = {name: finding for finding in DIAGNOSIS_OPTIONS[1:] for name in (*accepted_names(finding), finding)}
    spelled = tuple({fold(name): name for name in names}.values())[:26]
    mentions: dict[str, list[bool]] = {}
    for mention in find_mentions(_plain(text), spelled, has_letters=False).found:
        finding = names[spelled[ord(mention.letter) - ord("A")]]
        mentions.setdefault(finding, []).append(mention.is_stated and not mention.is_doubted and not mention.is_aside)
    return {finding for finding in _asserted(text) if any(mentions.get(finding, [True]))}


def _without_options(text: str, question: Question) -> str:
    plain = _plain(text)
    for option in sorted(question.record.options, key=len, reverse=True):
        plain = plain.replace(fold(option), " ")
    return plain


def _require_same_place(text: str, other: str, names: str) -> None:
    """Require that two texts that both name a side, or an upper or a lower zone, share one."""
    for find in (_sides, _zones):
        one, two = find(text), find(other)
        require(not (one and two) or bool(one & two), Reason.CONTRADICTION, f"place of {names}")


def _sides(text: str) -> set[str]:
    return {side for side, is_affirmed in find_values(_OF_HEART.sub("", _plain(text)), "side").items() if is_affirmed}


def _zones(text: str) -> set[str]:
    return set(_ZONE.findall(_plain(text)))
