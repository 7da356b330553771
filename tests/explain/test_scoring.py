import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepcot_jax.box import Box
from stepcot_jax.chain import DEFAULT_CHAIN
from stepcot_jax.data.images.preprocessing import Preprocessing, resize_image
from stepcot_jax.host.errors import BadInput
from stepcot_jax.tools.explain import scoring as tested
from stepcot_jax.tools.explain.drawing import attention_table, node_names, step_attention


@given(st.integers(1, 9), st.integers(1, 9), st.integers(9, 40), st.integers(0, 99))
def test_a_map_keeps_its_sum_at_the_encoders_pixels(rows, columns, size, seed):
    maps = np.random.default_rng(seed).random((2, rows, columns))
    spread_maps = tested.spread_out(maps, size)
    assert spread_maps.shape == (2, size, size)
    np.testing.assert_allclose(spread_maps.sum(axis=(1, 2)), maps.sum(axis=(1, 2)))
    # A pixel belongs to the cell that contains its centre.
    for row in range(rows):
        held = [pixel for pixel in range(size) if row <= (pixel + 0.5) * rows / size < row + 1]
        np.testing.assert_allclose(spread_maps[0, held].sum(), maps[0, row].sum())


def test_energy_and_pointing_by_hand():
    inside = np.zeros((1, 8, 8), bool)
    inside[0, :4, :6] = True  # cell (0, 0) and half of cell (0, 1)
    maps = np.array([[[[0.5, 0.2], [0.2, 0.1]], [[0.1, 0.6], [0.2, 0.1]], [[0.25, 0.25], [0.25, 0.25]]]])
    scores = tested.score_maps(maps, inside)
    np.testing.assert_allclose(scores.energy[0], [0.5 + 0.1, 0.1 + 0.3, 0.375])
    # The centre of cell (0, 1) is at pixel 6, just outside; a uniform map hits as often as chance.
    np.testing.assert_allclose(scores.pointing[0], [1, 0, 0.25])
    even = tested.score_even_map(inside, num_steps=3)
    np.testing.assert_allclose(even.energy, 0.375)
    np.testing.assert_allclose(scores.spread[0, 2], 1)


@pytest.mark.parametrize("fit", ["crop", "pad", "stretch"])
@pytest.mark.parametrize(("width", "height"), [(64, 64), (192, 128), (100, 160)])
def test_a_box_goes_where_its_pixels_go(fit, width, height):
    preprocessing = Preprocessing(64, fit=fit)
    box = Box.of_size("x", width * 0.4, height * 0.3, width * 0.25, height * 0.3)
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[round(box.y1) : round(box.y2), round(box.x1) : round(box.x2)] = 255
    left, top, right, bottom = tested.place_box(box, width=width, height=height, preprocessing=preprocessing)
    inside = tested.fill_boxes([box], width=width, height=height, preprocessing=preprocessing)
    found, filled = (
        np.array([cells.min(axis=0), cells.max(axis=0) + 1])
        for cells in (np.argwhere(resize_image(pixels, preprocessing)[..., 0] > 127), np.argwhere(inside))
    )
    np.testing.assert_allclose([[top, left], [bottom, right]], found, atol=1.2)
    np.testing.assert_allclose(filled, found, atol=1.2)
    twice = tested.fill_boxes([box, box], width=width, height=height, preprocessing=preprocessing)
    np.testing.assert_array_equal(twice, inside)


