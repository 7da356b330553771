"""The config step_cot with the authors' choices where their code differs from the paper (docs/departures.md).

python -m stepcot_jax.main --config=authors_code --config.data.root=FOLDER --workdir=runs/authors_code

Hardware and time: as step_cot. Expected score: not measured; `python -m stepcot_jax.conformance` checks this setting
against golden numbers of the authors' code.
"""

from configs import step_cot


def get_config():
    config = step_cot.get_config()
    config.loss.alignment_gradient = "projection"
    config.loss.normaliser = "cka"
    config.loss.train_teacher_projection = False
    config.loss.target_dropout = True
    config.evaluation.best = "mean"
    return config
