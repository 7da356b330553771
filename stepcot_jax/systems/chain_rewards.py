"""Rewards of sampled chains: the diagnosis is right, steps are right, no two answers contradict each other."""

import dataclasses

import flax.struct
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from stepcot_jax.evaluation.consistency import Rules
from stepcot_jax.host.errors import BadInput
from stepcot_jax.settings.policy_sections import RewardsSettings


class RewardParts(flax.struct.PyTreeNode):
    """Rewards of chains and their parts, 0 to 1; NaN where a part is undefined.

    Attributes:
      total: [*chain], the weighted sum of the parts; NaN where a part with a weight above 0 is undefined.
      diagnosis: [*chain], 1 if the last step is right; NaN where it is not annotated.
      steps: [*chain], share of the annotated steps that are right; NaN where none is annotated.
      consistent: [*chain], 1 if the chain has no forbidden pair of answers; needs no label.
    """

    total: Array
    diagnosis: Array
    steps: Array
    consistent: Array


@dataclasses.dataclass(frozen=True)
class ChainRewards:
    """The reward of a chain: a weighted sum of three parts.

    Attributes:
      rules: pairs of answers that contradict each other (`evaluation.consistency`).
      steps_weight: of the share of right steps.
      chain_weight: of a chain without a contradiction.
    """

    rules: Rules
    diagnosis_weight: float = 1.0
    steps_weight: float = 0.0
    chain_weight: float = 0.0

    def __post_init__(self) -> None:
        if not self.highest > 0:
            raise BadInput(
                "config.rewards.diagnosis_weight, steps_weight and chain_weight: all are 0; expected one above 0 with "
                "config.job='chain_grpo'"
            )

    @classmethod
    def from_settings(cls, rewards: RewardsSettings, rules: Rules) -> "ChainRewards":
        """Return the rewards of a run's settings."""
        return cls(rules, rewards.diagnosis_weight, rewards.steps_weight, rewards.chain_weight)

    @property
    def highest(self) -> float:
        """Reward of a chain that is right in every part."""
        return self.diagnosis_weight + self.steps_weight + self.chain_weight

    def score(self, *, chains: Int[Array, "*chain step"], labels: Int[Array, "*chain step"]) -> RewardParts:
        """Return the rewards of chains."""
        annotated, right = labels >= 0, chains == labels
        number = jnp.sum(annotated, axis=-1, dtype=jnp.float32)
        num_right = jnp.sum(right & annotated, axis=-1, dtype=jnp.float32)
        diagnosis = jnp.where(annotated[..., -1], right[..., -1].astype(jnp.float32), jnp.nan)
        steps = jnp.where(number > 0, num_right / jnp.maximum(number, 1.0), jnp.nan)
        consistent = self.consistent(chains)
        weights = (self.diagnosis_weight, self.steps_weight, self.chain_weight)
        # A part without weight is left out, so that its NaN does not count.
        weighted = [w * part for w, part in zip(weights, (diagnosis, steps, consistent), strict=True) if w > 0]
        return RewardParts(sum(weighted[1:], weighted[0]), diagnosis, steps, consistent)

    def consistent(self, chains: Int[Array, "*chain step"]) -> Float[Array, "*chain"]:
        """Return 1 for each chain without a forbidden pair, as `evaluation.consistency.inconsistent` finds them."""
        found = jnp.ones(chains.shape[:-1], bool)
        for (earlier, later), allowed in self.rules.allowed.items():
            if not np.all(allowed):
                found &= jnp.asarray(allowed)[chains[..., earlier], chains[..., later]]
        return found.astype(jnp.float32)
