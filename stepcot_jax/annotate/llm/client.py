"""Ask a model behind an OpenAI-compatible address: spending cap, bounds, and a record of each attempt that may cost.

Retries are those of the openai package; every attempt passes `Client._attempt`.
"""

import asyncio
import contextvars
import dataclasses
import datetime
import functools
import json
import logging
import math
import os
import re
import ssl
import sys
import time
import urllib.parse
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from stepcot_jax.annotate.llm.prompts import Message
from stepcot_jax.annotate.llm.replies import Entry, count_bytes, hide_key, read_body
from stepcot_jax.host.errors import BadInput, RunStopped
from stepcot_jax.host.text import install_extra

DEFAULT_BASE_URL = "https://api.openai.com/v1"
DEFAULT_KEY_VARIABLE = "OPENAI_API_KEY"

FORMS = ("json_schema", "json_object", "plain")
"""Ways to request JSON, strictest first; if an endpoint refuses one, the next is tried. A prompt without a schema uses
the last."""

TOKENS_NAMES = ("max_tokens", "max_completion_tokens")
"""Names of the limit of an answer; newer models refuse the first."""

PICTURE_MULTIPLE = 4
"""Bound of a picture, as a multiple of the largest counted prompt with a picture, once one is known."""

_TRANSIENT = frozenset({408, 409, 429})
_PORTS = {"http": 80, "https": 443}
_NO_KEY = "none"
_TOKENS_OF_A_MESSAGE = 32
_QUIET = 20.0  # seconds without an answer after which a line says so
_LONGEST_WAIT = 120.0  # seconds of Retry-After that the openai package sits out
_SETTINGS = ("temperature", "seed")
_FORM_WORDS = ("response_format", "json_schema", "json_object", "guided", "structured")


@dataclasses.dataclass(frozen=True)
class Endpoint:
    """A language model behind an OpenAI-compatible address, such as vLLM, Ollama or OpenAI.

    Attributes:
      model: its name at the endpoint.
      base_url: address including the version, such as "http://localhost:11434/v1".
      key_variable: environment variable that holds the key; "" sends no key.
      temperature: of decoding, 0 to 2; None omits the setting.
      seed: of decoding; None omits the setting.
      max_answer_tokens: most tokens of one answer.
      timeout: seconds for a complete request, even if the response arrives slowly.
      max_response_bytes: most bytes of one response.
      num_attempts: attempts before a request is given up.

    Raises:
      BadInput: the address has a user or a query, or a number is out of range.
    """

    model: str
    base_url: str = DEFAULT_BASE_URL
    key_variable: str = DEFAULT_KEY_VARIABLE
    temperature: float | None = 0.0
    seed: int | None = 0
    max_answer_tokens: int = 2048
    timeout: float = 120.0
    max_response_bytes: int = 1 << 20
    num_attempts: int = 8

    def __post_init__(self) -> None:
        if not self.model.strip() or not self.model.isprintable():
            raise BadInput(f"--model: {self.model[:80]!r} is not a model name")
        _check_address(self.base_url)
        for name, flag in (("max_answer_tokens",) * 2, ("timeout",) * 2, ("num_attempts", "attempts")):
            if not 0 < getattr(self, name) < math.inf:
                raise BadInput(f"--{flag.replace('_', '-')}: {getattr(self, name)} must be a finite number above 0")
        if self.temperature is not None and not 0 <= self.temperature <= 2:
            raise BadInput(f"--temperature: {self.temperature} must be from 0 to 2")

    @property
    def origin(self) -> tuple[str, str, int]:
        """Scheme, host and port: who receives the requests."""
        parts = urllib.parse.urlsplit(self.base_url)
        return parts.scheme, parts.hostname or "", parts.port or _PORTS[parts.scheme]

    @property
    def decoding(self) -> tuple[tuple[str, float | int], ...]:
        """The settings that an answer depends on, without omitted ones."""
        settings = {name: getattr(self, name) for name in ("max_answer_tokens", "seed", "temperature")}
        return tuple((name, value) for name, value in settings.items() if value is not None)


def _check_address(base_url: str) -> None:
    expected = "expected http(s)://HOST[:PORT]/PATH without user, password or query"
    try:
        parts = urllib.parse.urlsplit(base_url)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        raise BadInput(f"--base-url is not an address; {expected}") from None
    # The message shows the host only: the rest may hold a password.
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise BadInput(f"--base-url: {parts.hostname} comes with a user or a query; {expected}")
    if not is_address:
        raise BadInput(f"--base-url: {base_url[:80]!r} is not an address; {expected}")


