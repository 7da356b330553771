"""Written answers, read by the kind of question: one reader for the answers of every dialect.

A text may wrap its answer (LaTeX's box, JSON, a list, "the answer is"), name options by letter or by name, deny or
doubt some, and list them all. A choice is what the text begins with, what its conclusion names, or the one option that
it states.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from stepcot_jax.chain import NOT_ANNOTATED, Step, fold
from stepcot_jax.host.errors import BadInput
from stepcot_jax.reasoning.mentions import Mention, Mentions, find_mentions, without_walk
from stepcot_jax.reasoning.replies import normalise, tidy
from stepcot_jax.record import Record

LONGEST = 2**16
"""Longer texts are not read as a choice, which would take much memory."""


def read_answer(text: str, record: Record) -> str | tuple[str, ...] | None:
    r"""Return a written answer in the form of `record.answer`, one in words folded; None if unreadable.

    None stands for a text that names no option, several where one is asked for, or one that it denies or doubts.

    >>> question = Record(
    ...     id="1", image="a.png", image_size=(64, 64), patient="7", kind="single", question="What is seen?",
    ...     options=("Mass", "Edema"), answer="B")
    >>> [read_answer(text, question) for text in ("Option B) Edema, as ...", "\\boxed{B}", "no mass, so B", "A or B")]
    ['B', 'B', 'B', None]
    """
    if record.is_answered_in_words:
        return fold(open_text(text)) or fold(text) or None
    return find_answer((text,), record)


def find_answer(texts: Iterable[str], record: Record) -> str | tuple[str, ...] | None:
    """Return the answer to a question of options, or of yes and no, of the first text that names one."""
    for text in texts:
        if len(text) > LONGEST:
            continue
        as_written = _read_exactly(text, record)
        if as_written is not None:
            return as_written
        plain = _only_ticked(normalise(text))
        if (told := _read_verdicts(plain, record)) is not None:
            return told or None
        rest = without_walk(plain, len(record.options)) if record.options else plain
        for whole in dict.fromkeys((rest, plain) if record.kind == "multi" else (rest,)):
            for stated in map(spell_out, _find_stated(whole)):
                if names_option(stated, record):
                    answer = _read_plain(stated, record)
                    if answer is not None or record.kind != "multi" or whole is plain:
                        return answer
    return None


_TICKED = re.compile(r"\[[xX]\]|[\u2611\u2705\u2713\u2714]")
_UNTICKED = re.compile(r"\[ \]|[\u2610\u2612\u2717\u2718\u274c]")
_VERDICT = r"(true|false|yes|no|\d*\.?\d+\s?%?)"
_VERDICTS = (
    re.compile(rf"(?<![\w\"'])[\"'(]?([A-Z])[\"')]?\s?[:=]\s?{_VERDICT}(?![\w.])", re.IGNORECASE),
    re.compile(rf"(?m)^\|\s?\(?([A-Z])\)?[.:]?(?:\s[^|\n]*)?\|(?:[^|\n]*\|)*?\s?{_VERDICT}\s?\|\s*$", re.IGNORECASE),
)
"""An option's letter and its verdict or share: in JSON, in a line, or in a row of a Markdown table."""


def _only_ticked(text: str) -> str:
    """Return a list of ticked and other options without the others; ticks in a line as "yes" and "no"."""
    lines = text.split("\n")
    begins = [_UNTICKED.match(line.lstrip("-* \t")) is not None for line in lines]
    if any(begins) and any(map(_TICKED.search, lines)):
        lines = [_TICKED.sub(" ", line) for line, is_other in zip(lines, begins, strict=True) if not is_other]
    return _UNTICKED.sub(": no, ", _TICKED.sub(": yes, ", "\n".join(lines)))


def _read_verdicts(text: str, record: Record) -> str | tuple[str, ...] | None:
    """Return the options that a text calls true where it judges each, () where it does not say one; None elsewhere."""
    for pattern in _VERDICTS:
        verdicts = {letter: verdict.lower() for letter, verdict in pattern.findall(text) if letter in record.letters}
        if len(verdicts) < max(2, len(record.options) - 1):
            continue
        if not set(verdicts.values()) <= {"true", "false", "yes", "no"}:
            return ()  # shares: which of them counts is not said
        chosen = tuple(sorted(letter for letter, verdict in verdicts.items() if verdict in ("true", "yes")))
        if chosen:
            return chosen if record.kind == "multi" else chosen[0] if len(chosen) == 1 else ()
    return None


