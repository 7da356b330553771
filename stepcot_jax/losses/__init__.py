"""The losses of teacher and student as functions of arrays; `masked` averages for all of them."""

from stepcot_jax.losses.step_cot import (
    alignment_weight,
    channel_alignment_loss,
    distribution_loss,
    hard_label_loss,
    inverse_frequency_weights,
    masked_mean,
    soft_label_loss,
    student_objective,
    teacher_objective,
)

__all__ = [
    "alignment_weight",
    "channel_alignment_loss",
    "distribution_loss",
    "hard_label_loss",
    "inverse_frequency_weights",
    "masked_mean",
    "soft_label_loss",
    "student_objective",
    "teacher_objective",
]
