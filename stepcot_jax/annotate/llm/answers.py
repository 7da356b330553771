"""The paid answers of a folder in one SQLite file, so that nothing is paid twice.

Each answer is on the disk before it is used.
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

from stepcot_jax import __version__
from stepcot_jax.annotate.llm.prompts import Message
from stepcot_jax.annotate.llm.replies import Entry
from stepcot_jax.host.errors import BadInput, RunStopped
from stepcot_jax.host.files import make_workdir
from stepcot_jax.host.text import one_line
from stepcot_jax.host.untrusted import require_file

LEDGER_FOLDER = "ledger"
FILE_NAME = "answers.sqlite"

_SCHEMA = """
PRAGMA locking_mode = EXCLUSIVE;
PRAGMA journal_mode = TRUNCATE;
BEGIN EXCLUSIVE;
CREATE TABLE IF NOT EXISTS written (version TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS identities (digest TEXT PRIMARY KEY, fields TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS answers (
  id INTEGER PRIMARY KEY, ledger TEXT NOT NULL, report TEXT NOT NULL, request TEXT NOT NULL, is_final INTEGER NOT NULL,
  tokens INTEGER NOT NULL, counted INTEGER, entry BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS of_request ON answers (ledger, report, request);
COMMIT;
"""
_WRITTEN = "INSERT INTO written SELECT ? WHERE NOT EXISTS (SELECT 1 FROM written UNION SELECT 1 FROM answers)"
_MERGED = """
INSERT INTO answers (ledger, report, request, is_final, tokens, counted, entry)
SELECT ledger, report, request, is_final, tokens, counted, entry FROM other.answers
WHERE (ledger, report, request, entry) NOT IN (SELECT ledger, report, request, entry FROM main.answers) ORDER BY id
"""


def digest_text(text: str) -> str:
    """Return the SHA-256 of a text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def digest_messages(messages: Sequence[Message]) -> str:
    """Return the SHA-256 of a request's messages."""
    return digest_text(json.dumps(messages, sort_keys=True))


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
        self._db = sqlite3.connect(self.path, timeout=0, isolation_level=None, uri=True)
        try:
            with self.translated():
                self._db.executescript(_SCHEMA)
                self._db.execute(_WRITTEN, (__version__,))
                if not self._db.execute("SELECT version FROM written").fetchall():
                    raise msgspec.DecodeError("no version")
        except BaseException:
            self._db.close()
            raise

    def close(self) -> None:
        """Close the file and release its lock."""
        self._db.close()

    @contextlib.contextmanager
    def translated(self, other: Path | None = None) -> Iterator[None]:
        """Raise errors of the file, of the attached one `other`, or of an entry as a sentence that names the file."""
        try:
            yield
        except (sqlite3.DatabaseError, msgspec.MsgspecError) as error:
            if "locked" in str(error):
                raise BadInput(f"{self.path}: in use by another process (one run at a time per folder)") from None
            if isinstance(error, sqlite3.OperationalError) and not str(error).startswith("no such"):
                raise RunStopped(
                    f"{self.path}: an answer cannot be written ({error}); earlier answers are kept, rerun the command "
                    "to resume"
                ) from None
            rows = []
            with contextlib.suppress(sqlite3.Error):
                of_other, own = "SELECT version FROM other.written", "SELECT version FROM main.written"
                rows = self._db.execute(of_other if other else own).fetchall()
            raise BadInput(
                f"{other or self.path} is not a file of answers of stepcot_jax {__version__} (written by "
                f"{rows[0][0] if rows else 'an unknown version'}: {one_line(error)[:80]}); restore it or move it away"
            ) from None

    def run(self, statement: str, *values: object) -> list[Any]:
        """Return the rows of a statement; what it changes is on the disk when this returns."""
        with self.translated():
            return self._db.execute(statement, values).fetchall()

    @property
    def num_tokens(self) -> int:
        """Tokens of all answers and lost attempts in the folder."""
        return int(self.run("SELECT total(tokens) FROM answers")[0][0])

    def merge(self, folder: Path) -> None:
        """Add the answers of another folder, each once."""
        path = folder / FILE_NAME
        if not path.exists():
            return
        with self.translated(path):
            self._db.execute("ATTACH ? AS other", (f"{path.absolute().as_uri()}?mode=ro",))
            self._db.execute("INSERT OR IGNORE INTO identities SELECT digest, fields FROM other.identities")
            self._db.execute(_MERGED)
            self._db.execute("DETACH other")


class Ledger:
    """The answers of one model to one prompt."""

    def __init__(self, answers: Answers, identity: Mapping[str, Any]) -> None:
        """`identity`: task, prompt_version, prompt_digest, model and decoding, which the answers share."""
        self._answers, self.digest = answers, digest_text(json.dumps(identity, sort_keys=True))
        self._refuse_other_versions(identity)
        answers.run("INSERT OR IGNORE INTO identities VALUES (?, ?)", self.digest, json.dumps(dict(identity)))

    def _refuse_other_versions(self, identity: Mapping[str, Any]) -> None:
        """Refuse a folder with answers to another version of the prompt, which would silently be paid for again."""
        path = self._answers.path
        for digest, written in self._answers.run("SELECT digest, fields FROM identities ORDER BY rowid"):
            fields = json.loads(written)
            is_same = all(fields.get(name) == identity[name] for name in ("task", "model"))
            version = fields.get("prompt_version")
            if not is_same or version == identity["prompt_version"]:
                continue
            if self._answers.run("SELECT 1 FROM answers WHERE ledger = ? LIMIT 1", digest):
                raise BadInput(
                    f"{path} has answers to version {str(version)[:20]} of the prompt, expected version "
                    f"{identity['prompt_version']}, which asks anew; choose another folder, or move {path.parent} "
                    "away to pay for all answers again"
                )

    def __len__(self) -> int:
        rows = self._answers.run("SELECT count(*) FROM answers WHERE ledger = ? AND is_final", self.digest)
        return int(rows[0][0])

    @property
    def largest_counted(self) -> int | None:
        """Tokens of the largest prompt with a picture that the endpoint counted; None without one."""
        return self._answers.run("SELECT max(counted) FROM answers WHERE ledger = ?", self.digest)[0][0]

    def find(self, report: str, request: str) -> Entry | None:
        """Return the last final entry of a request about a report, or None."""
        rows = self._answers.run(
            "SELECT entry FROM answers WHERE (ledger, report, request) = (?, ?, ?) AND is_final ORDER BY id DESC "
            "LIMIT 1",
            *(self.digest, report, request),
        )
        with self._answers.translated():
            return msgspec.json.decode(rows[0][0], type=Entry) if rows else None

    def append(self, entry: Entry) -> None:
        """Write an entry, which is on the disk when this returns."""
        counted = entry.prompt_tokens if entry.has_picture and entry.is_counted else None
        self._answers.run(
            "INSERT INTO answers (ledger, report, request, is_final, tokens, counted, entry) "
            "VALUES (?, ?, ?, ?, ?, ?, ?)",
            *(self.digest, entry.report, entry.request, entry.is_final, entry.num_tokens, counted),
            msgspec.json.encode(entry),
        )
