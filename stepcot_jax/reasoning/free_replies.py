"""Replies as models write them when no grammar is asked for: dialect "free", which is read and never written.

The answer is the last of: an answer tag, LaTeX's box, a JSON object's answer, a phrase such as "the answer is"; without
any of these, the text behind the thoughts. `read_free_answer` turns it into letters, yes or no. Everything up to the
last </think> is thoughts; a text that opens thoughts and does not close them has no answer.
"""

import itertools
import re

from stepcot_jax.box import Box
from stepcot_jax.chain import fold
from stepcot_jax.reasoning.replies import (
    MOST_BOXES,
    NUMBER,
    Reply,
    corners_of,
    find_named_boxes,
    normalise,
    read_answer,
    tidy,
)
from stepcot_jax.record import Record

UNCLOSED = "thoughts are opened and not closed"
NOTHING_SAID = "no answer and no box"

_LONGEST = 2**16
"""Of a longer text only the beginning and the end are read, where answers stand."""

_LONGEST_SENTENCE = 400
"""Characters before and behind an option's name that are searched for a denial."""
_MOST_NAMES = 500

_THOUGHTS = re.compile(
    r"< ?(?P<a>/?)(?:seed:)?(?:think(?:ing)?|thoughts?) ?>|\[(?P<b>/?)THINK\]|\u25c1(?P<c>/?)think\u25b7"
    r"|<unused9(?:4|(?P<d>5))>(?:thought\b)?|<\|(?:begin|(?P<e>end))_of_thought\|>"
    r"|<\|channel\|>(?:analysis|(?P<f>final))<\|message\|>",
    re.IGNORECASE,
)
"""Marks of thoughts: DeepSeek, Qwen and Seed; Magistral; Kimi; MedGemma; Sky-T1; gpt-oss. A closing one has a group."""
_WINDOW, _LONGEST_MARK = 2**12, 40  # characters of a text that are searched at a time, and of a mark of thoughts
_TURN_OF_MODEL = re.compile(
    r"<\|im_start\|>assistant\b|<start_of_turn>model\b|\[/INST\]|<\|assistant\|>|<\|start_header_id\|>assistant"
    r"<\|end_header_id\|>|(?:\A|\n)\s*assistant\s*(?::|\n)",
    re.IGNORECASE,
)
"""Where the model's turn begins in a text that repeats its prompt or the head of its turn."""
_TAGGED = tuple(
    re.compile(rf"[<\[]({names})[>\]]((?:[^<\[]|\[(?!/))*)", re.IGNORECASE)
    for names in ("final_answer|answer", "conclusion|con|response")
)
_ANY_TAG = re.compile(r"</?[A-Za-z_]{1,20}>|\[/?(?:answer|final_answer)\]", re.IGNORECASE)
_LATEX_BOX = re.compile(r"\\f?boxe?d?\s?\{")
_BESIDE = re.compile(r"(?:[\s,;&$]|\band\b|\\[()\[\]])*", re.IGNORECASE)
_LATEX_TEXT = re.compile(r"\\(?:text|mathrm|mathbf|textbf|mbox|rm)\s?\{([^{}]{0,500})\}")
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
    r"|\b(?:answers?|ans|choices?|options?)\b\.?"
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

_JSON_BOX = re.compile(
    r"[\"'](?:b?box(?:_2d)?|bounding_?box|coordinates)[\"']\s?:\s{0,9}\[\s{0,9}"
    + r"\s{0,9},\s{0,9}".join([NUMBER] * 4)
    + r"\s{0,9}\]"
)
_JSON_LABEL = re.compile(r"[\"'](?:label|name|sub_label)[\"']\s?:\s?[\"']([^\"']{0,200})[\"']")
_PAIRS = re.compile(rf"\(\s?{NUMBER}\s?,\s?{NUMBER}\s?\)\s?,\s?\(\s?{NUMBER}\s?,\s?{NUMBER}\s?\)")
_BRACKETS = re.compile(r"(?:\(\s?)?\[\s{0,9}" + r"(?:\s{0,9},\s{0,9}|\s{1,9})".join([NUMBER] * 4) + r"\s{0,9}\]")
_TOKEN = re.compile(r"<\|\w{1,20}\|>")
_FENCE = re.compile(r"```\w{0,10}")

