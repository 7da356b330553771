import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles.quick_jit import quick_jit
from policies.qwen.tiny_qwen import IMAGE, PREPROCESSING, VISION, cut_pictures, picture, tiny
from refusals import refuse

from stepcot_jax.box import qwen_size
from stepcot_jax.host.errors import BadInput
from stepcot_jax.models.qwen import VisionTower
from stepcot_jax.policies import qwen_inputs as tested


def test_padding_changes_nothing():
    config, params = tiny()
    tower = VisionTower(config.vision)
    run = quick_jit(lambda params, images: tower.apply({"params": params}, images))
    cut = cut_pictures((12, 20), (4, 4), (36, 8))

    def encode(images, *, noise=0.0):
        packed, units = tested.pack_images(images, config.vision)
        filling = noise * np.random.default_rng(5).standard_normal(packed.patches.shape)
        patches = np.where(packed.is_real[..., None], packed.patches, filling).astype(np.float32)
        found = np.asarray(run(params["tower"], jax.tree.map(jnp.asarray, packed._replace(patches=patches))))
        return [found.reshape(-1, found.shape[-1])[unit] for unit in units]

    together = encode(cut)
    assert all(np.abs(each).mean() > 0.05 for each in together)
    for image, expected in zip(cut, together, strict=True):
        (alone,) = encode([image])
        np.testing.assert_allclose(alone, expected, atol=2e-6)
    for found, expected in zip(encode(cut, noise=1e4), together, strict=True):
        np.testing.assert_array_equal(found, expected)
    more_and_larger = [*cut, *cut_pictures((40, 36), (4, 4))]
    for found, expected in zip(encode(more_and_larger)[:3], together, strict=True):
        np.testing.assert_allclose(found, expected, atol=2e-6)


def test_a_patch_sees_its_window_or_its_image():
    config, params = tiny()
    cut = tested.cut_image(picture(0, 16, 8), PREPROCESSING)
    packed, (units,) = tested.pack_images([cut], config.vision)
    assert packed.is_real.all()
    for full, reaches in (((), False), ((1,), True)):
        tower = VisionTower(dataclasses.replace(config.vision, full_layers=full))
        run = quick_jit(lambda params, images, tower=tower: tower.apply({"params": params}, images))
        first = np.asarray(run(params["tower"], jax.tree.map(jnp.asarray, packed)))[0][units]
        changed = packed.patches.copy()
        changed[0, 1] += 1.0
        second = np.asarray(run(params["tower"], jax.tree.map(jnp.asarray, packed._replace(patches=changed))))[0][units]
        # The upper half of the image is one window, the lower half the other.
        half = len(units) // 2
        assert (np.abs(second - first).max(axis=1)[:half] > 1e-3).all() == reaches
        assert (np.abs(second - first).max(axis=1)[half:] > 1e-3).all()
        assert reaches or np.array_equal(first[:half], second[:half])


def test_positions():
    tokens = [1, *[IMAGE] * 6, 2, 3, *[IMAGE] * 2, 4]
    found, start = tested.rope_positions(tokens, [(3, 2), (1, 2)], image_token=IMAGE)
    assert found.tolist() == [
        [0, 1, 1, 1, 1, 1, 1, 4, 5, 6, 6, 8],
        [0, 1, 1, 2, 2, 3, 3, 4, 5, 6, 6, 8],
        [0, 1, 2, 1, 2, 1, 2, 4, 5, 6, 7, 8],
    ]
    assert start == 9
    assert tested.rope_positions([5, 6], [], image_token=IMAGE)[0].tolist() == [[0, 1]] * 3


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (tested.QwenPrompt([]), "prompt 2: 0 tokens"),
        (tested.QwenPrompt([1, IMAGE]), "prompt 2: 2 tokens, 1 of them for images .*each of 0 images"),
        (tested.QwenPrompt([1], [tested.cut_image(picture(0, 8, 8), PREPROCESSING)]), "1 tokens, 0 of them for images"),
    ],
)
def test_prompts_that_do_not_fit_their_images(prompt, message):
    with pytest.raises(BadInput, match=message):
        tested.lay_out_prompts([tested.QwenPrompt([1]), prompt], image_token=IMAGE, vision=tiny()[0].vision)
    with pytest.raises(BadInput, match=r"the model has no vision tower|prompt 2"):
        tested.lay_out_prompts([tested.QwenPrompt([1]), prompt], image_token=IMAGE)


