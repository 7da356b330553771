"""Asking an endpoint: one request at a time, repeated where that can help, within the budget, and accounted for."""

import asyncio
import dataclasses
import json
import random
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stepcot_jax.annotate.budget import Budget
from stepcot_jax.annotate.endpoint import Endpoint, Unreadable, connect, hide_key, read_key
from stepcot_jax.annotate.prompt import Message
from stepcot_jax.annotate.replies import Reply, bound_prompt_tokens, read_reply, read_wait
from stepcot_jax.host.errors import BadInput, RunStopped

FORMS = ("json_schema", "json_object", "plain")
"""How a JSON answer is asked for, from the strictest; an endpoint that refuses one is asked in the next."""

_TRANSIENT = {408, 409, 425, 429}
_MAX_WAIT = 60.0
_WAIT_STEP = 0.5
_SETTINGS = ("temperature", "seed")
_REFUSING = re.compile(r"support|permitted|allowed|accepted|unknown|unrecogni|unexpected|extra|invalid|must be|only")
_FORM_WORDS = ("response_format", "json_schema", "json_object", "guided", "structured")


class RequestFailed(RuntimeError):
    """A request that was given up; its message says why, without any text of a report."""


class RequestRefused(RequestFailed):
    """A request that the endpoint will not have, such as by a content filter; others may be answered."""


class _Again(Exception):
    """A request that may succeed when it is repeated.

    Args:
      why: what happened.
      wait: seconds that the endpoint asks to wait; None where it does not.
    """

    def __init__(self, why: str, *, wait: float | None = None) -> None:
        super().__init__(why)
        self.wait = wait


class _OtherForm(Exception):
    """The endpoint refuses a setting for which there is another."""


