"""Maps by intervention: what an answer loses when a part of the picture is replaced.

The picture is a grid of 16 x 16 cells. Windows of 3 x 3 cells are replaced in turn by the mean picture of normal
training cases, or blurred if the run stored none; a cell's value is the mean fall of the answer's log-probability over
the windows on it. Any encoder that reads images is explained alike (docs/results/explanations.md compares ways).
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Float32, Int
from scipy import ndimage

from stepcot_jax.reading.programs import Reader, Reading
from stepcot_jax.reading.radiographs import to_input
from stepcot_jax.reading.readings import percent
from stepcot_jax.reading.trained_model import Trained

PREDICTED = -1  # As a label: explain the most probable answer

GRID = 16  # Cells along a side
TENTH = round(GRID * GRID / 10)  # Cells that a claim blurs
_WINDOW = 3  # Cells along the side of a window
_SIGMA = 1.5  # Of the blur, in cells: half a window
_NUM_RANDOM = 11  # Random tenths; with the brightest ones of seven steps they fill one batch
_AT_ONCE = 18  # Pictures that are read in one batch; 11 batches take the picture and its 196 windows
_LEAST = 1e-12  # Smallest probability that a logarithm is taken of

Masks = Bool[np.ndarray, "mask row column"]  # cells of the picture
Image = Float32[np.ndarray, "height width 3"]


@functools.cache
def window_masks() -> Masks:
    """Return all windows inside the grid."""
    starts = range(GRID - _WINDOW + 1)
    masks = np.zeros((len(starts) ** 2, GRID, GRID), bool)
    for number, mask in enumerate(masks):
        row, column = divmod(number, len(starts))
        mask[row : row + _WINDOW, column : column + _WINDOW] = True
    return masks


@functools.cache
def random_masks(number: int, *, num_cells: int) -> Masks:
    """Return masks of the highest cells of smooth noise: connected parts about as wide as a window."""
    noise = np.random.default_rng(0).standard_normal((number, GRID, GRID))
    return highest_cells(ndimage.gaussian_filter(noise, (0, _SIGMA, _SIGMA), mode="wrap"), num_cells)


def highest_cells(maps: Float[np.ndarray, "*case row column"], num_cells: int) -> Bool[np.ndarray, "*case row column"]:
    """Return the `num_cells` highest cells of each map; of equal ones the first."""
    flat = maps.reshape(*maps.shape[:-2], -1)
    order = np.argsort(-flat, axis=-1, kind="stable")[..., :num_cells]
    chosen = np.zeros(flat.shape, bool)
    np.put_along_axis(chosen, order, True, axis=-1)
    return chosen.reshape(maps.shape)


def blur(image: Image) -> Image:
    """Return a picture without details smaller than a window."""
    sigma = _SIGMA * image.shape[0] / GRID
    return ndimage.gaussian_filter(image, (sigma, sigma, 0))


def replace_cells(image: Image, filler: Image, masks: Masks) -> Float32[np.ndarray, "mask height width 3"]:
    """Return copies of a picture with the masked cells taken from another one."""
    cells = ((np.arange(image.shape[0]) + 0.5) * GRID / image.shape[0]).astype(int)
    return np.where(masks[:, cells[:, None], cells[None]][..., None], filler, image)


@dataclasses.dataclass(frozen=True)
class Claim:
    """What a map claims: the answer's probability in the picture, and with a tenth of the cells blurred."""

    probability: float
    brightest: float  # with the map's brightest tenth blurred
    random: float  # with a random tenth blurred, mean of several
    other: float | None = None  # with the tenth blurred that is brightest in another image's map of the step

    def __str__(self) -> str:
        """Return the claim in words.

        >>> str(Claim(0.84, 0.31, 0.8, other=0.5))
        "84 % becomes 31 % with the brightest tenth blurred, 50 % with another image's, 80 % with a random tenth"
        """
        before, brightest, random = map(percent, (self.probability, self.brightest, self.random))
        other = "" if self.other is None else f", {percent(self.other)} with another image's"
        return f"{before} becomes {brightest} with the brightest tenth blurred{other}, {random} with a random tenth"


@dataclasses.dataclass(frozen=True)
class Explanation:
    """A network's reading of images, with its maps."""

    reading: Reading
    labels: Int[np.ndarray, "case step"]  # the answer that each map explains
    maps: Float32[np.ndarray, "case step row column"]  # not negative, each with sum 1; constant without support
    claims: tuple[tuple[Claim, ...], ...]  # by case and step; empty if they were not asked for


