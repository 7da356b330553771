"""Losses as functions of arrays: Step-CoT's parts and objective, sequences, policy gradients.

A loss knows no module, file or setting; `Objective.parts` takes further parts. Read `step_cot` first.
"""

from stepcot_jax.losses.reductions import masked_mean
from stepcot_jax.losses.step_cot import (
    alignment_weight,
    channel_alignment_loss,
    hard_label_loss,
    inverse_frequency_weights,
    soft_label_loss,
    student_objective,
    teacher_objective,
)

__all__ = [
    "alignment_weight",
    "channel_alignment_loss",
    "hard_label_loss",
    "inverse_frequency_weights",
    "masked_mean",
    "soft_label_loss",
    "student_objective",
    "teacher_objective",
]