def is_choice_alone(text: str, record: Record) -> bool:
    """Return whether a text is an option's letter or name, or several, and nothing else."""
    return record.kind in ("single", "multi") and _read_exactly(text, record) is not None


def open_text(text: str) -> str:
    """Return an open answer without what wraps it: a box of LaTeX, JSON, quotes, "The answer is"."""
    plain = normalise(text)
    for wrapped in (read_latex_box(plain), read_json_answer(plain)):
        if wrapped:
            return tidy(wrapped)
    said = _ANSWER_IS.match(plain)
    return tidy(plain[said.end() :]) if said and tidy(plain[said.end() :]) else tidy(plain)


def names_option(text: str, record: Record) -> bool:
    """Return whether a text names an option of its question, also one that it denies or doubts."""
    if record.kind == "closed":
        return _ANY_YES_NO.search(fold(text)) is not None or _read_assertion(text, record.question) is not None
    if _read_exactly(text, record) is not None or _ALL.match(text) or _mentions(text, record).found:
        return True
    return record.kind == "single" and _read_plain(text, record) is not None


def spell_out(text: str) -> str:
    """Return an answer without Markdown, LaTeX, the mark of a list or quote, and "only" around it."""
    plain = tidy(_HTML.sub(" ", _LATEX_TEXT.sub(r"\1", text)).replace("**", "").replace("`", ""))
    plain = _LATEX_MATH.sub("", plain)
    return tidy(_ALONE.sub("", _OPENING.sub("", plain)).replace("[[", "[").replace("]]", "]"))


# Where in a text an answer is stated.


_MOST_SAID = 64
_LATEX_BOX = re.compile(r"\\f?boxe?d?\s?\{")
_BESIDE = re.compile(r"(?:[\s,;&$]|\band\b|\\[()\[\]])*", re.IGNORECASE)
_LATEX_TEXT = re.compile(r"\\(?:text|mathrm|mathbf|textbf|mbox|rm)\s?\{([^{}]{0,500})\}")
_HTML = re.compile(r"</?(?:b|i|em|strong|u|br|p|span|div)\s?/?>", re.IGNORECASE)
_LATEX_MATH = re.compile(r"\\[()\[\]]")
_OPENING = re.compile(r"\A(?:>+|\d[.)]|[-\u2022+])\s+(?=\S)")  # of a quote, or of a list with one item
_ALONE = re.compile(r"\A(?:only|just) (?=\(?[A-Z]\b)|(?<=[A-Z]) only\b|(?<=[A-Z]\)) only\b", re.IGNORECASE)
_JSON_ANSWERS = tuple(
    re.compile(
        rf"[\"'](?:{keys})[\"']\s?:\s?(?:\{{\s*[\"']\w{{1,20}}[\"']\s?:\s?)?"
        r"(?:\"((?:[^\"\\]|\\.)*)\"|'([^']*)'|\[([^\[\]]{0,500})\]|(true|false)\b)",
        re.IGNORECASE,
    )
    for keys in (
        r"(?:(?:final|correct|predicted|model)[_ ]?)?answers?",
        r"(?:selected[_ ]?|predicted[_ ]?)?(?:choices?|options?)|predictions?|responses?|results?",
    )
)
_LINK = (
    r"(?:(?:is|are|was|(?:appears?|seems?) to be|(?:would|should|must|will)(?: \w{1,12}){0,2} be)(?!\w)"
    r"|:|=|-+>?|\u2192|\u2013|\u2014)"
)
_ANSWER_IS = re.compile(
    r"(?m:^)[#*_ ]{0,6}(?:(?:final|correct|my|the) )?answer[*_ ]{0,3}:?[*_ ]{0,3}\n\s{0,4}"
    r"|(?:\u7b54\u6848|\u6545?\u9009)(?:\u662f|\u4e3a|\u9009|\u9879)?[:*_ ]{0,3}"
    r"|(?:\b(?:the|my) )?(?:\b(?:best|correct|final|right|most likely) )?"
    r"(?<!second )(?<!other )(?<!wrong )(?<!least likely )(?<!incorrect )\b(?:answers?|ans|choice|option"
    r"|(?<=correct )(?:choices|options)|(?<=right )(?:choices|options)|(?<=best )(?:choices|options))\b\.?"
    r"(?:[*_\"]{0,3}\s?(?:to|for|in|of|given|here|choice|option|letter)\b[^.\n:]{0,80}?)?"
    rf"[*_\"]{{0,3}}\s?{_LINK}[*_:]{{0,3}}\s{{0,4}}"
    r"|\bI(?: would|'d| will|'ll)? (?:choose|select|pick|answer|say|go with)\b(?: option| choice)?[ :]{0,2}"
    r"|\b(?:it(?:'s| is| would be)|that(?:'s| is| would be))\s(?=(?-i:\(?[A-Z]\)?[.]?\s{0,4}\Z))"
    r"|\b(?:so|therefore|thus|hence|in conclusion|overall)\b[ ,:]{0,2}"
    r"(?=(?-i:\(?[A-Z]\)?[.]?\s{0,4}\Z)|(?:yes|no)\b)",
    re.IGNORECASE,
)
_NOT_SAID = re.compile(
    r"(?:in)?correct\b|wrong\b|right\b|based\b|because\b|given\b|as follows\b|the one\b", re.IGNORECASE
)