class Explainer:
    """Explains the readings of one network; compiled once.

    Attributes:
      filled_with: what replaces a window, in words.
    """

    def __init__(self, trained: Trained, *, model: str = "student", as_published: bool = False) -> None:
        self.trained, self.model = trained, model
        self.reader = Reader(trained, model=model, batch_size=_AT_ONCE, as_published=as_published)
        normal = trained.normal_picture
        self._normal = None if normal is None else to_input([normal.pixels], trained.preprocessing)[0]
        self.filled_with = "a blurred copy (the run stored no mean picture of normal cases)"
        if normal is not None:
            self.filled_with = f"the mean of {normal.num_cases} normal training pictures"

    def explain(
        self,
        images: Float32[np.ndarray, "case height width 3"],
        *,
        given_answers: Int[np.ndarray, "case step"] | Float[np.ndarray, "case step answer"] | None = None,
        labels: Int[np.ndarray, "case step"] | None = None,
        with_claims: bool = True,
        before: Float32[np.ndarray, "step row column"] | None = None,
    ) -> Explanation:
        """Read images and map the support of each answer; a label of `PREDICTED` is the most probable answer.

        Claims name the map of the image before as a rival; of the first image `before`, or else the last one's, if any.
        In a joint reading nothing in the picture moves a given answer; it is explained as the network alone reads it.
        """
        images = np.asarray(images, np.float32)
        given = self.reader.check_given(given_answers, len(images))
        asked = np.full(given.shape[:2], PREDICTED, np.int32) if labels is None else np.asarray(labels, np.int32)
        masks = np.concatenate([np.zeros((1, GRID, GRID), bool), window_masks()])
        readings, followed, maps, own = [], [], [], []
        for image, of_case, wanted in zip(images, given, asked, strict=True):
            reading = self.read_replaced(image, masks, of_case)
            answers = np.where(wanted >= 0, wanted, reading.probabilities[0].argmax(axis=-1)).astype(np.int32)
            chosen = self._take(reading, of_case, answers)
            readings.append(_join([reading], first=True))
            followed.append(answers)
            maps.append(normalise_maps(lay_falls(np.log(chosen[:1]) - np.log(chosen[1:]), masks[1:])))
            own.append(chosen[0])
        others = [maps[-1] if before is None and len(maps) > 1 else before, *maps[:-1]]
        rows = zip(images, given, followed, maps, others, own, strict=True) if with_claims else ()
        claims = tuple(self._claim(*row) for row in rows)
        return Explanation(_join(readings), np.stack(followed), np.stack(maps), claims)

    def read_replaced(
        self, image: Image, masks: Masks, given: Float32[np.ndarray, "step answer"], *, filler: Image | None = None
    ) -> Reading:
        """Return the readings of one picture with masked cells replaced, a case for each mask."""
        if filler is None:
            filler = blur(image) if self._normal is None else self._normal
        parts = []
        for start in range(0, len(masks), _AT_ONCE):
            shown = replace_cells(image, filler, masks[start : start + _AT_ONCE])
            parts.append(self.reader.read(shown, np.repeat(given[None], len(shown), axis=0)))
        return _join(parts)

    def _take(
        self, reading: Reading, given: Float32[np.ndarray, "step answer"], answers: Int[np.ndarray, "step"]
    ) -> Float[np.ndarray, "case step"]:
        """Return the probabilities of the explained answers; those of given steps by the network alone."""
        chosen, is_given = take_answers(reading, answers), given.any(axis=-1)
        if self.reader.joint is None or not is_given.any():
            return chosen
        alone = self.reader.interpret(reading.logits, np.zeros(reading.logits.shape, np.float32))
        return np.where(is_given, take_answers(alone, answers), chosen)

    def _claim(
        self,
        image: Image,
        given: Float32[np.ndarray, "step answer"],
        answers: Int[np.ndarray, "step"],
        maps: Float32[np.ndarray, "step row column"],
        others: Float32[np.ndarray, "step row column"] | None,
        before: Float[np.ndarray, "step"],
    ) -> tuple[Claim, ...]:
        tenths = [highest_cells(each, TENTH) for each in (maps, others) if each is not None]
        masks = np.concatenate([*tenths, random_masks(_NUM_RANDOM, num_cells=TENTH)])
        after = self._take(self.read_replaced(image, masks, given, filler=blur(image)), given, answers)
        blurred, random = [np.diag(part) for part in np.split(after[:-_NUM_RANDOM], len(tenths))], after[-_NUM_RANDOM:]
        columns = (before, blurred[0], random.mean(axis=0), *blurred[1:])
        return tuple(Claim(*map(float, row)) for row in zip(*columns, strict=True))


