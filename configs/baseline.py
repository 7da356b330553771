"""The baseline of the paper's Table 3: pooled image and prompt embeddings through a two-layer perceptron.

With the intermediate steps as supervision; --config.baseline.steps=last is without. Weights are required, as for
configs/paper.py; any frozen encoder goes.

python -m stepcot_jax.main --config=baseline --config.data.root=FOLDER --workdir=runs/baseline \
    --config.image_encoder.weights=openai/clip-vit-base-patch32 --config.prompts.weights=google-bert/bert-base-uncased

Hardware and time: any, once the features are made. Expected score: the paper's best encoder, BiomedCLIP, has 69.3 % of
diagnoses; not measured here, where no weights can be had.
"""

from configs import paper


def get_config():
    config = paper.get_config()
    config.job = "baseline"
    config.prompts.template = "Question: {question}"
    return config
