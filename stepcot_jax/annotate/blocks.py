"""Annotate by rules in the processes of an engine; finished blocks are kept, so that a stopped run resumes."""

import functools
import hashlib
import itertools
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from stepcot_jax import __version__
from stepcot_jax.annotate.annotation import Annotation, Aside, CannotAnnotate, Outcome, Provenance, Report
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.extras import MapBlocks
from stepcot_jax.host.files import read_file, write_whole

FOLDER = "blocks"
BLOCK_SIZE = 256
"""Reports per block, about a quarter of a second of work."""

_MAX_BLOCK_BYTES = 1 << 30

Annotate = Callable[[Report], tuple[Annotation, Provenance]]
"""Annotates one report, or raises `CannotAnnotate`."""


class _Done(msgspec.Struct, frozen=True):
    made: Annotation | None
    provenance: Provenance
    aside: Aside | None


def _start_worker(make: Callable[[], Annotate]) -> Callable[[Sequence[Report]], bytes]:
    """Return the function with which a worker annotates a block and returns the encoded outcomes."""
    annotate = make()
    return lambda reports: msgspec.json.encode([_annotate(report, annotate) for report in reports])


def _annotate(report: Report, annotate: Annotate) -> _Done:
    try:
        made, provenance = annotate(report)
    except CannotAnnotate as error:
        return _Done(None, (), Aside(report.id, error.reason, error.detail))
    return _Done(made, provenance, None)


def annotate_in_blocks(
    reports: Iterable[Report],
    make: Callable[[], Annotate],
    map_blocks: MapBlocks,
    *,
    folder: Path,
    settings: str,
    watch: Callable[[int], None],
) -> Iterator[Outcome[Report, Annotation]]:
    """Yield the outcome of each report, in order; finished blocks are kept in `folder` until `forget_blocks`."""
    source = iter(reports)
    blocks = list(iter(lambda: list(itertools.islice(source, BLOCK_SIZE)), []))
    paths = [folder / FOLDER / f"{_name_block(block, settings)}.json" for block in blocks]
    missing = [index for index, path in enumerate(paths) if not path.exists()]
    num_done = sum(map(len, blocks)) - sum(len(blocks[index]) for index in missing)
    for index, content in map_blocks([blocks[index] for index in missing], functools.partial(_start_worker, make)):
        write_whole(paths[missing[index]], content)
        num_done += len(blocks[missing[index]])
        watch(num_done)
    for block, path in zip(blocks, paths, strict=True):
        for report, done in zip(block, _read_block(path, num_reports=len(block)), strict=True):
            yield Outcome(report, done.made, done.provenance, done.aside)


def forget_blocks(folder: Path) -> None:
    """Remove the finished blocks of a run that is complete."""
    shutil.rmtree(folder / FOLDER, ignore_errors=True)


def _name_block(block: Sequence[Report], settings: str) -> str:
    digest = hashlib.sha256()
    for part in ((__version__, settings), *block):
        digest.update(repr(part).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:32]


def _read_block(path: Path, *, num_reports: int) -> list[_Done]:
    try:
        content = read_file(path, max_bytes=_MAX_BLOCK_BYTES, accepted="a finished block")
        outcomes = msgspec.json.decode(content, type=list[_Done])
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        outcomes = []
    if len(outcomes) != num_reports:
        raise BadInput(f"{path} is not a block of {num_reports} reports; remove it and rerun the command")
    return outcomes
