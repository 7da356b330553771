"""The phase "dpo": the policy prefers the better of two of its start's replies (MEDSAGE's public code, 4c8030a).

For each prompt the frozen start samples a group of replies; the pair is the valid one of the highest reward and the
valid one of the lowest. The replies depend on the run's seed and the prompt alone: a prompt that comes again, and a run
that is resumed, has the same pair, which therefore needs no file.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from stepcot_jax.losses.policy_gradient import dpo_loss
from stepcot_jax.models.stacked_layers import unstack_layers
from stepcot_jax.policies.policy import AnyPolicy, lay_out_update, policy_params
from stepcot_jax.policies.sampling import Replies, generate, rollout_keys
from stepcot_jax.systems.grpo import Rollouts, sampled_log_probs, score_in_passes
from stepcot_jax.systems.options import DPO, REFERENCE, DpoOptions
from stepcot_jax.systems.sft import POLICY, Batch, Normalise
from stepcot_jax.training.devices import GlobalBatch, differentiate
from stepcot_jax.training.optimizers import global_norm
from stepcot_jax.training.state import Params, TrainState, apply_gradients
from stepcot_jax.training.system import COLLECTED_NUMBERS

_STREAM = 2**31 - 4  # folded into the run's key; no update is as late
_FROZEN = "reference_log_probs"


@dataclasses.dataclass(frozen=True)
class DpoUpdate:
    """One device's update on its pairs of replies, the chosen one first."""

    policy: AnyPolicy
    normalise: Normalise
    optimizer: optax.GradientTransformation
    settings: DpoOptions

    def log_probs(self, params: Params, rows: Batch) -> Float[Array, "pair 2"]:
        """Return the log-probability of each reply, summed over its tokens."""
        found = sampled_log_probs(self.policy, self.normalise, params, rows, temperature=self.settings.temperature)
        return jnp.sum(found, axis=1).reshape(-1, 2)

    def gradients(self, params: Params, batch: Batch, global_batch: GlobalBatch) -> tuple[dict[str, Array], Params]:
        """Return the numbers of the global batch and the gradients of its loss."""
        divisor = global_batch.add_up(jnp.sum(batch["paired"], dtype=jnp.float32))
        params = lay_out_update(self.policy, params, global_batch.num_passes)

        def loss(trained: Params, rows: Batch) -> tuple[Array, dict[str, Array]]:
            current = self.log_probs(policy_params({**params, **trained}, POLICY), rows)
            losses = dpo_loss(
                chosen=current[:, 0],
                rejected=current[:, 1],
                reference_chosen=rows[_FROZEN][:, 0],
                reference_rejected=rows[_FROZEN][:, 1],
                counted=rows["paired"],
                beta=self.settings.beta,
                divisor=divisor,
            )
            return losses.total, {"loss": losses.total, "margin": losses.margin, "accuracy": losses.accuracy}

        numbers, gradients = differentiate(loss, {POLICY: params[POLICY]}, batch, global_batch)
        return numbers, unstack_layers(gradients)

    def freeze(self, params: Params, batch: Batch, global_batch: GlobalBatch) -> Batch:
        """Return a batch with the log-probabilities of the frozen start."""
        frozen = lay_out_update(self.policy, policy_params(params, REFERENCE), global_batch.num_passes)
        found = score_in_passes(lambda rows: self.log_probs(frozen, rows), batch, global_batch)
        return {**batch, _FROZEN: found.reshape(-1, 2)}

    def __call__(
        self, state: TrainState, batch: Batch, global_batch: GlobalBatch
    ) -> tuple[TrainState, dict[str, Array]]:
        """Return the state after the update, and the numbers before it."""
        batch = self.freeze(state.params, batch, global_batch)
        numbers, gradients = self.gradients(state.params, batch, global_batch)
        numbers = {**numbers, "gradient_norm": global_norm(gradients)}
        state = apply_gradients(state, DPO, self.optimizer, gradients)
        named = {f"{DPO}/{name}": number for name, number in numbers.items()}
        return state.replace(step=state.step + jnp.int32(1)), named


def choose_pair(rewards: Float[np.ndarray, "reply"]) -> tuple[int, int] | None:
    """Return the replies of the highest and the lowest reward above 0, the first of equal ones; None without a pair.

    A reply that is not valid earns 0 by the released gate, and a valid one at least the reward of its format.
    """
    valid = np.flatnonzero(rewards > 0)  # NaN, an unscored reply, is not above 0
    if not len(valid):
        return None
    best, worst = (int(valid[choose(rewards[valid])]) for choose in (np.argmax, np.argmin))
    return (best, worst) if rewards[best] > rewards[worst] else None


@dataclasses.dataclass
class Pairs(Rollouts):
    """Makes the batch of a DPO update from prompts."""

    def __post_init__(self) -> None:
        super().__post_init__()
        group, sampling = self.settings.group_size, self.sampling

        def sample(params: Any, rows: Mapping[str, Array], key: Array) -> Replies:
            stream = jax.random.fold_in(key, _STREAM)
            own = [jax.vmap(lambda index: jax.random.fold_in(stream, index))(rows["index"])]
            keys = jax.vmap(lambda key: rollout_keys(key, first=0, number=group))(*own).reshape(-1, 2)
            images = self.normalise(rows["images"])
            return generate(self.policy, params, images, rows["prompts"], rows["lengths"], sampling=sampling, keys=keys)

        self._sample = jax.jit(sample, out_shardings=self.devices.replicated)

    def sample(self, state: TrainState, batch: Batch) -> Replies:
        """Return the frozen start's replies to the prompts of all processes, on the host, grouped by prompt."""
        rows = self.devices.put_rows({name: batch[name] for name in ("images", "prompts", "lengths", "index")})
        key = jax.random.wrap_key_data(state.key)
        replies: Replies = jax.device_get(self._sample(policy_params(state.params, REFERENCE), rows, key))
        return replies

    def __call__(self, state: TrainState, batch: Batch) -> Batch:
        """Return prompts with the chosen and the rejected reply, [prompt, 2, ...], and numbers for the log."""
        replies = self.sample_groups(state, batch)
        tokens, counted = np.asarray(replies.tokens), np.asarray(replies.counted)
        parts = self._reward_all(tokens, batch["index"])
        pairs = [choose_pair(group) for group in parts["total"]]
        paired = np.array([pair is not None for pair in pairs])
        rows, places = np.arange(len(pairs))[:, None], np.array([pair or (0, 0) for pair in pairs])
        gathered = self.devices.gather_rows({"paired": paired, **parts})
        shares = self.signal.note_unread(gathered)
        self.count(gathered["total"], differs=bool(gathered["paired"].any()), step=int(jax.device_get(state.step)))
        return {
            **{name: batch[name] for name in ("images", "prompts", "lengths")},
            "completions": tokens[rows, places],
            "counted": counted[rows, places] & paired[:, None, None],
            "paired": paired,
            COLLECTED_NUMBERS: {
                "rollouts/pairs": float(gathered["paired"].mean()),
                "rollouts/valid": float((gathered["total"] > 0).mean()),
                "rollouts/reward/total": float(np.nanmean(gathered["total"])),
                **shares,
            },
        }
