"""Score a network's maps on radiographs with boxes, less constant maps, other cases' maps and random weights.

`evaluation.maps` has the scores. A model with random weights scores what the method finds in any image (Adebayo et al.,
"Sanity checks", 2018).
"""

import collections
import dataclasses
import itertools
import json
import math
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Bool, Float, UInt8
from scipy import ndimage

from stepcot_jax.box import Box
from stepcot_jax.data.images.preprocessing import Preprocessing, decode_image, repeat_grey, resize_image
from stepcot_jax.data.phantom.phantom import draw_case
from stepcot_jax.data.sources.chestxray8 import RELEASED_SIDE, ListedBox, read_box_list
from stepcot_jax.data.sources.intake import scale_box
from stepcot_jax.data.sources.layouts import read_source
from stepcot_jax.encoders.load import ImageEncoder
from stepcot_jax.evaluation.maps import Scores, Targets, list_figures, mean_intervals, place_targets, score_maps
from stepcot_jax.evaluation.statistics import Interval, as_plain
from stepcot_jax.host.errors import BadInput
from stepcot_jax.reading.explain import GRID, Explainer, spread
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


def draw_boxed(
    settings: Settings, preprocessing: Preprocessing, *, num_cases: int, later: int = 1
) -> list[BoxedPicture]:
    """Draw phantoms with boxes from a later seed, which no run of these settings has seen; 0 is the run's own."""
    phantom = settings.phantom
    size = phantom.image_size if settings.data.source == "phantom" else preprocessing.size
    how = phantom.drawing | {"seed": (phantom.seed + later) % 2**32, "size": size}
    drawn = (draw_case(index, **how) for index in range(_MOST_DRAWN * num_cases))
    boxed = (
        _make(each.case.image, each.case.patient, repeat_grey(each.image), each.boxes, preprocessing) for each in drawn
    )
    pictures = list(itertools.islice(filter(None, boxed), num_cases))
    if len(pictures) < num_cases:
        raise BadInput(f"the phantom has only {len(pictures)} cases with boxes; {num_cases} are needed")
    return pictures


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
            boxes = tuple(scale_box(row.box, width / RELEASED_SIDE, height / RELEASED_SIDE) for row in boxes)
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


_NUM_SHUFFLES = 3
"""Random models that are averaged: a single one may hit the right region by chance."""

_NUM_FITTED = 500
"""Phantoms of the run whose boxes the constant maps are fitted on; the scored ones are of another seed."""

_NOTES = (
    "share: part of the map in the boxes; pointing: highest cell inside; in points, with 95 % intervals by patient",
    "best constant map: the cell, or the mean of the boxes as sharp as the map, that scores best on {fitted}",
    "other cases' maps: those of the other cases with the same answer, on this case's boxes",
    "random weights: the network's own numbers in random order, mean of {shuffles} orders",
)


@dataclasses.dataclass(frozen=True)
class MapScores:
    """The figures of a network's maps."""

    model: str
    data: str
    num_cases: int
    area: float  # part of the pictures inside boxes
    filled_with: str  # what replaces a window, in words
    steps: tuple[str, ...]
    figures: dict[str, list[Interval]]  # by name, a figure a step
    spread: list[float]  # mean spread of the maps by step
    fitted_on: str


def score_network(
    trained: Trained,
    *,
    model: str,
    data: pathlib.Path | None = None,
    box_list: pathlib.Path | None = None,
    num_cases: int = 100,
) -> MapScores:
    """Score the maps of one network."""
    how: dict[str, Any] = {"preprocessing": trained.preprocessing, "num_cases": num_cases}
    if data is None:
        pictures, fitted_on = draw_boxed(trained.run.settings, **how), fit_on_training(trained)
    else:
        pictures = read_boxed(data, box_list=box_list, max_pixels=trained.run.max_pixels, **how)
        fitted_on = None
    explainer = Explainer(trained, model=model)
    images = to_input([boxed.picture for boxed in pictures], trained.preprocessing)
    explained = explainer.explain(images, with_claims=False)
    inside = np.stack([boxed.inside for boxed in pictures])
    spreads, targets = spread(explained.maps).mean(axis=0), place_boxes(inside)
    patients = [boxed.patient for boxed in pictures]
    rivals: dict[str, Any] = {"fitted_on": fitted_on, "random": score_random(trained, model, images, targets)}
    figures = list_figures(explained.maps, explained.labels, targets, spreads=spreads, patients=patients, **rivals)
    return MapScores(
        model=model,
        data="phantom" if data is None else str(data),
        num_cases=len(pictures),
        area=float(inside.mean()),
        filled_with=explainer.filled_with,
        steps=tuple(step.name for step in trained.chain.steps),
        figures=mean_intervals(figures, patients),
        spread=spreads.tolist(),
        fitted_on="training boxes" if fitted_on is not None else "the boxes of the other patients",
    )


def place_boxes(inside: Bool[np.ndarray, "case size size"]) -> Targets:
    """Return boxes on the cells of this package's maps."""
    return place_targets(inside, rows=GRID, columns=GRID)


def fit_on_training(trained: Trained) -> Targets:
    """Return boxes of the run's own phantoms, to fit constant maps on."""
    fitted = draw_boxed(trained.run.settings, trained.preprocessing, num_cases=_NUM_FITTED, later=0)
    return place_boxes(np.stack([boxed.inside for boxed in fitted]))


def score_random(trained: Trained, model: str, images: np.ndarray, targets: Targets) -> Scores:
    """Return the scores of maps of random weights, each map of the most probable answer."""
    scores = []
    for seed in range(_NUM_SHUFFLES):
        explainer = Explainer(randomise(trained, model, seed=seed), model=model)
        scores.append(score_maps(explainer.explain(images, with_claims=False).maps, targets))
    return {name: np.mean([of_seed[name] for of_seed in scores], axis=0) for name in scores[0]}


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


def describe_scores(scores: MapScores) -> str:
    """Return the scores as a table in Markdown, with notes."""
    about = (
        f"{scores.num_cases} radiographs with boxes ({scores.data}; {scores.area:.1%} of the area), {scores.model}; "
        f"windows replaced by {scores.filled_with}"
    )
    notes = (note.format(fitted=scores.fitted_on, shuffles=_NUM_SHUFFLES) for note in _NOTES)
    return "\n".join([about, "", *write_figures(scores.figures, scores.steps), "", *notes])


def write_figures(figures: Mapping[str, Sequence[Interval]], steps: Sequence[str]) -> list[str]:
    """Return figures as the lines of a table in Markdown, a column a step."""
    lines = [f"| points | {' | '.join(steps)} |", "|---" * (len(steps) + 1) + "|"]
    for name, of_steps in figures.items():
        cells = (_write_interval(interval, signed=" less " in name) for interval in of_steps)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def _write_interval(interval: Interval, *, signed: bool) -> str:
    form = "+.1f" if signed else ".1f"
    if math.isnan(interval.value):
        return "undefined"
    value = f"{100 * interval.value:{form}}"
    if math.isnan(interval.low):
        return value
    return f"{value} [{100 * interval.low:{form}}, {100 * interval.high:{form}}]"


def write_scores(scores: MapScores) -> bytes:
    """Return the scores as JSON, null where undefined."""
    return (json.dumps(as_plain(scores), indent=1, allow_nan=False) + "\n").encode()
