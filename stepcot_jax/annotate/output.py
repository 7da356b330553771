"""Write a run's results: items set aside with reasons, the funnel, and the images of the records."""

import collections
import contextlib
import dataclasses
import filecmp
import hashlib
import io
import itertools
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from stepcot_jax import __version__
from stepcot_jax.annotate.annotation import Aside, Outcome, Reason
from stepcot_jax.annotate.llm.answers import LEDGER_FOLDER, Answers
from stepcot_jax.data.questions import record_files
from stepcot_jax.data.records import data_json
from stepcot_jax.data.records.data_json import ImageLocator
from stepcot_jax.data.records.json_arrays import read_raw_records
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import (
    LOCK_NAME,
    MAX_LISTING_BYTES,
    lock_folder,
    read_file,
    read_json,
    removing_half,
    write_whole,
)
from stepcot_jax.host.text import make_printable, one_line, write_csv
from stepcot_jax.host.untrusted import resolve

SET_ASIDE_NAME = "set_aside.jsonl"
FUNNEL_NAME = "funnel.csv"
REPORTS = "reports"
WRITTEN = "records, one a frontal image"

RL_NAME = "rl_records.jsonl"
_RECORDS = (data_json.FILE_NAME, record_files.FILE_NAME, RL_NAME)
_FILES = (*_RECORDS, SET_ASIDE_NAME, FUNNEL_NAME, "funnel.md", "shard.json")
_OUTPUTS = (*_FILES, "blocks", LEDGER_FOLDER, LOCK_NAME)


class WithImage(Protocol):
    """A record of an image."""

    @property
    def image(self) -> str:
        """Image, relative to the data root."""


Record = TypeVar("Record")
T = TypeVar("T")


class Result(Generic[Record]):
    """Collects the outcomes of all items and writes them."""

    def __init__(self, make: Callable[[Any], list[Record]], *, units: str, written: str) -> None:
        self._make, self.units, self._written = make, units, written
        self.num_kept = 0
        self.records: list[Record] = []
        self.set_aside: list[Aside] = []
        self.failed: list[Aside] = []  # items set aside because a request was given up
        self.counts: list[int] = []  # number of records of each item, in order
        self.sampled: dict[str, tuple[int, int]] = {}  # of the balanced sample: questions of each cell, and those drawn
        self.written_anew: collections.Counter[Reason] = collections.Counter()
        self.count_repeats: Callable[[], collections.Counter[Reason]] = collections.Counter  # answers asked for again

    @property
    def num_collected(self) -> int:
        """Number of items so far."""
        return self.num_kept + len(self.set_aside)

    def add(self, outcome: Outcome[Any, Any]) -> None:
        """Add one item."""
        made = self._make(outcome) if outcome.made is not None else []
        self.num_kept += outcome.made is not None
        self.records += made
        self.counts.append(len(made))
        if outcome.aside is not None:
            self.set_aside.append(outcome.aside)
            self.failed += [outcome.aside] if outcome.has_failed else []

    def funnel(self) -> list[tuple[str, str, int]]:
        """Return stage, reason and count, as in the paper's Figure 5: collected, repeated, set aside, kept."""
        counts = collections.Counter(aside.reason for aside in self.set_aside)
        filtered = [("set aside", reason, counts[reason]) for reason in Reason if counts[reason]]
        ends = [("kept", self.units, self.num_kept), ("written", self._written, len(self.records))]
        again = [("asked again", reason, number) for reason, number in sorted(self.count_repeats().items())]
        again += [("written anew", reason, number) for reason, number in sorted(self.written_anew.items())]
        return [("collected", self.units, self.num_collected), *again, *filtered, *ends]

    def describe(self) -> str:
        """Return the funnel as Markdown, and below it the most frequent reason with its most frequent detail."""
        chief = f"most frequent reason: {self._chief()}\n" if self.set_aside else ""
        cells = (f"sample for RL, {cell}: {taken} of {number}\n" for cell, (number, taken) in self.sampled.items())
        return as_markdown(self.funnel()) + chief + "".join(cells)

    def _chief(self) -> str:
        ((reason, number),) = collections.Counter(aside.reason for aside in self.set_aside).most_common(1)
        details = collections.Counter(
            aside.detail for aside in self.set_aside if aside.reason == reason and aside.detail
        )
        such_as = "".join(f", such as {make_printable(detail[:200])}" for detail, _ in details.most_common(1))
        return f"{reason}, {number} of {len(self.set_aside)}{such_as}"

    def write(self, folder: Path, *, is_part: bool = False) -> None:
        """Write funnel and items set aside; a part of a run may have kept nothing."""
        funnel = self.funnel()
        lines = msgspec.json.Encoder().encode_lines(self.set_aside)
        write_whole(folder / SET_ASIDE_NAME, lines)
        table = io.StringIO()
        write_csv(table, [("stage", "what", "number"), *funnel])
        write_whole(folder / FUNNEL_NAME, table.getvalue().encode())
        write_whole((folder / FUNNEL_NAME).with_suffix(".md"), as_markdown(funnel).encode())
        if not self.records and not is_part:
            reasons = ", ".join(f"{reason}: {number}" for stage, reason, number in funnel if stage == "set aside")
            where, number = folder / SET_ASIDE_NAME, self.num_collected
            raise BadInput(
                f"{where}: all {number} {self.units} were set aside ({reasons}); most frequent: {self._chief()}"
            )


