"""Augmentation: each change alone against its definition, nothing without limits above zero, never a flip."""

import dataclasses

import numpy as np
import pytest

from stepcot_jax.data.images.pixels import LIGHT, Augmentation, augment_image

NOTHING = Augmentation(degrees=0, shift=0, scale=0, brightness=0, contrast=0)
PICTURE = np.random.default_rng(0).integers(0, 256, (32, 32), np.uint8)


class Drawn:
    def __init__(self, **draws):
        names = ("turn", "right", "down", "growth", "brightness", "contrast")
        self.draws = np.array([draws.get(name, 0.0) for name in names])

    def uniform(self, low, high, number):
        assert (low, high, number) == (-1.0, 1.0, 6)
        return self.draws


def only(**limits):
    return dataclasses.replace(NOTHING, **limits)


@pytest.mark.parametrize("picture", [PICTURE, np.stack([PICTURE, PICTURE.T, PICTURE[::-1]], axis=-1)])
def test_without_limits_nothing_changes(picture):
    changed = augment_image(picture, np.random.default_rng(0), NOTHING)
    np.testing.assert_array_equal(changed, picture)
    assert changed is not picture


def test_each_change_alone_is_its_definition():
    moved = augment_image(PICTURE, Drawn(right=1, down=0.5), only(shift=4 / 32))
    expected = np.zeros_like(PICTURE)
    expected[2:, 4:] = PICTURE[:-2, :-4]
    np.testing.assert_array_equal(moved, expected)
    turned = augment_image(PICTURE, Drawn(turn=1), only(degrees=90))
    # The cosine is not quite 0: Pillow cuts off what falls just below a grey level, and at the edges just outside.
    inside = slice(1, -1)
    expected = np.rot90(PICTURE, -1).astype(int)
    np.testing.assert_allclose(turned[inside, inside], expected[inside, inside], atol=1)
    back = augment_image(PICTURE, Drawn(turn=-1), only(degrees=90))
    np.testing.assert_allclose(back[inside, inside], np.rot90(PICTURE, 1).astype(int)[inside, inside], atol=1)
    picture = np.zeros((64, 64), np.uint8)
    picture[24:40, 24:40] = 255
    grown = augment_image(picture, Drawn(growth=1), only(scale=0.5))
    rows = np.flatnonzero(grown[32] > 127)
    assert (rows[0], rows[-1]) == (20, 43)  # 16 pixels become 24
    changed = augment_image(PICTURE, Drawn(brightness=0.5, contrast=-1), only(brightness=0.2, contrast=0.25))
    expected = np.clip(np.round((PICTURE - 127.5) * 0.75 + 127.5 + 25.5), 0, 255)
    np.testing.assert_array_equal(changed, expected)
    assert augment_image(PICTURE, Drawn(brightness=1), only(brightness=1)).min() == 255


def test_light_changes_are_light_and_keep_left_and_right():
    rows, columns = np.mgrid[:64, :64]
    spot = (255 * np.exp(-((columns - 16) ** 2 + (rows - 40) ** 2) / 20)).astype(np.uint8)  # left, below the middle
    for seed in range(50):
        changed = augment_image(spot, np.random.default_rng(seed), LIGHT)
        row, column = np.unravel_index(changed.argmax(), changed.shape)
        assert abs(row - 40) < 7
        assert abs(column - 16) < 7
