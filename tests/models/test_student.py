import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles import reference_numpy as oracle
from oracles.quick_jit import quick_jit
from oracles.random_params import ANSWERS, assert_close, assert_logits, declare, normal, randomise

from stepcot_jax.models.student import Baseline, Student

IMAGES = normal(1, 4, 7)


def make(answers, **settings):
    student = Student(answers_per_step=answers, width=6, **settings)
    return student, randomise(declare(student, image_features=IMAGES, deterministic=True))


def read(student, params, images, given=None):
    given = None if given is None else jnp.asarray(given)
    return student.apply(
        {"params": params}, image_features=jnp.asarray(images), given_answers=given, deterministic=True
    )


@pytest.mark.parametrize("steps", [1, 7])
def test_student_agrees_with_the_oracle(steps):
    student, params = make(ANSWERS[steps])
    reading = quick_jit(read, static_argnums=0)(student, params, IMAGES)
    expected = oracle.student(oracle.as_float64(params), IMAGES)
    assert_logits(reading.logits, expected["logits"])
    assert_close(reading.image_features, expected["image_features"])


def test_on_a_gpu_the_chain_has_no_loop(monkeypatch):
    student, params = make(ANSWERS[7])
    program = jax.jit(lambda params: read(student, params, IMAGES).logits)
    assert "while" in program.lower(params).as_text()
    monkeypatch.setattr(jax, "devices", lambda: [types.SimpleNamespace(platform="gpu")])
    unrolled = jax.jit(lambda params: read(student, params, IMAGES).logits)
    assert "while" not in unrolled.lower(params).as_text()
    assert_logits(unrolled(params), oracle.student(oracle.as_float64(params), IMAGES)["logits"])


def given_to(counts, share=0.6):
    rng = np.random.default_rng(4)
    given = np.stack([rng.integers(0, count, len(IMAGES)) for count in counts], axis=1).astype(np.int32)
    return np.where(rng.random(given.shape) < share, given, -1).astype(np.int32)


def test_given_answers_take_the_place_of_the_logits_that_are_passed_on():
    student, params = make(ANSWERS[3])
    given = given_to(ANSWERS[3])
    read_given = quick_jit(lambda given: read(student, params, IMAGES, given).logits)
    found = read_given(given)
    assert_logits(found, oracle.student(oracle.as_float64(params), IMAGES, given)["logits"])
    assert_close(read_given(jax.nn.one_hot(given, max(ANSWERS[3]))), found, 1e-5)
    none = read_given(np.full_like(given, -1))
    assert_close(none, quick_jit(read, static_argnums=0)(student, params, IMAGES).logits, 1e-5)


def test_soft_answer_of_equal_shares_passes_on_nothing():
    student, params = make(ANSWERS[2])
    soft = np.zeros((len(IMAGES), 2, max(ANSWERS[2])), np.float32)
    soft[:, 0, : ANSWERS[2][0]] = 1 / ANSWERS[2][0]
    reading, head = read(student, params, IMAGES, soft), oracle.as_float64(params["head_1"])
    expected = oracle.linear(np.float64(reading.image_features), head)
    assert_close(reading.logits[:, 1, : ANSWERS[2][1]], expected, 1e-4)


def test_dropout_acts_on_the_image_projection_alone():
    student, params = make(ANSWERS[2], dropout_rate=0.5)
    read = quick_jit(
        lambda key: student.apply(
            {"params": params}, image_features=jnp.asarray(IMAGES), deterministic=False, rngs={"dropout": key}
        )
    )
    reading, plain = read(jax.random.key(0)), oracle.student(oracle.as_float64(params), IMAGES)["image_features"]
    ratio = np.asarray(reading.image_features)[plain > 1e-3] / plain[plain > 1e-3]
    assert {0.0, 2.0} == set(np.round(ratio, 4).tolist())
    # The chain after the projection has no dropout.
    feature, expected = np.float64(reading.image_features), []
    for step in range(2):
        head = oracle.as_float64(params[f"head_{step}"])
        expected.append(oracle.linear(feature, head))
        feature = feature + np.tanh(expected[-1] @ head["kernel"].T)
    assert_logits(reading.logits, expected)
    assert (read(jax.random.key(1)).logits != reading.logits).any()
    assert (read(jax.random.key(0)).logits == reading.logits).all()


def test_bfloat16_keeps_float32_parameters_and_logits():
    student = Student(answers_per_step=ANSWERS[3], width=6, dtype=jnp.bfloat16)
    with jax.numpy_dtype_promotion("standard"):  # Flax's LayerNorm promotes dtypes
        shapes = declare(student, image_features=IMAGES, deterministic=True)
        params = randomise(shapes)
        reading = quick_jit(read, static_argnums=0)(student, params, IMAGES)
    assert {leaf.dtype for leaf in jax.tree.leaves(shapes)} == {jnp.dtype(jnp.float32)}
    expected = oracle.student(oracle.as_float64(params), IMAGES)["logits"]
    assert_logits(reading.logits, expected, 0.1)
    assert np.abs(np.asarray(reading.logits)[:, 0, :3] - expected[0]).max() > 1e-4  # shows that it computed in bfloat16


def test_the_baselines_logits_are_those_of_the_equations():
    counts, text = (3, 2), normal(2, 2, 5)
    baseline = Baseline(answers_per_step=counts, hidden=7)
    params = randomise(declare(baseline, image_features=IMAGES, text_features=text))

    def apply(images, text):
        return baseline.apply({"params": params}, image_features=images, text_features=text)

    logits, weights = np.asarray(quick_jit(apply)(IMAGES, text)), oracle.as_float64(params)
    for case, image in enumerate(np.float64(IMAGES)):
        for step, num_answers in enumerate(counts):
            hidden = oracle.relu(oracle.linear(np.concatenate([image, text[step]]), weights["hidden"]))
            expected = oracle.linear(hidden, weights[f"head_{step}"])
            np.testing.assert_allclose(logits[case, step, :num_answers], expected, rtol=2e-5, atol=2e-5)
    with pytest.raises(ValueError, match=r"must have shape \[2, width\]"):
        apply(jnp.asarray(IMAGES), jnp.asarray(text[:1]))
