"""Losses of one step against NumPy and PyTorch: cross-entropy, distillation, channel alignment."""

import functools

import jax
import jax.numpy as jnp
import jax.test_util
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles import reference_numpy as oracle
from oracles.quick_jit import quick_jit
from oracles.random_params import assert_close, normal

from stepcot_jax.losses import step_cot as tested

CASES, ANSWERS = 6, 4
EVERY = np.ones(CASES, bool)
SOME = np.array([1, 1, 0, 1, 0, 1], bool)
WEIGHTS = np.array([0.5, 1, 2, 0.1], np.float32)
masks = st.lists(st.booleans(), min_size=CASES, max_size=CASES).map(np.array)
seeds = st.integers(0, 10**6)


def align(fixed, moving, annotated, normaliser="cka"):
    return tested.channel_alignment_loss(
        teacher_projection=fixed, student_projection=moving, annotated=annotated, temperature=2.0, normaliser=normaliser
    )


def hard(labels, logits, annotated, weights=None):
    return tested.hard_label_loss(logits=logits, labels=labels, annotated=annotated, answer_weights=weights)


def soft(teacher, student, annotated, temperature=2.0):
    return tested.soft_label_loss(
        teacher_logits=teacher, student_logits=student, annotated=annotated, temperature=temperature
    )


LOSSES = {
    "hard": (hard, lambda labels, logits, kept: oracle.cross_entropy(logits, labels, kept)),
    "hard weighted": (
        lambda *inputs: hard(*inputs, jnp.asarray(WEIGHTS)),
        lambda labels, logits, kept: oracle.cross_entropy(logits, labels, kept, WEIGHTS),
    ),
    "soft": (soft, oracle.distillation),
    "alignment": (lambda *inputs: align(*inputs).loss, lambda *inputs: oracle.channel_alignment(*inputs)[0]),
    "alignment trace": (
        lambda *inputs: align(*inputs, "trace").loss,
        lambda *inputs: oracle.channel_alignment(*inputs, normaliser="trace")[0],
    ),
}
OF_LABELS = [kind for kind in LOSSES if "alignment" not in kind]
LEAST = {kind: 1 if kind in OF_LABELS else 2 for kind in LOSSES}  # cases without which a loss is 0


@functools.cache
def compiled(kind):
    """Value, and gradient by the logits: (labels, targets or teacher; logits; annotated)."""
    return quick_jit(jax.value_and_grad(LOSSES[kind][0], argnums=1))


def draw(kind, seed, scale=2.0):
    rng = np.random.default_rng(seed)
    if kind.startswith("hard"):
        fixed = rng.integers(0, ANSWERS, CASES).astype(np.int32)
    else:
        fixed = scale * normal(seed + 10**7, CASES, ANSWERS)
    return fixed, scale * normal(seed, CASES, ANSWERS)


def hide(fixed, moving, annotated):
    """Rows that are not annotated hold any numbers."""
    rows = annotated.reshape(-1, *[1] * (fixed.ndim - 1))
    return np.where(rows, fixed, fixed.dtype.type(-100)), np.where(annotated[:, None], moving, np.float32(50))


@pytest.mark.parametrize("kind", LOSSES)
@given(seeds, masks, st.sampled_from([0.1, 2.0, 8.0]))
def test_masked_rows_equal_dropped_rows_and_get_no_gradient(kind, seed, annotated, scale):
    fixed, moving = draw(kind, seed, scale)
    value, gradient = compiled(kind)(*hide(fixed, moving, annotated), annotated)
    is_enough = annotated.sum() >= LEAST[kind]
    expected = LOSSES[kind][1](fixed, moving, annotated) if is_enough else 0.0
    assert_close(value, expected, 2e-5 if kind in OF_LABELS else 1e-4)
    assert np.isfinite(gradient).all()
    assert not np.asarray(gradient)[~annotated].any()
    if is_enough and scale == 2.0:
        assert np.asarray(gradient)[annotated].any(axis=1).all()


@pytest.mark.parametrize(("kind", "pad"), [("hard", 0), ("soft", -1e9)])
def test_absent_answers_change_nothing(kind, pad):
    fixed, moving = draw(kind, 5)
    wide = np.pad(fixed, ((0, 0), (0, 2)), constant_values=pad) if fixed.ndim == 2 else fixed
    value, gradient = compiled(kind)(wide, np.pad(moving, ((0, 0), (0, 2)), constant_values=-1e9), SOME)
    plain, slope = compiled(kind)(fixed, moving, SOME)
    assert_close(value, plain, 1e-6)
    assert_close(gradient, np.pad(slope, ((0, 0), (0, 2))), 1e-6)