def as_markdown(funnel: Sequence[tuple[str, str, int]]) -> str:
    """Write a funnel as a Markdown table."""
    rows = [("Stage", "What", "Number"), *((stage, what, f"{number:,}") for stage, what, number in funnel)]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = [f"| {a:<{widths[0]}} | {b:<{widths[1]}} | {c:>{widths[2]}} |" for a, b, c in rows]
    ruler = f"| {'-' * widths[0]} | {'-' * widths[1]} | {'-' * (widths[2] - 1)}: |"
    return "\n".join([lines[0], ruler, *lines[1:]]) + "\n"


def bring_images(cases: Sequence[WithImage], *, source: Path, folder: Path) -> int:
    """Link or copy images of `source`, never files outside of it, into `folder`; return the number of images."""
    for case in cases:
        # A link named like an output would let the run write into the source; some disks ignore letter case.
        if Path(case.image).parts[0].casefold() in _OUTPUTS:
            raise BadInput(f"{folder}: image_path {case.image[:80]!r} is the name of an output of this command")
    locator, num_images = ImageLocator(source, require_images=False), 0
    for case in cases:
        original, target = Path(locator.locate(case.image)), folder / case.image
        if not original.is_file():
            continue
        num_images += 1
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            _link(original, target)
        except OSError as error:
            raise BadInput(f"{target} cannot be written ({error.strerror})") from None
    return num_images


def _link(original: Path, target: Path) -> None:
    try:
        os.link(original, target)
    except FileExistsError:
        if not target.samefile(original) and not filecmp.cmp(original, target, shallow=False):
            raise BadInput(f"{target} exists and differs from the image {original}") from None
    except OSError:  # another file system, or one without links
        with removing_half(target):
            shutil.copyfile(original, target)


# One part of a run: which reports belong to it, and the file with which `merge` joins the parts.


FILE_NAME = "shard.json"

_WRITTEN = re.compile(r"(\d{1,7})/(\d{1,7})")


@dataclasses.dataclass(frozen=True)
class Shard:
    """Shard `index` of `count`, counted from 0: a report's is a hash of its id, whatever the other reports."""

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


class _Written(msgspec.Struct, frozen=True, kw_only=True):
    version: str


