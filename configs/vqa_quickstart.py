"""Questions about phantom chests: a small policy learns by fine-tuning, then by rewards that are verified.

python -m stepcot_jax.main --config=vqa_quickstart --workdir=runs/vqa

Scores are in docs/policies.md: A 40, V 39 % after fine-tuning (majority answer and constant box: 32 and 27 %), and no
more after GRPO. Seven minutes on two cores.
"""

from configs import base


def get_config():
    config = base.get_config()
    config.job = "grpo"
    config.phantom.num_cases = 3000
    config.phantom.image_size = 64
    config.phantom.prevalence = "flat"
    config.image_encoder.image_size = 64
    config.vqa.num_validated = 400
    config.sft.epochs = 4
    config.sft.batch_size = 8
    # Few updates, small steps: the gradient of a batch is nearly noise at this size (docs/policies.md).
    config.grpo.epochs = 2
    config.grpo.updates_per_epoch = 8
    config.grpo.learning_rate = 5e-5
    config.grpo.temperature = 0.5
    config.grpo.scale = "none"
    config.rewards.grounding = "mean_iou"
    config.evaluation.batch_size = 200
    return config
