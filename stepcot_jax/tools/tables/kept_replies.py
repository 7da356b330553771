"""Replies behind a table, kept so that its figures can be recomputed with `stepcot evaluate_replies`."""

import dataclasses
import gzip
import hashlib
import pathlib
import re
from collections.abc import Iterable, Mapping, Sequence

from stepcot_jax.data.questions.record_files import as_line
from stepcot_jax.evaluation.replies import encode
from stepcot_jax.host.files import write_whole
from stepcot_jax.record import Record
from stepcot_jax.run.settings import Settings

FOLDER = "replies"
INDEX = "files.jsonl"
"""File that says for each file of replies which records, cell, seed, condition and dialect it is of."""


@dataclasses.dataclass(frozen=True)
class KeptReplies:
    """Replies of one cell to one set of questions."""

    seed: int
    cell: str  # name of the run
    condition: str  # what the questions are, such as "test"
    settings: Settings  # of the run
    records: Sequence[Record]
    replies: Mapping[str, str]  # by id


def keep_replies(folder: pathlib.Path, table: str, kept: Iterable[KeptReplies]) -> list[str]:
    """Write the replies of a table below a folder, records once for equal questions; return the names of the files.

    The same replies give the same bytes.
    """
    written: dict[str, str] = {}
    index, names = [], set[str]()
    (folder / FOLDER / table).mkdir(parents=True, exist_ok=True)
    for stale in (folder / FOLDER / table).glob("*.jsonl.gz"):
        stale.unlink()

    def write(name: str, lines: Iterable[object]) -> str:
        content = b"".join(map(encode, lines))
        path = f"{FOLDER}/{table}/{name}.jsonl.gz"
        first = written.setdefault(hashlib.sha256(content).hexdigest(), path)
        if first == path:
            write_whole(folder / path, gzip.compress(content, mtime=0))
        return pathlib.PurePath(first).name

    for own in kept:
        said = {"seed": own.seed, "cell": own.cell, "condition": own.condition}
        name = _name(own.cell, f"seed {own.seed}", own.condition)
        if name in names:
            raise ValueError(f"two cells have the file name {name!r}")
        names.add(name)
        lines = [{"id": record.id, **said, "reply": own.replies[record.id]} for record in own.records]
        vqa = own.settings.vqa
        index.append(
            {
                "replies": write(name, lines),
                "records": write(_name("records", f"seed {own.seed}", own.condition), map(as_line, own.records)),
                **said,
                "dialect": vqa.dialect,
                "with_thinking": vqa.with_thinking,
            }
        )
    write_whole(folder / FOLDER / table / INDEX, b"".join(map(encode, index)))
    return [*written.values(), f"{FOLDER}/{table}/{INDEX}"]


def _name(*parts: str) -> str:
    return "_".join(re.sub(r"[^a-z0-9.]+", "-", part.lower()).strip("-") for part in parts)
