"""Replies as models write them when no grammar is asked for: dialect "free", which is read and never written.

The answer is the last of: an answer tag, LaTeX's box, a JSON object's answer, a phrase such as "the answer is"; without
any of these, the text behind the thoughts (`reasoning.answers` reads it). Everything up to the last </think> is
thoughts. Where nothing stands behind them, or they never close, the answer is what they end with: a closed answer tag,
a closed box of LaTeX, or a last line "Answer: ..". Calls of tools and what tools answer hold neither answers nor boxes.
"""

import re

from stepcot_jax.reasoning.answers import find_said, read_json_answer, read_last_box, read_latex_box
from stepcot_jax.reasoning.box_texts import find_boxes, without_boxes
from stepcot_jax.reasoning.replies import Reply, normalise

UNCLOSED = "thoughts are opened and not closed"
NOTHING_SAID = "no answer and no box"

_LONGEST = 2**16
"""Of a longer text only the beginning and the end are read, where answers stand."""

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
    r"<\|end_header_id\|>|(?:\A|\n)[^\S\n]*assistant\s*(?::|\n)",
    re.IGNORECASE,
)
"""Where the model's turn begins in a text that repeats its prompt or the head of its turn."""
_MOST_TAGS = 64
_NAMES = "final_answer|answer|ans"
_TAGGED = re.compile(
    rf"(?:<(?:{_NAMES})(?:\s[^<>]{{0,100}})?>|\[(?:{_NAMES})\])"
    rf"((?:[^<\[]|\[(?!/)|<(?!/?[a-z_]))*)(</(?:{_NAMES})>|\[/(?:{_NAMES})\])?",
    re.IGNORECASE,
)
_CONCLUSIONS = re.compile(r"[<\[](?:conclusion|con|response)[>\]]((?:[^<\[]|\[(?!/))*)", re.IGNORECASE)
_ANY_TAG = re.compile(rf"</?[A-Za-z_]{{1,20}}(?:\s[^<>]{{0,100}})?>|\[/?(?:{_NAMES})\]", re.IGNORECASE)
_LAST_LINE = re.compile(
    r"(?:\A|\n)[^\n:]{0,80}\banswers?(?: is)?[*_ ]{0,3}:[*_\s]{0,5}((?:\(?[A-Za-z][.):] ?)?[^\n.!?]{1,200})[.!?]?\Z",
    re.IGNORECASE,
)
_LONE_END = re.compile(rf"(?:\A|\n)([^\n]+)</(?:{_NAMES})>\Z", re.IGNORECASE)
_TOOL = "(?:tool|function)_(?:calls?|responses?|results?|use|code|outputs?)|observation|python|execute"
_TOOL_CALLS = r"<\|tool[_\u2581]calls?(?:[_\u2581]section)?[_\u2581]"
_TOOLS = re.compile(
    rf"<\|?(?P<name>{_TOOL})(?:\s[^<>]{{0,100}})?\|?>(?:(?!<\|?/?(?P=name)\|?>).)*(?:<\|?/(?P=name)\|?>|\Z)"
    rf"|{_TOOL_CALLS}(?:begin|start)\|>.*?(?:{_TOOL_CALLS}end\|>|\Z)|<function=[^<>]{{1,100}}>.*?(?:</function>|\Z)"
    r"|\[TOOL_CALLS\][^\n]*|(?m:^)\s{0,9}(?:Action(?: Input)?|Observation)\s?:[^\n]*"
    r"|\u273f(?:FUNCTION|ARGS|RESULT)\u273f[^\n]*",
    re.IGNORECASE | re.DOTALL,
)
"""Calls of tools and their answers: tags of Qwen and Hermes, tokens of DeepSeek, Kimi and Mistral, lines of ReAct."""


def read_free(text: str) -> Reply:
    """Read a reply of any form; its boxes keep the coordinates that they are written with."""
    if len(text) > _LONGEST:
        text = f"{text[: _LONGEST // 2]}\n{text[-_LONGEST // 2 :]}"
    text = normalise(text)
    if turns := list(_TURN_OF_MODEL.finditer(text)):
        text = text[turns[-1].end() :]
    thinking, said, is_open = split_thoughts(_TOOLS.sub(" ", text))
    if is_open or not said.strip():
        (ending, behind), problem = find_ending(thinking), UNCLOSED if is_open else NOTHING_SAID
        problems = () if ending else (problem,)
        boxes = tuple(find_boxes(behind))
        return Reply("free", answer=ending or None, references=boxes or None, thinking=thinking, problems=problems)
    boxes, parts, said_last = tuple(find_boxes(said)), _find_parts(said), find_said(_plain(said))
    answer = parts[0] if len(parts) > 1 or not said_last else said_last[0]
    problems = () if answer or boxes else (NOTHING_SAID,)
    return Reply(
        "free", answer=answer or None, parts=parts, references=boxes or None, thinking=thinking, problems=problems
    )


def find_ending(thinking: str) -> tuple[str, str]:
    """Return the answer that thoughts end with, and what stands behind it: tags and boxes; two empty texts for none.

    The answer is a closed tag, a closed box of LaTeX or a last line "Answer: .."; a lone closing tag ends one, too.

    >>> find_ending("It is wide. <answer>Yes</answer>"), find_ending("Maybe <answer>Yes</answer>, or not")
    (('Yes', ''), ('', ''))
    """
    text = thinking.rstrip()
    tags = [tag for tag in _TAGGED.finditer(text) if tag[2]]
    behind = text[tags[-1].end() :] if tags else ""
    if tags and not _plain(behind):
        return tags[-1][1].strip(), behind
    line = _LONE_END.search(text) or _LAST_LINE.search(text)
    return read_last_box(text.rstrip(" .$*)")) or (line[1].strip() if line else ""), ""


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


def _find_parts(text: str) -> tuple[str, ...]:
    """Return where an answer may stand, the most explicit first; behind answer tags all but the whole text."""
    plain = _plain(text)
    explicit = [*filter(None, (read_latex_box(text), read_json_answer(text)))]
    for pattern in (_TAGGED, _CONCLUSIONS):
        tagged = [_plain(match[1]) for match in pattern.finditer(text)][-_MOST_TAGS:]
        if tagged := [answer for answer in reversed(tagged) if re.search(r"\w", answer)]:
            return (*tagged, *explicit, *find_said(plain))
    return (*explicit, plain)


def _plain(text: str) -> str:
    return _ANY_TAG.sub(" ", without_boxes(text)).strip()
