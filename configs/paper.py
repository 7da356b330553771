"""The published setting: frozen CLIP ViT-B/32 and BERT-base, encoded once (paper: Appendix D).

Both weights are required, each a local folder or a Hugging Face id (docs/encoders.md says how to get them).

python -m stepcot_jax.main --config=configs/paper.py --config.data.root=FOLDER --workdir=runs/paper \
    --config.image_encoder.weights=openai/clip-vit-base-patch32 --config.prompts.weights=google-bert/bert-base-uncased
"""

from configs import base


def get_config():
    config = base.get_config()
    config.data.source = "folder"
    config.image_encoder.name = "pretrained"
    config.prompts.encoder = "pretrained"
    return config
