"""Write requests to batch files instead of sending them: JSON Lines for hosted batch endpoints and `vllm run-batch`."""

import collections
import contextlib
import dataclasses
import datetime
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Literal

import msgspec

from stepcot_jax.annotate.llm.answers import (
    FILE_NAME,
    FOLDER,
    Asked,
    Ended,
    Identity,
    Journal,
    Learned,
    Ledger,
    Request,
    digest_identity,
    name_request,
    shorten_model,
)
from stepcot_jax.annotate.llm.client import (
    TRANSIENT,
    AwaitsReply,
    Budget,
    RequestRefused,
    find_alternative,
    find_refused_setting,
    first_form,
    fold_body,
    say_status,
    write_settings,
)
from stepcot_jax.annotate.llm.endpoint import Endpoint
from stepcot_jax.annotate.llm.interviews import identify
from stepcot_jax.annotate.llm.prompts import Message, Prompt
from stepcot_jax.annotate.llm.replies import Entry, bound_prompt_tokens, read_reply, shows_picture
from stepcot_jax.annotate.output import LEDGER_FOLDER
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import sync_folder
from stepcot_jax.host.locks import lock_folder
from stepcot_jax.host.text import one_line
from stepcot_jax.host.untrusted import iterate_lines, open_untrusted

URL = "/v1/chat/completions"


@dataclasses.dataclass(frozen=True)
class BatchLimits:
    """Settings of batch files.

    Attributes:
      max_requests: most requests of a file.
      max_bytes: most bytes of a file.
      again: whether to write requests without an answer again: outstanding, given up or refused.
    """

    max_requests: int = 50_000
    max_bytes: int = 200_000_000
    again: bool = False

    def __post_init__(self) -> None:
        for flag, found in (("--max-requests", self.max_requests), ("--max-megabytes", self.max_bytes)):
            if found < 1:
                raise BadInput(f"{flag} must be above 0")


