"""A ledger of paid answers: each is on disk before it is used, so that a killed run pays for nothing twice.

A ledger is a JSON Lines file: a header with task, prompt, model and decoding settings, then one synced line per
request. One process at a time writes to it; opening it cuts off a last line that a kill left incomplete.
"""

import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from stepcot_jax.annotate.llm.prompt import Message
from stepcot_jax.host.errors import BadInput, RunStopped, make_workdir
from stepcot_jax.host.locks import lock_file

FORMAT = "stepcot_jax ledger 1"
SUFFIX = ".jsonl"

_MAX_LINE_BYTES = 1 << 26


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request and its outcome.

    Attributes:
      report: id of the report.
      text: SHA-256 of the report's text.
      request: SHA-256 of the messages, which differs between a question and its repairs.
      time: when the answer arrived, ISO 8601 with time zone.
      others: as in `Reply`, with `answer` for its `text`.
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
        """Tokens of prompt and answer."""
        return self.prompt_tokens + self.answer_tokens


@dataclasses.dataclass(frozen=True)
class Identity:
    """What all answers of a ledger share.

    Attributes:
      task: "annotate", "trust" or "vote".
      prompt_version: version of the template.
      prompt_digest: SHA-256 of template, chain and schema.
      model: name as requested.
      decoding: decoding settings.
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
        """A file name unique to this identity."""
        digest = hashlib.sha256(json.dumps(self.header, sort_keys=True).encode()).hexdigest()
        model = re.sub(r"[^A-Za-z0-9.-]+", "_", self.model).strip("._")[:60]
        return f"{self.task}-{model}-{digest[:12]}{SUFFIX}"


def digest_text(text: str) -> str:
    """SHA-256 of a text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def digest_messages(messages: Sequence[Message]) -> str:
    """Return the SHA-256 of a request's messages."""
    return digest_text(json.dumps(messages, sort_keys=True))


class Ledger:
    """The answers of one model to one prompt.

    Args:
      folder: folder of the ledgers; created if missing.
      identity: prompt, model and settings; each identity has its own file.

    Raises:
      BadInput: another process has it open, or it is damaged before its last line.
    """

    def __init__(self, folder: Path, identity: Identity) -> None:
        make_workdir(folder)
        self.path = folder / identity.file_name
        self.num_tokens = 0
        self._places: dict[tuple[str, str], tuple[int, int]] = {}
        try:
            self._file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        except OSError as error:
            raise BadInput(f"{self.path} cannot be opened ({error.strerror})") from None
        try:
            lock_file(self._file, self.path)
            self._size = self._read(identity)
            if not self._size:
                self._write(json.dumps(identity.header, ensure_ascii=False).encode() + b"\n")
                _sync_folder(folder)
        except BaseException:
            os.close(self._file)
            raise

    def __len__(self) -> int:
        """Return the number of requests with a final answer."""
        return len(self._places)

    def close(self) -> None:
        """Close the file and release its lock."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def find(self, report: str, request: str) -> Entry | None:
        """Return the final entry of a request about a report, or None."""
        place = self._places.get((report, request))
        if place is None:
            return None
        return msgspec.json.decode(os.pread(self._file, place[1], place[0]), type=Entry)

    def append(self, entry: Entry) -> None:
        """Write an entry and sync it to disk.

        Raises:
          RunStopped: the disk refuses it; no part of the entry remains.
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
                f"{self.path}: an answer cannot be written ({error.strerror}); earlier answers are kept, rerun the "
                "command to resume"
            ) from None
        self._size += len(line)

    def _read(self, identity: Identity) -> int:
        """Index the lines of an existing file, cut off an incomplete last line, and return the size."""
        position, number = 0, 0
        with os.fdopen(os.dup(self._file), "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(0)
            while line := file.readline(_MAX_LINE_BYTES):
                try:
                    self._take(line, identity, is_header=number == 0, position=position)
                except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                    # Each line is synced before the next, so only the last can be incomplete.
                    if position + len(line) == size:
                        os.ftruncate(self._file, position)
                        os.fsync(self._file)
                        return position
                    raise BadInput(
                        f"{self.path}, line {number + 1} is not a ledger entry ({str(error)[:80]}); restore the file "
                        "or move it away"
                    ) from None
                position, number = position + len(line), number + 1
        return position

    def _take(self, line: bytes, identity: Identity, *, is_header: bool, position: int) -> None:
        if not line.endswith(b"\n"):
            raise msgspec.DecodeError("without an end of line")
        if not is_header:
            self._count(msgspec.json.decode(line, type=Entry), position, len(line))
        elif msgspec.json.decode(line) != identity.header:
            raise BadInput(f"{self.path}, line 1 belongs to another prompt, model or setting")

    def _count(self, entry: Entry, position: int, length: int) -> None:
        self.num_tokens += entry.num_tokens
        if entry.is_final:
            self._places[entry.report, entry.request] = (position, length)


def _sync_folder(folder: Path) -> None:
    """Sync a folder, so that a new file survives a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
