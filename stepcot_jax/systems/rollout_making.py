"""The rollouts of a run from its settings, with the judge and the self-check that they ask for."""

import pathlib
from collections.abc import Sequence

from stepcot_jax.policies.policy_choice import AnyPolicy
from stepcot_jax.policies.tokenizers import Tokenizer
from stepcot_jax.reasoning.record import VqaRecord
from stepcot_jax.settings.run_settings import Settings
from stepcot_jax.systems.grpo import Rollouts, make_reward_settings
from stepcot_jax.systems.judged_rewards import JudgedRewards, make_judge
from stepcot_jax.systems.self_check import SelfCheck
from stepcot_jax.systems.sft import Normalise
from stepcot_jax.training.devices import Devices


def make_rollouts(
    settings: Settings,
    *,
    policy: AnyPolicy,
    normalise: Normalise,
    tokenizer: Tokenizer,
    records: Sequence[VqaRecord],
    devices: Devices,
    workdir: pathlib.Path,
    longest: int,
    longest_check: int,
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
    )
