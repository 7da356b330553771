"""Scores of maps against lesion boxes, and what of a score is the map's own.

Share: the part of a map inside the boxes (Wang et al., Score-CAM, 2020). Pointing: whether the centre of its highest
cell is inside (Zhang et al., 2018), without a tolerance. Lesions lie where lungs are, so a map that never looked scores
well: figures stand less those of a constant map, of other cases' maps, and of random weights (Adebayo et al., 2018).
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Bool, Float, Int

from stepcot_jax.evaluation.statistics import Interval, Weights, bootstrap, weighted_mean

POINTING, SHARE = "pointing", "share in boxes"
CONSTANT, OTHERS, RANDOM = "best constant map", "other cases' maps, same answer", "random weights"

Maps = Float[np.ndarray, "case step row column"]  # not negative, each with sum 1
Values = Float[np.ndarray, "case step"]  # 0 to 1, or differences of these; NaN where undefined
Scores = dict[str, Values]  # by `POINTING` and `SHARE`

_MOST_POWER = 200.0


@dataclasses.dataclass(frozen=True)
class Targets:
    """The boxes of cases on the cells of a map."""

    centre: Bool[np.ndarray, "case cell"]  # whether the cell's centre is inside
    cover: Float[np.ndarray, "case cell"]  # part of the cell inside

    @property
    def by_score(self) -> dict[str, np.ndarray]:
        """What a map's peak and its cells are counted on."""
        return {POINTING: self.centre.astype(np.float64), SHARE: self.cover}


def place_targets(inside: Bool[np.ndarray, "case size size"], *, rows: int, columns: int) -> Targets:
    """Return boxes, given as pixels inside them, on the cells of maps; a pixel belongs to the cell with its centre."""
    num_cases, size, _ = inside.shape
    members = []
    for number in (rows, columns):
        cells = ((np.arange(size) + 0.5) * number / size).astype(int)
        member = np.equal.outer(np.arange(number), cells).astype(np.float64)
        members.append(member / np.maximum(member.sum(axis=1, keepdims=True), 1))
    cover = np.einsum("rh,nhw,cw->nrc", members[0], inside.astype(np.float64), members[1])
    down, across = (((np.arange(number) + 0.5) * size / number).astype(int) for number in (rows, columns))
    centre = inside[:, down[:, None], across[None]]
    return Targets(centre.reshape(num_cases, -1), cover.reshape(num_cases, -1))


def score_maps(maps: Maps, targets: Targets) -> Scores:
    """Score maps on the boxes of their own cases."""
    weights = _weigh(maps)
    return {name: np.einsum("nsc,nc->ns", weights[name], boxes) for name, boxes in targets.by_score.items()}


def score_others(maps: Maps, labels: Int[np.ndarray, "case step"], targets: Targets) -> Scores:
    """Score on each case's boxes the maps of all other cases with the same answer; return the mean of these."""
    weights = _weigh(maps)
    scores = {name: np.full(labels.shape, np.nan) for name in weights}
    for step in range(labels.shape[1]):
        for answer in np.unique(labels[:, step]):
            cases = np.flatnonzero(labels[:, step] == answer)
            for name, boxes in targets.by_score.items() if len(cases) > 1 else ():
                on_boxes = boxes[cases] @ weights[name][cases, step].T  # [case, case with the map]
                scores[name][cases, step] = (on_boxes.sum(axis=1) - np.diag(on_boxes)) / (len(cases) - 1)
    return scores


