"""The teacher without write-back: the memory node stays constant and no answer reaches a later step."""

import numpy as np
import pytest
from oracles.quick_jit import quick_jit
from oracles.random_params import declare, normal, randomise

from stepcot_jax.models.teacher import Teacher

COUNTS = (3, 2, 4)
IMAGES, TEXT = normal(1, 4, 6), normal(2, 3, 8)


def make(**settings):
    return Teacher(answers_per_step=COUNTS, width=8, num_layers=1, num_heads=2, **settings)


def shapes(teacher):
    return declare(teacher, image_features=IMAGES, text_features=TEXT, deterministic=True)


@pytest.fixture(scope="module")
def readings():
    """Outputs of both teachers with the same parameters, without and with given answers."""
    full = randomise(shapes(make()))
    found = {}
    for name, teacher in (("with", make()), ("without", make(write_back=False))):
        params = {key: full[key] for key in shapes(teacher)}
        run = quick_jit(
            lambda params, images, text, given, teacher=teacher: teacher.apply(
                {"params": params}, image_features=images, text_features=text, given_answers=given, deterministic=True
            )
        )
        for label, given in (("none", -1), ("given", 1)):
            found[name, label] = run(params, IMAGES, TEXT, np.full((4, 3), given, np.int32))
    return found


def test_no_write_back_has_a_memory_and_no_cell():
    assert set(shapes(make())) - set(shapes(make(write_back=False))) == {"memory_cell", "conclusion"}
    without_memory = shapes(make(memory=False))
    assert "memory_start" not in without_memory
    # Every step still reads its node and the memory: the context takes two vectors.
    assert shapes(make(write_back=False))["context"]["linear"]["kernel"].shape == (16, 8)
    assert without_memory["context"]["linear"]["kernel"].shape == (8, 8)


@pytest.mark.slow
def test_given_answers_reach_later_steps_only_where_they_are_written_back(readings):
    moved = {
        name: np.abs(readings[name, "given"].logits - readings[name, "none"].logits)[:, :, :2].max(axis=(0, 2))
        for name in ("with", "without")
    }
    assert moved["with"][0] == 0
    assert (moved["with"][1:] > 1e-4).all()
    assert moved["without"].max() == 0


def test_the_first_answers_agree_and_the_memory_does_not(readings):
    with_it, without = readings["with", "none"], readings["without", "none"]
    np.testing.assert_allclose(with_it.logits[:, 0], without.logits[:, 0], rtol=1e-5, atol=1e-5)
    assert np.abs(with_it.memory[:, 0] - without.memory[:, 0]).max() > 1e-3
