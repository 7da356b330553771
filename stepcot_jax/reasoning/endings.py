"""How a model's reply ended: what it says behind its thoughts, why it says nothing, and whether it was cut."""

import enum
import re
from typing import Literal

from stepcot_jax.reasoning.free_replies import find_last_thought

Finish = Literal["", "stop", "length", "content_filter", "refusal"]
"""Why an endpoint ended a reply; "" if it does not say."""

_FINISHES: dict[str, Finish] = {
    "": "",
    **dict.fromkeys(("stop", "eos", "eos_token", "end_turn", "stop_sequence", "tool_calls", "function_call"), "stop"),
    **dict.fromkeys(
        (
            *("length", "max_tokens", "max_length", "model_length", "model_context_window_exceeded", "abort"),
            *("max_output_tokens", "max_completion_tokens", "token_limit", "length_limit", "context_length_exceeded"),
            *("incomplete", "error_limit", "repetition_truncation", "insufficient_system_resource"),
        ),
        "length",
    ),
    **dict.fromkeys(
        (
            *("content_filter", "safety", "image_safety", "recitation", "blocklist", "prohibited_content", "spii"),
            *("contentfilter", "content_filtered", "guardrail_intervened", "moderation", "sensitive", "error_toxic"),
        ),
        "content_filter",
    ),
    "refusal": "refusal",
}
"""Finish reasons of OpenAI-compatible servers (vLLM, TGI, Mistral, DeepSeek, GLM), Anthropic, Bedrock, Cohere and
Gemini; others say nothing."""

_LONGEST_END = 40
_TRAILING = "`*_ \t\r\n"
_OBJECT_ENDS = re.compile(r"\}\Z")
PART_ENDS = re.compile(r"(?:[}\]]|</[A-Za-z_]{1,20}>)\Z")
"""The end of a complete part of a reply in words: an object, a list of boxes, a closing tag."""

_PICTURE = r"(?:image|picture|photo|scan|radiograph|x-?ray)s?\b"
_UNABLE = r"(?:cannot|can['\u2019]t|can not|could not|couldn['\u2019]t)"
_DECLINES = re.compile(
    r"\W*(?:(?:i am|i['\u2019]m) (?:\w+ )?(?:sorry|unable|not able)\b|sorry\b|as an? (?:ai|language model)\b"
    rf"|(?:unfortunately,? )?(?:i|we) {_UNABLE} (?:\w+ )?"
    r"(?:answer|tell|say|determine|assess|interpret|analy[sz]e|help|assist|provide|view|access|diagnose)\b"
    rf"|(?:i|we) (?:{_UNABLE}|do not|don['\u2019]t) (?:see|have) (?:access to )?(?:an?|any|the|your) {_PICTURE}"
    rf"|(?:there (?:is|was) )?no {_PICTURE} (?:(?:is|was|has been) )?(?:provided|attached|given|included|uploaded)"
    rf"|please (?:provide|upload|attach|share)\b|without (?:seeing )?(?:an?|the|your) {_PICTURE},? (?:i|we|it)\b"
    r"|(?:很?抱歉|对不起|我?无法))",
    re.IGNORECASE,
)
_HOWEVER = re.compile(r"\b(?:but|however|although|though)\b", re.IGNORECASE)


def declines(answer: str) -> bool:
    """Return whether an answer is a refusal in words, such as "I'm sorry" or "no image was provided"."""
    parts = [part for part in _HOWEVER.split(answer) if part.strip()]
    return bool(parts) and all(map(_DECLINES.match, parts))  # "I cannot tell the type, but it is a mass" is no refusal


class Unsaid(enum.StrEnum):
    """Why a reply has no answer."""

    REFUSED = "refused"
    FILTERED = "filtered"
    EMPTY = "without content"
    CUT = "without content: cut while thinking"  # all tokens are thoughts, which an endpoint may keep to itself
    CUT_EMPTY = "without content: cut at the limit of its length"
    CUT_BEHIND = "cut behind its answer"


def read_finish(written: str) -> Finish:
    """Return the finish reason that an endpoint wrote; "" for a word that is not known.

    >>> read_finish("MAX_TOKENS"), read_finish("FinishReason.SAFETY"), read_finish("pause_turn")
    ('length', 'content_filter', '')
    """
    plain = written.strip().casefold().replace("-", "_").removeprefix("finishreason.").removeprefix("finish_reason_")
    return _FINISHES.get(plain, "")


def hear(text: str, finish: str = "") -> tuple[str, Unsaid | None]:
    """Return what a reply says behind its thoughts, and why it says nothing; None if it says something.

    >>> hear("<think>It is wide.</think>Yes"), hear("<think>Maybe Yes", "length")[1].name
    (('Yes', None), 'CUT')
    """
    if finish in ("content_filter", "refusal"):
        return "", Unsaid.FILTERED if finish == "content_filter" else Unsaid.REFUSED
    tag = find_last_thought(text)
    is_open, behind = tag is not None and not any(tag.groups()), text[tag.end() :] if tag else text
    if is_open or not behind.strip():
        cut = Unsaid.CUT if is_open or not text else Unsaid.CUT_EMPTY
        return "", cut if finish == "length" else Unsaid.EMPTY
    return behind, None


def goes_on_behind(text: str, finish: str, ends: re.Pattern[str] = _OBJECT_ENDS) -> bool:
    """Return whether a reply was cut at the limit of its length behind the part that was asked for."""
    return finish == "length" and ends.search(text.rstrip(_TRAILING)[-_LONGEST_END:]) is None
