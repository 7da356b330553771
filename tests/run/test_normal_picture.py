import dataclasses

import numpy as np
import pytest
from refusals import refuse
from run.small_run import SIZES

from stepcot_jax.chain import Chain, Step
from stepcot_jax.data.dataset import TestSplitClosed
from stepcot_jax.data.phantom.phantom import draw_case
from stepcot_jax.run import results, stored
from stepcot_jax.run.inputs import load_cases


@pytest.fixture(scope="module")
def dataset():
    return load_cases("quickstart", **(SIZES | {"phantom.num_cases": 100, "phantom.prevalence": "published"}))


def test_the_mean_is_of_normal_training_cases(dataset):
    normal = [index for index in dataset.splits.train if dataset.labels[index, -1] == 0]
    assert stored.MIN_CASES <= len(normal) <= stored.MAX_CASES
    drawn = [draw_case(index, seed=0, size=32, prevalence="published") for index in normal]
    assert not any(case.marks for case in drawn)
    picture = results.mean_normal_picture(dataset.hold_out()[0])  # the view without the test split
    assert picture.num_cases == len(normal)
    expected = np.mean([case.image for case in drawn], axis=0)
    np.testing.assert_allclose(picture.pixels[..., 0], expected, atol=0.5001)
    np.testing.assert_array_equal(picture.pixels[..., 0], picture.pixels[..., 2])
    with pytest.raises(TestSplitClosed):
        dataset.hold_out()[0].pixels[dataset.splits.test[0]]


def test_there_is_none_of_few_pictures_or_without_a_normal_answer(dataset):
    few = dataclasses.replace(dataset.splits, train=dataset.splits.train[: stored.MIN_CASES - 1])
    assert results.mean_normal_picture(dataclasses.replace(dataset, splits=few)) is None
    *steps, last = dataset.chain.steps
    for options in (("Fracture", *last.options[1:]), (*last.options[1:], "N/A")):
        other = Chain((*steps, Step(last.name, last.question, options)))
        assert results.mean_normal_picture(dataclasses.replace(dataset, chain=other)) is None


def test_a_picture_comes_back_and_a_wrong_one_is_refused(tmp_path):
    path = tmp_path / "normal_picture.npz"
    assert stored.read_normal_picture(path, size=16) is None
    pixels = np.random.default_rng(0).integers(0, 255, (16, 16, 3), np.uint8)
    stored.write_normal_picture(path, stored.NormalPicture(pixels, 30))
    found = stored.read_normal_picture(path, size=16)
    assert found.num_cases == 30
    np.testing.assert_array_equal(found.pixels, pixels)
    refuse(r"a picture of shape \(16, 16, 3\); expected \(32, 32, 3\)", stored.read_normal_picture, path, size=32)
