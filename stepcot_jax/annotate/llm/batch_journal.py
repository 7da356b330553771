"""The journal of a folder's batches: which requests were written to files, and what became of each.

It is a JSON Lines file that only grows; the answers themselves are in the ledgers.
"""

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from stepcot_jax.annotate.llm.ledger import digest_text
from stepcot_jax.annotate.llm.request_settings import TOKENS_NAMES
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import make_workdir
from stepcot_jax.host.text import one_line
from stepcot_jax.host.untrusted import open_untrusted

FOLDER = "batch"
FILE_NAME = "journal.jsonl"

_MAX_LINE_BYTES = 1 << 22


class Asked(msgspec.Struct, frozen=True, tag="asked", kw_only=True):
    """A request in a batch file.

    Attributes:
      id: its name, the same in all rounds; with the round it is the line's `custom_id`.
      round: number of the round, from 1.
      ledger: digest of the identity of its ledger.
      text: SHA-256 of the report's text.
      tokens_name: name of the limit of the answer.
      prompt_tokens: upper bound of the prompt.
      has_picture: whether the prompt shows a picture.
    """

    id: str
    round: int
    ledger: str
    report: str
    text: str
    request: str
    form: str
    tokens_name: str
    prompt_tokens: int
    answer_tokens: int
    has_picture: bool = False

    @property
    def custom_id(self) -> str:
        """Name of the request in its file; tells a late reply of an earlier round from one of this round."""
        return f"{self.id}-r{self.round}"


class Ended(msgspec.Struct, frozen=True, tag="ended", kw_only=True, omit_defaults=True):
    """What became of a request: answered, failed or reworded so that it is asked again, or refused for good."""

    id: str
    how: Literal["answered", "failed", "reworded", "refused"]
    problem: str = ""


class Identity(msgspec.Struct, frozen=True, tag="identity"):
    """What the requests of a ledger share, and the number of attempts until one is given up."""

    ledger: str
    fields: dict[str, Any]
    num_attempts: int


class Learned(msgspec.Struct, frozen=True, tag="learned"):
    """The wording that the endpoint of a ledger accepts."""

    ledger: str
    form: str
    tokens_name: str


Line = Asked | Ended | Identity | Learned


@dataclasses.dataclass
class Request:
    """The state of a request: its last `Asked`, attempts without an answer, and how the last one ended ("" if open)."""

    asked: Asked
    num_failures: int = 0
    how: str = ""
    problem: str = ""


class Journal:
    """The requests of a folder by `custom_id`; one process at a time writes."""

    def __init__(self, folder: Path) -> None:
        make_workdir(folder)
        self.path = folder / FILE_NAME
        self.requests: dict[str, Request] = {}
        self.identities: dict[str, Identity] = {}
        self._unwritten: list[Line] = []
        self._wordings: dict[str, tuple[str, str]] = {}
        self.num_rounds = 0
        end = self._read() if self.path.exists() else 0
        self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.ftruncate(self._file, end)  # cuts off what a kill left incomplete

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def add(self, *lines: Line) -> None:
        """Note lines; `flush` writes them."""
        self._unwritten += lines
        for line in lines:
            self._note(line)

    def flush(self) -> None:
        """Write noted lines, and sync them to disk."""
        content = memoryview(msgspec.json.Encoder().encode_lines(self._unwritten))
        while content:
            content = content[os.write(self._file, content) :]
        os.fsync(self._file)
        self._unwritten.clear()

    def find(self, custom_id: str) -> tuple[Request | None, bool]:
        """Return the request of a reply, or None, and whether the reply is of its last round."""
        name, _, number = custom_id.rpartition("-r")
        request = self.requests.get(name)
        if request is None or not number.isdecimal() or not 1 <= int(number[:9]) <= request.asked.round:
            return None, False
        return request, int(number) == request.asked.round

    def wording(self, ledger: str, *, form: str) -> tuple[str, str]:
        """Return form and name of the limit for the next request of a ledger; `form` is the first to try."""
        return self._wordings.get(ledger, (form, TOKENS_NAMES[0]))

    def outstanding(self) -> list[Asked]:
        """Return the requests without a reply."""
        return [request.asked for request in self.requests.values() if not request.how]

    def _read(self) -> int:
        decoder, end = msgspec.json.Decoder(Line), 0
        with open_untrusted(self.path, accepted="the journal of batches") as file:
            size = os.fstat(file.fileno()).st_size
            for number, line in enumerate(iter(lambda: file.readline(_MAX_LINE_BYTES), b""), start=1):
                try:
                    if not line.endswith(b"\n"):
                        raise msgspec.DecodeError("without an end of line")
                    self._note(decoder.decode(line))
                except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                    if end + len(line) == size:
                        break
                    problem = f"line {number} is not an entry ({one_line(error)[:80]})"
                    raise BadInput(f"{self.path}, {problem}; restore the file") from None
                end += len(line)
        return end

    def _note(self, line: Line) -> None:
        if isinstance(line, Asked):
            before = self.requests.get(line.id)
            failures = before.num_failures if before and before.how in ("failed", "reworded") else 0
            self.requests[line.id] = Request(line, failures)
            self.num_rounds = max(self.num_rounds, line.round)
        elif isinstance(line, Identity):
            self.identities[line.ledger] = line
        elif isinstance(line, Learned):
            self._wordings[line.ledger] = (line.form, line.tokens_name)
        elif line.id in self.requests:
            request = self.requests[line.id]
            request.num_failures += line.how == "failed"
            request.how, request.problem = line.how, line.problem


def name_request(task: str, ledger: str, about: Mapping[str, str]) -> str:
    """Return the name of a request, the same whenever it is written."""
    digest = digest_text(" ".join((ledger, about["request"], about["report"])))
    return f"{task[:20]}-{digest[:32]}"