_LABELLED = re.compile(
    r"(?:(?:the )?(?:correct |best |final )?(?:option|choice|answer)s? ?(?:is ?)?)?"
    r"(?:[(\[{] ?([A-Za-z]) ?[)\]}]|([A-Z])(?![A-Za-z'\u2019])|([a-z])(?=[.):]))",
    re.IGNORECASE,
)
_OTHERS = re.compile(
    r"\beither\b|\b[A-Z]\b[.)?]{0,2},? ?\(?(?:\b[Oo]r\b(?: \w+ly)?|/) ?\(?[A-Z]\b|\b[A-Z] ?/ ?[A-Z]\b"
    r"|(?:[,;]|\b(?:and|but)) (?:maybe|possibly|perhaps|potentially|probably) \(?[A-Z]\b"
)
_SEVERAL = re.compile(r"\(?[A-Z]\b[).]?(?:\s*(?:[,;&+]|\band\b)\s*\(?[A-Z]\b[).]?)+\W*")
_NO_ANSWER = re.compile(
    r"no,? (?:idea|answer|image|picture|x-?ray|radiograph|information|conclusion|comment|opinion|response|data|clue|way"
    r"|definit(?:iv)?e|conclusive|certain\w*|clear (?:answer|conclusion))\b(?! (?:evidence|sign|finding))"
)
_FOLLOWS = re.compile(
    r"[.):,;\-\u2013\u2014\n(]|\s(?:because|since|as|is|due|given|for|seems|appears|looks|fits|[-\u2013\u2014])\b|\s[-\u2013\u2014]|\s*\Z",
    re.IGNORECASE,
)
_DENIED_BEFORE = re.compile(
    r"\b(?:no|not|without|neither|nor|negative for|absence of|rather than|instead of|isn't|aren't|lacks?|excludes?"
    r"|rules? out)\b(?:(?!\b(?:but|however|although|instead)\b).)*\Z",
    re.DOTALL,
)
_DENIED_BEHIND = re.compile(
    r"[\w ]{0,30}?\b(?:not|absent|unlikely|excluded|ruled out|cannot|can't|isn't|aren't|less likely|incorrect|wrong)\b"
)
_HEDGED = re.compile(
    r"\b(?:or|either|vs|versus|possibly|maybe|perhaps|may|might|could|can|unclear|uncertain|unsure|whether|if|question\w*"
    r"|differential|between|un\w+)\b|/|\?"
)
_TURN = re.compile(r"\b(?:wait|actually|rather|correction|scratch|or|sorry|instead|mistaken?)\b")
_MARKED = re.compile(r"\((?-i:([A-Z]))\)|\b(?:option|choice) (?-i:([A-Z]))\b", re.IGNORECASE)
_LIST = re.compile(r"\s*(?:[,;&+\n]|\band\b)\s*", re.IGNORECASE)
_OPENING = re.compile(r"\A(?:>+|\d[.)])\s+(?=\S)")  # of a quote, or of a list with one item
_ALONE = re.compile(r"\A(?:only|just) (?=\(?[A-Z]\b)|(?<=[A-Z]) only\b|(?<=[A-Z]\)) only\b", re.IGNORECASE)
_LATEX_MATH = re.compile(r"\\[()\[\]]")
_LETTERS_FIRST = re.compile(
    r"(?:[Bb]oth |[Oo]ptions? |[Cc]hoices? |[Aa]nswers? |[Ll]etters? |[Tt]he )*"
    r"(\(?[A-Z]\)?(?:\.?\s?(?:,|;|&|\+|/|\band\b|\s|(?<=\))(?=\())\s?(?:and )?\(?[A-Z]\)?)+)"
    r"(?=\s*(?:[.,:;\n\-\u2013\u2014]|\b(?:are|because|since|is|as|were)\b|\Z))"
)
_ALL = re.compile(
    r"all (?:of (?:the above|them|these)|(?:the )?(?:options|choices|above)(?: are correct)?)\b", re.IGNORECASE
)


def read_free(text: str) -> Reply:
    """Read a reply of any form; its boxes keep the coordinates that they are written with."""
    if len(text) > _LONGEST:
        text = f"{text[: _LONGEST // 2]}\n{text[-_LONGEST // 2 :]}"
    text = normalise(text)
    if turns := list(_TURN_OF_MODEL.finditer(text)):
        text = text[turns[-1].end() :]
    thinking, text, is_open = split_thoughts(text)
    if is_open:
        return Reply("free", thinking=thinking, problems=(UNCLOSED,))
    boxes = tuple(_find_boxes(text))
    answer = _find_answer(text)
    problems = () if answer or boxes else (NOTHING_SAID,)
    return Reply("free", answer=answer or None, references=boxes or None, thinking=thinking, problems=problems)


def split_thoughts(text: str) -> tuple[str, str, bool]:
    """Return the thoughts, the text behind them, and whether the text ends within thoughts.

    >>> split_thoughts("It is wide.</think> Yes")
    ('It is wide.', ' Yes', False)
    """
    tag = find_last_thought(text)
    if tag is None:
        return "", text, False
    if not any(tag.groups()):
        return text[tag.end() :].strip(), "", True
    return _THOUGHTS.sub("", text[: tag.start()]).strip(), text[tag.end() :], False


