"""Attention over own slots and a shared prefix against a loop in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles.random_params import assert_close, normal

from stepcot_jax.models.decoder import KeyValues, Prefix, attend

CASES, EACH, TOKENS, SLOTS, SHARED, GROUP, WIDTH = 2, 3, 4, 5, 6, 3, 4


def make(num_kv, tokens=TOKENS):
    rollouts, rng = CASES * EACH, np.random.default_rng(0)
    queries = normal(1, rollouts, tokens, num_kv * GROUP, WIDTH)
    own, shared = (
        KeyValues(*(normal(seed + place, *shape, num_kv * WIDTH) for place in (0, 1)))
        for seed, shape in ((2, (rollouts, SLOTS)), (4, (CASES, SHARED)))
    )
    visible = rng.random((rollouts, tokens, SLOTS)) < 0.5
    visible[:, :, 0] = True
    is_real = np.arange(SHARED)[None] < np.array([[2], [SHARED]])
    return queries, own, visible, Prefix(shared, is_real)


def oracle(queries, own, visible, prefix):
    found = np.zeros(queries.shape)
    num_kv = own.keys.shape[-1] // WIDTH
    for rollout, token, head in np.ndindex(queries.shape[:3]):
        kv = slice(head // (queries.shape[2] // num_kv) * WIDTH, (head // (queries.shape[2] // num_kv) + 1) * WIDTH)
        keys, values = (each[rollout][visible[rollout, token]][:, kv] for each in own)
        if prefix is not None:
            case = rollout // EACH
            shared = [each[case][prefix.is_real[case]][:, kv] for each in prefix.layer]
            keys, values = np.concatenate([keys, shared[0]]), np.concatenate([values, shared[1]])
        scores = keys.astype(np.float64) @ queries[rollout, token, head] / np.sqrt(WIDTH)
        weights = np.exp(scores - scores.max())
        found[rollout, token, head] = weights @ values / weights.sum()
    return found


@pytest.mark.parametrize(
    ("num_kv", "has_prefix", "tokens"), [(1, True, 1), (2, True, TOKENS), (1, True, TOKENS), (2, False, TOKENS)]
)
def test_attention_agrees_with_the_oracle(num_kv, has_prefix, tokens):
    queries, own, visible, prefix = make(num_kv, tokens)
    prefix = prefix if has_prefix else None
    found = jax.jit(attend)(
        jnp.asarray(queries), **jax.tree.map(jnp.asarray, {"kv": own, "visible": visible, "prefix": prefix})
    )
    assert_close(found, oracle(queries, own, visible, prefix), 2e-6)


def test_what_a_token_does_not_see_reaches_neither_output_nor_gradient():
    queries, own, visible, prefix = jax.tree.map(jnp.asarray, make(1))
    visible = visible.at[:, :, 3].set(False)

    def run(size):
        spoiled = KeyValues(*(each.at[:, 3].set(size) for each in own))
        hidden = jnp.where(prefix.is_real[:, :, None], 0.0, size)
        layer = KeyValues(*(each + hidden for each in prefix.layer))

        def loss(queries):
            out = attend(queries, kv=spoiled, visible=visible, prefix=Prefix(layer, prefix.is_real))
            return jnp.sum(jnp.square(out)), out

        return jax.jit(jax.grad(loss, has_aux=True))(queries)

    for one, two in zip(run(0.0), run(1e3), strict=True):
        assert np.abs(one).max() > 1e-2
        np.testing.assert_array_equal(one, two)
