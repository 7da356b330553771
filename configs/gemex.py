"""GEMeX-RMCoT: fine-tuning with thinking, then GRPO with rewards of answer and boxes, at the published hyperparameters.

The paper trains Qwen2.5-VL-7B-Instruct on 8 H100, and so does this config, on any folder of records (docs/policies.md):
projector and decoder train, the vision tower is frozen. It never ran on an accelerator; nothing is measured.

python -m stepcot_jax.main --config=gemex --config.vqa.root=FOLDER --workdir=runs/gemex \
    --config.parallel.model_devices=4

Dry run of the same program at an eighth of the widths with random weights, on phantoms and on a CPU (docs/qwen.md):

python -m stepcot_jax.main --config=gemex --workdir=runs/gemex_dry \
    --config.policy.random=True --config.policy.shrink=8 \
    --config.vqa.source=phantom --config.vqa.root= --config.phantom.num_cases=40 --config.image_encoder.image_size=112 \
    --config.parallel.num_passes=2 --config.sft.epochs=1 --config.sft.batch_size=16 --config.grpo.epochs=1 \
    --config.grpo.batch_size=4 --config.grpo.group_size=2 --config.grpo.updates_per_epoch=2 \
    --config.policy.longest_reply=32 --config.vqa.num_validated=4 --config.evaluation.batch_size=8

The paper lets a model judge open answers; without an endpoint their text is compared. With one, add
    --config.rewards.open_answer=judge --config.rewards.judge_url=URL --config.rewards.judge_model=MODEL

[P]: published. Everything else is ours, since the paper does not say it.
"""

import dataclasses

from configs import base
from stepcot_jax.rewards.options import PRESETS


def get_config():
    config = base.get_config()
    config.job = "grpo"
    config.vqa.source = "folder"
    config.vqa.dialect = "gemex"  # [P] Figure 3
    config.vqa.val_share = 0.05  # ours: the paper names no validation split

    config.policy.weights = "Qwen/Qwen2.5-VL-7B-Instruct"  # [P]; a folder, or an id that is downloaded
    config.image_encoder.image_size = 448  # ours: 16 x 16 tokens; a multiple of 28
    config.training.compute_dtype = "bfloat16"  # ours; what trains and its moments stay float32
    config.parallel.transform = "mesh"  # ours; with config.parallel.model_devices=4 on 8 x 80 GB
    config.parallel.remat = True  # ours
    # ours: a pass of each of the 2 groups of 8 devices is 4 questions of SFT, 2 prompts x 8 replies of GRPO;
    # groups x num_passes must divide both batch sizes
    config.parallel.num_passes = 32

    config.sft.epochs = 2  # [P]
    config.sft.batch_size = 256  # [P] questions
    config.sft.epoch_end = "ceil"  # ours: the last part of an epoch counts
    config.sft.pack_length = 0  # ours: one question a row, so that the batch counts questions
    config.sft.first_learning_rate = 3e-7  # [P]
    config.sft.learning_rate = 1e-4  # [P]
    config.sft.warmup_epochs = 0.05  # [P]
    config.sft.schedule = "cosine"  # [P]; that it ends at 0 is ours
    config.sft.weight_decay = 0.01  # ours

    config.grpo.epochs = 1  # [P]
    config.grpo.batch_size = 128  # [P]; that it counts prompts is ours
    config.grpo.epoch_end = "ceil"  # ours: the last part of an epoch counts
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
    config.grpo.kl_norm = "sequence_sum"  # [P] Eq. 2 has the divergence of the whole completion
    config.grpo.std_ddof = 1
    config.grpo.std_epsilon = 1e-6
    config.grpo.scale = "group"  # [P]

    # [P]: 1 for the answer, and 1 if the number of boxes is right and their mean IoU above 0.75; the sum is ours
    config.rewards.update(dataclasses.asdict(PRESETS["gemex"]))
    return config
