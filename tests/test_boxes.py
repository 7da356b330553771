"""Boxes: overlap counted pixel by pixel, matching by trying every one, conversions in exact fractions."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refuse

from stepcot_jax.box import GRID_1000, UNIT_SQUARE, as_corners, convert, convert_rounded, iou, match, mean_iou, pixels

whole_boxes = st.tuples(*[st.integers(0, 12)] * 4)  # inverted and empty ones included
box_lists = st.lists(whole_boxes, max_size=5)


def covered(box):
    x1, y1, x2, y2 = box
    return {(x, y) for x in range(int(x1), int(x2)) for y in range(int(y1), int(y2))}


def counted_iou(first, second):
    cells, others = covered(first), covered(second)
    return len(cells & others) / len(cells | others) if cells and others else 0.0


@given(first=box_lists, second=box_lists)
def test_iou_counts_the_shared_pixels(first, second):
    found = iou(first, second)
    assert found.shape == (len(first), len(second))
    expected = [[counted_iou(own, other) for other in second] for own in first]
    np.testing.assert_allclose(found, np.reshape(expected, found.shape), rtol=1e-12)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        *(((0, 0, 2, 2), (1, 0, 3, 2), 1 / 3), ((0, 0, 2, 2), (1, 1, 3, 3), 1 / 7)),
        *(((0, 0, 10, 10), (0, 0, 10, 10), 1), ((0, 0, 10, 10), (2, 2, 7, 8), 0.3)),
        *(((0, 0, 1, 1), (1, 0, 2, 1), 0), ((0, 0, 4, 4), (0, 0, 4, 3), 0.75)),  # first: an edge in common
        *(((5, 5, 5, 9), (5, 5, 5, 9), 0), ((9, 9, 1, 1), (1, 1, 9, 9), 0)),  # empty, inverted
        ((9, 9, 1, 1), (9, 9, 1, 1), 0),  # inverted in both directions: the product of its sides is positive
        *(((0.5, 0.5, 1.5, 1.5), (0, 0, 2, 2), 0.25), ((-2, -2, 0, 0), (-1, -1, 1, 1), 1 / 7)),
        ((0, 0, 1e200, 1e200), (0, 0, 1e200, 5e199), 0.5),
        ((-1e308, -1e308, 1e308, 1e308), (-1e308, -1e308, 1e308, 1e308), 1),
        *(((0, 0, 1e308, 1e308), (0, 0, 1, 1), 0), ((0, 0, 1e-200, 1e-200), (0, 0, 1, 1), 0)),
    ],
)
def test_iou_by_hand(first, second, expected):
    with np.errstate(all="raise", under="ignore"):
        for one, other in ((first, second), (second, first)):
            assert iou([one], [other])[0, 0] == pytest.approx(expected, abs=1e-15)


@given(st.lists(st.tuples(*[st.floats(allow_nan=False, allow_infinity=False)] * 4), min_size=2, max_size=3))
def test_iou_of_any_finite_boxes_is_a_share(boxes):
    found = iou(boxes[:1], boxes[1:])
    assert np.isfinite(found).all()
    assert ((found >= 0) & (found <= 1 + 1e-12)).all()


@settings(max_examples=100)
@given(st.integers(0, 5), st.integers(0, 5), st.randoms(use_true_random=False))
def test_the_optimal_matching_is_the_best_of_all(num_first, num_second, randomness):
    draws = [randomness.choice((0, 0.2, 0.5, randomness.random())) for _ in range(num_first * num_second)]
    overlaps = np.array(draws, float).reshape(num_first, num_second)
    table = overlaps if num_first <= num_second else overlaps.T
    pairings = itertools.permutations(range(table.shape[1]), table.shape[0])
    best = max(sum(table[row, column] for row, column in enumerate(columns)) for columns in pairings)
    rows, columns = match(overlaps)
    assert len(rows) == len(columns) == len(set(columns.tolist())) == min(num_first, num_second)
    assert list(rows) == sorted(set(rows.tolist()))
    assert overlaps[rows, columns].sum() == pytest.approx(best)


def test_the_greedy_choice_is_not_taken():
    true = [[0, 0, 10, 1], [5, 0, 15, 1]]
    predicted = [[3, 0, 13, 1], [10, 0, 20, 1]]  # greedy: 8 / 12 with the second, and nothing for the other
    assert mean_iou(predicted, true) == pytest.approx((7 / 13 + 5 / 15) / 2)
    assert mean_iou(predicted, true, matching="ordered") == pytest.approx((7 / 13 + 5 / 15) / 2)
    assert mean_iou(predicted[::-1], true) == pytest.approx((7 / 13 + 5 / 15) / 2)
    assert mean_iou(predicted[::-1], true, matching="ordered") == pytest.approx((0 + 8 / 12) / 2)


HALF = [[0, 0, 2, 1]]  # IoU 0.5 with WHOLE
WHOLE = [[0, 0, 2, 2]]
FAR = [[8, 8, 9, 9]]


@pytest.mark.parametrize(
    ("predicted", "true", "penalise", "zero", "matched"),
    [
        *((HALF, WHOLE, 0.5, 0.5, 0.5), (HALF + FAR, WHOLE, 0.25, 0, 0.5), (HALF, WHOLE + FAR, 0.25, 0, 0.5)),
        *((WHOLE + FAR + HALF, WHOLE + FAR, 2 / 3, 0, 1), (FAR + WHOLE, HALF + FAR, 0.75, 0.75, 0.75)),
        *((FAR, WHOLE, 0, 0, 0), ([], WHOLE, 0, 0, 0), (WHOLE + FAR, [], 0, 0, 0)),
    ],
)
def test_unequal_counts_three_ways(predicted, true, penalise, zero, matched):
    found = [mean_iou(predicted, true, unequal_counts=way) for way in ("penalise", "zero", "matched")]
    assert found == pytest.approx([penalise, zero, matched])
    for way in ("penalise", "zero", "matched"):
        assert mean_iou([], [], unequal_counts=way) == 1
        assert mean_iou([], [], unequal_counts=way, empty_boxes="zero") == 0
    assert mean_iou([], WHOLE, empty_boxes="one") == 0


@given(first=box_lists, second=box_lists)
def test_mean_iou_is_symmetric_and_a_share(first, second):
    for way in ("penalise", "zero", "matched"):
        found = mean_iou(first, second, unequal_counts=way)
        assert 0 <= found <= 1
        assert found == pytest.approx(mean_iou(second, first, unequal_counts=way))
    assert mean_iou(first, second, unequal_counts="zero") <= mean_iou(first, second) + 1e-12
    assert mean_iou(first, second) <= mean_iou(first, second, unequal_counts="matched") + 1e-12


# Spaces.


def test_conversions_by_hand():
    assert convert([[16, 8, 32, 64]], source=pixels((64, 128)), target=UNIT_SQUARE).tolist() == [
        [0.25, 0.0625, 0.5, 0.5]
    ]
    assert convert([[16, 8, 32, 64]], source=pixels((64, 128)), target=pixels((128, 64))).tolist() == [[32, 4, 64, 32]]
    assert convert([[0.25, 0.5, 1, 1]], source=UNIT_SQUARE, target=GRID_1000).tolist() == [[500, 250, 1000, 1000]]
    diaphragm = convert([[830, 150, 965, 870]], source=GRID_1000, target=pixels((1000, 1000)))
    assert diaphragm.tolist() == [[150, 830, 870, 965]]  # a wide, low band
    rounded = convert_rounded([[15, 40, 20, 44]], source=pixels((64, 64)), target=UNIT_SQUARE)
    assert rounded.tolist() == [[0.2344, 0.625, 0.3125, 0.6875]]


def half_up(number, decimals):
    return Fraction(math.floor(number * 10**decimals + Fraction(1, 2)), 10**decimals)


@settings(max_examples=100)
@given(
    st.tuples(*[st.integers(0, 5000)] * 4),
    st.tuples(st.integers(1, 5000), st.integers(1, 5000)),
    st.tuples(st.integers(1, 5000), st.integers(1, 5000)),
)
def test_rounding_is_exact(box, size, other):
    for target in (GRID_1000, UNIT_SQUARE, pixels(other)):
        found = convert_rounded([box], source=pixels(size), target=target)[0]
        ends = [Fraction(int(target.width)), Fraction(int(target.height))] * 2
        exact = [
            half_up(Fraction(number) * end / side, target.decimals)
            for number, end, side in zip(box, ends, size * 2, strict=True)
        ]
        expected = [float(exact[place]) for place in ((1, 0, 3, 2) if target.y_first else (0, 1, 2, 3))]
        assert found.tolist() == expected


@given(st.integers(0, 2**31 - 1), st.integers(1, 100_000))
def test_ties_are_rounded_up(number, width):
    found = convert_rounded([[number, 0, number, 0]], source=pixels((2 * width, 1)), target=pixels((width, 1)))[0, 0]
    assert found == (number + 1) // 2


def test_refusals():
    for number in (math.nan, math.inf, -math.inf):
        for call in (
            lambda number=number: iou([[0, 0, 1, number]], [[0, 0, 1, 1]]),
            lambda number=number: mean_iou([[0, 0, 1, 1]], [[number, 0, 1, 1]]),
            lambda number=number: convert([[0, 0, 1, number]], source=GRID_1000, target=UNIT_SQUARE),
        ):
            refuse("finite", call, error=ValueError)
    for boxes in ([1, 2, 3, 4], [[1, 2, 3]], [[[1, 2, 3, 4]]]):
        refuse("shape", as_corners, boxes, error=ValueError)
