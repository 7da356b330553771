"""How a request is worded for an endpoint, and what an error status says about the wording."""

import json
import re
from collections.abc import Mapping
from typing import Any

from stepcot_jax.annotate.llm.endpoint import Endpoint, hide_key

FORMS = ("json_schema", "json_object", "plain")
"""Ways to request JSON, strictest first; an endpoint that refuses one is asked in the next. A prompt without a schema
is asked in the last."""

TOKENS_NAMES = ("max_tokens", "max_completion_tokens")
"""Names of the limit of an answer; newer models refuse the first."""

TRANSIENT = frozenset({408, 409, 425, 429})

_SETTINGS = ("temperature", "seed")
_REFUSING = re.compile(r"support|permitted|allowed|accepted|unknown|unrecogni|unexpected|extra|invalid|must be|only")
_FORM_WORDS = ("response_format", "json_schema", "json_object", "guided", "structured")


def first_form(schema: Mapping[str, Any]) -> str:
    """Return the form in which a prompt is asked first."""
    return FORMS[0] if schema else FORMS[-1]


def write_settings(endpoint: Endpoint, schema: Mapping[str, Any], *, form: str, tokens_name: str) -> dict[str, Any]:
    """Return the settings of a request beside model and messages."""
    settings: dict[str, Any] = {tokens_name: endpoint.max_answer_tokens}
    settings |= {name: value for name, value in endpoint.decoding if name in _SETTINGS}
    if form == "json_schema":
        json_schema = {"name": "answer", "strict": True, "schema": dict(schema)}
        settings["response_format"] = {"type": form, "json_schema": json_schema}
    elif form == "json_object":
        settings["response_format"] = {"type": form}
    return settings


def fold_body(body: object) -> str:
    """Return an error's body as folded text of bounded length, for searching."""
    return json.dumps(body, default=str)[: 1 << 16].casefold() if body is not None else ""


def find_alternative(status: int, body: str, *, form: str, tokens_name: str) -> tuple[str, str] | None:
    """Return the (form, name of the limit) to ask with next, or None if the status is about something else.

    >>> find_alternative(400, "use max_completion_tokens", form="plain", tokens_name="max_tokens")
    ('plain', 'max_completion_tokens')
    """
    if status not in (400, 422):
        return None
    if TOKENS_NAMES[1] in body and tokens_name == TOKENS_NAMES[0]:
        return form, TOKENS_NAMES[1]
    if form != FORMS[-1] and any(word in body for word in _FORM_WORDS):
        return FORMS[FORMS.index(form) + 1], tokens_name
    return None


def find_refused_setting(endpoint: Endpoint, body: str, param: object) -> str:
    """Return the decoding setting that an HTTP 400 or 422 is about, or ""."""
    sent = [name for name, _ in endpoint.decoding if name in _SETTINGS]
    if isinstance(param, str):
        return param if param in sent else ""
    if "content_filter" in body or not _REFUSING.search(body):
        return ""
    return next((name for name in sent if re.search(rf"\b{name}\b", body)), "")


def say_status(status: int, *names: object, key: str = "") -> str:
    """Return a status with an error's short names (code, parameter), never its text, which may repeat a report.

    >>> say_status(400, "content_filter", None)
    'HTTP 400 (content_filter)'
    """
    short = [hide_key(name, key) for name in names if isinstance(name, str) and re.fullmatch(r"[\w.-]{1,64}", name)]
    return f"HTTP {status} ({', '.join(short)})" if short else f"HTTP {status}"
