"""Every finding that a report names, with its sentence and its assertion status."""

import dataclasses
import enum
import functools
import re
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from stepcot_jax.annotate.rules.terms import LESIONS, NO_FINDING, PNEUMOTHORAX, TERMS
from stepcot_jax.chain import DIAGNOSIS_OPTIONS

# Split a report into the sentences that count as evidence, as character ranges so that quotes stay verbatim.
#
# Only findings and impression are evidence. An indication ("rule out pneumonia") names the question, a comparison or a
# history names the past; neither says what this radiograph shows.


Role = Literal["findings", "impression", "context"]

HEADINGS: dict[Role, tuple[str, ...]] = {
    "findings": ("findings", "finding", "report", "description", "chest", "chest x-ray"),
    "impression": (
        *("impression", "impressions", "conclusion", "conclusions", "opinion", "summary", "interpretation"),
    ),
    "context": (
        *("indication", "indications", "reason for exam", "reason for examination", "comparison", "comparisons"),
        *("history", "clinical history", "clinical information", "clinical indication", "technique", "procedure"),
        *("examination", "exam", "study", "views", "recommendation", "recommendations"),
    ),
}

_ROLES = {name: role for role, names in HEADINGS.items() for name in names}
# Headings are upper case anywhere, or any case at the start of a line; "; impression: mass" is no heading.
_NAMES = "|".join(sorted((re.escape(name) for name in _ROLES), key=len, reverse=True))
_HEADING = re.compile(rf"(?:(?<![^\s.;])(?P<capitals>{_NAMES.upper()})|^[ \t]*(?P<line>(?i:{_NAMES})))[ \t]*:", re.M)

# A full stop ends a sentence before a capital, a list number, a de-identified word or the end of the text; not after
# an abbreviation, within a number such as 2.0 cm, or in the "1." that opens a list item.
_ABBREVIATIONS = ("dr", "mr", "mrs", "ms", "st", "vs", "approx", "i.e", "e.g", "cf", "pt", "resp", "fig")
# A full stop is missing where a word that opens sentences is capitalised after a word that can end one: "No effusion
# Small nodule in the apex".
_OPENING = (
    r"(?:The|There|This|These|No|Some|Stable|Unchanged|Normal|Negative|Again|Otherwise|Interval|Mild|Minimal|Small"
    r"|Large|Moderate|Low|Old|Multiple|Scattered|Few|Bilateral|Left|Right|Middle|Lungs?|Heart|Cardiac|Pulmonary|Pleural"
    r"|Mediastinal|Cardiomediastinal|Trachea|Aorta|Aortic|Bony|Osseous|Visualized|Degenerative|Calcified|Dense"
    r"|Emphysematous|Chronic|Patchy|Streaky|Cannot|Couple|Possible|Probable|Atherosclerotic)"
)
_CONTINUES = re.compile(
    r"\b(?:the|an?|of|in|on|at|to|by|for|from|with|without|and|or|nor|no|not|is|are|was|were|has|have|may|both|versus"
    r"|over|per|this|focal|acute|evidence|definite|significant|large|small|mild|new|any)$"
)
# "Pneumothorax | none" is one entry of a table; elsewhere such a mark begins the next item of a list.
_VERDICT = (
    r"(?:none|no|not|nil|absent|negative|neg|(?:grade )?0(?: ?/ ?\d+)?)\b"
    r"\s*(?:seen|identified|present|evident)?\s*(?=[.,;|/*\t\n]|$)"
)
# "No effusion / pneumothorax" is one list; "no effusion / nodule in the left lung" is two items.
_DESCRIBED = r"(?=[^.;|/\n]{0,80}\b(?i:left|right|upper|lower|small|large|moderate|tiny|mild|bibasilar)\b)"
_NO_VERDICT = rf"(?!\s*(?i:{_VERDICT}))"
_PLACED = rf"(?:/|[-=>]{{1,5}}|\+){_DESCRIBED}"
# A symbol alone between spaces opens the next item of a list, whichever it is; signs such as (+) or a tick do not.
_BULLET = r"[^\w\s,.;:!?()\[\]{}'\"/&+=<>%\u00b0\u00b1\u00d7\u2264\u2265\u2212\u2610-\u2612\u2713-\u2718-]{1,3}|_"
_LETTERED = r"\(?(?:[a-h]|i{1,3}|i?v|vi{1,3}|\d{1,2})\)"
_STOP = re.compile(
    r"(?:[.!]|\?(?!\s+(?:[Yy]es|[Nn]o)\b))+(?=\s|$)|(?<=[a-z)])\.(?=[A-Z])|\n[ \t]*\n"
    r"|(?:</?(?i:[bh]r|p|li|div|[uod]l|d[dt]|t[rdh]|h[1-6]|table|section|span|pre)\b[^<>]{0,40}>\s*)+"
    r"|\n(?=[ \t]*(?:\d+[.)]|[-*\u2022])[ \t])"
    rf"|(?:(?<=\s)(?:{_BULLET}|{_PLACED})(?=\s)|\s*[\u2022\u00b7\u25aa]|\t+|(?:\\r)?\\n){_NO_VERDICT}"
    rf"|(?<![:=])\s(?=(?:#?(?!0)\d{{1,2}}[.):-]|#\d|{_LETTERED})\s+[A-Z]|\((?:[b-h]|i[iv]{{1,3}}|\d)\)\s)"
    rf"|(?<=[a-z])\s(?={_OPENING} [a-z])"
)
_ITEM = re.compile(rf"\s*(?:(?:\d{{1,2}}[.)]|{_LETTERED}|[-*\u2022])\s+)?")
_LONGEST_ABBREVIATION = 8
_LONGEST_WORD = 20
_LONGEST_SENTENCE = 600
"""Characters. Longer sentences are cut, because the time to read one grows with the square of its length."""

