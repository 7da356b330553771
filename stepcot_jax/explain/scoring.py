"""Score a network's maps on radiographs with boxes, against an even map and random weights.

Energy in the box: the share of the map inside (Wang et al., Score-CAM, 2020). Pointing game: whether the centre of the
map's highest cell is inside (Zhang et al., 2018), without a tolerance. An even map scores the box's share of the area
in both. A model with random weights scores what the method finds in any image (Adebayo et al., "Sanity checks", 2018).
"""

import dataclasses
import json
import math
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Bool, Float

from stepcot_jax.chain import Chain
from stepcot_jax.encoders.load import ImageEncoder
from stepcot_jax.evaluation.summary import without_nan
from stepcot_jax.explain.geometry import BoxedPicture, change_a_step, draw_boxed, read_boxed, spread, spread_out
from stepcot_jax.explain.saliency import Explainer
from stepcot_jax.predict.radiographs import to_input
from stepcot_jax.predict.trained_model import Trained

TRAINED, RANDOM, EVEN = "trained", "random weights", "even map"

_BATCH_SIZE = 8
_NUM_SHUFFLES = 5
"""Random models that are averaged: a single one may hit the right place by chance."""

_NUM_RESAMPLES = 1000
_LEVEL = 0.95


@dataclasses.dataclass(frozen=True)
class MapScores:
    """Scores of the maps of some cases, each 0 to 1.

    Attributes:
      spread: entropy as a share of the even map's.
      energy: share of the map inside the boxes.
      pointing: 1 if the highest cell is inside, else 0; equally high cells share the point.
    """

    spread: Float[np.ndarray, "case step"]
    energy: Float[np.ndarray, "case step"]
    pointing: Float[np.ndarray, "case step"]


def score_maps(
    maps: Float[np.ndarray, "case step row column"], inside: Bool[np.ndarray, "case size size"]
) -> MapScores:
    """Score each map."""
    num_cases, num_steps, rows, columns = maps.shape
    energy = np.zeros((num_cases, num_steps))
    for case in range(num_cases):  # one at a time: all maps at the encoder's size would take gigabytes
        energy[case] = (spread_out(maps[case], inside.shape[1]) * inside[case][None]).sum(axis=(1, 2))
    highest = maps == maps.max(axis=(2, 3), keepdims=True)
    size = inside.shape[1]
    down, across = (((np.arange(cells) + 0.5) * size / cells).astype(int) for cells in (rows, columns))
    hit = highest & inside[:, None, down[:, None], across[None]]  # the cells whose centre is inside
    pointing = hit.sum(axis=(2, 3)) / highest.sum(axis=(2, 3))
    return MapScores(spread(maps), energy, pointing)


def score_even_map(inside: Bool[np.ndarray, "case size size"], *, num_steps: int) -> MapScores:
    """Return the scores of an even map: the boxes' share of the area, also in a pointing game played at random."""
    area = np.repeat(inside.mean(axis=(1, 2))[:, None], num_steps, axis=1)
    return MapScores(np.ones_like(area), area, area)


