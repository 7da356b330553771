"""As configs/step_cot.py, with the choices of the authors' code wherever it differs from the paper.

See docs/departures.md for what each of them does.

python -m stepcot_jax.main --config=authors_code --config.data.root=FOLDER --workdir=runs/authors_code

Hardware and time: as configs/step_cot.py. Expected score: not measured yet; the golden numbers of the authors' code
(python -m stepcot_jax.conformance) are what this setting is checked against.
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