def read_key(endpoint: Endpoint) -> str:
    """Return the key from the environment, or a placeholder if an endpoint other than the default has none."""
    key = os.environ.get(endpoint.key_variable, "").strip() if endpoint.key_variable else ""
    if not key:
        if endpoint.base_url != DEFAULT_BASE_URL:
            return _NO_KEY
        if not endpoint.key_variable:
            raise BadInput(f"--voter: key-variable= is required with {DEFAULT_BASE_URL}")
        raise BadInput(
            f"environment variable {endpoint.key_variable} is required (the key of {DEFAULT_BASE_URL}; or pass "
            "another --base-url)"
        )
    if not key.isascii() or not key.isprintable() or " " in key:
        raise BadInput(f"environment variable {endpoint.key_variable} must be printable ASCII without spaces")
    return key


class Budget:
    """Tokens of all models of a run and of earlier runs into the same folder, at most `cap` (None: no cap)."""

    def __init__(self, cap: int | None) -> None:
        self.cap = cap
        self.num_spent = self._num_reserved = 0
        self._changed = asyncio.Condition()
        self._stopped: RunStopped | BadInput | None = None

    async def stop(self, why: RunStopped | BadInput) -> None:
        """Refuse new requests for this reason; requests in flight finish."""
        async with self._changed:
            self._stopped = self._stopped or why
            self._changed.notify_all()

    async def drain(self) -> None:
        """Wait until no request is in flight; waits between attempts do not count."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self._num_reserved)

    async def reserve(self, num_tokens: int) -> None:
        """Reserve the upper bound of a request's cost, waiting while requests in flight may still release enough."""
        async with self._changed:
            while self.cap is not None and self.num_spent + self._num_reserved + num_tokens > self.cap:
                if not self._num_reserved:
                    raise RunStopped(
                        f"--max-tokens: {self.num_spent} of {self.cap} tokens are spent and the next request may take "
                        f"{num_tokens}; every answer is in the ledger, rerun with a larger --max-tokens to resume"
                    )
                await self._changed.wait()
            if self._stopped is not None:
                raise type(self._stopped)(str(self._stopped))
            self._num_reserved += num_tokens

    async def settle(self, reserved: int, *, num_spent: int) -> None:
        """Replace a reservation by the actual cost."""
        async with self._changed:
            self._num_reserved -= reserved
            self.num_spent += num_spent
            self._changed.notify_all()


Record = Callable[[Entry], None]


def bound_prompt_tokens(
    messages: Sequence[Message], schema: Mapping[str, Any], *, largest_counted: int | None = None
) -> int:
    """Return an upper bound of a prompt's tokens: the bytes of its texts, and of pictures unless one was counted."""
    num_tokens = _TOKENS_OF_A_MESSAGE * len(messages) + len(json.dumps(schema))
    for part in (part for message in messages for part in _split_parts(message)):
        num_bytes = count_bytes(part if isinstance(part, str) else json.dumps(part))
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


def _fold_body(body: object) -> str:
    """Return an error's body as folded text of bounded length, for searching."""
    return json.dumps(body, default=str)[: 1 << 16].casefold() if body is not None else ""


class RequestFailed(RuntimeError):
    """A request was given up; the message says why, without text of a report."""


class RequestRefused(RequestFailed):
    """The endpoint refuses this request, for example by a content filter; others may succeed."""


class _TooLarge(Exception):
    """An answer is longer than `max_response_bytes`; a retry would be as long again, at the same price."""


@dataclasses.dataclass
class _Ask:
    """State shared by the attempts of one request: messages, names, and the last entry and problem."""

    messages: Sequence[Message]
    about: Mapping[str, str]
    record: Record
    form: str
    problem: str = ""
    entry: Entry = dataclasses.field(init=False)


_ASK: contextvars.ContextVar[_Ask] = contextvars.ContextVar("ask")

Send = Callable[[Any], Awaitable[Any]]


def _make_lost(ask: _Ask, bounds: dict[str, int], *, is_final: bool, started: float) -> Entry:
    """Return the entry of a lost answer, charged at its upper bounds."""
    known: dict[str, Any] = {**ask.about, **bounds}
    return Entry(
        **known,
        answer=None,
        problem=ask.problem,
        is_final=is_final,
        form=ask.form,
        is_counted=False,
        has_picture=shows_picture(ask.messages),
        seconds=round(time.monotonic() - started, 3),
        time=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )


