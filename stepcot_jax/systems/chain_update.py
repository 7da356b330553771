"""One update of a teacher by rewards: sample chains, score them, and follow the policy gradient (GEMeX-RMCoT: Eq. 2).

The tokens are the steps' answers. Rewards are functions of arrays, so everything is one compiled program. A case and
all of its chains lie on one device; only numbers cross devices: gradients, and the rewards of all chains, which
shuffling and the deviation of the batch need.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int

from stepcot_jax.losses.advantages import Scale, advantages
from stepcot_jax.losses.policy_gradient import PolicyGradient, aggregate_weight, policy_gradient_loss
from stepcot_jax.policies.chain_policy import Read, sample_chains, score_chains
from stepcot_jax.policies.rollouts import rollout_keys
from stepcot_jax.settings.policy_sections import GrpoSettings
from stepcot_jax.systems.chain_rewards import ChainRewards, RewardParts
from stepcot_jax.systems.gradients import differentiate_batch, teacher_part
from stepcot_jax.systems.grpo_objective import REFERENCE, make_objective
from stepcot_jax.systems.networks import Batch, Networks, encode_images, read_as_teacher
from stepcot_jax.systems.updates import certain_labels, split_shared
from stepcot_jax.training.global_batch import ONE_DEVICE, GlobalBatch
from stepcot_jax.training.optimizers import global_norm
from stepcot_jax.training.state import Params, TrainState, apply_gradients
from stepcot_jax.training.system import Update

OPTIMIZER = "chain_grpo"
"""Name of the optimizer's state."""

_SHUFFLE = 0x5F  # of the update's random key, apart from those of the rollouts


@dataclasses.dataclass(frozen=True)
class ChainRollouts:
    """How chains are sampled and compared within their group.

    Attributes:
      group_size: chains of a case, 2 or more.
      num_updates: passes over the sampled chains.
      temperature: of sampling and of every log-probability.
      shuffle_rewards: exchange the rewards among the scored chains of the batch, a control that must not learn.
    """

    objective: PolicyGradient = dataclasses.field(default_factory=PolicyGradient)
    group_size: int = 8
    num_updates: int = 1
    temperature: float = 1.0
    std_ddof: int = 1
    std_epsilon: float = 1e-6
    scale: Scale = "group"
    shuffle_rewards: bool = False

    @classmethod
    def from_settings(cls, grpo: GrpoSettings) -> "ChainRollouts":
        """Return what the settings say; `grpo.mask_truncated` is of no use, as every chain has all steps."""
        return cls(
            objective=make_objective(grpo),
            group_size=grpo.group_size,
            num_updates=grpo.num_updates,
            temperature=grpo.temperature,
            std_ddof=grpo.std_ddof,
            std_epsilon=grpo.std_epsilon,
            scale=grpo.scale,
            shuffle_rewards=grpo.shuffle_rewards,
        )


class ChainMetrics(flax.struct.PyTreeNode):
    """What an update reports, by name; scalars of the global batch."""

    numbers: dict[str, Array]


def make_chain_update(
    networks: Networks, rewards: ChainRewards, rollouts: ChainRollouts, optimizer: optax.GradientTransformation
) -> Update:
    """Return one device's update: (state, batch) -> (state, metrics); it trains what `gradients.teacher_part` names.

    Dropout is off, in sampling and in every log-probability: the ratio of the first pass is 1.
    """

    def update(state: TrainState, batch: Batch, whole: GlobalBatch = ONE_DEVICE) -> tuple[TrainState, ChainMetrics]:
        rows, text_features = split_shared(batch)
        sampled, numbers = sample_rollouts(networks, rewards, rollouts, state, rows, text_features, whole)
        counted = _flat(jnp.broadcast_to(sampled["scored"][..., None], sampled["chains"].shape))
        total = whole.add_up(aggregate_weight(counted, rollouts.objective))

        def loss(trained: Params, rows: Batch, first_case: Any) -> tuple[Array, tuple[dict[str, Array], Array]]:
            del first_case  # there is no dropout
            features = encode_images(networks, trained, rows)
            read = _make_reader(networks, trained["teacher"], features, text_features, rollouts.group_size)
            own = {name: _flat(rows[name]) for name in ("chains", "old", "reference", "advantage", "scored")}
            found = policy_gradient_loss(
                log_probs=score_chains(read, own["chains"], temperature=rollouts.temperature),
                old_log_probs=own["old"],
                reference_log_probs=own["reference"],
                advantage=own["advantage"][:, None],
                counted=jnp.broadcast_to(own["scored"][:, None], own["chains"].shape),
                settings=rollouts.objective,
                whole=total,
            )
            return found.total, ({"total": found.total, "kl": found.divergence, "clipped": found.clipped}, features)

        def one_pass(state: TrainState, _: None) -> tuple[TrainState, dict[str, Array]]:
            parts, _features, gradients = differentiate_batch(
                loss, teacher_part(state.params), {**rows, **sampled}, whole
            )
            state = apply_gradients(state, OPTIMIZER, optimizer, gradients)
            return state, {**parts, "gradient_norm": global_norm(gradients)}

        state, of_passes = jax.lax.scan(one_pass, state, length=rollouts.num_updates)
        numbers |= {name: jnp.mean(values) for name, values in of_passes.items()}
        return state.replace(step=state.step + 1), ChainMetrics(numbers)

    return update


