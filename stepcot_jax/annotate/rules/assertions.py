"""Whether a sentence asserts the finding it names: absent, asked for, past, possible, likely or stated.

NegEx-style cues: a cue before a finding reaches forward to the next barrier ("but", a semicolon, a new clause), a cue
after it reaches back to the previous barrier. Of several cues that reach a finding, the lowest `Status` decides.
"""

import enum
import re
from collections.abc import Iterator
from typing import NamedTuple


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
    r"|apparent|suspected|visible|displayed|recogni[sz]ed|discern(?:ed|ible)|delineated|perceived|revealed)"
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
    r"(?:changes?|difference|(?:increase|decrease|improvement|progression|worsening|enlargement|growth|resolution"
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
        rf"not(?! (?:\w+ )?(?:(?:un)?changed|only|(?:increased|decreased|enlarged|improved|resolved|cleared) in)|"
        rf" {_CHANGE})",
        rf"without(?! {_CHANGE})|w/o|no(?=(?:focal|acute|evidence|definite|large)\b)",
        r"(?:is|are|was|were|do|does|did|has|have)n't|fail(?:s|ed)? to (?:show|demonstrate|reveal)",
        r"negative (?:for|XXXX)|free (?:of|from)|clear of|clear (?=air-?space|focal)|absence of|absent",
        r"lack(?:s|ing)? (?:of|any)",
        r"nor|neither|none of|nothing|never|devoid of|rather than|instead of|no longer|non-(?=enlarged|dilated)",
        r"(?:resolution|clearing|removal) of",
    ),
    Status.ASKED: (
        r"do(?:es)? not (?:\w+ )?exclude",
        r"(?:to|for) (?:evaluate|assess|exclude|rule out|detect|look)(?: for)?|rule out|r/o|exclude",
        r"(?:evaluat|assess|correlat|screen|look|search)\w* for|correlat\w+ (?:clinically (?:for|with)|with)"
        r"|(?:treatment|therapy) (?:of|for)|follow-?up (?:of|for)",
        r"for (?:the )?(?:evaluation|assessment|detection|exclusion|diagnosis) of|(?:in)?sensitive (?:for|to)",
        r"if|clinical (?:concern|suspicion) (?:for|of)",
        r"(?:could|may|might|can) (?:obscure|mask|hide)",
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
    ),
    Status.ABSENT: (
        rf"(?:(?:is|are|was|were|has been|have been) (?:not|un)|(?:is|are|was|were)n't"
        rf"|not)(?: (?!previously)\w+)? ?{_SEEN}{_ELSEWHERE}",
        rf"no longer {_SEEN}",
        r"(?:is|are) (?:absent|unlikely|excluded|ruled out|resolved)|ruled out|excluded|unlikely|doubtful",
        r"(?:interval|complete|full|total|shows?|with|undergone) resolution",
        r"(?:has|have)(?: (?!not|partially|nearly|almost)\w+)? (?:resolved|cleared|disappeared)",
        r"(?::| -+) ?(?:none|no|absent|negative)(?= ?(?:[.,;]|$))",
    ),
}

# Words that open a new clause.
_ANEW = (
    r"(?:there|the|heart(?! failure)|cardiac|cardiomediastinal|lungs?|mild\w*|stable|minimal\w*|unchanged|persist\w+"
    r"|chronic|again|otherwise|old|degenerat\w+|low|calcified|status|elevated|scattered|moderate\w*"
    r"|borderline|tortuous|small|tiny|trace|probable|possible|multiple|several|few|prominent|bibasilar)"
)
# "No edema, small effusion, or mass" is one list: "or" precedes its last member and no verb interrupts it.
_CLOSING = (
    r"(?:[ -](?!(?:is|are|was|were|has|have|seen|noted|present|with|and|left|right|bilateral)\b)[\w-]+){0,3}"
    r"(?:, [\w -]{1,40}?){0,2},? n?or\b"
)
_BARRIER = re.compile(
    r";|:(?! (?:none|no|absent|negative)\b)|\b(?:but|however|although|though|except|aside from|other than"
    r"|apart from|exception of|which|while|superimposed on|in the setting of)\b"
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
_ONE_PLACE = re.compile(
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
    """Return the character ranges that separate the clauses of a sentence."""
    found = [match.span() for match in _BARRIER.finditer(sentence)]
    found += [match.span("next") for match in _LIST_END.finditer(sentence)]
    for match in _AND.finditer(sentence):
        begin = max((end for _, end in found if end <= match.start()), default=0)
        if _FINITE.search(sentence, begin, match.start()):
            found.append(match.span())
    return sorted(found)


class Assertions:
    """The cues of one sentence and the ranges they reach."""

    def __init__(self, sentence: str) -> None:
        self._sentence = sentence
        self._barriers = _find_barriers(sentence)
        self._reaches = [*self._forward(), *self._backward()]

    def status(self, start: int, end: int) -> Status:
        """Return the status of the finding named by characters `start` to `end`."""
        found = [reach.status for reach in self._reaches if reach.start <= end and start < reach.end]
        if Status.PAST in found and _STILL.search(self._sentence):
            found = [status for status in found if status != Status.PAST]
        return min(found, default=Status.STATED)

    def denies_all(self, start: int) -> bool:
        """Whether the finding at `start` is denied altogether, not only as a large, focal or new one."""
        reaching = (reach for reach in self._reaches if reach.start <= start < reach.end)
        denials = (reach for reach in reaching if reach.status == Status.ABSENT)
        nearest = max(denials, key=lambda reach: reach.start, default=None)
        if nearest is None or _LIMITED.search(self._sentence, nearest.start, start):
            return False
        return not _ONE_PLACE.match(self._sentence, start, nearest.end)

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