def find_last_thought(text: str) -> re.Match[str] | None:
    """Return the last opening or closing tag of thoughts, searched from the end; a closing one has a group."""
    for start in range(max(0, len(text) - _WINDOW), -_WINDOW, -_WINDOW):
        tags = [*_THOUGHTS.finditer(text, max(0, start), max(0, start) + _WINDOW + _LONGEST_MARK)]
        if tags:
            return tags[-1]
    return None


def _find_boxes(text: str) -> list[Box]:
    written = [*_JSON_BOX.finditer(text)][:MOST_BOXES]
    if written:
        ends = [*(match.start() for match in written[1:]), len(text)]
        starts = [0, *(match.end() for match in written[:-1])]
        around = [
            (text[match.end() : end].partition("}")[0], text[start : match.start()].rpartition("{")[2])
            for match, start, end in zip(written, starts, ends, strict=True)
        ]
        return [Box(_label(*texts), corners_of(match)) for match, texts in zip(written, around, strict=True)]
    text = _TOKEN.sub(" ", text)
    pattern = _BRACKETS if _BRACKETS.search(text) else _PAIRS
    return [Box(box.label[:200], box.corners) for box, _, _ in find_named_boxes(text, pattern)]


def _label(*texts: str) -> str:
    """Return the label in the parts of a JSON object behind and before its box; "" for none."""
    return next((match[1] for match in map(_JSON_LABEL.search, texts) if match), "")


def _find_answer(text: str) -> str:
    tagged = _find_tagged(text)
    boxed = _read_latex_box(tagged or text)
    if tagged or boxed:
        return _ANY_TAG.sub(" ", _LATEX_TEXT.sub(r"\1", boxed or tagged)).strip()
    for pattern in _JSON_ANSWERS:
        if in_json := list(pattern.finditer(text)):
            return next(group for group in in_json[-1].groups() if group is not None).strip()
    plain = _ANY_TAG.sub(" ", _without_boxes(text)).strip()
    said = [plain[match.end() :].lstrip().partition("\n\n")[0] for match in _ANSWER_IS.finditer(plain)]
    said = [text for text in said if tidy(text[:200]) and not _NOT_SAID.match(text)]
    return said[-1] if said else plain


def _find_tagged(text: str) -> str:
    """Return the text of the last answer tag, or of the last conclusion where no answer is tagged; "" for none."""
    for pattern in _TAGGED:
        tagged = [match[2] for match in pattern.finditer(text) if match[2].strip()]
        if tagged:
            return tagged[-1]
    return ""


def _read_latex_box(text: str) -> str:
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
    return ", ".join(content for _, _, content in last)


def _read_braces(text: str, start: int) -> tuple[int, str]:
    """Return the end of the braces that open before `start`, and what they hold."""
    depth = 1
    for position in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return position + 1, text[start:position]
    return len(text), text[start:]


def _without_boxes(text: str) -> str:
    """Return a text without boxes and the JSON around them; "" if it holds nothing else."""
    if _JSON_BOX.search(text):
        first, last = min(i for i in map(text.find, "[{") if i >= 0), max(text.rfind("]"), text.rfind("}"))
        text = f"{text[:first]} {text[last + 1 :]}"
    text = _TOKEN.sub(" ", text)
    text = _FENCE.sub(" ", _PAIRS.sub(" ", _BRACKETS.sub(" ", text)))
    return text if re.search(r"\w", text) else ""


def read_free_answer(text: str, record: Record) -> str | tuple[str, ...] | None:
    """Return an answer in the form of `record.answer`; None where it names none, or several alternatives.

    >>> from stepcot_jax.record import Record
    >>> question = Record(
    ...     id="1", image="a.png", image_size=(64, 64), patient="7", kind="single", question="What is seen?",
    ...     options=("Mass", "Edema"), answer="B")
    >>> [read_free_answer(text, question) for text in ("Option B) Edema, as ...", "**Edema**", "A or B")]
    ['B', 'B', None]
    """
    plain = tidy(normalise(_LATEX_TEXT.sub(r"\1", text)).replace("**", "").replace("`", ""))
    plain = _LATEX_MATH.sub("", plain)
    plain = tidy(_ALONE.sub("", _OPENING.sub("", plain)).replace("[[", "[").replace("]]", "]"))
    if record.kind == "closed" and _NO_ANSWER.match(fold(plain)):
        return None
    usual = read_answer(plain, record)
    if usual is not None or record.kind == "open":
        return usual
    if record.kind == "closed":
        return _read_yes_or_no(plain)
    if record.kind == "single":
        return _read_one(plain, record)
    return _read_several(plain, record)