_TABULAR = re.compile(rf"\s*(?:[|\u2013\u2014\t]|(?<=\s)/(?=\s))(?=\s*(?i:{_VERDICT}))")
_LAST_WORD = re.compile(r"[\w.]+$")
_WORD = re.compile(r"\w")


@dataclasses.dataclass(frozen=True)
class Sentence:
    """One sentence of a report."""

    text: str  # verbatim, with its full stop and without a list number
    start: int  # offset of its first character in the report
    role: Role

    @functools.cached_property
    def line(self) -> str:
        """The text with line breaks folded; offsets within a sentence refer to it."""
        return " ".join(_TABULAR.sub(": ", self.text).split())


def find_sections(text: str) -> list[tuple[Role, int, int]]:
    """Return role, start and end of each non-empty section; text outside any section counts as findings."""
    headings = list(_HEADING.finditer(text))
    roles: list[Role] = ["findings", *(_ROLES[(match["capitals"] or match["line"]).lower()] for match in headings)]
    starts = [0, *(match.end() for match in headings)]
    ends = [*(match.start() for match in headings), len(text)]
    return [section for section in zip(roles, starts, ends, strict=True) if text[section[1] : section[2]].strip()]


def split_sentences(text: str) -> tuple[Sentence, ...]:
    """Split findings and impression into sentences, in the report's order."""
    return tuple(
        Sentence(text[start:end], start, role)
        for role, first, last in find_sections(text)
        if role != "context"
        for start, end in _spans(text, first, last)
    )


def _spans(text: str, start: int, end: int) -> list[tuple[int, int]]:
    spans: list[tuple[int, int]] = []
    for stop in _STOP.finditer(text, start, end):
        if stop[0] == "." and not _ends_sentence(text, start, stop.start(), end):
            continue
        is_guess = len(stop[0]) == 1 and stop[0].isspace() and text[stop.end()].isupper()
        if is_guess and _CONTINUES.search(text, max(start, stop.start() - _LONGEST_WORD), stop.start()):
            continue
        spans += _trimmed(text, start, stop.end() if stop[0][0] in ".!?" else stop.start())
        start = stop.end()
    return spans + _trimmed(text, start, end)


def _ends_sentence(text: str, start: int, stop: int, end: int) -> bool:
    match = _LAST_WORD.search(text, max(start, stop - _LONGEST_ABBREVIATION), stop)
    last, before = (match[0].lower(), match.start()) if match else ("", stop)
    if last in _ABBREVIATIONS:
        return not text[stop + 1 : end].strip()
    return not last.isdigit() or bool(text[start:before].strip())


def _trimmed(text: str, start: int, end: int) -> list[tuple[int, int]]:
    """Return the range without list number and surrounding white space, cut if too long; empty without a word."""
    item = _ITEM.match(text, start, end)
    start = item.end() if item else start
    end = start + len(text[start:end].rstrip())
    spans = []
    while end - start > _LONGEST_SENTENCE:
        cut = text.rfind(" ", start + 1, start + _LONGEST_SENTENCE)
        cut = start + _LONGEST_SENTENCE if cut < 0 else cut
        spans.append((start, cut))
        start = cut
    return [(first, last) for first, last in [*spans, (start, end)] if _WORD.search(text, first, last)]


# Whether a sentence asserts the finding it names: absent, asked for, past, possible, likely or stated.
#
# NegEx-style cues: a cue before a finding reaches forward to the next barrier ("but", a semicolon, a new clause), a
# cue after it reaches back to the previous barrier. Of several cues that reach a finding, the lowest `Status` decides.


class Status(enum.IntEnum):
    """Assertion status of a finding; of several cues that reach it, the lowest decides."""

    ABSENT = 0
    ASKED = 1
    PAST = 2
    POSSIBLE = 3
    LIKELY = 4
    STATED = 5


