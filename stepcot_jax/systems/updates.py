"""Updates of Step-CoT on one device: the teacher alone, and teacher and student together (paper: Appendix D.5)."""

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array

from stepcot_jax.systems.answer_schedules import AS_PUBLISHED, AnswerSchedule
from stepcot_jax.systems.gradients import (
    Metrics,
    Objective,
    student_gradients,
    student_part,
    teacher_gradients,
    teacher_part,
)
from stepcot_jax.systems.networks import Batch, Networks, read_as_teacher
from stepcot_jax.training.global_batch import ONE_DEVICE, GlobalBatch
from stepcot_jax.training.optimizers import global_norm
from stepcot_jax.training.state import Params, TrainState, apply_gradients
from stepcot_jax.training.system import Update

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
    """Return the rows of a batch, and the prompts' vectors that all cases share; None without text."""
    return {name: rows for name, rows in batch.items() if name not in SHARED}, batch.get("text_features")


def certain_labels(rows: Batch) -> Array:
    """Return the labels [case, step] of the rows, -1 also where the target is spread over several answers."""
    labels: Array = rows["labels"]
    return jnp.where(jnp.max(rows["targets"], axis=-1) < 1, -1, labels) if "targets" in rows else labels


def give_answers(
    state: TrainState, rows: Batch, given: AnswerSchedule, networks: Networks, whole: GlobalBatch
) -> Batch:
    """Return the rows with the "given_answers" that the schedule draws for the next update, if any."""
    if given.schedule == "none":
        return rows
    answers = given.draw(
        state.key_of_update(),
        labels=certain_labels(rows),
        step=state.step,
        answers_per_step=tuple(networks.teacher.answers_per_step),
        first_case=whole.first_case(len(rows["labels"])),
    )
    return {**rows, "given_answers": answers}


def make_teacher_update(
    networks: Networks, objective: Objective, optimizers: Optimizers, given: AnswerSchedule = AS_PUBLISHED
) -> Update:
    """Return one device's update of the teacher alone: (state, batch) -> (state, metrics)."""

    def update(state: TrainState, batch: Batch, whole: GlobalBatch = ONE_DEVICE) -> tuple[TrainState, Metrics]:
        rows, text_features = split_shared(batch)
        rows = give_answers(state, rows, given, networks, whole)
        parts, _, gradients = teacher_gradients(
            networks, objective, state.params, rows, text_features, key=state.key_of_update(), whole=whole
        )
        state = apply_gradients(state, "teacher", optimizers["teacher"], gradients)
        metrics = Metrics(losses={"teacher": parts}, gradient_norms={"teacher": global_norm(gradients)})
        return state.replace(step=state.step + 1), metrics

    return update


def make_joint_update(
    networks: Networks, objective: Objective, optimizers: Optimizers, given: AnswerSchedule = AS_PUBLISHED
) -> Update:
    """Return one device's joint update: (state, batch) -> (state, metrics)."""

    def update(state: TrainState, batch: Batch, whole: GlobalBatch = ONE_DEVICE) -> tuple[TrainState, Metrics]:
        rows, text_features = split_shared(batch)
        rows = give_answers(state, rows, given, networks, whole)
        keys = jax.random.split(state.key_of_update(), 3)
        teacher_parts, features, teacher_grads = teacher_gradients(
            networks, objective, state.params, rows, text_features, key=keys[0], whole=whole
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
            first_case=whole.first_case(len(features)),
        )
        student_parts, student_grads = student_gradients(
            networks, objective, state.params, rows, image_features=features, targets=targets, key=keys[2], whole=whole
        )
        state = apply_gradients(state, "student", optimizers["student"], student_grads)
        metrics = Metrics(
            losses={"teacher": teacher_parts, "student": student_parts},
            gradient_norms={"teacher": global_norm(teacher_grads), "student": global_norm(student_grads)},
        )
        return state.replace(step=state.step + 1), metrics

    return update