def _find_stated(text: str) -> Iterator[str]:
    """Yield the parts of a text that state its answer, the most explicit first, and the whole text last."""
    yield from filter(None, (read_latex_box(text), read_json_answer(text)))
    yield from find_said(text)
    yield text


def find_said(text: str) -> list[str]:
    """Return what follows "the answer is" and the like, to the end of the paragraph, the last first."""
    said = [text[match.end() :].lstrip().partition("\n\n")[0] for match in _ANSWER_IS.finditer(text)]
    return [part for part in said[-_MOST_SAID:][::-1] if tidy(part[:200]) and not _NOT_SAID.match(part)]


def read_json_answer(text: str) -> str:
    """Return the answer of the last JSON object that has one; "" for none."""
    for pattern in _JSON_ANSWERS:
        if in_json := list(pattern.finditer(text)):
            return next(group for group in in_json[-1].groups() if group is not None).strip()
    return ""


def read_latex_box(text: str) -> str:
    """Return the content of the last box, or of several that stand side by side; "" for none."""
    boxes: list[tuple[int, int, str]] = []
    for opening in _LATEX_BOX.finditer(text):
        if not boxes or opening.start() >= boxes[-1][1]:
            boxes.append((opening.start(), *_read_braces(text, opening.end())))
    last = boxes[-1:]
    for box in boxes[-2::-1]:
        if not _BESIDE.fullmatch(text, box[1], last[0][0]):
            break
        last.insert(0, box)
    return _LATEX_TEXT.sub(r"\1", ", ".join(content for _, _, content in last))


def read_last_box(text: str) -> str:
    """Return the content of a closed box that ends the text; "" for none."""
    openings = list(_LATEX_BOX.finditer(text))
    if not openings or text[-1:] != "}":
        return ""
    end, content = _read_braces(text, openings[-1].end())
    return _LATEX_TEXT.sub(r"\1", content) if end == len(text) else ""


def _read_braces(text: str, start: int) -> tuple[int, str]:
    """Return the end of the braces that open before `start`, and what they hold."""
    depth = 1
    for position in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return position + 1, text[start:position]
    return len(text), text[start:]


# Texts that are an answer and nothing else.


_LETTER = re.compile(r"[(\[]?([A-Za-z])[.):\]]*")
_BETWEEN_LETTERS = re.compile(r"(?:[\s,;&+/'\"]|\band\b)+", re.IGNORECASE)
_BETWEEN_TEXTS = (
    re.compile(r"[;\n]"),
    re.compile(r"[;\n,]\s*(?=\(?[A-Za-z][.):])"),
    re.compile(r"[;\n,]"),
    re.compile(r"[;\n,]|\band\b", re.IGNORECASE),
)
_QUOTED = re.compile(r"\A\s*[\[(]\s*(?:'[^'\n]*'|\"[^\"\n]*\")(?:\s*,\s*(?:'[^'\n]*'|\"[^\"\n]*\"))*\s*,?\s*[\])]\s*\Z")
_QUOTE = re.compile(r"'([^'\n]*)'|\"([^\"\n]*)\"")


def _read_exactly(text: str, record: Record) -> str | tuple[str, ...] | None:
    """Return the answer of a text that consists of letters or of options' names, however they are wrapped."""
    if record.kind == "closed":
        return _YES_NO.get(fold(tidy(normalise(text))))
    step = Step("choices", record.question, record.options)
    letters = _read_list(text, step, only_one=record.kind == "single")
    if letters is None:
        letters = _read_list(tidy(normalise(text)), step, only_one=record.kind == "single")
    if record.kind == "single":
        return letters[0] if letters is not None and len(letters) == 1 else None
    return letters


