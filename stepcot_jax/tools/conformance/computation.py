"""Compute the results of a golden file: forward passes, losses, gradients and a short training."""

from typing import Any

import jax
import numpy as np

from stepcot_jax.losses.step_cot import Objective
from stepcot_jax.models.layers import GraphAttentionStack, MemoryCell
from stepcot_jax.models.student import Student
from stepcot_jax.models.teacher import Teacher
from stepcot_jax.systems.networks import Networks, read_as_teacher
from stepcot_jax.systems.updates import make_joint_update, start_state, student_gradients, teacher_gradients
from stepcot_jax.tools.conformance.golden import STUDENT_LOSS_PARTS, VARIANTS, Meta
from stepcot_jax.training.optimizers import make_optimizer
from stepcot_jax.training.state import Params, TrainState

_SETTINGS: dict[str, dict[str, Any]] = {
    "reference": {"alignment_gradient": "projection", "normaliser": "cka"},
    "paper": {"alignment_gradient": "features", "normaliser": "cka"},
    "paper_trace": {"alignment_gradient": "features", "normaliser": "trace"},
}

Numbers = dict[str, Any]
"""Results by the keys of the golden file; gradients and weights as Flax parameters."""


class Computation:
    """The compiled computations of all golden files with the same `meta`."""

    def __init__(self, meta: Meta) -> None:
        self.meta = meta
        answers = meta.step_num_classes
        self.networks = Networks(
            teacher=Teacher(
                answers_per_step=answers,
                width=meta.teacher_dim,
                num_layers=meta.gat_layers,
                num_heads=meta.gat_heads,
                negative_slope=meta.negative_slope,
                attention_dropout_rate=0.0,
                context_dropout_rate=0.0,
                head_dropout_rate=0.0,
            ),
            student=Student(answers_per_step=answers, width=meta.student_dim, dropout_rate=0.0),
            projection_width=meta.proj_dim,
        )
        self.optimizers = {
            network: make_optimizer(
                learning_rate=rate, weight_decay=meta.weight_decay, epsilon=meta.adam_eps, clip_norm=meta.grad_clip
            )
            for network, rate in (("teacher", meta.teacher_lr), ("student", meta.student_lr))
        }
        self.evaluate = jax.jit(self._evaluate)
        self.start = jax.jit(self._start)
        self.update = jax.jit(make_joint_update(self.networks, self.objective("reference"), self.optimizers))

    def objective(self, variant: str) -> Objective:
        """Return the loss settings of a variant."""
        return Objective(
            temperature=self.meta.temperature,
            soft_label_scale=self.meta.alpha_kd,
            channel_alignment_scale=self.meta.alpha_ch,
            **_SETTINGS[variant],
        )

    def _start(self, params: Params) -> TrainState:
        return start_state(params, self.objective("reference"), self.optimizers, key=jax.random.key(0))

    def _evaluate(self, params: Params, inputs: dict[str, jax.Array]) -> Numbers:
        """Compute everything except the training."""
        images, texts = inputs["inputs/image_features"], inputs["inputs/text_features"]
        batch = {"image_features": images, "labels": inputs["inputs/labels"]}
        numbers = self._evaluate_parts(params["teacher"], inputs)
        targets = read_as_teacher(self.networks, params["teacher"], images, texts, key=None)
        reading = self.networks.student.apply({"params": params["student"]}, image_features=images, deterministic=True)
        for step, answers in enumerate(self.meta.step_num_classes):
            numbers[f"teacher/logits_{step}"] = targets.logits[:, step, :answers]
            numbers[f"teacher/image_feature_{step}"] = targets.image_features[:, step]
            numbers[f"student/logits_{step}"] = reading.logits[:, step, :answers]
        numbers["student/image_feature"] = reading.image_features
        parts, _, numbers["grads"] = teacher_gradients(self.networks, Objective(), params, batch, texts, key=None)
        numbers |= {"loss/teacher_ce": parts.total, "loss/teacher_ce_per_step": parts.hard_label}
        for variant in VARIANTS:
            parts, numbers[f"grads/{variant}"] = student_gradients(
                self.networks, self.objective(variant), params, batch, image_features=images, targets=targets, key=None
            )
            values = parts.hard_label, parts.soft_label, parts.channel_alignment, parts.alignment_weight, parts.total
            names = [f"loss/{variant}/{name}" for name in STUDENT_LOSS_PARTS]
            numbers |= dict(zip(names, values, strict=True))
        return numbers

    def _evaluate_parts(self, teacher_params: Params, inputs: dict[str, jax.Array]) -> Numbers:
        """Compute graph attention and memory cell alone."""
        teacher = self.networks.teacher
        stack = GraphAttentionStack(teacher.num_layers, teacher.num_heads, teacher.width, teacher.negative_slope)
        variables = {"params": teacher_params["graph_attention"]}
        nodes, attentions = stack.apply(variables, inputs["gat/nodes_in"])
        masked, _ = stack.apply(variables, inputs["gat/nodes_in"], node_mask=inputs["gat/node_mask"])
        memory = MemoryCell().apply({"params": teacher_params["memory_cell"]}, inputs["gru/x"], inputs["gru/h"])
        return {
            "gat/nodes_out": nodes,
            "gat/attention_layer0": attentions[0],
            "gat/nodes_out_masked": masked,
            "gru/out": memory,
        }

    def train(self, params: Params, inputs: dict[str, jax.Array]) -> Numbers:
        """Train jointly; returns losses [update, (teacher, student)] and the final weights."""
        batch = {name: inputs[f"inputs/{name}"] for name in ("image_features", "labels", "text_features")}
        state, losses = self.start(params), []
        for _ in range(self.meta.train_steps):
            state, metrics = self.update(state, batch)
            losses.append([metrics.losses["teacher"].total, metrics.losses["student"].total])
        return {"train/losses": np.asarray(losses), "train/params_after": state.params}
