"""What an endpoint sends back: an answer, its cost as far as the endpoint counts it, and how long it asks to wait."""

import dataclasses
import email.utils
import json
import math
import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec

from stepcot_jax.annotate.endpoint import hide_key
from stepcot_jax.annotate.prompt import Message

_TOKENS_OF_A_MESSAGE = 32


@dataclasses.dataclass(frozen=True)
class Reply:
    """What came of one request.

    Attributes:
      text: the answer; None where there is none.
      problem: why there is none.
      is_final: whether asking again is pointless.
      finish: why the model ended, as the endpoint says.
      served_model: the model as the endpoint names it.
      form: how a JSON answer was asked for: "json_schema", "json_object" or "plain".
      prompt_tokens: of the question.
      answer_tokens: of the answer.
      is_counted: whether the endpoint counted the tokens; where not, they are an upper bound.
      seconds: from question to answer.
    """

    text: str | None
    problem: str
    is_final: bool
    finish: str
    served_model: str
    form: str
    prompt_tokens: int
    answer_tokens: int
    is_counted: bool
    seconds: float

    @property
    def num_tokens(self) -> int:
        """Tokens that the request cost."""
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
    choices: list[_Choice]
    model: str | None = None
    usage: object = None


def read_reply(content: bytes, *, lost: Reply, key: str) -> Reply:
    """The reply in a response's body.

    Args:
      content: the body.
      lost: what the reply is if there is none in it; its counts are upper bounds.
      key: of the endpoint, which is hidden wherever the endpoint repeats it.
    """
    try:
        found = msgspec.json.decode(content, type=_Completion)
        choice = found.choices[0]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, IndexError):
        return dataclasses.replace(lost, problem="found a response that is not a chat completion")
    text = hide_key(choice.message.content or "", key)
    counts = _read_usage(found.usage)
    uncounted = (lost.prompt_tokens, min(_num_bytes(text) + 1, lost.answer_tokens))
    prompt_tokens, answer_tokens = counts or uncounted
    return dataclasses.replace(
        lost,
        text=text,
        is_final=True,
        finish=hide_key(choice.finish_reason or "", key)[:40],
        served_model=hide_key(found.model or "", key)[:120],
        prompt_tokens=prompt_tokens,
        answer_tokens=answer_tokens,
        is_counted=counts is not None,
    )


def _read_usage(usage: object) -> tuple[int, int] | None:
    """Tokens of question and answer, None where the endpoint does not count them."""
    try:
        found = msgspec.convert(usage, _Usage)
    except msgspec.ValidationError:
        return None
    return found.prompt_tokens, found.completion_tokens


def bound_prompt_tokens(messages: Sequence[Message], schema: Mapping[str, Any]) -> int:
    """A number of tokens that a request's prompt cannot exceed, since each token stands for a byte or more."""
    num_bytes = sum(_num_bytes(message["content"]) for message in messages)
    return num_bytes + _TOKENS_OF_A_MESSAGE * len(messages) + len(json.dumps(schema))


def _num_bytes(text: str) -> int:
    return len(text.encode("utf-8", "replace"))


def read_wait(headers: Mapping[str, str]) -> float | None:
    """Seconds that a response asks to wait (Retry-After, as a number or a date); None where it does not say.

    >>> read_wait({"retry-after": "2.5"})
    2.5
    """
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        value = headers.get(name)
        if value is None:
            continue
        try:
            wait = float(value) * unit
        except ValueError:
            try:
                wait = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
            except (ValueError, TypeError, OverflowError):
                continue
        if math.isfinite(wait):
            return max(wait, 0.0)
    return None
