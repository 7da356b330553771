import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles.random_params import ANSWERS, assert_close, declare, normal, randomise

from stepcot_jax.models.teacher import Teacher
from stepcot_jax.reading.programs import join_heads, split_heads

IMAGES, TEXT, WIDTH = normal(1, 1, 5), normal(2, 3, 8), 8
INPUTS = {"image_features": jnp.asarray(IMAGES), "text_features": jnp.asarray(TEXT), "deterministic": True}


@pytest.mark.slow
def test_split_heads_read_the_same_and_are_not_copied():
    def make(unroll):
        return Teacher(answers_per_step=ANSWERS[3], width=WIDTH, num_layers=1, num_heads=2, unroll=unroll)

    params = randomise(declare(make(False), image_features=IMAGES, text_features=TEXT, deterministic=True))
    split = split_heads(params)
    assert len(split["heads"]) == 3
    np.testing.assert_array_equal(
        split["heads"][2]["fusion_1"]["norm"]["scale"], params["heads"]["fusion_1"]["norm"]["scale"][2]
    )

    def read(module, tree):
        reading = module.apply({"params": tree}, **INPUTS)
        return reading.logits, reading.memory

    program = jax.jit(lambda tree: read(make(True), join_heads(tree))).lower(split).compile()
    stacked = jax.jit(lambda tree: read(make(False), tree)).lower(params).compile()
    for found, expected in zip(program(split), stacked(params), strict=True):
        assert_close(found, expected)
    # Kernels of one step are [16, 8] and [8, 8]; a stack of three in the program would be a copy.
    assert "f32[3,16,8]" not in program.as_text()
    assert "f32[3,16,8]" in stacked.as_text()
