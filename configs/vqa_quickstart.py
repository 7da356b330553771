"""Questions about phantom chests: a small policy learns by fine-tuning, then by rewards that are verified.

python -m stepcot_jax.main --config=vqa_quickstart --workdir=runs/vqa

Time and scores of the whole run are not measured yet (docs/policies.md).
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
    config.evaluation.batch_size = 200
    return config
