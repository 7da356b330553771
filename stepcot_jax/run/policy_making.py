"""The system of the jobs "sft" and "grpo", from the settings, the records and what a run starts from."""

import functools
import pathlib

from stepcot_jax.data.grounded.vqa_dataset import VqaDataset
from stepcot_jax.policies.policy_choice import choose_policy
from stepcot_jax.policies.policy_network import normalise
from stepcot_jax.policies.qwen_setup import QwenSource
from stepcot_jax.policies.sampling import Sampling
from stepcot_jax.run.policy_tokens import TokenizedRecords
from stepcot_jax.run.start import given_start, smooth_start
from stepcot_jax.settings.run_settings import Settings
from stepcot_jax.systems.curriculum import StagedRows
from stepcot_jax.systems.policy_system import PolicySystem
from stepcot_jax.systems.rollout_making import make_rollouts
from stepcot_jax.systems.stored_policy import StoredPolicy
from stepcot_jax.training.devices import Devices


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
) -> PolicySystem:
    """Return the policy with its phases, and with the rollouts of the job "grpo"."""
    tokenizer, lengths = tokens.tokenizer, tokens.lengths
    policy = choose_policy(settings, tokenizer, source, mesh=devices.named_mesh)
    prepare = functools.partial(normalise, settings=settings)
    rollouts = None
    if settings.job == "grpo":
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
        )
    num_train = len(dataset.splits["train"])
    return PolicySystem(
        settings,
        policy,
        prepare,
        Sampling(longest=lengths.reply_length, stop=tokenizer.stop, more_stops=tokenizer.more_stops, greedy=True),
        sft_updates=max(num_rows // settings.sft.batch_size, 1),
        grpo_updates=settings.grpo.updates_per_epoch or max(num_train // settings.grpo.batch_size, 1),
        rollouts=rollouts,
        staged=staged,
        start=given_start(policy, start, source),
        begin=smooth_start(policy, tokenizer, largest=lengths.largest_coordinate),
    )
