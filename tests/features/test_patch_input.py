import dataclasses

import numpy as np
import pytest
from features.fake_encoders import FakeImageEncoder, draw
from run.small_policy_run import small_settings

from stepcot_jax.data.images.pixels import PixelCache
from stepcot_jax.data.images.preprocessing import normalise
from stepcot_jax.data.questions.vqa_dataset import VqaDataset
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.run.frozen_features import store_patches
from stepcot_jax.run.networks import patches_of

PICTURES = np.stack([draw(number) for number in (3, 5, 300, 7, 3)])


class PatchEncoder(FakeImageEncoder):
    """16 patches of a picture, its own pixels; counts what it is asked."""

    def encode_patches(self, images):
        features, patches = super().encode_patches(images)
        return features, self.change(patches) if hasattr(self, "change") else patches


def settings_of(**changes):
    settings = small_settings()
    encoder = dataclasses.replace(settings.image_encoder, image_size=4)
    features = dataclasses.replace(settings.features, **{"batch_size": 3} | changes)
    return dataclasses.replace(settings, image_encoder=encoder, features=features)


def dataset_of(pictures):
    pixels = PixelCache(lambda place: pictures[place], 1e6)
    return VqaDataset((), np.arange(len(pictures), dtype=np.int32), {}, "", (), pixels)


def expected(pictures):
    return normalise(pictures, FakeImageEncoder.preprocessing).reshape(len(pictures), 16, 3)


def test_patches_do_not_depend_on_batches_or_order():
    encoder = PatchEncoder()
    patches = patches_of(settings_of(), encoder)
    np.testing.assert_array_equal(patches(PICTURES), expected(PICTURES))
    np.testing.assert_array_equal(patches(PICTURES[::-1]), expected(PICTURES[::-1]))
    np.testing.assert_array_equal(patches(PICTURES[3:4]), expected(PICTURES[3:4]))
    assert patches_of(settings_of(batch_size=0), encoder).batch_size == 32
    assert set(encoder.shapes) == {(3, 4, 4, 3), (2, 4, 4, 3), (1, 4, 4, 3)}  # powers of two, up to the batch size


@pytest.mark.parametrize("dtype", ["none", "float16"])
def test_stored_patches_are_those_that_are_encoded(tmp_path, dtype):
    settings, encoder = settings_of(patches=dtype), PatchEncoder()
    plain = patches_of(settings, encoder)
    stored = store_patches(plain, dataset_of(PICTURES[:3]), settings, tmp_path, Terminal())
    encoder.images.clear()
    found = stored(PICTURES)
    assert encoder.images == [7]  # the one picture that is not stored
    assert found.dtype == ("float16" if dtype == "float16" else "float32")
    np.testing.assert_array_equal(found, plain(PICTURES))
    np.testing.assert_array_equal(found, expected(PICTURES).astype(found.dtype))
    again = store_patches(plain, dataset_of(PICTURES[:3]), settings, tmp_path, Terminal())
    encoder.images.clear()
    np.testing.assert_array_equal(again(PICTURES[:3]), found[:3])
    assert not encoder.images


def test_the_digest_is_of_all_that_decides_a_patch():
    plain = patches_of(settings_of(), PatchEncoder())
    assert patches_of(settings_of(patches="float32"), PatchEncoder()).digest == plain.digest
    assert patches_of(settings_of(patches="float16"), PatchEncoder()).digest != plain.digest
    assert patches_of(settings_of(), PatchEncoder(digest="other weights")).digest != plain.digest
    other = PatchEncoder()
    other.preprocessing = dataclasses.replace(other.preprocessing, mean=(0.5, 0.5, 0.4))
    assert patches_of(settings_of(), other).digest != plain.digest
    other.preprocessing = dataclasses.replace(PatchEncoder.preprocessing, fit="pad")  # pictures come stretched
    assert patches_of(settings_of(), other).digest == plain.digest


def test_patches_that_float16_cannot_hold_or_that_are_no_square_are_refused(tmp_path):
    encoder = PatchEncoder()
    encoder.change = lambda patches: patches * 1e5
    settings = settings_of(patches="float16")
    message = r"a patch from fake is not finite as float16 \(check the weights; config\.features\.patches='float32'"
    with pytest.raises(BadInput, match=f"^a picture: {message}"):
        patches_of(settings, encoder)(PICTURES)
    with pytest.raises(BadInput, match=f"^picture 0: {message}"):
        store_patches(patches_of(settings, encoder), dataset_of(PICTURES), settings, tmp_path, Terminal())
    assert np.isfinite(patches_of(settings_of(), encoder)(PICTURES)).all()
    encoder.patch_shape = lambda: (15, 3)
    with pytest.raises(BadInput, match=r"config\.image_encoder\.weights: fake gives 15 patches of a picture of 4 px"):
        patches_of(settings_of(), encoder)
