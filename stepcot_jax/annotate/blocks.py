"""Annotate by rules in the processes of an engine; finished blocks are kept, so that a stopped run resumes."""

import dataclasses
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


class _Done(msgspec.Struct, frozen=True):
    """The outcome of a report, without the report."""

    made: Annotation | None
    provenance: Provenance
    aside: Aside | None


@dataclasses.dataclass(frozen=True)
class RulesOfWorker:
    """Makes the function with which a worker annotates a block."""

    make: Callable[[], Annotate]  # returns the function that annotates one report, which may raise `CannotAnnotate`

    def __call__(self) -> Callable[[Sequence[Report]], bytes]:
        """Return the function that annotates a block and returns the encoded outcomes."""
        annotate = self.make()

        def annotate_block(reports: Sequence[Report]) -> bytes:
            return msgspec.json.encode([_annotate(report, annotate) for report in reports])

        return annotate_block


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
    """Yield the outcome of each report, in order, annotated in the processes of an engine.

    Each finished block is written to `folder`, named by its reports and the settings; a later run annotates only the
    missing blocks. `forget_blocks` removes the files.

    Args:
      make: called once in each worker, and pickled; returns the function that annotates one report.
    """
    source = iter(reports)
    blocks = list(iter(lambda: list(itertools.islice(source, BLOCK_SIZE)), []))
    paths = [folder / FOLDER / f"{_name_block(block, settings)}.json" for block in blocks]
    missing = [index for index, path in enumerate(paths) if not path.exists()]
    num_done = sum(map(len, blocks)) - sum(len(blocks[index]) for index in missing)
    for index, content in map_blocks([blocks[index] for index in missing], RulesOfWorker(make)):
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
    digest = hashlib.sha256(repr((__version__, settings)).encode("utf-8", "surrogatepass"))
    for report in block:
        digest.update(repr(report).encode("utf-8", "surrogatepass"))
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
