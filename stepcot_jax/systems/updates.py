"""One batch of training: the teacher alone, or teacher and student together (paper: Appendix D.6).

Every function here is one device's; `training.global_batch` says how the devices' shares come together.
"""

from collections.abc import Callable
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array

from stepcot_jax.losses.objective import LossParts
from stepcot_jax.systems.gradients import (
    Batch,
    Objective,
    read_as_teacher,
    student_gradients,
    student_part,
    teacher_gradients,
    teacher_part,
)
from stepcot_jax.training.global_batch import ONE_DEVICE, GlobalBatch
from stepcot_jax.training.optimizers import global_norm
from stepcot_jax.training.state import Networks, Params, TrainState

StepFunction = Callable[[TrainState, Batch, Array | None], tuple[TrainState, "StepMetrics"]]


class StepMetrics(flax.struct.PyTreeNode):
    """What a training step reports; it stays on the device until the loop asks for it.

    Attributes:
      teacher: loss parts of the teacher, before its update; None where the baseline is trained.
      student: loss parts of the student; None in the teacher's phase.
      gradient_norms: global norm before clipping, by network.
      baseline: loss parts of the baseline; None where it is not trained.
    """

    teacher: LossParts | None
    student: LossParts | None
    gradient_norms: dict[str, Array]
    baseline: LossParts | None = None


def make_teacher_step(
    networks: Networks,
    objective: Objective,
    optimizers: dict[str, optax.GradientTransformation],
    whole: GlobalBatch = ONE_DEVICE,
) -> StepFunction:
    """The function of one batch in the teacher's phase: (state, batch, text features) -> (state, metrics)."""

    def step(state: TrainState, batch: Batch, text_features: Array | None) -> tuple[TrainState, StepMetrics]:
        key = state.key_of_step()
        parts, _, gradients = teacher_gradients(
            networks, objective, state.params, batch, text_features, key=key, whole=whole
        )
        state = _update(state, "teacher", optimizers, gradients)
        norms = {"teacher": global_norm(gradients)}
        return state.replace(step=state.step + 1), StepMetrics(teacher=parts, student=None, gradient_norms=norms)

    return step


def make_joint_step(
    networks: Networks,
    objective: Objective,
    optimizers: dict[str, optax.GradientTransformation],
    whole: GlobalBatch = ONE_DEVICE,
) -> StepFunction:
    """The function of one batch in the joint phase: (state, batch, text features) -> (state, metrics).

    Teacher update, fresh targets of the updated teacher without gradient, student update. The image features are
    computed once, before the teacher's update, and serve all three.
    """

    def step(state: TrainState, batch: Batch, text_features: Array | None) -> tuple[TrainState, StepMetrics]:
        keys = jax.random.split(state.key_of_step(), 3)
        teacher_parts, features, teacher_grads = teacher_gradients(
            networks, objective, state.params, batch, text_features, key=keys[0], whole=whole
        )
        state = _update(state, "teacher", optimizers, teacher_grads)
        target_key = keys[1] if objective.target_dropout else None
        first_case = whole.first_case(len(features))
        targets = read_as_teacher(
            networks, state.params["teacher"], features, text_features, key=target_key, first_case=first_case
        )
        student_parts, student_grads = student_gradients(
            networks, objective, state.params, batch, image_features=features, targets=targets, key=keys[2], whole=whole
        )
        state = _update(state, "student", optimizers, student_grads)
        norms = {"teacher": global_norm(teacher_grads), "student": global_norm(student_grads)}
        metrics = StepMetrics(teacher=teacher_parts, student=student_parts, gradient_norms=norms)
        return state.replace(step=state.step + 1), metrics

    return step


def _update(
    state: TrainState, network: str, optimizers: dict[str, optax.GradientTransformation], gradients: Params
) -> TrainState:
    """The state after one network's optimizer has taken in its gradients."""
    trained = {name: state.params[name] for name in gradients}
    updates, optimizer_state = optimizers[network].update(gradients, state.optimizers[network], trained)
    params: dict[str, Any] = {**state.params, **optax.apply_updates(trained, updates)}
    return state.replace(params=params, optimizers={**state.optimizers, network: optimizer_state})


def start_state(
    params: Params,
    objective: Objective,
    optimizers: dict[str, optax.GradientTransformation],
    *,
    key: Array,
) -> TrainState:
    """The state before the first batch."""
    parts = {
        "teacher": teacher_part(params),
        "student": student_part(params, train_teacher_projection=objective.train_teacher_projection),
    }
    states = {name: optimizer.init(parts[name]) for name, optimizer in optimizers.items()}
    return TrainState(step=jnp.zeros((), jnp.int32), params=params, optimizers=states, key=jax.random.key_data(key))
