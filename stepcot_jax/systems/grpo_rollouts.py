"""Rollouts of an update on the host: sample replies, read and reward them, and compare each with its group."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from stepcot_jax.evaluation.stage_claims import stage_consistency
from stepcot_jax.host.errors import RunStopped
from stepcot_jax.losses.advantages import advantages
from stepcot_jax.policies.decoder_policy import generate
from stepcot_jax.policies.policy_choice import AnyPolicy, policy_params
from stepcot_jax.policies.rollouts import Replies, Sampling, rollout_keys
from stepcot_jax.policies.tokenizers import Tokenizer
from stepcot_jax.reasoning.dialects import read_reply
from stepcot_jax.reasoning.record import VqaRecord
from stepcot_jax.reasoning.reply import Reply
from stepcot_jax.rewards.presets import Rewards, RewardSettings, reward
from stepcot_jax.settings.policy_sections import GrpoSettings, RewardsSettings
from stepcot_jax.systems.attempts import CHECK, Attempts, describe_checks, token_advantages
from stepcot_jax.systems.judged_rewards import JudgedRewards
from stepcot_jax.systems.reward_signal import RewardSignal
from stepcot_jax.systems.self_check import SelfCheck
from stepcot_jax.systems.sft import POLICY, Batch, Normalise
from stepcot_jax.training.parallel import Devices
from stepcot_jax.training.state import TrainState
from stepcot_jax.training.system import COLLECTED_NUMBERS

_PARTS = ("total", "answer", "grounding", "format", "consistency")
_SHUFFLE = 5  # stream of random numbers, apart from those of sampling
_PATIENCE = 20


def make_reward_settings(settings: RewardsSettings) -> RewardSettings:
    """Return the rewards of a reply."""
    names = [field.name for field in dataclasses.fields(RewardSettings)]
    return RewardSettings(**{name: getattr(settings, name) for name in names})


@dataclasses.dataclass
class Rollouts:
    """Makes the batch of a GRPO update from prompts; a function of the state and the prompts.

    Attributes:
      dialect: that replies are read in.
      with_thinking: whether replies must have their part before the answer.
      records: by place, as a prompt's "place" names them.
      longest: tokens of a sampled reply.
      self_check: tries wrong first attempts again; None for none.
      judge: of open answers; None if `rewards.open_answer` is not "judge".
    """

    policy: AnyPolicy
    normalise: Normalise
    tokenizer: Tokenizer
    dialect: str
    with_thinking: bool
    records: Sequence[VqaRecord]
    devices: Devices
    settings: GrpoSettings
    rewards: RewardSettings
    longest: int
    self_check: SelfCheck | None = None
    judge: JudgedRewards | None = None

    def __post_init__(self) -> None:
        sampling = Sampling(
            longest=self.longest,
            stop=self.tokenizer.stop,
            more_stops=self.tokenizer.more_stops,
            temperature=self.settings.temperature,
        )
        group = self.settings.group_size

        def sample(params: Any, rows: Mapping[str, Array], key: Array) -> Replies:
            prompts = rows["prompts"]
            keys = rollout_keys(key, first=0, number=group * len(prompts))
            images = self.normalise(rows["images"])
            return generate(self.policy, params, images, prompts, rows["lengths"], sampling=sampling, keys=keys)

        self._sample = jax.jit(sample, out_shardings=self.devices.whole)
        self.signal = RewardSignal("the replies to each prompt")

    def sample(self, state: TrainState, batch: Batch) -> Replies:
        """Return the replies to the prompts of all processes, on the host; those of a prompt follow each other."""
        rows = self.devices.put_rows({name: batch[name] for name in ("images", "prompts", "lengths")})
        replies: Replies = jax.device_get(
            self._sample(policy_params(state.params, POLICY), rows, state.key_of_update())
        )
        return replies

    def __call__(self, state: TrainState, batch: Batch) -> Batch:
        """Return prompts with completions and advantages, [prompt, rollout, ...], and numbers for the log."""
        number, group = len(batch["place"]), self.settings.group_size
        first = jax.process_index() * number
        replies = jax.tree.map(
            lambda rows: rows.reshape(-1, group, rows.shape[-1])[first : first + number], self.sample(state, batch)
        )
        parts = self._reward_all(np.asarray(replies.tokens), batch["place"])
        if self.self_check is not None:
            return self._check_all(self.self_check, state, batch, replies, parts)
        of_all = self.devices.gather_rows(parts)
        relative = self.compare(of_all["total"], step=int(jax.device_get(state.step)))
        counted = self._counted(replies, parts["total"])
        return {
            **{name: batch[name] for name in ("images", "prompts", "lengths")},
            "completions": replies.tokens,
            "counted": counted,
            "old_log_probs": replies.log_probs,
            "advantages": relative[first : first + number, :, None],
            COLLECTED_NUMBERS: self._describe(of_all, relative, replies),
        }

    def _reward_all(
        self, tokens: np.ndarray, places: Sequence[int], chosen: np.ndarray | None = None
    ) -> dict[str, np.ndarray]:
        """Return each part of the rewards of replies [row, rollout, token], float32 [row, rollout]; 0 if not chosen."""
        chosen = np.ones(tokens.shape[:2], bool) if chosen is None else chosen
        found = self.reward_all([(self.records[places[row]], tokens[row, each]) for row, each in np.argwhere(chosen)])
        parts = {name: np.zeros(chosen.shape, np.float32) for name in _PARTS}
        for name, part in parts.items():
            part[chosen] = [getattr(each, name) for each in found]
        return parts

    def _check_all(
        self, self_check: SelfCheck, state: TrainState, batch: Batch, replies: Replies, parts: dict[str, np.ndarray]
    ) -> Batch:
        """Return the batch with checks and second attempts; `parts` are the rewards of first attempts."""
        number = len(batch["place"])
        own = slice(jax.process_index() * number, (jax.process_index() + 1) * number)
        wrong = parts["answer"] < 1  # an unscored answer, NaN, is not tried again
        tried = self_check.try_again(state, batch, replies, wrong)
        again = self._reward_all(tried.last, batch["place"], wrong)
        last = {name: np.where(wrong, again[name], part) for name, part in parts.items()}
        success = wrong & (last["answer"] == 1)
        of_all = self.devices.gather_rows({**last, "wrong": wrong, "success": success, "first": parts["answer"]})
        checked = {name: of_all.pop(name) for name in ("wrong", "success", "first")}
        relative = self.compare(of_all["total"], step=int(jax.device_get(state.step)))
        counted = self._counted(tried, last["total"])
        settings = self_check.settings
        found = {
            **{name: batch[name] for name in ("images", "prompts", "lengths")},
            "completions": tried.tokens,
            "counted": counted,
            "old_log_probs": tried.log_probs,
            "advantages": token_advantages(relative[own], kinds=tried.kinds, wrong=wrong, settings=settings),
            COLLECTED_NUMBERS: {**self._describe(of_all, relative, tried), **describe_checks(**checked)},
        }
        if self_check.hides_check:
            found["hidden"] = tried.kinds == CHECK
        if settings.alpha:
            found |= {"check": tried.checks & counted, "check_success": success}
        return found

    def reward_all(self, replies: Sequence[tuple[VqaRecord, np.ndarray]]) -> list[Rewards]:
        """Return the rewards of the tokens of this process's replies, each with its record."""
        read = [(record, self.read(tokens)) for record, tokens in replies]
        judged = [None] * len(read) if self.judge is None else self.judge(read)
        consistency = stage_consistency if self.rewards.consistency_weight else None
        return [
            reward(reply, record, self.rewards, judged=rating, consistency=consistency)
            for (record, reply), rating in zip(read, judged, strict=True)
        ]

    def read(self, tokens: np.ndarray) -> Reply:
        """Return what the tokens of a reply say."""
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
        self.signal.add(mean=float(np.nanmean(totals)), differs=bool(relative.any()))
        if self.signal.num_in_a_row == _PATIENCE:
            raise RunStopped(
                f"step {step}: the rewards of each prompt's replies were equal for {_PATIENCE} updates in a row (mean "
                f"{np.nanmean(totals):.3f}); nothing can be learnt from them: check config.rewards, or fine-tune longer"
            )
        return relative

    def _counted(
        self, replies: Replies | Attempts, totals: Float[np.ndarray, "prompt rollout"]
    ) -> Bool[np.ndarray, "prompt rollout token"]:
        """Return the tokens that count: none of a reply that was not scored, or was cut and is to be left out."""
        counted, tokens = np.asarray(replies.counted), np.asarray(replies.tokens)
        counted = counted & ~np.isnan(totals)[..., None]
        if not self.settings.mask_truncated:
            return counted
        if isinstance(replies, Attempts):
            return counted & replies.ended[..., None]
        stops = [self.tokenizer.stop, *self.tokenizer.more_stops]
        return counted & (counted & np.isin(tokens, stops)).any(axis=-1, keepdims=True)

    def _describe(
        self, rewards: Mapping[str, np.ndarray], relative: np.ndarray, replies: Replies | Attempts
    ) -> dict[str, float]:
        """Return the numbers of an update for the log."""
        is_off = {"consistency": not self.rewards.consistency_weight}
        numbers = {f"reward/{name}": _mean(part) for name, part in rewards.items() if not is_off.get(name)}
        numbers["scored"] = float((~np.isnan(rewards["total"])).mean())
        scored = rewards["total"][~np.isnan(rewards["total"]).all(axis=1)]
        numbers["reward/deviation_in_group"] = _mean(np.nanstd(scored, axis=1))
        numbers["equal_groups"] = float((~relative.any(axis=1)).mean())
        numbers["length"] = float(replies.counted.sum(axis=-1).mean())
        numbers["entropy"] = -float(replies.log_probs.sum()) / max(int(replies.counted.sum()), 1)
        return {f"rollouts/{name}": number for name, number in numbers.items()}


def _mean(values: np.ndarray) -> float:
    """Mean of what is defined; NaN if nothing is."""
    return float(np.nanmean(values)) if np.isfinite(values).any() else float("nan")
