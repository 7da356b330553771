"""Policies by fine-tuning, rewards, self-check and curriculum on phantom chests, beside the published figures.

python -m stepcot_jax.tables vqa robustness curriculum self_check stages --config=tables_vqa --workdir=runs/tables_vqa
"""

from configs import vqa_quickstart


def get_config():
    config = vqa_quickstart.get_config()
    config.sft.epochs = 8
    config.grpo.epochs = 4
    config.grpo.updates_per_epoch = 50
    # The constants of MedCLM's public code are for 100 epochs; fine-tuning has 8 here.
    config.curriculum.easy_epochs = 1
    config.curriculum.ramp_epochs = 3
    config.curriculum.hard_epoch = 4
    config.curriculum.plateau_values = 2
    return config
