"""The atlas of organs against the masks of phantoms, its shares against counts, and positions by hand."""

import numpy as np
import pytest

from stepcot_jax.data.questions.making import ground_phantom
from stepcot_jax.data.questions.organ_atlas import ORGANS, Fit, fit_atlas, map_lungs, name_organ, share_organs
from stepcot_jax.data.questions.vocabulary import name_position, split_lungs

FRAME = (0.1, 0.2, 0.9, 0.8)


def is_inside(x, y, points):
    """Whether a point lies in a polygon: rays to the right that cross an odd number of edges."""
    crossings = 0
    for (x1, y1), (x2, y2) in zip(points, [*points[1:], points[0]], strict=True):
        crossings += (y1 > y) != (y2 > y) and x < x1 + (y - y1) / (y2 - y1) * (x2 - x1)
    return crossings % 2 == 1


def test_shares_are_those_of_points_in_the_outlines():
    rng = np.random.default_rng(0)
    for x1, y1, width, height in rng.uniform((0, 0.1, 0.1, 0.1), (0.7, 0.7, 0.3, 0.3), (12, 4)).tolist():
        points = rng.uniform((x1, y1), (x1 + width, y1 + height), (4000, 2))
        u, v = ((points - FRAME[:2]) / np.subtract(FRAME[2:], FRAME[:2])).T.tolist()
        places = list(zip(u, v, strict=True))
        inside = {name: np.array([is_inside(*place, list(ORGANS[name])) for place in places]) for name in ORGANS}
        found = share_organs((x1, y1, x1 + width, y1 + height), FRAME)
        for name, share in found.items():
            lung_only = inside[name] if name == "heart" else inside[name] & ~inside["heart"]
            assert share == pytest.approx(lung_only.mean(), abs=0.04)


def test_an_organ_is_named_only_where_it_is_clear():
    right, heart = (0.2, 0.35, 0.35, 0.5), (0.45, 0.55, 0.65, 0.72)
    good, poor = Fit(FRAME, 0.7), Fit(FRAME, 0.5)
    assert name_organ("Mass", right, good)[0] == "right lung"
    assert name_organ("Mass", right, poor)[0] == ""
    assert name_organ("Cardiomegaly", heart, good)[0] == "heart"
    assert name_organ("Mass", heart, good)[0] == ""  # behind the heart
    assert name_organ("Mass", (0.2, 0.3, 0.8, 0.5), good)[0] == ""  # both lungs
    assert name_organ("Mass", (0.0, 0.0, 1.0, 0.15), good) == ("", 0.0)


def test_organs_that_are_named_on_phantoms_are_nearly_always_right():
    """The truth is counted on the phantom's masks; the figures of 500 phantoms stand in docs/annotate.md."""
    named, num_boxes = [], 0
    for index in range(50):
        image, drawn = ground_phantom(index, seed=11, size=128)
        fit = fit_atlas(map_lungs(drawn.image))
        masks = {f"{side} lung": mask for side, mask in split_lungs(drawn.lung_mask).items()}
        masks["heart"] = drawn.heart_mask
        for box in image.boxes:
            x1, y1, x2, y2 = map(int, box.corners)
            truth = {name: mask[y1:y2, x1:x2].sum() for name, mask in masks.items()}
            organ, _ = name_organ(box.label, tuple(edge / 128 for edge in box.corners), fit)
            named += [truth[organ] == max(truth.values())] if organ else []
            num_boxes += 1
    assert len(named) / num_boxes > 0.6
    assert np.mean(named) > 0.93


def test_what_is_no_chest_is_not_fitted():
    rng = np.random.default_rng(0)
    noise, flat = rng.integers(0, 256, (96, 96), np.uint8), np.full((96, 96), 90, np.uint8)
    ramp = np.tile(np.arange(0, 192, 2, dtype=np.uint8), (96, 1))
    for picture in (noise, flat, ramp, np.zeros((40, 90), np.uint8)):
        assert name_organ("Mass", (0.2, 0.3, 0.4, 0.6), fit_atlas(map_lungs(picture)))[0] == ""


@pytest.mark.parametrize(
    ("box", "position"),
    [
        ((100, 200, 300, 300), "right upper zone"),  # zones of 1000 px end at 348 and 599
        ((650, 400, 800, 560), "left middle zone"),
        ((700, 700, 900, 990), "left lower zone"),
        ((350, 500, 700, 900), "central lower zone"),
        ((100, 100, 400, 800), "right area"),
        ((100, 100, 900, 800), "central area"),
    ],
)
def test_positions_by_hand(box, position):
    assert name_position(box, (1000, 1000)) == position
    assert name_position(tuple(2 * edge for edge in box), (2000, 2000)) == position
