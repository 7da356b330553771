"""Golden numbers -> pass or fail: does this machine compute what the authors' code computes?

    python -m stepcot_jax.conformance FILE.npz ...

prints one JSON line a group, {"file":, "group":, "max_error":, "tolerance":, "ok":}, and exits with 1 if any fails.
An error is absolute or relative, whichever is smaller: |found - expected| / max(1, |expected|); null where it is
not finite. Matrix products run at the highest precision that the device has, whatever its default.
"""

import argparse
import functools
import json
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stepcot_jax.conformance.golden import STUDENT_LOSS_PARTS, VARIANTS, Golden
from stepcot_jax.convert.torch_names import NETWORKS
from stepcot_jax.convert.torch_reference import to_torch
from stepcot_jax.host.errors import BadInput, run_tool
from stepcot_jax.losses.objective import LossParts
from stepcot_jax.models.graph_attention import GraphAttentionStack
from stepcot_jax.models.memory import MemoryCell
from stepcot_jax.models.student import Student
from stepcot_jax.models.teacher import Teacher
from stepcot_jax.systems.gradients import Objective, student_gradients, teacher_gradients
from stepcot_jax.systems.networks import Networks, read_as_teacher
from stepcot_jax.systems.step_cot import make_joint_update, start_state
from stepcot_jax.training.optimizers import make_optimizer
from stepcot_jax.training.state import Params, TrainState

FORWARD, LOSSES, TRAINED = 2e-5, 1e-4, 2e-3
"""Tolerances of forward passes and gradients, of losses, and of weights after training."""

_SETTINGS: dict[str, dict[str, Any]] = {
    "reference": {"alignment_gradient": "projection", "normaliser": "cka"},
    "paper": {"alignment_gradient": "features", "normaliser": "cka"},
    "paper_trace": {"alignment_gradient": "features", "normaliser": "trace"},
}

Numbers = dict[str, Any]
"""What was computed, under the keys of the golden file; gradients and weights as Flax parameters."""

Pairs = Iterator[tuple[Any, Any]]


class Computation:
    """The computations that golden files of one `meta` ask for, compiled once for all of them.

    Args:
      meta: the file's sizes and hyperparameters.
    """

    def __init__(self, meta: dict[str, Any]) -> None:
        self.meta = meta
        answers = tuple(meta["step_num_classes"])
        self.networks = Networks(
            teacher=Teacher(
                answers_per_step=answers,
                width=meta["teacher_dim"],
                num_layers=meta["gat_layers"],
                num_heads=meta["gat_heads"],
                negative_slope=meta["negative_slope"],
                attention_dropout_rate=0.0,
                context_dropout_rate=0.0,
                head_dropout_rate=0.0,
            ),
            student=Student(answers_per_step=answers, width=meta["student_dim"], dropout_rate=0.0),
            projection_width=meta["proj_dim"],
        )
        self.optimizers = {
            network: make_optimizer(
                learning_rate=meta[f"{network}_lr"],
                weight_decay=meta["weight_decay"],
                epsilon=meta["adam_eps"],
                clip_norm=meta["grad_clip"],
            )
            for network in ("teacher", "student")
        }
        self.evaluate = jax.jit(self._evaluate)
        self.start = jax.jit(self._start)
        self.update = jax.jit(make_joint_update(self.networks, self.objective("reference"), self.optimizers))

    def objective(self, variant: str) -> Objective:
        """The loss settings of a variant."""
        return Objective(
            temperature=self.meta["temperature"],
            soft_label_scale=self.meta["alpha_kd"],
            channel_alignment_scale=self.meta["alpha_ch"],
            **_SETTINGS[variant],
        )

    def _start(self, params: Params) -> TrainState:
        return start_state(params, self.objective("reference"), self.optimizers, key=jax.random.key(0))

    def _evaluate(self, params: Params, inputs: dict[str, jax.Array]) -> Numbers:
        """Everything but the training."""
        images, texts = inputs["inputs/image_features"], inputs["inputs/text_features"]
        batch = {"image_features": images, "labels": inputs["inputs/labels"]}
        numbers = self._evaluate_parts(params["teacher"], inputs)
        targets = read_as_teacher(self.networks, params["teacher"], images, texts, key=None)
        reading = self.networks.student.apply({"params": params["student"]}, image_features=images, deterministic=True)
        for step, answers in enumerate(self.meta["step_num_classes"]):
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
            numbers |= _name_student_losses(variant, parts)
        return numbers

    def _evaluate_parts(self, teacher_params: Params, inputs: dict[str, jax.Array]) -> Numbers:
        """Graph attention and memory cell alone."""
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
        """Losses [step, (teacher, student)] and last weights of the joint training."""
        batch = {name: inputs[f"inputs/{name}"] for name in ("image_features", "labels", "text_features")}
        state, losses = self.start(params), []
        for _ in range(self.meta["train_steps"]):
            state, metrics = self.update(state, batch)
            losses.append([metrics.losses["teacher"].total, metrics.losses["student"].total])
        return {"train/losses": np.asarray(losses), "train/params_after": state.params}


