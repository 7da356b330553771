"""Counts of answer pairs on disk, so that rules and log-ratios can be made without the training data."""

import itertools
import os
from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec
import numpy as np
import numpy.typing as npt

from stepcot_jax.chain import Chain
from stepcot_jax.evaluation.consistency import Pair, pairs_of
from stepcot_jax.evaluation.distributions import describe_difference
from stepcot_jax.evaluation.pair_ratios import PairRatios, make_ratios
from stepcot_jax.evaluation.report_table import write_report
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import read_json

_LAYOUT = "stepcot_jax pairs of answers 2"
_LAYOUT_OF_RULES = "stepcot_jax pairs of answers 1"
"""Of runs before version 2: the pairs that rules need, without weights."""
_MAX_BYTES = 2**24


class _FilePair(msgspec.Struct, frozen=True):
    earlier: int
    later: int
    counts: list[list[int]]


class _File(msgspec.Struct, frozen=True):
    layout: str
    steps: list[tuple[str, tuple[str, ...]]]
    pairs: list[_FilePair]
    weights: dict[str, list[Annotated[float, msgspec.Meta(ge=0, lt=1e6)]]] = {}


def write_pairs(
    path: str | os.PathLike[str],
    counts: Mapping[Pair, npt.NDArray[np.int64]],
    chain: Chain,
    *,
    weights: Mapping[str, Sequence[float]] | None = None,
) -> None:
    """Write the counts of `consistency.count_pairs` and each network's weights of `pair_ratios` as JSON, atomically."""
    report = {
        "layout": _LAYOUT,
        "steps": [[step.name, list(step.options)] for step in chain.steps],
        "pairs": [
            {"earlier": earlier, "later": later, "counts": own.tolist()} for (earlier, later), own in counts.items()
        ],
        "weights": {name: list(own) for name, own in (weights or {}).items()},
    }
    write_report(path, report)


def read_pairs(path: str | os.PathLike[str], chain: Chain) -> dict[Pair, npt.NDArray[np.int64]]:
    """Read the counts of `write_pairs`."""
    return _read(path, chain)[1]


def read_pair_ratios(path: str | os.PathLike[str], chain: Chain, *, model: str) -> PairRatios:
    """Read a network's log-ratios of pairs of answers."""
    found, counts = _read(path, chain)
    weights = found.weights.get(model, [])
    if len(weights) != chain.num_steps:
        raise BadInput(
            f"{path}, 'weights', {model!r}: found {len(weights)}, expected {chain.num_steps}; a run of an earlier "
            "version gets them if it is started once more with its own settings"
        )
    return PairRatios(make_ratios(counts, chain), tuple(weights))


def _read(path: str | os.PathLike[str], chain: Chain) -> tuple[_File, dict[Pair, npt.NDArray[np.int64]]]:
    found = read_json(path, _File, accepted="expected the pairs.json of a run", max_bytes=_MAX_BYTES)
    if found.layout not in (_LAYOUT, _LAYOUT_OF_RULES):
        raise BadInput(f"{path}, 'layout': {found.layout[:80]!r} is not {_LAYOUT!r}")
    difference = describe_difference(found.steps, chain)
    if difference:
        raise BadInput(f"{path}: pairs of another chain: {difference}")
    by_steps = {(pair.earlier, pair.later): pair.counts for pair in found.pairs}
    every = tuple(itertools.combinations(range(chain.num_steps), 2))
    expected = every if found.layout == _LAYOUT else pairs_of(chain.num_steps)
    if len(found.pairs) != len(expected) or set(by_steps) != set(expected):
        raise BadInput(f"{path}, 'pairs': {sorted(by_steps)} are not {list(expected)}, each once")
    return found, {pair: _read_counts(path, by_steps[pair], pair, chain) for pair in expected}


def _read_counts(
    path: str | os.PathLike[str], counts: list[list[int]], pair: Pair, chain: Chain
) -> npt.NDArray[np.int64]:
    num_rows, num_columns = (chain.answers_per_step[position] for position in pair)
    fits = len(counts) == num_rows and all(len(row) == num_columns for row in counts)
    if not fits or not all(0 <= count < 2**53 for row in counts for count in row):
        raise BadInput(f"{path}, counts of steps {pair} must be {num_rows} rows of {num_columns} whole numbers from 0")
    return np.array(counts, dtype=np.int64)
