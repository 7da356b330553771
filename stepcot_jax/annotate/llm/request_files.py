"""Requests as batch files (JSON Lines for hosted batch endpoints and `vllm run-batch`), and their replies.

A failed request has its error in the body of the response (OpenAI), or in `error`, as an object or a text (vLLM).
"""

import collections
import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from stepcot_jax.annotate.llm.answers import (
    FILE_NAME,
    LEDGER_FOLDER,
    Answers,
    Asked,
    Request,
    digest_text,
    shorten_model,
)
from stepcot_jax.annotate.llm.client import (
    TRANSIENT,
    AwaitsReply,
    Budget,
    Endpoint,
    Record,
    RequestRefused,
    bound_prompt_tokens,
    describe_status,
    find_alternative,
    find_refused_setting,
    first_wording,
    fold_body,
    shows_picture,
    suggest_omitting,
    write_settings,
)
from stepcot_jax.annotate.llm.interviews import identify
from stepcot_jax.annotate.llm.prompts import Message, Prompt
from stepcot_jax.annotate.llm.replies import Entry, read_body, start_entry
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import lock_folder, make_workdir, sync_folder
from stepcot_jax.host.text import one_line
from stepcot_jax.host.untrusted import iterate_lines, open_untrusted

FOLDER = "batch"
OLD_JOURNAL = "journal.jsonl"
URL = "/v1/chat/completions"

_MAX_LINE_BYTES = 1 << 24
_NUM_SHOWN = 5
_CONFIGURATION = frozenset({401, 402, 403, 404, 405})
"""Statuses about key, credit, address or model: another attempt may succeed once these are corrected."""


@dataclasses.dataclass(frozen=True)
class BatchLimits:
    """Settings of batch files."""

    max_requests: int = 50_000  # most requests of a file
    max_bytes: int = 200_000_000  # most bytes of a file
    again: bool = False  # whether to write requests without an answer again: outstanding, given up or refused

    def __post_init__(self) -> None:
        for flag, number in (("--max-requests", self.max_requests), ("--max-megabytes", self.max_bytes)):
            if number < 1:
                raise BadInput(f"{flag} must be above 0")


