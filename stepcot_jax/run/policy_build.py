"""The system of a policy's run from its settings: fine-tuning, GRPO with its rewards, judge and self-check."""

import dataclasses
from collections.abc import Mapping

from stepcot_jax.policies.policy import AnyPolicy
from stepcot_jax.policies.sampling import Sampling
from stepcot_jax.rewards.functions import RewardFunction
from stepcot_jax.rewards.presets import RewardSettings
from stepcot_jax.run.policy_data import PolicyData
from stepcot_jax.run.policy_networks import choose_policy, make_normalise
from stepcot_jax.run.policy_start import given_start, smooth_start
from stepcot_jax.run.sections import RewardsSettings
from stepcot_jax.run.settings import Settings
from stepcot_jax.run.stored_policy import StoredPolicy
from stepcot_jax.systems.curriculum import StagedRows
from stepcot_jax.systems.grpo import Rollouts
from stepcot_jax.systems.options import GrpoOptions, count_updates
from stepcot_jax.systems.policy_system import PolicySystem
from stepcot_jax.systems.self_check import SelfCheck
from stepcot_jax.systems.sft import Normalise
from stepcot_jax.training.devices import Devices


def make_reward_settings(settings: RewardsSettings) -> RewardSettings:
    """Return the rewards of a reply."""
    names = [field.name for field in dataclasses.fields(RewardSettings)]
    return RewardSettings(**{name: getattr(settings, name) for name in names})


def make_policy_system(
    settings: Settings,
    *,
    data: PolicyData,
    num_rows: int,
    staged: StagedRows | None,
    start: StoredPolicy | None,
    devices: Devices,
    functions: Mapping[str, tuple[RewardFunction, float]],
) -> PolicySystem:
    """Return the system of a policy, with rollouts for the jobs "grpo" and "dpo"."""
    tokens, tokenizer = data.tokens, data.tokens.tokenizer
    longest = tokens.lengths.reply_length
    policy = choose_policy(settings, tokenizer, data.source, mesh=devices.named_mesh)
    normalise = make_normalise(settings)
    optimising = settings.optimising
    num_train = len(data.dataset.splits["train"])
    return PolicySystem(
        policy,
        normalise,
        Sampling(longest=longest, stop=tokenizer.stop, more_stops=tokenizer.more_stops, greedy=True),
        fine_tuning=settings.sft,
        optimising=optimising,
        checking=settings.self_check,
        epsilon=settings.training.adam_epsilon,
        clip_norm=settings.training.clip_norm,
        sft_updates=count_updates(settings.sft, num_rows),
        grpo_updates=count_updates(optimising or settings.grpo, num_train),
        rollouts=_make_rollouts(settings, policy, normalise, data, devices, functions) if optimising else None,
        staged=staged,
        start=given_start(policy, start, data.source),
        begin=smooth_start(policy, tokenizer, largest=tokens.lengths.largest_coordinate),
    )


def _make_rollouts(
    settings: Settings,
    policy: AnyPolicy,
    normalise: Normalise,
    data: PolicyData,
    devices: Devices,
    functions: Mapping[str, tuple[RewardFunction, float]],
) -> Rollouts:
    tokenizer, longest = data.tokens.tokenizer, data.tokens.lengths.reply_length
    judge = self_check = None
    if settings.rewards.open_answer == "judge":
        from stepcot_jax.run.judged_rewards import JudgedRewards, make_judge  # a client of endpoints

        judge = JudgedRewards(make_judge(settings.rewards, data.workdir), ill_formed=settings.rewards.ill_formed)
    options, kind = settings.grpo, Rollouts
    if settings.optimising is settings.dpo:
        from stepcot_jax.systems.dpo import Pairs  # for this job alone

        kind = Pairs
        dpo = settings.dpo
        options = GrpoOptions(group_size=dpo.group_size, temperature=dpo.temperature)
    elif settings.self_check.enabled:
        self_check = SelfCheck(
            policy=policy,
            normalise=normalise,
            tokenizer=tokenizer,
            devices=devices,
            settings=settings.self_check,
            group_size=settings.grpo.group_size,
            temperature=settings.grpo.temperature,
            longest=longest,
            longest_check=data.tokens.longest_check,
        )
    return kind(
        policy=policy,
        normalise=normalise,
        tokenizer=tokenizer,
        dialect=settings.vqa.dialect,
        with_thinking=settings.vqa.with_thinking,
        records=data.dataset.records,
        devices=devices,
        settings=options,
        rewards=make_reward_settings(settings.rewards),
        longest=longest,
        self_check=self_check,
        judge=judge,
        functions=functions,
    )
