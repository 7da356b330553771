import json
import types

import numpy as np
import pytest
from refusals import refuse

from stepcot_jax.box import Box
from stepcot_jax.chain import DEFAULT_CHAIN
from stepcot_jax.data.images.preprocessing import Preprocessing, repeat_grey, resize_image
from stepcot_jax.data.phantom.phantom import draw_case
from stepcot_jax.evaluation.statistics import Interval
from stepcot_jax.run.settings import load_settings
from stepcot_jax.tools.explain import scoring
from stepcot_jax.tools.explain.drawing import attention_table, node_names, step_attention
from stepcot_jax.tools.explain.scoring import (
    MapScores,
    describe_scores,
    fill_boxes,
    place_box,
    read_boxed,
    smooth,
    write_scores,
)


@pytest.mark.parametrize("fit", ["crop", "pad", "stretch"])
@pytest.mark.parametrize(("width", "height"), [(64, 64), (192, 128), (100, 160)])
def test_a_box_goes_where_its_pixels_go(fit, width, height):
    preprocessing = Preprocessing(64, fit=fit)
    box = Box.of_size("x", width * 0.4, height * 0.3, width * 0.25, height * 0.3)
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[round(box.y1) : round(box.y2), round(box.x1) : round(box.x2)] = 255
    left, top, right, bottom = place_box(box, width=width, height=height, preprocessing=preprocessing)
    inside = fill_boxes([box], width=width, height=height, preprocessing=preprocessing)
    found, filled = (
        np.array([cells.min(axis=0), cells.max(axis=0) + 1])
        for cells in (np.argwhere(resize_image(pixels, preprocessing)[..., 0] > 127), np.argwhere(inside))
    )
    np.testing.assert_allclose([[top, left], [bottom, right]], found, atol=1.2)
    np.testing.assert_allclose(filled, found, atol=1.2)
    twice = fill_boxes([box, box], width=width, height=height, preprocessing=preprocessing)
    np.testing.assert_array_equal(twice, inside)


def test_a_smooth_map_has_its_highest_where_its_cell_is():
    cells = np.zeros((4, 4))
    cells[1, 3] = 2.0
    shown = smooth(cells, 32)
    assert shown.max() == 1
    assert {each // 8 for each in np.argwhere(shown == shown.max())[:, 0]} == {1}
    np.testing.assert_allclose(smooth(np.full((2, 3), 0.3), 6), 1)
    # Halfway between two centres the value is the mean of theirs.
    np.testing.assert_allclose(smooth(np.array([[0.0, 1.0]]), 4)[0], [0, 0.25, 0.75, 1])


def test_scores_are_a_table_and_json_with_the_best_constant_map_first():
    steps = ("Detection", "Diagnosis")
    defined, alone = Interval(0.108, 0.035, 0.181), Interval(0.1)
    figures = {"pointing less best constant map": [defined, alone], "pointing": [defined, Interval(float("nan"))]}
    scores = MapScores("student", "phantom", 3, 0.2, "the mean", steps, figures, [0.5, 0.6], "training boxes")
    lines = describe_scores(scores).splitlines()
    assert lines[0] == "3 radiographs with boxes (phantom; 20.0% of the area), student; windows replaced by the mean"
    assert lines[2:6] == [
        "| points | Detection | Diagnosis |",
        "|---|---|---|",
        "| pointing less best constant map | +10.8 [+3.5, +18.1] | +10.0 |",
        "| pointing | 10.8 [3.5, 18.1] | undefined |",
    ]
    written = json.loads(write_scores(scores))
    assert written["figures"]["pointing"][0]["low"] == 0.035
    assert written["figures"]["pointing"][1]["value"] is None


def test_attention_is_that_of_the_step_whose_turn_it_is():
    attention = np.zeros((1, 2, 2, 2, 3, 3), np.float32)
    attention[0, 0, 1, :, 0] = [[0.2, 0.3, 0.5], [0.4, 0.1, 0.5]]
    attention[0, 1, 1, :, 1] = [[1, 0, 0], [0, 0, 1]]
    weights = step_attention(attention)
    np.testing.assert_allclose(weights[0], [[0.3, 0.2, 0.5], [0.5, 0, 0.5]], atol=1e-6)
    refuse("over 3 nodes", node_names, DEFAULT_CHAIN, num_nodes=3)
    table = attention_table(np.eye(7, 8), DEFAULT_CHAIN)
    assert table["Diagnosis"]["Diagnosis"] == 1
    assert table["Diagnosis"]["Memory"] == 0


def test_scored_phantoms_are_none_of_the_runs_and_constant_maps_are_fitted_on_the_runs(monkeypatch):
    settings, preprocessing = load_settings("quickstart", **{"phantom.image_size": 32}), Preprocessing(32)
    scored, own = (scoring.draw_boxed(settings, preprocessing, num_cases=4, **later) for later in ({}, {"later": 0}))
    seen = [resize_image(repeat_grey(draw_case(k, **settings.phantom.drawing).image), preprocessing) for k in range(12)]
    in_run = [
        [any(np.array_equal(each.picture, picture) for picture in seen) for each in made] for made in (scored, own)
    ]
    assert in_run == [[False] * 4, [True] * 4]
    monkeypatch.setattr(scoring, "_NUM_FITTED", 4)
    trained = types.SimpleNamespace(run=types.SimpleNamespace(settings=settings), preprocessing=preprocessing)
    expected = scoring.place_boxes(np.stack([each.inside for each in own]))
    np.testing.assert_array_equal(scoring.fit_on_training(trained).cover, expected.cover)


def test_boxed_pictures_of_the_real_sample(shared):
    data = shared / "data"
    pictures = read_boxed(
        data / "nih_sample",
        Preprocessing(64),
        num_cases=4,
        box_list=data / "nih_chestxray8" / "BBox_List_2017.csv",
        max_pixels=10**7,
    )
    assert len(pictures) == 4
    assert all(0 < picture.inside.mean() < 0.6 for picture in pictures)
    refuse("no image with a box", read_boxed, data / "nih_sample", Preprocessing(64), num_cases=4, max_pixels=10**7)
