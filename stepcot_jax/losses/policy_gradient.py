"""Group-relative policy optimisation: clipped ratios, the penalty to a reference, and self-check.

GEMeX-RMCoT prints the objective (Eq. 2), MEDSAGE the self-check term (Eq. 10 to 12). What neither paper settles
is an argument; docs/departures.md explains the defaults. Everything is float32. Positions that do not count may hold
any value, NaN included, and reach neither result nor gradient.
"""

import dataclasses
import math
from typing import Literal, get_args

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

Ratio = Literal["token", "sequence", "sequence_mean"]
Divergence = Literal["k1", "k2", "k3"]
_LARGEST_LOG_RATIO = 60.0  # e^60 is beyond every clip and far from the limits of float32

LengthNorm = Literal["sequence_mean", "token_mean", "constant", "sequence_sum"]
DivergenceNorm = Literal["length_norm", "sequence_sum"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PolicyGradient:
    """Choices of the objective; the defaults are those of docs/departures.md.

    Attributes:
      ratio: "token" weighs each token by its own ratio, "sequence" by the completion's (Eq. 2 as printed),
        "sequence_mean" by the geometric mean of its tokens' ratios.
      clip_low: a ratio is clipped below at 1 - clip_low.
      clip_high: and above at 1 + clip_high.
      dual_clip: least multiple of a negative advantage, above 1; 0 for no such bound.
      beta: weight of the divergence from the reference.
      divergence: estimator of it, see `divergence`.
      clamp_log_ratio: the estimator's log-ratio is limited to this magnitude; None for no limit.
      clamp_divergence: the estimate is limited to this magnitude; None for no limit.
      length_norm: see `aggregate`.
      divergence_norm: "length_norm" averages the divergence as the other terms; "sequence_sum" takes the divergence
        of a completion, the sum over its tokens (Eq. 2 as printed), averaged over the completions.
    """

    ratio: Ratio = "token"
    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float = 0.0
    beta: float = 1e-3
    divergence: Divergence = "k3"
    clamp_log_ratio: float | None = None
    clamp_divergence: float | None = None
    length_norm: LengthNorm = "sequence_mean"
    divergence_norm: DivergenceNorm = "length_norm"

    def __post_init__(self) -> None:
        kinds = {"ratio": Ratio, "divergence": Divergence, "length_norm": LengthNorm, "divergence_norm": DivergenceNorm}
        for name, accepted in kinds.items():
            if getattr(self, name) not in get_args(accepted):
                raise ValueError(f"{name} must be one of {', '.join(get_args(accepted))}; got {getattr(self, name)!r}")
        if self.divergence_norm == "sequence_sum" and not self.length_norm.startswith("sequence"):
            raise ValueError(
                f"divergence_norm 'sequence_sum' needs a length_norm by sequence; got {self.length_norm!r}"
            )
        if not (0 <= self.clip_low <= 1 and 0 <= self.clip_high < math.inf and 0 <= self.beta < math.inf):
            shown = f"{self.clip_low}, {self.clip_high} and {self.beta}"
            raise ValueError(f"clip_low must lie in 0..1, clip_high and beta at or above 0; got {shown}")
        if self.dual_clip != 0 and not self.dual_clip > 1:
            raise ValueError(f"dual_clip must be above 1, or 0 for none; got {self.dual_clip}")
        for limit in (self.clamp_log_ratio, self.clamp_divergence):
            if limit is not None and not limit > 0:
                raise ValueError(f"clamp_log_ratio and clamp_divergence must be above 0, or None; got {limit}")


def divergence(
    *,
    log_probs: Float[Array, "rollout token"],
    reference: Float[Array, "rollout token"],
    kind: Divergence = "k3",
    clamp_log_ratio: float | None = None,
    clamp_divergence: float | None = None,
) -> Float[Array, "rollout token"]:
    """Return an estimate of KL(policy || reference) at each sampled token, in nats.

    k1 = logpi - logref, k2 = k1^2 / 2, k3 = exp(logref - logpi) - (logref - logpi) - 1. As a loss k1 has a gradient of
    mean zero: it penalises nothing on average.
    """
    difference = log_probs - reference
    if clamp_log_ratio is not None:
        difference = jnp.clip(difference, -clamp_log_ratio, clamp_log_ratio)
    if kind == "k1":
        estimate = difference
    elif kind == "k2":
        estimate = jnp.square(difference) / 2
    else:
        estimate = jnp.expm1(-difference) + difference
    return estimate if clamp_divergence is None else jnp.clip(estimate, -clamp_divergence, clamp_divergence)


def aggregate_weight(counted: Bool[Array, "rollout token"], settings: PolicyGradient) -> Float[Array, ""]:
    """Return the divisor of `aggregate`; summed over the devices, it is that of the global batch."""
    if settings.length_norm == "token_mean":
        return jnp.sum(counted, dtype=jnp.float32)
    if settings.length_norm == "constant":
        return jnp.asarray(counted.size, jnp.float32)
    return jnp.sum(jnp.any(counted, axis=1), dtype=jnp.float32)


def aggregate(
    values: Float[Array, "rollout token"],
    *,
    counted: Bool[Array, "rollout token"],
    settings: PolicyGradient,
    divisor: Float[Array, ""] | None = None,
) -> Float[Array, ""]:
    """Return the average of a quantity of each token.

    "sequence_mean" averages over completions the mean over their tokens, "sequence_sum" the sum of their tokens
    (completions without a counted token are left out of both), "token_mean" averages over all tokens, "constant"
    divides the sum by completions times their static length. 0 if nothing counts.

    Args:
      values: [rollout, token].
      counted: bool [rollout, token].
      settings: with `length_norm`.
      divisor: over the global batch, see `aggregate_weight`; None for this batch alone.
    """
    sums = jnp.sum(jnp.where(counted, values, 0.0), axis=1)
    if settings.length_norm == "sequence_mean":
        sums = sums / jnp.maximum(jnp.sum(counted, axis=1, dtype=jnp.float32), 1)
    total = aggregate_weight(counted, settings) if divisor is None else divisor
    return jnp.sum(sums) / jnp.maximum(total, 1.0)


@dataclasses.dataclass(frozen=True)
class PolicyLoss:
    """The objective's value and two diagnostics, averaged as `length_norm` and `divergence_norm` set.

    For a part of a global batch each value is the part's share; shares add up.

    Attributes:
      total: the loss, to be minimised.
      divergence: estimate of the divergence from the reference.
      clipped: whether the clip limits a token's ratio; a share of the tokens with "token_mean".
    """

    total: Array
    divergence: Array
    clipped: Array


def policy_gradient_loss(
    *,
    log_probs: Float[Array, "rollout token"],
    old_log_probs: Float[Array, "rollout token"],
    reference_log_probs: Float[Array, "rollout token"],
    advantage: Float[Array, "rollout #token"],
    counted: Bool[Array, "rollout token"],
    settings: PolicyGradient,
    divisor: Float[Array, ""] | None = None,
) -> PolicyLoss:
    """Return - aggregate(min(ratio A, clip(ratio) A) - beta KL) (GEMeX-RMCoT: Eq. 2).

    With a `divergence_norm` of its own the divergence is averaged apart: beta KL - aggregate(min(..)).

    Args:
      log_probs: [rollout, token], of the policy; the only argument with a gradient.
      old_log_probs: [rollout, token], of the policy that sampled.
      reference_log_probs: [rollout, token], of the frozen start.
      advantage: [rollout, 1], or [rollout, token] where only some tokens of a completion get it.
      counted: bool [rollout, token].
      settings: choices of the objective.
      divisor: over the global batch, see `aggregate_weight`; None for this batch alone.
    """
    current, old, reference = (
        jnp.where(counted, values.astype(jnp.float32), 0.0)
        for values in (log_probs, old_log_probs, reference_log_probs)
    )
    of_tokens = advantage.astype(jnp.float32)
    if of_tokens.shape == counted.shape:  # a ratio of the sequence joins all tokens, whose advantages must be numbers
        of_tokens = jnp.where(counted, of_tokens, 0.0)
    bounded = (of_tokens >= 0) | bool(settings.dual_clip)
    ratio = _ratio(current - old, counted, settings.ratio, bounded)
    clipped = jnp.clip(ratio, 1 - settings.clip_low, 1 + settings.clip_high)
    term = jnp.minimum(ratio * of_tokens, clipped * of_tokens)
    if settings.dual_clip:
        term = jnp.where(of_tokens < 0, jnp.maximum(term, settings.dual_clip * of_tokens), term)
    penalty = divergence(
        log_probs=current,
        reference=reference,
        kind=settings.divergence,
        clamp_log_ratio=settings.clamp_log_ratio,
        clamp_divergence=settings.clamp_divergence,
    )
    held = (term < ratio * of_tokens).astype(jnp.float32)

    def average(values: Array, norm: LengthNorm = settings.length_norm) -> Array:
        chosen = dataclasses.replace(settings, length_norm=norm)
        return aggregate(values, counted=counted, settings=chosen, divisor=divisor)

    if settings.divergence_norm == "length_norm":
        return PolicyLoss(-average(term - settings.beta * penalty), average(penalty), average(held))
    total = average(penalty, settings.divergence_norm)
    return PolicyLoss(settings.beta * total - average(term), total, average(held))


def _ratio(
    log_ratio: Float[Array, "rollout token"],
    counted: Bool[Array, "rollout token"],
    kind: Ratio,
    bounded: Bool[Array, "rollout #token"],
) -> Float[Array, "rollout token"]:
    """Return ratios; where a clip bounds the objective from above they are kept finite, since inf - inf is NaN."""
    if kind != "token":
        log_ratio = jnp.broadcast_to(jnp.sum(log_ratio, axis=1, keepdims=True), log_ratio.shape)
    if kind == "sequence_mean":
        log_ratio = log_ratio / jnp.maximum(jnp.sum(counted, axis=1, keepdims=True, dtype=jnp.float32), 1)
    return jnp.exp(jnp.where(bounded & (log_ratio > _LARGEST_LOG_RATIO), _LARGEST_LOG_RATIO, log_ratio))


def self_check_loss(
    *,
    log_probs: Float[Array, "rollout token"],
    check: Bool[Array, "rollout token"],
    success: Bool[Array, "rollout"],
    alpha: float = 0.2,
    norm: Literal["sum", "mean"] = "sum",
    divisor: Float[Array, ""] | None = None,
) -> Float[Array, ""]:
    """Return - alpha r sum_t m_t log pi(o_t), averaged over all completions of the batch (MEDSAGE: Eq. 10 to 12).

    Args:
      log_probs: [rollout, token], of the policy.
      check: bool [rollout, token], m_t: the tokens of the self-check.
      success: bool [rollout], r: the first attempt was wrong and the second right.
      alpha: weight of a success.
      norm: "sum" over the self-check's tokens (Eq. 12) or their "mean".
      divisor: number of completions of the global batch; None for this batch alone.
    """
    sums = jnp.sum(jnp.where(check & success[:, None], log_probs.astype(jnp.float32), 0.0), axis=1)
    if norm == "mean":
        sums = sums / jnp.maximum(jnp.sum(check, axis=1, dtype=jnp.float32), 1)
    return -alpha * jnp.sum(sums) / (jnp.asarray(check.shape[0], jnp.float32) if divisor is None else divisor)


# Advantages of rollouts relative to their group (GEMeX-RMCoT: below Eq. 2).


Scale = Literal["group", "batch", "none"]


def advantages(
    rewards: Float[Array, "prompt rollout"], *, std_ddof: int = 1, std_epsilon: float = 1e-6, scale: Scale = "group"
) -> Float[Array, "prompt rollout"]:
    """Return each reward less its group's mean, divided by a standard deviation (GEMeX-RMCoT: below Eq. 2).

    Args:
      rewards: [prompt, rollout]; NaN for an unscored rollout, which is left out and gets 0.
      std_ddof: 1 divides by the number of rollouts less one, 0 by their number.
      std_epsilon: added to the deviation.
      scale: deviation of the "group", of the whole "batch", or "none" for no division.

    Returns:
      float32 [prompt, rollout]; exactly 0 where all scored rewards of a group are equal or fewer than two are scored.

    Raises:
      ValueError: a group has fewer than two rollouts, or a setting is unknown.
    """
    if rewards.shape[1] < 2:
        raise ValueError(f"a group must have at least 2 rollouts; got {rewards.shape[1]}")
    if std_ddof not in (0, 1) or scale not in get_args(Scale):
        raise ValueError(
            f"std_ddof must be 0 or 1, scale one of {', '.join(get_args(Scale))}; got {std_ddof}, {scale!r}"
        )
    scored = ~jnp.isnan(rewards)
    kept = jnp.where(scored, rewards.astype(jnp.float32), 0.0)
    centred, number = _centre(kept, scored, axis=1)
    if scale != "none":
        spread, total = (centred, number) if scale == "group" else _centre(kept, scored, axis=None)
        squares = jnp.sum(jnp.square(spread), axis=None if scale == "batch" else 1, keepdims=True)
        centred = centred / (jnp.sqrt(squares / jnp.maximum(total - std_ddof, 1)) + std_epsilon)
    # Rounding moves the mean of equal rewards by an ulp, and the deviation is as small: the quotient would not be 0.
    highest = jnp.max(jnp.where(scored, kept, -jnp.inf), axis=1, keepdims=True)
    lowest = jnp.min(jnp.where(scored, kept, jnp.inf), axis=1, keepdims=True)
    return jnp.where(scored & (highest > lowest), centred, 0.0)


def _centre(
    kept: Float[Array, "prompt rollout"], scored: Bool[Array, "prompt rollout"], axis: int | None
) -> tuple[Array, Array]:
    number = jnp.sum(scored, axis=axis, keepdims=True, dtype=jnp.float32)
    mean = jnp.sum(kept, axis=axis, keepdims=True) / jnp.maximum(number, 1)
    return jnp.where(scored, kept - mean, 0.0), number


# Direct preference optimisation, the sequence-level baseline of MEDSAGE's public code (4c8030a); not in its paper.


@dataclasses.dataclass(frozen=True)
class PreferenceLoss:
    """The loss and two diagnostics, averaged over the pairs that count; shares of a global batch add up.

    Attributes:
      total: the loss, to be minimised.
      margin: the difference that the loss compares with 0, without beta, in nats.
      accuracy: share of the pairs whose margin is above 0.
    """

    total: Array
    margin: Array
    accuracy: Array


def dpo_loss(
    *,
    chosen: Float[Array, "pair"],
    rejected: Float[Array, "pair"],
    reference_chosen: Float[Array, "pair"],
    reference_rejected: Float[Array, "pair"],
    counted: Bool[Array, "pair"],
    beta: float = 0.1,
    divisor: Float[Array, ""] | None = None,
) -> PreferenceLoss:
    """Return -log sigmoid(beta ((logpi_c - logpi_r) - (logref_c - logref_r))), averaged over pairs.

    Args:
      chosen: [pair], log-probability of the better reply, summed over its tokens.
      rejected: [pair], of the worse one.
      reference_chosen: [pair], of the better one by the frozen start.
      reference_rejected: [pair], of the worse one by the frozen start.
      counted: bool [pair]; where False the others may hold anything and reach neither value nor gradient.
      beta: scale of the margin; the public code has none, the default is ours.
      divisor: number of pairs of the global batch; None for this batch alone.

    Returns:
      float32; 0 without a pair.
    """
    kept = [
        jnp.where(counted, values.astype(jnp.float32), 0.0)
        for values in (chosen, rejected, reference_chosen, reference_rejected)
    ]
    margins = (kept[0] - kept[1]) - (kept[2] - kept[3])
    total = jnp.maximum(jnp.sum(counted, dtype=jnp.float32) if divisor is None else divisor, 1.0)

    def average(values: Array) -> Array:
        return jnp.sum(jnp.where(counted, values, 0.0)) / total

    right = (margins > 0).astype(jnp.float32)
    return PreferenceLoss(average(jax.nn.softplus(-beta * margins)), average(margins), average(right))