_SEEN = (
    r"(?:seen|identified|appreciated|present|visuali[sz]ed|evident|noted|demonstrated|detected|observed|found|shown"
    r"|apparent|suspected|visible|displayed|recogni[sz]ed|discern(?:ed|ible)|delineated|perceived|revealed|confirmed"
    r"|substantiated|verified|prove[dn]|established|supported|corroborated)"
)
# "Not seen on the lateral view", "on the prior" or "previously" says nothing against the finding today.
_ELSEWHERE = (
    r"(?! (?:well |clearly )?(?:(?:on|in) (?:the )?(?:lateral|frontal|pa|prior|previous|comparison|recent|old\w*|XXXX)"
    r"|previously|before|earlier))"
)
_MAY = r"(?:may|might|could)"
_DOUBT = r"(?:exclude[d]?|ruled? out|rule out)"
# "No change in the effusion" keeps it; "no emphysematous change" and "no increase in heart size" deny.
_CHANGE = (
    r"(?:(?:significant\w*|substantial|appreciable|definite|interval|short|term|further|major|gross|obvious|apparent"
    r"|other|XXXX|acute|evidence|of|for|suggestion|sign|real|great|dramatic|radiographic|visible|notable"
    r"|marked|new) ){0,4}?"
    r"(?:changes?|difference|(?:increase|decrease|reduction|regression|improvement|progression"
    r"|worsening|enlargement|growth|resolution"
    r"|clearing) (?:of|in)\b(?! (?:the )?(?:heart|cardiac|interstitial|lung mark|pulmonary vasc|vascul|markings)))"
)
_CANNOT = r"(?:cannot|can ?not|could not|couldn't|can't|not)"
# "May represent", "could be due to": a guess follows.
_GUESS = (
    r"(?:may|might|could|can|would)(?: also| well| possibly| simply| alternatively| just)? (?:be|represent|reflect"
    r"|indicate|relate|have|suggest|correspond|signify)"
)
_PARTLY = (
    r"(?:near(?:ly)?|almost|partial(?:ly)?|incomplete(?:ly)?|no|without)[- ](?:complete(?:ly)? |interval )?"
    r"(?:resolution|clearing|resolved|cleared)(?: of)?"
)

_UNASSESSED = (
    r"(?:not|cannot be|can ?not be|could not be|unable to be) (?:\w+ ){0,2}?(?:assess(?:ed|able)"
    r"|evaluat(?:ed|able)|evaluable|judged|examined|commented on|determined|interpret(?:ed|able))"
)

# A shadow that only looks like the finding, and a sentence that explains a word: never the finding.
_LOOKS_LIKE = (
    r"(?:simulat|imitat|resembl|masquerad)\w+|mimic\w*|look(?:s|ing)? like|pseudo|spurious|false|factitious"
    r"|projecting as|(?:mistaken|misread|misinterpreted|misdiagnosed|confused) (?:for|as|with)"
    r"|(?:false|giv(?:es?|ing) (?:the|an?)) (?:\w+ )?(?:impression|appearance) of"
)
_ONLY_LOOKS = (
    r"(?:simulat|mimick|imitat)ed by|(?:is|are) (?:only |merely )?(?:apparent|projectional|spurious|factitious)"
)
_EXPLAINS = (
    r"(?<!\bno )means(?! of)|(?:we|is|are|what) (?:we )?(?:mean|meant|call(?:ed)?|define[sd]?)|defin(?:ed as|itions?)"
    r"|refers? to|denot(?:es?|ing)|stands? for|(?:the|an?) (?:\w+ )?(?:term|word|name)|glossary|legend|abbreviations?"
    r"|(?<=[a-z] )= ?(?!(?:yes|no|none|present|absent|n|y|pos\w*|neg\w*|mild|moderate|severe|small|large)\b)[a-z]+"
    r"|(?:^|^note: )(?!th|it )(?:an? )?(?:[\w-]+ ){1,3}(?:is|are) an? (?:collection|infection|inflammation|lesion)"
)

