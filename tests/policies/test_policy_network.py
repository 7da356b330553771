"""The network that settings describe, and its input from bytes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stepcot_jax.data.images.preprocessing import Preprocessing
from stepcot_jax.data.images.preprocessing import normalise as normalise_on_host
from stepcot_jax.policies.policy_network import make_policy, normalise, rotary_sections
from stepcot_jax.settings.run_settings import load_settings

SIZES = {"policy.grid": 2, "policy.encoder_widths": (8, 12), "policy.width": 16, "policy.num_layers": 1}


def settings(**more):
    return load_settings("base", job="grpo", **SIZES, **more)


def shapes_of(policy, num_words):
    tokens = jnp.zeros((1, 3), jnp.int32)
    made = jax.eval_shape(
        lambda: policy.init(jax.random.key(0), jnp.zeros((1, 16, 16, 3)), tokens, jnp.array([3]), tokens)
    )["params"]
    scores = jax.eval_shape(
        lambda params: policy.apply({"params": params}, jnp.zeros((1, 16, 16, 3)), tokens, jnp.array([3]), tokens), made
    )
    assert scores.shape == (1, 3, num_words)
    return made


def test_sizes_come_from_the_settings():
    made = shapes_of(make_policy(settings(), num_words=11), 11)
    assert made["decoder"]["embedding"]["embedding"].shape == (11, 16)
    assert made["cell_map"]["kernel"].shape == (12, 16)
    assert made["rows"].shape == (2, 16)
    assert made["image_encoder"]["Conv_0"]["kernel"].shape == (5, 5, 3, 8)
    assert {name for name in made["decoder"] if name.startswith("layer")} == {"layer_0"}
    heads = made["decoder"]["layer_0"]["attention"]
    assert heads["query"]["kernel"].shape == (16, 3, 32)
    assert heads["key"]["kernel"].shape == (16, 1, 32)


def test_the_compute_dtype_is_the_settings_and_scores_stay_float32():
    policy = make_policy(settings(**{"training.compute_dtype": "bfloat16"}), num_words=7)
    assert policy.dtype == policy.encoder.dtype == jnp.bfloat16
    with jax.numpy_dtype_promotion("standard"):  # Flax's GroupNorm computes its sums in float32
        shapes_of(policy, 7)


@pytest.mark.parametrize(("width", "expected"), [(2, (1, 0, 0)), (4, (0, 1, 1)), (6, (1, 1, 1)), (32, (4, 6, 6))])
def test_sections_add_up_to_half_a_head(width, expected):
    assert rotary_sections(width) == expected


def test_pictures_are_normalised_as_on_the_host():
    pixels = np.random.default_rng(0).integers(0, 256, (2, 5, 5, 3)).astype(np.uint8)
    of = settings().image_encoder
    expected = normalise_on_host(pixels, Preprocessing(size=5, mean=of.mean, std=of.std))
    np.testing.assert_allclose(jax.jit(lambda each: normalise(each, settings()))(pixels), expected, rtol=0, atol=1e-6)
