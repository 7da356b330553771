"""Policies by fine-tuning, rewards, self-check and curriculum on phantom chests, beside the published figures.

stepcot tables vqa robustness curriculum self_check stages --config=tables_vqa --workdir=runs/tables_vqa

At commit 21a6cd39 (docs/results/origin.md): A 50.1, V 44.3 % after fine-tuning, 50.4 and 45.3 after GRPO
with both rewards (majority answer and constant box: 32.6 and 27.2). Alone on one core a fine-tuning took 10 to 14
minutes, GRPO 21 to 25, the published one 40; of `vqa` (docs/results/policies_grpo.md) on one busy core a fine-tuning
took 15 to 21 minutes, GRPO 32 to 42.
"""

from configs import vqa_quickstart


def get_config():
    config = vqa_quickstart.get_config()
    config.phantom.num_cases = 3000
    config.sft.epochs = 8
    # Hundreds of small updates, as the gradient of a batch is a few per cent signal (docs/results/policies_grpo.md).
    # Without the penalty, which would take another pass through the frozen start.
    config.grpo.epochs = 5
    config.grpo.batch_size = 32
    config.grpo.updates_per_epoch = 50
    config.grpo.temperature = 0.6
    config.grpo.beta = 0.0
    # The constants of MedCLM's public code are for 100 epochs; fine-tuning has 8 here.
    config.curriculum.easy_epochs = 1
    config.curriculum.ramp_epochs = 3
    config.curriculum.hard_epoch = 4
    config.curriculum.plateau_values = 2
    return config