@pytest.mark.parametrize("kind", OF_LABELS)
def test_gradient_agrees_with_finite_differences(kind):
    fixed, moving = draw(kind, 2, scale=1.0)
    loss = jax.jit(LOSSES[kind][0])
    limits = {"atol": 1e-2, "rtol": 1e-2, "eps": 1e-2}
    jax.test_util.check_grads(
        lambda moving: loss(fixed, moving, SOME), (jnp.asarray(moving),), order=1, modes=["rev"], **limits
    )


@pytest.mark.parametrize("kind", OF_LABELS)
def test_large_logits_stay_finite_and_bfloat16_gives_float32(kind):
    fixed, moving = draw(kind, 3)
    value, gradient = compiled(kind)(fixed, 1e4 * moving, EVERY)
    assert np.isfinite(value)
    assert np.isfinite(gradient).all()
    half = jnp.asarray(moving, jnp.bfloat16)
    found, _ = compiled(kind)(fixed, half, EVERY)
    assert found.dtype == jnp.float32
    assert_close(found, LOSSES[kind][1](fixed, np.asarray(half, np.float64), EVERY))


mean_and_slope = quick_jit(
    jax.value_and_grad(
        lambda values, counted, weights: tested.masked_mean(values=values, counted=counted, weights=weights)
    )
)
centre = quick_jit(lambda rows, counted: tested.masked_center(rows=rows, counted=counted))


@given(masks, seeds)
def test_mean_and_centre_are_those_of_the_rows_that_count(counted, seed):
    values, weights, rows = normal(seed, 6), np.abs(normal(seed + 1, 6)), normal(seed + 2, 6, 3)
    plain = values[counted].mean(dtype=np.float64) if counted.any() else 0.0
    weighted = np.average(np.float64(values[counted]), weights=weights[counted]) if counted.any() else 0.0
    values[~counted], weights[~counted], rows[~counted] = np.nan, np.inf, np.nan
    for given_weights, expected in ((None, plain), (weights, weighted)):
        value, slope = mean_and_slope(values, counted, given_weights)
        assert_close(value, expected)
        assert np.isfinite(slope).all()
        assert not np.asarray(slope)[~counted].any()
    found = np.asarray(centre(rows, counted))
    assert (found[~counted] == 0).all()
    if counted.any():
        assert_close(found[counted], rows[counted] - rows[counted].mean(axis=0, dtype=np.float64))


def test_weights_that_sum_to_zero_give_zero_and_a_mean_is_float32():
    every = jnp.ones(2, bool)
    assert float(tested.masked_mean(values=jnp.ones(2), counted=every, weights=jnp.zeros(2))) == 0.0
    values = jnp.asarray([1.0, 1.0 / 3], jnp.bfloat16)
    found = tested.masked_mean(values=values, counted=every)
    assert found.dtype == jnp.float32
    assert float(found) == float(values.astype(jnp.float32).mean())


def test_loss_by_hand():
    logits = np.log(np.array([[0.5, 0.25, 0.125, 0.125]] * CASES, np.float32))
    labels, annotated = np.array([0, 1, 2, 3, 3, 3], np.int32), np.array([1, 1, 1, 0, 0, 0], bool)
    inputs = tuple(map(jnp.asarray, (labels, logits, annotated)))
    assert_close(hard(*inputs), np.log(2) * (1 + 2 + 3) / 3, 1e-6)
    assert_close(hard(*inputs, jnp.array([1.0, 2, 1, 9])), np.log(2) * (1 + 2 * 2 + 3) / 4, 1e-6)


def test_losses_agree_with_torch():
    torch = pytest.importorskip("torch")
    functional = torch.nn.functional
    labels, logits = draw("hard", 4)
    labels[2] = -100
    expected = functional.cross_entropy(
        torch.tensor(logits), torch.tensor(labels).long(), torch.tensor(WEIGHTS), ignore_index=-100
    )
    assert_close(compiled("hard weighted")(labels, logits, labels >= 0)[0], expected.numpy())
    teacher, student = draw("soft", 6)
    expected = 4 * functional.kl_div(
        functional.log_softmax(torch.tensor(student) / 2, dim=-1),
        functional.softmax(torch.tensor(teacher) / 2, dim=-1),
        reduction="batchmean",
    )
    assert_close(compiled("soft")(teacher, student, EVERY)[0], expected.numpy())