_BEFORE: dict[Status, tuple[str, ...]] = {
    Status.POSSIBLE: (
        rf"(?:{_CANNOT}|(?:difficult|hard|impossible) to) (?:\w+ ){{0,2}}?{_DOUBT}",
        r"possib(?:le|ly|ility of)|potential\w*|less likely|question(?:able)?|perhaps|equivocal|differential",
        r"consider(?:ation|ed)?|might|conceivabl[ey]|unclear whether|uncertain whether",
        r"(?:may|could)(?: \w+)? (?:be|represent|reflect|indicate|relate|have)|can be seen (?:with|in)",
        _GUESS,
        r"concern(?:ing)? for|worrisome for|suspicious for|suspicion (?:of|for)|rais\w+ (?:the )?concern",
        r"borderline(?! (?:\w+ ){0,2}?enlarg)",
        r"in the (?:appropriate|proper|correct|right|given) clinical (?:setting|context|situation)",
    ),
    Status.ABSENT: (
        rf"no(?! {_CHANGE}| longer| doubt)",
        rf"not(?! (?:\w+ )?(?:(?:un)?changed|only|without|unlikely"
        rf"|(?:increased|decreased|enlarged|improved|resolved|cleared) in)| {_CHANGE})",
        rf"(?<!not )without(?! {_CHANGE})|w/o|no(?=(?:focal|acute|evidence|definite|large)\b)",
        r"(?:is|are|was|were|do|does|did|has|have)n't|fail(?:s|ed)? to (?:show|demonstrate|reveal)",
        r"negative (?:for|XXXX)|free (?:of|from)|clear of|clear (?=air-?space|focal)|absence of|absent",
        r"lack(?:s|ing)? (?:of|any)",
        r"nor|neither|none of|nothing|never|devoid of|rather than|instead of|no longer|non-(?=enlarged|dilated)",
        r"(?:resolution|clearing|removal) of|ruled-out|ruled out(?=:)|nil|den(?:y|ies|ied)|non-?visuali[sz]ation of",
    ),
    Status.ASKED: (
        r"do(?:es)? not (?:\w+ )?exclude",
        r"(?:to|for) (?:evaluate|assess|exclude|rule out|detect|look)(?: for)?|rule[- ]out|r/o|exclude",
        r"(?:evaluat|assess|correlat|screen|look|search)\w* for|correlat\w+ (?:clinically (?:for|with)|with)"
        r"|(?:treatment|therapy) (?:of|for)|follow-?up (?:of|for)",
        r"for (?:the )?(?:evaluation|assessment|detection|exclusion|diagnosis) of|(?:in)?sensitive (?:for|to)",
        r"if|clinical (?:concern|suspicion) (?:for|of)",
        r"(?:could|may|might|can) (?:obscure|mask|hide)",
        _LOOKS_LIKE,
    ),
    Status.PAST: (
        r"history of|h/o|hx of|s/p|status[- ]post|resolved|treated",
        r"(?:prior|previous)(?! (?:\w+ ){0,2}(?:granulom\w*|XXXX|imag\w+|cxr|dated|scan|pa|ap|exam\w*|stud\w+"
        r"|radiograph\w*|x-?\w+|ct|film\w*|report|chest|comparison))",
        r"previously (?:seen|noted|described|identified|demonstrated|visuali[sz]ed)",
    ),
    Status.LIKELY: (
        r"suggest(?:ive|ing|s|ion)?(?: of)?|favou?r(?:s|ed|ing)?(?: to represent)?",
        r"probabl[ey]|likely|presum\w+|suspect\w*|appears? to|nodular|mass-?like",
        _PARTLY,
    ),
}
_BEHIND: dict[Status, tuple[str, ...]] = {
    Status.LIKELY: (_PARTLY, r"(?:is|are) (?:most )?(?:likely|probable|suspected|favou?red)"),
    Status.POSSIBLE: (
        rf"{_CANNOT} (?:\w+ ){{0,3}}?{_DOUBT}",
        r"(?:is|are|as|remains?) (?:also )?(?:an? )?(?:possible|possibilit\w+|questioned|questionable"
        r"|considered|consideration)",
        r"(?:should|would|could|may|might) be (?:considered|entertained|included)|not (?:\w+ly )?excluded",
        r"in the differential|less likely|(?:difficult|hard|impossible) to (?:\w+ )?exclude",
        rf"{_MAY} be (?:\w+ )?{_SEEN}|{_MAY} (?:also |well )?(?:have|give|cause|produce|explain|account|look|appear)",
    ),
    Status.ASKED: (
        rf"(?:may not|might not|could not|can ?not|can) be (?:\w+ )?{_SEEN}(?! (?:with|in)\b)",
        rf"(?:{_MAY}|can) be (?:\w+ )?(?:missed|obscured|overlooked|occult|hidden)",
        _UNASSESSED,
        _ONLY_LOOKS,
        r"rule[- ]?out|(?::| -+) ?(?:n/a|unknown|limited)(?= ?(?:[.,;]|$))",
    ),
    Status.ABSENT: (
        rf"(?:(?:is|are|was|were|has been|have been) (?:not|un)|(?:is|are|was|were)n't"
        rf"|not)(?: (?!previously)\w+)? ?{_SEEN}{_ELSEWHERE}",
        rf"no longer {_SEEN}",
        r"(?:is|are) (?:absent|unlikely|excluded|ruled[- ]out|resolved)|ruled[- ]out|excluded|(?<!not )unlikely"
        r"|doubtful|refuted|discarded|disprove[dn]",
        r"(?:interval|complete|full|total|shows?|with|undergone) resolution",
        r"(?:has|have)(?: (?!not|partially|nearly|almost)\w+)? (?:resolved|cleared|disappeared)",
        r"(?::| -+) ?(?:none|no|absent|negative)(?= ?(?:[.,;]|$))|nil",
        r"(?:suspected|suspicious|questioned|queried|considered),? but (?:\w+ ){0,2}?not (?:\w+ )?"
        rf"{_SEEN}{_ELSEWHERE}",
    ),
}

# Words that open a new clause.
_ANEW = (
    r"(?:there|the|heart(?! failure)|cardiac|cardiomediastinal|lungs?|mild\w*|stable|minimal\w*|unchanged|persist\w+"
    r"|chronic|again|otherwise|old|degenerat\w+|low|calcified|status|elevated|scattered|moderate\w*"
    r"|borderline|tortuous|small|large|tiny|trace|probable|possible|multiple|several|few|prominent|bibasilar)"
)
# "No edema, small effusion, or mass" is one list: "or" precedes its last member and no verb interrupts it.
_CLOSING = (
    r"(?:[ -](?!(?:is|are|was|were|has|have|seen|noted|present|with|and|left|right|bilateral)\b)[\w-]+){0,3}"
    r"(?:, [\w -]{1,40}?){0,2},? n?or\b"
)
_BARRIER = re.compile(
    r";|(?<!ruled[- ]out)(?<!negative for)(?<!excluded):"
    r"(?! (?:none|no|not|absent|negative|excluded|ruled[- ]out|n/a|unknown|limited)\b)"
    r"|\b(?:but|however|although|though|except|aside from|other than|apart from|exception of|which|while"
    r"|superimposed on|in the setting of)\b"
    r"| with (?=(?:an? )?(?:residual|moderate|new|worsening|increas\w+|resultant|associated|bilateral|left|right)\b)"
    r"|,? (?:and|with) (?=(?:an? )?(?:there (?:is|are)|stable|mild\w*|minimal|unchanged|persistent|small|tiny|trace"
    r"|multiple|scattered|calcified|moderate)\b)"
    rf"|, (?:with\b|and the\b|(?={_ANEW}\b(?!{_CLOSING})))",
    re.IGNORECASE,
)

