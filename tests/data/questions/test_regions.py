"""Regions from masks against boxes worked out by hand; `test_truth` has those of phantoms."""

import numpy as np
import pytest
from refusals import refuse

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
    corners = {"right lung": (0, 0, 30, 64), "heart": (25, 20, 40, 40), "left lung": (45, 0, 60, 64)}
    organs = {name: _mask(box) for name, box in corners.items()}
    assert host_organ((20, 20, 36, 30), organs) == "heart"  # 11 of 16 columns, the lung 10
    assert host_organ((18, 20, 36, 30), organs) == "right lung"  # 12 of 18, the heart 11
    assert host_organ((40.0, 50.0, 44.5, 60.0), organs) == ""


LUNGS, HEART, TINY = _mask((6, 4, 24, 52), (34, 7, 58, 49)), _mask((7, 4, 9, 6)), _mask((6, 4, 7, 5), (9, 4, 10, 5))
REFUSED = [(_mask(), HEART, "mask of the lungs"), (LUNGS, _mask(), "mask of the heart"), (TINY, HEART, "too small for")]


@pytest.mark.parametrize(("lungs", "heart", "message"), REFUSED)
def test_masks_that_give_no_regions_are_refused(lungs, heart, message):
    refuse(message, find_regions, lungs, heart)
