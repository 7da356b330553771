"""Where a text names the options of a question, by letter or by name, and which of them it denies, doubts or lists."""

import bisect
import dataclasses
import functools
import itertools
import re
import string
from collections.abc import Sequence
from typing import Any

from stepcot_jax.chain import fold

_MOST = 500
"""Most names and most letters that are looked at: a text with more decides on nothing."""

_LONGEST_CLAUSE = 400
"""Characters before and behind a mention that are searched for a denial."""


@dataclasses.dataclass(frozen=True)
class Mention:
    """One option in a text."""

    letter: str
    start: int  # position of its first character
    end: int
    is_labelled: bool  # whether its letter stands there, not its name alone
    sentence: int = 0  # number of its sentence
    is_denied: bool = False
    is_doubted: bool = False  # offered as one of several, or as a possibility
    is_listed: bool = False  # in a list of all options
    is_aside: bool = False  # as a cause or example of something else

    @property
    def is_stated(self) -> bool:
        """Whether the text states this option rather than denying it or listing all."""
        return not self.is_denied and not self.is_listed


@dataclasses.dataclass(frozen=True)
class Mentions:
    """All options that a text names, in order; `contradict`: a letter stands directly before another option's name."""

    text: str
    found: tuple[Mention, ...]
    ends: tuple[int, ...]  # of the sentences
    contradict: bool = False

    def sentence_of(self, mention: Mention) -> str:
        """Return the sentence of a mention."""
        start = self.ends[mention.sentence - 1] if mention.sentence else 0
        return self.text[start : self.ends[mention.sentence]]

    def group_of(self, mention: Mention) -> list[Mention]:
        """Return the run of mentions that one belongs to: nothing but commas, line breaks, "and" or "or" between."""
        return next(group for group in _group(self.text, self.found) if mention in group)

    def behind_cue(self, cue: re.Pattern[str], mentions: Sequence[Mention]) -> list[Mention]:
        """Return those of one sentence's mentions that stand behind, or begin with, its last match of a pattern."""
        start = self.ends[mentions[0].sentence - 1] if mentions[0].sentence else 0
        cues = [match.start() for match in cue.finditer(self.text, start, mentions[-1].start + 1)]
        return [mention for mention in mentions if cues and mention.start >= cues[-1]]

    def leading_group(self) -> list[Mention]:
        """Return the mentions that the text begins with, behind a list of all options; none if it begins otherwise."""
        rest = [mention for mention in self.found if not mention.is_listed]
        start = max((mention.end for mention in self.found if mention.is_listed), default=0)
        if not rest or not _LEAD.fullmatch(self.text, min(start, rest[0].start), rest[0].start):
            return []
        return _group(self.text, rest)[0]

    def leading_lines(self) -> list[Mention]:
        """Return the mentions that the text and further lines begin with; none if the text begins otherwise."""
        groups = _group(self.text, self.found)
        starts = [self.text.rfind("\n", 0, group[0].start) + 1 for group in groups]
        heads = [
            group
            for group, start in zip(groups, starts, strict=True)
            if _LEAD.fullmatch(self.text, start, group[0].start)
        ]
        is_first = heads and heads[0][0] is self.found[0] and not self.text[: starts[0]].strip()
        if is_first and len(heads) == 1 and _MARKED.match(self.text, heads[0][0].start):  # "A) .., C) .. and D) .."
            line = self.text.find("\n", heads[0][0].start) % (len(self.text) + 1)
            marked = [mention for mention in self.found if _MARKED.match(self.text, mention.start)]
            return [mention for mention in marked if mention.end <= line or mention in heads[0]]
        return [mention for group in heads for mention in group] if is_first else []

    def concluding(self, cue: re.Pattern[str]) -> list[Mention]:
        """Return the stated mentions of the last sentence that states any, if it has a cue."""
        stated = [mention for mention in self.found if mention.is_stated]
        last = [mention for mention in stated if mention.sentence == stated[-1].sentence]
        return last if last and cue.search(self.sentence_of(last[0])) else []


