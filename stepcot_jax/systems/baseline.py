"""Baselines: a perceptron on pooled embeddings (paper: Table 3), the plain network, and a student without teacher."""

from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array

from stepcot_jax.chain import Chain
from stepcot_jax.evaluation.chains import evaluate
from stepcot_jax.evaluation.predictions import Predictions
from stepcot_jax.losses.step_cot import LossParts, batch_totals, teacher_objective
from stepcot_jax.models.form_reader import LinearHeads
from stepcot_jax.models.student import Baseline, Student
from stepcot_jax.models.teacher import Teacher
from stepcot_jax.systems.networks import (
    Batch,
    Networks,
    init_encoder,
    make_given_reader,
    predict_logits,
    read_moments,
)
from stepcot_jax.systems.updates import SHARED, Metrics, describe_losses, named_numbers, split_shared
from stepcot_jax.training.devices import ONE_DEVICE, GlobalBatch, differentiate
from stepcot_jax.training.optimizers import global_norm
from stepcot_jax.training.state import Params, TrainState, apply_gradients
from stepcot_jax.training.system import Phase, System

NAMES = {Baseline: "baseline", LinearHeads: "plain", Student: "student"}
"""Kind of a baseline -> its name in parameters, optimizers, predictions and reports."""


class BaselineSystem(System):
    """A baseline and its optimizer: one network, named by its kind (`NAMES`).

    The plain network is the rival of teacher and student: their image encoder trained along, one linear head a step, no
    prompts, no memory, no teacher. It reads images as they do; no given answer changes its logits, so corrections reach
    other steps through the joint model alone. A student is Appendix D.3's network; it learns from labels alone, without
    dropout.

    The loss is the teacher's: the sum over the steps of the cross-entropy of the annotated answers. Which steps
    supervise depends on the labels, see `data.dataset.Dataset.with_last_step_alone`.

    Args:
      chain: steps and answers.
      baseline: the perceptron, linear heads, or a student without dropout.
      image_encoder: images -> features [case, width], trained along; None if batches carry features.
      optimizer: of the baseline and the encoder.
      num_epochs: epochs of the run.
      answer_weights: [step, answer] weights of the labels; None weighs all answers the same.
      remat: compute the encoder's activations again in the backward pass.
    """

    score_name = "mean_accuracy"
    shared = SHARED

    def __init__(
        self,
        chain: Chain,
        baseline: Baseline | LinearHeads | Student,
        *,
        image_encoder: nn.Module | None = None,
        optimizer: optax.GradientTransformation,
        num_epochs: int = 50,
        answer_weights: Array | None = None,
        remat: bool = False,
    ) -> None:
        chain.refuse_tree("BaselineSystem")
        answers = chain.answers_per_step
        self.chain, self.baseline = chain, baseline
        self.name = next(name for kind, name in NAMES.items() if isinstance(baseline, kind))
        self.reads_prompts = self.name == "baseline"
        self.names, self.takes_given = (self.name,), not self.reads_prompts
        self.gated = () if self.reads_prompts else self.names
        parts = {"teacher": Teacher(answers), "student": Student(answers), self.name: baseline}
        self.networks = Networks(**parts, image_encoder=image_encoder, remat=remat)
        self.optimizer, self.num_epochs, self.answer_weights = optimizer, num_epochs, answer_weights

    def init(self, key: Array, example: Batch) -> TrainState:
        """Return random parameters of the baseline and of a trained encoder; of `example` only shapes matter.

        Raises:
          ValueError: `example` has no "text_features", which the perceptron needs.
        """
        if self.reads_prompts and "text_features" not in example:
            raise ValueError("example['text_features'] is required: only prompts distinguish the baseline's steps")
        init_key, run_key = jax.random.split(key)
        encoder_key, baseline_key = jax.random.split(init_key)
        params, features = init_encoder(self.networks, key=encoder_key, batch=example)
        inputs: dict[str, Any] = {"image_features": features}
        if self.reads_prompts:
            inputs["text_features"] = example["text_features"]
        if self.name == "student":
            inputs["deterministic"] = True
        params[self.name] = self.baseline.init(baseline_key, **inputs)["params"]
        return TrainState(
            step=jnp.zeros((), jnp.int32),
            params=params,
            optimizers={self.name: self.optimizer.init(params)},
            key=jax.random.key_data(run_key),
        )

    def phases(self) -> Sequence[Phase]:
        """Return the one phase of the run."""
        return [Phase(self.name, self.num_epochs, self.update)]

    def update(
        self, state: TrainState, batch: Batch, global_batch: GlobalBatch = ONE_DEVICE
    ) -> tuple[TrainState, Metrics]:
        """Return the state and metrics after one device's update."""
        rows, text_features = split_shared(batch)
        shared = {} if text_features is None else {"text_features": text_features}
        totals = global_batch.add_up(batch_totals(rows["labels"], self.answer_weights))

        def loss(params: Params, rows: Batch) -> tuple[Array, LossParts]:
            parts = teacher_objective(
                logits=self.predict(params, rows | shared)[self.name],
                labels=rows["labels"],
                answer_weights=self.answer_weights,
                totals=totals,
            )
            return parts.total, parts

        parts, gradients = differentiate(loss, state.params, rows, global_batch)
        state = apply_gradients(state, self.name, self.optimizer, gradients)
        metrics = Metrics(losses={self.name: parts}, gradient_norms={self.name: global_norm(gradients)})
        return state.replace(step=state.step + 1), metrics

    def predict(self, params: Params, batch: Batch) -> dict[str, Array]:
        """Return padded logits [case, step, answer]."""
        return predict_logits(self.networks, self.names, params, batch)

    def evaluate(self, predictions: Predictions) -> dict[str, float]:
        """Return the mean accuracy over the steps, 0 to 1."""
        return {self.name: evaluate(predictions, self.chain)[self.name].mean_accuracy}

    def numbers(self, metrics: Metrics) -> dict[str, float]:
        """Return the loss of each step, their sum, and the gradient norm."""
        return named_numbers(metrics, self.chain, self.names)

    def describe(self, numbers: dict[str, float]) -> str:
        """Return the loss in a few words."""
        return describe_losses(numbers, self.names)

    def given_reader(self, name: str, params: Params, batch: Batch) -> Callable[[Any], Any]:
        """Return a function from given answers to logits, which change a student's alone."""
        rows, text_features = split_shared(batch)
        return make_given_reader(self.networks, name, params, rows, text_features)

    def moments(self, params: Params, batch: Batch) -> Array:
        """Return the features of the gate, [case, feature]; compiled."""
        return read_moments(params, batch, networks=self.networks)
