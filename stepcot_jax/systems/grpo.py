"""The compiled update of group-relative policy optimisation (GEMeX-RMCoT: Eq. 2; MEDSAGE: Eq. 10 to 12)."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float

from stepcot_jax.host.errors import BadInput, RunStopped
from stepcot_jax.losses.policy_gradient import (
    PolicyGradient,
    advantages,
    aggregate_weight,
    policy_gradient_loss,
    self_check_loss,
)
from stepcot_jax.losses.sequence import token_log_probs
from stepcot_jax.models.stacked_layers import unstack_layers
from stepcot_jax.policies.policy import AnyPolicy, lay_out_update, policy_params
from stepcot_jax.policies.sampling import Replies, Sampling, generate, rollout_keys
from stepcot_jax.policies.tokenizers import Tokenizer
from stepcot_jax.reasoning.dialects import read_reply
from stepcot_jax.reasoning.replies import Judged, Reply
from stepcot_jax.record import Record
from stepcot_jax.rewards.answers import suit, why_unread
from stepcot_jax.rewards.functions import RewardFunction
from stepcot_jax.rewards.options import RewardSettings
from stepcot_jax.rewards.presets import apply_settings, make_functions
from stepcot_jax.systems.options import REFERENCE, GrpoOptions, SelfCheckOptions
from stepcot_jax.systems.sft import POLICY, Batch, Normalise
from stepcot_jax.training.devices import Devices, GlobalBatch, differentiate
from stepcot_jax.training.optimizers import global_norm
from stepcot_jax.training.state import Params, TrainState, apply_gradients
from stepcot_jax.training.system import COLLECTED_NUMBERS

if TYPE_CHECKING:
    from stepcot_jax.systems.self_check import Attempts, SelfCheck

# The objective of GRPO.


def make_objective(settings: GrpoOptions) -> PolicyGradient:
    """Return the objective that the options describe."""
    return PolicyGradient(
        ratio=settings.ratio,
        clip_low=settings.clip_low,
        clip_high=settings.clip_high,
        dual_clip=settings.dual_clip,
        beta=settings.beta,
        divergence=settings.kl,
        clamp_log_ratio=settings.clamp_log_ratio or None,
        clamp_divergence=settings.clamp_kl or None,
        length_norm=settings.length_norm,
        divergence_norm=settings.kl_norm,
    )


NAME = "grpo"
"""Name of the phase, its optimizer and its best weights."""

_OLD, _FROZEN = "old_log_probs", "reference_log_probs"


@dataclasses.dataclass(frozen=True)
class GrpoUpdate:
    """One device's update on its prompts with their groups of completions."""

    policy: AnyPolicy
    normalise: Normalise
    optimizer: optax.GradientTransformation
    settings: GrpoOptions
    self_check: SelfCheckOptions

    def log_probs(self, params: Params, rows: Batch) -> Float[Array, "rollout token"]:
        """Return the log-probability of each sampled token, at the temperature of sampling."""
        return sampled_log_probs(self.policy, self.normalise, params, rows, temperature=self.settings.temperature)

    def gradients(
        self, params: Params, batch: Batch, global_batch: GlobalBatch, *, is_first: Bool[Array, ""] | None = None
    ) -> tuple[dict[str, Array], Params]:
        """Return the numbers of the global batch and the gradients of its loss; ratios are exactly 1 if `is_first`."""
        objective = make_objective(self.settings)
        divisor = global_batch.add_up(aggregate_weight(flatten_groups(batch["counted"]), objective))
        num_completions = global_batch.add_up(jnp.float32(batch["counted"].shape[0] * batch["counted"].shape[1]))
        params = lay_out_update(self.policy, params, global_batch.num_passes)

        def loss(trained: Params, rows: Batch) -> tuple[Array, dict[str, Array]]:
            log_probs = self.log_probs(policy_params({**params, **trained}, POLICY), rows)
            current = jax.lax.stop_gradient(log_probs)
            old = flatten_groups(rows[_OLD]) if _OLD in rows else current
            losses = policy_gradient_loss(
                log_probs=log_probs,
                old_log_probs=old if is_first is None else jnp.where(is_first, current, old),
                reference_log_probs=flatten_groups(rows[_FROZEN]),
                advantage=flatten_groups(rows["advantages"]),
                counted=flatten_groups(rows["counted"]),
                settings=objective,
                divisor=divisor,
            )
            # Without a penalty there is no frozen start, and the divergence would be that from the sampling policy.
            numbers = {"kl": losses.divergence} if self.settings.beta else {}
            numbers["clipped"] = losses.clipped
            total = losses.total
            if "check" in rows:
                numbers["self_check_loss"] = self_check_loss(
                    log_probs=log_probs,
                    check=flatten_groups(rows["check"]),
                    success=flatten_groups(rows["check_success"]),
                    alpha=self.self_check.alpha,
                    norm=self.self_check.norm,
                    divisor=num_completions,
                )
                total = total + numbers["self_check_loss"]
            return total, {"loss": total, **numbers}

        numbers, gradients = differentiate(loss, {POLICY: params[POLICY]}, batch, global_batch)
        return numbers, unstack_layers(gradients)

    def freeze(self, params: Params, batch: Batch, global_batch: GlobalBatch) -> Batch:
        """Return a batch with the log-probabilities that an update compares with.

        Those of the frozen start are for the penalty; without one they are not needed. Those of the sampling policy are
        computed again below float32, where a full pass rounds differently from the cached passes of sampling and their
        ratios would be noise: the first pass then has ratios of exactly 1, and later ones compare with a full pass.
        """
        rows = {name: value for name, value in batch.items() if name not in (_OLD, _FROZEN)}

        def score(params: Params) -> Array:
            laid = lay_out_update(self.policy, params, global_batch.num_passes)
            log_probs = score_in_passes(lambda part: self.log_probs(laid, part), rows, global_batch)
            return log_probs.reshape(batch["counted"].shape)

        frozen = score(policy_params(params, REFERENCE)) if self.settings.beta else batch[_OLD]
        if jnp.dtype(self.policy.dtype) == jnp.float32:
            return {**batch, _FROZEN: frozen}
        if self.settings.num_updates == 1:
            return {**rows, _FROZEN: frozen}
        return {**rows, _FROZEN: frozen, _OLD: score(policy_params(params, POLICY))}

    def __call__(
        self, state: TrainState, batch: Batch, global_batch: GlobalBatch
    ) -> tuple[TrainState, dict[str, Array]]:
        """Return the state after `num_updates` passes over the batch, and the numbers of the last pass."""
        batch = self.freeze(state.params, batch, global_batch)
        is_exact = jnp.dtype(self.policy.dtype) == jnp.float32

        def one_pass(state: TrainState, index: Array) -> tuple[TrainState, dict[str, Array]]:
            # On several devices a full pass may round differently without gradients than with them.
            is_first = None if is_exact else index == 0
            numbers, gradients = self.gradients(state.params, batch, global_batch, is_first=is_first)
            numbers = {**numbers, "gradient_norm": global_norm(gradients)}
            return apply_gradients(state, NAME, self.optimizer, gradients), numbers

        if self.settings.num_updates == 1:
            state, numbers = one_pass(state, jnp.int32(0))
        else:
            state, of_passes = jax.lax.scan(one_pass, state, jnp.arange(self.settings.num_updates, dtype=jnp.int32))
            numbers = jax.tree.map(lambda values: values[-1], of_passes)
        return state.replace(step=state.step + jnp.int32(1)), {
            f"{NAME}/{name}": number for name, number in numbers.items()
        }


