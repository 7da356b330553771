"""MedCLM: fine-tuning in easy, medium and hard stages, at the hyperparameters of its public code (a7cca74).

The paper at hand prints no hyperparameter, so nothing here is published. The code trains ViP-LLaVA-7B, which is not
supported: this config starts from Qwen2.5-VL-7B-Instruct, the base of the other two papers, on any folder of records
with lesion and modality (docs/policies.md). It never ran at this size; nothing is measured. Values of the code's later
rewrite (218515a) are in docs/departures.md.

python -m stepcot_jax.main --config=medclm --config.vqa.root=FOLDER --workdir=runs/medclm

Dry run of the same program at an eighth of the widths with random weights, on phantoms and on a CPU (docs/qwen.md):

python -m stepcot_jax.main --config=medclm --workdir=runs/medclm_dry \
    --config.policy.random=True --config.policy.shrink=8 \
    --config.vqa.source=phantom --config.vqa.root= --config.phantom.num_cases=40 --config.image_encoder.image_size=112 \
    --config.sft.epochs=2 --config.sft.batch_size=16 --config.curriculum.schedule=epochs \
    --config.policy.longest_reply=32 --config.vqa.num_validated=4 --config.evaluation.batch_size=8

[C]: value of the code. Everything else is ours. The code's cosine ends at 1e-6 and its AdamW has betas 0.9 and 0.98;
here the cosine ends at 0 and the betas are 0.9 and 0.999. Batches of one question need a single device.
"""

from configs import base


def get_config():
    config = base.get_config()
    config.job = "sft"
    config.vqa.source = "folder"
    config.vqa.dialect = "medclm"  # [C]

    config.policy.weights = "Qwen/Qwen2.5-VL-7B-Instruct"  # ours; a folder, or an id that is downloaded
    config.image_encoder.image_size = 448  # ours: 16 x 16 tokens; a multiple of 28
    config.training.compute_dtype = "bfloat16"  # ours; what trains and its moments stay float32
    config.parallel.remat = True  # ours

    config.sft.epochs = 100  # [C]
    config.sft.batch_size = 1  # [C] questions
    config.sft.pack_length = 0  # [C] one question a row
    config.sft.learning_rate = 2e-5  # [C]
    config.sft.warmup_epochs = 0.0  # [C]
    config.sft.schedule = "cosine"  # [C]
    config.sft.weight_decay = 0.05  # [C]
    config.training.clip_norm = 1.0  # [C]
    config.sft.reduction = "parts"  # [C] the mean over the tokens of each part
    config.sft.answer_weight = 0.8  # [C]
    config.sft.reasoning_weight = 0.2  # [C]

    config.curriculum.schedule = "adaptive"  # [C], as its constants
    config.curriculum.easy_epochs = 4
    config.curriculum.ramp_epochs = 10
    config.curriculum.hard_epoch = 19
    config.curriculum.gap_centre = 0.5
    config.curriculum.gap_width = 0.1
    config.curriculum.decay = 0.1
    config.curriculum.first_loss = 1e-3
    config.curriculum.first_overall = 1e-4
    config.curriculum.least_loss = 1e-8
    config.curriculum.plateau_values = 5
    config.curriculum.plateau_tolerance = 0.01
    config.curriculum.rise = 0.05
    config.curriculum.hard_gap = 0.6
    config.curriculum.hard_increase = 0.05
    config.curriculum.most_hard = 0.3
    config.curriculum.hard_factor = 0.9
    return config
