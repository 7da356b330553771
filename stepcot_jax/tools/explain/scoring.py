"""Score a network's maps on radiographs with boxes, against an even map and random weights.

Energy in the box: the share of the map inside (Wang et al., Score-CAM, 2020). Pointing game: whether the centre of the
map's highest cell is inside (Zhang et al., 2018), without a tolerance. An even map scores the box's share of the area
in both. A model with random weights scores what the method finds in any image (Adebayo et al., "Sanity checks", 2018).
"""

import collections
import dataclasses
import json
import math
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Bool, Float, UInt8
from scipy import ndimage

from stepcot_jax.box import Box
from stepcot_jax.chain import Chain
from stepcot_jax.data.images.preprocessing import Preprocessing, decode_image, repeat_grey, resize_image
from stepcot_jax.data.phantom.phantom import draw_case
from stepcot_jax.data.sources.chestxray8 import ListedBox, read_box_list
from stepcot_jax.data.sources.layouts import read_source
from stepcot_jax.encoders.load import ImageEncoder
from stepcot_jax.evaluation.statistics import as_plain
from stepcot_jax.host.errors import BadInput
from stepcot_jax.reading.explain import Explainer, change_a_step, spread
from stepcot_jax.reading.radiographs import to_input
from stepcot_jax.reading.trained_model import Trained
from stepcot_jax.run.settings import Settings

# Geometry of maps and lesion boxes, and the boxed radiographs that maps are scored on.
#
# File pixels, the encoder's square, and map cells.


def place_box(box: Box, *, width: int, height: int, preprocessing: Preprocessing) -> tuple[float, float, float, float]:
    """Return a box's left, upper, right and lower edge in pixels of the encoder's square; they may lie outside."""
    size, side = preprocessing.size, preprocessing.side
    if preprocessing.fit == "stretch":
        across, down = side / width, side / height
    else:
        across = down = side / (min if preprocessing.fit == "crop" else max)(width, height)
    left, top = (size - width * across) / 2, (size - height * down) / 2
    return (left + box.x1 * across, top + box.y1 * down, left + box.x2 * across, top + box.y2 * down)


def fill_boxes(
    boxes: Iterable[Box], *, width: int, height: int, preprocessing: Preprocessing
) -> Bool[np.ndarray, "size size"]:
    """Return whether each pixel centre of the encoder's square lies inside any box."""
    centres = np.arange(preprocessing.size) + 0.5
    inside = np.zeros((preprocessing.size, preprocessing.size), bool)
    for box in boxes:
        left, top, right, bottom = place_box(box, width=width, height=height, preprocessing=preprocessing)
        rows = (top <= centres) & (centres < bottom)
        columns = (left <= centres) & (centres < right)
        inside |= rows[:, None] & columns[None]
    return inside


def spread_out(maps: Float[np.ndarray, "*case row column"], size: int) -> Float[np.ndarray, "*case size size"]:
    """Resample maps to the encoder's pixels, each cell's share split evenly over the pixel centres inside it.

    Sums do not change.
    """
    centres = np.arange(size) + 0.5  # of the pixels
    rows, columns = (np.minimum((centres * number / size).astype(int), number - 1) for number in maps.shape[-2:])
    num_rows, num_columns = np.bincount(rows, minlength=maps.shape[-2]), np.bincount(columns, minlength=maps.shape[-1])
    a_pixel = maps / np.maximum(num_rows[:, None] * num_columns[None], 1)
    return a_pixel[..., rows[:, None], columns[None]]


def smooth(cells: Float[np.ndarray, "row column"], size: int) -> Float[np.ndarray, "size size"]:
    """Resample a map to the encoder's pixels for display: bilinear between cell centres, scaled to a maximum of 1."""
    factors = [size / num_cells for num_cells in cells.shape]
    sampled = ndimage.zoom(np.asarray(cells, np.float64), factors, order=1, mode="nearest", grid_mode=True)
    return sampled / max(sampled.max(), 1e-30)


_MOST_DRAWN = 100
"""Phantoms drawn for each box wanted before giving up."""


