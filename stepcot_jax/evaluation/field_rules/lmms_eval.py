"""The counting rule of lmms-eval at commit 75571cf (2026-08-06): its SLAKE task, and its MMMU reader for one choice.

Kinds: closed, open, single. A choice that it cannot read it draws at random; here that is unread, with its chance.
"""

import re
import string

from stepcot_jax.evaluation.field_rules.verdicts import Asked, Verdict, choose_letter, compare, take_pairs

_WIDE = "！？｡。＂＃＄％＆＇（）＊＋，－／：；＜＝＞＠［＼］＾＿｀{｜}～、《》【】｛｝"  # noqa: RUF001 - wide marks are meant
_TO_BLANKS = str.maketrans(dict.fromkeys(string.punctuation + _WIDE, " "))
_BRACKETS = ("()", "（）")  # noqa: RUF001
_YES = re.compile("yes|yeah|yep|true|是|是的|有|包含|可以|能|会|正常")
_NO = re.compile("no|nope|false|否|不是|没有|无|不包含|不能|不会|不可以|不正常|异常")
_ENDS = ",.!?;:'"
_FEW_WORDS = 5


def judge(asked: Asked, reply: str, *, keep_thoughts: bool = False) -> Verdict | None:
    """Judge a reply; None where the suite has no rule."""
    if isinstance(asked.answer, tuple):
        return None
    reply = reply if keep_thoughts else _remove_thoughts(reply)
    if asked.kind == "single":
        return _judge_choice(asked, reply)
    return compare(_normalise(reply), _normalise(asked.answer))


def _remove_thoughts(text: str) -> str:
    for name in ("think", "analysis"):
        _, text = take_pairs(text, f"<{name}>", f"</{name}>")
        if f"<{name}>" not in text:
            text = text.rpartition(f"</{name}>")[2]
    return text.strip()


def _normalise(text: str) -> str:
    text = text.strip().lower()
    for brackets in _BRACKETS:
        _, text = take_pairs(text, *brackets)
    text = " ".join(text.translate(_TO_BLANKS).split())
    return "yes" if _YES.fullmatch(text) else "no" if _NO.fullmatch(text) else "xray" if text == "x ray" else text


def _judge_choice(asked: Asked, reply: str) -> Verdict:
    for mark in _ENDS:
        reply = reply.strip(mark)
    reply = f" {reply} "
    lower, letters = reply.lower(), asked.letters
    for form, last_form, reason in (
        ("({})", "({})", "a letter in brackets"),
        ("{} ", " {} ", "a letter before a blank"),
        ("{}.", " {} ", "a letter before a full stop"),
    ):
        if read := [letter for letter in letters if form.format(letter) in reply]:
            places = [reply.rfind(last_form.format(letter)) for letter in read]
            return _take_last(read, places, asked, reason)
    if len(reply.split()) > _FEW_WORDS:
        places = [lower.rfind(option.lower()) for option in asked.options]
        if read := [letter for letter, place in zip(letters, places, strict=True) if place >= 0]:
            return _take_last(read, [place for place in places if place >= 0], asked, "an option's text")
    return Verdict(None, "no letter in a known form: a random guess", chance=1 / len(letters))


def _take_last(read: list[str], places: list[int], asked: Asked, reason: str) -> Verdict:
    """Take the letter whose last place is latest, on a tie the first."""
    several = f", the last of {', '.join(read)}" if len(read) > 1 else ""
    return choose_letter(read[places.index(max(places))], asked, reason + several)