def sampled_log_probs(
    policy: AnyPolicy, normalise: Normalise, params: Params, rows: Batch, *, temperature: float
) -> Float[Array, "rollout token"]:
    """Return the log-probability of each token of completions [row, rollout, token]; 0 where it does not count."""
    completions = flatten_groups(rows["completions"])
    logits = policy.apply(
        {"params": params},
        normalise(rows["images"]),
        rows["prompts"],
        rows["lengths"],
        completions,
        hidden=flatten_groups(rows["hidden"]) if "hidden" in rows else None,
    )
    counted = flatten_groups(rows["counted"])
    return token_log_probs(logits=logits, tokens=completions, counted=counted, temperature=temperature)


def score_in_passes(score: Callable[[Batch], Array], rows: Batch, global_batch: GlobalBatch) -> Array:
    """Return scores of a device's rows without gradients, computed pass by pass; those of passes are stacked."""
    scores = score(rows) if global_batch.num_passes == 1 else jax.lax.map(score, global_batch.split(rows)[0])
    return jax.lax.stop_gradient(scores)


def flatten_groups(rows: Array) -> Array:
    """[row, rollout, ...] -> [row * rollout, ...]; the rollouts of a prompt follow each other."""
    return rows.reshape(-1, *rows.shape[2:])


_UNREAD = ("unread_answers", "unread_boxes")
"""Shares beside the rewards, which earn nothing."""

