import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles.quick_jit import quick_jit
from oracles.random_params import assert_close
from policies.qwen.tiny_qwen import IMAGE, PREPROCESSING, tiny

from stepcot_jax.models.decoder import empty_cache
from stepcot_jax.models.qwen import QwenVl, SquareQwen, cut_squares
from stepcot_jax.policies.qwen_inputs import QwenPrompt, cut_image, lay_out_prompts, pack_images

GRID, SIDE = 3, 12  # 3 units of 4 px: the third row and column stand in windows of their own
TEXTS = [([3], [4, 5]), ([6, 7, 8], [9])]
COMPLETIONS = np.array([[10, 11, 57], [12, IMAGE, 13], [14, 57, 57], [15, 16, 17]], np.int32)


@pytest.fixture(scope="module")
def case():
    """Config and random parameters, pictures, and prompts with an image token a unit."""
    pictures = np.random.default_rng(0).integers(0, 256, (2, SIDE, SIDE, 3), np.uint8)
    prompts = np.zeros((2, 16), np.int32)
    lengths = np.zeros(2, np.int32)
    for row, (before, after) in enumerate(TEXTS):
        tokens = [*before, *[IMAGE] * GRID**2, *after]
        prompts[row, : len(tokens)], lengths[row] = tokens, len(tokens)
    return *tiny(), pictures, prompts, lengths


def normalise(pictures):
    scaled = pictures.astype(np.float32) * np.float32(1 / 255)
    return (scaled - np.float32(PREPROCESSING.mean)) / np.float32(PREPROCESSING.std)


def networks(config):
    square = SquareQwen(config.sizes, config.vision, grid=GRID, image_token=IMAGE)
    return square, QwenVl(config.sizes, config.vision)


def lay_out(config, pictures, texts):
    cut = [cut_image(picture, PREPROCESSING) for picture in pictures]
    prompts = [QwenPrompt([*before, IMAGE, *after], [image]) for (before, after), image in zip(texts, cut, strict=True)]
    return jax.tree.map(jnp.asarray, lay_out_prompts(prompts, image_token=IMAGE, vision=config.vision))


def test_patches_are_those_of_the_host(case):
    config, _, pictures, _, _ = case
    expected, _ = pack_images([cut_image(picture, PREPROCESSING) for picture in pictures], config.vision)
    found = cut_squares(jnp.asarray(normalise(pictures)), config.vision)
    np.testing.assert_array_equal(found.is_real, expected.is_real)
    np.testing.assert_array_equal(found.coordinates, expected.coordinates)
    assert_close(found.patches, expected.patches, 1e-6)


@pytest.mark.slow
def test_replies_and_texts_are_scored_as_by_the_plain_network(case):
    config, params, pictures, prompts, lengths = case
    square, plain = networks(config)
    images = jnp.asarray(normalise(pictures))
    score = quick_jit(lambda *given: square.apply({"params": params}, *given))
    found = score(images, prompts, lengths, COMPLETIONS)
    expected = quick_jit(lambda *given: plain.apply({"params": params}, *given))(
        *lay_out(config, pictures, TEXTS), COMPLETIONS
    )
    assert_close(found, expected, 1e-5)
    packed = quick_jit(lambda *given: square.apply({"params": params}, *given, method="score_packed"))
    ones = np.ones_like(prompts)
    texts = packed(images, prompts, ones, ones)
    for row, length in enumerate(lengths):
        assert_close(texts[row, length - 1], found[2 * row, 0], 1e-5)
    assert np.abs(found - score(images[::-1], prompts, lengths, COMPLETIONS)).max() > 1e-2


def test_tokens_from_the_cache_are_those_of_the_full_pass(case):
    config, params, pictures, prompts, lengths = case
    square, _ = networks(config)
    images = jnp.asarray(normalise(pictures))
    variables = {"params": params}
    expected = quick_jit(lambda *given: square.apply(variables, *given))(images, prompts, lengths, COMPLETIONS)
    first, prefix = quick_jit(lambda *given: square.apply(variables, *given, method="prefill"))(
        images, prompts, lengths
    )
    assert_close(np.repeat(first, 2, axis=0), expected[:, 0], 1e-5)
    caches = empty_cache(square.sizes, num_rollouts=4, num_slots=2)
    extend = quick_jit(
        lambda tokens, place, lengths, caches, prefix: square.apply(
            variables, tokens, place, lengths, caches, prefix=prefix, method="extend"
        )
    )
    for place in range(2):
        scores, caches = extend(COMPLETIONS[:, place], jnp.int32(place), np.repeat(lengths, 2), caches, prefix)
        assert_close(scores, expected[:, place + 1], 1e-5)


def test_a_tower_is_needed(case):
    config, params, _, prompts, lengths = case
    square = SquareQwen(config.sizes, None, grid=GRID, image_token=IMAGE)
    with pytest.raises(ValueError, match="vision: None"):
        square.apply(
            {"params": params}, jnp.zeros((2, SIDE, SIDE, 3)), *map(jnp.asarray, (prompts, lengths)), method="prefill"
        )
