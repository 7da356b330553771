"""Cross-entropy against the annotated answers (paper: Eq. 3 and 17), or against distributions over answers (ours)."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from stepcot_jax.losses.masked import masked_mean


def hard_label_loss(
    *,
    logits: Float[Array, "case answer"],
    labels: Int[Array, "case"],
    annotated: Bool[Array, "case"],
    answer_weights: Float[Array, "answer"] | None = None,
    whole: Float[Array, ""] | None = None,
) -> Float[Array, ""]:
    """Mean cross-entropy over the annotated cases.

    With `answer_weights` the mean is weighted by the weight of each case's label, as torch's cross_entropy does.

    Args:
      logits: [case, answer].
      labels: int [case]; values of cases that are not annotated are ignored.
      annotated: bool [case]; a False case adds neither loss nor gradient.
      answer_weights: [answer], >= 0, for class-weighted training; equal by default.
      whole: total weight over the global batch, see `masked_mean`.

    Returns:
      float32 scalar in nats; 0 if no case is annotated.
    """
    safe_labels = jnp.where(annotated, labels, 0)
    log_probabilities = jax.nn.log_softmax(logits.astype(jnp.float32), axis=-1)
    values = -jnp.take_along_axis(log_probabilities, safe_labels[:, None], axis=-1)[:, 0]
    weights = None if answer_weights is None else answer_weights[safe_labels]
    return masked_mean(values=values, counted=annotated, weights=weights, whole=whole)


def distribution_loss(
    *,
    logits: Float[Array, "case answer"],
    targets: Float[Array, "case answer"],
    annotated: Bool[Array, "case"],
    answer_weights: Float[Array, "answer"] | None = None,
    whole: Float[Array, ""] | None = None,
) -> Float[Array, ""]:
    """Mean over the annotated cases of the cross-entropy -sum_a p_a log q_a against each case's distribution p.

    Of one-hot targets it is `hard_label_loss`. `answer_weights` w weigh the terms of the sum, and a case in the mean by
    sum_a w_a p_a.

    Args:
      logits: [case, answer].
      targets: [case, answer], probabilities that add up to 1; those of cases that are not annotated are ignored.
      annotated: bool [case]; a False case adds neither loss nor gradient.
      answer_weights: [answer], >= 0; equal by default.
      whole: total weight over the global batch, see `masked_mean`.

    Returns:
      float32 scalar in nats; 0 if no case is annotated.
    """
    shares = jnp.where(annotated[:, None], targets.astype(jnp.float32), 0.0)
    if answer_weights is not None:
        shares = shares * answer_weights[None]
        whole = jnp.sum(shares) if whole is None else whole
    log_probabilities = jax.nn.log_softmax(logits.astype(jnp.float32), axis=-1)
    return masked_mean(values=-jnp.sum(shares * log_probabilities, axis=-1), counted=annotated, whole=whole)


def inverse_frequency_weights(
    *,
    labels: Int[np.ndarray, "case step"],
    answers_per_step: Sequence[int],
    distributions: Float[np.ndarray, "case step answer"] | None = None,
) -> Float[np.ndarray, "step answer"]:
    """Return 1 / frequency of each answer of each step, normalised to mean 1 over the step's answers.

    An answer that never occurs counts as occurring once, so that its weight is finite.

    Args:
      labels: int [case, step] of the training split, negative where not annotated.
      answers_per_step: number of answers of each step.
      distributions: [case, step, answer], soft targets of the same cases, 0 where not annotated; frequencies are then
        expected ones. None counts the labels.

    Returns:
      float32 [step, answer]; 0 for answers that a step does not have.
    """
    weights = np.zeros((len(answers_per_step), max(answers_per_step)), np.float32)
    for step, num_answers in enumerate(answers_per_step):
        if distributions is None:
            annotated = labels[labels[:, step] >= 0, step]
            counts = np.bincount(annotated, minlength=num_answers)
        else:
            counts = distributions[:, step, :num_answers].sum(axis=0, dtype=np.float64)
        inverse = 1.0 / np.maximum(counts, 1)
        weights[step, :num_answers] = inverse / inverse.mean()
    return weights