def _read_list(text: str, step: Step, *, only_one: bool) -> tuple[str, ...] | None:
    """Return the letters, sorted, of a text that lists options and says nothing else; None for any other text."""
    if _QUOTED.match(text):
        pieces = [first or second for first, second in _QUOTE.findall(text)]
        return _read_pieces(pieces, step)
    if (alone := _read_pieces([text], step)) or only_one:
        return alone
    if letters := _read_letters(text, step):
        return letters
    return next(filter(None, (_read_pieces(between.split(text), step) for between in _BETWEEN_TEXTS)), None)


def _read_letters(text: str, step: Step) -> tuple[str, ...] | None:
    letters = step_letters(step)
    if len(text) > 1 and len(set(text)) == len(text) and set(text) <= set(letters):  # "ABD"
        return tuple(sorted(text))
    matches = [_LETTER.fullmatch(piece) for piece in _BETWEEN_LETTERS.split(text) if piece]
    named = {match[1].upper() for match in matches if match}
    return tuple(sorted(named)) if named and None not in matches and named <= set(letters) else None


def _read_pieces(pieces: Sequence[str], step: Step) -> tuple[str, ...] | None:
    """Return the letters of pieces that each are one option; None if one is not, or none is there."""
    named: set[str] = set()
    for piece in filter(str.strip, pieces):
        for form in (piece, tidy(piece)):
            try:
                label = step.read_answer(form)
            except BadInput:
                continue
            break
        else:
            return None
        if label == NOT_ANNOTATED:
            return None
        named.add(step_letters(step)[label])
    return tuple(sorted(named)) or None


def step_letters(step: Step) -> str:
    """Return the letters of a step's options."""
    return "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[: step.num_answers]


# Texts that say more than the answer.


_ALL = re.compile(
    r"all (?:but|except|of (?:the above|them|these)|(?:the )?(?:options|choices|above)(?: are correct)?)\b",
    re.IGNORECASE,
)
_EXCEPT = re.compile(r"all\b[\w ]{0,40}?\b(?:but|except|other than|excluding)\b", re.IGNORECASE)
_OVERRULES = re.compile(
    r"\b(?:therefore|thus|hence|so|in conclusion|conclude|final(?:ly)?|answer|overall|leav(?:es|ing)|in summary"
    r"|actually|correction)\b(?<!least likely answer)(?<!incorrect answer)",
    re.IGNORECASE,
)
"""Words of a sentence that states the answer, whatever stands before it."""
_CONTRASTS = re.compile(r"\b(?:but|yet|however)\b", re.IGNORECASE)
_CONCLUDES = re.compile(
    r"\b(?:conclu\w+|best|correct|most|options?|choices?|points?|suggest\w*|indicat\w*|consistent|diagnos\w+"
    r"|(?:finding|picture|image) (?:is|shows)|main|primary|dominant|fits?|match\w*|demonstrates?|represents?"
    r"|(?:this|that|it|these) (?:is|are|was)|it's|typical|characteristic|speaks? for|classif\w+|confident"
    r"|I (?:would|will|see|think|choose))\b",
    re.IGNORECASE,
)
_MORE = re.compile(r"\b(?:also|additional(?:ly)?|as well|another|too|moreover|incidental\w*)\b", re.IGNORECASE)


def _read_plain(text: str, record: Record) -> str | tuple[str, ...] | None:
    exactly = _read_exactly(text, record)
    if exactly is not None:
        return exactly
    if record.kind == "closed":
        return _read_yes_or_no(text) or _read_assertion(text, record.question)
    if all(_LETTER.fullmatch(piece) for piece in _BETWEEN_LETTERS.split(text) if piece):
        return None  # letters alone, too many or of no option
    decided = {fold(option): letter for option, letter in zip(record.options, record.letters, strict=True)}
    if record.kind == "single" and set(decided) == {"yes", "no"}:
        word = _read_yes_or_no(text)
        if word is not None:
            return decided[fold(word)]
    mentions = _mentions(text, record)
    if record.kind == "multi":
        return _read_several(text, mentions, record)
    word = _read_assertion(text, record.question) if set(decided) == {"yes", "no"} else None
    return _read_one(mentions) or (decided[fold(word)] if word else _read_set(text, record))