# Updates without a signal, as all rewards of a group are equal, are counted and reported.


@dataclasses.dataclass
class RewardSignal:
    """Counts updates by rewards, and those without a signal, since the last start of the run."""

    num_updates: int = 0
    num_equal: int = 0
    num_unscored: int = 0
    num_in_a_row: int = 0
    mean: float = float("nan")
    unread: str = ""  # of the last update

    def add(self, *, mean: float, differs: bool) -> None:
        """Count an update."""
        is_scored = not math.isnan(mean)
        self.num_updates += 1
        self.num_unscored += not is_scored
        self.num_equal += is_scored and not differs
        self.num_in_a_row = 0 if is_scored and differs else self.num_in_a_row + 1
        self.mean = mean if is_scored else self.mean

    def note_unread(self, rewards: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Return the shares of unread answers and boxes of an update, for the log; messages repeat the last ones."""
        shares = {name: _mean(rewards[name]) for name in _UNREAD if not np.isnan(rewards[name]).all()}
        told = [f"{100 * share:.0f} % {name.replace('_', ' ')}" for name, share in shares.items() if share > 0]
        self.unread = f"; {', '.join(told)} in the last update" if told else ""
        return {f"rollouts/{name}": share for name, share in shares.items()}

    def warn(self, phase: str) -> str:
        """Return a warning if a phase could learn nothing from its rewards, else ""; "" also without an update."""
        if not self.num_updates or self.num_equal + self.num_unscored < self.num_updates:
            return ""
        advice = "nothing was learnt from them: check config.rewards, or fine-tune longer"
        if not self.num_equal:
            return f"phase {phase!r}: no reward in {self.num_updates} updates was defined (all are NaN); {advice}"
        unscored = f", {self.num_unscored} without any reward" if self.num_unscored else ""
        return (
            f"phase {phase!r}: the rewards of the replies to each prompt were equal in all {self.num_updates} updates "
            f"(mean {self.mean:.3f}{unscored}){self.unread}; {advice}"
        )


# Rollouts of an update on the host: sample replies, read and reward them, and compare each with its group.


_SHUFFLE = 5  # stream of random numbers; sampling uses others
_PATIENCE = 20


class Rating(Protocol):
    """Rates open answers, such as `JudgedRewards`: one rating for each reply, None where none is needed."""

    def __call__(self, replies: Iterable[tuple[Record, Reply]]) -> list[Judged | None]:
        """Return the rating of each reply; collective."""

    def close(self) -> None:
        """Close connections and files."""


@dataclasses.dataclass
class Rollouts:
    """Makes the batch of a GRPO update from prompts; a function of the state and the prompts."""

    policy: AnyPolicy
    normalise: Normalise
    tokenizer: Tokenizer
    dialect: str
    with_thinking: bool
    records: Sequence[Record]
    devices: Devices
    settings: GrpoOptions
    rewards: RewardSettings
    longest: int
    self_check: "SelfCheck | None" = None
    judge: Rating | None = None
    # A caller's functions, used instead of those of `rewards`, unless empty.
    functions: Mapping[str, tuple[RewardFunction, float]] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        self.sampling = sampling = Sampling(
            longest=self.longest,
            stop=self.tokenizer.stop,
            more_stops=self.tokenizer.more_stops,
            temperature=self.settings.temperature,
        )
        group = self.settings.group_size
        if self.functions:
            self.rewards = RewardSettings()  # whose gate is open
        self._functions = self.functions or make_functions(self.rewards, rate=self.judge)
        if "answer" not in self._functions and (self.settings.stage_credit != "none" or self.self_check is not None):
            raise BadInput("GRPO: stage_credit and self_check need the reward 'answer' (answer=0 is enough)")

        def sample(params: Any, rows: Mapping[str, Array], key: Array) -> Replies:
            prompts = rows["prompts"]
            keys = rollout_keys(key, first=0, number=group * len(prompts))
            images = self.normalise(rows["images"])
            return generate(self.policy, params, images, prompts, rows["lengths"], sampling=sampling, keys=keys)

        self._sample = jax.jit(sample, out_shardings=self.devices.replicated)
        self.signal = RewardSignal()

    def sample(self, state: TrainState, batch: Batch) -> Replies:
        """Return the replies to the prompts of all processes, on the host, grouped by prompt."""
        rows = self.devices.put_rows({name: batch[name] for name in ("images", "prompts", "lengths")})
        replies: Replies = jax.device_get(
            self._sample(policy_params(state.params, POLICY), rows, state.key_of_update())
        )
        return replies

    @staticmethod
    def _local(batch: Batch) -> slice:
        """Return this process's rows among those of all."""
        number = len(batch["index"])
        return slice(jax.process_index() * number, (jax.process_index() + 1) * number)

    def sample_groups(self, state: TrainState, batch: Batch) -> Replies:
        """Return the replies to this process's prompts, [row, rollout, ...]."""
        group, local = self.settings.group_size, self._local(batch)
        replies: Replies = jax.tree.map(
            lambda rows: rows.reshape(-1, group, rows.shape[-1])[local], self.sample(state, batch)
        )
        return replies

    def __call__(self, state: TrainState, batch: Batch) -> Batch:
        """Return prompts with completions and advantages, [prompt, rollout, ...], and numbers for the log."""
        local, replies = self._local(batch), self.sample_groups(state, batch)
        parts = self._reward_all(np.asarray(replies.tokens), batch["index"])
        made: Replies | Attempts = replies
        checked: dict[str, np.ndarray] = {}
        if self.self_check is not None:
            wrong = parts["answer"] < 1  # an unscored answer, NaN, is not tried again
            made = self.self_check.try_again(state, batch, replies, wrong)
            again, first = self._reward_all(made.last, batch["index"], wrong), parts
            parts = {name: np.where(wrong, again[name], part) for name, part in first.items()}
            success = wrong & (parts["answer"] == 1)
            checked = self.devices.gather_rows({"wrong": wrong, "success": success, "first": first["answer"]})
        gathered = self.devices.gather_rows(parts)
        unread = self.signal.note_unread(gathered)
        relative = self.compare(gathered["total"], step=int(jax.device_get(state.step)))
        made_batch: Batch = {
            **{name: batch[name] for name in ("images", "prompts", "lengths")},
            "completions": made.tokens,
            "counted": self._counted(made, parts["total"]),
            "old_log_probs": made.log_probs,
            "advantages": self._advantages(relative[local], replies, parts),
            COLLECTED_NUMBERS: self._describe(gathered, relative, made) | unread,
        }
        if self.self_check is not None and not isinstance(made, Replies):
            from stepcot_jax.systems.self_check import CHECK, describe_checks, token_advantages  # for this option alone

            settings = self.self_check.settings
            made_batch["advantages"] = token_advantages(
                relative[local], kinds=made.kinds, wrong=wrong, settings=settings
            )
            made_batch[COLLECTED_NUMBERS] |= describe_checks(**checked)
            if self.self_check.hides_check:
                made_batch["hidden"] = made.kinds == CHECK
            if settings.alpha:
                made_batch |= {"check": made.checks & made_batch["counted"], "check_success": success}
        return made_batch

    def _advantages(
        self, relative: Float[np.ndarray, "row rollout"], replies: Replies, parts: Mapping[str, np.ndarray]
    ) -> Float[np.ndarray, "row rollout #token"]:
        """Return the advantages of this process's rollouts, by token with `stage_credit`."""
        if self.settings.stage_credit == "none":
            return relative[..., None]
        from stepcot_jax.systems.stage_credit import credit_tokens  # for this option alone

        tokens = np.asarray(replies.tokens)
        return credit_tokens(
            relative, tokens=tokens, answers=parts["answer"], tokenizer=self.tokenizer, dialect=self.dialect
        )

    def _reward_all(
        self, tokens: np.ndarray, indices: Sequence[int], chosen: np.ndarray | None = None
    ) -> dict[str, np.ndarray]:
        """Return each part of the rewards of replies [row, rollout, token], float32 [row, rollout]; 0 if not chosen."""
        chosen = np.ones(tokens.shape[:2], bool) if chosen is None else chosen
        replies = [(self.records[indices[row]], tokens[row, rollout]) for row, rollout in np.argwhere(chosen)]
        rewards = self.reward_all(replies)
        records = [record for record, _ in replies]
        read = [suit(self.read(tokens), record) for record, tokens in replies]
        why = [why_unread(*pair, with_thinking=self.with_thinking) for pair in zip(read, records, strict=True)]
        unread = [[float("nan") if each is None else float(bool(each)) for each in pair] for pair in why]
        rewards |= {name: [pair[place] for pair in unread] for place, name in enumerate(_UNREAD)}
        parts = {name: np.zeros(chosen.shape, np.float32) for name in rewards}
        for name, part in parts.items():
            part[chosen] = rewards[name]
        return parts

    def reward_all(self, replies: Sequence[tuple[Record, np.ndarray]]) -> dict[str, list[float]]:
        """Return the rewards, by name, of the tokens of this process's replies, each with its record."""
        read = [self.read(tokens) for _, tokens in replies]
        return apply_settings(self.rewards, self._functions, read, [record for record, _ in replies])

    def read(self, tokens: np.ndarray) -> Reply:
        """Return the reply that tokens encode."""
        return read_reply(self.tokenizer.decode(tokens.tolist()), self.dialect, with_thinking=self.with_thinking)

    def compare(self, totals: Float[np.ndarray, "prompt rollout"], *, step: int) -> Float[np.ndarray, "prompt rollout"]:
        """Return the advantages of all prompts."""
        if np.isnan(totals).all():
            raise RunStopped(f"step {step}: none of {totals.size} replies was scored (rewards are NaN)")
        if self.settings.shuffle_rewards:
            totals, scored = totals.copy(), ~np.isnan(totals)
            totals[scored] = np.random.default_rng((_SHUFFLE, step)).permutation(totals[scored])
        relative = np.asarray(
            advantages(
                jnp.asarray(totals),
                std_ddof=self.settings.std_ddof,
                std_epsilon=self.settings.std_epsilon,
                scale=self.settings.scale,
            )
        )
        self.count(totals, differs=bool(relative.any()), step=step)
        return relative

    def count(self, totals: Float[np.ndarray, "prompt rollout"], *, differs: bool, step: int) -> None:
        """Count an update's signal; stop after many updates without any."""
        self.signal.add(mean=float(np.nanmean(totals)), differs=differs)
        if self.signal.num_in_a_row == _PATIENCE:
            raise RunStopped(
                f"step {step}: the rewards of each prompt's replies were equal for {_PATIENCE} updates in a row (mean "
                f"{np.nanmean(totals):.3f}){self.signal.unread}; nothing can be learnt from them: check "
                "config.rewards, or fine-tune longer"
            )

    def _counted(
        self, replies: "Replies | Attempts", totals: Float[np.ndarray, "prompt rollout"]
    ) -> Bool[np.ndarray, "prompt rollout token"]:
        """Return which tokens count: none of an unscored reply, nor, with `mask_truncated`, of a truncated one."""
        counted, tokens = np.asarray(replies.counted), np.asarray(replies.tokens)
        counted = counted & ~np.isnan(totals)[..., None]
        if not self.settings.mask_truncated:
            return counted
        if not isinstance(replies, Replies):
            return counted & replies.ended[..., None]
        stops = [self.tokenizer.stop, *self.tokenizer.more_stops]
        return counted & (counted & np.isin(tokens, stops)).any(axis=-1, keepdims=True)

    def _describe(
        self, rewards: Mapping[str, np.ndarray], relative: np.ndarray, replies: "Replies | Attempts"
    ) -> dict[str, float]:
        """Return the numbers of an update for the log."""
        parts = {name: part for name, part in rewards.items() if name not in _UNREAD}
        numbers = {f"reward/{name}": _mean(part) for name, part in parts.items()}
        numbers["scored"] = float((~np.isnan(rewards["total"])).mean())
        scored = rewards["total"][~np.isnan(rewards["total"]).all(axis=1)]
        numbers["reward/deviation_in_group"] = _mean(np.nanstd(scored, axis=1))
        numbers["equal_groups"] = float((~relative.any(axis=1)).mean())
        numbers["length"] = float(replies.counted.sum(axis=-1).mean())
        numbers["entropy"] = -float(replies.log_probs.sum()) / max(int(replies.counted.sum()), 1)
        return {f"rollouts/{name}": number for name, number in numbers.items()}


def _mean(values: np.ndarray) -> float:
    """Return the mean without NaN; NaN if all values are."""
    return float(np.nanmean(values)) if np.isfinite(values).any() else float("nan")
