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

from stepcot_jax.annotate.annotation import Aside, Outcome, Reason
from stepcot_jax.annotate.llm.answers import LEDGER_FOLDER, Answers
from stepcot_jax.data.questions import record_files
from stepcot_jax.data.records import data_json
from stepcot_jax.data.records.data_json import ImageLocator
from stepcot_jax.data.records.json_arrays import read_raw_records
from stepcot_jax.host import own_folder
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import (
    LOCK_NAME,
    MAX_LISTING_BYTES,
    lock_folder,
    read_file,
    removing_half,
    write_whole,
)
from stepcot_jax.host.text import escape_markdown, make_printable, one_line, write_csv
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

    def as_markdown(self) -> str:
        """Return the funnel as a Markdown table."""
        rows = ((stage, what, f"{number:,}") for stage, what, number in self.funnel())
        return align_markdown([("Stage", "What", "Number"), *rows])

    def describe(self) -> str:
        """Return the funnel as Markdown, and below it the most frequent reason with its most frequent detail."""
        chief = f"most frequent reason: {self._chief()}\n" if self.set_aside else ""
        cells = (f"sample for RL, {cell}: {taken} of {number}\n" for cell, (number, taken) in self.sampled.items())
        return self.as_markdown() + chief + "".join(cells)

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
        write_whole((folder / FUNNEL_NAME).with_suffix(".md"), self.as_markdown().encode())
        if not self.records and not is_part:
            reasons = ", ".join(f"{reason}: {number}" for stage, reason, number in funnel if stage == "set aside")
            where, number = folder / SET_ASIDE_NAME, self.num_collected
            raise BadInput(
                f"{where}: all {number} {self.units} were set aside ({reasons}); most frequent: {self._chief()}"
            )


def align_markdown(rows: Sequence[Sequence[str]]) -> str:
    """Write rows, the head first, as a Markdown table in columns; all but the first two are numbers."""
    head, *others = [[escape_markdown(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(head, *others, strict=True)]
    ruler = ["-" * width if place < 2 else "-" * (width - 1) + ":" for place, width in enumerate(widths)]
    text = ""
    for row in (head, ruler, *others):
        numbers = [cell.rjust(width) for cell, width in zip(row[2:], widths[2:], strict=True)]
        text += f"| {row[0].ljust(widths[0])} | {row[1].ljust(widths[1])} | {' | '.join(numbers)} |\n"
    return text


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


class ShardFile(msgspec.Struct, frozen=True, kw_only=True):
    """The run that a shard belongs to, and the outcomes of its reports."""

    version: str = msgspec.field(name="stepcot_jax")
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

    @property
    def positions(self) -> list[int]:
        """Positions in the source of its reports, usable or not."""
        return [*(position for position, _ in self.annotated), *self.unusable]


def write_shard_file(folder: Path, file: ShardFile) -> None:
    """Write the file of a complete shard."""
    own_folder.save(folder / FILE_NAME, file)


def read_shard_file(folder: Path) -> ShardFile:
    """Read the file of a complete shard."""
    if not (folder / FILE_NAME).exists():
        raise BadInput(f"{folder} has no {FILE_NAME}: expected the folder of a complete run with --shard")
    return own_folder.load(folder / FILE_NAME, ShardFile, max_bytes=MAX_LISTING_BYTES)


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
    if resolve(out) in map(resolve, folders):
        raise BadInput(f"--out: {out} is one of the shards; choose another folder")
    first, run = folders[0], read_shard_file(folders[0])
    by_index: dict[int, Path] = {}
    shards: dict[Path, ShardFile] = {}
    for folder in folders:
        shards[folder] = shard = read_shard_file(folder)
        if problem := _find_difference(shard, run, first):
            raise BadInput(f"{folder / FILE_NAME}: {problem}; expected the shards of one run")
        if shard.shard in by_index:
            raise BadInput(f"shard {shard.name} is in {by_index[shard.shard]} and in {folder}; pass each shard once")
        by_index[shard.shard] = folder
    missing = [str(Shard(index, run.count)) for index in range(run.count) if index not in by_index]
    if missing:
        more = f" and {len(missing) - 8} more" if len(missing) > 8 else ""
        names = ", ".join(missing[:8])
        raise BadInput(f"{len(missing)} of {run.count} shards are missing: {names}{more}; pass all folders")
    positions = sorted(itertools.chain.from_iterable(shard.positions for shard in shards.values()))
    if positions != list(range(run.total)):
        raise BadInput(f"{first / FILE_NAME}: the shards do not hold each of {run.total} reports once; annotate again")
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
    kept: dict[int, list[bytes]] = {}
    asides: dict[tuple[bool, int], Aside] = {}  # by whether they were unusable, and position
    for folder, shard in shards.items():
        raw, others = _read_records(folder, shard), _read_set_aside(folder, shard)
        for position, number in shard.annotated:
            if number:
                kept[position] = list(itertools.islice(raw, number))
            else:
                asides[False, position] = next(others)
        asides |= {(True, position): aside for position, aside in zip(shard.unusable, others, strict=True)}
    result.num_kept = len(kept)
    result.records = [record for position in sorted(kept) for record in kept[position]]
    result.set_aside = [asides[place] for place in sorted(asides)]
    return result


def _read_records(folder: Path, shard: ShardFile) -> Iterator[bytes]:
    path, expected = folder / data_json.FILE_NAME, sum(number for _, number in shard.annotated)
    if not path.exists():
        raise BadInput(f"{folder}: shard {shard.name} is not complete ({path.name} is missing); annotate it again")
    return _require(list(read_raw_records(path)) if expected else [], path, expected)


def _read_set_aside(folder: Path, shard: ShardFile) -> Iterator[Aside]:
    path, expected = folder / SET_ASIDE_NAME, len(shard.unusable) + sum(not number for _, number in shard.annotated)
    try:
        content = read_file(path, max_bytes=MAX_LISTING_BYTES, accepted="the reports set aside")
        return _require(msgspec.json.Decoder(Aside).decode_lines(content), path, expected)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError, MemoryError) as error:
        raise BadInput(f"{path} cannot be read ({one_line(error)}); annotate again") from None


def _require(items: list[T], path: Path, expected: int) -> Iterator[T]:
    if len(items) != expected:
        raise BadInput(f"{path} holds {len(items)}; its {FILE_NAME} says {expected}: annotate this shard again")
    return iter(items)
