"""The paid answers of a folder in one SQLite file, so that nothing is paid twice.

Each answer is on the disk before it is used. Ledgers of earlier versions (JSON Lines) are imported.
"""

import contextlib
import hashlib
import json
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from stepcot_jax.annotate.llm.prompts import Message
from stepcot_jax.annotate.llm.replies import Entry
from stepcot_jax.host.errors import BadInput, RunStopped
from stepcot_jax.host.files import make_workdir
from stepcot_jax.host.text import one_line
from stepcot_jax.host.untrusted import open_untrusted, require_file

LEDGER_FOLDER = "ledger"
FILE_NAME = "answers.sqlite"
LEDGER_FORMAT = "stepcot_jax ledger 1"

_MAX_LINE_BYTES = 1 << 24
_SCHEMA = """
PRAGMA locking_mode = EXCLUSIVE;
PRAGMA journal_mode = TRUNCATE;
BEGIN EXCLUSIVE;
CREATE TABLE IF NOT EXISTS identities (
  digest TEXT PRIMARY KEY, fields TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS answers (
  id INTEGER PRIMARY KEY, ledger TEXT NOT NULL, report TEXT NOT NULL, request TEXT NOT NULL, is_final INTEGER NOT NULL,
  tokens INTEGER NOT NULL, counted INTEGER, entry BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS of_request ON answers (ledger, report, request);
CREATE TABLE IF NOT EXISTS imported (path TEXT PRIMARY KEY, size INTEGER NOT NULL);
COMMIT;
"""


def digest_text(text: str) -> str:
    """Return the SHA-256 of a text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def digest_messages(messages: Sequence[Message]) -> str:
    """Return the SHA-256 of a request's messages."""
    return digest_text(json.dumps(messages, sort_keys=True))


