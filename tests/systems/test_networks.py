import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles.quick_jit import quick_jit
from oracles.random_params import normal, randomise

from stepcot_jax.chain import Chain, Step
from stepcot_jax.evaluation.chains import evaluate
from stepcot_jax.evaluation.predictions import Predictions
from stepcot_jax.models.student import Student
from stepcot_jax.models.teacher import Teacher
from stepcot_jax.run.training_run import RUNS_ONCE
from stepcot_jax.systems.networks import Networks, init_params, make_read_given
from stepcot_jax.systems.step_cot import StepCoT
from stepcot_jax.systems.updates import AnswerSchedule

CHAIN = Chain((Step("A", "A?", ("one", "two")), Step("B", "B?", ("up", "down", "off")), Step("C", "C?", ("yes", "no"))))
COUNTS, CASES = CHAIN.answers_per_step, 5
FEATURES, TEXT = normal(1, CASES, 6), jnp.asarray(normal(2, 3, 8))
TEACHER = Teacher(answers_per_step=COUNTS, width=8, num_layers=1, num_heads=2)
STUDENT = Student(answers_per_step=COUNTS, width=8)
LABELS = np.array([[0, 1, 0], [1, -100, 1], [0, 2, -100], [1, 0, 0], [0, 0, 1]], np.int32)


@pytest.fixture(scope="module")
def params():
    networks = Networks(teacher=TEACHER, student=STUDENT, projection_width=4)
    batch = {"image_features": FEATURES}
    shapes = jax.eval_shape(lambda: init_params(networks, key=jax.random.key(0), batch=batch, text_features=TEXT))
    return randomise(shapes)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["teacher", "student"])
def test_variants_are_read_as_one_by_one(params, name):
    rng = np.random.default_rng(0)
    labels = np.stack([rng.integers(-1, count, (4, CASES)) for count in COUNTS], axis=-1)
    given = (labels[..., None] == np.arange(3)).astype(np.float32)
    given[0, 0, 1] = [0.7, 0.2, 0.1]  # a soft answer
    networks = Networks(teacher=TEACHER, student=STUDENT, projection_width=4)
    found = make_read_given(networks, name, params, FEATURES, TEXT, num_at_once=7)(given)
    module, more = (TEACHER, {"text_features": TEXT}) if name == "teacher" else (STUDENT, {})
    inputs = {"image_features": jnp.asarray(FEATURES), "deterministic": True, **more}
    read = quick_jit(lambda variant: module.apply({"params": params[name]}, given_answers=variant, **inputs).logits)
    for variant, expected in zip(given, found, strict=True):
        np.testing.assert_allclose(read(variant), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_score_of_training_with_given_answers_is_the_mean_of_both_accuracies(params):
    batch = {"image_features": jnp.asarray(FEATURES), "labels": jnp.asarray(LABELS), "text_features": TEXT}
    scores = {}
    for rate in (None, 0.5):
        system = StepCoT(CHAIN, teacher=TEACHER, student=STUDENT, given=AnswerSchedule(rate))
        logits = {name: np.asarray(own) for name, own in system.predict(params, batch).items()}
        found = Predictions(index=np.arange(CASES, dtype=np.int32), labels=LABELS, logits=logits)
        scores[rate] = system.evaluate(found)
        assert set(scores[rate]) == {"teacher", "student"}
    given = {name.removesuffix(" given"): own for name, own in logits.items() if name.endswith(" given")}
    read = make_read_given(system.networks, "teacher", params, FEATURES, TEXT)
    np.testing.assert_allclose(
        given["teacher"], read((LABELS[None, ..., None] == np.arange(3)).astype(np.float32))[0], atol=1e-5
    )
    with_given = evaluate(dataclasses.replace(found, logits=given), CHAIN)
    for name in given:
        assert scores[0.5][name] == pytest.approx((scores[None][name] + with_given[name].mean_accuracy) / 2)


def test_first_parameters_have_the_same_bits_at_the_level_that_compiles_faster():
    dense, levels = nn.Dense(300), (dict.fromkeys(RUNS_ONCE, 3), RUNS_ONCE)
    usual, fast = (jax.jit(dense.init, compiler_options=level)(jax.random.key(3), jnp.ones(7)) for level in levels)
    np.testing.assert_array_equal(usual["params"]["kernel"], fast["params"]["kernel"])
