import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles.quick_jit import quick_jit
from oracles.random_params import ANSWERS, assert_close, declare, normal, randomise

from stepcot_jax.models import teacher_reference
from stepcot_jax.models.teacher import Teacher
from stepcot_jax.reading.programs import join_heads, split_heads

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


@pytest.mark.slow
def test_split_heads_read_the_same_and_are_not_copied():
    def make(unroll):
        return Teacher(answers_per_step=ANSWERS[3], width=WIDTH, num_layers=1, num_heads=2, unroll=unroll)

    arrays = {"image_features": jnp.asarray(IMAGES[:1]), "text_features": jnp.asarray(normal(2, 3, WIDTH))}
    inputs = arrays | {"deterministic": True}
    params = randomise(declare(make(False), **inputs))
    split = split_heads(params)
    assert len(split["heads"]) == 3
    np.testing.assert_array_equal(
        split["heads"][2]["fusion_1"]["norm"]["scale"], params["heads"]["fusion_1"]["norm"]["scale"][2]
    )

    def read(module, tree):
        reading = module.apply({"params": tree}, **inputs)
        return reading.logits, reading.memory

    program = jax.jit(lambda tree: read(make(True), join_heads(tree))).lower(split).compile()
    stacked = jax.jit(lambda tree: read(make(False), tree)).lower(params).compile()
    for found, expected in zip(program(split), stacked(params), strict=True):
        assert_close(found, expected)
    # Kernels of one step are [16, 8] and [8, 8]; a stack of three in the program would be a copy.
    assert "f32[3,16,8]" not in program.as_text()
    assert "f32[3,16,8]" in stacked.as_text()