class Outbox:
    """The batch files of one round.

    Attributes:
      files: files written, with the number of requests and the model of each.
      outstanding: names of requests that are needed now and wait for a reply since an earlier round.
      num_reserved: upper bound of the tokens of requests without a reply, those of this round included.
      num_unaffordable: requests not written because of the spending cap.
    """

    def __init__(self, folder: Path, limits: BatchLimits) -> None:
        self._folder, self._limits = folder / FOLDER, limits
        self.journal = Journal(self._folder)
        self.round = self.journal.num_rounds + 1
        self.files: dict[Path, tuple[int, str]] = {}
        self.outstanding: set[str] = set()
        self.num_unaffordable = 0
        self._open: dict[tuple[str, str], _Part] = {}
        self._written: dict[str, Asked] = {}
        # Of requests that are written again, too: the earlier file may be answered, and paid, all the same.
        self.num_reserved = sum(each.prompt_tokens + each.answer_tokens for each in self.journal.outstanding())

    def connect(self, endpoint: Endpoint, budget: Budget, prompt: Prompt) -> "BatchClient":
        """Return the client of one model and prompt, which writes requests."""
        return BatchClient(self, endpoint, budget, prompt)

    def may_afford(self, num_tokens: int, budget: Budget) -> bool:
        """Return whether a request fits into the cap beside what is spent and what waits for replies."""
        if budget.cap is not None and budget.num_spent + self.num_reserved + num_tokens > budget.cap:
            self.num_unaffordable += 1
            return False
        self.num_reserved += num_tokens
        return True

    def is_open(self, name: str) -> bool:
        """Return whether a request is in a file and has no reply; raise for one that was given up."""
        if name in self._written:
            return True
        request = self.journal.requests.get(name)
        if request is None or self._limits.again:
            return False
        if request.how == "refused":
            raise RequestRefused(request.problem)
        most = self.journal.identities[request.asked.ledger].num_attempts
        if request.how == "failed" and request.num_failures >= most:
            raise RequestRefused(f"{request.problem} (attempts: {request.num_failures})")
        if not request.how:
            self.outstanding.add(name)
        return not request.how

    def write(self, endpoint: Endpoint, asked: Asked, line: bytes) -> None:
        """Write a request to the current file of its model, or a new one."""
        if len(line) > self._limits.max_bytes:
            raise RequestRefused(f"the request has {len(line)} bytes, more than a file of --max-megabytes")
        place = (endpoint.model, endpoint.base_url)
        part = self._open.get(place)
        if part is None or not part.has_room(len(line), self._limits):
            if part is not None:
                part.close()
            part = self._open[place] = self._start(endpoint)
        part.write(line)
        self.files[part.path] = (part.num_requests, endpoint.model)
        self._written[asked.id] = asked

    def __enter__(self) -> "Outbox":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Note the requests once their files are on the disk; after an error, remove the files instead."""
        for part in self._open.values():
            part.close()
        if kind is None:
            sync_folder(self._folder)
            self.journal.add(*self._written.values())
        else:
            for path in self.files:
                path.unlink(missing_ok=True)
        self.journal.flush()
        self.journal.close()

    def _start(self, endpoint: Endpoint) -> "_Part":
        model = shorten_model(endpoint.model)
        number = 1 + sum(path.name.startswith(f"round-{self.round:03}-{model}-") for path in self.files)
        return _Part(self._folder / f"round-{self.round:03}-{model}-{number:03}.jsonl")


class _Part:
    """A batch file; readable by its owner only, because it holds reports."""

    def __init__(self, path: Path) -> None:
        self.path, self.num_requests, self._num_bytes = path, 0, 0
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        self._file: BinaryIO = os.fdopen(descriptor, "wb")

    def has_room(self, num_bytes: int, limits: BatchLimits) -> bool:
        return self.num_requests < limits.max_requests and self._num_bytes + num_bytes <= limits.max_bytes

    def write(self, line: bytes) -> None:
        self._file.write(line)
        self.num_requests += 1
        self._num_bytes += len(line)

    def close(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()


class BatchClient:
    """Takes the place of `client.Client`: writes each request to a file, once, and never has an answer."""

    answered_before = False
    largest_counted: int | None = None

    def __init__(self, outbox: Outbox, endpoint: Endpoint, budget: Budget, prompt: Prompt) -> None:
        self._outbox, self._endpoint, self._budget, self._prompt = outbox, endpoint, budget, prompt
        identity = identify(endpoint, prompt)
        self._ledger, journal = digest_identity(identity), outbox.journal
        known = Identity(self._ledger, identity, endpoint.num_attempts)
        if journal.identities.get(self._ledger) != known:
            journal.add(known)
        self._form, self._tokens_name = journal.wording(self._ledger, form=first_form(prompt.schema))

    async def ask(
        self,
        messages: Sequence[Message],
        *,
        about: Mapping[str, str],
        record: Callable[[Entry], None],  # noqa: ARG002
    ) -> Entry:
        """Write a request unless it is in a file already."""
        name, outbox = name_request(self._prompt.task, self._ledger, about), self._outbox
        bound = bound_prompt_tokens(messages, self._prompt.schema, largest_counted=self.largest_counted)
        bounds = (bound, self._endpoint.max_answer_tokens)
        if not outbox.is_open(name) and outbox.may_afford(sum(bounds), self._budget):
            settings = write_settings(
                self._endpoint, self._prompt.schema, form=self._form, tokens_name=self._tokens_name
            )
            body = {"model": self._endpoint.model, "messages": list(messages), **settings}
            asked = Asked(
                id=name,
                round=outbox.round,
                ledger=self._ledger,
                **about,
                form=self._form,
                tokens_name=self._tokens_name,
                prompt_tokens=bounds[0],
                answer_tokens=bounds[1],
                has_picture=shows_picture(messages),
            )
            line = {"custom_id": asked.custom_id, "method": "POST", "url": URL, "body": body}
            outbox.write(self._endpoint, asked, msgspec.json.encode(line) + b"\n")
        raise AwaitsReply(name)

    async def close(self) -> None:
        """Do nothing: there is no connection."""


# Take the replies of a batch into the ledgers: OpenAI's output and error files, and those of `vllm run-batch`.
#
# A line of either layout has `custom_id` and `response` with `status_code` and `body`. A failed request has its error
# in the body of the response (OpenAI), or in `error`, as an object or a text (vLLM; OpenAI for one that was never
# sent).


_MAX_LINE_BYTES = 1 << 24
_NUM_SHOWN = 5
_CONFIGURATION = frozenset({401, 402, 403, 404, 405})
"""Statuses about key, credit, address or model: another attempt may succeed once these are put right."""


class _Response(msgspec.Struct):
    status_code: int = 200
    body: msgspec.Raw = msgspec.Raw(b"null")


class _Reply(msgspec.Struct):
    custom_id: str
    response: _Response | None = None
    error: object = None


@dataclasses.dataclass
class Taken:
    """What became of the lines of reply files.

    Attributes:
      repeated: lines about requests that were answered already, with the same answer.
      differing: `custom_id` of such lines with another answer; the first answer stays.
      foreign: `custom_id` of lines about requests that this folder did not write.
      unreadable: number of lines that are no replies.
      first_unreadable: place and fault of the first of them.
      failed: requests that the next round asks again, by problem.
      refused: requests that are not asked again, by problem.
      missing: number of requests without a reply.
    """

    answered: int = 0
    repeated: int = 0
    differing: list[str] = dataclasses.field(default_factory=list)
    foreign: list[str] = dataclasses.field(default_factory=list)
    unreadable: int = 0
    first_unreadable: str = ""
    failed: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    refused: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    missing: int = 0


def take_from_files(files: Sequence[Path], folder: Path) -> Taken:
    """Take the lines of reply files into the ledgers of a folder; see `take_replies`."""
    if not (folder / FOLDER / FILE_NAME).exists():
        raise BadInput(f"{folder / FOLDER} has no {FILE_NAME}; expected a folder that `annotate requests` wrote to")
    with lock_folder(folder), contextlib.closing(Journal(folder / FOLDER)) as journal:
        taken = take_replies(files, journal=journal, ledgers=folder / LEDGER_FOLDER)
    num_known = taken.answered + taken.repeated + len(taken.differing) + taken.failed.total() + taken.refused.total()
    if not num_known and taken.foreign:
        names = ", ".join(map(str, files))
        raise BadInput(
            f"{names}: none of {len(taken.foreign)} replies is about a request of {folder} (first custom_id: "
            f"{taken.foreign[0]!r}); expected the replies to its batch files"
        )
    return taken


def describe_replies(taken: Taken) -> Iterator[str]:
    """Yield what became of the lines, one kind a line."""
    yield f"{taken.answered} answers taken"
    if taken.repeated:
        yield f"{taken.repeated} lines repeat what is known"
    for names, what in (
        (taken.differing, "answered before, with another answer: the first stays"),
        (taken.foreign, "not asked by this folder"),
    ):
        if names:
            more = f" and {len(names) - _NUM_SHOWN} more" if len(names) > _NUM_SHOWN else ""
            yield f"{len(names)} {what}: {', '.join(names[:_NUM_SHOWN])}{more}"
    for counts, what in ((taken.failed, "to be asked again"), (taken.refused, "refused")):
        yield from (f"{number} {what}: {problem}" for problem, number in counts.most_common())
    if taken.missing:
        yield f"{taken.missing} requests have no reply yet"


def take_replies(files: Sequence[Path], *, journal: Journal, ledgers: Path) -> Taken:
    """Take the lines of reply files into the ledgers, in any order; what is known already changes nothing."""
    taken = Taken()
    with contextlib.ExitStack() as stack:
        opened: dict[str, Ledger] = {}
        for name, identity in journal.identities.items():
            opened[name] = Ledger(ledgers, identity.fields)
            stack.callback(opened[name].close)
        for path in files:
            for reply in _read_replies(path, taken):
                _take(reply, journal, opened, taken)
            for ledger in opened.values():
                ledger.sync()
            journal.flush()
    taken.missing = len(journal.outstanding())
    return taken


def _read_replies(path: Path, taken: Taken) -> Iterator[_Reply]:
    decoder = msgspec.json.Decoder(_Reply)
    try:
        with open_untrusted(path, accepted="replies of a batch, one a line") as file:
            for number, line in iterate_lines(file, path, most_bytes=_MAX_LINE_BYTES):
                try:
                    reply = decoder.decode(line)
                except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                    taken.unreadable += 1
                    taken.first_unreadable = taken.first_unreadable or f"{path}, line {number} ({one_line(error)[:80]})"
                    continue
                yield reply
    except OSError as error:
        raise BadInput(f"{path} cannot be read ({error.strerror})") from None


def _take(reply: _Reply, journal: Journal, ledgers: Mapping[str, Ledger], taken: Taken) -> None:
    """Take one reply into its ledger and the journal."""
    request, is_current = journal.find(reply.custom_id)
    if request is None:
        taken.foreign.append(reply.custom_id[:80])
        return
    asked, ledger = request.asked, ledgers[request.asked.ledger]
    known = ledger.find(asked.report, asked.request)
    has_answer = reply.response is not None and reply.response.status_code == 200 and reply.error is None
    entry = _make_entry(reply, asked) if has_answer else None
    if known is not None and known.answer is not None:
        if entry is not None and entry.answer != known.answer:
            taken.differing.append(reply.custom_id)
        else:
            taken.repeated += 1
        if request.how != "answered":  # a kill came between ledger and journal, or a live run asked it
            journal.add(Ended(id=asked.id, how="answered"))
    elif entry is not None and entry.is_final:
        ledger.append(entry, sync=False)
        taken.answered += 1
        journal.add(Ended(id=asked.id, how="answered"))
    elif request.how or not is_current:
        taken.repeated += 1  # a failure that is known, or that a later round has asked again
    elif entry is not None:
        ledger.append(entry, sync=False)  # without an answer, but possibly charged
        _end(request, "failed", entry.problem, journal, taken)
    else:
        _fail(reply, request, journal, taken)


def _make_entry(reply: _Reply, asked: Asked) -> Entry:
    now = datetime.datetime.now(datetime.UTC)
    lost = Entry(
        report=asked.report,
        text=asked.text,
        request=asked.request,
        answer=None,
        is_final=False,
        form=asked.form,
        prompt_tokens=asked.prompt_tokens,
        answer_tokens=asked.answer_tokens,
        is_counted=False,
        has_picture=asked.has_picture,
        seconds=0.0,
        time=now.isoformat(timespec="seconds"),
    )
    return read_reply(bytes(reply.response.body) if reply.response is not None else b"", lost=lost, key="")


def _fail(reply: _Reply, request: Request, journal: Journal, taken: Taken) -> None:
    """Note an error: what it says decides between another attempt, another wording and giving up."""
    asked, response = request.asked, reply.response
    said = reply.error if reply.error is not None else _decode(response.body) if response is not None else None
    body, found = fold_body(said), said.get("error", said) if isinstance(said, dict) else {}
    error: dict[str, Any] = found if isinstance(found, dict) else {}
    code, param = error.get("code") or error.get("type"), error.get("param")
    if response is None or response.status_code == 200:
        short = say_status(0, code).removeprefix("HTTP 0").strip(" ()")
        _end(request, "failed", f"not answered ({short or 'no reason given'})", journal, taken)
        return
    status, problem = response.status_code, say_status(response.status_code, code, param)
    wording = find_alternative(status, body, form=asked.form, tokens_name=asked.tokens_name)
    if wording is not None:
        if journal.wording(asked.ledger, form=asked.form) == (asked.form, asked.tokens_name):
            journal.add(Learned(asked.ledger, *wording))
        # As in a live run, this is no failed attempt.
        _end(request, "reworded", f"{problem}: to be asked with {wording[0]}, {wording[1]}", journal, taken)
        return
    fields = journal.identities[asked.ledger].fields
    endpoint = Endpoint(fields["model"], **{"temperature": None, "seed": None, **fields["decoding"]})
    setting = find_refused_setting(endpoint, body, param) if status in (400, 422) else ""
    if setting:
        problem += f"; if the endpoint refuses this setting, pass --omit={setting}"
    may_succeed = status in TRANSIENT | _CONFIGURATION or status >= 500 or "insufficient_quota" in body
    _end(request, "failed" if may_succeed else "refused", problem, journal, taken)


def _decode(body: msgspec.Raw) -> object:
    try:
        return msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _end(
    request: Request, how: Literal["failed", "reworded", "refused"], problem: str, journal: Journal, taken: Taken
) -> None:
    (taken.refused if how == "refused" else taken.failed)[problem] += 1
    journal.add(Ended(id=request.asked.id, how=how, problem=problem))
