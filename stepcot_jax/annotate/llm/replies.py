"""One reader of an endpoint's replies: from the body of a response to an entry of the ledger, and to what it says."""

from typing import Annotated, Any

import msgspec

from stepcot_jax.annotate.annotation import CannotAnnotate, Reason
from stepcot_jax.reasoning.endings import Unsaid, hear, read_finish
from stepcot_jax.reasoning.free_replies import split_thoughts

_SHORTEST_SECRET = 8


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request and its outcome, as the ledger keeps it."""

    report: str
    text: str  # SHA-256 of the report's text
    request: str  # SHA-256 of the messages, which differs between a question and its repairs
    answer: str | None  # text of the answer; None for none
    problem: str = ""  # why there is no answer; "" otherwise
    is_final: bool = True  # whether a retry is pointless (an answer, or one that is too large)
    finish: str = ""  # finish reason of the endpoint
    served_model: str = ""  # model name of the endpoint, possibly more specific than the requested one
    form: str  # how JSON was requested: "json_schema", "json_object" or "plain"
    prompt_tokens: int
    answer_tokens: int
    is_counted: bool = True  # whether the endpoint counted the tokens; otherwise they are upper bounds
    has_picture: bool = False  # whether the prompt shows a picture
    seconds: float
    time: str  # when the answer arrived, ISO 8601 with time zone

    @property
    def num_tokens(self) -> int:
        """Tokens of prompt and answer."""
        return self.prompt_tokens + self.answer_tokens


class _Message(msgspec.Struct):
    content: str | list[Any] | None = None
    refusal: str | None = None


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


def read_body(content: bytes, *, lost: Entry, key: str) -> Entry:
    """Parse a response's body; the openai package builds its own types without validation."""
    try:
        completion = msgspec.json.decode(content, type=_Completion)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return msgspec.structs.replace(lost, problem="the response is not a chat completion")
    choice = completion.choices[0]
    parts = choice.message.content or ""
    text = hide_key(parts if isinstance(parts, str) else "".join(map(_text_of, parts)), key)
    is_refused = choice.message.refusal or any(
        isinstance(part, dict) and part.get("type") == "refusal" for part in parts
    )
    finish = read_finish(choice.finish_reason or "")
    is_refused = is_refused or finish == "refusal"
    problem = Reason.FILTERED if finish == "content_filter" else Reason.REFUSED if is_refused else ""
    try:
        usage = msgspec.convert(completion.usage, _Usage)
        counts = {"prompt_tokens": usage.prompt_tokens, "answer_tokens": usage.completion_tokens, "is_counted": True}
    except msgspec.ValidationError:
        counts = {"answer_tokens": min(count_bytes(text) + 1, lost.answer_tokens)}
    return msgspec.structs.replace(
        lost,
        answer=None if problem else text,
        problem=str(problem),
        is_final=True,
        finish=finish or hide_key(choice.finish_reason or "", key)[:40],
        served_model=hide_key(completion.model or "", key)[:120],
        **counts,
    )


def _text_of(part: Any) -> str:
    """Return the text of a part of a content list; "" for thoughts and pictures."""
    if isinstance(part, dict) and part.get("type", "text") in ("text", "output_text"):
        part = part.get("text")
    return part if isinstance(part, str) else ""


def reply_text(entry: Entry, *, model: str) -> str:
    """Return what a reply says behind its thoughts; raise `CannotAnnotate` if it was refused or says nothing."""
    if entry.answer is None:
        reason = next((known for known in (Reason.REFUSED, Reason.FILTERED) if known == entry.problem), None)
        raise CannotAnnotate(reason or Reason.NO_ANSWER, f"{model}: {entry.problem}")
    text, unsaid = hear(entry.answer, entry.finish)
    if unsaid is Unsaid.CUT:
        raise CannotAnnotate(Reason.CUT, f"{model}: all {entry.answer_tokens} tokens are thoughts; allow more")
    if unsaid is Unsaid.CUT_EMPTY:
        raise CannotAnnotate(Reason.CUT_EMPTY, f"{model}: no text in {entry.answer_tokens} tokens; allow more")
    if unsaid is not None:
        what = "thoughts are not closed" if split_thoughts(entry.answer)[2] else "no text"
        raise CannotAnnotate(Reason(unsaid.value), f"{model}: {what}")
    return text


def hide_key(text: str, key: str) -> str:
    """Return `text` with the key masked, except short placeholders such as "ollama"."""
    return text.replace(key, "[key]") if len(key) >= _SHORTEST_SECRET else text


def count_bytes(text: str) -> int:
    """Return the length of a text in bytes, an upper bound of its tokens."""
    return len(text.encode("utf-8", "replace"))
