"""One batch of training the baseline, with its encoder where that is trained along."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array

from stepcot_jax.losses.objective import LossParts, teacher_objective
from stepcot_jax.models.baseline import Baseline
from stepcot_jax.systems.gradients import Batch, Objective, differentiate_batch, encode_images
from stepcot_jax.systems.updates import StepFunction, StepMetrics
from stepcot_jax.training.global_batch import ONE_DEVICE, GlobalBatch
from stepcot_jax.training.optimizers import global_norm, make_optimizer
from stepcot_jax.training.state import Networks, Params, TrainState

NAME = "baseline"
"""Of the network in parameters, optimizers, predictions and reports."""


def make_baseline_optimizer(
    *, learning_rate: float, schedule: str, num_batches: int, weight_decay: float, epsilon: float, clip_norm: float
) -> optax.GradientTransformation:
    """AdamW behind a global-norm clip, its rate constant or falling to 0 as a cosine over the whole run.

    Args:
      learning_rate: at the start.
      schedule: "cosine" or "constant".
      num_batches: of the run.
      weight_decay: decoupled.
      epsilon: of AdamW.
      clip_norm: largest global norm of a gradient.
    """
    rate = optax.cosine_decay_schedule(learning_rate, num_batches) if schedule == "cosine" else learning_rate
    return make_optimizer(learning_rate=rate, weight_decay=weight_decay, epsilon=epsilon, clip_norm=clip_norm)


def init_baseline_params(networks: Networks, *, key: Array, batch: Batch, text_features: Array | None) -> Params:
    """Random parameters of the baseline, and of the encoder where that is trained along.

    Args:
      networks: the modules.
      key: random key.
      batch: an example with "image_features" or "images"; only its shape matters.
      text_features: [step, width].

    Raises:
      ValueError: there is no baseline, or no text.
    """
    encoder_key, baseline_key = jax.random.split(key)
    params: Params = {}
    if networks.image_encoder is None:
        features = jnp.zeros_like(batch["image_features"][:1])
    else:
        images = jnp.zeros_like(batch["images"][:1])
        params["image_encoder"] = networks.image_encoder.init(encoder_key, images)["params"]
        features = networks.image_encoder.apply({"params": params["image_encoder"]}, images)
    baseline, text_features = _check_given(networks, text_features)
    params[NAME] = baseline.init(baseline_key, image_features=features, text_features=text_features)["params"]
    return params


def _check_given(networks: Networks, text_features: Array | None) -> tuple[Baseline, Array]:
    if networks.baseline is None or text_features is None:
        missing = "baseline" if networks.baseline is None else "text features"
        raise ValueError(f"found no {missing}, accepted are networks with a baseline, and text features")
    return networks.baseline, text_features


def start_baseline_state(
    params: Params, optimizers: dict[str, optax.GradientTransformation], *, key: Array
) -> TrainState:
    """The state before the first batch."""
    states = {NAME: optimizers[NAME].init(params)}
    return TrainState(step=jnp.zeros((), jnp.int32), params=params, optimizers=states, key=jax.random.key_data(key))


def read_as_baseline(
    networks: Networks, baseline_params: Params, image_features: Array, text_features: Array | None
) -> Array:
    """The baseline's logits [case, step, answer].

    Raises:
      ValueError: there is no baseline, or no text.
    """
    baseline, text_features = _check_given(networks, text_features)
    return baseline.apply({"params": baseline_params}, image_features=image_features, text_features=text_features)


def make_baseline_step(
    networks: Networks,
    objective: Objective,
    optimizers: dict[str, optax.GradientTransformation],
    whole: GlobalBatch = ONE_DEVICE,
) -> StepFunction:
    """The function of one batch: (state, batch, text features) -> (state, metrics).

    The loss is the teacher's: the sum over the steps of the cross-entropy of what is annotated. Which steps supervise
    is a matter of the labels, see `data.dataset.Dataset.with_last_step_alone`.
    """

    def step(state: TrainState, batch: Batch, text_features: Array | None) -> tuple[TrainState, StepMetrics]:
        totals = whole.totals(batch["labels"], objective.answer_weights)

        def loss(params: Params, rows: Batch, first_case: Any) -> tuple[Array, tuple[LossParts, Array]]:
            del first_case  # there is no dropout
            features = encode_images(networks, params, rows)
            logits = read_as_baseline(networks, params[NAME], features, text_features)
            parts = teacher_objective(
                logits=logits, labels=rows["labels"], answer_weights=objective.answer_weights, totals=totals
            )
            return parts.total, (parts, features)

        parts, _, gradients = differentiate_batch(loss, state.params, batch, whole)
        updates, optimizer_state = optimizers[NAME].update(gradients, state.optimizers[NAME], state.params)
        metrics = StepMetrics(teacher=None, student=None, baseline=parts, gradient_norms={NAME: global_norm(gradients)})
        state = state.replace(
            step=state.step + 1,
            params=optax.apply_updates(state.params, updates),
            optimizers={NAME: optimizer_state},
        )
        return state, metrics

    return step
