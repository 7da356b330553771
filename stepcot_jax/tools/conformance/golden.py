"""Golden numbers: weights, inputs and the results of the authors' code, read, computed here and compared.

The format is an .npz with the keys of `INPUTS` and `groups`, weights under `params/`, and a JSON `meta`.
"""

import functools
import pathlib
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import msgspec
import numpy as np

from stepcot_jax.export.authors import NETWORKS, find_sizes, from_torch_networks, to_torch_networks
from stepcot_jax.host.array_files import read_arrays
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.ranges import Count, Number, Positive
from stepcot_jax.host.text import one_line
from stepcot_jax.host.untrusted import read_limits
from stepcot_jax.losses.step_cot import Objective
from stepcot_jax.models.layers import GraphAttentionStack, MemoryCell
from stepcot_jax.models.student import Student
from stepcot_jax.models.teacher import Teacher
from stepcot_jax.systems.networks import Networks, read_as_teacher
from stepcot_jax.systems.updates import make_joint_update, start_state, student_gradients, teacher_gradients
from stepcot_jax.training.optimizers import make_optimizer
from stepcot_jax.training.state import Params

VARIANTS = ("reference", "paper", "paper_trace")
"""The authors' code, the paper's gradient, and the paper's gradient and normaliser."""

STUDENT_LOSS_PARTS = ("ce_per_step", "kd_per_step", "ch_per_step", "w_per_step", "student_total")

FORWARD, LOSSES, TRAINED = 2e-5, 1e-4, 2e-3
"""Tolerances of forward passes and gradients, of losses, and of weights after training."""

_TREES = ("grads_", "train_params_after")
_LAYER_NORM_EPSILON = 1e-5