@dataclasses.dataclass(frozen=True)
class BoxedPicture:
    """A radiograph with the locations of its lesions."""

    name: str
    patient: str
    picture: UInt8[np.ndarray, "size size 3"]
    inside: Bool[np.ndarray, "size size"]  # whether each pixel is in a box


def draw_boxed(settings: Settings, preprocessing: Preprocessing, *, num_cases: int) -> list[BoxedPicture]:
    """Draw phantoms with boxes from the next seed, which no run of these settings has seen."""
    phantom = settings.phantom
    size = phantom.image_size if settings.data.source == "phantom" else preprocessing.size
    seed = (phantom.seed + 1) % 2**32
    pictures: list[BoxedPicture] = []
    for index in range(_MOST_DRAWN * num_cases):
        drawn = draw_case(index, seed=seed, size=size, prevalence=phantom.prevalence)
        pixels = repeat_grey(drawn.image)
        boxed = _make(drawn.case.image, drawn.case.patient, pixels, drawn.boxes, preprocessing)
        if boxed is not None:
            pictures.append(boxed)
        if len(pictures) == num_cases:
            return pictures
    raise BadInput(f"the phantom has only {len(pictures)} cases with boxes; {num_cases} are needed")


def read_boxed(
    root: pathlib.Path,
    preprocessing: Preprocessing,
    *,
    num_cases: int,
    box_list: pathlib.Path | None = None,
    max_pixels: int,
) -> list[BoxedPicture]:
    """Read the radiographs of a data root that have boxes."""
    collection = read_source(root, on_bad_record="skip", require_images=True)
    listed = None if box_list is None else _read_listed(box_list)
    pictures: list[BoxedPicture] = []
    for case in collection.cases:
        boxes: Any = case.boxes if listed is None else listed.get(pathlib.PurePosixPath(case.image).stem, ())
        if not boxes:
            continue
        pixels = decode_image(collection.root / case.image, max_pixels=max_pixels)
        height, width = pixels.shape[:2]
        if listed is not None:
            boxes = tuple(box.scaled(width, height) for box in boxes)
        boxed = _make(case.image, case.patient, pixels, boxes, preprocessing)
        if boxed is not None:
            pictures.append(boxed)
        if len(pictures) == num_cases:
            break
    if not pictures:
        raise BadInput(
            f"{root} has no image with a box; expected data with boxes (docs/data.md), or --boxes with ChestX-ray8's "
            "BBox_List_2017.csv for images of that collection"
        )
    return pictures


def _read_listed(path: pathlib.Path) -> dict[str, list[ListedBox]]:
    """Return boxes by the image's name without suffix, in pixels of the released images."""
    by_name = collections.defaultdict(list)
    for row in read_box_list(path):
        if row.problem:
            raise BadInput(f"{path}: {row.problem}")
        by_name[pathlib.PurePosixPath(row.image).stem].append(row)
    return by_name


def _make(
    name: str, patient: str, pixels: np.ndarray, boxes: tuple[Box, ...], preprocessing: Preprocessing
) -> BoxedPicture | None:
    """Return a boxed picture; None if every box lies outside the encoder's square."""
    height, width = pixels.shape[:2]
    inside = fill_boxes(boxes, width=width, height=height, preprocessing=preprocessing)
    if not inside.any():
        return None
    return BoxedPicture(name, patient, resize_image(pixels, preprocessing), inside)


TRAINED, RANDOM, EVEN = "trained", "random weights", "even map"

_BATCH_SIZE = 8
_NUM_SHUFFLES = 5
"""Random models that are averaged: a single one may hit the right region by chance."""

_NUM_RESAMPLES = 1000
_LEVEL = 0.95


