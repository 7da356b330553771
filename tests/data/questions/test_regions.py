"""Regions from masks against boxes worked out by hand, and the renderer's own sides."""

import numpy as np
import pytest
from refusals import refuse

from stepcot_jax.data.phantom import phantom
from stepcot_jax.data.phantom.anatomy import Frame, render_anatomy
from stepcot_jax.data.questions.vocabulary import find_regions, host_organ, split_lungs


def _mask(*boxes, size=64):
    mask = np.zeros((size, size), bool)
    for x1, y1, x2, y2 in boxes:
        mask[y1:y2, x1:x2] = True
    return mask


def test_regions_lungs_and_hosts_by_hand():
    regions = find_regions(_mask((6, 4, 24, 52), (34, 7, 58, 49)), _mask((22, 30, 46, 50)))
    parts = ("lung", "upper lung zone", "middle lung zone", "lower lung zone", "hilar structures", "hemidiaphragm")
    right = [(6, 4, 24, 52), (6, 4, 24, 20), (6, 20, 24, 36), (6, 36, 24, 52), (18, 20, 24, 36), (6, 40, 24, 64)]
    left = [(34, 7, 58, 49), (34, 7, 58, 21), (34, 21, 58, 35), (34, 35, 58, 49), (34, 21, 42, 35), (34, 38, 58, 60)]
    both = {"bilateral lung": (6, 4, 58, 52), "cardiac region": (22, 30, 46, 50), "mediastinum": (22, 4, 46, 50)}
    expected = {f"{side} {part}": box for side, own in (("right", right), ("left", left))
                for part, box in zip(parts, own, strict=True)}  # fmt: skip
    assert {region.label: region.corners for region in regions} == expected | both
    mask = _mask((10, 10, 50, 40))
    mask[12:, 28] = False
    found = split_lungs(mask)
    assert found["right"].any(0).nonzero()[0].tolist() == list(range(10, 28))
    assert found["left"].any(0).nonzero()[0].tolist() == list(range(28, 50))
    organs = {
        "right lung": _mask((0, 0, 30, 64)),
        "heart": _mask((25, 20, 40, 40)),
        "left lung": _mask((45, 0, 60, 64)),
    }
    assert host_organ((20, 20, 36, 30), organs) == "heart"  # 11 of 16 columns, the lung 10
    assert host_organ((18, 20, 36, 30), organs) == "right lung"  # 12 of 18, the heart 11
    assert host_organ((40.0, 50.0, 44.5, 60.0), organs) == ""


def test_sides_are_those_of_the_renderer():
    num_different = 0
    for index in range(50):
        size = (64, 128)[index % 2]
        shot = phantom.plan_case(index, seed=3, prevalence="flat")
        drawn = phantom.draw_planned(shot, size=size)
        chest = render_anatomy(shot.scene.anatomy, Frame.of(shot.pose, size))
        for side, mask in split_lungs(drawn.lung_mask).items():
            expected = (chest.lungs[-1 if side == "right" else 1] > 0.5) & ~drawn.heart_mask
            num_different += int((mask != expected).sum())
    assert num_different <= 4  # a shifted mediastinum may leave two pixels of a lung beyond the gap


LUNGS, HEART, TINY = _mask((6, 4, 24, 52), (34, 7, 58, 49)), _mask((7, 4, 9, 6)), _mask((6, 4, 7, 5), (9, 4, 10, 5))
REFUSED = [(_mask(), HEART, "mask of the lungs"), (LUNGS, _mask(), "mask of the heart"), (TINY, HEART, "too small for")]


@pytest.mark.parametrize(("lungs", "heart", "message"), REFUSED)
def test_masks_that_give_no_regions_are_refused(lungs, heart, message):
    refuse(message, find_regions, lungs, heart)
