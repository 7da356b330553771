"""Questions about phantom chests: a small policy learns by fine-tuning, then by rewards that are verified.

python -m stepcot_jax.main --config=vqa_quickstart --config.job=sft --workdir=runs/vqa

Scores are in docs/results/policies_grpo.md: A 36, V 36 % after fine-tuning (majority answer and constant box: 31 and
27 %). The sixteen updates of GRPO that fit into five minutes on two cores trade one for the other; hundreds
add little (`tables_vqa`).
"""

from configs import base


def get_config():
    config = base.get_config()
    config.job = "grpo"
    config.phantom.num_cases = 2800
    config.phantom.image_size = 64
    config.phantom.prevalence = "flat"
    config.image_encoder.image_size = 64
    config.vqa.num_validated = 400
    config.sft.epochs = 4
    config.sft.batch_size = 8
    # Few updates, small steps: the gradient of a batch is nearly noise at this size (docs/results/policies_grpo.md).
    config.grpo.epochs = 2
    config.grpo.batch_size = 16
    config.grpo.updates_per_epoch = 8
    config.grpo.learning_rate = 5e-5
    config.grpo.temperature = 0.5
    config.grpo.scale = "none"
    config.rewards.grounding = "mean_iou"
    config.evaluation.batch_size = 200
    return config
