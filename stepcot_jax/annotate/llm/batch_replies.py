"""Take the replies of a batch into the ledgers: OpenAI's output and error files, and those of `vllm run-batch`.

A line of either layout has `custom_id` and `response` with `status_code` and `body`. A failed request has its error in
the body of the response (OpenAI), or in `error`, as an object or a text (vLLM; OpenAI for one that was never sent).
"""

import collections
import contextlib
import dataclasses
import datetime
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from stepcot_jax.annotate.llm.batch_journal import FILE_NAME, FOLDER, Asked, Ended, Journal, Learned, Request
from stepcot_jax.annotate.llm.endpoint import Endpoint
from stepcot_jax.annotate.llm.ledger import Ledger
from stepcot_jax.annotate.llm.replies import Entry, read_reply
from stepcot_jax.annotate.llm.request_settings import (
    TRANSIENT,
    find_alternative,
    find_refused_setting,
    fold_body,
    say_status,
)
from stepcot_jax.annotate.output import LEDGER_FOLDER
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.locks import lock_folder
from stepcot_jax.host.text import one_line
from stepcot_jax.host.untrusted import iterate_lines, open_untrusted

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
