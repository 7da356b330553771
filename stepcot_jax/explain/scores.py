"""Does a map point at the lesion? Figures of maps against boxes, beside what no explanation at all would get.

Energy in the box: the share of the map inside (Wang et al., Score-CAM, 2020). Pointing game: whether the map's highest
cell has its centre inside (Zhang et al., 2018), without a tolerance. An even map gets the box's share of the area in
both. A model with random weights gets what the method draws of any image (Adebayo et al., "Sanity checks", 2018).
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Bool, Float

from stepcot_jax.chain import Chain
from stepcot_jax.explain.focus import change_a_step, spread
from stepcot_jax.explain.geometry import spread_out

EVEN = "even map"

_NUM_RESAMPLES = 1000
_LEVEL = 0.95


@dataclasses.dataclass(frozen=True)
class MapScores:
    """Figures of the maps of some cases, each 0 to 1.

    Attributes:
      spread: entropy as a share of the even map's.
      energy: share of the map inside the boxes.
      pointing: 1 where the highest cell is inside, 0 elsewhere; several equally high ones count in part.
    """

    spread: Float[np.ndarray, "case step"]
    energy: Float[np.ndarray, "case step"]
    pointing: Float[np.ndarray, "case step"]


def score_maps(
    maps: Float[np.ndarray, "case step row column"], inside: Bool[np.ndarray, "case size size"]
) -> MapScores:
    """Figures of each map.

    Args:
      maps: summing to 1.
      inside: which of the encoder's pixels are in a box of the case.
    """
    num_cases, num_steps, rows, columns = maps.shape
    energy = np.zeros((num_cases, num_steps))
    for case in range(num_cases):  # one at a time: all maps at the encoder's size would be gigabytes
        energy[case] = (spread_out(maps[case], inside.shape[1]) * inside[case][None]).sum(axis=(1, 2))
    highest = maps == maps.max(axis=(2, 3), keepdims=True)
    hit = highest & _centres_inside(inside, rows, columns)[:, None]
    pointing = hit.sum(axis=(2, 3)) / highest.sum(axis=(2, 3))
    return MapScores(spread(maps), energy, pointing)


def _centres_inside(inside: Bool[np.ndarray, "case size size"], rows: int, columns: int) -> np.ndarray:
    """Whether each cell's centre is inside, [case, row, column]."""
    size = inside.shape[1]
    down, across = (((np.arange(cells) + 0.5) * size / cells).astype(int) for cells in (rows, columns))
    return inside[:, down[:, None], across[None]]


def score_even_map(inside: Bool[np.ndarray, "case size size"], *, num_steps: int) -> MapScores:
    """What a map gets that says nothing: the share of the area, also in the pointing game played at random."""
    area = np.repeat(inside.mean(axis=(1, 2))[:, None], num_steps, axis=1)
    return MapScores(np.ones_like(area), area, area)


def mean_interval(values: Float[np.ndarray, "case"], groups: Sequence[str], *, seed: int = 0) -> dict[str, float]:
    """Mean with its 95 % bootstrap interval, patients drawn whole.

    Args:
      values: one a case.
      groups: the patient of each case.
      seed: of the resampling.
    """
    _, places = np.unique(np.asarray(groups), return_inverse=True)
    sums, counts = np.bincount(places, values), np.bincount(places)
    drawn = np.random.default_rng(seed).integers(0, len(counts), (_NUM_RESAMPLES, len(counts)))
    means = sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1)
    low, high = np.quantile(means, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    return {"mean": float(values.mean()), "low": float(low), "high": float(high)}


def compare(scores: Mapping[str, MapScores], chain: Chain, *, groups: Sequence[str]) -> dict[str, object]:
    """The figures of several sources of maps over the same cases, and what each has above the others.

    Args:
      scores: by the name of the source, such as `EVEN`.
      chain: the steps.
      groups: the patient of each case.

    Returns:
      Plain types, for JSON.
    """
    steps = []
    for place, step in enumerate(chain.steps):
        entry: dict[str, object] = {"step": step.name}
        for name, found in scores.items():
            entry[name] = {
                "spread": float(found.spread[:, place].mean()),
                "energy": float(found.energy[:, place].mean()),
                "pointing": float(found.pointing[:, place].mean()),
                "energy_above": {
                    other: mean_interval(found.energy[:, place] - scores[other].energy[:, place], groups)
                    for other in scores
                    if other != name
                },
            }
        steps.append(entry)
    changes = {name: change_a_step(found.spread) for name, found in scores.items()}
    return {
        "num_cases": len(groups),
        "steps": steps,
        "spread_change_a_step": {name: mean_interval(change, groups) for name, change in changes.items()},
        "share_narrowing": {name: float((change < -1e-9).mean()) for name, change in changes.items()},
    }
