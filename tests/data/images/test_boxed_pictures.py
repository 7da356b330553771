import io

import numpy as np
import pytest
from PIL import Image

from stepcot_jax.box import Box
from stepcot_jax.data.images.drawn_boxes import PREDICTED, TRUE, draw_named_boxes, write_png

GREY = np.full((100, 200, 3), 90, np.uint8)


def pixels_of(drawn, colour):
    rows, columns = np.nonzero((drawn == np.array(colour)).all(axis=-1))
    return columns.min(), rows.min(), columns.max() + 1, rows.max() + 1


@pytest.mark.parametrize("side", [100, 400])
def test_a_box_is_drawn_along_its_edges(side):
    drawn = draw_named_boxes(GREY, [Box("", (20, 30, 80, 60))], colour=TRUE, least_side=side)
    scale = side // 100
    assert drawn.shape == (side, 2 * side, 3)
    assert pixels_of(drawn, TRUE) == tuple(scale * edge for edge in (20, 30, 80, 60))
    assert (drawn[45 * scale, 50 * scale] == 90).all()
    assert (drawn != 90).any(axis=-1).mean() < 0.2


@pytest.mark.parametrize("box", [(-50, -50, 300, 300), (199.9, 99.9, 400, 400), (5, 5, 5, 5), (0, 0, 1, 1)])
def test_every_box_can_be_drawn(box):
    drawn = draw_named_boxes(GREY, [Box("a\x1b name " * 20, box)], least_side=100)
    assert drawn.shape == GREY.shape
    left, upper, right, lower = pixels_of(drawn, PREDICTED)
    assert 0 <= left < right <= 200
    assert 0 <= upper < lower <= 100


def test_a_name_is_written_and_the_picture_is_a_png():
    plain, named = (draw_named_boxes(GREY, [Box(name, (20, 30, 80, 60))], least_side=100) for name in ("", "lung"))
    assert np.nonzero((plain != named).any(axis=-1))[0].max() < 30
    np.testing.assert_array_equal(Image.open(io.BytesIO(write_png(named))), named)
    assert (GREY == 90).all()