class Meta(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes and settings of a golden file, under the names of its JSON."""

    batch: Count
    teacher_dim: Count
    student_dim: Count
    image_dim: Count
    gat_heads: Count
    gat_layers: Count
    gat_head_dim: Count
    proj_dim: Count
    train_steps: Count
    step_num_classes: Annotated[tuple[Count, ...], msgspec.Meta(min_length=1)]
    temperature: Positive
    alpha_kd: Number
    alpha_ch: Number
    teacher_lr: Number
    student_lr: Number
    weight_decay: Number
    adam_eps: Number
    grad_clip: Number
    negative_slope: Number
    layer_norm_eps: Number

    def __post_init__(self) -> None:
        if self.layer_norm_eps != _LAYER_NORM_EPSILON:
            raise ValueError(f"layer_norm_eps: {self.layer_norm_eps} is not {_LAYER_NORM_EPSILON}")
        if self.teacher_dim != self.gat_heads * self.gat_head_dim:
            raise ValueError(
                f"teacher_dim: {self.teacher_dim} is not {self.gat_heads} * {self.gat_head_dim}, the heads"
            )


INPUTS: dict[str, tuple[str, ...]] = {
    "inputs/image_features": ("batch", "image_dim"),
    "inputs/text_features": ("batch", "steps", "teacher_dim"),
    "inputs/labels": ("batch", "steps"),
    "inputs/valid_mask": ("batch", "steps"),
    "gat/nodes_in": ("batch", "nodes", "teacher_dim"),
    "gat/node_mask": ("batch", "nodes"),
    "gru/x": ("batch", "teacher_dim"),
    "gru/h": ("batch", "teacher_dim"),
}
"""Inputs of the networks -> axes."""


class Golden:
    """One file of golden numbers."""

    def __init__(self, path: str) -> None:
        """Read a file."""
        self.path = path
        self.arrays = read_arrays(
            pathlib.Path(path),
            accepted="an .npz",
            expected="expected an .npz of golden numbers",
            most_unpacked=read_limits().unpacked_bytes,
        )
        if "meta" not in self.arrays:
            raise BadInput(f"{path} lacks the key 'meta' of golden numbers")
        try:
            self.meta = msgspec.json.decode(self.arrays["meta"].tobytes(), type=Meta)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadInput(f"{path}, meta: {one_line(error)}") from None
        results = [key for name, _, keys in groups(self.meta) for key in keys if not name.startswith(_TREES)]
        missing = [name for name in (*INPUTS, *results) if name not in self.arrays]
        if missing:
            raise BadInput(f"{path} lacks the keys {', '.join(missing)}")
        self._check_inputs()
        tensors = {network: self.under(f"params/{network}") for network in NETWORKS}
        try:
            self.params = from_torch_networks(tensors)
            self._check_sizes(find_sizes(tensors))
        except BadInput as error:
            raise BadInput(f"{path}: {error}") from None

    def under(self, prefix: str) -> dict[str, np.ndarray]:
        """Return the arrays under `prefix/`, by the rest of their keys."""
        return {name[len(prefix) + 1 :]: array for name, array in self.arrays.items() if name.startswith(prefix + "/")}

    def inputs(self) -> dict[str, np.ndarray]:
        """Return the inputs in the dtypes of the networks; invalid labels are -100."""
        inputs = {name: self.arrays[name].astype(bool if "mask" in name else np.float32) for name in INPUTS}
        valid = inputs.pop("inputs/valid_mask")
        inputs["inputs/labels"] = np.where(valid, self.arrays["inputs/labels"], -100).astype(np.int32)
        return inputs

    def _check_inputs(self) -> None:
        num_steps = len(self.meta.step_num_classes)
        sizes = {**msgspec.structs.asdict(self.meta), "steps": num_steps, "nodes": num_steps + 1}
        for name, axes in INPUTS.items():
            expected = tuple(sizes[axis] for axis in axes)
            array = self.arrays[name]
            if array.shape != expected or array.dtype.kind not in "fiub":
                raise BadInput(
                    f"{self.path}, {name} is {array.dtype} {list(array.shape)}; expected numbers of shape "
                    f"{list(expected)} according to meta"
                )

    def _check_sizes(self, sizes: Mapping[str, int]) -> None:
        meta = self.meta
        expected = {
            "teacher_width": meta.teacher_dim,
            "student_width": meta.student_dim,
            "image_width": meta.image_dim,
            "num_heads": meta.gat_heads,
            "head_width": meta.gat_head_dim,
            "num_layers": meta.gat_layers,
            "projection_width": meta.proj_dim,
            "num_steps": len(meta.step_num_classes),
            **{f"answers_{step}": answers for step, answers in enumerate(meta.step_num_classes)},
        }
        for name, size in expected.items():
            if sizes[name] != size:
                raise BadInput(f"params: {name} is {sizes[name]}; expected {size} according to meta")


def groups(meta: Meta) -> Iterator[tuple[str, float, tuple[str, ...]]]:
    """Yield name, tolerance and keys of every group; keys of gradients and trained weights are prefixes."""

    def of_steps(prefix: str) -> tuple[str, ...]:
        return tuple(f"{prefix}_{step}" for step in range(len(meta.step_num_classes)))

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


# The results of a golden file as this machine computes them: forward passes, losses, gradients and a short training.


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
        how: dict[str, Any] = {"weight_decay": meta.weight_decay, "epsilon": meta.adam_eps, "clip_norm": meta.grad_clip}
        rates = {"teacher": meta.teacher_lr, "student": meta.student_lr}
        self.optimizers = {name: make_optimizer(learning_rate=rate, **how) for name, rate in rates.items()}
        self.evaluate = jax.jit(self._evaluate)
        key, objective = jax.random.key(0), self.objective("reference")
        self.start = jax.jit(lambda params: start_state(params, objective, self.optimizers, key=key))
        self.update = jax.jit(make_joint_update(self.networks, objective, self.optimizers))

    def objective(self, variant: str) -> Objective:
        """Return the loss settings of a variant."""
        return Objective(
            temperature=self.meta.temperature,
            soft_label_scale=self.meta.alpha_kd,
            channel_alignment_scale=self.meta.alpha_ch,
            **_SETTINGS[variant],
        )

    def _evaluate(self, params: Params, inputs: dict[str, jax.Array]) -> Numbers:
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


# Computed and golden numbers, group by group.


Pairs = Iterator[tuple[Any, Any]]


_make_computation = functools.lru_cache(maxsize=8)(Computation)


def _pairs(golden: Golden, numbers: Numbers, key: str) -> Pairs:
    if not isinstance(numbers[key], dict):
        yield numbers[key], golden.arrays[key]
        return
    theirs = {ours: name for name, ours in NETWORKS.items()}
    for ours, tree in numbers[key].items():
        computed, prefix = to_torch_networks({ours: tree})[theirs[ours]], f"{key}/{theirs[ours]}"
        expected = golden.under(prefix)
        if missing := sorted(set(computed) - set(expected)):
            keys = ", ".join(f"{prefix}/{name}" for name in missing)
            raise BadInput(f"{golden.path} lacks the keys {keys}")
        if unused := sorted(set(expected) - set(computed)):
            raise BadInput(f"{golden.path}, {prefix}: unknown weights {', '.join(unused)}")
        yield from ((computed[name], expected[name]) for name in expected)


def max_error(pairs: Pairs) -> float:
    """Return the largest error over all pairs; infinite if shapes differ or a number is not finite."""
    worst = 0.0
    for computed, expected in pairs:
        computed, expected = np.asarray(computed, np.float64), np.asarray(expected, np.float64)
        if computed.shape != expected.shape or not (np.isfinite(computed).all() and np.isfinite(expected).all()):
            return float("inf")
        error = np.abs(computed - expected) / np.maximum(1.0, np.abs(expected))
        worst = max(worst, float(np.max(error, initial=0.0)))
    return worst


def check(path: str) -> Iterator[dict[str, Any]]:
    """Yield the result of every group of one file, as printed."""
    golden = Golden(path)
    computation = _make_computation(golden.meta)
    params, inputs = jax.tree.map(jnp.asarray, (golden.params, golden.inputs()))
    with jax.default_matmul_precision("highest"):
        numbers = computation.evaluate(params, inputs) | computation.train(params, inputs)
    numbers = jax.device_get(numbers)
    for name, tolerance, keys in groups(golden.meta):
        error = max(max_error(_pairs(golden, numbers, key)) for key in keys)
        shown = {"max_error": error if np.isfinite(error) else None, "tolerance": tolerance}
        yield {"file": path, "group": name, **shown, "ok": error <= tolerance}