def sample_rollouts(
    networks: Networks,
    rewards: ChainRewards,
    rollouts: ChainRollouts,
    state: TrainState,
    rows: Batch,
    text_features: Array | None,
    whole: GlobalBatch = ONE_DEVICE,
) -> tuple[Batch, dict[str, Array]]:
    """Sample chains of a device's cases with the update's key, and score them.

    Returns:
      By name, [case, rollout, ...]: "chains" and the log-probabilities "old" and "reference" [case, rollout, step],
      "advantage" and "scored" [case, rollout]; and numbers of the global batch.
    """
    labels, size = certain_labels(rows), rollouts.group_size
    num_cases, num_steps = labels.shape
    read, of_reference = (
        _make_reader(networks, own["teacher"], encode_images(networks, own, rows), text_features, size)
        for own in (state.params, state.params[REFERENCE])
    )
    key = state.key_of_update()
    keys = rollout_keys(key, first=size * whole.first_case(num_cases), number=num_cases * size)
    chains = sample_chains(read, num_steps=num_steps, keys=keys, temperature=rollouts.temperature)
    old = score_chains(read, chains, temperature=rollouts.temperature)
    reference = score_chains(of_reference, chains, temperature=rollouts.temperature)
    grouped = chains.reshape(num_cases, size, num_steps)
    parts = rewards.score(chains=grouped, labels=jnp.broadcast_to(labels[:, None], grouped.shape))
    total = whole.gather(parts.total)
    if rollouts.shuffle_rewards:
        total = shuffle_scored(total, key=jax.random.fold_in(key, _SHUFFLE))
    advantage = advantages(total, std_ddof=rollouts.std_ddof, std_epsilon=rollouts.std_epsilon, scale=rollouts.scale)
    own_rows = jax.lax.dynamic_slice_in_dim(advantage, whole.first_case(num_cases), num_cases)
    sampled = {
        "chains": grouped,
        "old": old.reshape(grouped.shape),
        "reference": reference.reshape(grouped.shape),
        "advantage": own_rows,
        "scored": ~jnp.isnan(parts.total),
    }
    return jax.lax.stop_gradient(sampled), _describe(parts, total, old, whole)


def shuffle_scored(rewards: Float[Array, "case rollout"], *, key: Array) -> Float[Array, "case rollout"]:
    """Return the rewards in random order over the whole batch; NaN stays where it is."""
    flat = rewards.reshape(-1)
    unscored = jnp.isnan(flat)
    drawn = jnp.lexsort((jax.random.uniform(key, flat.shape), unscored))
    places = jnp.argsort(unscored, stable=True)
    return jnp.zeros_like(flat).at[places].set(flat[drawn]).reshape(rewards.shape)


def _describe(
    parts: RewardParts, total: Float[Array, "case rollout"], old: Float[Array, "rollout step"], whole: GlobalBatch
) -> dict[str, Array]:
    """Return means over the global batch; `total` is that of all devices. 0 where nothing is scored."""
    means = {
        "reward": parts.total,
        "reward_diagnosis": parts.diagnosis,
        "reward_steps": parts.steps,
        "reward_consistent": parts.consistent,
        "entropy": -old,
    }
    sums = {name: (jnp.nansum(own), jnp.sum(~jnp.isnan(own), dtype=jnp.float32)) for name, own in means.items()}
    numbers = {name: one / jnp.maximum(number, 1.0) for name, (one, number) in whole.add_up(sums).items()}
    scored = jnp.sum(~jnp.isnan(total), axis=1) > 1
    highest, lowest = jnp.nanmax(total, axis=1), jnp.nanmin(total, axis=1)
    numbers["equal_groups"] = _share(scored & (highest == lowest), scored)
    numbers["scored"] = jnp.mean(~jnp.isnan(total), dtype=jnp.float32)
    return numbers


def _share(found: Bool[Array, " case"], among: Bool[Array, " case"]) -> Float[Array, ""]:
    return jnp.sum(found, dtype=jnp.float32) / jnp.maximum(jnp.sum(among, dtype=jnp.float32), 1.0)


def _make_reader(
    networks: Networks, teacher: Mapping[str, Any], features: Array, text_features: Array | None, size: int
) -> Read:
    """Return the teacher's logits of `size` chains a case, without dropout, as a function of the answers so far."""
    repeated = jnp.repeat(features, size, axis=0)

    def read(given: Int[Array, "rollout step"]) -> Float[Array, "rollout step answer"]:
        logits: Array = read_as_teacher(
            networks, dict(teacher), repeated, text_features, given_answers=given, key=None
        ).logits
        return logits

    return read


def _flat(rows: Array) -> Array:
    """[case, rollout, ...] -> [case times rollout, ...]."""
    return rows.reshape(-1, *rows.shape[2:])