def _mentions(text: str, record: Record) -> Mentions:
    return find_mentions(text, tuple(record.options))


def _read_one(mentions: Mentions) -> str | None:
    """Return the option that a text begins with, unless a conclusion overrules it; else that of its last sentence."""
    if mentions.contradict:
        return None
    stated = [mention for mention in mentions.found if mention.is_stated]
    stated = [mention for mention in stated if not mention.is_aside] or stated
    if not stated:
        return None
    sure = {mention.letter for mention in stated if not mention.is_doubted}
    lead = _only([mention for mention in mentions.leading_group() if mention.is_stated])
    if lead and not mentions.leading_group()[0].is_labelled:  # "cardiomegaly with edema"
        beside = {each.letter for each in stated if each.sentence == 0 and not each.is_doubted}
        lead = lead if beside == {lead} else None
    last = [mention for mention in stated if mention.sentence == stated[-1].sentence]
    sentence = mentions.sentence_of(last[0])
    concluded = None if _MORE.search(sentence) else _only(mentions.behind_cue(_OVERRULES, last))
    if lead and not concluded and len(sure) > 2 and not mentions.leading_group()[0].is_labelled:
        return None  # one of three or more that are stated alike
    if lead:
        return concluded or lead
    end = concluded or _only(last) or _only(mentions.behind_cue(_CONTRASTS, last))
    if end and _only([mention for mention in mentions.group_of(last[-1]) if mention.is_stated]) is None:
        end = None
    is_said = concluded or sure == {end} or last[-1].is_labelled or _CONCLUDES.search(sentence)
    if end and is_said and not _MORE.search(sentence):
        return end
    return sure.pop() if len(sure) == 1 and {mention.letter for mention in stated} == sure else None


_SUBJECT = re.compile(
    r"\b(?:does|do|is|are|can)\b.{1,60}?\b(?:show|have|there|contain|demonstrate|reveal|indicate|see)\b"
    r"(?:\s+(?:an?|any|the|evidence of|(?:a )?signs? of))*\s+([\w -]{3,60}?)"
    r"(?:\s+(?:in|on|within)\b[^?]{1,60})?\s*(?:\?|\Z)",
    re.IGNORECASE,
)


_UNABLE = re.compile(
    r"\b(?:sorry|unable|without the|(?:cannot|can't|can not|not possible to|impossible to|difficult to)"
    r" (?:\w+ )?(?:determine|tell|say|confirm|identify|assess|view|see|diagnose|provide|answer))\b",
    re.IGNORECASE,
)


def _read_assertion(text: str, question: str) -> str | None:
    """Return "Yes" where a text states what the question asks for, "No" where it denies it, else None."""
    subject = _SUBJECT.search(question)
    found = find_mentions(text, (subject[1],), has_letters=False).found if subject else ()
    said = {not mention.is_denied for mention in found if not mention.is_aside}
    if len(said) != 1 or _UNABLE.search(text) or any(mention.is_doubted and not mention.is_denied for mention in found):
        return None
    return "Yes" if said.pop() else "No"


def _read_set(text: str, record: Record) -> str | None:
    """Return the one option that lists exactly the findings that a text states, of options that are lists."""
    sets = [
        frozenset(fold(name) for name in re.split(r",|\band\b", option) if name.strip()) for option in record.options
    ]
    names = tuple(sorted(frozenset().union(*sets)))
    if min(map(len, sets)) < 2 or len(set(sets)) < len(sets) or len(names) > _MOST_NAMES:
        return None
    mentions = find_mentions(text, names, has_letters=False)
    stated = {
        names[ord(mention.letter) - ord("A")]
        for mention in mentions.found
        if mention.is_stated and not mention.is_doubted
    }
    return next((letter for letter, names in zip(record.letters, sets, strict=True) if names == stated), None)


_MOST_NAMES = 26


def _only(mentions: Sequence[Mention]) -> str | None:
    """Return the letter of mentions of one option; None if one is doubted, or there are several or none."""
    letters = {mention.letter for mention in mentions}
    return letters.pop() if len(letters) == 1 and not any(mention.is_doubted for mention in mentions) else None


