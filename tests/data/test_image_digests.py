"""A run goes on only with the pictures that it started with: digests of the image files in the workdir."""

import shutil

import pytest

from stepcot_jax.data.dataset import check_same_images, write_account
from stepcot_jax.data.images.preprocessing import Preprocessing
from stepcot_jax.host.errors import BadInput
from stepcot_jax.run.loading import load_dataset
from stepcot_jax.run.settings import load_settings
from stepcot_jax.tools.data.command import main as data


def test_other_pictures_under_the_same_names_are_refused(tmp_path):
    def load(check, folder="cases"):
        settings = load_settings(
            "step_cot", **{"data.root": str(tmp_path / folder), "data.source": "folder", "data.check_images": check}
        )
        return load_dataset(settings, preprocessing=Preprocessing(size=32))

    data(["phantom", str(tmp_path / "cases"), "--num-cases=40", "--size=32"])
    first = load("ahead")
    write_account(first, tmp_path)
    assert len((tmp_path / "images.sha256").read_text().splitlines()) == len(first.cases) == 40
    check_same_images(load("ahead"), tmp_path)
    data(["shards", str(tmp_path / "cases"), "--out", str(tmp_path / "shards")])
    assert load("ahead", "shards").digests == first.digests
    one, other = (tmp_path / "cases" / first.cases.image_paths[index] for index in (3, 4))
    shutil.copy(one, other)
    with pytest.raises(BadInput, match=rf"{other.name}: not the picture that the run started with .*; 1 of 40 differ"):
        check_same_images(load("ahead"), tmp_path)
    check_same_images(load("on_use"), tmp_path)  # nothing was read
