"""Golden numbers -> pass or fail: does this machine compute what the authors' code computes?

    python -m stepcot_jax.conformance FILE.npz ...

prints one JSON line a group, {"file":, "group":, "max_error":, "tolerance":, "ok":}, and exits with 1 if any fails.
An error is absolute or relative, whichever is smaller: |found - expected| / max(1, |expected|).
"""

import argparse
import functools
import json
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stepcot_jax.errors import BadInput, run_tool
from stepcot_jax.interop.torch_reference import NETWORKS, from_torch, to_torch
from stepcot_jax.losses.objective import LossParts
from stepcot_jax.models.graph_attention import GraphAttentionStack
from stepcot_jax.models.memory import MemoryCell
from stepcot_jax.models.student import Student
from stepcot_jax.models.teacher import Teacher, TeacherReading
from stepcot_jax.training.optimizers import make_optimizer
from stepcot_jax.training.state import Networks, Params
from stepcot_jax.training.steps import (
    Objective,
    make_joint_step,
    read_as_teacher,
    start_state,
    student_gradients,
    teacher_gradients,
)

FORWARD, LOSSES, TRAINED = 2e-5, 1e-4, 2e-3
"""Tolerances of forward passes and gradients, of losses, and of weights after training."""

VARIANTS: dict[str, dict[str, Any]] = {
    "reference": {"alignment_gradient": "projection", "normaliser": "cka"},
    "paper": {"alignment_gradient": "features", "normaliser": "cka"},
    "paper_trace": {"alignment_gradient": "features", "normaliser": "trace"},
}

Pairs = Iterator[tuple[Any, Any]]


class Golden:
    """One file of golden numbers, with the networks and parameters that it describes."""

    def __init__(self, path: str) -> None:
        try:
            with np.load(path, allow_pickle=False) as archive:
                self.arrays = {name: archive[name] for name in archive.files}
            self.meta = json.loads(bytes(self.arrays["meta"]))
        except (OSError, ValueError, KeyError) as error:
            raise BadInput(f"{path}: found no golden numbers ({error}), accepted is the .npz format") from None
        meta = self.meta
        self.networks = Networks(
            teacher=Teacher(
                answers_per_step=tuple(meta["step_num_classes"]),
                width=meta["teacher_dim"],
                num_layers=meta["gat_layers"],
                num_heads=meta["gat_heads"],
                negative_slope=meta["negative_slope"],
                attention_dropout_rate=0.0,
                context_dropout_rate=0.0,
                head_dropout_rate=0.0,
            ),
            student=Student(
                answers_per_step=tuple(meta["step_num_classes"]), width=meta["student_dim"], dropout_rate=0.0
            ),
            projection_width=meta["proj_dim"],
        )
        self.params = self.tree("params")
        labels = jnp.where(self.arrays["inputs/valid_mask"], self.arrays["inputs/labels"], -100)
        self.batch = {"image_features": jnp.asarray(self.arrays["inputs/image_features"]), "labels": labels}
        self.text_features = jnp.asarray(self.arrays["inputs/text_features"])

    def under(self, prefix: str) -> dict[str, np.ndarray]:
        """The arrays below `prefix/`, by the rest of their names."""
        return {name[len(prefix) + 1 :]: array for name, array in self.arrays.items() if name.startswith(prefix + "/")}

    def tree(self, prefix: str) -> Params:
        """The Flax parameters of all networks below `prefix/`."""
        trees = {ours: from_torch(theirs, self.under(f"{prefix}/{theirs}")) for theirs, ours in NETWORKS.items()}
        return jax.tree.map(jnp.asarray, trees)

    def objective(self, variant: str) -> Objective:
        """The loss settings of a variant."""
        return Objective(
            temperature=self.meta["temperature"],
            soft_label_scale=self.meta["alpha_kd"],
            channel_alignment_scale=self.meta["alpha_ch"],
            **VARIANTS[variant],
        )

    @functools.cached_property
    def teacher_reading(self) -> TeacherReading:
        """The teacher's reading of the inputs, dropout off."""
        read = jax.jit(lambda *inputs: read_as_teacher(self.networks, *inputs, key=None))
        return read(self.params["teacher"], self.batch["image_features"], self.text_features)

    @functools.cached_property
    def teacher_gradients(self) -> tuple[LossParts, Params]:
        """The teacher's loss parts and their gradients."""
        differentiate = jax.jit(lambda *inputs: teacher_gradients(self.networks, Objective(), *inputs, key=None))
        parts, _, gradients = differentiate(self.params, self.batch, self.text_features)
        return parts, gradients

    @functools.cache  # noqa: B019 - a handful of files, each as long-lived as the program
    def student_gradients(self, variant: str) -> tuple[LossParts, Params]:
        """The student's loss parts of a variant and their gradients."""
        objective = self.objective(variant)
        differentiate = jax.jit(
            lambda params, batch, targets: student_gradients(
                self.networks,
                objective,
                params,
                batch,
                image_features=batch["image_features"],
                targets=targets,
                key=None,
            )
        )
        return differentiate(self.params, self.batch, self.teacher_reading)

    @functools.cached_property
    def training(self) -> tuple[np.ndarray, Params]:
        """Losses [step, (teacher, student)] and last parameters of the joint training that the file describes."""
        meta, objective = self.meta, self.objective("reference")
        optimizers = {
            network: make_optimizer(
                learning_rate=meta[f"{network}_lr"],
                weight_decay=meta["weight_decay"],
                epsilon=meta["adam_eps"],
                clip_norm=meta["grad_clip"],
            )
            for network in ("teacher", "student")
        }
        state = start_state(self.params, objective, optimizers, key=jax.random.key(0))
        step = jax.jit(make_joint_step(self.networks, objective, optimizers))
        losses = []
        for _ in range(meta["train_steps"]):
            state, metrics = step(state, self.batch, self.text_features)
            losses.append([metrics.teacher.total, metrics.student.total])
        return np.asarray(losses), state.params


