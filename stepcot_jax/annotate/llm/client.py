"""Ask an endpoint: retries, shared back-off, spending cap and a record of every attempt that may cost something."""

import asyncio
import datetime
import json
import random
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from stepcot_jax.annotate.llm.endpoint import Endpoint, Unreadable, connect, hide_key, read_key
from stepcot_jax.annotate.llm.prompts import Message
from stepcot_jax.annotate.llm.replies import Entry, bound_prompt_tokens, read_reply, read_wait, shows_picture
from stepcot_jax.host.errors import BadInput, RunStopped

# The spending cap: each request reserves its upper bound first, so that spending never exceeds the cap.


class Budget:
    """Tokens of all models of a run and of earlier runs into the same folder, at most `cap` (None: no cap)."""

    def __init__(self, cap: int | None) -> None:
        self.cap = cap
        self.num_spent = self._num_reserved = 0
        self._changed = asyncio.Condition()
        self._stopped: RunStopped | BadInput | None = None

    @property
    def is_stopped(self) -> bool:
        """Whether new requests are refused."""
        return self._stopped is not None

    async def stop(self, why: RunStopped | BadInput) -> None:
        """Refuse new requests for this reason; requests in flight finish."""
        async with self._changed:
            self._stopped = self._stopped or why
            self._changed.notify_all()

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


# How a request is worded for an endpoint, and what an error status says about the wording.


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


_MAX_WAIT = 60.0
_WAIT_STEP = 0.5

Record = Callable[[Entry], None]


class RequestFailed(RuntimeError):
    """A request was given up; the message says why, without text of a report."""


class RequestRefused(RequestFailed):
    """The endpoint refuses this request, for example by a content filter; others may succeed."""


class AwaitsReply(Exception):
    """A request is in a batch file; its answer comes with a file of replies."""


class _Again(Exception):
    """A retry may succeed; `wait` is the requested delay in seconds, None if the endpoint names none."""

    def __init__(self, why: str, *, wait: float | None = None) -> None:
        super().__init__(why)
        self.wait = wait


class _OtherForm(Exception):
    """The endpoint refuses a setting that has an alternative."""


class _Lost(Exception):
    """A request was sent and possibly charged, but its answer is lost; `is_final` if a retry is pointless."""

    def __init__(self, why: str, *, is_final: bool = False) -> None:
        super().__init__(why)
        self.is_final = is_final