class ShardFile(_Written, frozen=True, kw_only=True):
    """The run that a shard belongs to, and the outcomes of its reports."""

    shard: int
    count: int
    source: str  # SHA-256 of all items of the source, in order: the same in every shard
    total: int  # number of items of the source
    settings: dict[str, Any]  # settings that answers depend on, the same in every shard
    # position in the source of each report annotated here, with its number of records (0: set aside)
    annotated: list[tuple[int, int]]
    unusable: list[int]  # positions of the source's unreadable and repeated items
    images: bool  # whether the records' images were linked into the folder

    @property
    def name(self) -> Shard:
        """The shard."""
        return Shard(self.shard, self.count)


def write_shard_file(folder: Path, file: ShardFile) -> None:
    """Write the file of a complete shard."""
    write_whole(folder / FILE_NAME, msgspec.json.encode(file) + b"\n")


def read_shard_file(folder: Path) -> ShardFile:
    """Read the file of a complete shard."""
    path = folder / FILE_NAME
    if not path.exists():
        raise BadInput(f"{folder} has no {FILE_NAME}: expected the folder of a complete run with --shard")
    accepted = f"expected the file of a shard, written by stepcot_jax {__version__}"
    version = read_json(path, _Written, accepted=accepted, max_bytes=MAX_LISTING_BYTES).version
    if version != __version__:
        raise BadInput(f"{path} was written by stepcot_jax {version[:40]!r}; {accepted}; annotate this shard again")
    return read_json(path, ShardFile, accepted=accepted, max_bytes=MAX_LISTING_BYTES)


# Merge the folders of all shards into the result of one run: records, funnel, reports set aside, images, ledgers.


class _Image(msgspec.Struct, frozen=True):
    image: str = msgspec.field(name="image_path")


def merge_shards(folders: Sequence[Path], out: Path, *, overwrite: bool = False) -> Result[bytes]:
    """Write the result of one run over all reports, in the order of the source."""
    shards = _read_shards(folders, out)
    with lock_folder(out):
        path = out / data_json.FILE_NAME
        if path.exists() and not overwrite:
            raise BadInput(f"{path} exists; choose another folder or pass --overwrite")
        result = _collect(shards)
        for folder, shard in shards.items():
            if shard.images:
                records = [msgspec.json.decode(raw, type=_Image) for raw in _read_records(folder, shard)]
                bring_images(records, source=folder, folder=out)
        ledgers = [folder / LEDGER_FOLDER for folder in folders if (folder / LEDGER_FOLDER).is_dir()]
        if ledgers:
            with contextlib.closing(Answers(out / LEDGER_FOLDER)) as answers:
                for ledger in ledgers:
                    answers.merge(ledger)
        result.write(out)
        # As in a run, `data.json` comes last and marks a complete result.
        write_whole(path, msgspec.json.format(b"[" + b",".join(result.records) + b"]", indent=1) + b"\n")
    return result


def _read_shards(folders: Sequence[Path], out: Path) -> dict[Path, ShardFile]:
    """Return the files of the shards; require all shards of one run, each once."""
    resolved = [resolve(folder) for folder in folders]
    for index, folder in enumerate(folders):
        if resolved[index] in resolved[:index]:
            first = folders[resolved.index(resolved[index])]
            also = "" if first == folder else f" (also as {first})"
            raise BadInput(f"{folder}: the shard's folder was given twice{also}; expected each shard once")
    if resolve(out) in resolved:
        raise BadInput(f"--out: {out} is one of the shards; choose another folder")
    shards = {folder: read_shard_file(folder) for folder in folders}
    first, run = next(iter(shards.items()))
    by_index: dict[int, Path] = {}
    owner: dict[int, Path] = {}
    for folder, shard in shards.items():
        problem = _find_difference(shard, run, first)
        if problem:
            raise BadInput(f"{folder / FILE_NAME}: {problem}; expected the shards of one run")
        if by_index.setdefault(shard.shard, folder) != folder:
            raise BadInput(f"shard {shard.name} is in {by_index[shard.shard]} and in {folder}; pass each shard once")
        for position in (*(position for position, _ in shard.annotated), *shard.unusable):
            if owner.setdefault(position, folder) != folder:
                raise BadInput(f"report {position} of the source is in {owner[position]} and in {folder}")
    missing = [str(Shard(index, run.count)) for index in range(run.count) if index not in by_index]
    if missing:
        more = f" and {len(missing) - 8} more" if len(missing) > 8 else ""
        names = ", ".join(missing[:8])
        raise BadInput(f"{len(missing)} of {run.count} shards are missing: {names}{more}; pass all folders")
    lost = next((position for position in range(run.total) if position not in owner), None)
    if lost is not None or len(owner) != run.total:
        raise BadInput(f"{len(owner)} of {run.total} reports are in the shards; report {lost} of the source is in none")
    return shards


