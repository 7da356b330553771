"""Every answer that was paid for, on disk before it is used, so that a killed run pays for nothing twice.

A ledger is a file of JSON lines: a header that says which task, prompt, model and decoding settings its answers belong
to, then one line a request. A line is synchronised to the disk before the answer is used. One process at a time writes
to a ledger; whatever a kill left of a last line is cut off when it is opened again.
"""

import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from stepcot_jax.annotate.prompt import Message
from stepcot_jax.host.errors import BadInput, RunStopped, make_workdir
from stepcot_jax.host.locks import lock_file

FORMAT = "stepcot_jax ledger 1"
SUFFIX = ".jsonl"

_MAX_LINE_BYTES = 1 << 26


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request and what came of it.

    Attributes:
      report: id of the report.
      text: SHA-256 of the report's text.
      request: SHA-256 of the messages, which tells a repair from the first question.
      answer: as the model wrote it; None where there was none.
      problem: why there is no answer; "" where there is one.
      is_final: whether to ask again is pointless (an answer, or one too large to take).
      finish: why the model ended, as the endpoint says.
      served_model: the model as the endpoint names it, which may be more exact than what was asked for.
      form: how a JSON answer was asked for: "json_schema", "json_object" or "plain".
      prompt_tokens: of the question.
      answer_tokens: of the answer.
      is_counted: whether the endpoint counted the tokens; where not, they are an upper bound.
      seconds: from question to answer.
      time: when the answer came, ISO 8601 with its zone.
    """

    report: str
    text: str
    request: str
    answer: str | None
    problem: str = ""
    is_final: bool = True
    finish: str = ""
    served_model: str = ""
    form: str
    prompt_tokens: int
    answer_tokens: int
    is_counted: bool = True
    seconds: float
    time: str

    @property
    def num_tokens(self) -> int:
        """Tokens that the request cost."""
        return self.prompt_tokens + self.answer_tokens


@dataclasses.dataclass(frozen=True)
class Identity:
    """What the answers of a ledger have in common.

    Attributes:
      task: "annotate", "trust" or "vote".
      prompt_version: of the template.
      prompt_digest: of the template's text, the chain in it and the schema.
      model: as it is asked for.
      decoding: the settings of the decoding.
    """

    task: str
    prompt_version: str
    prompt_digest: str
    model: str
    decoding: tuple[tuple[str, float | int], ...]

    @property
    def header(self) -> dict[str, Any]:
        """The first line of the file."""
        return {"format": FORMAT, **dataclasses.asdict(self), "decoding": dict(self.decoding)}

    @property
    def file_name(self) -> str:
        """A name that no other identity has."""
        digest = hashlib.sha256(json.dumps(self.header, sort_keys=True).encode()).hexdigest()
        model = re.sub(r"[^A-Za-z0-9.-]+", "_", self.model).strip("._")[:60]
        return f"{self.task}-{model}-{digest[:12]}{SUFFIX}"


def digest_text(text: str) -> str:
    """SHA-256 of a text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def digest_messages(messages: Sequence[Message]) -> str:
    """SHA-256 of a request's messages."""
    return digest_text(json.dumps(messages, sort_keys=True))


class Ledger:
    """The answers to one prompt by one model; opened for one process at a time.

    Args:
      folder: where the ledgers of a run are; made where it is missing.
      identity: whose answers; others are kept in files of their own.

    Raises:
      BadInput: another process has it open, or the file is damaged before its last line.
    """

    def __init__(self, folder: Path, identity: Identity) -> None:
        make_workdir(folder)
        self.path = folder / identity.file_name
        self.num_tokens = 0
        self._places: dict[tuple[str, str], tuple[int, int]] = {}
        try:
            self._file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        except OSError as error:
            raise BadInput(f"{self.path}: cannot be opened ({error.strerror}), accepted is a ledger file") from None
        try:
            lock_file(self._file, self.path)
            self._size = self._read(identity)
            if not self._size:
                self._write(json.dumps(identity.header, ensure_ascii=False).encode() + b"\n")
                _sync_folder(folder)
        except BaseException:
            os.close(self._file)
            raise

    def __enter__(self) -> "Ledger":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __len__(self) -> int:
        """Number of requests with a final answer."""
        return len(self._places)

    def close(self) -> None:
        """Let another process open it."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def find(self, report: str, request: str) -> Entry | None:
        """The final entry of a request about a report, or None where it has to be asked."""
        place = self._places.get((report, request))
        if place is None:
            return None
        return msgspec.json.decode(os.pread(self._file, place[1], place[0]), type=Entry)

    def append(self, entry: Entry) -> None:
        """Write an entry to the disk.

        Raises:
          RunStopped: the disk does not take it; nothing of it is left.
        """
        line = msgspec.json.encode(entry) + b"\n"
        start = self._size
        self._write(line)
        self._count(entry, start, len(line))

    def _write(self, line: bytes) -> None:
        try:
            rest = memoryview(line)
            while rest:
                rest = rest[os.write(self._file, rest) :]
            os.fsync(self._file)
        except OSError as error:
            os.ftruncate(self._file, self._size)
            raise RunStopped(
                f"{self.path}: an answer could not be written ({error.strerror}); what was written before stays, "
                "the same command goes on from there"
            ) from None
        self._size += len(line)

    def _read(self, identity: Identity) -> int:
        """Take note of the lines of an existing file, cut off what a kill left of the last; returns its size."""
        position, number = 0, 0
        with os.fdopen(os.dup(self._file), "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(0)
            while line := file.readline(_MAX_LINE_BYTES):
                try:
                    self._take(line, identity, is_header=number == 0, position=position)
                except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                    # Only the last line can be torn: each is synchronised before the next is begun.
                    if position + len(line) == size:
                        os.ftruncate(self._file, position)
                        os.fsync(self._file)
                        return position
                    raise BadInput(
                        f"{self.path}: line {number + 1}: found a line that is no entry of a ledger "
                        f"({str(error)[:80]}), accepted is a file as it was written; only its last line may be torn"
                    ) from None
                position, number = position + len(line), number + 1
        return position

    def _take(self, line: bytes, identity: Identity, *, is_header: bool, position: int) -> None:
        if not line.endswith(b"\n"):
            raise msgspec.DecodeError("without an end of line")
        if not is_header:
            self._count(msgspec.json.decode(line, type=Entry), position, len(line))
        elif msgspec.json.decode(line) != identity.header:
            raise BadInput(f"{self.path}: line 1: found the ledger of another prompt, model or setting")

    def _count(self, entry: Entry, position: int, length: int) -> None:
        self.num_tokens += entry.num_tokens
        if entry.is_final:
            self._places[entry.report, entry.request] = (position, length)


def _sync_folder(folder: Path) -> None:
    """Make a new file's name survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
