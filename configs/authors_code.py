"""The config step_cot with the authors' choices where their code differs from the paper and a setting exists.

docs/departures.md has these settings and the differences that have none, such as the initial weights.

python -m stepcot_jax.main --config=authors_code --config.data.root=FOLDER --workdir=runs/authors_code

Hardware and time: as step_cot, for 50 epochs instead of 30. Expected score: not measured;
`stepcot conformance` checks the losses and updates of this setting against golden numbers of the authors'
code.
"""

from configs import step_cot


def get_config():
    config = step_cot.get_config()
    config.loss.alignment_gradient = "projection"
    config.loss.normaliser = "cka"
    config.loss.train_teacher_projection = False
    config.loss.target_dropout = True
    config.evaluation.best = "mean"
    config.training.teacher_epochs = 10  # their stage of the teacher alone, which precedes
    config.training.joint_epochs = 40  # in which the student trains from the first epoch
    config.training.plateau_patience = 3  # PyTorch's patience of 2: the third epoch without a better score
    return config