class Client:
    """Sends concurrent requests to one endpoint, with a budget shared by all clients of a run."""

    def __init__(self, endpoint: Endpoint, budget: Budget, schema: Mapping[str, Any]) -> None:
        self._endpoint, self._budget, self._schema = endpoint, budget, schema
        self._key = read_key(endpoint)
        self._openai = connect(endpoint, self._key, self._attempt)
        self._form, self._tokens_name = FORMS[0 if schema else -1], TOKENS_NAMES[0]
        self._has_answered = self.answered_before = False  # whether an earlier run received an answer of this model
        self._is_quiet_said = False
        # tokens of the largest prompt with a picture that the endpoint counted; None before the first
        self.largest_counted: int | None = None

    async def close(self) -> None:
        """Close the connections."""
        await self._openai.close()

    async def ask(self, messages: Sequence[Message], *, about: Mapping[str, str], record: Record) -> Entry:
        """Ask until an answer arrives, and return its entry, already recorded."""
        import openai

        while True:
            ask, tokens_name = _Ask(messages, about, record, self._form), self._tokens_name
            create = self._openai.chat.completions.with_raw_response.create
            _ASK.set(ask)
            try:
                settings = self._write_settings(ask.form, tokens_name)
                await create(model=self._endpoint.model, messages=list(messages), **settings)
            except openai.APIStatusError as error:
                body, may_reword = _fold_body(error.body), error.status_code in (400, 422)
                # Other requests in flight may have gone further already.
                if may_reword and TOKENS_NAMES[1] in body and tokens_name == TOKENS_NAMES[0]:
                    self._tokens_name = TOKENS_NAMES[1]
                elif may_reword and ask.form != FORMS[-1] and any(word in body for word in _FORM_WORDS):
                    self._form = max(self._form, FORMS[FORMS.index(ask.form) + 1], key=FORMS.index)
                else:
                    raise self._judge(error) from None
                continue
            except openai.APIConnectionError:
                raise RequestFailed(f"{ask.problem} (attempts: {self._endpoint.num_attempts})") from None
            except _TooLarge:
                pass
            return ask.entry

    def _write_settings(self, form: str, tokens_name: str) -> dict[str, Any]:
        """Return the settings of a request except model and messages."""
        settings: dict[str, Any] = {tokens_name: self._endpoint.max_answer_tokens}
        settings |= {name: value for name, value in self._endpoint.decoding if name in _SETTINGS}
        if form != FORMS[-1]:
            settings["response_format"] = {"type": form}
        if form == FORMS[0]:
            settings["response_format"][form] = {"name": "answer", "strict": True, "schema": dict(self._schema)}
        return settings

    async def _attempt(self, send: Send, request: Any) -> Any:
        """Send one HTTP request within the budget; record its cost, and return the response with its body read."""
        import httpx2

        ask = _ASK.get()
        ask.problem = ""
        bounds = {
            "prompt_tokens": bound_prompt_tokens(ask.messages, self._schema, largest_counted=self.largest_counted),
            "answer_tokens": self._endpoint.max_answer_tokens,
        }
        reserved, spent = sum(bounds.values()), 0
        await self._budget.reserve(reserved)
        try:
            started, status, headers, content = time.monotonic(), 200, httpx2.Headers(), b""
            try:
                # The package's timeout restarts with every byte, which a dripping server exploits.
                notice = asyncio.get_running_loop().call_later(_QUIET, self._say_quiet)
                try:
                    async with asyncio.timeout(self._endpoint.timeout):
                        response = await send(request)
                        status, headers = response.status_code, response.headers
                        content, ask.problem = await self._read(response)
                finally:
                    notice.cancel()
            except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout) as error:
                ask.problem = f"{self._endpoint.base_url} cannot be reached ({type(error).__name__})"
                raise
            except (TimeoutError, httpx2.TimeoutException):
                ask.problem = f"no answer within {self._endpoint.timeout:g} s"
            except (httpx2.TransportError, ssl.SSLError) as error:
                ask.problem = f"the connection was cut ({type(error).__name__})"
            if not 200 <= status < 300:
                ask.problem += f" with HTTP {status}" if ask.problem else ""
                if content and b"insufficient_quota" in content:
                    headers["x-should-retry"] = "false"  # waiting does not add credit
            else:
                is_too_large = content is None
                entry = _make_lost(ask, bounds, is_final=is_too_large, started=started)
                if not ask.problem:
                    entry = read_body(content, lost=entry, key=self._key)
                ask.entry = entry
                ask.problem, spent = "" if entry.is_final else entry.problem, entry.num_tokens
                ask.record(ask.entry)
                if is_too_large:
                    raise _TooLarge
                if entry.is_final:
                    self._has_answered = True
                    if entry.has_picture and entry.is_counted:
                        self.largest_counted = max(entry.prompt_tokens, self.largest_counted or 0)
            if ask.problem:
                raise httpx2.ReadError(ask.problem, request=request)
            return httpx2.Response(status, headers=headers, content=content, request=request)
        finally:
            await self._budget.settle(reserved, num_spent=spent)

    def _say_quiet(self) -> None:
        """Say once that an endpoint takes the requests and does not answer them."""
        if not self._is_quiet_said:
            self._is_quiet_said = True
            limit = f"{self._endpoint.num_attempts} attempts of {self._endpoint.timeout:g} s"
            print(f"waiting for {self._endpoint.base_url}: no answer for {_QUIET:g} s ({limit})", file=sys.stderr)

    async def _read(self, response: Any) -> tuple[Any, str]:
        """Return a response's body, None if it is too large, and its problem."""
        try:
            # A few compressed bytes can expand without limit.
            if response.headers.get("content-encoding", "identity") != "identity":
                return b"", "the response is compressed without being asked to"
            content = bytearray()
            async for piece in response.aiter_raw():
                content += piece
                if len(content) > self._endpoint.max_response_bytes:
                    return None, f"the response exceeds {self._endpoint.max_response_bytes} bytes"
            return bytes(content), ""
        finally:
            await response.aclose()

    def _judge(self, error: Any) -> Exception:
        """Return the exception for an error status; quotes the endpoint only where it cannot repeat a report."""
        status, where, body = error.status_code, self._endpoint.base_url, _fold_body(error.body)
        names = [name for name in (error.code or error.type, error.param) if isinstance(name, str)]
        short = ", ".join(hide_key(name, self._key) for name in names if re.fullmatch(r"[\w.-]{1,64}", name))
        message = f"HTTP {status} ({short})" if short else f"HTTP {status}"
        if status in (400, 422) and error.param in _SETTINGS and error.param in dict(self._endpoint.decoding):
            return BadInput(f"{where}: {message}; pass --omit={error.param}")
        if status == 422:
            return RequestFailed(f"{message}; an endpoint that refuses temperature or seed needs --omit")
        if status == 402 or "insufficient_quota" in body:
            return RunStopped(f"{where}: {message}: no credit; add credit and rerun the command to resume")
        if status in _TRANSIENT or status >= 500:
            wait = self._openai._parse_retry_after_header(error.response.headers)
            if wait is not None and wait > _LONGEST_WAIT:
                return RunStopped(
                    f"{where} asks to wait {wait:.0f} s; every answer is in the ledger, rerun the command to resume"
                )
            return RequestFailed(f"{message} (attempts: {self._endpoint.num_attempts})")
        if status == 401 or (status == 403 and not self._has_answered):
            # Answers to other requests tell a refused report from a refused key.
            variable = self._endpoint.key_variable or "a variable named by key-variable="
            expected = f"expected a valid key in {variable}"
            if status == 403 and self.answered_before:
                return RequestFailed(f"{message}; {expected}, or a report that the endpoint accepts")
            return BadInput(f"{where}: {message}; {expected}")
        if status < 400 or status in (404, 405):
            return BadInput(
                f"{where}: {message} for model {self._endpoint.model!r}; expected an OpenAI-compatible "
                "endpoint and one of its models"
            )
        return RequestRefused(message)