_MARKED = re.compile(r"[(\[]?[A-Z][)\]]")
_GLUE = re.compile(
    r"[\s\"'\u2019*)\].,;/&+\-\u2022]{0,12}(?:(?:and|or|nor|to|as well as|vs\.?|versus|and/or|options?|choice|the"
    r"|an?)\b[\s\"'\u2019*(\[,]{0,6}){0,3}"
)
_ALTERNATIVE = re.compile(r"\b(?:or|to|vs|versus)\b|/")
_LEAD = re.compile(
    r"\W*(?:(?:so|therefore|thus|hence|the|my|best|correct|right|final|only|just|both|most likely|answers?|options?"
    r"|choices?|letters?|finding|diagnosis|there|it|this|that|i see|i think|image|picture|radiograph|x-ray"
    r"|shows?|is|are|'s|a|an|would be)\W*)*",
    re.IGNORECASE,
)

_BARRIERS = re.compile(
    r"\b(?:but|however|although|though|yet|so|therefore|thus|hence|leav(?:es|ing)|while|whereas|it is|it's"
    r"|left with|remain\w*|only|instead,|rather,|because|since)\b"
    r"|\b(?P<verb>consistent with|suggest\w*|indicat\w*|points? to|speaks? for|represents?|fits?|confirm\w*)\b",
    re.IGNORECASE,
)
"""Words that end what "no" and the like deny, unless they are denied themselves (`_DENIES_VERB`)."""
_DENIES_VERB = re.compile(r"(?:\b(?:no|not|nothing|none|never|neither)|n't)\b(?: +[\w-]+){0,4} *\Z", re.IGNORECASE)
_DENIED_BEFORE = re.compile(
    r"\b(?:no(?! doubt)|not(?! only)|without|neither|nor|negative for|absence of|lack of|rather than|instead of|unlike"
    r"|isn't|aren't|doesn't|don't|wasn't|cannot|can't|lacks?|exclud(?:e[ds]?|ing)|rul(?:es?|ed|ing) out|against"
    r"|other than|free of|mistaken for|fail(?:s|ed)? to)\b"
    r"|\b(?:other|remaining) (?:options|choices|findings|conditions|possibilities|answers)\b"
    r"|\b(?:least likely|incorrect|wrong|false)\s*\Z"
    r"|\b(?:behind|near|beside|next to|adjacent to|close to|in front of|compared (?:to|with))\s+(?:the\s+)?\Z",
    re.IGNORECASE,
)
_DENIED_BEHIND = re.compile(
    r"[\w ,]{0,40}?\b(?:is|are|was|were|be|been|being|seems?|appears?|looks?)\s+(?:\w+ )?(?:not|absent|unlikely"
    r"|excluded|ruled out|incorrect|wrong|false|out|less likely|improbable|negative)\b"
    r"|[\w ,]{0,40}?\b(?:cannot|can't|isn't|aren't|wasn't|doesn't|does not|don't|do not|has no|have no|shows no)\b"
    r"|\W{0,4}not(?=\s*(?:[.,;)]|\Z"
    r"|(?:seen|present|visible|shown|likely|possible|correct|identified|the (?:case|answer))\b))"
    r"|\W{0,4}(?:absent|unlikely|excluded|ruled out|incorrect|wrong|false|less likely)\b"
    r"|\W{0,4}(?:no|nor|none)\b(?=\s*(?:[.,;)\n]|\Z))|[\s,]{1,3}none (?:fits?|of)\b",
    re.IGNORECASE,
)
_ASIDE = re.compile(
    r"\b(?:due to|caused by|causes|such as|secondary to|associated with|related to|e\.g\.,?|including)\b"
    r"[^.;\n]{0,80}\Z",
    re.IGNORECASE,
)
_SEEN = re.compile(r"\b(?:may|could|can|might) be (?:seen|noted|identified|observed|appreciated)\b", re.IGNORECASE)
_DOUBTED_BEFORE = re.compile(
    r"\b(?:possibl[ey]|maybe|perhaps|may|might|could|unclear|uncertain|unsure|whether|if|differential\w*|questionable"
    r"|either|potential(?:ly)?|equivocal|between|or"
    r"|(?:signs?|features?|causes?|patients|cases) (?:of|with)|common\w*)\b\W*(?:[\w-]+\W+){0,6}\Z"
    r"|\b(?:look|check|assess|search|evaluat|examin)\w* for\b[^.;]{0,120}\Z",
    re.IGNORECASE,
)
_DOUBTED_BEHIND = re.compile(
    r"\s*\?|\W{0,3}(?:would|should|could|might|may)\b(?! be (?:the|my|best|most|seen|noted|identified|observed))"
    r"|\W{0,4}(?:(?:is|are) (?:characteri[sz]ed|defined|an? (?:condition|term|type|common)|often|usually|typically)"
    r"|refers to|typically|usually|often|occurs|means)\b"
    r"|\W{0,3}(?:\w+ )?(?:or|possibly|maybe|perhaps|if|vs|versus)\b"
    r"|[\w ]{0,15}\b(?:is|was|are|were|remains?|seems?)\s+(?:\w+ )?"
    r"(?:considered|possible|tempting|suspected|questionable)\b",
    re.IGNORECASE,
)
_WORDS = ("no", "yes", "none", "both", "neither", "all", "other")
"""Options that are also words of any sentence: they count where punctuation follows."""
_OF = re.compile(r"\s+(?:of|for|that|to suggest|suggest\w*)\b")
_ENDS = re.compile(r"\s*(?:[.,;:!)\]\n*\"'(\-\u2013\u2014]|\Z)")
_SENTENCE_ENDS = re.compile(r"[.!?]+(?=\s|\Z)|[;\n]+")
_NO_LETTER_BEFORE = re.compile(
    r"(?:hepatitis|vitamin|kerley|type|stanford|group|class|grade|stage|factor|protein|[\u00b0\d])\s?\Z", re.IGNORECASE
)
_NO_LETTER_BEHIND = re.compile(r"[ -](?:lines?|arm|dimer|waves?|cells?|scan|mode)\b", re.IGNORECASE)
_ARTICLE = re.compile(
    r"\s+(?!(?:is|was|are|because|since|as|and|or|seems|appears|fits|looks|due|given|for|but|not|can|would|if|when|unless"
    r"|which|rather|over|describes|matches)\b)[a-z0-9]"
)
"""What follows the article A and the pronoun I, rather than the letter of an option."""


