"""Answers that are given to a network in place of its own, hard or soft."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

GivenAnswers = Int[Array, "case step"] | Float[Array, "case step answer"]
"""Labels, -1 to predict; or soft answers: distributions over a step's answers, zeros to predict."""

_LEAST = 0.01
"""Least probability in a given answer that a student passes on; 0.001 works alike, 0.1 worse (docs/results)."""


def given_distributions(
    given_answers: GivenAnswers | None, *, num_answers: int
) -> Float[Array, "step case answer"] | None:
    """Return given answers as distributions by step, zeros where a step is to be predicted; None for None.

    Args:
      given_answers: labels [case, step], -1 to predict, or soft answers [case, step, answer], zeros to predict.
      num_answers: of the padded answers.
    """
    if given_answers is None:
        return None
    if given_answers.ndim == 2:
        given_answers = jax.nn.one_hot(given_answers, num_answers)
    return jnp.swapaxes(given_answers, 0, 1)


def is_given(distributions: Float[Array, "*shape answer"]) -> Bool[Array, "*shape"]:
    """Return where a distribution was given: where it is not all zeros."""
    return distributions.sum(axis=-1) > 0


def given_logits(
    distribution: Float[Array, "case answer"], *, own: Bool[Array, " answer"]
) -> Float[Array, "case answer"]:
    """Return logits whose softmax is a given distribution, with every answer at `_LEAST` or more.

    They are centred, so that only what distinguishes the answers is passed on; 0 for the answers a step does not have.

    Args:
      distribution: over the padded answers.
      own: True for the answers that the step has.
    """
    logits = jnp.where(own, jnp.log(jnp.maximum(distribution, _LEAST)), 0.0)
    return jnp.where(own, logits - logits.sum(axis=-1, keepdims=True) / jnp.sum(own, dtype=logits.dtype), 0.0)
