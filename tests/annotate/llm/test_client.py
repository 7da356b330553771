"""One request against a real server on localhost that misbehaves: an answer in the end, or a clear error."""

import asyncio
import logging

import pytest
from annotate.misbehaving_server import GOOD, NUM_TOKENS, MisbehavingServer
from refusals import refuse

from stepcot_jax.annotate.llm import client
from stepcot_jax.annotate.llm.client import (
    FORMS,
    Budget,
    Client,
    Endpoint,
    RequestFailed,
    RequestRefused,
    bound_prompt_tokens,
    connect,
    hide_key,
    read_key,
)
from stepcot_jax.annotate.llm.prompts import write_annotation_prompt
from stepcot_jax.chain import DEFAULT_CHAIN
from stepcot_jax.host.errors import BadInput, RunStopped

pytest.importorskip("openai", reason="the extra annotate")

PROMPT = write_annotation_prompt(DEFAULT_CHAIN)
MESSAGES = PROMPT.messages({"report": "Mrs Example: clear lungs."})
ABOUT = {"report": "r1", "text": "digest", "request": "digest"}
KEY = "sk-marker-0123456789"


def ask(server, *, num_requests=1, budget=None, **settings):
    """The outcomes of requests at once, and everything that was recorded."""
    settings = {"num_attempts": 4, "timeout": 5.0, **settings}
    recorded = []

    async def run():
        client = Client(Endpoint("some-model", server.base_url, **settings), budget or Budget(None), PROMPT.schema)
        try:
            requests = [client.ask(MESSAGES, about=ABOUT, record=recorded.append) for _ in range(num_requests)]
            return await asyncio.gather(*requests, return_exceptions=True)
        finally:
            await client.close()

    return asyncio.run(run()), recorded


def first(*behaviours):
    """Misbehave in these ways in turn, then answer well."""
    return lambda request, number: behaviours[number] if number < len(behaviours) else None


def test_the_request_is_what_it_should_be():
    with MisbehavingServer() as server:
        (reply,), recorded = ask(server)
    assert (reply.answer, recorded, (reply.prompt_tokens, reply.answer_tokens)) == (GOOD, [reply], NUM_TOKENS)
    assert (reply.is_counted, reply.is_final, reply.served_model) == (True, True, "served-model-0613")
    request, headers = server.requests[0], server.headers[0]
    assert request["messages"] == MESSAGES
    assert request["response_format"]["json_schema"] == {"name": "answer", "strict": True, "schema": PROMPT.schema}
    settings = ("some-model", 0.0, 0, 2048)
    assert tuple(request[name] for name in ("model", "temperature", "seed", "max_tokens")) == settings
    sent = {name.lower(): value for name, value in headers.items()}
    assert (sent["authorization"], sent["accept-encoding"]) == (f"Bearer {KEY}", "identity")


TRANSIENT = {
    "rate limit": ("refuse_for_now", 0.05),
    "error 500": ("status", (500, {"error": {"message": "oh"}}, {})),
    "error 503 in HTML": ("status", (503, b"<html>busy</html>", {})),
    "hangs up": ("hang_up", None),
    "cut midway": ("cut_midway", None),
    "too slow": ("answer_slowly", 1.0),
    "drips": ("drip", 0.05),
    "not a completion": ("body", b'{"choices": []}'),
    "of other types": ("body", b'{"choices": [{"message": {"content": 7}}]}'),
    "not text": ("body", b"\xff\xfe"),
    "deep": ("body", b"[" * 100_000),
}


@pytest.mark.parametrize("behaviour", TRANSIENT.values(), ids=TRANSIENT)
def test_what_passes_is_waited_out(behaviour):
    with MisbehavingServer(first(behaviour, behaviour)) as server:
        (reply,), recorded = ask(server, timeout=0.4)
    assert (reply.answer, len(server.requests), recorded[-1]) == (GOOD, 3, reply)
    # What was sent and got no answer may have been paid for: it is recorded as lost, at its upper bound.
    may_be_paid = behaviour[0] in ("hang_up", "cut_midway", "answer_slowly", "drip", "body")
    assert [each.is_final for each in recorded[:-1]] == [False, False] * may_be_paid
    assert all(each.num_tokens > sum(NUM_TOKENS) for each in recorded[:-1])


def test_an_endpoint_that_is_not_there_or_never_answers_is_said(monkeypatch, capsys):
    with MisbehavingServer() as server:
        pass
    (error,), recorded = ask(server, num_attempts=2)
    assert isinstance(error, RequestFailed)
    assert "cannot be reached" in str(error)
    assert server.base_url in str(error)
    assert recorded == []  # never sent, so never paid
    monkeypatch.setattr(client, "_QUIET", 0.1)
    with MisbehavingServer(lambda request, number: ("answer_slowly", 0.5)) as server:
        ask(server, num_requests=2)
    assert capsys.readouterr().err == f"waiting for {server.base_url}: no answer for 0.1 s (4 attempts of 5 s)\n"