def connect(endpoint: Endpoint, key: str, attempt: Callable[[Send, Any], Awaitable[Any]]) -> Any:
    """Return an openai client whose HTTP requests are sent by `attempt`, to the configured address only."""
    try:
        import openai
    except ImportError as error:
        raise BadInput(f"a language model requires {error.name}: {install_extra('annotate')}") from None
    # Below WARNING they log complete requests, including reports.
    for name in ("openai", "httpx2", "httpcore2"):
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.getLogger(name).level))

    http: Any = openai.DefaultAsyncHttpx2Client(
        timeout=endpoint.timeout, base_url=endpoint.base_url, verify=_make_tls_context()
    )
    send = functools.partial(http.send, stream=True, follow_redirects=False)
    http.send = lambda request, **_: attempt(send, request)
    client = openai.AsyncOpenAI(
        api_key=key,
        base_url=endpoint.base_url,
        max_retries=endpoint.num_attempts - 1,
        timeout=endpoint.timeout,
        default_headers={"Accept-Encoding": "identity"},
        http_client=http,
    )
    # The package would read these from the environment and send them to any host.
    client.organization = client.project = None
    return client


@functools.cache
def _make_tls_context() -> ssl.SSLContext:
    """Return the default TLS context, cached because loading certificates dominates the start of a client."""
    import httpx2

    return httpx2.create_ssl_context()
