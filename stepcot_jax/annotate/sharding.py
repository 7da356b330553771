"""One part of a run: which reports belong to it, and the file that lets `merge` put the parts together again.

A report's shard is a hash of its id, so it depends neither on the order of the source nor on the other reports.
"""

import dataclasses
import hashlib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from stepcot_jax.annotate.annotation import Aside, Report
from stepcot_jax.annotate.llm.ledger import digest_text
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import MAX_LISTING_BYTES, read_json, write_whole

FILE_NAME = "shard.json"
FORMAT = "stepcot_jax annotate shard 1"

_WRITTEN = re.compile(r"(\d{1,7})/(\d{1,7})")


@dataclasses.dataclass(frozen=True)
class Shard:
    """Shard `index` of `count`, counted from 0.

    >>> sum(Shard(index, 3).has("CXR12") for index in range(3))
    1
    """

    index: int
    count: int

    def has(self, report_id: str) -> bool:
        """Return whether a report belongs to this shard."""
        digest = hashlib.sha256(report_id.encode("utf-8", "surrogatepass")).digest()
        return int.from_bytes(digest[:8], "big") % self.count == self.index

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


def read_shard(written: str) -> Shard:
    """Return the shard of a flag such as "3/16"."""
    match = _WRITTEN.fullmatch(written)
    if match is None or int(match[1]) >= int(match[2]):
        raise BadInput(f"--shard: {written[:80]!r} is not I/N with I from 0 to N - 1, such as 3/16")
    return Shard(int(match[1]), int(match[2]))


class ShardFile(msgspec.Struct, frozen=True, kw_only=True):
    """What a shard is part of and what became of its reports.

    Attributes:
      source: SHA-256 of all items of the source, in order: the same in every shard.
      total: number of items of the source.
      settings: what answers depend on, the same in every shard.
      annotated: position in the source of each report annotated here, with its number of records (0: set aside).
      unusable: positions of the source's unreadable and repeated items.
      images: whether the records' images were linked into the folder.
    """

    format: str = FORMAT
    shard: int
    count: int
    source: str
    total: int
    settings: dict[str, Any]
    annotated: list[tuple[int, int]]
    unusable: list[int]
    images: bool

    @property
    def name(self) -> Shard:
        """The shard."""
        return Shard(self.shard, self.count)


def digest_items(items: Iterable[Report | Aside]) -> str:
    """Return the SHA-256 of a source's items in order."""
    digest = hashlib.sha256()
    for item in items:
        digest.update(digest_text(repr(item)).encode())
    return digest.hexdigest()


def write_shard_file(folder: Path, file: ShardFile) -> None:
    """Write the file of a complete shard."""
    write_whole(folder / FILE_NAME, msgspec.json.encode(file) + b"\n")


def read_shard_file(folder: Path) -> ShardFile:
    """Read the file of a complete shard."""
    path = folder / FILE_NAME
    if not path.exists():
        raise BadInput(f"{folder} has no {FILE_NAME}: expected the folder of a complete run with --shard")
    file = read_json(path, ShardFile, accepted="expected the file of a shard", max_bytes=MAX_LISTING_BYTES)
    if file.format != FORMAT or not 0 <= file.shard < file.count:
        raise BadInput(f"{path} is of format {file.format[:40]!r}, shard {file.shard}/{file.count}; expected {FORMAT}")
    return file
