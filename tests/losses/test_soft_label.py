"""The distillation loss."""

import jax
import jax.numpy as jnp
import jax.test_util
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles import reference_numpy as oracle
from oracles.random_params import assert_close, normal

from stepcot_jax.losses.step_cot import divergence, soft_label_loss

CASES, ANSWERS = 6, 4
EVERY = np.ones(CASES, bool)
masks = st.lists(st.booleans(), min_size=CASES, max_size=CASES).map(np.array)
seeds = st.integers(0, 10**6)


def make(temperature=2.0):
    return lambda teacher, student, annotated: soft_label_loss(
        teacher_logits=teacher, student_logits=student, annotated=annotated, temperature=temperature
    )


loss = jax.jit(make())
gradients = jax.jit(jax.grad(make(), argnums=(0, 1)))


def draw(seed, scale=2.0):
    return scale * normal(seed, CASES, ANSWERS), scale * normal(seed + 10**7, CASES, ANSWERS)


def test_divergence_by_hand():
    target, estimate = np.log([[0.5, 0.5]]), np.log([[0.25, 0.75]])
    found = divergence(
        target_logits=jnp.asarray(target, jnp.float32), logits=jnp.asarray(estimate, jnp.float32), temperature=1.0
    )
    assert_close(found, [0.5 * np.log(2) + 0.5 * np.log(2 / 3)], 1e-6)


@given(seeds, masks, st.sampled_from([0.1, 2.0, 30.0]))
def test_masked_rows_equal_dropped_rows(seed, annotated, scale):
    teacher, student = draw(seed, scale)
    assert_close(loss(teacher, student, annotated), oracle.distillation(teacher, student, annotated))


@pytest.mark.parametrize("temperature", [0.5, 1.0, 4.0])
def test_temperature_enters_squared(temperature):
    teacher, student = draw(1)
    found = jax.jit(make(temperature))(teacher, student, EVERY)
    assert_close(found, oracle.distillation(teacher, student, EVERY, temperature))
    assert_close(found, temperature**2 * oracle.kullback_leibler(teacher, student, temperature).mean())


def test_equal_answers_cost_nothing():
    teacher, _ = draw(2)
    assert_close(loss(teacher, teacher, EVERY), 0.0, 1e-6)
    assert_close(gradients(teacher, teacher, EVERY)[1], np.zeros_like(teacher), 1e-6)


@given(seeds)
def test_loss_is_not_negative(seed):
    teacher, student = draw(seed)
    assert float(loss(teacher, student, EVERY)) > -1e-6


@given(seeds, masks)
def test_absent_answers_change_nothing(seed, annotated):
    teacher, student = draw(seed)
    wide_teacher, wide_student = (
        np.pad(logits, ((0, 0), (0, 2)), constant_values=-1e9) for logits in (teacher, student)
    )
    assert_close(loss(wide_teacher, wide_student, annotated), loss(teacher, student, annotated), 1e-6)
    found = np.asarray(gradients(wide_teacher, wide_student, annotated)[1])
    assert not found[:, ANSWERS:].any()
    assert_close(found[:, :ANSWERS], gradients(teacher, student, annotated)[1], 1e-6)


@given(seeds, masks)
def test_gradient_reaches_annotated_rows_of_the_student_alone(seed, annotated):
    teacher, student = draw(seed)
    of_teacher, of_student = (np.asarray(found) for found in gradients(teacher, student, annotated))
    assert not of_teacher.any()
    assert not of_student[~annotated].any()
    assert of_student[annotated].any(axis=1).all()


def test_gradient_agrees_with_finite_differences():
    teacher, student = draw(3)
    annotated = np.array([1, 1, 0, 1, 0, 1], bool)
    jax.test_util.check_grads(
        lambda student: loss(teacher, student, annotated),
        (jnp.asarray(student),),
        order=1,
        modes=["rev"],
        atol=1e-2,
        rtol=1e-2,
        eps=1e-2,
    )


def test_nothing_annotated_costs_nothing():
    teacher, student = draw(4)
    assert float(loss(teacher, student, ~EVERY)) == 0.0
    assert not gradients(teacher, student, ~EVERY)[1].any()


def test_certain_teacher_and_large_logits_stay_finite():
    teacher, student = np.array([[1e4, -1e4, 0, 0]] * CASES, np.float32), np.zeros((CASES, ANSWERS), np.float32)
    assert_close(loss(teacher, student, EVERY), 4 * np.log(4), 1e-6)
    assert np.isfinite(gradients(student, teacher, EVERY)[1]).all()


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan")])
def test_bad_temperature_is_refused(temperature):
    teacher, student = map(jnp.asarray, draw(5))
    with pytest.raises(ValueError, match=f"temperature must be above 0; got {temperature}"):
        make(temperature)(teacher, student, jnp.asarray(EVERY))


def test_loss_agrees_with_torch():
    torch = pytest.importorskip("torch")
    teacher, student = draw(6)
    functional = torch.nn.functional
    expected = 4 * functional.kl_div(
        functional.log_softmax(torch.tensor(student) / 2, dim=-1),
        functional.softmax(torch.tensor(teacher) / 2, dim=-1),
        reduction="batchmean",
    )
    assert_close(loss(teacher, student, EVERY), expected.numpy())
