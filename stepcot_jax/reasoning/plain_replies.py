"""Plain replies, dialect "plain": an answer in words or letters, after thoughts or without; no boxes."""

import re

from stepcot_jax.host.errors import BadInput
from stepcot_jax.reasoning.free_replies import find_last_thought
from stepcot_jax.reasoning.replies import (
    Reply,
    check_text,
    normalise,
    scan_tags,
    tag_pattern,
    without_stop_tokens,
    write_answer,
)
from stepcot_jax.record import Record

PLAIN = "plain"

_TAGS = (  # of all dialects: no answer in words holds one
    *("think", "response", "answer", "location", "ref", "box", "reason"),
    *("LOC", "VISUAL", "VIS", "KNOWLEDGE", "KNO", "CON", "ANSWER"),
)
_MOST_TAGS = 64
_WRAPPED = re.compile(r"(?:<answer>(.*)</answer>|answer:(.*))", re.IGNORECASE | re.DOTALL)
_CLOSED = "</think>"


def write_plain(record: Record) -> str:
    """Write a record: its thinking, if it has any, in <think> tags, and the answer alone behind them."""
    answer = _check("answer", write_answer(record))
    if not record.thinking.strip():
        return answer
    return f"<think>{_check('thinking', record.thinking)}{_CLOSED}\n{answer}"


def read_plain(text: str) -> Reply:
    """Read a reply; the answer may stand in <answer> tags or behind "Answer:", as other prompts ask for it."""
    text = text.strip()
    tags = scan_tags(text, ("think",), most=_MOST_TAGS)
    thinking, rest, problems = "", text, []
    if tags is None or [tag.mark for tag in tags] not in ([], ["think", "/think"]) or (tags and tags[0].start):
        problems.append("not one <think>..</think> before the answer, or none")
        rest = text[tags[-1].end :] if tags else ""
    elif tags:
        thinking, rest = text[tags[0].end : tags[1].start].strip(), text[tags[1].end :]
        if not thinking:
            problems.append("<think> is empty")
    answer = _unwrap(rest)
    if not answer:
        problems.append("the answer is empty")
    elif tag_pattern(_TAGS).search(answer):
        problems.append("the answer holds a tag")
        answer = ""
    return Reply(PLAIN, answer=answer or None, references=(), thinking=thinking, problems=tuple(problems))


def start_of_plain(reply: str) -> int:
    """Return the position at which the answer of a written reply begins."""
    end = reply.rfind(_CLOSED)
    return 0 if end < 0 else len(reply) - len(reply[end + len(_CLOSED) :].lstrip())


def _unwrap(text: str) -> str:
    match = _WRAPPED.fullmatch(text.strip())
    return next(part for part in match.groups() if part is not None).strip() if match else text.strip()


def _check(field: str, text: str) -> str:
    text = check_text(field, text, _TAGS if field == "answer" else ("think",))
    mark = find_last_thought(normalise(text))
    if mark is not None:
        raise BadInput(f"{field}: contains {mark[0]!r}, a mark of thoughts; dialect 'plain' has none within a part")
    if field == "answer" and (_unwrap(text) != text or without_stop_tokens(text) != text):
        raise BadInput(
            f"answer: {text[:80]!r} begins with 'Answer:' or ends with a stop token; a bare text is required"
        )
    return text