_MOST_BARE = 11
"""Options up to which a capital that stands alone is a letter of theirs."""


def find_mentions(text: str, options: tuple[str, ...], *, has_letters: bool = True) -> Mentions:
    """Return the options that a text names, by letters too unless they have none."""
    pattern, by_name = _names(options)
    names = [
        (match.start(), match.end(), by_name[_core(match[0])])
        for match in itertools.islice(pattern.finditer(text), _MOST)
        if _core(match[0]) in by_name
        if fold(match[0]) not in _WORDS or _ENDS.match(text, match.end())
        if not (match[0][:3].lower() == "no " and _OF.match(text, match.end()))  # "no finding of a mass"
    ]
    letters = _find_letters(text, string.ascii_uppercase[: len(options)]) if has_letters else []
    if len(names) >= _MOST or len(letters) >= _MOST:
        return Mentions(text, (), (len(text),))
    found, contradict = _join(text, letters, names)
    ends = [match.end() for match in _SENTENCE_ENDS.finditer(text) if not _is_within(match.start(), found)]
    ends.append(len(text) + 1)
    found = [dataclasses.replace(mention, sentence=bisect.bisect_right(ends, mention.start)) for mention in found]
    return Mentions(text, tuple(_judge(text, found, ends, len(options))), tuple(ends), contradict)


def _core(name: str) -> str:
    """Return a name without the ending of its plural."""
    folded = fold(name)
    return re.sub(r"(?<=[a-z]{4})(?<!s)s\Z|(?<=ss)es\Z", "", folded)