def test_weights_are_inverse_frequencies_of_mean_one():
    labels = np.array([[0, 0], [0, 1], [1, -100], [-100, 1], [0, 1]], np.int32)
    found = tested.inverse_frequency_weights(labels=labels, answers_per_step=(3, 2))
    # Step 1 has counts 3, 1 and none (counted as 1); step 2 has 1 and 3.
    expected = [np.array([1 / 3, 1, 1]) * 3 / (7 / 3), [*np.array([1, 1 / 3]) * 2 / (4 / 3), 0]]
    assert_close(found, expected, 1e-6)
    assert found.dtype == np.float32
    nothing = tested.inverse_frequency_weights(labels=np.full((3, 1), -100), answers_per_step=(4,))
    assert nothing.tolist() == [[1, 1, 1, 1]]


def test_divergence_by_hand():
    target, estimate = np.log([[0.5, 0.5]]), np.log([[0.25, 0.75]])
    found = tested.divergence(
        target_logits=jnp.asarray(target, jnp.float32), logits=jnp.asarray(estimate, jnp.float32), temperature=1.0
    )
    assert_close(found, [0.5 * np.log(2) + 0.5 * np.log(2 / 3)], 1e-6)


def test_distillation_sends_no_gradient_to_the_teacher():
    teacher, student = map(jnp.asarray, draw("soft", 2))
    assert not jax.grad(soft)(teacher, student, jnp.asarray(EVERY)).any()
    value, slope = compiled("soft")(teacher, teacher, EVERY)
    assert_close(value, 0.0, 1e-6)
    assert_close(slope, np.zeros_like(teacher), 1e-6)


@functools.partial(quick_jit, static_argnames="normaliser")
def weight(u, v, annotated, normaliser="cka"):
    return tested.alignment_weight(teacher=u, student=v, annotated=annotated, normaliser=normaliser)


@functools.cache
def slopes_of(normaliser):
    """Gradients of the alignment loss by both sides; compiled once."""
    return quick_jit(jax.grad(lambda u, v, annotated: align(u, v, annotated, normaliser).loss, (0, 1)))


def test_weight_by_hand():
    # Centred rows are +-1/2 and +-1: Gram matrices G and 4 G.
    u, v = np.array([[0.0], [1.0]], np.float32), np.array([[5.0], [3.0]], np.float32)
    both = np.ones(2, bool)
    assert_close(weight(u, v, both), 1.0, 1e-6)
    assert_close(weight(u, v, both, "trace"), 1.0, 1e-6)
    assert_close(weight(3 * u, v, both, "trace"), 3.0, 1e-6)  # the weight of eq. 21 grows with the spread
    # Independent directions over four cases.
    u, v = np.array([[0.0], [0.0], [1.0], [1.0]], np.float32), np.array([[0.0], [1.0], [0.0], [1.0]], np.float32)
    assert_close(weight(u, v, np.ones(4, bool)), 0.0, 1e-6)


@pytest.mark.parametrize("normaliser", ["cka", "trace"])
def test_weight_is_zero_where_a_side_is_constant_and_exact_where_it_nearly_is(normaliser):
    u, v = draw("alignment", 3)
    # The weight takes softmax rows: constant rows are equal probabilities in every case.
    constant = np.tile(oracle.softmax(np.float64(u[:1])).astype(np.float32), (CASES, 1))
    for pair in ((constant, v), (v, constant), (constant, constant)):
        assert_close(weight(*pair, EVERY, normaliser), 0.0, 1e-6)
        slopes = slopes_of(normaliser)(*pair, EVERY)
        assert all(np.isfinite(slope).all() for slope in slopes)
    u, v = (np.float32(0.2 + 1e-3 * difference) for difference in (u, v))
    assert_close(weight(u, v, EVERY, normaliser) / oracle.alignment_weight(u, v, normaliser), 1.0, 1e-3)


@pytest.mark.parametrize("normaliser", ["cka", "trace"])
def test_gradient_agrees_with_finite_differences_of_the_oracle(normaliser):
    u, v = draw("alignment", 6)
    slopes = slopes_of(normaliser)(u, v, SOME)
    for side in (0, 1):
        pair, step = [np.float64(u), np.float64(v)], 1e-6
        for index in np.ndindex(CASES, ANSWERS):
            kept, values = pair[side][index], []
            for shift in (step, -step):
                pair[side][index] = kept + shift
                values.append(oracle.channel_alignment(*pair, SOME, normaliser=normaliser)[0])
            pair[side][index] = kept
            numeric = (values[0] - values[1]) / (2 * step)
            assert float(slopes[side][index]) == pytest.approx(numeric, abs=2e-5, rel=2e-5)