class Client:
    """Sends concurrent requests to one endpoint, with a budget shared by all clients of a run.

    Attributes:
      answered_before: whether an earlier run received an answer of this model.
      largest_counted: tokens of the largest prompt with a picture that the endpoint counted; None before the first.
    """

    def __init__(self, endpoint: Endpoint, budget: Budget, schema: Mapping[str, Any]) -> None:
        self._endpoint, self._budget, self._schema = endpoint, budget, schema
        self._key = read_key(endpoint)
        self._openai = connect(endpoint, self._key)
        self._form, self._tokens_name, self._not_before = first_form(schema), TOKENS_NAMES[0], 0.0
        self._has_answered = self.answered_before = False
        self.largest_counted: int | None = None

    async def close(self) -> None:
        """Close the connections."""
        await self._openai.close()

    async def ask(self, messages: Sequence[Message], *, about: Mapping[str, str], record: Record) -> Entry:
        """Ask until there is an answer, and return its entry, already recorded."""
        attempt = 1
        while True:
            # Without jitter all waiting requests would return at the same instant.
            jitter = random.uniform(0, self._endpoint.first_wait)  # noqa: S311
            while (wait := self._not_before + jitter - time.monotonic()) > 0 and not self._budget.is_stopped:
                await asyncio.sleep(min(wait, _WAIT_STEP))
            try:
                return await self._attempt(messages, about, record)
            except _OtherForm:
                continue
            except _Again as error:
                if attempt == self._endpoint.num_attempts:
                    raise RequestFailed(f"{error} (attempts: {attempt})") from None
                self._postpone(error.wait, attempt)
            attempt += 1

    async def _attempt(self, messages: Sequence[Message], about: Mapping[str, str], record: Record) -> Entry:
        bound = bound_prompt_tokens(messages, self._schema, largest_counted=self.largest_counted)
        bounds, has_picture = (bound, self._endpoint.max_answer_tokens), shows_picture(messages)
        reserved, spent = sum(bounds), 0
        await self._budget.reserve(reserved)
        try:
            started, form = time.monotonic(), self._form
            entry = Entry(
                **about,
                answer=None,
                is_final=False,
                form=form,
                prompt_tokens=bounds[0],
                answer_tokens=bounds[1],
                is_counted=False,
                has_picture=has_picture,
                seconds=0.0,
                time="",
            )
            try:
                entry = read_reply(await self._send(messages, form), lost=entry, key=self._key)
            except _Lost as error:
                entry = msgspec.structs.replace(entry, problem=str(error), is_final=error.is_final)
            seconds, now = round(time.monotonic() - started, 3), datetime.datetime.now(datetime.UTC)
            entry = msgspec.structs.replace(entry, seconds=seconds, time=now.isoformat(timespec="seconds"))
            spent = entry.num_tokens
            record(entry)
            if not entry.is_final:
                raise _Again(entry.problem)
            self._has_answered = True
            if has_picture and entry.is_counted:
                self.largest_counted = max(entry.prompt_tokens, self.largest_counted or 0)
            return entry
        finally:
            await self._budget.settle(reserved, num_spent=spent)

    async def _send(self, messages: Sequence[Message], form: str) -> bytes:
        """Send one HTTP request and return the body of a response of status 200."""
        import httpx2
        import openai

        tokens_name = self._tokens_name
        settings = write_settings(self._endpoint, self._schema, form=form, tokens_name=tokens_name)
        create = self._openai.chat.completions.with_raw_response.create
        try:
            # The package's timeout restarts with every byte, which a dripping server exploits.
            async with asyncio.timeout(self._endpoint.timeout):
                response = await create(model=self._endpoint.model, messages=list(messages), **settings)
            return response.http_response.content
        except openai.APIStatusError as error:
            raise self._judge(error, form=form, tokens_name=tokens_name) from None
        except (openai.APITimeoutError, TimeoutError):
            raise _Lost(f"no answer within {self._endpoint.timeout:g} s") from None
        except (openai.APIConnectionError, Unreadable) as error:
            # The package wraps errors while it reads an answer, but not while it reads an error response.
            cause = error if isinstance(error, Unreadable) else error.__cause__
            if isinstance(cause, Unreadable) and cause.status == 200:
                # A retry of too long an answer would be as long again, at the same price.
                raise _Lost(str(cause), is_final=cause.is_too_large) from None
            if isinstance(cause, Unreadable):
                raise _Again(f"{cause} with HTTP {cause.status}") from None
            if isinstance(cause, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.PoolTimeout):
                raise _Again(f"{self._endpoint.base_url} cannot be reached ({type(cause).__name__})") from None
            raise _Lost(f"the connection was cut ({type(cause).__name__})") from None

    def _judge(self, error: Any, *, form: str, tokens_name: str) -> Exception:
        """Return what an error status means; quotes the endpoint only where it cannot repeat a report."""
        status, where = error.status_code, self._endpoint.base_url
        body = fold_body(error.body)
        said = say_status(status, error.code or error.type, error.param, key=self._key)
        other = find_alternative(status, body, form=form, tokens_name=tokens_name)
        if other is not None:
            if other[1] != tokens_name:
                self._tokens_name = other[1]
            else:  # other requests in flight may have gone further already
                self._form = max(self._form, other[0], key=FORMS.index)
            return _OtherForm()
        if status in (400, 422):
            setting = find_refused_setting(self._endpoint, body, error.param)
            if setting:
                said += f"; if the endpoint refuses this setting, pass --omit={setting}"
                # A parameter name is certain; a word in the text might come from the report.
                return BadInput(f"{where}: {said}") if error.param == setting else RequestFailed(said)
        if status == 402 or "insufficient_quota" in body:
            return RunStopped(f"{where}: {said}: no credit; add credit and rerun the command to resume")
        if status in TRANSIENT or status >= 500:
            return _Again(said, wait=read_wait(error.response.headers))
        if status == 401 or (status == 403 and not self._has_answered):
            # Answers to other requests tell a refused report from a refused key.
            variable = self._endpoint.key_variable or "a variable named by key-variable="
            expected = f"expected a valid key in {variable}"
            if status == 403 and self.answered_before:
                return RequestFailed(f"{said}; {expected}, or a report that the endpoint accepts")
            return BadInput(f"{where}: {said}; {expected}")
        if status < 400 or status in (404, 405):
            words = " ".join(hide_key(error.message, self._key).split())[:160]
            return BadInput(
                f"{where}: {said} for model {self._endpoint.model!r} ({words}); expected an OpenAI-compatible endpoint "
                "and one of its models"
            )
        return RequestRefused(said)

    def _postpone(self, asked: float | None, attempt: int) -> None:
        """Delay all requests: an endpoint that throttles one throttles the others too."""
        if asked is not None and asked > self._endpoint.longest_wait:
            raise RunStopped(
                f"{self._endpoint.base_url} asks to wait {asked:.0f} s; every answer is in the ledger, rerun the "
                "command to resume"
            )
        own = min(self._endpoint.first_wait * 2 ** (attempt - 1), _MAX_WAIT) * random.uniform(0.5, 1.5)  # noqa: S311
        self._not_before = max(self._not_before, time.monotonic() + (own if asked is None else asked))
