"""Figure 3 of Step-CoT: a Qwen2.5-VL is fine-tuned on data.json by levels; `stepcot constrain` asks before and after.

Level k asks the first k steps, then the diagnosis, in one reply; the form "true" asks step k alone and gives the true
answers to those before it. The diagnosis is never given. Section 4.2 only prompts a model, Figure 3's caption says
fine-tuning and prints no number, so everything here is ours (docs/departures.md). Nothing is measured: no published
weights and no accelerator were available here.

python -m stepcot_jax.main --config=step_cot_lvlm --config.vqa.root=DATA --workdir=runs/lvlm \
    --config.parallel.model_devices=4

Dry run of the same program at an eighth of the widths with random weights, on phantoms and on a CPU:

stepcot data phantom runs/phantoms --num-cases=40 --size=112
python -m stepcot_jax.main --config=step_cot_lvlm --workdir=runs/lvlm_dry --config.vqa.root=runs/phantoms \
    --config.policy.random=True --config.policy.shrink=8 --config.image_encoder.image_size=112 \
    --config.vqa.levels='(0,2)' --config.parallel.num_passes=2 --config.sft.epochs=1 --config.sft.batch_size=16 \
    --config.policy.longest_reply=32 --config.vqa.num_validated=4 --config.evaluation.batch_size=8

The comparison, on the cases of the run's test patients (docs/constrain.md):

stepcot export --checkpoint=runs/lvlm --out=runs/lvlm_hf
for model in Qwen/Qwen2.5-VL-7B-Instruct runs/lvlm_hf; do
    stepcot constrain --workdir runs/lvlm --local $model --image-size=448 --out runs/levels_$(basename $model)
done
"""

from configs import base


def get_config():
    config = base.get_config()
    config.job = "sft"
    config.vqa.source = "folder"
    config.vqa.levels = (0, 1, 2, 3, 4, 5, 6, 7)
    config.vqa.level_forms = ("constraints", "true")
    config.vqa.dialect = "levels"
    config.vqa.num_validated = 512

    config.policy.weights = "Qwen/Qwen2.5-VL-7B-Instruct"  # a folder, or an id that is downloaded
    config.image_encoder.image_size = 448  # 16 x 16 tokens; a multiple of 28
    config.training.compute_dtype = "bfloat16"
    config.parallel.transform = "mesh"  # with config.parallel.model_devices=4 on 8 x 80 GB
    config.parallel.remat = True
    config.parallel.num_passes = 32

    config.sft.epochs = 1
    config.sft.batch_size = 256
    config.sft.epoch_end = "ceil"  # the last part of an epoch counts
    config.sft.pack_length = 0  # one question a row, so that the batch counts questions
    config.sft.learning_rate = 1e-5
    config.sft.warmup_epochs = 0.05
    config.sft.schedule = "cosine"
    return config