class Client:
    """Asks one endpoint; several requests may be under way at once.

    Args:
      endpoint: where.
      budget: the tokens that all clients of a run share.

    Attributes:
      answered_before: whether an earlier run had an answer of this model.

    Raises:
      BadInput: there is no key, or the openai package is not installed.
    """

    def __init__(self, endpoint: Endpoint, budget: Budget) -> None:
        self._endpoint, self._budget = endpoint, budget
        self._key = read_key(endpoint)
        self._openai = connect(endpoint, self._key)
        self._form = 0
        self._tokens_name = "max_tokens"
        self._not_before = 0.0
        self._has_answered = False
        self.answered_before = False

    async def close(self) -> None:
        """Close its connections."""
        await self._openai.close()

    async def ask(
        self, messages: Sequence[Message], *, schema: Mapping[str, Any], record: Callable[[Reply], None]
    ) -> Reply:
        """Ask until there is an answer.

        Args:
          messages: the request.
          schema: of the answer.
          record: is given everything that may have cost something, before it is used.

        Returns:
          The final reply, which `record` was given too.

        Raises:
          RequestFailed: this request was given up; others may succeed.
          RequestRefused: so it was because the endpoint refuses this very request.
          RunStopped: no request can succeed now: the spending cap, or no credit.
          BadInput: no request can succeed with this key, address, model or setting.
        """
        attempt = 1
        while True:
            await self._wait_for_turn()
            try:
                return await self._attempt(messages, schema=schema, record=record)
            except _OtherForm:
                continue
            except _Again as error:
                if attempt == self._endpoint.num_attempts:
                    raise RequestFailed(f"{error}, {attempt} times") from None
                self._postpone(error.wait, attempt)
            attempt += 1

    async def _attempt(
        self, messages: Sequence[Message], *, schema: Mapping[str, Any], record: Callable[[Reply], None]
    ) -> Reply:
        prompt_bound = bound_prompt_tokens(messages, schema)
        reserved, spent = prompt_bound + self._endpoint.max_answer_tokens, 0
        await self._budget.reserve(reserved)
        try:
            started = time.monotonic()
            form = FORMS[self._form]
            lost = Reply(None, "", False, "", "", form, prompt_bound, self._endpoint.max_answer_tokens, False, 0.0)
            try:
                content = await self._send(messages, schema=schema, form=form)
                reply = read_reply(content, lost=lost, key=self._key)
            except Unreadable as error:
                # Too long an answer would be as long again, at the same price.
                reply = dataclasses.replace(lost, problem=str(error), is_final=error.is_too_large)
            except _Lost as error:
                reply = dataclasses.replace(lost, problem=str(error))
            reply = dataclasses.replace(reply, seconds=round(time.monotonic() - started, 3))
            spent = reply.num_tokens
            record(reply)
            if not reply.is_final:
                raise _Again(reply.problem)
            self._has_answered = True
            return reply
        finally:
            await self._budget.settle(reserved, num_spent=spent)

    async def _send(self, messages: Sequence[Message], *, schema: Mapping[str, Any], form: str) -> bytes:
        """One HTTP request; returns the body of a response of status 200."""
        import httpx2
        import openai

        tokens_name = self._tokens_name
        settings: dict[str, Any] = {tokens_name: self._endpoint.max_answer_tokens}
        settings |= {name: value for name, value in self._endpoint.decoding if name != "max_answer_tokens"}
        if form == "json_schema":
            json_schema = {"name": "answer", "strict": True, "schema": dict(schema)}
            settings["response_format"] = {"type": "json_schema", "json_schema": json_schema}
        elif form == "json_object":
            settings["response_format"] = {"type": "json_object"}
        create = self._openai.chat.completions.with_raw_response.create
        try:
            # The client's own timeout is one between two bytes, which a dripping server never reaches.
            async with asyncio.timeout(self._endpoint.timeout):
                response = await create(model=self._endpoint.model, messages=list(messages), **settings)
            return response.http_response.content
        except openai.APIStatusError as error:
            raise self._judge(error, form=form, tokens_name=tokens_name) from None
        except (openai.APITimeoutError, TimeoutError):
            raise _Lost(f"found no answer within {self._endpoint.timeout:g} s") from None
        except (openai.APIConnectionError, Unreadable) as error:
            # The package wraps what goes wrong while it reads an answer, but not while it reads an error.
            cause = error if isinstance(error, Unreadable) else error.__cause__
            if isinstance(cause, Unreadable):
                raise (cause if cause.status == 200 else _Again(f"{cause} with HTTP {cause.status}")) from None
            if isinstance(cause, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.PoolTimeout):
                raise _Again(f"{self._endpoint.base_url} cannot be reached ({type(cause).__name__})") from None
            raise _Lost(f"the connection was cut ({type(cause).__name__})") from None

    def _judge(self, error: Any, *, form: str, tokens_name: str) -> Exception:
        """What a status other than 200 means; the endpoint's words are shown only where they can have no report."""
        status, found = error.status_code, f"found HTTP {error.status_code}"
        body = json.dumps(error.body)[: 1 << 16].casefold() if error.body is not None else ""
        names = [name for name in (error.code or error.type, error.param) if isinstance(name, str)]
        names = [hide_key(name, self._key) for name in names if re.fullmatch(r"[\w.-]{1,64}", name)]
        found += f" ({', '.join(names)})" if names else ""
        if status in (400, 422):
            if "max_completion_tokens" in body and tokens_name == "max_tokens":
                self._tokens_name = "max_completion_tokens"
                return _OtherForm()
            if form != FORMS[-1] and any(word in body for word in _FORM_WORDS):
                self._form = max(self._form, FORMS.index(form) + 1)
                return _OtherForm()
            setting = self._find_refused_setting(error, body)
            if setting:
                found += f", accepted may be --omit={setting}, for an endpoint that refuses the setting"
                # Named as the parameter it is meant; found in the text, it might be a word of the report.
                is_sure = error.param == setting
                return BadInput(f"{self._endpoint.base_url}: {found}") if is_sure else RequestFailed(found)
        if status == 402 or "insufficient_quota" in body:
            return RunStopped(f"{self._endpoint.base_url}: {found}: no credit; the same command goes on when there is")
        if status in _TRANSIENT or status >= 500:
            return _Again(found, wait=read_wait(error.response.headers))
        if status == 401 or (status == 403 and not self._has_answered):
            # A key that is not let in is told from a report that is not by the answers to others.
            accepted = f"accepted is a key {self._endpoint.where_key_is}"
            if status == 403 and self.answered_before:
                return RequestFailed(f"{found}, {accepted}, or a report that the endpoint takes")
            return BadInput(f"{self._endpoint.base_url}: {found}, {accepted}")
        if status < 400 or status in (404, 405):
            words = " ".join(hide_key(error.message, self._key).split())[:160]
            return BadInput(
                f"{self._endpoint.base_url}: {found} for model {self._endpoint.model!r} ({words}), "
                "accepted is the address of an OpenAI-compatible endpoint and one of its models"
            )
        return RequestRefused(found)

    def _find_refused_setting(self, error: Any, body: str) -> str:
        """The setting of the decoding that an HTTP 400 or 422 is about; "" where it is about something else."""
        sent = [name for name, _ in self._endpoint.decoding if name in _SETTINGS]
        if isinstance(error.param, str):
            return error.param if error.param in sent else ""
        if "content_filter" in body or not _REFUSING.search(body):
            return ""
        return next((name for name in sent if re.search(rf"\b{name}\b", body)), "")

    async def _wait_for_turn(self) -> None:
        # Without jitter every request that waits would come back in the same instant.
        jitter = random.uniform(0, self._endpoint.first_wait)  # noqa: S311
        while (wait := self._not_before + jitter - time.monotonic()) > 0 and not self._budget.is_stopped:
            await asyncio.sleep(min(wait, _WAIT_STEP))

    def _postpone(self, asked: float | None, attempt: int) -> None:
        """Let all requests wait: an endpoint that refuses one is not to be pressed by the others."""
        if asked is not None and asked > self._endpoint.longest_wait:
            raise RunStopped(
                f"{self._endpoint.base_url}: asks to wait {asked:.0f} s; every answer is in the ledger, "
                "the same command goes on from there"
            )
        own = min(self._endpoint.first_wait * 2 ** (attempt - 1), _MAX_WAIT) * random.uniform(0.5, 1.5)  # noqa: S311
        self._not_before = max(self._not_before, time.monotonic() + (own if asked is None else asked))


class _Lost(Exception):
    """A request that was sent and may have been paid for, without an answer."""
