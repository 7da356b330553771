"""The compiled update of group-relative policy optimisation (GEMeX-RMCoT: Eq. 2; MEDSAGE: Eq. 10 to 12)."""

import dataclasses

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float

from stepcot_jax.losses.policy_gradient import aggregate_weight, policy_gradient_loss, self_check_loss
from stepcot_jax.losses.sequence import token_log_probs
from stepcot_jax.policies.policy_choice import AnyPolicy, policy_params
from stepcot_jax.settings.policy_sections import GrpoSettings, SelfCheckSettings
from stepcot_jax.systems.grpo_objective import REFERENCE, make_objective
from stepcot_jax.systems.sft import POLICY, Batch, Normalise
from stepcot_jax.training.global_batch import GlobalBatch, differentiate
from stepcot_jax.training.optimizers import global_norm
from stepcot_jax.training.state import Params, TrainState, apply_gradients

NAME = "grpo"
"""Of the phase, its optimizer and its best weights."""

_OLD, _FROZEN = "old_log_probs", "reference_log_probs"


@dataclasses.dataclass(frozen=True)
class GrpoUpdate:
    """One device's update on its prompts with their groups of completions.

    Attributes:
      self_check: of the self-check's term, where batches carry one.
    """

    policy: AnyPolicy
    normalise: Normalise
    optimizer: optax.GradientTransformation
    settings: GrpoSettings
    self_check: SelfCheckSettings

    def log_probs(self, params: Params, rows: Batch) -> Float[Array, "rollout token"]:
        """Return the log-probability of each sampled token, at the temperature of sampling."""
        completions = _flat(rows["completions"])
        logits = self.policy.apply(
            {"params": params},
            self.normalise(rows["images"]),
            rows["prompts"],
            rows["lengths"],
            completions,
            hidden=_flat(rows["hidden"]) if "hidden" in rows else None,
        )
        return token_log_probs(
            logits=logits,
            tokens=completions,
            counted=_flat(rows["counted"]),
            temperature=self.settings.temperature,
        )

    def gradients(
        self, params: Params, batch: Batch, whole: GlobalBatch, *, is_first: Bool[Array, ""] | None = None
    ) -> tuple[dict[str, Array], Params]:
        """Return the numbers of the global batch and the gradients of its loss.

        Args:
          is_first: whether this is the first pass over the batch, whose ratios are then exactly 1; None: all ratios are
            those to the batch's old log-probabilities.
        """
        objective = make_objective(self.settings)
        divisor = whole.add_up(aggregate_weight(_flat(batch["counted"]), objective))
        num_completions = whole.add_up(jnp.float32(batch["counted"].shape[0] * batch["counted"].shape[1]))

        def loss(trained: Params, rows: Batch) -> tuple[Array, dict[str, Array]]:
            log_probs = self.log_probs(policy_params({**params, **trained}, POLICY), rows)
            own = jax.lax.stop_gradient(log_probs)
            old = _flat(rows[_OLD]) if _OLD in rows else own
            found = policy_gradient_loss(
                log_probs=log_probs,
                old_log_probs=old if is_first is None else jnp.where(is_first, own, old),
                reference_log_probs=_flat(rows[_FROZEN]),
                advantage=_flat(rows["advantages"]),
                counted=_flat(rows["counted"]),
                settings=objective,
                whole=divisor,
            )
            # Without a penalty there is no frozen start, and the divergence would be that from the sampling policy.
            numbers = {"kl": found.divergence} if self.settings.beta else {}
            numbers["clipped"] = found.clipped
            total = found.total
            if "check" in rows:
                numbers["self_check_loss"] = self_check_loss(
                    log_probs=log_probs,
                    check=_flat(rows["check"]),
                    success=_flat(rows["check_success"]),
                    alpha=self.self_check.alpha,
                    norm=self.self_check.norm,
                    whole=num_completions,
                )
                total = total + numbers["self_check_loss"]
            return total, {"loss": total, **numbers}

        return differentiate(loss, {POLICY: params[POLICY]}, batch, whole)

    def freeze(self, params: Params, batch: Batch, whole: GlobalBatch) -> Batch:
        """Return a batch with the log-probabilities that an update compares with.

        Those of the frozen start, for the penalty; without one they are not needed. Those of the policy that sampled:
        below float32 a full pass rounds otherwise than the cached passes of sampling, so that their ratios would be
        noise; later passes then compare with a full pass, and the first has ratios of exactly 1.
        """
        rows = {name: value for name, value in batch.items() if name not in (_OLD, _FROZEN)}

        def score(params: Params) -> Array:
            found = (
                self.log_probs(params, rows)
                if whole.num_passes == 1
                else jax.lax.map(lambda part: self.log_probs(params, part), whole.split(rows)[0])
            )
            return jax.lax.stop_gradient(found).reshape(batch["counted"].shape)

        frozen = score(policy_params(params, REFERENCE)) if self.settings.beta else batch[_OLD]
        if jnp.dtype(self.policy.dtype) == jnp.float32:
            return {**batch, _FROZEN: frozen}
        if self.settings.num_updates == 1:
            return {**rows, _FROZEN: frozen}
        return {**rows, _FROZEN: frozen, _OLD: score(policy_params(params, POLICY))}

    def __call__(self, state: TrainState, batch: Batch, whole: GlobalBatch) -> tuple[TrainState, dict[str, Array]]:
        """Return the state after `num_updates` passes over the batch, and the numbers of the last pass."""
        batch = self.freeze(state.params, batch, whole)
        is_exact = jnp.dtype(self.policy.dtype) == jnp.float32

        def one_pass(state: TrainState, place: Array) -> tuple[TrainState, dict[str, Array]]:
            # On several devices a full pass alone may round otherwise than one with gradients.
            is_first = None if is_exact else place == 0
            numbers, gradients = self.gradients(state.params, batch, whole, is_first=is_first)
            numbers = {**numbers, "gradient_norm": global_norm(gradients)}
            return apply_gradients(state, NAME, self.optimizer, gradients), numbers

        if self.settings.num_updates == 1:
            state, numbers = one_pass(state, jnp.int32(0))
        else:
            state, every = jax.lax.scan(one_pass, state, jnp.arange(self.settings.num_updates, dtype=jnp.int32))
            numbers = jax.tree.map(lambda values: values[-1], every)
        return state.replace(step=state.step + jnp.int32(1)), {
            f"{NAME}/{name}": number for name, number in numbers.items()
        }


def _flat(rows: Array) -> Array:
    """[row, rollout, ...] -> [row * rollout, ...]; the rollouts of a prompt follow each other."""
    return rows.reshape(-1, *rows.shape[2:])
