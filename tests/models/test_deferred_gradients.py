import types

import flax.linen as nn
import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
import pytest
from oracles.quick_jit import quick_jit
from oracles.random_params import assert_close, normal

from stepcot_jax.models.deferred_gradients import scan_steps

STEPS, CASES, WIDTH = 3, 4, 5


class Mix(nn.Module):
    """Two linear layers, one without a bias, on rows with an extra axis."""

    @nn.compact
    def __call__(self, values):
        hidden = nn.Dense(7, name="first")(values)
        return nn.Dense(WIDTH, use_bias=False, name="second")(jnp.tanh(hidden))


def step(params, carry, inputs):
    mixed = Mix().apply({"params": params["mix"]}, carry * jnp.broadcast_to(params["scale"], carry.shape))
    own = nn.Dense(WIDTH, parent=None).apply({"params": inputs["own"]}, mixed)
    carry = jnp.sin(own) + jnp.broadcast_to(inputs["bump"][:, None] * inputs["number"].astype(own.dtype), own.shape)
    return carry, {"sum": carry.sum(axis=1), "mixed": mixed}


PARAMS = {
    "mix": {
        "first": {"kernel": normal(1, WIDTH, 7) / 3, "bias": normal(2, 7)},
        "second": {"kernel": normal(3, 7, WIDTH) / 3},
    },
    "scale": normal(4, WIDTH),
    "mask": None,
    "flags": np.array([True, False]),
}
CARRY = normal(5, CASES, 2, WIDTH)
INPUTS = {
    "own": {"kernel": normal(6, STEPS, WIDTH, WIDTH) / 3, "bias": normal(7, STEPS, WIDTH)},
    "bump": normal(8, STEPS, CASES, WIDTH),
    "number": np.arange(STEPS),
}


def plain(step, params, carry, inputs):
    return jax.lax.scan(lambda carry, one: step(params, carry, one), carry, inputs)


def gradients(scan, carry=CARRY):
    def loss(params, carry, inputs):
        last, outputs = scan(step, params, carry, inputs)
        total = (last**2).mean() + jnp.cos(outputs["sum"]).mean() + jnp.sin(outputs["mixed"]).mean()
        return total, (last, outputs)

    return jax.grad(loss, argnums=(0, 1, 2), allow_int=True, has_aux=True)(PARAMS, carry, INPUTS)


def assert_same_floats(found, expected, tolerance=2e-5):
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        if jnp.issubdtype(theirs.dtype, jnp.floating):
            assert ours.dtype == theirs.dtype
            assert_close(ours, theirs, tolerance)


def test_values_and_gradients_are_those_of_the_plain_scan():
    expected = quick_jit(lambda: gradients(plain))()
    assert np.abs(expected[0][0]["mix"]["second"]["kernel"]).min() > 0
    assert_same_floats(quick_jit(lambda: gradients(scan_steps))(), expected)


def test_on_a_gpu_the_chain_has_no_loop_and_the_same_gradients(monkeypatch):
    expected = quick_jit(lambda: gradients(plain))()
    monkeypatch.setattr(jax, "devices", lambda: [types.SimpleNamespace(platform="gpu")])
    unrolled = jax.jit(lambda: gradients(scan_steps))
    assert "while" not in unrolled.lower().as_text()
    assert_same_floats(unrolled(), expected)


def test_gradients_under_vmap_are_those_of_each_row():
    carries = np.stack([CARRY, 2 * CARRY])
    found = quick_jit(jax.vmap(lambda carry: gradients(scan_steps, carry)[0][0]["mix"]))(carries)
    alone = quick_jit(lambda carry: gradients(plain, carry)[0][0]["mix"])
    for row, carry in enumerate(carries):
        assert_same_floats(jax.tree.map(lambda leaf, row=row: leaf[row], found), alone(carry))


def carried_shapes(jaxpr):
    for equation in jaxpr.eqns:
        if equation.primitive.name == "scan":
            body = equation.params["jaxpr"].jaxpr  # its carry has the shape of a result, unlike what it stacks
            yield from (
                found.aval.shape
                for inner, found in zip(body.outvars, equation.outvars, strict=True)
                if inner.aval.shape == found.aval.shape
            )
        for inner in jax.extend.core.jaxprs_in_params(equation.params):
            yield from carried_shapes(inner)


def test_kernel_gradients_are_not_summed_from_step_to_step():
    programs = {scan: jax.make_jaxpr(lambda scan=scan: gradients(scan)[0][0])() for scan in (plain, scan_steps)}
    shapes = {scan: set(carried_shapes(program.jaxpr)) for scan, program in programs.items()}
    assert {(WIDTH, 7), (7, WIDTH)} <= shapes[plain]
    assert not {(WIDTH, 7), (7, WIDTH)} & shapes[scan_steps]
    assert (7,) in shapes[scan_steps]


def test_bfloat16_layers_sum_in_float32():
    class Low(nn.Module):
        @nn.compact
        def __call__(self, values):
            return nn.Dense(WIDTH, dtype=jnp.bfloat16, name="only")(values)

    params = {"only": {"kernel": normal(1, WIDTH, WIDTH), "bias": normal(2, WIDTH)}}

    def low(params, carry, one):
        return carry, Low().apply({"params": params}, carry.astype(jnp.bfloat16)) + one.astype(jnp.bfloat16)

    steps = np.ones(64, np.float32)

    def loss(params):
        return scan_steps(low, params, CARRY[:, 0], steps)[1].astype(jnp.float32).sum()

    found = quick_jit(jax.grad(loss))(params)["only"]["kernel"]
    expected = np.asarray(jnp.asarray(CARRY[:, 0]).astype(jnp.bfloat16), np.float32).sum(0)[:, None] * 64
    assert found.dtype == jnp.float32
    assert_close(found, np.broadcast_to(expected, found.shape), 1e-3)


def test_a_kernel_used_twice_is_refused():
    def twice(params, carry, one):
        apply = nn.Dense(WIDTH, parent=None).apply
        return apply({"params": params}, apply({"params": params}, carry)), one

    params = {"kernel": normal(1, WIDTH, WIDTH), "bias": normal(2, WIDTH)}
    with pytest.raises(ValueError, match="used twice"):
        scan_steps(twice, params, CARRY, np.zeros(2, np.float32))