@functools.lru_cache(maxsize=256)
def _names(options: tuple[str, ...]) -> tuple[re.Pattern[str], dict[str, str]]:
    """Return the pattern of the options' names, the longest first, and the letter of each."""
    by_name = {_core(option): letter for option, letter in zip(options, string.ascii_uppercase, strict=False)}
    if len(by_name) < len(options):  # options that differ by their plural alone
        by_name = {fold(option): letter for option, letter in zip(options, string.ascii_uppercase, strict=False)}
    names = sorted(filter(None, by_name), key=len, reverse=True)
    written = "|".join(r"\s+".join(map(re.escape, name.split())) + "(?:(?<=ss)es|s)?" for name in names)
    return re.compile(rf"(?<!\w)(?:{written})(?!\w)", re.IGNORECASE), by_name


@functools.lru_cache(maxsize=32)
def _letter_pattern(letters: str) -> re.Pattern[str]:
    upper, lower = f"[{letters}]", f"[{letters.lower()}]"
    return re.compile(
        rf"[(\[{{]\s?({upper}|{lower})\s?[)\]}}]"
        rf"|\b(?i:options?|choices?|answers?|letters?)\s(?i:is\s)?\(?({upper}|{lower})\b[).]?(?![\w'\u2019])"
        rf"|(?<![\w'\u2019.-])({upper}|{lower}(?=[.:)]))(?![\w'\u2019])(?:[.):]+(?=\s|\Z|[A-Z*]))?"
    )


def _find_letters(text: str, letters: str) -> list[tuple[int, int, str]]:
    found = []
    for match in itertools.islice(_letter_pattern(letters).finditer(text), _MOST):
        bare = match[3] is not None and match.end() == match.end(3)
        letter = next(group for group in match.groups() if group).upper()
        behind = text[match.end() : match.end() + 30]
        if match[3] and _NO_LETTER_BEFORE.search(text[max(0, match.start() - 20) : match.start()]):
            continue
        if bare and len(letters) > _MOST_BARE:
            continue
        if bare and (_NO_LETTER_BEHIND.match(behind) or (letter in "AI" and _ARTICLE.match(behind))):
            continue
        found.append((match.start(), match.end(), letter))
    return found


_BEFORE_NAME = re.compile(r"[\s().:\]\-\u2013\u2014\"'*=]{0,6}")
_PREDICATE = re.compile(r"\s+(?:is|are|was|were|has|have|can|cannot|would|does|do)\b", re.IGNORECASE)
_BEFORE_LETTER = re.compile(r"[\s*\"']{0,3}")


def _join(
    text: str, letters: Sequence[tuple[int, int, str]], names: Sequence[tuple[int, int, str]]
) -> tuple[list[Mention], bool]:
    """Return letters and names in order, a letter and the name beside it as one; and whether such a pair disagrees."""
    found: list[Mention] = []
    contradict = False
    everything = sorted([(*name, False) for name in names] + [(*letter, True) for letter in letters])
    for start, end, letter, is_label in everything:
        last = found[-1] if found else None
        if last and start < last.end:
            continue
        between = text[last.end : start] if last else ""
        is_pair = last is not None and (
            (last.is_labelled and not is_label and _BEFORE_NAME.fullmatch(between))
            or (not last.is_labelled and is_label and text[start] in "([" and _BEFORE_LETTER.fullmatch(between))
        )
        begins = "." in text[start - len(between) - 1 : start] and _PREDICATE.match(text, end)  # "D. Mass is not seen"
        if is_pair and last is not None and "\n" not in between and not begins:
            contradict |= last.letter != letter
            found[-1] = Mention(last.letter, last.start, end, is_labelled=True)
        else:
            found.append(Mention(letter, start, end, is_labelled=is_label))
    return found, contradict


def _is_within(position: int, found: Sequence[Mention]) -> bool:
    place = bisect.bisect_right(found, position, key=lambda mention: mention.start) - 1
    return place >= 0 and position < found[place].end - 1


