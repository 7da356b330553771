"""The teacher without write-back: the memory node stays constant and no answer reaches a later step."""

import jax.numpy as jnp
import numpy as np
from oracles.quick_jit import quick_jit
from oracles.random_params import declare, normal, randomise

from stepcot_jax.models.teacher import Teacher

COUNTS = (3, 2, 4)
IMAGES, TEXT = normal(1, 4, 6), normal(2, 3, 8)


def make(**settings):
    return Teacher(answers_per_step=COUNTS, width=8, num_layers=1, num_heads=2, **settings)


def shapes(teacher):
    return declare(teacher, image_features=IMAGES, text_features=TEXT, deterministic=True)


def test_no_write_back_has_a_memory_and_no_cell():
    assert set(shapes(make())) - set(shapes(make(write_back=False))) == {"memory_cell", "conclusion"}
    without_memory = shapes(make(memory=False))
    assert "memory_start" not in without_memory
    # Every step still reads its node and the memory: the context takes two vectors.
    assert shapes(make(write_back=False))["context"]["linear"]["kernel"].shape == (16, 8)
    assert without_memory["context"]["linear"]["kernel"].shape == (8, 8)


def test_without_write_back_no_answer_reaches_a_later_step():
    teacher = make(write_back=False)
    params = randomise(shapes(teacher))
    inputs = {"image_features": jnp.asarray(IMAGES), "text_features": jnp.asarray(TEXT)}
    read = quick_jit(
        lambda given: teacher.apply({"params": params}, **inputs, given_answers=given, deterministic=True).logits
    )
    none, given = (np.asarray(read(np.full((4, 3), answer, np.int32))) for answer in (-1, 1))
    np.testing.assert_array_equal(none, given)
    assert np.abs(none[:, :, :2]).max() > 1e-3