@dataclasses.dataclass(frozen=True)
class MapScores:
    """Scores of the maps of some cases, each 0 to 1."""

    spread: Float[np.ndarray, "case step"]  # entropy as a share of the even map's
    energy: Float[np.ndarray, "case step"]  # share of the map inside the boxes
    pointing: Float[np.ndarray, "case step"]  # 1 if the highest cell is inside; equally high cells share it


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
    """Return the mean with its 95 % interval by patient; a case without a patient ("") is one of its own."""
    patients = [group or f"\n{case}" for case, group in enumerate(groups)]
    _, indices = np.unique(np.asarray(patients, dtype=np.str_), return_inverse=True)
    sums, counts = np.bincount(indices, values), np.bincount(indices)
    if len(counts) < 2:
        return {"mean": float(values.mean()), "low": math.nan, "high": math.nan}
    drawn = np.random.default_rng(0).integers(0, len(counts), (_NUM_RESAMPLES, len(counts)))
    means = sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1)
    low, high = np.quantile(means, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    return {"mean": float(values.mean()), "low": float(low), "high": float(high)}


def compare(scores: Mapping[str, MapScores], chain: Chain, *, groups: Sequence[str]) -> dict[str, object]:
    """Compare sources of maps over the same cases: their scores, and the differences in energy."""
    steps = []
    for index, step in enumerate(chain.steps):
        entry: dict[str, object] = {"step": step.name}
        for name, source in scores.items():
            entry[name] = {
                "spread": float(source.spread[:, index].mean()),
                "energy": float(source.energy[:, index].mean()),
                "pointing": float(source.pointing[:, index].mean()),
                "energy_above": {
                    other: mean_interval(source.energy[:, index] - scores[other].energy[:, index], groups)
                    for other in scores
                    if other != name
                },
            }
        steps.append(entry)
    changes = {name: change_a_step(source.spread) for name, source in scores.items()}
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
    """Score the maps of one network."""
    if data is None:
        pictures = draw_boxed(trained.run.settings, trained.preprocessing, num_cases=num_cases)
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
    comparison = compare(scores, trained.chain, groups=[picture.patient for picture in pictures])
    return {"model": model, "data": "phantom" if data is None else str(data), **comparison}


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
        explained = explainer.explain(to_input([boxed.picture for boxed in batch], trained.preprocessing))
        parts.append(score_maps(explained.maps, np.stack([boxed.inside for boxed in batch])))
    return _join(parts, np.concatenate)


def _join(parts: list[MapScores], join: Callable[[list[np.ndarray]], np.ndarray]) -> MapScores:
    names = [field.name for field in dataclasses.fields(MapScores)]
    return MapScores(**{name: join([getattr(part, name) for part in parts]) for name in names})


def describe_scores(scores: dict[str, Any]) -> str:
    """Return the scores as a text table."""
    names = (TRAINED, RANDOM, EVEN)
    width = max(len(entry["step"]) for entry in scores["steps"])
    head = (
        f"{'':<{width}}"
        + "".join(f"  {name:>22}" for name in names)
        + "  trained above even [95 %]   above random [95 %]"
    )
    under = f"{'':<{width}}" + "".join(f"  {'energy pointing spread':>22}" for _ in names)
    lines = [f"{scores['num_cases']} radiographs with boxes ({scores['data']}), {scores['model']}", "", head, under]
    for entry in scores["steps"]:
        cells = "".join(
            f"  {entry[name]['energy']:>6.1%} {entry[name]['pointing']:>8.1%} {entry[name]['spread']:>6.2f}"
            for name in names
        )
        above = (_interval(entry[TRAINED]["energy_above"][name], "+6.1%") for name in (EVEN, RANDOM))
        lines.append(f"{entry['step']:<{width}}{cells}  {'  '.join(above)}")
    change = scores["spread_change_a_step"][TRAINED]
    lines += [
        "",
        f"spread of the map a step: {_interval(change, '+.4f')}; the focus "
        f"narrows in {scores['share_narrowing'][TRAINED]:.0%} of the radiographs",
        "energy: share of the map inside the boxes; pointing: highest cell inside; spread: entropy, 1 for an even map;",
        f"random weights: the network's own numbers in random order, mean of {_NUM_SHUFFLES} orders",
    ]
    return "\n".join(lines)


def _interval(interval: dict[str, float], form: str) -> str:
    if math.isnan(interval["low"]):
        return f"{interval['mean']:{form}} [undefined: fewer than two patients]"
    return f"{interval['mean']:{form}} [{interval['low']:{form}}, {interval['high']:{form}}]"


def write_scores(scores: dict[str, Any]) -> bytes:
    """Return the scores as JSON, null where undefined."""
    return (json.dumps(as_plain(scores), indent=1, allow_nan=False) + "\n").encode()