def test_sizes_of_images():
    published = tested.QwenPreprocessing()
    assert qwen_size((28, 28)) == (56, 56)
    assert qwen_size((1024, 1024)) == (1036, 1036)
    assert qwen_size((2500, 3000), limits=(56 * 56, 28 * 28 * 1280)) == (896, 1092)
    assert qwen_size((70, 42), limits=(784, 10**6)) == (56, 56)  # halves to even, as the processor
    refuse("more than 200 times", qwen_size, (201, 1))
    refuse("^image of 201 x 1 px", tested.cut_image, np.zeros((1, 201, 3), np.uint8), published)
    refuse("^image: float32 of shape", tested.cut_image, np.zeros((5, 5, 3), np.float32), published)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"resample": 2}, "resample: 2 is not one of 3"),
        ({"rescale_factor": 1}, "rescale_factor: 1.0 is not 1/255"),
        ({"image_std": [0, 1, 1]}, r"std \(0\.0, 1\.0, 1\.0\) are not finite numbers"),
        ({"min_pixels": 12_000_000, "max_pixels": 2**24}, "min_pixels: 12000000 is not .* number from 1 to 1048576"),
        ({"max_pixels": 20}, "min_pixels 100 and max_pixels 20"),
        ({"max_pixels": None}, "size.longest_edge: None is not a whole number"),
    ],
)
def test_bad_preprocessing(tmp_path, change, message):
    given = {"patch_size": VISION["patch_size"], "merge_size": 2, "min_pixels": 100, "max_pixels": 1000}
    vision = tiny()[0].vision
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(given))
    assert tested.read_qwen_preprocessing(tmp_path, vision).max_pixels == 1000
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(given | change))
    refuse(message, tested.read_qwen_preprocessing, tmp_path, vision)
    refuse(r"no preprocessor_config\.json", tested.read_qwen_preprocessing, tmp_path / "nowhere", vision)


def test_preprocessing_inside_processor_config(tmp_path):
    """As transformers 5 saves a processor."""
    vision = tiny()[0].vision
    nulls = {"min_pixels": None, "do_resize": None, "rescale_factor": None, "image_std": None}
    own = {"patch_size": VISION["patch_size"], "size": {"shortest_edge": 64, "longest_edge": 640}, "resample": 3}
    own |= nulls  # as missing keys
    inside = {"processor_class": "Qwen2_5_VLProcessor", "image_processor": own | {"image_mean": [0.1, 0.2, 0.3]}}
    (tmp_path / "processor_config.json").write_text(json.dumps(inside))
    found = tested.read_qwen_preprocessing(tmp_path, vision)
    assert (found.min_pixels, found.max_pixels, found.mean) == (64, 640, (0.1, 0.2, 0.3))
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(own | {"image_mean": [0.5, 0.5, 0.5]}))
    assert tested.read_qwen_preprocessing(tmp_path, vision) == found  # transformers reads this one too
    (tmp_path / "processor_config.json").write_text(json.dumps({"processor_class": "Qwen2_5_VLProcessor"}))
    assert tested.read_qwen_preprocessing(tmp_path, vision).mean == (0.5, 0.5, 0.5)
    (tmp_path / "processor_config.json").write_text(json.dumps({"image_processor": own | {"resample": 2}}))
    with pytest.raises(BadInput, match=r"processor_config\.json\.image_processor\.resample: 2 is not one of 3"):
        tested.read_qwen_preprocessing(tmp_path, vision)