# "There is no mass and the heart is enlarged": after a clause with a verb, "and" plus a verb opens another.
_VERB = r"(?:is|are|was|were|has|have|remains?|appears?|shows?|demonstrates?)"
_AND = re.compile(rf",? and (?=(?:the |an? )?(?:[\w-]+ ){{1,5}}?{_VERB}\b)", re.IGNORECASE)
# "No mass, or effusion, scattered granulomas": the last "or" ends the denied list.
_LIST_END = re.compile(
    r"\bn?or (?:[\w-]+ ){0,4}?[\w-]+(?P<next>, )(?!(?:and|n?or|but|no|nor|without|either)\b)(?![^.;]*\bn?or\b)",
    re.IGNORECASE,
)
_FINITE = re.compile(rf"\b{_VERB}\b", re.IGNORECASE)


def _compile(table: dict[Status, tuple[str, ...]]) -> re.Pattern[str]:
    groups = "|".join(rf"(?P<{status.name}>{'|'.join(cues)})" for status, cues in table.items())
    return re.compile(rf"\b(?:{groups})\b", re.IGNORECASE)


_CUE_BEFORE, _CUE_BEHIND = _compile(_BEFORE), _compile(_BEHIND)
_LIMITED = re.compile(
    r"\b(?:large|focal|significant\w*|acute|new|definite\w*|lobar|obvious|gross\w*|size?able|overt"
    r"|appreciable|XXXX|left|right|bilateral|upper|lower|worrisome|noncalcified|non-calcified|measurable|pericardial"
    r"|other|additional|dense|discrete|displaced|active|suspicious|recurrent|enlarging|residual|further|convincing"
    r"|elsewhere|otherwise|remaining|remainder|contralateral|frank|massive|drainable|layering|loculated|calcified)\b",
    re.IGNORECASE,
)
_ONE_REGION = re.compile(
    r"[\w-]+(?: \w+){0,2}? (?:elsewhere|(?:in|on|at|within) (?:the )?(?:left|right|upper|lower|remaining|remainder))\b",
    re.I,
)
_STILL = re.compile(
    r"\b(?:stable|unchanged|again|persist\w*|similar|improv\w*|decreas\w*|increas\w*|residual|remain\w*|still"
    r"|slightly|measur\w*|redemonstrat\w*|chang\w*|present|larger|smaller)\b",
    re.IGNORECASE,
)

# "Status post bypass with cardiomegaly": a cue for the past does not reach beyond "with".
_PAST_REACH = re.compile(r"(?:[ -](?!(?:with|and)\b)[\w-]+){0,6}")


class _Reach(NamedTuple):
    status: Status
    start: int
    end: int


def _find_barriers(sentence: str) -> list[tuple[int, int]]:
    barriers = [match.span() for match in _BARRIER.finditer(sentence)]
    barriers += [match.span("next") for match in _LIST_END.finditer(sentence)]
    for match in _AND.finditer(sentence):
        begin = max((end for _, end in barriers if end <= match.start()), default=0)
        if _FINITE.search(sentence, begin, match.start()):
            barriers.append(match.span())
    return sorted(barriers)


class Assertions:
    """The cues of one sentence and the ranges they reach."""

    def __init__(self, sentence: str) -> None:
        self._sentence = sentence
        self._barriers = _find_barriers(sentence)
        self._reaches = [*self._forward(), *self._backward()]

    def status(self, start: int, end: int) -> Status:
        """Return the status of the finding named by characters `start` to `end`."""
        statuses = [reach.status for reach in self._reaches if reach.start <= end and start < reach.end]
        if Status.PAST in statuses and _STILL.search(self._sentence):
            statuses = [status for status in statuses if status != Status.PAST]
        return min(statuses, default=Status.STATED)

    def denies_all(self, start: int) -> bool:
        """Return whether the finding at `start` is denied altogether, not only as a large, focal or new one."""
        reaching = (reach for reach in self._reaches if reach.start <= start < reach.end)
        denials = (reach for reach in reaching if reach.status == Status.ABSENT)
        nearest = max(denials, key=lambda reach: reach.start, default=None)
        if nearest is None or _LIMITED.search(self._sentence, nearest.start, start):
            return False
        return not _ONE_REGION.match(self._sentence, start, nearest.end)

    def clause(self, start: int) -> tuple[int, int]:
        """Return the range around `start` up to the nearest barriers and denials of other findings."""
        denied = [(reach.start, reach.end) for reach in self._reaches if reach.status == Status.ABSENT]
        between = [*self._barriers, *(span for span in denied if not span[0] <= start < span[1])]
        first = max((end for _, end in between if end <= start), default=0)
        last = min((begin for begin, _ in between if begin > start), default=len(self._sentence))
        return first, last

    def _forward(self) -> Iterator[_Reach]:
        for match in _CUE_BEFORE.finditer(self._sentence):
            status = Status[match.lastgroup or ""]
            end = min((begin for begin, _ in self._barriers if begin >= match.end()), default=len(self._sentence))
            if status == Status.PAST and (words := _PAST_REACH.match(self._sentence, match.end(), end)):
                end = words.end()
            yield _Reach(status, match.start(), end)

    def _backward(self) -> Iterator[_Reach]:
        for match in _CUE_BEHIND.finditer(self._sentence):
            start = max((end for _, end in self._barriers if end <= match.start()), default=0)
            yield _Reach(Status[match.lastgroup or ""], start, match.end())


