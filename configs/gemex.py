"""GEMeX-RMCoT: fine-tuning with thinking, then GRPO with rewards of answer and boxes, at the published hyperparameters.

The paper trains Qwen2.5-VL-7B-Instruct on 8 H100. Weights of that size cannot be loaded yet: this config trains the
small decoder of `policy`, its image encoder too, on any folder of records (docs/policies.md). Nothing is measured.

python -m stepcot_jax.main --config=gemex --config.vqa.root=FOLDER --workdir=runs/gemex

The paper lets a model judge open answers; without an endpoint their text is compared. With one, add
    --config.rewards.open_answer=judge --config.rewards.judge_url=URL --config.rewards.judge_model=MODEL

[P]: published. Everything else is ours, since the paper does not say it.
"""

import dataclasses

from configs import base
from stepcot_jax.rewards.presets import PRESETS


def get_config():
    config = base.get_config()
    config.job = "grpo"
    config.vqa.source = "folder"
    config.vqa.dialect = "gemex"  # [P] Figure 3

    config.image_encoder.image_size = 224  # ours, and so is the size of the decoder
    config.policy.encoder_widths = (24, 48, 64)
    config.policy.grid = 14

    config.sft.epochs = 2  # [P]
    config.sft.batch_size = 256  # [P] questions
    config.sft.pack_length = 0  # ours: one question a row, so that the batch counts questions
    config.sft.first_learning_rate = 3e-7  # [P]
    config.sft.learning_rate = 1e-4  # [P]
    config.sft.warmup_epochs = 0.05  # [P]
    config.sft.schedule = "cosine"  # [P]; that it ends at 0 is ours
    config.sft.weight_decay = 0.01  # ours

    config.grpo.epochs = 1  # [P]
    config.grpo.batch_size = 128  # [P]; that it counts prompts is ours
    config.grpo.group_size = 8  # [P]
    config.grpo.learning_rate = 2e-6  # [P]
    config.grpo.schedule = "constant"  # ours
    config.grpo.weight_decay = 0.0  # ours
    config.grpo.ratio = "sequence"  # [P] Eq. 2 has the ratio of the whole completion
    config.grpo.clip_low = config.grpo.clip_high = 0.2  # [P]
    config.grpo.dual_clip = 0.0  # [P] Eq. 2 has none
    config.grpo.beta = 1e-3  # [P]
    config.grpo.kl = "k3"  # ours, as all that follows but the scale
    config.grpo.num_updates = 1
    config.grpo.temperature = 1.0
    config.grpo.length_norm = "sequence_mean"
    config.grpo.std_ddof = 1
    config.grpo.std_epsilon = 1e-6
    config.grpo.scale = "group"  # [P]

    # [P]: 1 for the answer, and 1 if the number of boxes is right and their mean IoU above 0.75; the sum is ours
    config.rewards.update(dataclasses.asdict(PRESETS["gemex"]))
    return config
