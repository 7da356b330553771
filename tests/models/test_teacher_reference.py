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
def test_the_reference_gives_the_teachers_logits_and_gradients():
    """Prompts of each case, of another width than the nodes; a test of the teacher covers those that cases share."""
    counts, text = ANSWERS[3], normal(2, CASES, 3, 6)
    module = Teacher(answers_per_step=counts, width=WIDTH, num_heads=2, num_layers=2)
    inputs = {"image_features": IMAGES, "text_features": text}
    params = randomise(declare(module, **inputs, deterministic=True), seed=3)
    inputs = jax.tree.map(jnp.asarray, inputs)

    def fast(params):
        logits = module.apply({"params": params}, **inputs, deterministic=True).logits
        return tuple(logits[:, step, :number] for step, number in enumerate(counts))

    def reference(params):
        return teacher_reference.apply({"params": params}, **inputs)

    def run(read):
        def total(params):
            logits = read(params)
            return sum(jnp.sum(jnp.sin(one)) for one in logits), logits

        return quick_jit(jax.grad(total, has_aux=True))(params)

    (gradients, found), (wanted, expected) = run(reference), run(fast)
    assert [logits.shape for logits in found] == [(CASES, number) for number in counts]
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-5)
        assert float(jnp.std(theirs)) > 0.05
    for (path, ours), other in zip(
        jax.tree_util.tree_leaves_with_path(gradients), jax.tree.leaves(wanted), strict=True
    ):
        scale = max(float(np.abs(other).max()), 0.05)
        assert np.abs(np.asarray(ours) - np.asarray(other)).max() <= 2e-4 * scale, jax.tree_util.keystr(path)