@pytest.mark.parametrize(
    ("behaviour", "kind", "words"),
    [
        (("status", (401, {"error": {"message": f"wrong key {KEY}"}}, {})), BadInput, "OPENAI_API_KEY"),
        (("status", (403, {"error": {"code": f"no_{KEY}"}}, {})), BadInput, "HTTP 403 (no_[key])"),
        (("status", (404, {"error": {"message": f"no model; {KEY}; Mrs Example"}}, {})), BadInput, "'some-model'"),
        (("status", (405, {"error": {"message": "Mrs Example"}}, {})), BadInput, "HTTP 405"),
        (("status", (307, b"", {"Location": "http://127.0.0.1:1/elsewhere"})), BadInput, "HTTP 307"),
        (("status", (402, {"error": {"message": "pay"}}, {})), RunStopped, "no credit"),
        (("status", (429, {"error": {"code": "insufficient_quota"}}, {})), RunStopped, "no credit"),
        (("refuse_for_now", 3600), RunStopped, "asks to wait 3600 s"),
        (("status", (400, {"error": {"code": "context_length"}}, {})), RequestRefused, "HTTP 400 (context_length)"),
        (("status", (400, {"error": {"code": "no", "param": "seed"}}, {})), BadInput, "--omit=seed"),
        (("status", (422, {"detail": [{"loc": ["body", "temperature"], "msg": "Extra inputs are not permitted"}]}, {})),
         RequestFailed, "HTTP 422; an endpoint that refuses temperature or seed needs --omit"),
        (("status", (400, {"error": {"code": "content_filter", "message": "seed: not allowed"}}, {})),
         RequestRefused, "HTTP 400 (content_filter)"),
        (("status", (413, {"error": {"message": "Mrs Example"}}, {})), RequestRefused, "HTTP 413"),
    ],
)  # fmt: skip
def test_what_no_repetition_mends_is_said_at_once(behaviour, kind, words):
    with MisbehavingServer(lambda request, number: behaviour) as server:
        (error,), _ = ask(server)
    assert type(error) is kind
    assert words in str(error)
    assert KEY not in str(error)
    assert "Example" not in str(error)
    assert "\n" not in str(error)
    assert len(server.requests) == 1


def test_a_huge_response_or_error_and_a_compressed_one_are_not_read_to_their_end():
    for behaviour in (("flood", (200, b" " * 4096)), ("body", b" " * 300_000)):
        with MisbehavingServer(lambda request, number, found=behaviour: found) as server:
            (reply,), recorded = ask(server, max_response_bytes=100_000)
        assert (reply.answer, reply.problem) == (None, "the response exceeds 100000 bytes")
        assert recorded == [reply]  # paid for, and as pointless to ask again as it was
        assert len(server.requests) == 1
    failures = {"100000 bytes with HTTP 500": ("flood", (500, b" " * 4096)), "compressed": ("compress", 1 << 24)}
    for words, behaviour in failures.items():
        with MisbehavingServer(lambda request, number, found=behaviour: found) as server:
            (error,), _ = ask(server, max_response_bytes=100_000, num_attempts=2)
        assert isinstance(error, RequestFailed)
        assert words in str(error)
        assert len(server.requests) == 2


@pytest.mark.parametrize("best", range(3))
def test_the_strictest_form_and_the_name_of_the_token_limit_that_the_endpoint_has_are_found(best):
    def behave(request, number):
        form = request.get("response_format", {"type": "plain"})["type"]
        if FORMS.index(form) < best:
            return "status", (400, {"error": {"message": f"response_format {form} is unavailable"}}, {})
        if "max_tokens" in request:
            message = "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."
            return "status", (400, {"error": {"message": message, "param": "max_tokens"}}, {})
        return None

    with MisbehavingServer(behave) as server:
        replies, recorded = ask(server, num_requests=3)
        assert [reply.form for reply in replies] == [FORMS[best]] * 3
        assert len(recorded) == len(server.paid) == 3
        assert {request["max_completion_tokens"] for request in server.paid} == {2048}


def test_what_has_no_count_is_bounded_from_above():
    with MisbehavingServer(lambda request, number: ("answer_uncounted", GOOD)) as server:
        (reply,), _ = ask(server)
    assert not reply.is_counted
    assert reply.prompt_tokens == bound_prompt_tokens(MESSAGES, PROMPT.schema)
    assert reply.prompt_tokens >= sum(len(message["content"]) for message in MESSAGES)
    assert len(GOOD) <= reply.answer_tokens <= 2048
    url, (*others, last), schema = f"data:image/png;base64,{'A' * 50_000}", MESSAGES, PROMPT.schema
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": last["content"]}]
    shown, text = [*others, {**last, "content": content}], bound_prompt_tokens(MESSAGES, schema)
    assert bound_prompt_tokens(shown, schema) > text + len(url)
    assert text + 4 * 900 <= bound_prompt_tokens(shown, schema, largest_counted=900) < text + 4 * 900 + 100
    assert bound_prompt_tokens(shown, schema, largest_counted=100_000) == bound_prompt_tokens(shown, schema)
    assert bound_prompt_tokens(MESSAGES, schema, largest_counted=1) == text