def graph_attention_pairs(golden: Golden) -> Pairs:
    """The stacked graph attention alone, plain and masked, and its first layer's weights."""
    teacher = golden.networks.teacher
    stack = GraphAttentionStack(teacher.num_layers, teacher.num_heads, teacher.width, teacher.negative_slope)
    variables = {"params": golden.params["teacher"]["graph_attention"]}
    nodes = jnp.asarray(golden.arrays["gat/nodes_in"])
    found, attentions = stack.apply(variables, nodes)
    yield found, golden.arrays["gat/nodes_out"]
    yield attentions[0], golden.arrays["gat/attention_layer0"]
    mask = jnp.asarray(golden.arrays["gat/node_mask"])
    found, _ = stack.apply(variables, nodes, node_mask=mask)
    yield found, golden.arrays["gat/nodes_out_masked"]


def memory_pairs(golden: Golden) -> Pairs:
    """The memory cell alone."""
    variables = {"params": golden.params["teacher"]["memory_cell"]}
    yield MemoryCell().apply(variables, golden.arrays["gru/x"], golden.arrays["gru/h"]), golden.arrays["gru/out"]


def teacher_logits_pairs(golden: Golden) -> Pairs:
    """The teacher's logits of every step."""
    logits = golden.teacher_reading.logits
    for step, answers in enumerate(golden.meta["step_num_classes"]):
        yield logits[:, step, :answers], golden.arrays[f"teacher/logits_{step}"]


def teacher_feature_pairs(golden: Golden) -> Pairs:
    """The image feature of every step of the teacher."""
    features = golden.teacher_reading.image_features
    for step in range(len(golden.meta["step_num_classes"])):
        yield features[:, step], golden.arrays[f"teacher/image_feature_{step}"]


def student_pairs(golden: Golden) -> Pairs:
    """The student's logits of every step and its image feature."""
    reading = golden.networks.student.apply(
        {"params": golden.params["student"]}, image_features=golden.batch["image_features"], deterministic=True
    )
    for step, answers in enumerate(golden.meta["step_num_classes"]):
        yield reading.logits[:, step, :answers], golden.arrays[f"student/logits_{step}"]
    yield reading.image_features, golden.arrays["student/image_feature"]


def teacher_loss_pairs(golden: Golden) -> Pairs:
    """The teacher's cross-entropy, in all and a step."""
    parts, _ = golden.teacher_gradients
    yield parts.total, golden.arrays["loss/teacher_ce"]
    yield parts.hard_label, golden.arrays["loss/teacher_ce_per_step"]


