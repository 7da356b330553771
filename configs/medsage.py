"""MEDSAGE: fine-tuning on staged reasoning, then GRPO in which a wrong first attempt is checked and tried again.

The paper trains Qwen2.5-VL-7B with a frozen vision encoder on 4 A100, and so does this config, on any folder of records
whose stages are written (docs/policies.md): projector and decoder train. It never ran on an accelerator; nothing is
measured.

python -m stepcot_jax.main --config=medsage --config.vqa.root=FOLDER --workdir=runs/medsage \
    --config.parallel.model_devices=4

Dry run of the same program at an eighth of the widths with random weights, on phantoms and on a CPU (docs/qwen.md):

python -m stepcot_jax.main --config=medsage --workdir=runs/medsage_dry \
    --config.policy.random=True --config.policy.shrink=8 \
    --config.vqa.source=phantom --config.vqa.root= --config.phantom.num_cases=40 --config.image_encoder.image_size=112 \
    --config.parallel.num_passes=2 --config.sft.epochs=1 --config.sft.batch_size=16 --config.grpo.epochs=1 \
    --config.grpo.batch_size=4 --config.grpo.group_size=2 --config.grpo.updates_per_epoch=2 \
    --config.policy.longest_reply=64 --config.vqa.num_validated=4 --config.evaluation.batch_size=8

[P]: published. [C]: the paper does not say; the value is that of its public code, or of EasyR1, which both build on.
Everything else is ours. The code's algorithm is another one: medsage_released.
"""

import dataclasses

from configs import base
from stepcot_jax.rewards.options import PRESETS


def get_config():
    config = base.get_config()
    config.job = "grpo"
    config.vqa.source = "folder"
    config.vqa.dialect = "lvkc"  # [P] Figure 12

    config.policy.weights = "Qwen/Qwen2.5-VL-7B-Instruct"  # [P]; a folder, or an id that is downloaded
    config.image_encoder.image_size = 448  # ours: 16 x 16 tokens; a multiple of 28
    config.training.compute_dtype = "bfloat16"  # ours; what trains and its moments stay float32
    config.parallel.transform = "mesh"  # ours; with config.parallel.model_devices=4 on 8 x 80 GB
    config.parallel.remat = True  # ours
    # ours: a pass of each of the 2 groups of 8 devices is 4 questions of SFT, 1 prompt x 6 replies of GRPO;
    # groups x num_passes must divide both batch sizes
    config.parallel.num_passes = 32
    config.policy.longest_reply = 1024  # [P] tokens generated

    config.sft.epochs = 4  # [P]
    config.sft.batch_size = 256  # [P] 4 a device x 16 accumulated x 4 devices; the paper calls it 1,024
    config.sft.epoch_end = "ceil"  # ours: the last part of an epoch counts
    config.sft.pack_length = 0  # ours: one question a row, so that the batch counts questions
    config.sft.learning_rate = 1e-5  # [P]
    config.sft.schedule = "cosine"  # [C]
    config.sft.warmup_epochs = 0.12  # [C] 0.03 of the run
    config.sft.weight_decay = 0.01  # ours

    config.grpo.epochs = 8  # [P]
    config.grpo.batch_size = 64  # [P] prompts: 2 x 8 x 4 devices
    config.grpo.epoch_end = "ceil"  # ours: the last part of an epoch counts
    config.grpo.group_size = 6  # [P]
    config.grpo.learning_rate = 1e-5  # [P]
    config.grpo.schedule = "constant"  # ours
    config.grpo.weight_decay = 0.01  # [C]
    config.grpo.ratio = "token"  # [C]
    config.grpo.clip_low = 0.2  # [C] EasyR1, as the next two
    config.grpo.clip_high = 0.3
    config.grpo.dual_clip = 3.0
    config.grpo.beta = 0.03  # [C], as the next three
    config.grpo.kl = "k3"
    config.grpo.clamp_log_ratio = 20.0
    config.grpo.clamp_kl = 10.0
    config.grpo.num_updates = 1  # ours
    config.grpo.temperature = 1.0  # [C]
    config.grpo.length_norm = "token_mean"  # [C]
    config.grpo.std_ddof = 1  # [C]
    config.grpo.std_epsilon = 1e-6  # [C]
    config.grpo.scale = "batch"  # [P] "normalised within each batch"

    # Answer and format [P], weighted as in an example of EasyR1 [C]
    config.rewards.update(dataclasses.asdict(PRESETS["paper"]))
    config.self_check.enabled = True  # [P]
    config.self_check.alpha = 0.2  # [P] the best of 0, 0.15, 0.20 and 0.25
    config.self_check.norm = "sum"  # [P] Eq. 12
    config.self_check.context = "check"  # ours; Eq. 9 has the first attempt alone
    config.self_check.first_attempt = "zero"  # [P]
    config.self_check.sft_share = 0.25  # ours
    return config
