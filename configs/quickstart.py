"""Phantom chests at 64 px, small networks: the whole pipeline in minutes.

python -m stepcot_jax.main --config=quickstart --workdir=runs/quickstart

Hardware and time: 2 CPU cores, 175 s the first time (2026-11-29; 168 s before f914622f); then about 10 s until
what a first answer needs is compiled too. Expected scores: docs/does_it_help.md.
"""

from configs import base


def get_config():
    config = base.get_config()
    config.phantom.num_cases = 10_000
    config.phantom.image_size = 64
    config.phantom.prevalence = "flat"
    config.data.split_fractions = (0.9, 0.05, 0.05)
    config.image_encoder.name = "resnet_small"
    config.image_encoder.image_size = 64
    config.teacher.width = 96
    config.teacher.num_layers = 1
    # As published; 96 units, which the quickstart had before, cost the student about two points of the steps.
    config.student.width = 512
    # A departure: the image encoder also learns from one linear head a step, as the plain network does.
    config.loss.plain_scale = 1.0
    # Each drawing is seen seven times, too few to over-fit; random numbers of dropout would take a third of an update.
    config.teacher.attention_dropout = 0.0
    config.teacher.context_dropout = 0.0
    config.teacher.head_dropout = 0.0
    config.student.dropout = 0.0
    config.loss.projection_width = 48
    config.training.teacher_epochs = 0  # both networks from the start: one update to compile
    config.training.joint_epochs = 7
    config.training.schedule = "cosine"
    # A departure, so that corrections change later answers (docs/corrections.md): a case has none, some or all given.
    config.training.given_answers = "varied"
    config.training.given_rate = 1.0
    config.training.teacher_learning_rate = 2e-3
    config.training.student_learning_rate = 1e-3
    return config
