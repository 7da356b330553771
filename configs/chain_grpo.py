"""Phantom chests at 64 px: the teacher learns from labels, then by GRPO from rewards of the chains that it samples.

The reward is the sum of three parts: the diagnosis is right, the share of right steps, no contradiction in the chain.

python -m stepcot_jax.main --config=chain_grpo --workdir=runs/chain_grpo

Before and after, over seeds and beside shuffled rewards:
stepcot tables chain_grpo --config=chain_grpo --workdir=runs/chain_tables --seeds=0,1,2
"""

from configs import quickstart, tables_phantom


def get_config():
    config = quickstart.get_config()
    tables_phantom.use_3000_phantoms(config)
    config.job = "chain_grpo"
    config.training.teacher_job_epochs = 12
    config.grpo.epochs = 4
    config.grpo.batch_size = 16
    config.grpo.updates_per_epoch = 65
    config.grpo.learning_rate = 3e-4
    config.rewards.diagnosis_weight = 1.0
    config.rewards.steps_weight = 1.0
    config.rewards.chain_weight = 1.0
    return config
