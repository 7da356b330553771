"""The published setting: frozen CLIP ViT-B/32 and BERT-base, encoded once (paper: Appendix D).

Both weights are required, each a local folder or a Hugging Face id (docs/encoders.md says how to get them).

python -m stepcot_jax.main --config=paper --config.data.root=FOLDER --workdir=runs/paper \
    --config.image_encoder.weights=openai/clip-vit-base-patch32 --config.prompts.weights=google-bert/bert-base-uncased

Hardware and time: any; with 2 CPU cores 200 images, 2 epochs and random weights of these sizes took 2 minutes. Expected
score: the paper's teacher 78.3 % and student 77.5 % of diagnoses; not measured here, where no weights can be had.
"""

from configs import base


def get_config():
    config = base.get_config()
    config.data.source = "folder"
    config.image_encoder.name = "pretrained"
    config.prompts.encoder = "pretrained"
    return config