def _find_difference(shard: ShardFile, run: ShardFile, first: Path) -> str:
    """Return why a shard is not of the same run as the first, or ""."""
    if shard.count != run.count:
        return f"is one of {shard.count} shards, {first} one of {run.count}"
    if shard.source != run.source:
        return f"was made from another source than {first} (or the source changed in between)"
    differing = [
        f"{name}: {str(shard.settings.get(name))[:80]} instead of {str(run.settings.get(name))[:80]}"
        for name in {**run.settings, **shard.settings}
        if shard.settings.get(name) != run.settings.get(name)
    ]
    return f"was made with other settings ({'; '.join(differing)}) than {first}" if differing else ""


def _collect(shards: dict[Path, ShardFile]) -> Result[bytes]:
    """Return the records and the reports set aside, in the order of the source."""
    result: Result[bytes] = Result(lambda outcome: [], units=REPORTS, written=WRITTEN)  # noqa: ARG005
    records: list[tuple[int, list[bytes]]] = []
    annotated: list[tuple[int, Aside]] = []
    unusable: list[tuple[int, Aside]] = []
    for folder, shard in shards.items():
        raw, asides = _read_records(folder, shard), _read_set_aside(folder, shard)
        for position, number in shard.annotated:
            if number:
                records.append((position, list(itertools.islice(raw, number))))
            else:
                annotated.append((position, next(asides)))
        unusable += zip(shard.unusable, asides, strict=True)
    by_position = lambda item: item[0]  # noqa: E731
    result.num_kept = len(records)
    result.records = [record for _, several in sorted(records, key=by_position) for record in several]
    result.set_aside = [aside for part in (annotated, unusable) for _, aside in sorted(part, key=by_position)]
    return result


def _read_records(folder: Path, shard: ShardFile) -> Iterator[bytes]:
    expected, path = sum(number for _, number in shard.annotated), folder / data_json.FILE_NAME
    if not path.exists():
        raise BadInput(f"{folder}: shard {shard.name} is not complete ({path.name} is missing); annotate it again")
    records = list(read_raw_records(path)) if expected else []
    if len(records) != expected:
        raise BadInput(f"{path} has {len(records)} records; its {FILE_NAME} says {expected}: annotate this shard again")
    return iter(records)


def _read_set_aside(folder: Path, shard: ShardFile) -> Iterator[Aside]:
    path, expected = folder / SET_ASIDE_NAME, len(shard.unusable) + sum(not number for _, number in shard.annotated)
    asides = read_asides(path, Aside)
    if len(asides) != expected:
        raise BadInput(f"{path} has {len(asides)} lines; its {FILE_NAME} says {expected}: annotate this shard again")
    return iter(asides)


def read_asides(path: Path, kind: type[T]) -> list[T]:
    """Read the items set aside, one per line."""
    try:
        content = read_file(path, max_bytes=MAX_LISTING_BYTES, accepted="the reports set aside")
        return msgspec.json.Decoder(kind).decode_lines(content)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError, MemoryError) as error:
        raise BadInput(f"{path} cannot be read ({one_line(error)}); annotate again") from None
