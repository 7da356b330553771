"""Updates of Step-CoT on one device: the teacher alone, and teacher and student together (paper: Appendix D.5)."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Int

from stepcot_jax.chain import Chain
from stepcot_jax.losses.step_cot import (
    LinearMap,
    LossParts,
    Objective,
    batch_totals,
    student_objective,
    teacher_objective,
)
from stepcot_jax.models.teacher import TeacherReading
from stepcot_jax.systems.networks import Batch, Networks, encode_images, read_as_plain, read_as_teacher
from stepcot_jax.training.devices import ONE_DEVICE, GlobalBatch
from stepcot_jax.training.optimizers import global_norm
from stepcot_jax.training.state import Params, TrainState, apply_gradients
from stepcot_jax.training.system import Update

# True answers that a network is given in training, so that it learns to follow corrections.
#
# As published, memory holds the teacher's own answers, which add no information to the image, so the teacher learns to
# ignore them. True answers, given at random, make the memory informative: RandInt in the literature on concept
# bottlenecks (Espinosa Zarlenga et al., Concept Embedding Models, NeurIPS 2022), scheduled sampling in that on
# sequences (Bengio et al., NeurIPS 2015). It is ours, not the paper's (docs/departures.md).


_STREAM = 0x61  # folded into the update's random key; dropout uses other streams


@dataclasses.dataclass(frozen=True)
class AnswerSchedule:
    """Draws the answers given in an update: a function of the seed, the update and the case's position.

    Attributes:
      rate: probability of each annotated answer of each case; None: none is given, as published.
      varied: whether each case has a probability of its own, drawn between 0 and `rate`, so that cases with no answer,
        some and all are equally frequent; at one high rate a network hardly ever reads a case on its own.
      noise: share of the given answers that are wrong ones of the same step, equally likely; 0 to 1.
      student: whether the student is given the same answers in its update; else only the teacher.
    """

    rate: float | None = None
    noise: float = 0.0
    student: bool = True
    varied: bool = False

    def draw(
        self,
        key: Array,
        *,
        labels: Int[Array, "case step"],
        answers_per_step: tuple[int, ...],
        first_case: Int[Array, ""] | int = 0,
    ) -> Int[Array, "case step"]:
        """Return the given answers, -1 where the network is to predict."""
        num_cases, num_steps = labels.shape
        counts = jnp.asarray(answers_per_step)
        rate = jnp.float32(self.rate or 0.0)

        def draw_one(case: Array, case_labels: Array) -> Array:
            keys = jax.random.split(jax.random.fold_in(jax.random.fold_in(key, _STREAM), case), 4)
            own_rate = rate * jax.random.uniform(keys[0]) if self.varied else rate
            chosen = jax.random.bernoulli(keys[1], own_rate, (num_steps,))
            others = (case_labels + jax.random.randint(keys[2], (num_steps,), 1, jnp.maximum(counts, 2))) % counts
            wrong = jax.random.bernoulli(keys[3], self.noise, (num_steps,))
            return jnp.where(chosen & (case_labels >= 0), jnp.where(wrong, others, case_labels), -1)

        return jax.vmap(draw_one)(first_case + jnp.arange(num_cases), labels).astype(jnp.int32)


AS_PUBLISHED = AnswerSchedule()
"""No answer is given in training."""

# Losses and gradients of teacher and student for a batch (paper: Appendix D.4 and D.5).
#
# Every function runs on one device; `training.devices` reduces over the devices.


class Metrics(flax.struct.PyTreeNode):
    """The metrics of an update; they stay on the device until the loop reads them."""

    losses: dict[str, LossParts]
    gradient_norms: dict[str, Array]


def named_numbers(metrics: Metrics, chain: Chain, networks: Sequence[str]) -> dict[str, float]:
    """Return the numbers of an update by name, such as "student/soft_label/Diagnosis"; parts come before totals."""
    numbers: dict[str, float] = {}
    totals: dict[str, float] = {}
    for network in networks:
        if network not in metrics.losses:
            continue
        parts = metrics.losses[network]
        for part, values in parts.by_name().items():
            if np.ndim(values):
                for step, value in zip(chain.steps, np.asarray(values), strict=True):
                    numbers[f"{network}/{part}/{step.name}"] = float(value)
            totals[f"{network}/{part}"] = float(np.sum(values))
        totals[f"{network}/total"] = float(parts.total)
    norms = {f"{network}/gradient_norm": float(norm) for network, norm in metrics.gradient_norms.items()}
    return {**numbers, **totals, **norms}


def describe_losses(numbers: dict[str, float], networks: Sequence[str]) -> str:
    """Return the loss parts of each network in a few words, for the progress bar."""
    short = {"hard_label": "CE", "soft_label": "KD", "channel_alignment": "CH"}
    hidden = {"total", "gradient_norm", "alignment_weight"}
    words = []
    for network in networks:
        named = (name.removeprefix(f"{network}/") for name in numbers if name.startswith(f"{network}/"))
        shown = [name for name in named if "/" not in name and name not in hidden]
        parts = [f"{short.get(name, name)} {numbers[f'{network}/{name}']:.3f}" for name in shown]
        if parts:
            words.append(f"{network} {' '.join(parts)}")
    return ", ".join(words)


def teacher_part(params: Params) -> Params:
    """Return the parameters that the teacher's optimizer updates."""
    return {name: params[name] for name in ("teacher", "image_encoder", "plain") if name in params}


