"""Graph attention against a node-by-node float64 computation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles import reference_numpy as oracle
from oracles.quick_jit import quick_jit
from oracles.random_params import assert_close, declare, normal, randomise

from stepcot_jax.models.layers import GraphAttention, GraphAttentionStack, masked_softmax

CASES, NODES, WIDTH, HEADS, LAYERS = 3, 5, 8, 2, 2
STACK = GraphAttentionStack(num_layers=LAYERS, num_heads=HEADS, width=WIDTH, dropout_rate=0.25)
NODES_IN = normal(1, CASES, NODES, WIDTH)
PARAMS = randomise(declare(STACK, nodes=NODES_IN))
WEIGHTS = oracle.as_float64(PARAMS)


@pytest.fixture(scope="module")
def apply():
    """The stack under jit: (nodes, node_mask) -> nodes, attention [case, layer, head, i, j]."""

    @quick_jit
    def run(nodes, node_mask):
        out, attentions = STACK.apply({"params": PARAMS}, nodes, node_mask=node_mask)
        return out, jnp.stack(attentions, axis=-4)

    return run


def expect(nodes, *, masks=None, factors=None):
    masks = [None] * CASES if masks is None else masks
    factors = [None] * CASES if factors is None else factors
    pairs = [
        oracle.graph_attention_stack(np.float64(case), WEIGHTS, allowed=mask, factors=factor)
        for case, mask, factor in zip(nodes, masks, factors, strict=True)
    ]
    return np.stack([nodes for nodes, _ in pairs]), np.stack([attention for _, attention in pairs])


def test_stack_agrees_with_the_oracle(apply):
    mask = np.array([[True] * 5, [True, False, True, False, True], [False, False, False, True, False]])
    nodes, attention = apply(NODES_IN, mask)
    expected_nodes, expected_attention = expect(NODES_IN, masks=mask)
    assert_close(nodes, expected_nodes)
    assert_close(attention, expected_attention)
    assert expected_nodes.min() < -0.1  # ELU's negative branch occurs


def test_node_without_any_source_gets_the_bias_alone_and_finite_gradients():
    layer = GraphAttention(num_heads=HEADS, head_width=4)
    params, mask = PARAMS["attention_0"], jnp.zeros((CASES, NODES), bool)

    def total(params, nodes):
        out, attention = layer.apply({"params": params}, nodes, node_mask=mask)
        return jnp.sum(out**2), (out, attention)

    (_, (out, attention)), gradients = quick_jit(jax.value_and_grad(total, argnums=(0, 1), has_aux=True))(
        params, NODES_IN
    )
    assert_close(out, np.broadcast_to(params["bias"], out.shape), 0)
    assert not attention.any()
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradients))
    assert not gradients[1].any()


def test_dropout_scales_kept_attention_weights():
    """Of nodes that the cases share, which are projected once; the teacher's own test has nodes of each case."""
    keep = np.random.default_rng(3).random((CASES, LAYERS, HEADS, NODES, NODES)) < 0.75
    nodes = np.tile(NODES_IN[:1], (CASES, 1, 1))
    found = quick_jit(lambda nodes, keep: STACK.apply({"params": PARAMS}, nodes, keep=keep)[0])(nodes[0], keep)
    expected, _ = expect(nodes, factors=keep / 0.75)
    assert_close(found, expected)


def test_masked_softmax_is_a_softmax_over_what_is_allowed():
    allowed = np.array([[1] * 6, [1, 0, 1, 0, 0, 1], [0, 0, 0, 1, 0, 0], [0] * 6], bool)
    scores = normal(4, 4, 6)
    found = np.asarray(masked_softmax(jnp.asarray(scores), allowed=jnp.asarray(allowed)))
    for row, mask, values in zip(found, allowed, scores, strict=True):
        assert (row[~mask] == 0).all()
        if mask.any():
            assert_close(row[mask], oracle.softmax(np.float64(values[mask])))
    gradient = jax.grad(lambda x: jnp.sum(masked_softmax(x, allowed=jnp.asarray(allowed)) ** 2))(jnp.asarray(scores))
    assert np.isfinite(gradient).all()
    assert not np.asarray(gradient)[~allowed].any()
    assert np.abs(gradient).max() > 1e-3


@pytest.mark.parametrize(("layers", "heads", "width"), [(2, 3, 8), (0, 2, 8), (1, 0, 8)])
def test_sizes_that_do_not_fit_are_refused(layers, heads, width):
    with pytest.raises(ValueError, match=f"got {layers}, {heads} and {width}"):
        GraphAttentionStack(num_layers=layers, num_heads=heads, width=width)
