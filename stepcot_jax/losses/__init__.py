"""The losses of teacher and student as functions of arrays; `masked` averages for all of them."""

from stepcot_jax.losses.channel_alignment import alignment_weight, channel_alignment_loss
from stepcot_jax.losses.hard_label import distribution_loss, hard_label_loss, inverse_frequency_weights
from stepcot_jax.losses.masked import masked_mean
from stepcot_jax.losses.objective import student_objective, teacher_objective
from stepcot_jax.losses.soft_label import soft_label_loss

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