def _group(text: str, found: Sequence[Mention]) -> list[list[Mention]]:
    groups: list[list[Mention]] = []
    for mention in found:
        between = text[groups[-1][-1].end : mention.start][:50] if groups else ""
        joins = bool(groups) and _GLUE.fullmatch(between) and "\n\n" not in between
        if joins and groups[-1][-1].sentence != mention.sentence and not re.search(r"[\n;]", between):
            joins = False  # "C. Option A is wrong"
        if joins and all(mention.letter != other.letter for other in groups[-1]):
            groups[-1].append(mention)
        else:
            groups.append([mention])
    return groups


def _judge(text: str, found: Sequence[Mention], ends: Sequence[int], num_options: int) -> list[Mention]:
    """Return the mentions with what the text says of them; those of a group are denied, doubted and listed together."""
    judged = []
    groups = _group(text, found)
    for group, following in itertools.zip_longest(groups, groups[1:]):
        first, last = group[0], group[-1]
        start = max(ends[first.sentence - 1] if first.sentence else 0, first.start - _LONGEST_CLAUSE)
        end = min(ends[last.sentence], last.end + _LONGEST_CLAUSE, following[0].start if following else len(text))
        before = _behind_barrier(text[start : first.start])
        behind = _BARRIERS.split(text[last.end : end])[0] + ("~" if following else "")  # where it ends is no end
        letters = {mention.letter for mention in group}
        is_asked = text[: ends[last.sentence]].endswith("?")
        doubted = is_asked or _DOUBTED_BEFORE.search(_SEEN.sub("", before)) or _DOUBTED_BEHIND.match(behind)
        says: dict[str, Any] = {
            "is_denied": bool(_DENIED_BEFORE.search(before) or _DENIED_BEHIND.match(behind)),
            "is_doubted": bool(doubted) or (len(letters) > 1 and any(map(_ALTERNATIVE.search, _between(text, group)))),
            "is_listed": len(letters) == num_options,
            "is_aside": _ASIDE.search(before) is not None,
        }
        judged += [dataclasses.replace(mention, **says) for mention in group]
    return judged


def _behind_barrier(clause: str) -> str:
    """Return what stands behind the last word that ends a denial."""
    ends = [
        match.end()
        for match in _BARRIERS.finditer(clause)
        if not match["verb"] or not _DENIES_VERB.search(clause, 0, match.start())
    ]
    return clause[ends[-1] :] if ends else clause


def _between(text: str, group: Sequence[Mention]) -> list[str]:
    return [text[first.end : second.start] for first, second in itertools.pairwise(group)]


_HEAD = re.compile(
    r"[ \t]*[-*#>\u2022]*[ \t]*[*_]*(?i:option |choice )?[(\[]?([A-Z])(?:[)\]]?[*_]*[.):]|[)\]]|\b(?=[*_ ]))"
)
_INNER = re.compile(r"\s|[-*\u2022]\s|\Z")


def without_walk(text: str, num_options: int) -> str:
    """Return a text without the parts that go through the options line by line, each with what is said of it."""
    lines, letters = text.split("\n"), string.ascii_uppercase[:num_options]
    heads = [
        (place, match[1]) for place, line in enumerate(lines) if (match := _HEAD.match(line)) and match[1] in letters
    ]
    runs: list[list[tuple[int, str]]] = []
    for head in heads:
        if runs and head[1] > runs[-1][-1][1]:
            runs[-1].append(head)
        else:
            runs.append([head])
    dropped: set[int] = set()
    for place, _ in itertools.chain.from_iterable(run for run in runs if len(run) >= min(3, num_options)):
        inner = itertools.takewhile(lambda line: _INNER.match(line) and not _HEAD.match(line), lines[place + 1 :])
        dropped.update(range(place, place + 1 + sum(1 for _ in inner)))
    return "\n".join("" if place in dropped else line for place, line in enumerate(lines)) if dropped else text
