"""The system of a policy's run from its settings: fine-tuning, GRPO with its rewards, judge and self-check."""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence

from stepcot_jax.data.questions.vqa_dataset import VqaDataset
from stepcot_jax.policies.policy import AnyPolicy
from stepcot_jax.policies.sampling import Sampling
from stepcot_jax.policies.tokenizers import Tokenizer
from stepcot_jax.record import Record
from stepcot_jax.rewards.functions import RewardFunction
from stepcot_jax.rewards.presets import RewardSettings
from stepcot_jax.run.judge import JudgedRewards, make_judge
from stepcot_jax.run.policy_networks import choose_policy, make_normalise
from stepcot_jax.run.policy_tokens import TokenizedRecords
from stepcot_jax.run.qwen_source import QwenSource
from stepcot_jax.run.sections import RewardsSettings
from stepcot_jax.run.settings import Settings
from stepcot_jax.run.start import given_start, smooth_start
from stepcot_jax.run.stored_policy import StoredPolicy
from stepcot_jax.systems.curriculum import StagedRows
from stepcot_jax.systems.grpo import Rollouts
from stepcot_jax.systems.policy_system import PolicySystem
from stepcot_jax.systems.self_check import SelfCheck
from stepcot_jax.systems.sft import Normalise
from stepcot_jax.training.devices import Devices


def make_reward_settings(settings: RewardsSettings) -> RewardSettings:
    """Return the rewards of a reply."""
    names = [field.name for field in dataclasses.fields(RewardSettings)]
    return RewardSettings(**{name: getattr(settings, name) for name in names})


def make_rollouts(
    settings: Settings,
    *,
    policy: AnyPolicy,
    normalise: Normalise,
    tokenizer: Tokenizer,
    records: Sequence[Record],
    devices: Devices,
    workdir: pathlib.Path,
    longest: int,
    longest_check: int,
    functions: Mapping[str, tuple[RewardFunction, float]],
) -> Rollouts:
    """Return the host part of GRPO's updates."""
    judge = self_check = None
    if settings.rewards.open_answer == "judge":
        judge = JudgedRewards(make_judge(settings.rewards, workdir), ill_formed=settings.rewards.ill_formed)
    if settings.self_check.enabled:
        self_check = SelfCheck(
            policy=policy,
            normalise=normalise,
            tokenizer=tokenizer,
            devices=devices,
            settings=settings.self_check,
            group_size=settings.grpo.group_size,
            temperature=settings.grpo.temperature,
            longest=longest,
            longest_check=longest_check,
        )
    return Rollouts(
        policy=policy,
        normalise=normalise,
        tokenizer=tokenizer,
        dialect=settings.vqa.dialect,
        with_thinking=settings.vqa.with_thinking,
        records=records,
        devices=devices,
        settings=settings.grpo,
        rewards=make_reward_settings(settings.rewards),
        longest=longest,
        self_check=self_check,
        judge=judge,
        functions=functions,
    )


def make_policy_system(
    settings: Settings,
    *,
    dataset: VqaDataset,
    tokens: TokenizedRecords,
    num_rows: int,
    staged: StagedRows | None,
    start: StoredPolicy | None,
    source: QwenSource | None,
    devices: Devices,
    workdir: pathlib.Path,
    functions: Mapping[str, tuple[RewardFunction, float]],
) -> PolicySystem:
    """Return the policy with its phases, and with the rollouts of the job "grpo"."""
    tokenizer, lengths = tokens.tokenizer, tokens.lengths
    policy = choose_policy(settings, tokenizer, source, mesh=devices.named_mesh)
    prepare = make_normalise(settings)
    rollouts, has_grpo = None, "grpo.epochs" in settings.trains.epochs
    if has_grpo:
        rollouts = make_rollouts(
            settings,
            policy=policy,
            normalise=prepare,
            tokenizer=tokenizer,
            records=dataset.records,
            devices=devices,
            workdir=workdir,
            longest=lengths.reply_length,
            longest_check=tokens.longest_check,
            functions=functions,
        )
    num_train = len(dataset.splits["train"])
    return PolicySystem(
        policy,
        prepare,
        Sampling(longest=lengths.reply_length, stop=tokenizer.stop, more_stops=tokenizer.more_stops, greedy=True),
        fine_tuning=settings.sft,
        optimising=settings.grpo if has_grpo else None,
        checking=settings.self_check,
        epsilon=settings.training.adam_epsilon,
        clip_norm=settings.training.clip_norm,
        sft_updates=max(num_rows // settings.sft.batch_size, 1),
        grpo_updates=settings.grpo.updates_per_epoch or max(num_train // settings.grpo.batch_size, 1),
        rollouts=rollouts,
        staged=staged,
        start=given_start(policy, start, source),
        begin=smooth_start(policy, tokenizer, largest=lengths.largest_coordinate),
    )
