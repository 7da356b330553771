"""The yardstick of the compile benchmark reads as our teacher does."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles.random_params import assert_close, assert_logits, declare, normal, randomise

from benchmarks.plain import PlainTeacher
from stepcot_jax.models.teacher import Teacher

ANSWERS, WIDTH, HEADS = (4, 3, 5), 8, 2
INPUTS = {"image_features": jnp.asarray(normal(1, 4, 6)), "text_features": jnp.asarray(normal(2, 3, WIDTH))}


def block(params):
    return {"Dense_0": params["linear"], "LayerNorm_0": params["norm"]}


def as_plain(params):
    """Our parameters under the plain teacher's names."""
    steps = {}
    for step in range(len(ANSWERS)):
        own = jax.tree.map(
            lambda leaf, step=step: leaf[step], {**params["heads"], "image": params["image_projections"]}
        )
        steps[f"step_{step}"] = {
            "Block_0": block(own["image"]),
            "Block_1": block(own["fusion_0"]),
            "Block_2": block(own["fusion_1"]),
            "Dense_0": params[f"classifier_{step}"],
        }
    return {
        "GraphAttentionStack_0": params["graph_attention"],
        "Block_0": block(params["context"]),
        "Dense_0": params["conclusion"],
        "MemoryCell_0": params["memory_cell"],
        "memory_start": params["memory_start"],
        **steps,
    }


@pytest.mark.slow
def test_plain_teacher_reads_as_ours():
    ours, plain = Teacher(ANSWERS, width=WIDTH, num_heads=HEADS), PlainTeacher(ANSWERS, width=WIDTH, num_heads=HEADS)
    params = randomise(declare(ours, **INPUTS, deterministic=True))
    read = [jax.jit(lambda params, own=own: own.apply({"params": params}, **INPUTS, deterministic=True))
            for own in (ours, plain)]  # fmt: skip
    expected, found = read[0](params), read[1](as_plain(params))
    assert_logits(found.logits, [np.asarray(expected.logits)[:, s, :n] for s, n in enumerate(ANSWERS)], 2e-5)
    assert_close(found.image_features, expected.image_features, 2e-5)
