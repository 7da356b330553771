"""Scores of a network's maps on radiographs with boxes, beside those of an even map and of random weights."""

import dataclasses
import json
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from stepcot_jax.encoders.load import ImageEncoder
from stepcot_jax.explain.boxed import BoxedPicture, draw_boxed, read_boxed
from stepcot_jax.explain.saliency import Explainer
from stepcot_jax.explain.scores import EVEN, MapScores, compare, score_even_map, score_maps
from stepcot_jax.predict.radiographs import to_input
from stepcot_jax.predict.trained_model import Trained

TRAINED, RANDOM = "trained", "random weights"

_BATCH_SIZE = 8
_NUM_SHUFFLES = 5
"""Random models that are averaged: one alone may look at the right place by chance."""


def score_network(
    trained: Trained,
    *,
    model: str,
    data: pathlib.Path | None = None,
    box_list: pathlib.Path | None = None,
    num_cases: int = 100,
) -> dict[str, Any]:
    """Scores of the maps of one network.

    Args:
      trained: the run.
      model: "teacher" or "student".
      data: root of radiographs with boxes; None draws phantoms that the run has not seen.
      box_list: ChestX-ray8's boxes for the images of `data`.
      num_cases: the most radiographs with boxes.

    Returns:
      What `scores.compare` returns, with where the radiographs are from.

    Raises:
      BadInput: the data cannot be read or have no boxes, or the network cannot be explained.
    """
    if data is None:
        pictures = draw_boxed(trained.settings, trained.preprocessing, num_cases=num_cases)
    else:
        max_pixels = int(trained.settings.data.max_megapixels * 1e6)
        pictures = read_boxed(
            data, trained.preprocessing, num_cases=num_cases, box_list=box_list, max_pixels=max_pixels
        )
    inside = np.stack([picture.inside for picture in pictures])
    scores = {
        TRAINED: _score(trained, model, pictures),
        RANDOM: _average(
            [_score(randomise(trained, model, seed=seed), model, pictures) for seed in range(_NUM_SHUFFLES)]
        ),
        EVEN: score_even_map(inside, num_steps=trained.chain.num_steps),
    }
    found = compare(scores, trained.chain, groups=[picture.patient for picture in pictures])
    return {"model": model, "data": "phantom" if data is None else str(data), **found}


def randomise(trained: Trained, model: str, *, seed: int) -> Trained:
    """The same networks, the image encoder included, with each tensor's numbers in random order.

    Nothing of what was learned is left but the size of the numbers, so that activations keep their scale.
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


def _average(scores: list[MapScores]) -> MapScores:
    return _join(scores, lambda rows: np.mean(rows, axis=0))


def _join(parts: list[MapScores], join: Callable[[list[np.ndarray]], np.ndarray]) -> MapScores:
    names = [field.name for field in dataclasses.fields(MapScores)]
    return MapScores(**{name: join([getattr(part, name) for part in parts]) for name in names})


def describe_scores(found: dict[str, Any]) -> str:
    """The scores as a table for a person."""
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
        above = (_interval(entry[TRAINED]["energy_above"][name]) for name in (EVEN, RANDOM))
        lines.append(f"{entry['step']:<{width}}{cells}  {'  '.join(above)}")
    change = found["spread_change_a_step"][TRAINED]
    lines += [
        "",
        f"spread of the map a step: {change['mean']:+.4f} [{change['low']:+.4f}, {change['high']:+.4f}]; the focus "
        f"narrows in {found['share_narrowing'][TRAINED]:.0%} of the radiographs",
        "energy: share of the map inside the boxes; pointing: highest cell inside; spread: entropy, 1 for an even map;",
        f"random weights: the network's own numbers in random order, mean of {_NUM_SHUFFLES} orders",
    ]
    return "\n".join(lines)


def _interval(found: dict[str, float]) -> str:
    return f"{found['mean']:+6.1%} [{found['low']:+6.1%}, {found['high']:+6.1%}]"


def write_scores(found: dict[str, Any]) -> bytes:
    """The scores as JSON."""
    return (json.dumps(found, indent=1) + "\n").encode()
