"""Layers: graph attention and the memory's cell against float64 computations, projections, and dropout masks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles import reference_numpy as oracle
from oracles.quick_jit import quick_jit
from oracles.random_params import assert_close, declare, normal, randomise

from stepcot_jax.models import layers

CASES, NODES, WIDTH, HEADS, LAYERS = 3, 5, 8, 2, 2
STACK = layers.GraphAttentionStack(num_layers=LAYERS, num_heads=HEADS, width=WIDTH, dropout_rate=0.25)
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
    layer = layers.GraphAttention(num_heads=HEADS, head_width=4)
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
    found = np.asarray(layers.masked_softmax(jnp.asarray(scores), allowed=jnp.asarray(allowed)))
    for row, mask, values in zip(found, allowed, scores, strict=True):
        assert (row[~mask] == 0).all()
        if mask.any():
            assert_close(row[mask], oracle.softmax(np.float64(values[mask])))
    gradient = jax.grad(lambda x: jnp.sum(layers.masked_softmax(x, allowed=jnp.asarray(allowed)) ** 2))(
        jnp.asarray(scores)
    )
    assert np.isfinite(gradient).all()
    assert not np.asarray(gradient)[~allowed].any()
    assert np.abs(gradient).max() > 1e-3


# The memory.

CONCLUSION, MEMORY = normal(1, 4, 6), normal(2, 4, 6)
CELL = randomise(declare(layers.MemoryCell(), conclusion=CONCLUSION, memory=MEMORY))


def run_cell():
    return layers.MemoryCell().apply({"params": CELL}, jnp.asarray(CONCLUSION), jnp.asarray(MEMORY))


def test_cell_agrees_with_the_oracle():
    assert_close(run_cell(), oracle.gru_cell(np.float64(CONCLUSION), np.float64(MEMORY), oracle.as_float64(CELL)))


def test_cell_agrees_with_torch():
    torch = pytest.importorskip("torch")
    cell = torch.nn.GRUCell(6, 6)
    ours = {"weight_ih": "input", "weight_hh": "hidden", "bias_ih": "input", "bias_hh": "hidden"}
    with torch.no_grad():
        for name, part in ours.items():
            value = CELL[part]["kernel"].T if name.startswith("weight") else CELL[part]["bias"]
            getattr(cell, name).copy_(torch.tensor(np.asarray(value)))
        expected = cell(torch.tensor(CONCLUSION), torch.tensor(MEMORY)).numpy()
    assert_close(run_cell(), expected)


# Projections.

FEATURES = normal(1, 4, 5)
PROJECTION = layers.Projection(width=6, dropout_rate=0.5)
OF_PROJECTION = randomise(declare(PROJECTION, features=FEATURES))


def test_projection_agrees_with_the_oracle():
    expected = oracle.block(np.float64(FEATURES), oracle.as_float64(OF_PROJECTION))
    assert_close(PROJECTION.apply({"params": OF_PROJECTION}, jnp.asarray(FEATURES)), expected)
    assert (expected == 0).any()
    keep = np.random.default_rng(2).random((4, 6)) < 0.5
    assert_close(
        PROJECTION.apply({"params": OF_PROJECTION}, jnp.asarray(FEATURES), jnp.asarray(keep)), expected * keep / 0.5
    )


def test_norm_has_torchs_epsilon_and_rows_far_from_zero_do_not_cancel():
    rows = np.array([[0.001, -0.001]], np.float32)
    found = layers.layer_norm(dtype=jnp.float32).apply({"params": {"scale": jnp.ones(2), "bias": jnp.zeros(2)}}, rows)
    assert_close(found, rows / np.sqrt(1e-6 + 1e-5), 1e-6)
    rows = normal(3, 2, 64) + np.float32(3000.0)
    params = {"scale": jnp.ones(64), "bias": jnp.zeros(64)}
    expected = oracle.layer_norm(np.float64(rows), oracle.as_float64(params))
    assert_close(layers.layer_norm(dtype=jnp.float32).apply({"params": params}, rows), expected, 1e-3)


# Dropout: masks drawn ahead.

SITES = {"a": ((50,), 0.3), "b": ((5, 10), 0.1), "none": ((20,), 0.0), "all": ((20,), 1.0)}
DRAWN = jnp.arange(10)


@pytest.fixture(scope="module")
def keeps():
    return jax.tree.map(np.asarray, layers.draw_keeps(jax.random.key(3), cases=DRAWN, leading=(20,), sites=SITES))


def test_share_that_is_dropped_is_the_rate(keeps):
    for name, (_, rate) in SITES.items():
        spread = 4 * np.sqrt(rate * (1 - rate) / keeps[name].size)
        assert abs((~keeps[name]).mean() - rate) <= spread, name


def test_masks_are_a_function_of_the_key_and_belong_to_the_case_wherever_it_lies(keeps):
    other = layers.draw_keeps(jax.random.key(4), cases=DRAWN, leading=(20,), sites=SITES)
    assert (other["a"] != keeps["a"]).mean() > 0.3
    part = layers.draw_keeps(jax.random.key(3), cases=jnp.array([4, 5, 6]), leading=(20,), sites=SITES)
    for name, keep in part.items():
        np.testing.assert_array_equal(keep, keeps[name][:, 4:7])
    rows = np.concatenate([keeps["a"], keeps["b"].reshape(20, 10, 50)], axis=0).reshape(-1, 50)
    assert len(np.unique(rows, axis=0)) > 0.95 * len(rows)  # they differ by site, step and case


def test_expectation_is_preserved_and_rate_one_gives_zeros_and_finite_gradients(keeps):
    values = jnp.broadcast_to(jnp.asarray(1 + np.abs(normal(5, 50))), (20, 10, 50))
    dropped = layers.drop(values, keep=jnp.asarray(keeps["a"]), rate=0.3)
    assert abs(float(dropped.mean() / values.mean()) - 1) < 0.03
    kept = np.asarray(dropped)[keeps["a"]]
    np.testing.assert_allclose(kept, np.asarray(values)[keeps["a"]] / 0.7, rtol=1e-6)
    assert not np.asarray(dropped)[~keeps["a"]].any()
    values, keep = jnp.asarray(normal(7, 4)), jnp.array([False, False, False, True])
    gradient = jax.grad(lambda x: jnp.sum(layers.drop(x, keep=keep, rate=1.0)))(values)
    assert not layers.drop(values, keep=keep, rate=1.0).any()
    assert not gradient.any()