def mean_interval(values: Float[np.ndarray, "case"], groups: Sequence[str]) -> dict[str, float]:
    """Return the mean with its 95 % bootstrap interval over patients.

    Args:
      groups: the patient of each case; a case without one ("") is a patient of its own.

    Returns:
      "mean", "low" and "high"; the ends are NaN with fewer than two patients, whose resamples would all be alike.
    """
    own = [group or f"\n{case}" for case, group in enumerate(groups)]
    _, places = np.unique(np.asarray(own, dtype=np.str_), return_inverse=True)
    sums, counts = np.bincount(places, values), np.bincount(places)
    if len(counts) < 2:
        return {"mean": float(values.mean()), "low": math.nan, "high": math.nan}
    drawn = np.random.default_rng(0).integers(0, len(counts), (_NUM_RESAMPLES, len(counts)))
    means = sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1)
    low, high = np.quantile(means, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    return {"mean": float(values.mean()), "low": float(low), "high": float(high)}


def compare(scores: Mapping[str, MapScores], chain: Chain, *, groups: Sequence[str]) -> dict[str, object]:
    """Compare sources of maps over the same cases: their scores, and the differences in energy."""
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


def score_network(
    trained: Trained,
    *,
    model: str,
    data: pathlib.Path | None = None,
    box_list: pathlib.Path | None = None,
    num_cases: int = 100,
) -> dict[str, Any]:
    """Score the maps of one network.

    Args:
      data: root of radiographs with boxes; None draws phantoms that the run has not seen.
    """
    if data is None:
        pictures = draw_boxed(trained.settings, trained.preprocessing, num_cases=num_cases)
    else:
        pictures = read_boxed(
            data, trained.preprocessing, num_cases=num_cases, box_list=box_list, max_pixels=trained.max_pixels
        )
    inside = np.stack([picture.inside for picture in pictures])
    scores = {
        TRAINED: _score(trained, model, pictures),
        RANDOM: _join(
            [_score(randomise(trained, model, seed=seed), model, pictures) for seed in range(_NUM_SHUFFLES)],
            lambda rows: np.mean(rows, axis=0),
        ),
        EVEN: score_even_map(inside, num_steps=trained.chain.num_steps),
    }
    found = compare(scores, trained.chain, groups=[picture.patient for picture in pictures])
    return {"model": model, "data": "phantom" if data is None else str(data), **found}


def randomise(trained: Trained, model: str, *, seed: int) -> Trained:
    """Return the same networks, image encoder included, with each tensor's numbers in random order.

    The shuffled weights have learned nothing but keep their scale, and with it that of the activations.
    """
    generator = np.random.default_rng(seed)

    def shuffle(leaf: Any) -> np.ndarray:
        return generator.permutation(np.asarray(leaf).ravel()).reshape(leaf.shape)

    frozen: Any = trained.frozen_encoder
    if isinstance(frozen, ImageEncoder):
        shuffled = jax.tree.map(shuffle, frozen.params)
        frozen = dataclasses.replace(frozen, read_params=lambda: shuffled)
    params = {model: jax.tree.map(shuffle, trained.params[model])}
    return dataclasses.replace(trained, params=params, frozen_encoder=frozen)


def _score(trained: Trained, model: str, pictures: list[BoxedPicture]) -> MapScores:
    explainer = Explainer(trained, model=model, batch_size=min(_BATCH_SIZE, len(pictures)))
    parts = []
    for start in range(0, len(pictures), explainer.batch_size):
        batch = pictures[start : start + explainer.batch_size]
        explained = explainer.explain(to_input([each.picture for each in batch], trained.preprocessing))
        parts.append(score_maps(explained.maps, np.stack([each.inside for each in batch])))
    return _join(parts, np.concatenate)


def _join(parts: list[MapScores], join: Callable[[list[np.ndarray]], np.ndarray]) -> MapScores:
    names = [field.name for field in dataclasses.fields(MapScores)]
    return MapScores(**{name: join([getattr(part, name) for part in parts]) for name in names})


def describe_scores(found: dict[str, Any]) -> str:
    """Return the scores as a text table."""
    names = (TRAINED, RANDOM, EVEN)
    width = max(len(entry["step"]) for entry in found["steps"])
    head = (
        f"{'':<{width}}"
        + "".join(f"  {name:>22}" for name in names)
        + "  trained above even [95 %]   above random [95 %]"
    )
    under = f"{'':<{width}}" + "".join(f"  {'energy pointing spread':>22}" for _ in names)
    lines = [f"{found['num_cases']} radiographs with boxes ({found['data']}), {found['model']}", "", head, under]
    for entry in found["steps"]:
        cells = "".join(
            f"  {entry[name]['energy']:>6.1%} {entry[name]['pointing']:>8.1%} {entry[name]['spread']:>6.2f}"
            for name in names
        )
        above = (_interval(entry[TRAINED]["energy_above"][name], "+6.1%") for name in (EVEN, RANDOM))
        lines.append(f"{entry['step']:<{width}}{cells}  {'  '.join(above)}")
    change = found["spread_change_a_step"][TRAINED]
    lines += [
        "",
        f"spread of the map a step: {_interval(change, '+.4f')}; the focus "
        f"narrows in {found['share_narrowing'][TRAINED]:.0%} of the radiographs",
        "energy: share of the map inside the boxes; pointing: highest cell inside; spread: entropy, 1 for an even map;",
        f"random weights: the network's own numbers in random order, mean of {_NUM_SHUFFLES} orders",
    ]
    return "\n".join(lines)


def _interval(found: dict[str, float], form: str) -> str:
    if math.isnan(found["low"]):
        return f"{found['mean']:{form}} [undefined: fewer than two patients]"
    return f"{found['mean']:{form}} [{found['low']:{form}}, {found['high']:{form}}]"


def write_scores(found: dict[str, Any]) -> bytes:
    """Return the scores as JSON, null where undefined."""
    return (json.dumps(without_nan(found), indent=1, allow_nan=False) + "\n").encode()
