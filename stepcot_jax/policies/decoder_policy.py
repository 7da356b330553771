"""Replies of a vision-prefix policy: read image and prompt once, then sample with the caches."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32

from stepcot_jax.models.decoder import empty_cache
from stepcot_jax.models.prefix_vlm import PrefixVlm
from stepcot_jax.models.qwen_vl import QwenVl
from stepcot_jax.policies.qwen.qwen_policy import QwenPolicy
from stepcot_jax.policies.rollouts import Replies, Sampling, sample_replies


@functools.partial(jax.jit, static_argnames=("policy", "sampling"))
def generate(
    policy: PrefixVlm | QwenPolicy | QwenVl,
    params: Any,
    images: Any,
    prompts: Any,
    lengths: Any,
    *,
    sampling: Sampling,
    keys: UInt32[Array, "rollout 2"],
    skipped: Bool[Array, "rollout"] | None = None,
) -> Replies:
    """Sample replies; every prompt is read once, however many replies it gets.

    Args:
      images: [case, height, width, 3], normalised; of a `QwenVl` `QwenImages`, or None.
      prompts: [case, token], padded on the right; of a `QwenVl` `QwenPrompts`.
    """
    num_cases = len(jax.tree.leaves(lengths)[0])
    each, left = divmod(len(keys), num_cases)
    if left or not each:
        raise ValueError(f"keys: {len(keys)} rollouts are not a multiple of {num_cases} prompts")
    variables = {"params": params}
    scores, prefix = policy.apply(variables, images, prompts, lengths, method="prefill")
    if each > 1:
        repeat = functools.partial(jnp.repeat, repeats=each, axis=0, total_repeat_length=len(keys))
        scores, lengths = jax.tree.map(repeat, (scores, lengths))
    caches = empty_cache(policy.sizes, num_rollouts=len(keys), num_slots=sampling.longest, dtype=policy.dtype)

    def extend(
        tokens: Int[Array, "rollout"], place: Int[Array, ""], caches: Any
    ) -> tuple[Float[Array, "rollout word"], Any]:
        found: tuple[Float[Array, "rollout word"], Any] = policy.apply(
            variables, tokens, place, lengths, caches, prefix=prefix, method="extend"
        )
        return found

    return sample_replies(extend, scores=scores, caches=caches, keys=keys, sampling=sampling, skipped=skipped)
