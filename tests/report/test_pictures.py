import base64
import io

import numpy as np
import pytest
from PIL import Image

from stepcot_jax.pages.pictures import MAX_SIDE, write_map, write_overlay, write_picture


def decode(uri):
    kind, content = uri.split(",")
    assert kind == "data:image/jpeg;base64"
    return Image.open(io.BytesIO(base64.b64decode(content)))


def grey(size, value=128):
    return np.full((size, size, 3), value, np.uint8)


def test_a_picture_keeps_its_look_and_is_small():
    pixels = np.repeat(np.linspace(0, 255, 1000).astype(np.uint8)[None, :, None], 600, axis=0).repeat(3, axis=2)
    shown = decode(write_picture(pixels))
    assert shown.mode == "L"
    assert max(shown.size) == MAX_SIDE
    assert shown.width / shown.height == pytest.approx(1000 / 600, abs=0.02)
    row = np.asarray(shown)[0].astype(float)
    assert abs(row - np.linspace(0, 255, shown.width)).max() < 6
    coloured = grey(20)
    coloured[..., 0] = 200
    assert decode(write_picture(coloured)).mode == "RGB"


def cells(found):
    return np.frombuffer(base64.b64decode(found["bytes"]), np.uint8).reshape(found["height"], found["width"])


def test_a_map_runs_from_its_lowest_to_its_highest_and_a_fine_one_is_averaged():
    assert cells(write_map(np.array([[0.2, 0.2, 0.6], [0.36, 0.2, 0.2]]))).tolist() == [[0, 0, 255], [102, 0, 0]]
    values = np.zeros((96, 48))
    values[:48] = 1
    found = cells(write_map(values))
    assert found.shape == (24, 12)
    assert (found[:11] == 255).all()
    assert not found[13:].any()
    for bad in (np.nan, -1.0, np.inf):
        with pytest.raises(ValueError, match="finite and not negative"):
            write_map(np.array([[0.0, bad]]))


@pytest.mark.parametrize("value", [0.0, 1 / 49, 1e-12])
def test_an_even_map_shows_nothing(value):
    assert not cells(write_map(np.full((7, 7), value))).any()
    assert write_overlay(grey(14), np.full((7, 7), value)) == write_picture(grey(14))


def test_an_overlay_is_bright_where_the_map_is():
    values = np.zeros((4, 4))
    values[0, 3] = 1
    shown = np.asarray(decode(write_overlay(grey(64, 60), values)).convert("RGB")).astype(int)
    assert shown[4, 60, 0] > 150
    assert abs(shown[50, 10] - 60).max() < 8