_NO_FINDING = re.compile(rf"\b(?:{_LOOKS_LIKE}|{_ONLY_LOOKS})\b", re.IGNORECASE)
_DEFINITION = re.compile(rf"(?:\b|^|(?<= )){_EXPLAINS.join(('(?:', ')'))}\b", re.IGNORECASE)
_NOT_TOLD = re.compile(rf"{_UNASSESSED}|[:-] ?(?:n/a|unknown|limited)\b|(?:is|are|was) limited\b", re.IGNORECASE)
# "Pneumothorax (-), effusion: +"; "[x] Effusion [ ] Pneumothorax", with the mark on either side.
_POSITIVE, _NEGATIVE = (
    r"\+{1,4}|[\u2713\u2714]|yes|y|true|pos(?:itive)?|present|1",
    r"[-\u2212\u2013]|[\u2717\u2718]|no|n|false|neg(?:ative)?|absent|none|0",
)
_SIGN = rf"(?:(?P<FORMyes>{_POSITIVE})|(?P<FORMno>{_NEGATIVE}))(?: ?ve)?"
_BEFORE_END = r"(?=\s*(?:[,;)\[(]|\.(?!\d)|$)|\s+(?-i:[A-Z]))"
# "Grade 0/4", "(0/3)", "score: none", and a zero elsewhere in the sentence, which may be the finding's.
_SCALE = r"(?:(?:is |was )?(?:grad|scor|severit|class|stag|degree|level|extent)\w*[ :=]*(?:of |is |as )?)"
_OF = r" ?(?:/|of|out of) ?[\dIVX]+"
_NO_GRADE = (
    rf"(?:{_SCALE}{{1,2}}(?:0(?:{_OF})?|zero|none|nil|absent)|0(?:{_OF}| ?%| ?ml)|(?<=[:=] )0)"
    r"(?: ?[-(] ?(?:none|absent)\)?)?"
)
_OWN_GRADE = re.compile(rf"[ :=,(\[-]*{_SCALE}{{0,2}}[1-9]", re.IGNORECASE)
_ZERO_BEFORE = re.compile(rf"(?:^|[,;:] |\b(?:is|are|and|with) ){_SCALE}?(?:0|zero)(?:{_OF})? $", re.IGNORECASE)
_ZERO = re.compile(
    rf"(?<![\d.,:/-])0(?![\d:/]*[.,]?\d)|\bzero\b|(?<![\d.])0{_OF}|{_SCALE}(?:none|nil)\b", re.IGNORECASE
)
_SIGN_BEHIND = re.compile(
    rf"[ :=,(\[-]*(?P<fno>{_NO_GRADE})[)\]]?{_BEFORE_END}|\s*[:=?]?\s*(?:[(\[]\s*{_SIGN.replace('FORM', 'a')}\s*[)\]]"
    rf"|(?<=[:=?]) ?{_SIGN.replace('FORM', 'b')}{_BEFORE_END}"
    rf"|(?:-\s+(?P<cyes>yes|present)|-\s+(?P<cno>no|absent)){_BEFORE_END}"
    r"|(?P<dyes>\+{1,4}|[\u2713\u2714])(?: ?ve)?(?!\w)|(?P<dno>[\u2717\u2718]|[-\u2212]ve\b)"
    rf"|(?<=\s)(?P<eno>[-\u2212\u2013])(?=\s*(?:[,;.]|$)))",
    re.IGNORECASE,
)
_MARK = r"(?:\[\s*([^\s\]]?)\s*\]|\(\s*([xX+\u2713\u2714\u2212\u2013-]?)\s*\)|([\u2610-\u2612\u2713-\u2718]))"
_BARE = r"(?:^|(?<=[,;] ))([+-])(?=\s)"
_BOX_BEHIND, _BOX_BEFORE = re.compile(rf"\s*[:=]?\s*{_MARK}"), re.compile(rf"(?:{_MARK}|{_BARE})\s*$")
_FIRST_BOX = re.compile(rf"{_MARK}|^\+(?=\s)")
_UNTICKED = frozenset({"", "_", "-", "\u2212", "\u2013", "\u2610", "\u2715", "\u2716", "\u2717", "\u2718"})
_JOINED = re.compile(r"\s*(?:,|and|or|/|&)\s*(?:and|or)?\s*", re.IGNORECASE)
# "No effusion on the right, moderate on the left", "no left pneumothorax, small right one", "none but a small one".
_SIZE = (
    r"(?:small|moderate\w*|large|tiny|trace|minimal|mild|slight|subtle|new|residual|loculated|massive|persistent"
    r"|stable|unchanged)"
)
_SIZED = re.compile(rf"\b{_SIZE} (?:left |right |bilateral )?$", re.IGNORECASE)
_SIDE = r"(?:left|right|other|contralateral|both|bilateral)"
_AT_SIDE = rf"(?:on|in|at|along) (?:the )?{_SIDE}\b"
_ELIDED = re.compile(
    rf"(?:[,;]|\b(?:but|and|with|although)\b)\s+(?:there (?:is|are) )?(?:only )?(?:an? )?(?:very )?"
    rf"(?:{_SIZE}(?:[- ](?:to[- ])?(?:small|moderate|large|sized?|amount|volume|one))*(?:,? ?one)?,?"
    rf" (?:is (?:seen|present|noted) )?(?:{_AT_SIDE}|{_SIDE}(?:[- ]sided)?(?: one)?(?= ?(?:[.,;]|$)))"
    rf"|(?:there (?:is|are)|is|are|present|seen|one)(?: (?:one|some|present|seen))? {_AT_SIDE}"
    rf"|{_SIDE} (?:is )?(?:present|positive|{_SIZE})(?= ?(?:[.,;]|$)))"
    rf"|\b(?:except|apart from|other than|aside from|but)(?: for)?(?: an?)? {_SIZE}(?: (?:one|{_SIDE}|{_AT_SIDE}))+",
    re.IGNORECASE,
)
_CONTINUED = re.compile(
    rf"(?:(?:an? )?{_SIZE}(?: one)? (?:{_AT_SIDE}|{_SIDE})|{_SIDE}(?:[- ]sided)? (?:is |one is )?{_SIZE}"
    rf"|(?:one )?(?:is )?(?:present|seen) {_AT_SIDE})(?: side)? ?[.;]?",
    re.IGNORECASE,
)