def student_part(params: Params, *, train_teacher_projection: bool) -> Params:
    """Return the parameters that the student's optimizer updates."""
    names = ["student", "student_projection"] + ["teacher_projection"] * train_teacher_projection
    return {name: params[name] for name in names}


def teacher_gradients(
    networks: Networks,
    objective: Objective,
    params: Params,
    batch: Batch,
    text_features: Array | None,
    *,
    key: Array | None,
    global_batch: GlobalBatch = ONE_DEVICE,
) -> tuple[LossParts, Array, Params]:
    """Return loss parts, image features and gradients of the teacher's part of `params`, with the plain network's."""
    totals = global_batch.add_up(batch_totals(batch["labels"], objective.answer_weights))

    def loss(trained: Params, rows: Batch, first_case: Any) -> tuple[Array, tuple[LossParts, Array]]:
        features = encode_images(networks, trained, rows)
        reading = read_as_teacher(
            networks,
            trained["teacher"],
            features,
            text_features,
            given_answers=rows.get("given_answers"),
            key=key,
            first_case=first_case,
        )
        measure = functools.partial(
            teacher_objective, labels=rows["labels"], answer_weights=objective.answer_weights, totals=totals
        )
        parts = measure(logits=reading.logits)
        if objective.plain_scale:
            plain = measure(logits=read_as_plain(networks, trained, features))
            parts = parts.replace(
                total=parts.total + objective.plain_scale * plain.total, further={"plain": plain.hard_label}
            )
        return parts.total, (parts, features)

    differentiate = jax.grad(loss, has_aux=True)
    if global_batch.num_passes == 1:
        first_case = global_batch.first_case(len(batch["labels"]))
        gradients, (parts, features) = differentiate(teacher_part(params), batch, first_case)
    else:
        gradients, parts, features = _pass_after_pass(differentiate, teacher_part(params), *global_batch.split(batch))
    parts, gradients = global_batch.add_up((parts, gradients))
    return parts, jax.lax.stop_gradient(features), gradients


def _pass_after_pass(
    differentiate: Callable[..., Any], trained: Params, rows: Batch, first_cases: Array
) -> tuple[Params, LossParts, Array]:
    """Return gradients and loss parts added up over the passes, and the image features of all passes."""
    shapes = jax.eval_shape(differentiate, trained, jax.tree.map(lambda array: array[0], rows), first_cases[0])
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), (shapes[0], shapes[1][0]))

    def one_pass(sums: Any, one: Any) -> tuple[Any, Array]:
        gradients, (parts, features) = differentiate(trained, *one)
        return jax.tree.map(jnp.add, sums, (gradients, parts)), features

    (gradients, parts), features = jax.lax.scan(one_pass, zeros, (rows, first_cases))
    return gradients, parts, features.reshape(-1, features.shape[-1])


def student_gradients(
    networks: Networks,
    objective: Objective,
    params: Params,
    batch: Batch,
    *,
    image_features: Array,
    targets: TeacherReading,
    key: Array | None,
    global_batch: GlobalBatch = ONE_DEVICE,
) -> tuple[LossParts, Params]:
    """Return loss parts and gradients of the student's part of `params`, for targets of a teacher."""
    totals = global_batch.add_up(batch_totals(batch["labels"], objective.answer_weights))

    def loss(trained: Params) -> tuple[Array, LossParts]:
        all_params = {**params, **trained}
        reading = networks.student.apply(
            {"params": trained["student"]},
            image_features=image_features,
            given_answers=batch.get("given_answers"),
            deterministic=key is None,
            rngs=None if key is None else {"dropout": key},
            first_case=global_batch.first_case(len(batch["labels"])),
        )
        parts = student_objective(
            student_logits=reading.logits,
            student_features=reading.image_features,
            teacher_logits=targets.logits,
            teacher_features=targets.image_features,
            labels=batch["labels"],
            student_projection=LinearMap(**all_params["student_projection"]),
            teacher_projection=LinearMap(**all_params["teacher_projection"]),
            objective=objective,
            totals=totals,
            gather=global_batch.gather,
            add_up=global_batch.add_up,
        )
        return parts.total, parts

    trained = student_part(params, train_teacher_projection=objective.train_teacher_projection)
    gradients, parts = jax.grad(loss, has_aux=True)(trained)
    return global_batch.add_up((parts, gradients))