_BEFORE_YES = re.compile(
    r"\A(?:\(?[a-z][).:] ?|(?:definitely|certainly|clearly|absolutely|surely|indeed|well|okay|ok|so"
    r"|(?:based on|from|in|looking at) [\w -]{1,60}),? )(?=yes\b|no\b)"
)


def _read_yes_or_no(text: str) -> str | None:
    folded = fold(text)
    if folded in ("true", "false"):
        return "Yes" if folded == "true" else "No"
    folded = _BEFORE_YES.sub("", folded)
    first = re.match(r"(yes|no)\b(?= ?(?:[.,;:!(\-\u2013\u2014]|\Z|because|since|there|the|it|as))", folded)
    if first:
        other = "no" if first[1] == "yes" else "yes"
        turned = _TURN.search(folded)
        return None if turned and re.search(rf"\b{other}\b", folded[turned.start() :]) else first[1].capitalize()
    words = {word for word in ("yes", "no") if re.search(rf"\b{word}\b", folded)}
    last = re.search(r"(?:^|[.\n:;,] ?)(yes|no)[.!]?\Z", folded)
    return last[1].capitalize() if last and words == {last[1]} else None


def _read_one(text: str, record: Record) -> str | None:
    if _OTHERS.search(text) or _SEVERAL.fullmatch(text):
        return None
    options = {fold(option): letter for letter, option in zip(record.letters, record.options, strict=True)}
    listed = [_own_letter(piece, options) for piece in re.split(r"[\n;,]", text)]
    if None not in listed and len(set(listed)) > 1:
        return None
    labelled = _LABELLED.match(text)
    if labelled:
        letter = next(group for group in labelled.groups() if group).upper()
        rest = text[labelled.end() :]
        stated = tidy(rest.lstrip(" .):,-\u2013\u2014\n(").partition("\n")[0])
        named = options.get(fold(stated))
        is_marked = labelled[1] is not None or len(labelled[0]) > 1 or _FOLLOWS.match(rest)
        if letter in record.letters and (is_marked or named == letter):
            return letter if named in (None, letter) else None
    marked = _read_marked(text, record)
    return _read_words(fold(text), options) or (marked[0] if len(marked) == 1 else None)


def _own_letter(piece: str, options: dict[str, str]) -> str | None:
    """Return the letter of a piece that is an option, with or without its letter; None for any other text."""
    return options.get(fold(tidy(re.sub(r"\A\W*[A-Z][).:]\s*", "", piece))))


def _read_words(folded: str, options: dict[str, str]) -> str | None:
    """Return the letter of the one option that a text states; None if it denies or doubts that one, or states more."""
    names = "|".join(map(re.escape, sorted(filter(None, options), key=len, reverse=True)))
    stated = set()
    for match in itertools.islice(re.finditer(rf"(?<!\w)(?:{names})(?!\w)", folded), _MOST_NAMES):
        start, end, letter = *match.span(), options[match[0]]
        before = re.split(r"[.;\n]", folded[max(0, start - _LONGEST_SENTENCE) : start])[-1]
        behind = re.split(r"[.;\n]", folded[end : end + _LONGEST_SENTENCE])[0]
        if _DENIED_BEFORE.search(before) or _DENIED_BEHIND.match(behind):
            continue
        if _HEDGED.search(f"{before} {behind.split(',')[0]}"):
            return None
        stated.add(letter)
    return stated.pop() if len(stated) == 1 else None


def _read_marked(text: str, record: Record) -> tuple[str, ...]:
    """Return the letters that stand in brackets or after "option", in order; none if one is of no option."""
    letters = {match[1] or match[2] for match in _MARKED.finditer(text)}
    return tuple(sorted(letters)) if letters <= set(record.letters) else ()


def _read_several(text: str, record: Record) -> tuple[str, ...] | None:
    if _OTHERS.search(text) and not re.search(r"[A-Z] ?/ ?[A-Z]", text):
        return None
    if _ALL.match(text):
        return tuple(record.letters)
    joined = _LETTERS_FIRST.match(text)
    if joined:
        letters = set(re.findall(r"\b[A-Z]\b", joined[1]))
        return tuple(sorted(letters)) if letters <= set(record.letters) else None
    pieces = [piece for piece in re.split(r"\n+|;", text) if piece.strip()]
    by_line = [_read_one(tidy(piece.strip(" -*\u2022\t")), record) for piece in pieces]
    if len(pieces) > 1 and None not in by_line:
        return tuple(sorted({letter for letter in by_line if letter}))
    by_piece = [_read_one(tidy(piece), record) for piece in _LIST.split(text) if piece.strip()]
    if by_piece and None not in by_piece:
        return tuple(sorted({letter for letter in by_piece if letter}))
    if marked := _read_marked(text, record):
        return marked
    alone = _read_one(text, record)
    return None if alone is None else (alone,)