_ASSOCIATED = re.compile(
    r"\b(?:associated|accompan\w+|also|adjacent|reactive|compressive|secondary(?! to)|underlying)\b", re.I
)
# Up to three words, such as "a small right", may stand between phrase and finding.
_CONCLUDES = re.compile(
    r"\b(?:(?:consistent|compatible) with|findings suggest|impression:|diagnosis:)(?:\s+[\w-]+){0,3}?\s+$", re.I
)
_LONGEST_CONCLUSION = 80
_LIST = re.compile(
    r"(?=.*\bn?or\b)(?:[\s,.;]|\b(?:n?or|and/or|focal|large|acute|definite|visible|significant)\b)*", re.I
)
_OR = re.compile(r"\s*(?:,\s*)?(?:or|versus|vs\.?|over|and/or|/|less likely)\s*(?:[\w-]+\s+){0,3}", re.I)
_TERM_NAMES = re.compile(
    "|".join(rf"(?P<t{number}>\b(?:{'|'.join(words)})\b)" for number, (_, *words) in enumerate(TERMS)), re.IGNORECASE
)


@dataclasses.dataclass(frozen=True)
class Mention:
    """A finding that a sentence names."""

    finding: str
    status: Status
    sentence: Sentence
    number: int  # index of the sentence in the report
    start: int  # offset of the name in the sentence's line
    end: int  # offset one past the name
    clause: tuple[int, int]  # start and end of its clause
    associated: bool  # named as a companion of another finding
    alternative: bool  # the second of two readings ("atelectasis or infiltrate")
    concluded: bool  # introduced by a phrase such as "most consistent with"
    denied_wholly: bool  # denied altogether, not only as large, focal or new
    unassessed: bool = False  # the report says that nobody could tell
    signed: bool = False  # a sign such as (-) or a box such as [x] states its status

    @property
    def sort(self) -> Literal["diagnosis", "lesion", "other"]:
        """A diagnosis of the chain, another lesion, or another abnormality."""
        if self.finding in DIAGNOSIS_OPTIONS:
            return "diagnosis"
        return "lesion" if self.finding in LESIONS else "other"

    @property
    def present(self) -> bool:
        """Whether the finding is stated or likely."""
        return self.status >= Status.LIKELY


@dataclasses.dataclass(frozen=True)
class Reading:
    """A report's sentences and the findings they name, in order."""

    sentences: tuple[Sentence, ...]
    mentions: tuple[Mention, ...]


def read_report(text: str) -> Reading:
    """Read findings and impression of a report."""
    sentences = split_sentences(text)
    mentions: list[Mention] = []
    for number, sentence in enumerate(sentences):
        last = [mention for mention in mentions[-1:] if mention.number == number - 1]
        mentions += _mentions(sentence, number) or _find_continued(last, sentence, number)
    return Reading(sentences, tuple(mentions))


def find_terms(sentence: str) -> list[tuple[str, int, int]]:
    """Return finding, start and end of each name of a finding in a sentence, in order, asserted or denied."""
    named = ((TERMS[int((match.lastgroup or "")[1:])][0], *match.span()) for match in _TERM_NAMES.finditer(sentence))
    return [term for term in named if term[0] != NO_FINDING]