Optimizers = dict[str, optax.GradientTransformation]

SHARED = frozenset({"text_features"})
"""Batch entries that all cases share: the prompts' vectors [step, width]."""


def start_state(params: Params, objective: Objective, optimizers: Optimizers, *, key: Array) -> TrainState:
    """Return the state before the first update; `key` is the run's random key."""
    parts = {
        "teacher": teacher_part(params),
        "student": student_part(params, train_teacher_projection=objective.train_teacher_projection),
    }
    states = {name: optimizer.init(parts[name]) for name, optimizer in optimizers.items()}
    return TrainState(step=jnp.zeros((), jnp.int32), params=params, optimizers=states, key=jax.random.key_data(key))


def split_shared(batch: Batch) -> tuple[Batch, Array | None]:
    """Return the rows of a batch, and the prompts' vectors that all cases share (None without text)."""
    return {name: rows for name, rows in batch.items() if name not in SHARED}, batch.get("text_features")


def add_given_answers(
    state: TrainState, rows: Batch, given: AnswerSchedule, networks: Networks, global_batch: GlobalBatch
) -> Batch:
    """Return the rows with the "given_answers" that the schedule draws for the next update, if any."""
    if given.rate is None:
        return rows
    answers = given.draw(
        state.key_of_update(),
        labels=rows["labels"],
        answers_per_step=tuple(networks.teacher.answers_per_step),
        first_case=global_batch.first_case(len(rows["labels"])),
    )
    return {**rows, "given_answers": answers}


def make_teacher_update(
    networks: Networks, objective: Objective, optimizers: Optimizers, given: AnswerSchedule = AS_PUBLISHED
) -> Update:
    """Return one device's update of the teacher alone: (state, batch) -> (state, metrics)."""

    def update(state: TrainState, batch: Batch, global_batch: GlobalBatch = ONE_DEVICE) -> tuple[TrainState, Metrics]:
        rows, text_features = split_shared(batch)
        rows = add_given_answers(state, rows, given, networks, global_batch)
        parts, _, gradients = teacher_gradients(
            networks, objective, state.params, rows, text_features, key=state.key_of_update(), global_batch=global_batch
        )
        state = apply_gradients(state, "teacher", optimizers["teacher"], gradients)
        metrics = Metrics(losses={"teacher": parts}, gradient_norms={"teacher": global_norm(gradients)})
        return state.replace(step=state.step + 1), metrics

    return update


def make_joint_update(
    networks: Networks, objective: Objective, optimizers: Optimizers, given: AnswerSchedule = AS_PUBLISHED
) -> Update:
    """Return one device's joint update: (state, batch) -> (state, metrics)."""

    def update(state: TrainState, batch: Batch, global_batch: GlobalBatch = ONE_DEVICE) -> tuple[TrainState, Metrics]:
        rows, text_features = split_shared(batch)
        rows = add_given_answers(state, rows, given, networks, global_batch)
        keys = jax.random.split(state.key_of_update(), 3)
        teacher_parts, features, teacher_grads = teacher_gradients(
            networks, objective, state.params, rows, text_features, key=keys[0], global_batch=global_batch
        )
        state = apply_gradients(state, "teacher", optimizers["teacher"], teacher_grads)
        if not given.student:
            rows = {name: array for name, array in rows.items() if name != "given_answers"}
        targets = read_as_teacher(
            networks,
            state.params["teacher"],
            features,
            text_features,
            given_answers=rows.get("given_answers"),
            key=keys[1] if objective.target_dropout else None,
            first_case=global_batch.first_case(len(features)),
        )
        student_parts, student_grads = student_gradients(
            networks,
            objective,
            state.params,
            rows,
            image_features=features,
            targets=targets,
            key=keys[2],
            global_batch=global_batch,
        )
        state = apply_gradients(state, "student", optimizers["student"], student_grads)
        metrics = Metrics(
            losses={"teacher": teacher_parts, "student": student_parts},
            gradient_norms={"teacher": global_norm(teacher_grads), "student": global_norm(student_grads)},
        )
        return state.replace(step=state.step + 1), metrics

    return update