def student_loss_pairs(golden: Golden, variant: str, part: str) -> Pairs:
    """One part of the student's loss a step, or its total."""
    parts, _ = golden.student_gradients(variant)
    names = {
        "ce_per_step": parts.hard_label,
        "kd_per_step": parts.soft_label,
        "ch_per_step": parts.channel_alignment,
        "w_per_step": parts.alignment_weight,
        "student_total": parts.total,
    }
    yield names[part], golden.arrays[f"loss/{variant}/{part}"]


def _tensor_pairs(params: Params, golden: Golden, prefix: str) -> Pairs:
    """Every tensor of the networks in `params` against those below `prefix/`, under the authors' names."""
    ours_to_theirs = {ours: theirs for theirs, ours in NETWORKS.items()}
    for ours, tree in params.items():
        found = to_torch(ours_to_theirs[ours], tree)
        expected = golden.under(f"{prefix}/{ours_to_theirs[ours]}")
        if set(found) != set(expected):
            raise BadInput(f"{prefix}/{ours_to_theirs[ours]}: found {sorted(expected)}, accepted are {sorted(found)}")
        yield from ((found[name], expected[name]) for name in expected)


def teacher_gradient_pairs(golden: Golden) -> Pairs:
    """Gradients of the teacher's cross-entropy."""
    _, gradients = golden.teacher_gradients
    yield from _tensor_pairs(gradients, golden, "grads")


def student_gradient_pairs(golden: Golden, variant: str) -> Pairs:
    """Gradients of the student's total, for student and student projection."""
    _, gradients = golden.student_gradients(variant)
    yield from _tensor_pairs(gradients, golden, f"grads/{variant}")


def trajectory_pairs(golden: Golden, group: str) -> Pairs:
    """Losses along the joint training, or the weights after it."""
    losses, params = golden.training
    if group == "train_losses":
        yield losses, golden.arrays["train/losses"]
    else:
        yield from _tensor_pairs(params, golden, "train/params_after")


def groups() -> Iterator[tuple[str, float, Callable[[Golden], Pairs]]]:
    """Every group: its name, its tolerance and what it compares."""
    yield "gat", FORWARD, graph_attention_pairs
    yield "gru", FORWARD, memory_pairs
    yield "teacher_logits", FORWARD, teacher_logits_pairs
    yield "teacher_image_features", FORWARD, teacher_feature_pairs
    yield "student", FORWARD, student_pairs
    yield "loss_teacher", LOSSES, teacher_loss_pairs
    yield "grads_teacher", FORWARD, teacher_gradient_pairs
    for variant in VARIANTS:
        for part in ("ce_per_step", "kd_per_step", "ch_per_step", "w_per_step", "student_total"):
            yield (
                f"loss_{variant}_{part}",
                LOSSES,
                lambda golden, variant=variant, part=part: student_loss_pairs(golden, variant, part),
            )
        yield f"grads_{variant}", FORWARD, lambda golden, variant=variant: student_gradient_pairs(golden, variant)
    yield "train_losses", LOSSES, lambda golden: trajectory_pairs(golden, "train_losses")
    yield "train_params_after", TRAINED, lambda golden: trajectory_pairs(golden, "train_params_after")


def max_error(pairs: Pairs) -> float:
    """Largest absolute-or-relative error over all pairs; infinite where shapes differ or a number is not finite."""
    worst = 0.0
    for found, expected in pairs:
        found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
        if found.shape != expected.shape or not np.isfinite(found).all():
            return float("inf")
        error = np.abs(found - expected) / np.maximum(1.0, np.abs(expected))
        worst = max(worst, float(np.max(error, initial=0.0)))
    return worst


def check(path: str) -> Iterator[dict[str, Any]]:
    """The result of every group of one file, as the command prints it."""
    golden = Golden(path)
    for name, tolerance, pairs in groups():
        error = max_error(pairs(golden))
        ok = error <= tolerance
        yield {
            "file": path,
            "group": name,
            "max_error": error if np.isfinite(error) else None,
            "tolerance": tolerance,
            "ok": ok,
        }


def main(arguments: list[str] | None = None) -> int:
    """Check the files named on the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m stepcot_jax.conformance",
        description="Check this machine's numbers against golden numbers of the authors' code.",
    )
    parser.add_argument("files", nargs="+", metavar="FILE.npz")
    all_ok = True
    for path in parser.parse_args(arguments).files:
        for result in check(path):
            print(json.dumps(result), flush=True)
            all_ok = all_ok and result["ok"]
    return 0 if all_ok else 1


if __name__ == "__main__":
    run_tool(main)
