"""The chain as a policy: steps are answered in order, each from the answers drawn before it.

A step's scores depend on the earlier answers alone. The probability of a chain is therefore the product over its steps,
and one pass with all answers given returns the scores of every step.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, UInt32

from stepcot_jax.losses.sequence import token_log_probs

NOT_GIVEN = -1
"""Answer of a step that is still to be drawn; any negative label is none."""

Read = Callable[[Int[Array, "rollout step"]], Float[Array, "rollout step answer"]]
"""Answers given to the steps, negative where none is -> scores of every step, such as a teacher's logits."""


def sample_chains(
    read: Read,
    *,
    num_steps: int,
    keys: UInt32[Array, "rollout 2"],
    temperature: float = 1.0,
    greedy: bool = False,
) -> Int[Array, "rollout step"]:
    """Draw an answer of each step in order, with `num_steps` passes."""

    def answer(step: Int[Array, ""], given: Int[Array, "rollout step"]) -> Int[Array, "rollout step"]:
        scores = read(given)[:, step].astype(jnp.float32) / jnp.float32(temperature)
        if greedy:
            drawn = jnp.argmax(scores, axis=-1)
        else:
            drawn = jax.vmap(lambda key, row: jax.random.categorical(_fold(key, step), row))(keys, scores)
        return given.at[:, step].set(drawn.astype(jnp.int32))

    start = jnp.full((keys.shape[0], num_steps), NOT_GIVEN, jnp.int32)
    chains: Int[Array, "rollout step"] = jax.lax.fori_loop(0, num_steps, answer, start)
    return chains


def score_chains(
    read: Read, answers: Int[Array, "rollout step"], *, temperature: float = 1.0
) -> Float[Array, "rollout step"]:
    """Return the log-probability of each step's answer given the answers before it; their sum is that of the chain."""
    counted = jnp.ones(answers.shape, bool)
    return token_log_probs(logits=read(answers), tokens=answers, counted=counted, temperature=temperature)


def _fold(key: UInt32[Array, "2"], step: Int[Array, ""]) -> Array:
    return jax.random.fold_in(jax.random.wrap_key_data(key), step)
