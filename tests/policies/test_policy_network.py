import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stepcot_jax.models.prefix_vlm import sinusoids
from stepcot_jax.policies.policy import PatchMap, start_coordinates
from stepcot_jax.policies.tokenizers import Vocabulary
from stepcot_jax.run.networks import make_policy
from stepcot_jax.run.settings import load_settings

SIZES = {"policy.grid": 2, "policy.encoder_widths": (8, 12), "policy.width": 16, "policy.num_layers": 1}


def settings(**more):
    return load_settings("base", job="grpo", **SIZES, **more)


def test_sizes_and_compute_dtype_come_from_the_settings_and_scores_stay_float32():
    policy = make_policy(settings(**{"training.compute_dtype": "bfloat16"}), num_words=11)
    assert policy.dtype == policy.encoder.dtype == jnp.bfloat16
    tokens = jnp.zeros((1, 3), jnp.int32)
    given = (jnp.zeros((1, 16, 16, 3)), tokens, jnp.array([3]), tokens)
    with jax.numpy_dtype_promotion("standard"):  # Flax's GroupNorm computes its sums in float32
        scores, made = jax.eval_shape(lambda: policy.init_with_output(jax.random.key(0), *given))
    assert (scores.shape, scores.dtype) == ((1, 3, 11), jnp.float32)
    shapes = {path: leaf.shape for path, leaf in flax.traverse_util.flatten_dict(made["params"], sep="/").items()}
    assert "decoder/layer_1/attention/query/kernel" not in shapes
    assert shapes.items() >= {
        "decoder/embedding/embedding": (11, 16), "cell_map/kernel": (12, 16), "rows": (2, 16),
        "image_encoder/Conv_0/kernel": (5, 5, 3, 8), "decoder/layer_0/attention/query/kernel": (16, 3, 32),
        "decoder/layer_0/attention/key/kernel": (16, 1, 32),
    }.items()  # fmt: skip


def test_coordinates_start_near_their_neighbours_and_words_stay_random():
    vocabulary = Vocabulary.count(["the lung [1, 2]"], largest=40)
    table = jax.random.normal(jax.random.key(1), (vocabulary.num_words, 16)) / 4
    params = {"rows": jnp.ones(3), "decoder": {"embedding": {"embedding": table}, "norm": jnp.ones(2)}}
    started = start_coordinates(params, vocabulary, largest=40)
    found = np.asarray(started["decoder"]["embedding"]["embedding"])
    tokens = np.array([vocabulary.encode(f", {number}") for number in range(41)])[:, 0]
    # Neighbours differ by the random shares, 0.3 * sqrt(2) of a vector of length 1, and by a small angle.
    near, far = (np.linalg.norm(found[tokens[step:]] - found[tokens[:-step]], axis=1).mean() for step in (1, 20))
    assert near < 0.8 * far
    words = [token for piece in ("the", " lung", "[") for token in vocabulary.encode(piece)]
    np.testing.assert_array_equal(found[words], np.asarray(table)[words])
    np.testing.assert_allclose(
        found[tokens] - 0.3 * np.asarray(table)[tokens],
        1.4 / 4 * np.asarray(sinusoids(jnp.arange(41, dtype=jnp.float32) / 40, 16)),
        atol=1e-5,
    )
    assert started["rows"] is params["rows"]
    assert started["decoder"]["norm"] is params["decoder"]["norm"]


@pytest.mark.parametrize("grid", [4, 3])
def test_patches_become_a_feature_map(grid):
    draws = np.random.default_rng(0)
    patches = draws.standard_normal((2, 16, 5)).astype(np.float32) * draws.uniform(0.1, 50, (2, 16, 1))
    scale = draws.uniform(0.5, 2, 5).astype(np.float32)
    found = PatchMap(grid).apply({"params": {"norm": {"scale": scale}}}, jnp.asarray(patches, jnp.float32))
    normed = patches / np.sqrt(np.mean(patches**2, axis=-1, keepdims=True) + 1e-6) * scale
    rows = normed.reshape(2, 4, 4, 5)
    for place, (row, column) in enumerate(np.ndindex(grid, grid)):
        # As PyTorch's adaptive pooling: from the floor of the cell's start to the ceiling of its end.
        top, left = row * 4 // grid, column * 4 // grid
        bottom, right = -(-(row + 1) * 4 // grid), -(-(column + 1) * 4 // grid)
        cell = rows[:, top:bottom, left:right].mean(axis=(1, 2))
        np.testing.assert_allclose(found[:, place * 5 : place * 5 + 5], cell, rtol=2e-5, atol=1e-5)
