"""Counts of answer pairs on disk, so that rules can be made without the training data."""

import os

import msgspec
import numpy as np
import numpy.typing as npt

from stepcot_jax.chain import Chain
from stepcot_jax.evaluation.consistency import Pair, pairs_of
from stepcot_jax.evaluation.distributions import describe_difference
from stepcot_jax.evaluation.report_table import write_report
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import read_json

_LAYOUT = "stepcot_jax pairs of answers 1"
_MAX_BYTES = 2**24


class _FilePair(msgspec.Struct, frozen=True):
    earlier: int
    later: int
    counts: list[list[int]]


class _File(msgspec.Struct, frozen=True):
    layout: str
    steps: list[tuple[str, tuple[str, ...]]]
    pairs: list[_FilePair]


def write_pairs(path: str | os.PathLike[str], counts: dict[Pair, npt.NDArray[np.int64]], chain: Chain) -> None:
    """Write the counts of `consistency.count_pairs` as JSON, atomically."""
    report = {
        "layout": _LAYOUT,
        "steps": [[step.name, list(step.options)] for step in chain.steps],
        "pairs": [
            {"earlier": earlier, "later": later, "counts": own.tolist()} for (earlier, later), own in counts.items()
        ],
    }
    write_report(path, report)


def read_pairs(path: str | os.PathLike[str], chain: Chain) -> dict[Pair, npt.NDArray[np.int64]]:
    """Read a file of `write_pairs`.

    Raises:
      BadInput: the file is missing, damaged or of another chain.
    """
    found = read_json(path, _File, accepted="expected the pairs.json of a run", max_bytes=_MAX_BYTES)
    if found.layout != _LAYOUT:
        raise BadInput(f"{path}, 'layout': {found.layout[:80]!r} is not {_LAYOUT!r}")
    difference = describe_difference(found.steps, chain)
    if difference:
        raise BadInput(f"{path}: pairs of another chain: {difference}")
    by_steps = {(pair.earlier, pair.later): pair.counts for pair in found.pairs}
    expected = pairs_of(chain.num_steps)
    if len(found.pairs) != len(expected) or set(by_steps) != set(expected):
        raise BadInput(f"{path}, 'pairs': {sorted(by_steps)} are not {list(expected)}, each once")
    return {pair: _read_counts(path, by_steps[pair], pair, chain) for pair in expected}


def _read_counts(
    path: str | os.PathLike[str], counts: list[list[int]], pair: Pair, chain: Chain
) -> npt.NDArray[np.int64]:
    num_rows, num_columns = (chain.answers_per_step[position] for position in pair)
    fits = len(counts) == num_rows and all(len(row) == num_columns for row in counts)
    if not fits or not all(0 <= count < 2**53 for row in counts for count in row):
        raise BadInput(f"{path}, counts of steps {pair} must be {num_rows} rows of {num_columns} whole numbers from 0")
    return np.array(counts, dtype=np.int64)