def test_the_cap_is_never_passed_and_counts_lost_requests():
    one = sum(NUM_TOKENS)
    bound = bound_prompt_tokens(MESSAGES, PROMPT.schema) + 2048
    budget = Budget(2 * one + bound)
    with MisbehavingServer(lambda request, number: ("answer_slowly", 0.02)) as server:
        outcomes, recorded = ask(server, num_requests=8, budget=budget)
    stopped = [outcome for outcome in outcomes if isinstance(outcome, RunStopped)]
    assert len(server.paid) == len(recorded) == 3  # one, one, and one more for which the rest just sufficed
    assert len(stopped) == 5
    assert budget.num_spent == 3 * one <= budget.cap
    assert f"{3 * one} of {budget.cap} tokens" in str(stopped[0])
    budget = Budget(3 * (bound_prompt_tokens(MESSAGES, PROMPT.schema) + 2048) - 1)
    with MisbehavingServer(lambda request, number: ("hang_up", None)) as server:
        (error,), recorded = ask(server, budget=budget)
    assert isinstance(error, RunStopped)
    assert len(recorded) == len(server.requests) == 2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        *(({"model": "a\nb"}, "--model"), ({"base_url": "file:///etc/passwd"}, "--base-url")),
        ({"base_url": "http://u:topsecret@h/v1"}, "user or a query"),
        ({"base_url": "http://h/v1?key=topsecret"}, "user or a query"),
        *(({"base_url": "http://h:99999/v1"}, "--base-url"), ({"num_attempts": -1}, "--attempts")),
        *(({"temperature": -1}, "--temperature"), ({"max_answer_tokens": float("inf")}, "--max-answer-tokens")),
    ],
)
def test_bad_settings_are_refused_without_their_secrets(changes, words):
    message = refuse("", Endpoint, **{"model": "m", **changes})
    assert words in message
    assert "topsecret" not in message


@pytest.mark.parametrize(("answered_before", "kind"), [(False, BadInput), (True, RequestFailed)])
def test_a_403_is_about_the_key_until_there_was_an_answer(answered_before, kind):
    refusal = ("status", (403, {"error": {"code": "blocked"}}, {}))

    async def run(server):
        client = Client(Endpoint("m", server.base_url), Budget(None), PROMPT.schema)
        client.answered_before = answered_before
        requests = (client.ask(MESSAGES, about=ABOUT, record=lambda reply: None) for _ in range(3))
        outcomes = [(await asyncio.gather(request, return_exceptions=True))[0] for request in requests]
        await client.close()
        return [type(outcome) for outcome in outcomes if isinstance(outcome, Exception)]

    with MisbehavingServer(lambda request, number: None if number == 1 else refusal) as server:
        assert asyncio.run(run(server)) == [kind, RequestRefused]


def test_keys(monkeypatch):
    with MisbehavingServer() as server:
        ask(server, key_variable="")
    assert KEY not in repr(server.headers)
    refuse("key-variable=", lambda: read_key(Endpoint("m", key_variable="")))
    local = Endpoint("m", "http://localhost:1/v1", key_variable="SOME_KEY")
    assert read_key(local) == "none"
    monkeypatch.setenv("SOME_KEY", " ollama \n")
    assert read_key(local) == "ollama"
    monkeypatch.setenv("SOME_KEY", "top\nsecret")
    assert "secret" not in refuse("", read_key, local)
    monkeypatch.delenv("OPENAI_API_KEY")
    refuse("OPENAI_API_KEY is required", lambda: read_key(Endpoint("m")))
    assert hide_key("an ollama", "ollama") == "an ollama"
    monkeypatch.setenv("OPENAI_ORG_ID", "org-marker")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "project-marker")
    assert "marker" not in str(connect(local, "a key", None).default_headers)  # goes to no host


@pytest.mark.parametrize(
    "behaviour",
    [
        *(("hang_up", None), ("answer", f"Authorization: Bearer {KEY}"), ("body", f"Bearer {KEY}".encode())),
        *(
            ("flood", (500, KEY.encode() * 100)),
            ("status", (401, {"error": {"message": KEY, "code": KEY}}, {"X": KEY})),
        ),
    ],
)
def test_neither_key_nor_report_is_in_any_error_record_or_log(behaviour, caplog):
    caplog.set_level(logging.DEBUG)
    with MisbehavingServer(lambda request, number: behaviour) as server:
        (outcome,), recorded = ask(server, timeout=0.2, num_attempts=2)
    said = repr([outcome, getattr(outcome, "__cause__", None)]) + str(outcome) + repr(recorded) + caplog.text
    assert KEY not in said
    assert "Example" not in said
