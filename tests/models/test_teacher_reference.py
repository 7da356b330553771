"""The reference in the paper's order gives the fast teacher's numbers on random weights, and the same gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles.quick_jit import quick_jit
from oracles.random_params import ANSWERS, declare, normal, randomise

from stepcot_jax.models import teacher_reference
from stepcot_jax.models.teacher import Teacher

CASES, WIDTH = 4, 8
IMAGES = normal(1, CASES, 5)


@pytest.mark.slow
@pytest.mark.parametrize(("steps", "text_width", "shared"), [(7, WIDTH, True), (3, WIDTH, False), (2, 6, True)])
def test_the_reference_gives_the_teachers_logits_and_gradients(steps, text_width, shared):
    counts = ANSWERS[steps]
    text = normal(2, *(() if shared else (CASES,)), steps, text_width)
    module = Teacher(answers_per_step=counts, width=WIDTH, num_heads=2, num_layers=2)
    inputs = {"image_features": IMAGES, "text_features": text}
    params = randomise(declare(module, **inputs, deterministic=True), seed=steps)
    inputs = jax.tree.map(jnp.asarray, inputs)

    def fast(params):
        logits = module.apply({"params": params}, **inputs, deterministic=True).logits
        return tuple(logits[:, step, :number] for step, number in enumerate(counts))

    def reference(params):
        return teacher_reference.apply({"params": params}, **inputs)

    found, expected = quick_jit(reference)(params), quick_jit(fast)(params)
    assert [logits.shape for logits in found] == [(CASES, number) for number in counts]
    for ours, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=2e-5, atol=2e-5)
        assert float(jnp.std(wanted)) > 0.05

    def total(read):
        return lambda params: sum(jnp.sum(jnp.sin(logits)) for logits in read(params))

    gradients, wanted = (quick_jit(jax.grad(total(read)))(params) for read in (reference, fast))
    for (path, ours), other in zip(
        jax.tree_util.tree_leaves_with_path(gradients), jax.tree.leaves(wanted), strict=True
    ):
        scale = max(float(np.abs(other).max()), 0.05)
        assert np.abs(np.asarray(ours) - np.asarray(other)).max() <= 2e-4 * scale, jax.tree_util.keystr(path)