def _mentions(sentence: Sentence, number: int) -> list[Mention]:
    line = sentence.line
    named = find_terms(line)
    if not named:
        return []
    assertions = Assertions(line)
    routine = _is_routine(line, named)
    most = Status.ASKED if _DEFINITION.search(line) else Status.STATED
    mentions: list[Mention] = []
    for finding, start, end in named:
        clause = assertions.clause(start)
        status = Status.ABSENT if routine else min(assertions.status(start, end), most)
        leading = line[max(0, start - _LONGEST_CONCLUSION) : start]
        concluded = status >= Status.LIKELY and _CONCLUDES.search(leading) is not None
        # After "or" or "versus" a finding is the less likely alternative of the diagnosis before it.
        diagnosed = max((item.end for item in mentions if item.end <= start and item.sort == "diagnosis"), default=None)
        mentions.append(
            Mention(
                finding=finding,
                status=Status.STATED if concluded else status,
                sentence=sentence,
                number=number,
                start=start,
                end=end,
                clause=clause,
                associated=_ASSOCIATED.search(line, *clause) is not None,
                alternative=diagnosed is not None and _OR.fullmatch(line, diagnosed, start) is not None,
                concluded=concluded,
                denied_wholly=assertions.denies_all(start),
                unassessed=status == Status.ASKED
                and (most == status or bool(_NO_FINDING.search(line)) or bool(_NOT_TOLD.search(line, end))),
            )
        )
    return [*_apply_marks(mentions, line), *_find_elided(mentions, line)]


def _apply_marks(mentions: list[Mention], line: str) -> list[Mention]:
    """Return the mentions with the status that a sign or a box beside them states, or one beside their list."""
    first = _FIRST_BOX.search(line)
    is_ahead = first is not None and bool(mentions) and first.start() < mentions[0].start
    marked: list[Mention] = []
    rest = line
    for mention in reversed(mentions):
        sign = _SIGN_BEHIND.match(line, mention.end) or _ZERO_BEFORE.search(line[: mention.start])
        box = _BOX_BEFORE.search(line, 0, mention.start) if is_ahead else _BOX_BEHIND.match(line, mention.end)
        joined = marked and marked[-1].signed and _JOINED.fullmatch(line, mention.end, marked[-1].start)
        if sign:
            is_positive = sign.re is _SIGN_BEHIND and any(sign[f"{form}yes"] for form in "abcd")
            status = Status.STATED if is_positive else Status.ABSENT
        elif first and box:
            mark = next(filter(None, box.groups()), "")
            status = Status.ABSENT if mark in _UNTICKED else Status.STATED
        elif joined and not _SIZED.search(line[: mention.start]):  # "large effusion, pneumothorax (-)" is no list
            status = marked[-1].status
        else:
            marked.append(mention)
            continue
        if sign:  # its number is not another finding's
            rest = rest[: sign.start()] + " " * len(sign[0]) + rest[sign.end() :]
        denied = status == Status.ABSENT
        marked.append(dataclasses.replace(mention, status=status, denied_wholly=denied, signed=True))
    for place, mention in enumerate(marked if _ZERO.search(rest) else ()):
        if mention.status > Status.ASKED and not mention.signed and not _OWN_GRADE.match(line, mention.end):
            marked[place] = dataclasses.replace(mention, status=Status.ASKED, unassessed=True)
    return marked[::-1]


def _find_elided(mentions: list[Mention], line: str) -> list[Mention]:
    """Return a mention for each finding that is denied on one side and, without its name, stated on the other."""
    elided = []
    for match in _ELIDED.finditer(line):
        before = [mention for mention in mentions if mention.end <= match.start()]
        is_named = any(match.start() <= mention.start < match.end() + _LONGEST_WORD for mention in mentions)
        if before and before[-1].status == Status.ABSENT and not is_named:
            start, end = match.span()
            says: dict[str, Any] = {"status": Status.STATED, "clause": (start, len(line)), "denied_wholly": False}
            elided.append(dataclasses.replace(before[-1], start=start, end=end, **says))
    return elided


def _find_continued(last: list[Mention], sentence: Sentence, number: int) -> list[Mention]:
    """Return the finding of the sentence before where this one states its other side: "Small on the right."."""
    line = sentence.line
    if not (last and last[0].status == Status.ABSENT and (match := _CONTINUED.fullmatch(line))):
        return []
    whole = dataclasses.replace(last[0], sentence=sentence, number=number, start=0, end=match.end())
    return [dataclasses.replace(whole, status=Status.STATED, clause=(0, len(line)), denied_wholly=False)]


def _is_routine(text: str, named: list[tuple[str, int, int]]) -> bool:
    """Return whether a sentence is a bare list ("Pleural effusion or pneumothorax."), which continues a denial."""
    findings = {finding for finding, _, _ in named}
    if PNEUMOTHORAX not in findings or len(findings) < 2:
        return False
    ends, starts = [0, *(end for _, _, end in named)], [*(start for _, start, _ in named), len(text)]
    between = (text[end:start] for end, start in zip(ends, starts, strict=True))
    return _LIST.fullmatch(" ".join(between)) is not None