def score_constant(
    targets: Targets, *, spreads: Float[np.ndarray, "step"], fitted_on: Targets | None, patients: Sequence[str]
) -> Scores:
    """Score the best constant maps.

    To point, this is the cell that is most often inside. All of its share would be as often inside, which is no fair
    rival of a map; for the share it is the mean of the boxes, sharpened to the spread of the map.

    Args:
      targets: boxes of the cases.
      spreads: mean spread of the maps of each step, 0 to 1.
      fitted_on: boxes of training cases; None fits on the boxes of all other patients.
      patients: whose case it is; "" is a patient of its own.
    """
    fixed = None if fitted_on is None else _fit_constant(fitted_on, np.ones(len(fitted_on.cover), bool), spreads)
    scores = {name: np.zeros((len(patients), len(spreads))) for name in targets.by_score}
    names = np.asarray(patients)
    for case, patient in enumerate(patients):
        others = names != patient if patient else np.arange(len(names)) != case
        weights = _fit_constant(targets, others, spreads) if fixed is None else fixed
        for name, boxes in targets.by_score.items():
            scores[name][case] = weights[name] @ boxes[case]
    return scores


def _fit_constant(targets: Targets, counted: np.ndarray, spreads: np.ndarray) -> dict[str, np.ndarray]:
    """Return for each step the weights [step, cell] of the constant maps."""
    means = {name: boxes[counted].mean(axis=0) for name, boxes in targets.by_score.items()}
    highest = (np.arange(len(means[POINTING])) == means[POINTING].argmax()).astype(np.float64)
    sharpened = [sharpen(means[SHARE], spread=float(spread)) for spread in spreads]
    return {POINTING: np.repeat(highest[None], len(spreads), axis=0), SHARE: np.stack(sharpened)}


def sharpen(cells: Float[np.ndarray, "cell"], *, spread: float) -> Float[np.ndarray, "cell"]:
    """Return the power of a map that has the given spread, with sum 1; the nearest power from 0 to 200."""
    logs = np.log(np.maximum(cells / max(cells.max(), 1e-300), 1e-30))
    low, high = 0.0, _MOST_POWER
    for _ in range(60):
        power = (low + high) / 2
        powers = np.exp(power * logs)
        powers /= powers.sum()
        entropy = -(powers * np.log(np.maximum(powers, 1e-300))).sum() / np.log(len(powers))
        low, high = (power, high) if entropy > spread else (low, power)
    return powers


def _weigh(maps: Maps) -> dict[str, np.ndarray]:
    """Return the maps' peaks (1 at the highest cell, shared by equally high ones) and cells, [case, step, cell]."""
    cells = np.asarray(maps, np.float64).reshape(*maps.shape[:2], -1)
    peaks = cells == cells.max(axis=-1, keepdims=True)
    return {POINTING: peaks / peaks.sum(axis=-1, keepdims=True), SHARE: cells}


def list_figures(
    maps: Maps,
    labels: Int[np.ndarray, "case step"],
    targets: Targets,
    *,
    spreads: Float[np.ndarray, "step"],
    patients: Sequence[str],
    fitted_on: Targets | None,
    random: Scores | None,
) -> dict[str, Values]:
    """Return the figures of maps by name, the differences from the best constant map first.

    Args:
      maps: of the cases.
      labels: the answers that they explain.
      targets: boxes of the cases.
      spreads: mean spread of the maps of each step.
      patients: whose case it is.
      fitted_on: boxes that the constant maps are fitted on; None for those of the other patients.
      random: scores of maps of random weights on the same cases; None leaves them out.
    """
    own = score_maps(maps, targets)
    rivals = {
        CONSTANT: score_constant(targets, spreads=spreads, fitted_on=fitted_on, patients=patients),
        OTHERS: score_others(maps, labels, targets),
    }
    rivals |= {} if random is None else {RANDOM: random}
    figures = {f"{score} less {name}": own[score] - rival[score] for name, rival in rivals.items() for score in own}
    return figures | own


def mean_intervals(figures: Mapping[str, Values], patients: Sequence[str]) -> dict[str, list[Interval]]:
    """Return the means of figures by step with 95 % intervals by patient; a NaN does not count."""

    def compute(weights: Weights) -> dict[str, np.ndarray]:
        counted = {name: ~np.isnan(values) for name, values in figures.items()}
        return {
            name: weighted_mean(weights, values=np.nan_to_num(values), counted=counted[name])
            for name, values in figures.items()
        }

    return bootstrap(compute, np.asarray(patients, dtype=np.str_))
