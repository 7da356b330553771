"""A ledger of paid answers: each is on disk before it is used, so that a killed run pays for nothing twice.

A ledger is a JSON Lines file: a header with task, prompt, model and decoding settings, then one synced line per
request. One process at a time writes to it; opening it cuts off a last line that a kill left incomplete.
"""

import dataclasses
import glob
import hashlib
import itertools
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Literal

import msgspec

from stepcot_jax.annotate.llm.client import TOKENS_NAMES
from stepcot_jax.annotate.llm.prompts import Message
from stepcot_jax.annotate.llm.replies import Entry
from stepcot_jax.host.errors import BadInput, RunStopped
from stepcot_jax.host.files import make_workdir, sync_folder
from stepcot_jax.host.locks import lock_file
from stepcot_jax.host.text import one_line
from stepcot_jax.host.untrusted import open_untrusted

FORMAT = "stepcot_jax ledger 1"
SUFFIX = ".jsonl"

_MAX_LINE_BYTES = 1 << 26


def digest_text(text: str) -> str:
    """SHA-256 of a text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def digest_messages(messages: Sequence[Message]) -> str:
    """Return the SHA-256 of a request's messages."""
    return digest_text(json.dumps(messages, sort_keys=True))


def digest_identity(identity: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a ledger's identity."""
    return digest_text(json.dumps({"format": FORMAT, **identity}, sort_keys=True))


def shorten_model(model: str) -> str:
    """Return a model's name as a part of a file's name."""
    return re.sub(r"[^A-Za-z0-9.-]+", "_", model).strip("._")[:60]


class Ledger:
    """The answers of one model to one prompt.

    Args:
      identity: what all answers share, as the file's header: task, prompt_version, prompt_digest, model and decoding.
        Each identity has its own file.

    Attributes:
      largest_counted: tokens of the largest prompt with a picture that the endpoint counted; None without one.
    """

    def __init__(self, folder: Path, identity: Mapping[str, Any]) -> None:
        make_workdir(folder)
        header = {"format": FORMAT, **identity}
        name = f"{identity['task']}-{shorten_model(identity['model'])}-{digest_identity(identity)[:12]}"
        self.path = folder / f"{name}{SUFFIX}"
        _refuse_other_versions(folder, identity, self.path)
        self.num_tokens = 0
        self.largest_counted: int | None = None
        self._places: dict[tuple[str, str], tuple[int, int]] = {}
        try:
            self._file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        except OSError as error:
            raise BadInput(f"{self.path} cannot be opened ({error.strerror})") from None
        try:
            lock_file(self._file, self.path)
            self._size = self._read(header)
            if not self._size:
                self._write(json.dumps(header, ensure_ascii=False).encode() + b"\n")
                sync_folder(folder)
        except BaseException:
            os.close(self._file)
            raise

    def __len__(self) -> int:
        """Return the number of requests with a final answer."""
        return len(self._places)

    def close(self) -> None:
        """Close the file and release its lock."""
        os.close(self._file)

    def find(self, report: str, request: str) -> Entry | None:
        """Return the final entry of a request about a report, or None."""
        place = self._places.get((report, request))
        if place is None:
            return None
        return msgspec.json.decode(os.pread(self._file, place[1], place[0]), type=Entry)

    def append(self, entry: Entry, *, sync: bool = True) -> None:
        """Write an entry and sync it to disk, or leave that to `sync` if the answer is in another file too."""
        line, start = msgspec.json.encode(entry) + b"\n", self._size
        self._write(line, sync=sync)
        self._count(entry, start, len(line))

    def sync(self) -> None:
        """Sync all entries to disk."""
        self._write(b"")

    def _write(self, line: bytes, *, sync: bool = True) -> None:
        try:
            rest = memoryview(line)
            while rest:
                rest = rest[os.write(self._file, rest) :]
            if sync:
                os.fsync(self._file)
        except OSError as error:
            os.ftruncate(self._file, self._size)
            raise RunStopped(
                f"{self.path}: an answer cannot be written ({error.strerror}); earlier answers are kept, rerun the "
                "command to resume"
            ) from None
        self._size += len(line)

    def _read(self, header: Mapping[str, Any]) -> int:
        """Index the lines of an existing file, cut off an incomplete last line, and return the size."""
        end = 0
        with os.fdopen(os.dup(self._file), "rb") as file:
            for found, position, length in _scan(file, self.path):
                if isinstance(found, Entry):
                    self._count(found, position, length)
                elif found != header:
                    raise BadInput(f"{self.path}, line 1 belongs to another prompt, model or setting")
                end = position + length
        if end < os.fstat(self._file).st_size:
            os.ftruncate(self._file, end)
            os.fsync(self._file)
        return end

    def _count(self, entry: Entry, position: int, length: int) -> None:
        self.num_tokens += entry.num_tokens
        if entry.has_picture and entry.is_counted:
            self.largest_counted = max(entry.prompt_tokens, self.largest_counted or 0)
        if entry.is_final:
            self._places[entry.report, entry.request] = (position, length)


def _refuse_other_versions(folder: Path, identity: Mapping[str, Any], own: Path) -> None:
    """Refuse paid answers to another version of the prompt: they would be paid for again without a word."""
    own_name = own.name.rpartition("-")[0]
    for path in sorted(folder.glob(f"{glob.escape(own_name)}-*{SUFFIX}")):
        if path == own or not path.is_file():
            continue
        with path.open("rb") as file:
            (header, _, length), *_ = [*itertools.islice(_scan(file, path), 1), ({}, 0, 0)]
            is_paid = file.seek(0, os.SEEK_END) > length
        found = header.get("prompt_version") if isinstance(header, dict) else None
        is_same = isinstance(header, dict) and all(header.get(name) == identity[name] for name in ("task", "model"))
        if is_paid and is_same and found != identity["prompt_version"]:
            raise BadInput(
                f"{path} has answers to version {str(found)[:20]} of the prompt, expected version "
                f"{identity['prompt_version']}, which asks anew; choose another folder, or move the file away to pay "
                "for all answers again"
            )


def count_spent(path: Path) -> int:
    """Return the tokens spent on a ledger of another model, prompt or setting."""
    try:
        with open_untrusted(path, accepted="a ledger") as file:
            return sum(found.num_tokens for found, _, _ in _scan(file, path) if isinstance(found, Entry))
    except OSError as error:
        raise BadInput(f"{path} cannot be read ({error.strerror}); --max-tokens needs an intact ledger") from None


def merge_ledgers(paths: Sequence[Path], target: Path) -> None:
    """Add the entries of several ledgers of one identity to another file, each line once."""
    make_workdir(target.parent)
    header, lines = None, dict[bytes, None]()
    for path in (target, *paths):
        if not path.exists():
            continue
        with open_untrusted(path, accepted="a ledger") as file:
            for found, position, length in list(_scan(file, path)):
                line = os.pread(file.fileno(), length, position)
                if isinstance(found, Entry):
                    lines[line] = None
                elif header not in (None, line):
                    raise BadInput(f"{path}, line 1 belongs to another prompt, model or setting than {target.name}")
                else:
                    header = line
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.writelines([header or b"", *lines])
            file.flush()
            os.fsync(file.fileno())
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def _scan(file: BinaryIO, path: Path) -> Iterator[tuple[Entry | dict[str, Any], int, int]]:
    """Yield the header and each entry with position and length in bytes, up to an incomplete last line."""
    size, position = file.seek(0, os.SEEK_END), file.seek(0)
    for number, line in enumerate(iter(lambda: file.readline(_MAX_LINE_BYTES), b""), start=1):
        try:
            if not line.endswith(b"\n"):
                raise msgspec.DecodeError("without an end of line")
            yield msgspec.json.decode(line, type=dict if number == 1 else Entry), position, len(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            # Each line is synced before the next, so only the last can be incomplete.
            if position + len(line) == size:
                return
            problem = f"line {number} is not a ledger entry ({str(error)[:80]}); restore the file or move it away"
            raise BadInput(f"{path}, {problem}") from None
        position += len(line)


# The journal of a folder's batches: which requests were written to files, and what became of each.
#
# It is a JSON Lines file that only grows; the answers themselves are in the ledgers.


FOLDER = "batch"
FILE_NAME = "journal.jsonl"

_MAX_ENTRY_BYTES = 1 << 22


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
            for number, line in enumerate(iter(lambda: file.readline(_MAX_ENTRY_BYTES), b""), start=1):
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
