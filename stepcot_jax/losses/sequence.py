"""Cross-entropy of token sequences: supervised fine-tuning (MEDSAGE: Eq. 7), with a weight for each part."""

from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from stepcot_jax.losses.reductions import masked_mean

Reduction = Literal["tokens", "parts"]


def token_log_probs(
    *,
    logits: Float[Array, "*rollout token word"],
    tokens: Int[Array, "*rollout token"],
    counted: Bool[Array, "*rollout token"],
    temperature: float = 1.0,
) -> Float[Array, "*rollout token"]:
    """Return the log-probability of each token, float32; 0 where a token does not count.

    Args:
      logits: [*rollout, token, word]; those at position t predict `tokens[t]`. Anything where a token does not count.
      tokens: [*rollout, token].
      counted: bool [*rollout, token].
      temperature: > 0; logits are divided by it, as in sampling.

    Raises:
      ValueError: `temperature` is not positive.
    """
    if not temperature > 0:
        raise ValueError(f"temperature must be above 0; got {temperature}")
    # Before the softmax: what is masked afterwards would still send NaN into the gradient.
    kept = jnp.where(counted[..., None], logits.astype(jnp.float32), 0.0) / temperature
    chosen = jnp.take_along_axis(kept, jnp.where(counted, tokens, 0)[..., None], axis=-1)[..., 0]
    return jnp.where(counted, chosen - jax.nn.logsumexp(kept, axis=-1), 0.0)


def sequence_weight(
    *, parts: Int[Array, "case token"], part_weights: Float[Array, "case part"], reduction: Reduction
) -> Float[Array, ""]:
    """Return the divisor of `sequence_loss`; summed over the devices, it is that of the global batch."""
    if reduction == "tokens":
        return jnp.sum(_weight_tokens(parts, part_weights))
    return jnp.sum(jnp.any(parts >= 0, axis=1), dtype=jnp.float32)


def sequence_loss(
    *,
    logits: Float[Array, "case token word"],
    tokens: Int[Array, "case token"],
    parts: Int[Array, "case token"],
    part_weights: Float[Array, "case part"],
    reduction: Reduction = "tokens",
    divisor: Float[Array, ""] | None = None,
) -> Float[Array, ""]:
    """Return the cross-entropy of the tokens that count.

    With "tokens" it is the weighted mean over the tokens of the batch (MEDSAGE: Eq. 7, all weights 1). With "parts" it
    is the mean over the cases of the sum over the parts of weight times mean over the part's tokens (MedCLM:
    0.8 L_answer + 0.2 L_reasoning; the answer alone, with weight 1, in the hard stage).

    Args:
      logits: [case, token, word]; those at position t predict `tokens[t]`.
      tokens: [case, token].
      parts: [case, token], the part that a token belongs to, below 0 if it does not count.
      part_weights: [case, part], >= 0.
      reduction: "tokens" or "parts".
      divisor: over the global batch, see `sequence_weight`; None for this batch alone.

    Returns:
      float32 scalar in nats; 0 if no token counts.
    """
    counted = parts >= 0
    losses = -token_log_probs(logits=logits, tokens=tokens, counted=counted)
    if reduction == "tokens":
        weights = _weight_tokens(parts, part_weights)
        return masked_mean(values=losses.ravel(), counted=counted.ravel(), weights=weights.ravel(), divisor=divisor)
    members = _member(parts, part_weights.shape[1])
    sums = jnp.einsum("ct,ctp->cp", losses, members)
    means = sums / jnp.maximum(jnp.sum(members, axis=1), 1.0)
    of_cases = jnp.sum(means * part_weights.astype(jnp.float32), axis=1)
    return masked_mean(values=of_cases, counted=jnp.any(counted, axis=1), divisor=divisor)


def _member(parts: Int[Array, "case token"], num_parts: int) -> Float[Array, "case token part"]:
    return (parts[:, :, None] == jnp.arange(num_parts)[None, None]).astype(jnp.float32)


def _weight_tokens(
    parts: Int[Array, "case token"], part_weights: Float[Array, "case part"]
) -> Float[Array, "case token"]:
    return jnp.einsum("ctp,cp->ct", _member(parts, part_weights.shape[1]), part_weights.astype(jnp.float32))