class Outbox:
    """The batch files of one round; a context that stores the requests once their files are on the disk."""

    def __init__(self, folder: Path, answers: Answers, limits: BatchLimits) -> None:
        self.answers, self._folder, self._limits = answers, folder / FOLDER, limits
        make_workdir(self._folder)
        answers.import_journal(self._folder / OLD_JOURNAL)
        self.round = answers.num_rounds + 1
        self.files: dict[Path, tuple[int, str]] = {}  # files written, with the number of requests and the model of each
        # names of requests that this round needs and that have waited for a reply since an earlier round
        self.outstanding: set[str] = set()
        self.num_unaffordable = 0  # requests not written because of the spending cap
        self._open: dict[tuple[str, str], tuple[Path, BinaryIO, int, int]] = {}
        self._written: dict[str, Asked] = {}
        # Upper bound of the tokens of requests without a reply, those of this round included. Requests that are written
        # again count twice: the earlier file may still be answered, and paid for.
        self.num_reserved = sum(asked.num_tokens for asked in answers.outstanding())

    def connect(self, endpoint: Endpoint, budget: Budget, prompt: Prompt) -> "BatchClient":
        """Return the client of one model and prompt, which writes requests."""
        return BatchClient(self, endpoint, budget, prompt)

    def may_afford(self, num_tokens: int, budget: Budget) -> bool:
        """Return whether a request fits under the cap, with tokens spent and requests without a reply."""
        if budget.cap is not None and budget.num_spent + self.num_reserved + num_tokens > budget.cap:
            self.num_unaffordable += 1
            return False
        self.num_reserved += num_tokens
        return True

    def is_open(self, name: str) -> bool:
        """Return whether a request is in a file and has no reply; raise for one that was given up."""
        if name in self._written:
            return True
        request = self.answers.find_request(name)
        if request is None or self._limits.again:
            return False
        if request.how == "refused":
            raise RequestRefused(request.problem)
        _, most = self.answers.identity(request.asked.ledger)
        if request.how == "failed" and request.num_failures >= most:
            raise RequestRefused(f"{request.problem} (attempts: {request.num_failures})")
        if not request.how:
            self.outstanding.add(name)
        return not request.how

    def write(self, endpoint: Endpoint, asked: Asked, line: bytes) -> None:
        """Write a request to the current file of its model, or a new one."""
        limits, key = self._limits, (endpoint.model, endpoint.base_url)
        if len(line) > limits.max_bytes:
            raise RequestRefused(f"the request has {len(line)} bytes, more than a file of --max-megabytes")
        path, file, number, num_bytes = self._open.get(key) or self._start(endpoint)
        if number == limits.max_requests or num_bytes + len(line) > limits.max_bytes:
            _finish(file)
            path, file, number, num_bytes = self._start(endpoint)
        file.write(line)
        self._open[key] = path, file, number + 1, num_bytes + len(line)
        self.files[path] = (number + 1, endpoint.model)
        self._written[asked.id] = asked

    def _start(self, endpoint: Endpoint) -> tuple[Path, BinaryIO, int, int]:
        """Open a new file, readable by its owner only because it holds reports."""
        stem = f"round-{self.round:03}-{shorten_model(endpoint.model)}-"
        number = 1 + sum(path.name.startswith(stem) for path in self.files)
        path = self._folder / f"{stem}{number:03}.jsonl"
        descriptor = os.open(_partial(path), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        return path, os.fdopen(descriptor, "wb"), 0, 0

    def __enter__(self) -> "Outbox":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            for part in self._open.values():
                _finish(part[1])
            if kind is None:
                for path in self.files:
                    _partial(path).rename(path)
        finally:  # on a full disk the last flush fails too
            for path in self.files:
                _partial(path).unlink(missing_ok=True)
        if kind is not None:
            return
        sync_folder(self._folder)
        with self.answers.transaction():
            for asked in self._written.values():
                self.answers.ask(asked)


def _partial(path: Path) -> Path:
    """Return the name that a file has until all of it is written: nobody should send the beginning of one."""
    return path.with_name(f".{path.name}.partial")


def _finish(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
    file.close()


class BatchClient:
    """Stand-in for `client.Client` that writes each request to a file, once, and never has an answer."""

    answered_before = False
    largest_counted: int | None = None

    def __init__(self, outbox: Outbox, endpoint: Endpoint, budget: Budget, prompt: Prompt) -> None:
        self._outbox, self._endpoint, self._budget, self._prompt = outbox, endpoint, budget, prompt
        self._ledger = outbox.answers.add_identity(identify(endpoint, prompt), num_attempts=endpoint.num_attempts)
        self._form, self._tokens_name = outbox.answers.wording(self._ledger, first=first_wording(prompt.schema))

    async def ask(self, messages: Sequence[Message], *, about: Mapping[str, str], record: Record) -> Entry:  # noqa: ARG002
        """Write a request unless it is in a file already."""
        endpoint, outbox = self._endpoint, self._outbox
        digest = digest_text(" ".join((self._ledger, about["request"], about["report"])))
        name = f"{self._prompt.task[:20]}-{digest[:32]}"
        asked = Asked(
            id=name,
            round=outbox.round,
            ledger=self._ledger,
            **about,
            form=self._form,
            tokens_name=self._tokens_name,
            prompt_tokens=bound_prompt_tokens(messages, self._prompt.schema, largest_counted=self.largest_counted),
            answer_tokens=endpoint.max_answer_tokens,
            has_picture=shows_picture(messages),
        )
        if not outbox.is_open(name) and outbox.may_afford(asked.num_tokens, self._budget):
            settings = write_settings(endpoint, self._prompt.schema, form=self._form, tokens_name=self._tokens_name)
            body = {"model": endpoint.model, "messages": list(messages), **settings}
            line = {"custom_id": asked.custom_id, "method": "POST", "url": URL, "body": body}
            outbox.write(endpoint, asked, msgspec.json.encode(line) + b"\n")
        raise AwaitsReply(name)

    async def close(self) -> None:
        """Do nothing: there is no connection."""


class _Response(msgspec.Struct):
    status_code: int = 200
    body: msgspec.Raw = msgspec.Raw(b"null")


class _Reply(msgspec.Struct):
    custom_id: str
    response: _Response | None = None
    error: object = None


@dataclasses.dataclass
class ReplyCounts:
    """Numbers of reply lines by outcome."""

    answered: int = 0
    repeated: int = 0  # lines about requests that were answered already, with the same answer
    # `custom_id` of such lines with another answer; the first answer stays
    differing: list[str] = dataclasses.field(default_factory=list)
    # `custom_id` of lines about requests that this folder did not write
    foreign: list[str] = dataclasses.field(default_factory=list)
    unreadable: list[str] = dataclasses.field(default_factory=list)  # position and fault of lines that are not replies
    # requests that the next round asks again, by problem
    failed: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    # requests that are not asked again, by problem
    refused: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    missing: int = 0  # number of requests without a reply

    def describe(self) -> Iterator[str]:
        """Yield the counts, one line per outcome."""
        yield f"{self.answered} answers taken"
        if self.repeated:
            yield f"{self.repeated} lines repeat what is known"
        for names, what in (
            (self.differing, "answered before, with another answer: the first stays"),
            (self.foreign, "not asked by this folder"),
        ):
            if names:
                more = f" and {len(names) - _NUM_SHOWN} more" if len(names) > _NUM_SHOWN else ""
                yield f"{len(names)} {what}: {', '.join(names[:_NUM_SHOWN])}{more}"
        for counts, what in ((self.failed, "to be asked again"), (self.refused, "refused")):
            yield from (f"{number} {what}: {problem}" for problem, number in counts.most_common())
        if self.missing:
            yield f"{self.missing} requests have no reply yet"


def import_replies(files: Sequence[Path], folder: Path) -> ReplyCounts:
    """Import the lines of reply files into the answers of a folder, in any order; a known line changes nothing."""
    journal, counts = folder / FOLDER / OLD_JOURNAL, ReplyCounts()
    if not (folder / FOLDER).is_dir() or not (journal.exists() or (folder / LEDGER_FOLDER / FILE_NAME).exists()):
        raise BadInput(f"{folder} has no batch; expected a folder that `annotate requests` wrote to")
    with lock_folder(folder), contextlib.closing(Answers(folder / LEDGER_FOLDER)) as answers:
        answers.import_journal(journal)
        for path in files:
            with answers.transaction():
                for reply in _read_replies(path, counts):
                    _import_reply(reply, answers, counts)
        counts.missing = len(answers.outstanding())
    num_known = (
        counts.answered + counts.repeated + len(counts.differing) + counts.failed.total() + counts.refused.total()
    )
    if not num_known and counts.foreign:
        raise BadInput(
            f"{', '.join(map(str, files))}: none of {len(counts.foreign)} replies is about a request of {folder} "
            f"(first custom_id: {counts.foreign[0]!r}); expected the replies to its batch files"
        )
    return counts


def _read_replies(path: Path, counts: ReplyCounts) -> Iterator[_Reply]:
    decoder = msgspec.json.Decoder(_Reply)
    try:
        with open_untrusted(path, accepted="replies of a batch, one a line") as file:
            for number, line in iterate_lines(file, path, most_bytes=_MAX_LINE_BYTES):
                try:
                    reply = decoder.decode(line)
                except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                    counts.unreadable.append(f"{path}, line {number} ({one_line(error)[:80]})")
                    continue
                yield reply
    except OSError as error:
        raise BadInput(f"{path} cannot be read ({error.strerror})") from None


def _find(custom_id: str, answers: Answers) -> tuple[Request | None, bool]:
    """Return the request of a reply, or None, and whether the reply is of its last round."""
    name, _, number = custom_id.rpartition("-r")
    request = answers.find_request(name)
    if request is None or not number.isdecimal() or not 1 <= int(number[:9]) <= request.asked.round:
        return None, False
    return request, int(number) == request.asked.round


def _import_reply(reply: _Reply, answers: Answers, counts: ReplyCounts) -> None:
    request, is_current = _find(reply.custom_id, answers)
    if request is None:
        counts.foreign.append(reply.custom_id[:80])
        return
    asked = request.asked
    known, entry = answers.find(asked.ledger, asked.report, asked.request), None
    if reply.response is not None and reply.response.status_code == 200 and reply.error is None:
        entry = _read_entry(reply.response.body, asked)
    if known is not None and (known.answer is not None or (entry is not None and entry.answer is None)):
        if entry is not None and entry.answer != known.answer:
            counts.differing.append(reply.custom_id)
        else:
            counts.repeated += 1
        if request.how != "answered":  # a live run asked it
            answers.end(asked.id, "answered")
    elif entry is not None and entry.is_final:
        answers.add(asked.ledger, entry)
        if entry.answer is None:  # refused or filtered, and paid for
            counts.refused[entry.problem] += 1
        else:
            counts.answered += 1
        answers.end(asked.id, "answered")
    elif request.how or not is_current:
        counts.repeated += 1  # a failure that is known, or that a later round has asked again
    else:
        if entry is not None:
            answers.add(asked.ledger, entry)  # without an answer, but possibly charged
        how, problem = ("failed", entry.problem) if entry is not None else _judge(reply, asked, answers)
        (counts.refused if how == "refused" else counts.failed)[problem] += 1
        answers.end(asked.id, how, problem)


def _read_entry(body: msgspec.Raw, asked: Asked) -> Entry:
    about = {"report": asked.report, "text": asked.text, "request": asked.request}
    bounds = {"prompt_tokens": asked.prompt_tokens, "answer_tokens": asked.answer_tokens}
    lost = start_entry(about, form=asked.form, has_picture=asked.has_picture, **bounds)
    return read_body(bytes(body), lost=lost, key="")


def _judge(reply: _Reply, asked: Asked, answers: Answers) -> tuple[str, str]:
    """Return the outcome of an error (another attempt, another wording or giving up) and its message."""
    response, content = reply.response, reply.error
    if content is None and response is not None:
        with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            content = msgspec.json.decode(response.body)
    body, inner = fold_body(content), content.get("error", content) if isinstance(content, dict) else {}
    error: dict[str, Any] = inner if isinstance(inner, dict) else {}
    code, param = error.get("code") or error.get("type"), error.get("param")
    if response is None or response.status_code == 200:
        short = describe_status(0, code).removeprefix("HTTP 0").strip(" ()")
        return "failed", f"not answered ({short or 'no reason given'})"
    status, problem = response.status_code, describe_status(response.status_code, code, param)
    wording = find_alternative(status, body, form=asked.form, tokens_name=asked.tokens_name)
    if wording is not None:
        used = asked.form, asked.tokens_name
        if answers.wording(asked.ledger, first=used) == used:
            answers.learn(asked.ledger, *wording)
        # As in a live run, this is no failed attempt.
        return "reworded", f"{problem}: to be asked with {wording[0]}, {wording[1]}"
    if status in (400, 422):
        decoding = answers.identity(asked.ledger)[0]["decoding"]
        problem += suggest_omitting(find_refused_setting(decoding, body, param))
    may_succeed = status in TRANSIENT | _CONFIGURATION or status >= 500 or "insufficient_quota" in body
    return "failed" if may_succeed else "refused", problem
