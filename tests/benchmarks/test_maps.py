"""The benchmark's curves and sums over sets, on a reader whose probabilities are known."""

import types

import numpy as np
import pytest

from benchmarks.maps import TENTHS, Cases, correlate, join_sets, measure_curves
from stepcot_jax.evaluation.maps import Targets
from stepcot_jax.reading.explain import GRID, highest_cells

WORTH = np.random.default_rng(0).random((2, GRID, GRID))
WORTH /= WORTH.sum(axis=(1, 2), keepdims=True)


class Additive:
    """Answer 1 of a step is as probable as its cells that are not replaced are worth."""

    def read_replaced(self, image, masks, given, *, filler):
        del given
        assert filler.shape == image.shape
        shown = np.einsum("mrc,src->ms", ~masks, WORTH)
        return types.SimpleNamespace(probabilities=np.stack([1 - shown, shown], axis=-1))


def test_curves_of_a_reader_that_adds_its_cells_up():
    images = np.zeros((1, GRID, GRID, 3), np.float32)
    nothing = np.zeros((1, GRID * GRID))
    labels = np.ones((1, 2), np.int32)
    cases = Cases(images, images, Targets(nothing > 0, nothing), ("a",), labels, np.zeros((2, 2)))
    for drawn in (False, True):
        areas = measure_curves(Additive(), cases, WORTH[None], drawn=drawn)
        for step in range(2):
            hidden = [WORTH[step][highest_cells(WORTH[step], round(GRID**2 * tenths / 10))].sum() for tenths in TENTHS]
            shares = np.array([0, *TENTHS, 10]) / 10
            assert areas["deletion"][0, step] == pytest.approx(np.trapezoid([1, *(1 - np.array(hidden)), 0], shares))
            assert areas["insertion"][0, step] == pytest.approx(np.trapezoid([0, *hidden, 1], shares))
    backwards = measure_curves(Additive(), cases, WORTH.max() - WORTH[None], drawn=False)
    assert (backwards["deletion"] > areas["deletion"] + 0.2).all()


def test_a_map_correlates_with_itself_and_a_constant_one_with_nothing():
    maps = WORTH[None]
    assert correlate(maps, maps).tolist() == [[pytest.approx(1), pytest.approx(1)]]
    assert correlate(maps, -maps).tolist() == [[pytest.approx(-1), pytest.approx(-1)]]
    assert np.isnan(correlate(maps, np.ones_like(maps))).all()


def test_sets_are_joined_by_their_means():
    first = {"pointing": np.array([[0.0, 1.0], [1.0, np.nan]])}
    second = {"pointing": np.array([[1.0, 0.0], [1.0, 0.5]])}
    joined = join_sets([first, second])["pointing"]
    assert [interval.value for interval in joined] == [0.75, 0.625]
    assert joined[0].high - joined[0].value == pytest.approx(12.706 * np.sqrt(0.125) / np.sqrt(2), abs=1e-3)
    one = join_sets([first])["pointing"][0]
    assert np.isnan(one.low)
