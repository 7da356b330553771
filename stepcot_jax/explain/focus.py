"""How wide a map is, and whether the maps narrow from step to step, as the paper's Figure 4 has it."""

import numpy as np
from jaxtyping import Float


def spread(maps: Float[np.ndarray, "*case row column"]) -> Float[np.ndarray, "*case"]:
    """Entropy of each map as a share of the even map's: 0 where all is in one place, 1 where it is everywhere alike.

    >>> float(spread(np.full((2, 2), 0.25)))
    1.0
    """
    cells = np.asarray(maps, np.float64).reshape(*maps.shape[:-2], -1)
    if cells.shape[-1] < 2:
        raise ValueError(f"found maps of {cells.shape[-1]} cells, accepted are 2 or more")
    logs = np.log(np.where(cells > 0, cells, 1.0))
    return np.clip(-(cells * logs).sum(axis=-1) / np.log(cells.shape[-1]), 0.0, 1.0)


def change_a_step(spreads: Float[np.ndarray, "*case step"]) -> Float[np.ndarray, "*case"]:
    """Slope of the least-squares line through the spreads of the steps; below 0 the focus narrows.

    >>> round(float(change_a_step(np.array([0.9, 0.8, 0.7]))), 6)
    -0.1
    """
    places = np.arange(spreads.shape[-1]) - (spreads.shape[-1] - 1) / 2
    return (spreads * places).sum(axis=-1) / np.maximum((places**2).sum(), 1e-12)


def describe_change(change: float, *, least: float = 0.005) -> str:
    """A slope in words; one of less than `least` a step is none."""
    if abs(change) < least:
        return "the focus stays as wide"
    return f"the focus {'narrows' if change < 0 else 'widens'}"