def _read_several(text: str, mentions: Mentions, record: Record) -> tuple[str, ...] | None:
    """Return the options of the list that a text begins with, else all that it states."""
    if _ALL.match(text):
        left = {mention.letter for mention in mentions.found} if _EXCEPT.match(text) else set()
        return tuple(letter for letter in record.letters if letter not in left) or None
    if mentions.contradict:
        return None
    listed = mentions.leading_lines()
    is_list = len(listed) > 1 or any(mention.is_labelled for mention in listed)
    chosen = (listed if is_list else None) or mentions.concluding(_OVERRULES) or mentions.found
    chosen = [mention for mention in chosen if not mention.is_denied]
    if any(mention.is_doubted for mention in chosen):
        return None
    letters = tuple(sorted({mention.letter for mention in chosen}))
    told = sum(mention.end - mention.start for mention in mentions.found)
    goes_through = len(letters) == len(record.options) > 3 and len(text) > 3 * told  # all, each with what is said of it
    return None if goes_through else letters or None


_YES_NO: Mapping[str, str] = {
    **dict.fromkeys(["yes", "y", "yeah", "yep", "yup", "true", "affirmative", "present", "oui", "ja", "sí"], "Yes"),
    **dict.fromkeys(["no", "n", "nope", "nah", "false", "absent", "non", "nein", "нет"], "No"),
    **dict.fromkeys(["是", "是的", "有", "对", "да"], "Yes"),
    **dict.fromkeys(["否", "不是", "没有", "无", "不"], "No"),
}
_ANY_YES_NO = re.compile(r"(?<!\w)(?:" + "|".join(sorted(_YES_NO, key=len, reverse=True)) + r")(?!\w)")
_NO_ANSWER = re.compile(
    r"no,? (?:idea|answer|image|picture|x-?ray|radiograph|information|conclusion|comment|opinion|response|data|clue|way"
    r"|definit(?:iv)?e|conclusive|certain\w*|clear (?:answer|conclusion))\b(?! (?:evidence|sign|finding))"
)
_BEFORE_YES = re.compile(
    r"\A(?:(?:\(?[a-z][).:]|definitely|certainly|clearly|absolutely|surely|indeed|well|okay|ok|so|no doubt:?"
    r"|(?:most )?likely|probably|(?:based on|from|in|looking at) [\w -]{1,60}),? ?)+(?=(?:yes|no|true|false)\b)"
)
_YES_LINE = re.compile(r"(?m)^\W*(?:option )?(?:\(?[a-z]\)?[.):])?\W*(yes|no)\W*$", re.IGNORECASE)
_TURN = re.compile(r"\b(?:wait|actually|rather|correction|scratch|or|sorry|instead|mistaken?|maybe|perhaps)\b")
_BOTH = re.compile(r"\W*(?:yes\W+(?:(?:or|and)\W+)?no|no\W+(?:(?:or|and)\W+)?yes)\W*")
_DOUBTED = re.compile(r"\b(?:yes or no|yes/no|impossible|cannot|can't|unable|unclear|either)\b")


def _read_yes_or_no(text: str) -> str | None:
    folded = fold(text)
    if _NO_ANSWER.match(folded):
        return None
    if _BOTH.fullmatch(folded):
        return None
    folded = _BEFORE_YES.sub("", folded)
    first = re.match(r"(yes|no)\b(?= ?(?:[.,;:!(\-\u2013\u2014]|\Z|because|since|there|the|it|as))", folded)
    if verdict := re.match(r"(true|false)\b", folded):
        return _YES_NO[verdict[1]]
    if not first and len(lines := set(map(str.capitalize, _YES_LINE.findall(text)))) == 1:
        return lines.pop()
    if first:
        other = "no" if first[1] == "yes" else "yes"
        turned = _TURN.search(folded)
        return None if turned and re.search(rf"\b{other}\b", folded[turned.start() :]) else first[1].capitalize()
    decisions = re.findall(r"\b(?:yes|no)\b", folded)
    last = re.search(r"(?:^|[.\n:;,] ?)(yes|no)[.!]?\Z", folded)
    begins = re.match(r"\W*(yes|no)\b", folded)
    if (last or (begins and not _CONTRASTS.search(folded))) and len(set(decisions)) == 1:
        return decisions[0].capitalize()
    sentence = re.split(r"[.;\n!] ", folded)[-1]
    found = re.findall(r"\b(yes|no)\b", sentence)
    is_end = re.search(r"\b(?:so|therefore|thus|hence|answer|conclusion)\b[^.]*?\b(yes|no)\b(?:[.!,]|\Z)", sentence)
    return found[0].capitalize() if is_end and len(set(found)) == 1 and not _DOUBTED.search(sentence) else None
