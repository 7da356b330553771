"""The baseline of the paper's Table 3: pooled image and prompt embeddings through a two-layer perceptron.

All steps supervise it; with --config.baseline.steps=last only the diagnosis does. Weights are required, as for the
config paper; any frozen encoder works.

python -m stepcot_jax.main --config=baseline --config.data.root=FOLDER --workdir=runs/baseline \
    --config.image_encoder.weights=openai/clip-vit-base-patch32 --config.prompts.weights=google-bert/bert-base-uncased

Hardware and time: any, once the features are stored. Expected score: the paper's best encoder, BiomedCLIP, reaches
73.1 % of diagnoses (69.3 % without the steps); not measured here for lack of weights.
"""

from configs import paper


def get_config():
    config = paper.get_config()
    config.job = "baseline"
    config.prompts.template = "Question: {question}"
    return config
