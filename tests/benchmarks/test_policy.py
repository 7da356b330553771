"""The plain PyTorch policy of the benchmark reads, learns and samples as ours."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles.random_params import assert_close, randomise

pytest.importorskip("torch")


from benchmarks.plain_policy import as_state_dict
from benchmarks.plain_policy_loop import TorchSide
from benchmarks.policy import JaxSide, Sizes, measure_policy
from stepcot_jax.losses.policy_gradient import PolicyGradient, policy_gradient_loss
from stepcot_jax.models.decoder import DecoderSizes

DECODER = DecoderSizes(
    width=16, num_layers=1, num_heads=4, num_kv_heads=2, head_width=6, mlp_width=24, num_words=11, theta=1e4,
    sections=(1, 1, 1),
)  # fmt: skip
SIZES = Sizes(
    decoder=DECODER, encoder_widths=(8, 12), grid=2, image_size=16, prompt=4, longest=5, num_prompts=3, group_size=2
)


@functools.cache
def sides():
    ours = JaxSide(SIZES)
    ours.params, ours.reference = randomise(ours.params, 1), randomise(ours.params, 2)
    return ours, TorchSide(ours), ours.roll_out()


@pytest.mark.slow
def test_loss_and_gradients_agree():
    ours, theirs, replies = sides()

    def loss(params):
        return policy_gradient_loss(
            log_probs=ours.log_probs(params, replies),
            old_log_probs=replies.log_probs + 0.1,
            reference_log_probs=ours.log_probs(ours.reference, replies),
            advantage=ours.advantage[:, None],
            counted=replies.counted,
            settings=PolicyGradient(),
        ).total

    total, gradients = jax.jit(jax.value_and_grad(loss))(ours.params)
    tokens, log_probs, counted = theirs.as_tensors(replies)
    theirs.policy.zero_grad()
    found = theirs.loss((tokens, log_probs + 0.1, counted))
    found.backward()
    assert_close(found.item(), total, 1e-5)
    expected, own = as_state_dict(gradients), dict(theirs.policy.named_parameters())
    assert set(expected) == set(own)
    for name, gradient in expected.items():
        assert_close(own[name].grad.numpy(), gradient.numpy(), 1e-5)
    assert max(gradient.abs().max() for gradient in expected.values()) > 1e-2


@pytest.mark.slow
def test_log_probs_of_the_cache_agree_with_ours():
    ours, theirs, _ = sides()
    tokens, log_probs, counted = (jnp.asarray(each.numpy()) for each in theirs.roll_out())
    replies = type(sides()[2])(tokens.astype(jnp.int32), log_probs, counted)
    assert_close(log_probs, ours.log_probs(ours.params, replies), 1e-5)
    lengths = np.asarray(counted).sum(1)
    for row, length in zip(np.asarray(tokens), lengths, strict=True):
        assert (row[length:] == ours.sampling.stop).all()
        assert (row[: length - 1] != ours.sampling.stop).all()
    assert lengths.max() > 1


@pytest.mark.slow
def test_both_sides_are_measured_and_the_update_is_compiled_once():
    with jax.numpy_dtype_promotion("standard"):  # optax is not clean under the strict one
        numbers = measure_policy(1, SIZES)
    assert numbers["policy_update_compilations"] == 1
    for name in ("rollout", "update"):
        assert numbers[f"policy_{name}_vs_torch"] > 0
        assert numbers[f"policy_torch_{name}_tokens_per_second"] > 0
