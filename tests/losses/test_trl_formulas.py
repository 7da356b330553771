"""Advantages and objective against the formulas that TRL publishes, on whole arrays: an oracle beside the loop.

tunix cannot be one: tunix 0.1.7 requires safetensors<0.8, and transformers>=5.23 requires safetensors>=0.8. Every
completion here has a counted token; TRL's "grpo" averages one without in as 0, and ours leaves it out.
"""

import jax.numpy as jnp
import numpy as np
import pytest
from oracles.random_params import assert_close, normal

from stepcot_jax.losses.policy_gradient import PolicyGradient, advantages, policy_gradient_loss

PROMPTS, GROUP, LONGEST = 3, 4, 7
NORMS = {"grpo": "sequence_mean", "dapo": "token_mean", "dr_grpo": "constant"}
LEVELS = {"token": "token", "sequence": "sequence_mean"}


def trl_loss(policy, sampler, reference, gain, mask, *, loss_type, level, low, high, beta):
    change = policy - sampler
    if level == "sequence":
        change = np.sum(mask * change, axis=1, keepdims=True) / mask.sum(axis=1, keepdims=True)
    weight = np.exp(change)
    bounded = np.clip(weight, 1 - low, 1 + high)
    gap = reference - policy
    cost = np.maximum(-weight * gain, -bounded * gain) + beta * (np.exp(gap) - gap - 1)
    if loss_type == "grpo":
        return np.mean(np.sum(mask * cost, axis=1) / mask.sum(axis=1))
    return np.sum(mask * cost) / (mask.sum() if loss_type == "dapo" else mask.size)


def draw(seed):
    """Log-probabilities [completion, token], rewards [prompt, completion] and completions that end at a token each."""
    sampler = -np.abs(normal(seed, PROMPTS * GROUP, LONGEST))
    policy, reference = (sampler + 0.5 * normal(seed + place, *sampler.shape) for place in (1, 2))
    rng = np.random.default_rng(seed)
    rewards = rng.integers(0, 3, (PROMPTS, GROUP)) + 0.25 * rng.random((PROMPTS, GROUP))
    ends = rng.integers(1, LONGEST + 1, (PROMPTS * GROUP, 1))
    return policy, sampler, reference, rewards, np.arange(LONGEST)[None] < ends


@pytest.mark.parametrize("loss_type", NORMS)
@pytest.mark.parametrize("level", LEVELS)
def test_the_loss_is_that_of_trl(loss_type, level):
    low, high, beta = 0.2, 0.28, 0.04
    policy, sampler, reference, rewards, mask = draw(9)
    gain = np.array(advantages(jnp.asarray(rewards, jnp.float32), std_ddof=1, std_epsilon=1e-4))
    relative = rewards - rewards.mean(axis=1, keepdims=True)
    np.testing.assert_allclose(gain, relative / (rewards.std(axis=1, ddof=1, keepdims=True) + 1e-4), rtol=1e-5)
    gain, kinds = gain.reshape(-1, 1), {"loss_type": loss_type, "level": level}
    arrays = (each.astype(np.float64) for each in (policy, sampler, reference, gain, mask))
    expected = trl_loss(*arrays, **kinds, low=low, high=high, beta=beta)
    settings = PolicyGradient(
        ratio=LEVELS[level], clip_low=low, clip_high=high, beta=beta, length_norm=NORMS[loss_type]
    )
    given = {"log_probs": policy, "old_log_probs": sampler, "reference_log_probs": reference, "advantage": gain}
    given = {name: jnp.asarray(array) for name, array in (given | {"counted": mask}).items()}
    assert_close(policy_gradient_loss(**given, settings=settings).total, expected, 1e-5)
    assert abs(expected) > 0.01