def test_a_smooth_map_has_its_highest_where_its_cell_is():
    cells = np.zeros((4, 4))
    cells[1, 3] = 2.0
    shown = tested.smooth(cells, 32)
    assert shown.max() == 1
    assert {each // 8 for each in np.argwhere(shown == shown.max())[:, 0]} == {1}
    np.testing.assert_allclose(tested.smooth(np.full((2, 3), 0.3), 6), 1)
    # Halfway between two centres the value is the mean of theirs.
    np.testing.assert_allclose(tested.smooth(np.array([[0.0, 1.0]]), 4)[0], [0, 0.25, 0.75, 1])


def test_the_interval_draws_patients_whole():
    values = np.array([0.0] * 50 + [1.0] * 50)
    apart, unknown = (
        tested.mean_interval(values, [str(case) for case in range(100)]),
        tested.mean_interval(values, [""] * 100),
    )
    for interval in (apart, unknown):  # cases without a patient are patients of their own
        assert interval["mean"] == 0.5
        assert 0.38 < interval["low"] < 0.42
        assert 0.58 < interval["high"] < 0.62
    together = tested.mean_interval(values, ["a"] * 50 + ["b"] * 50)
    assert (together["low"], together["mean"], together["high"]) == (0.0, 0.5, 1.0)
    mixed = tested.mean_interval(np.array([0.0, 0.0, 1.0]), ["a", "a", ""])
    assert (mixed["low"], mixed["high"]) == (0.0, 1.0)
    alone = tested.mean_interval(values, ["a"] * 100)
    assert alone["mean"] == 0.5
    assert math.isnan(alone["low"] + alone["high"])


def test_the_comparison_is_with_the_even_map():
    inside = np.zeros((2, 8, 8), bool)
    inside[:, :4, :4] = True
    maps = np.zeros((2, 7, 2, 2))
    maps[..., 0, 0] = 1
    scores = dict.fromkeys((tested.TRAINED, tested.RANDOM), tested.score_maps(maps, inside)) | {
        tested.EVEN: tested.score_even_map(inside, num_steps=7)
    }
    found = tested.compare(scores, DEFAULT_CHAIN, groups=["a", "b"])
    assert found["num_cases"] == 2
    assert found["steps"][6]["step"] == "Diagnosis"
    assert found["steps"][0][tested.TRAINED]["energy_above"][tested.EVEN] == {"mean": 0.75, "low": 0.75, "high": 0.75}
    assert set(found["share_narrowing"].values()) == {0.0}
    # Of one patient the intervals are undefined, and null in JSON.
    alone = {"data": "phantom", "model": "teacher", **tested.compare(scores, DEFAULT_CHAIN, groups=["a", "a"])}
    assert tested.describe_scores(alone).count("[undefined: fewer than two patients]") == 2 * 7 + 1
    assert "nan" not in tested.describe_scores(alone)
    written = json.loads(tested.write_scores(alone))
    assert written["steps"][0][tested.TRAINED]["energy_above"][tested.EVEN] == {"mean": 0.75, "low": None, "high": None}


def test_attention_is_that_of_the_step_whose_turn_it_is():
    attention = np.zeros((1, 2, 2, 2, 3, 3), np.float32)
    attention[0, 0, 1, :, 0] = [[0.2, 0.3, 0.5], [0.4, 0.1, 0.5]]
    attention[0, 1, 1, :, 1] = [[1, 0, 0], [0, 0, 1]]
    weights = step_attention(attention)
    np.testing.assert_allclose(weights[0], [[0.3, 0.2, 0.5], [0.5, 0, 0.5]], atol=1e-6)
    with pytest.raises(BadInput, match="over 3 nodes"):
        node_names(DEFAULT_CHAIN, num_nodes=3)
    table = attention_table(np.eye(7, 8), DEFAULT_CHAIN)
    assert table["Diagnosis"]["Diagnosis"] == 1
    assert table["Diagnosis"]["Memory"] == 0


def test_boxed_pictures_of_the_real_sample(shared):
    data = shared / "data"
    pictures = tested.read_boxed(
        data / "nih_sample",
        Preprocessing(64),
        num_cases=4,
        box_list=data / "nih_chestxray8" / "BBox_List_2017.csv",
        max_pixels=10**7,
    )
    assert len(pictures) == 4
    assert all(0 < picture.inside.mean() < 0.6 for picture in pictures)
    with pytest.raises(BadInput, match="no image with a box"):
        tested.read_boxed(data / "nih_sample", Preprocessing(64), num_cases=4, max_pixels=10**7)
