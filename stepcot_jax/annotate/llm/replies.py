"""What an endpoint sends back: an answer, its cost in tokens, and how long to wait."""

import contextlib
import email.utils
import json
import math
import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec

from stepcot_jax.annotate.llm.endpoint import hide_key
from stepcot_jax.annotate.llm.prompts import Message

PICTURE_MULTIPLE = 4
"""A picture is bounded by this many times the largest counted prompt with a picture, once there is one."""

_TOKENS_OF_A_MESSAGE = 32


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request and its outcome: a line of the ledger.

    Attributes:
      text: SHA-256 of the report's text.
      request: SHA-256 of the messages, which differs between a question and its repairs.
      answer: text of the answer; None for none.
      problem: why there is no answer; "" otherwise.
      is_final: whether a retry is pointless (an answer, or one that is too large).
      finish: finish reason of the endpoint.
      served_model: model name of the endpoint, possibly more specific than the requested one.
      form: how JSON was requested: "json_schema", "json_object" or "plain".
      is_counted: whether the endpoint counted the tokens; otherwise they are upper bounds.
      has_picture: whether the prompt shows a picture; False in ledgers of earlier versions.
      time: when the answer arrived, ISO 8601 with time zone.
    """

    report: str
    text: str
    request: str
    answer: str | None
    problem: str = ""
    is_final: bool = True
    finish: str = ""
    served_model: str = ""
    form: str
    prompt_tokens: int
    answer_tokens: int
    is_counted: bool = True
    has_picture: bool = False
    seconds: float
    time: str

    @property
    def num_tokens(self) -> int:
        """Tokens of prompt and answer."""
        return self.prompt_tokens + self.answer_tokens


class _Message(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    message: _Message
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: Annotated[int, msgspec.Meta(ge=0)]
    completion_tokens: Annotated[int, msgspec.Meta(ge=0)]


class _Completion(msgspec.Struct):
    choices: Annotated[list[_Choice], msgspec.Meta(min_length=1)]
    model: str | None = None
    usage: object = None


def read_reply(content: bytes, *, lost: Entry, key: str) -> Entry:
    """Parse a response's body.

    The openai package builds its own types without validation, so a wrong type would surface later.
    """
    try:
        found = msgspec.json.decode(content, type=_Completion)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return msgspec.structs.replace(lost, problem="the response is not a chat completion")
    choice = found.choices[0]
    answer = hide_key(choice.message.content or "", key)
    try:
        usage = msgspec.convert(found.usage, _Usage)
        counts = {"prompt_tokens": usage.prompt_tokens, "answer_tokens": usage.completion_tokens, "is_counted": True}
    except msgspec.ValidationError:
        counts = {"answer_tokens": min(_num_bytes(answer) + 1, lost.answer_tokens)}
    return msgspec.structs.replace(
        lost,
        answer=answer,
        is_final=True,
        finish=hide_key(choice.finish_reason or "", key)[:40],
        served_model=hide_key(found.model or "", key)[:120],
        **counts,
    )


def bound_prompt_tokens(
    messages: Sequence[Message], schema: Mapping[str, Any], *, largest_counted: int | None = None
) -> int:
    """Return an upper bound of a prompt's tokens.

    Each token of a text encodes at least one byte. A picture is bounded by the bytes of its data URL, far more than the
    tokens that models make of it, or by `PICTURE_MULTIPLE` times the largest counted prompt.

    Args:
      largest_counted: tokens of the largest prompt with a picture that the endpoint counted; None before the first.
    """
    num_tokens = _TOKENS_OF_A_MESSAGE * len(messages) + len(json.dumps(schema))
    for part in (part for message in messages for part in _split_parts(message)):
        num_bytes = _num_bytes(part if isinstance(part, str) else json.dumps(part))
        if largest_counted is not None and _is_picture(part):
            num_bytes = min(num_bytes, PICTURE_MULTIPLE * largest_counted)
        num_tokens += num_bytes
    return num_tokens


def shows_picture(messages: Sequence[Message]) -> bool:
    """Return whether a request has a picture."""
    return any(_is_picture(part) for message in messages for part in _split_parts(message))


def _split_parts(message: Message) -> list[Any]:
    content = message["content"]
    return [content] if isinstance(content, str) else list(content)


def _is_picture(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "image_url"


def _num_bytes(text: str) -> int:
    return len(text.encode("utf-8", "replace"))


def read_wait(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that a response asks to wait (Retry-After, a number or a date), or None.

    >>> read_wait({"retry-after": "2.5"})
    2.5
    """
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        with contextlib.suppress(KeyError, ValueError, TypeError, OverflowError):
            wait = _read_seconds(headers[name]) * unit
            if math.isfinite(wait):
                return max(wait, 0.0)
    return None


def _read_seconds(value: str) -> float:
    try:
        return float(value)
    except ValueError:
        return email.utils.parsedate_to_datetime(value).timestamp() - time.time()