def take_answers(reading: Reading, answers: Int[np.ndarray, "step"]) -> Float[np.ndarray, "case step"]:
    """Return the probabilities of one answer a step in all cases, never 0."""
    chosen = np.take_along_axis(reading.probabilities, answers[None, :, None], axis=-1)[..., 0]
    return np.maximum(chosen, _LEAST)


def lay_falls(falls: Float[np.ndarray, "mask step"], masks: Masks) -> Float[np.ndarray, "step row column"]:
    """Return each cell's mean fall over the masks on it; negative means become 0."""
    weights = masks.reshape(len(masks), -1).astype(np.float64)
    means = falls.T @ weights / np.maximum(weights.sum(axis=0), 1)
    return np.maximum(means, 0).reshape(falls.shape[1], *masks.shape[1:])


def normalise_maps(maps: Float[np.ndarray, "*case row column"]) -> Float32[np.ndarray, "*case row column"]:
    """Return maps that sum to 1; a map without positive values becomes constant."""
    sums = maps.sum(axis=(-2, -1), keepdims=True)
    even = 1 / (maps.shape[-2] * maps.shape[-1])
    return np.where(sums > 0, maps / np.where(sums > 0, sums, 1), even).astype(np.float32)


def _join(readings: Sequence[Reading], *, first: bool = False) -> Reading:
    """Return readings as one, or of each its first case."""
    columns: dict[str, Any] = {}
    for field in dataclasses.fields(Reading):
        rows = [getattr(reading, field.name) for reading in readings]
        columns[field.name] = None if rows[0] is None else np.concatenate([row[:1] if first else row for row in rows])
    return Reading(**columns)


# How wide each map is, and how that changes over the steps.


def spread(maps: Float[np.ndarray, "*case row column"]) -> Float[np.ndarray, "*case"]:
    """Return the entropy of each map as a share of the even map's: 0 for a single cell, 1 for an even map.

    Args:
      maps: of `explain_image`, not negative, each with sum 1, of at least two cells.

    >>> float(spread(np.full((2, 2), 0.25)))
    1.0
    """
    cells = np.asarray(maps, np.float64).reshape(*maps.shape[:-2], -1)
    if cells.shape[-1] < 2:
        raise ValueError(f"maps need at least 2 cells; got {cells.shape[-1]}")
    logs = np.log(np.where(cells > 0, cells, 1.0))
    return np.clip(-(cells * logs).sum(axis=-1) / np.log(cells.shape[-1]), 0.0, 1.0)


def change_a_step(spreads: Float[np.ndarray, "*case step"]) -> Float[np.ndarray, "*case"]:
    """Return the slope of the least-squares line through the spreads of the steps; below 0 the focus narrows.

    >>> round(float(change_a_step(np.array([0.9, 0.8, 0.7]))), 6)
    -0.1
    """
    offsets = np.arange(spreads.shape[-1]) - (spreads.shape[-1] - 1) / 2
    return (spreads * offsets).sum(axis=-1) / np.maximum((offsets**2).sum(), 1e-12)


def describe_change(spreads: Float[np.ndarray, "step"]) -> str:
    """Return a phrase for the change of the spread over the steps.

    A slope below 0.005 a step counts as constant, and a line that explains less than half of the variance as none.

    Args:
      spreads: of the maps of one image, in the chain's order.

    >>> describe_change(np.array([0.9, 0.8, 0.7])), describe_change(np.array([0.9, 0.2, 0.8]))
    ('the focus narrows', 'the focus goes back and forth')
    """
    change = float(change_a_step(spreads))
    if float(np.ptp(spreads)) < _CONSTANT * (len(spreads) - 1):
        return "the focus stays as wide"
    line = change * (np.arange(len(spreads)) - (len(spreads) - 1) / 2)
    if (line**2).sum() < 0.5 * ((spreads - spreads.mean()) ** 2).sum():
        return "the focus goes back and forth"
    if abs(change) < _CONSTANT:
        return "the focus stays as wide"
    return f"the focus {'narrows' if change < 0 else 'widens'}"


_CONSTANT = 0.005  # slope a step
