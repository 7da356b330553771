"""The public code of MEDSAGE (4c8030a): rewards of answer, boxes and format, all or nothing; no self-check, no retry.

The code trains Qwen2.5-VL-7B-Instruct with a frozen vision encoder on four GPUs. It also weighs tokens by the credit of
their stages (--config.grpo.stage_credit=released) and has a DPO baseline (--config.job=dpo); the paper has neither, and
this config leaves them out. It trains projector and decoder, on any folder of records whose stages are written
(docs/policies.md). It never ran on an accelerator; nothing is measured. Dry run: as in medsage.

python -m stepcot_jax.main --config=medsage_released --config.vqa.root=FOLDER --workdir=runs/medsage_released \
    --config.parallel.model_devices=4

[C]: value of the code. Everything else is ours; nothing here is published in the paper.
"""

import dataclasses

from configs import base
from stepcot_jax.rewards.options import PRESETS


def get_config():
    config = base.get_config()
    config.job = "grpo"
    config.vqa.source = "folder"
    config.vqa.dialect = "lvkc_released"  # [C]

    config.policy.weights = "Qwen/Qwen2.5-VL-7B-Instruct"  # [C]; a folder, or an id that is downloaded
    config.image_encoder.image_size = 448  # ours: 16 x 16 tokens; [C] up to 262,144 pixels
    config.training.compute_dtype = "bfloat16"  # ours; what trains and its moments stay float32
    config.parallel.transform = "mesh"  # ours; with config.parallel.model_devices=4 on 8 x 80 GB
    config.parallel.remat = True  # ours
    # ours: a pass of each of the 2 groups of 8 devices is 1 question of SFT, 1 prompt x 6 replies of GRPO;
    # groups x num_passes must divide both batch sizes
    config.parallel.num_passes = 32
    config.policy.longest_reply = 1024  # [C] tokens generated

    config.sft.epochs = 3  # [C]
    config.sft.batch_size = 64  # [C] 1 a device x 16 accumulated x 4 devices
    config.sft.epoch_end = "ceil"  # ours: the last part of an epoch counts
    config.sft.pack_length = 0  # ours: one question a row, so that the batch counts questions
    config.sft.learning_rate = 1e-5  # [C]
    config.sft.schedule = "cosine"  # [C]
    config.sft.warmup_epochs = 0.09  # [C] 0.03 of the run
    config.sft.weight_decay = 0.01  # ours

    config.grpo.epochs = 2  # [C]
    config.grpo.batch_size = 64  # [C] prompts of a rollout; the code makes four updates of 16 prompts, this one
    config.grpo.epoch_end = "ceil"  # ours: the last part of an epoch counts
    config.grpo.group_size = 6  # [C]
    config.grpo.learning_rate = 1e-5  # [C]; its warm-up over 0.1 of the run is left out
    config.grpo.schedule = "constant"  # ours
    config.grpo.weight_decay = 0.01  # [C]
    config.grpo.ratio = "token"  # [C], as all that follows but the number of updates
    config.grpo.clip_low = config.grpo.clip_high = 0.2
    config.grpo.dual_clip = 0.0
    config.grpo.beta = 0.03
    config.grpo.kl = "k3"
    config.grpo.clamp_log_ratio = 20.0
    config.grpo.clamp_kl = 10.0
    config.grpo.num_updates = 1  # ours
    config.grpo.temperature = 1.0
    config.grpo.length_norm = "token_mean"
    config.grpo.std_ddof = 1
    config.grpo.std_epsilon = 1e-6
    config.grpo.scale = "group"

    config.rewards.update(dataclasses.asdict(PRESETS["released"]))  # [C] 0.6 answer + 0.3 mean IoU + 0.1 format
    config.self_check.enabled = False  # [C]
    return config