def digest_identity(identity: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a ledger's identity."""
    return digest_text(json.dumps({"format": LEDGER_FORMAT, **identity}, sort_keys=True))


class Answers:
    """The file of a folder, open in this process alone until `close`."""

    def __init__(self, folder: Path) -> None:
        make_workdir(folder)
        self.path = folder / FILE_NAME
        try:
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600))  # answers quote reports
        except OSError as error:
            raise BadInput(f"{self.path} cannot be opened ({error.strerror})") from None
        require_file(self.path, accepted="a file of answers")
        self._db = sqlite3.connect(self.path, timeout=0, isolation_level=None)
        try:
            with self._translated():
                self._db.executescript(_SCHEMA)
            self._import_ledgers(folder)
        except BaseException:
            self._db.close()
            raise

    def close(self) -> None:
        """Close the file and release its lock."""
        self._db.close()

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            if "locked" in str(error):
                raise BadInput(f"{self.path}: in use by another process (one run at a time per folder)") from None
            raise RunStopped(
                f"{self.path}: an answer cannot be written ({error}); earlier answers are kept, rerun the command to "
                "resume"
            ) from None
        except sqlite3.DatabaseError as error:
            raise BadInput(f"{self.path} is not a file of answers ({error}); restore it or move it away") from None

    def _run(self, statement: str, *values: object) -> list[Any]:
        with self._translated():
            return self._db.execute(statement, values).fetchall()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit what the context adds, or nothing if it fails."""
        self._run("BEGIN IMMEDIATE")
        try:
            yield
            self._run("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                self._db.rollback()
            raise

    @property
    def num_tokens(self) -> int:
        """Tokens of all answers and lost attempts in the folder."""
        return int(self._run("SELECT total(tokens) FROM answers")[0][0])

    def add_identity(self, fields: Mapping[str, Any]) -> str:
        """Store the identity that the answers of a ledger share, and return its digest."""
        digest = digest_identity(fields)
        self._run("INSERT OR IGNORE INTO identities VALUES (?, ?)", digest, json.dumps(dict(fields)))
        return digest

    def add(self, ledger: str, entry: Entry, *, once: bool = False) -> None:
        """Write an entry; with `once` only if the ledger does not have it, byte for byte."""
        content = msgspec.json.encode(entry)
        key = (ledger, entry.report, entry.request)
        unless = "WHERE NOT EXISTS (SELECT 1 FROM answers WHERE (ledger, report, request, entry) = (?, ?, ?, ?))"
        counted = entry.prompt_tokens if entry.has_picture and entry.is_counted else None
        self._run(
            "INSERT INTO answers (ledger, report, request, is_final, tokens, counted, entry) SELECT ?, ?, ?, ?, ?, ?, ?"
            + (unless if once else ""),
            *(*key, entry.is_final, entry.num_tokens, counted, content),
            *((*key, content) if once else ()),
        )

    def find(self, ledger: str, report: str, request: str) -> Entry | None:
        """Return the last final entry of a request about a report, or None."""
        rows = self._run(
            "SELECT entry FROM answers WHERE (ledger, report, request) = (?, ?, ?) AND is_final ORDER BY id DESC "
            "LIMIT 1",
            *(ledger, report, request),
        )
        return msgspec.json.decode(rows[0][0], type=Entry) if rows else None

    def refuse_other_versions(self, identity: Mapping[str, Any]) -> None:
        """Refuse a folder with answers to another version of the prompt, which would silently be paid for again."""
        for digest, written in self._run("SELECT digest, fields FROM identities ORDER BY rowid"):
            fields = json.loads(written)
            is_same = all(fields.get(name) == identity[name] for name in ("task", "model"))
            version = fields.get("prompt_version")
            if not is_same or version == identity["prompt_version"]:
                continue
            if self._run("SELECT 1 FROM answers WHERE ledger = ? LIMIT 1", digest):
                raise BadInput(
                    f"{self.path} has answers to version {str(version)[:20]} of the prompt, expected version "
                    f"{identity['prompt_version']}, which asks anew; choose another folder, or move {self.path.parent} "
                    "away to pay for all answers again"
                )

    # Ledgers of other folders and of earlier versions.

    def merge(self, folder: Path) -> None:
        """Add the answers of another folder, each once."""
        self._import_ledgers(folder)
        path = folder / FILE_NAME
        if not path.exists():
            return
        with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as other:
            try:
                identities = other.execute("SELECT fields FROM identities ORDER BY rowid").fetchall()
                with self.transaction():
                    for (fields,) in identities:
                        self.add_identity(json.loads(fields))
                    for ledger, entry in other.execute("SELECT ledger, entry FROM answers ORDER BY id"):
                        self.add(ledger, msgspec.json.decode(entry, type=Entry), once=True)
            except (sqlite3.Error, msgspec.MsgspecError, ValueError) as error:
                raise BadInput(f"{path} is not a file of answers ({one_line(error)[:80]}); restore it") from None

    def _import_ledgers(self, folder: Path) -> None:
        """Import the lines of JSON Lines ledgers of earlier versions that are not imported yet."""
        is_same_folder = folder == self.path.parent
        for path in sorted(folder.glob("*.jsonl")):
            rows = self._run("SELECT size FROM imported WHERE path = ?", path.name) if is_same_folder else []
            start = rows[0][0] if rows else 0
            if path.stat().st_size <= start:
                continue
            with self.transaction():
                ledger, size = "", 0
                for number, line, end, is_last in _read_lines(path):
                    try:
                        if number == 1:
                            fields = msgspec.json.decode(line, type=dict)
                            if fields.pop("format", None) != LEDGER_FORMAT:
                                raise msgspec.DecodeError("without the header")
                            ledger = self.add_identity(fields)
                        elif end > start:
                            self.add(ledger, msgspec.json.decode(line, type=Entry), once=not is_same_folder)
                    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                        if is_last:
                            break
                        problem = f"line {number} is not a ledger entry ({one_line(error)[:80]})"
                        raise BadInput(f"{path}, {problem}; restore the file or move it away") from None
                    size = end
                if is_same_folder:
                    self._run("REPLACE INTO imported VALUES (?, ?)", path.name, size)


class Ledger:
    """The answers of one model to one prompt."""

    def __init__(self, answers: Answers, identity: Mapping[str, Any]) -> None:
        """`identity`: task, prompt_version, prompt_digest, model and decoding, which the answers share."""
        answers.refuse_other_versions(identity)
        self._answers, self.digest = answers, answers.add_identity(identity)

    def __len__(self) -> int:
        rows = self._answers._run("SELECT count(*) FROM answers WHERE ledger = ? AND is_final", self.digest)
        return int(rows[0][0])

    @property
    def largest_counted(self) -> int | None:
        """Tokens of the largest prompt with a picture that the endpoint counted; None without one."""
        rows = self._answers._run("SELECT max(counted) FROM answers WHERE ledger = ?", self.digest)
        return rows[0][0]

    def find(self, report: str, request: str) -> Entry | None:
        """Return the final entry of a request about a report, or None."""
        return self._answers.find(self.digest, report, request)

    def append(self, entry: Entry) -> None:
        """Write an entry, which is on the disk when this returns."""
        self._answers.add(self.digest, entry)


def _read_lines(path: Path) -> Iterator[tuple[int, bytes, int, bool]]:
    """Yield number, content and end of each line, and whether it is the last, which a kill may have left incomplete."""
    end = 0
    with open_untrusted(path, accepted="a ledger") as file:
        size = os.fstat(file.fileno()).st_size
        for number, line in enumerate(iter(lambda: file.readline(_MAX_LINE_BYTES), b""), start=1):
            end += len(line)
            if line.endswith(b"\n") or end < size:
                yield number, line, end, end == size