def _name_student_losses(variant: str, parts: LossParts) -> Numbers:
    values = (parts.hard_label, parts.soft_label, parts.channel_alignment, parts.alignment_weight, parts.total)
    return {f"loss/{variant}/{name}": value for name, value in zip(STUDENT_LOSS_PARTS, values, strict=True)}


@functools.lru_cache(maxsize=8)
def _computation(meta: str) -> Computation:
    return Computation(json.loads(meta))


def groups(meta: dict[str, Any]) -> Iterator[tuple[str, float, tuple[str, ...]]]:
    """Every group: its name, its tolerance and the keys that it compares."""

    def of_steps(prefix: str) -> tuple[str, ...]:
        return tuple(f"{prefix}_{step}" for step in range(len(meta["step_num_classes"])))

    yield "gat", FORWARD, ("gat/nodes_out", "gat/attention_layer0", "gat/nodes_out_masked")
    yield "gru", FORWARD, ("gru/out",)
    yield "teacher_logits", FORWARD, of_steps("teacher/logits")
    yield "teacher_image_features", FORWARD, of_steps("teacher/image_feature")
    yield "student", FORWARD, (*of_steps("student/logits"), "student/image_feature")
    yield "loss_teacher", LOSSES, ("loss/teacher_ce", "loss/teacher_ce_per_step")
    yield "grads_teacher", FORWARD, ("grads",)
    for variant in VARIANTS:
        for part in STUDENT_LOSS_PARTS:
            yield f"loss_{variant}_{part}", LOSSES, (f"loss/{variant}/{part}",)
        yield f"grads_{variant}", FORWARD, (f"grads/{variant}",)
    yield "train_losses", LOSSES, ("train/losses",)
    yield "train_params_after", TRAINED, ("train/params_after",)


def _pairs(golden: Golden, numbers: Numbers, key: str) -> Pairs:
    """What was computed under a key beside what was expected; every tensor of a parameter tree in turn."""
    if not isinstance(numbers[key], dict):
        yield numbers[key], golden.arrays[key]
        return
    theirs = {ours: name for name, ours in NETWORKS.items()}
    for ours, tree in numbers[key].items():
        found, prefix = to_torch(theirs[ours], tree), f"{key}/{theirs[ours]}"
        expected = golden.under(prefix)
        if missing := sorted(set(found) - set(expected)):
            keys = ", ".join(f"{prefix}/{name}" for name in missing)
            raise BadInput(f"{golden.path}: found no key {keys}; accepted are files that have them")
        if unused := sorted(set(expected) - set(found)):
            raise BadInput(f"{golden.path}: {prefix}: found {', '.join(unused)}, accepted are the weights' names")
        yield from ((found[name], expected[name]) for name in expected)


def max_error(pairs: Pairs) -> float:
    """Largest absolute-or-relative error over all pairs; infinite where shapes differ or a number is not finite."""
    worst = 0.0
    for found, expected in pairs:
        found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
        if found.shape != expected.shape or not (np.isfinite(found).all() and np.isfinite(expected).all()):
            return float("inf")
        error = np.abs(found - expected) / np.maximum(1.0, np.abs(expected))
        worst = max(worst, float(np.max(error, initial=0.0)))
    return worst


def check(path: str) -> Iterator[dict[str, Any]]:
    """The result of every group of one file, as the command prints it.

    Raises:
      BadInput: the file does not hold golden numbers.
    """
    golden = Golden(path)
    computation = _computation(json.dumps(golden.meta, sort_keys=True))
    params, inputs = jax.tree.map(jnp.asarray, (golden.params, golden.inputs()))
    with jax.default_matmul_precision("highest"):
        numbers = computation.evaluate(params, inputs) | computation.train(params, inputs)
    numbers = jax.device_get(numbers)
    for name, tolerance, keys in groups(golden.meta):
        error = max(max_error(_pairs(golden, numbers, key)) for key in keys)
        yield {
            "file": path,
            "group": name,
            "max_error": error if np.isfinite(error) else None,
            "tolerance": tolerance,
            "ok": error <= tolerance,
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
