"""Scores of maps, with loops over cases and cells as the second derivation."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepcot_jax.evaluation.maps import (
    CONSTANT,
    OTHERS,
    POINTING,
    RANDOM,
    SHARE,
    list_figures,
    mean_intervals,
    place_targets,
    score_constant,
    score_maps,
    score_others,
    sharpen,
)
from stepcot_jax.reading.explain import spread


@given(st.integers(1, 9), st.integers(1, 9), st.integers(9, 40), st.integers(0, 99))
def test_a_cell_is_covered_by_the_pixels_with_their_centre_in_it(rows, columns, size, seed):
    inside = np.random.default_rng(seed).random((1, size, size)) < 0.4
    targets = place_targets(inside, rows=rows, columns=columns)
    for row in range(rows):
        for column in range(columns):
            down = [pixel for pixel in range(size) if row <= (pixel + 0.5) * rows / size < row + 1]
            across = [pixel for pixel in range(size) if column <= (pixel + 0.5) * columns / size < column + 1]
            cell = row * columns + column
            assert targets.cover[0, cell] == pytest.approx(inside[0][np.ix_(down, across)].mean())
            middle = [int((place + 0.5) * size / number) for place, number in ((row, rows), (column, columns))]
            assert targets.centre[0, cell] == inside[0, middle[0], middle[1]]


def test_share_and_pointing_by_hand():
    inside = np.zeros((1, 8, 8), bool)
    inside[0, :4, :6] = True  # cell (0, 0) and half of cell (0, 1)
    maps = np.array([[[[0.5, 0.2], [0.2, 0.1]], [[0.1, 0.6], [0.2, 0.1]], [[0.25, 0.25], [0.25, 0.25]]]])
    scores = score_maps(maps, place_targets(inside, rows=2, columns=2))
    np.testing.assert_allclose(scores[SHARE][0], [0.5 + 0.1, 0.1 + 0.3, 0.375])
    # The centre of cell (0, 1) is at pixel 6, just outside; a uniform map hits as often as chance.
    np.testing.assert_allclose(scores[POINTING][0], [1, 0, 0.25])


@pytest.fixture(scope="module")
def random_cases():
    generator = np.random.default_rng(3)
    maps = generator.random((9, 2, 3, 3)) ** 3
    maps /= maps.sum(axis=(2, 3), keepdims=True)
    inside = generator.random((9, 12, 12)) < 0.3
    labels = np.stack([[0, 0, 0, 1, 1, 1, 1, 2, 0], [0] * 9], axis=1)
    return maps, labels, place_targets(inside, rows=3, columns=3)


def test_other_cases_maps_are_those_with_the_same_answer_on_this_cases_boxes(random_cases):
    maps, labels, targets = random_cases
    scores = score_others(maps, labels, targets)
    for step in range(2):
        for case in range(9):
            others = [other for other in range(9) if other != case and labels[other, step] == labels[case, step]]
            if not others:
                assert np.isnan(scores[SHARE][case, step])
                assert np.isnan(scores[POINTING][case, step])
                continue
            flat = [maps[other, step].ravel() for other in others]
            share = np.mean([(cells * targets.cover[case]).sum() for cells in flat])
            hits = np.mean([targets.centre[case, cells.argmax()] for cells in flat])
            assert scores[SHARE][case, step] == pytest.approx(share)
            assert scores[POINTING][case, step] == pytest.approx(hits)


@given(st.floats(0.05, 0.95), st.integers(0, 30))
def test_a_sharpened_map_has_the_spread_that_was_asked_for(wanted, seed):
    cells = np.random.default_rng(seed).random(64)
    sharpened = sharpen(cells, spread=wanted)
    assert sharpened.sum() == pytest.approx(1)
    sharpest = (cells / cells.max()) ** 200  # the highest power
    limit = float(spread((sharpest / sharpest.sum()).reshape(8, 8)))
    assert float(spread(sharpened.reshape(8, 8))) == pytest.approx(max(wanted, limit), abs=0.01)
    assert sharpened.argmax() == cells.argmax()


def test_constant_maps_are_fitted_on_training_boxes_or_on_other_patients():
    training = np.zeros((3, 8, 8), bool)
    training[:2, :4, 4:] = True  # cell (0, 1) is inside most often
    training[2, 4:, :4] = True
    fitted = place_targets(training, rows=2, columns=2)
    inside = np.zeros((2, 8, 8), bool)
    inside[0, :4, 4:] = inside[1, 4:, :4] = True
    targets = place_targets(inside, rows=2, columns=2)
    spreads = np.array([0.6, 0.3])
    scores = score_constant(targets, spreads=spreads, fitted_on=fitted, patients=["a", "b"])
    np.testing.assert_array_equal(scores[POINTING], [[1, 1], [0, 0]])
    weights = np.stack([sharpen(np.array([0, 2 / 3, 1 / 3, 0]), spread=each) for each in spreads])
    np.testing.assert_allclose(scores[SHARE], [weights[:, 1], weights[:, 2]])
    # Left out: each case is scored on the other patient's boxes alone, which are elsewhere.
    left_out = score_constant(targets, spreads=spreads, fitted_on=None, patients=["a", "b"])
    np.testing.assert_array_equal(left_out[POINTING], np.zeros((2, 2)))
    pair = place_targets(inside[[0, 0, 1]], rows=2, columns=2)
    same_patient = score_constant(pair, spreads=spreads, fitted_on=None, patients=["a", "a", "b"])
    np.testing.assert_array_equal(same_patient[POINTING], np.zeros((3, 2)))
    unknown = score_constant(targets, spreads=spreads, fitted_on=None, patients=["", ""])
    np.testing.assert_array_equal(unknown[POINTING], np.zeros((2, 2)))


def test_figures_begin_with_the_best_constant_map(random_cases):
    maps, labels, targets = random_cases
    how = {"spreads": spread(maps).mean(axis=0), "patients": [str(case) for case in range(9)], "fitted_on": targets}
    random = {score: np.full((9, 2), 0.25) for score in (POINTING, SHARE)}
    figures = list_figures(maps, labels, targets, **how, random=random)
    assert list(figures)[:2] == [f"{POINTING} less {CONSTANT}", f"{SHARE} less {CONSTANT}"]
    np.testing.assert_allclose(figures[f"{SHARE} less {RANDOM}"], figures[SHARE] - 0.25)
    bare = list_figures(maps, labels, targets, **how, random=None)
    assert set(figures) - set(bare) == {f"{score} less {RANDOM}" for score in (POINTING, SHARE)}
    means = mean_intervals(figures, how["patients"])
    name = f"{SHARE} less {OTHERS}"
    assert means[name][0].value == pytest.approx(np.nanmean(figures[name][:, 0]))
    assert means[name][0].low < means[name][0].value < means[name][0].high
    often = mean_intervals({name: np.repeat(figures[name], 5, axis=0)}, np.repeat(how["patients"], 5))[name][0]
    assert (often.low, often.high) == pytest.approx((means[name][0].low, means[name][0].high))
    together = mean_intervals(figures, ["a"] * 9)
    assert np.isnan(together[name][0].low)
