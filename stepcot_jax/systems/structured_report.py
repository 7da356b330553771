"""Structured reports: one network answers a tree of questions, and is scored with its own history of answers."""

from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array

from stepcot_jax.chain import Chain
from stepcot_jax.evaluation.predictions import Predictions
from stepcot_jax.evaluation.structured_reports import measure_f1
from stepcot_jax.host.errors import BadInput
from stepcot_jax.losses.step_cot import BatchTotals, batch_totals, teacher_objective
from stepcot_jax.models.form_reader import FormReader
from stepcot_jax.models.student import Student
from stepcot_jax.models.teacher import Teacher
from stepcot_jax.systems.networks import Batch, Networks, encode_images, init_encoder
from stepcot_jax.systems.updates import SHARED, split_shared
from stepcot_jax.training.devices import ONE_DEVICE, GlobalBatch, differentiate
from stepcot_jax.training.optimizers import global_norm
from stepcot_jax.training.state import Params, TrainState, apply_gradients
from stepcot_jax.training.system import Phase, System

NAME = "form"
"""Name of the network in parameters, optimizers, predictions and reports."""


class StructuredReport(System):
    """A network for a tree of questions, and its optimizer.

    The loss is the mean cross-entropy of all questions that the batch's reports were asked; steps that an answer closed
    have no label and no loss. The best weights are those with the highest published F1 on validation.

    Args:
      chain: a tree (`Chain.is_tree`).
      reader: features -> logits [case, step, answer].
      image_encoder: images -> features [case, width], trained along; None if batches carry features.
      optimizer: of the network and the encoder.
      num_epochs: epochs of the run.
      answer_weights: [step, answer] weights of the labels; None weighs all answers the same.
      remat: compute the encoder's activations again in the backward pass.

    Raises:
      BadInput: the chain is no tree.
    """

    names = (NAME,)
    score_name = "f1"
    shared = SHARED

    def __init__(
        self,
        chain: Chain,
        reader: FormReader,
        *,
        image_encoder: nn.Module | None = None,
        optimizer: optax.GradientTransformation,
        num_epochs: int = 50,
        answer_weights: Array | None = None,
        remat: bool = False,
    ) -> None:
        if not chain.is_tree:
            raise BadInput("chain: every step is asked; StructuredReport answers a tree of questions")
        answers = chain.answers_per_step
        self.chain, self.reader = chain, reader
        self.networks = Networks(Teacher(answers), Student(answers), image_encoder, remat=remat)
        self.optimizer, self.num_epochs, self.answer_weights = optimizer, num_epochs, answer_weights

    def init(self, key: Array, example: Batch) -> TrainState:
        """Return random parameters; of `example` only shapes matter."""
        init_key, run_key = jax.random.split(key)
        encoder_key, reader_key = jax.random.split(init_key)
        params, features = init_encoder(self.networks, key=encoder_key, batch=example)
        params[NAME] = self.reader.init(reader_key, features)["params"]
        return TrainState(
            step=jnp.zeros((), jnp.int32),
            params=params,
            optimizers={NAME: self.optimizer.init(params)},
            key=jax.random.key_data(run_key),
        )

    def phases(self) -> Sequence[Phase]:
        """Return the one phase of the run."""
        return [Phase(NAME, self.num_epochs, self.update)]

    def update(
        self, state: TrainState, batch: Batch, global_batch: GlobalBatch = ONE_DEVICE
    ) -> tuple[TrainState, dict[str, Array]]:
        """Return the state and metrics after one device's update."""
        rows, _ = split_shared(batch)
        totals = global_batch.add_up(batch_totals(rows["labels"], self.answer_weights))
        # One divisor for all steps: every question counts the same, however rarely its step is asked.
        totals = BatchTotals(totals.cases, jnp.broadcast_to(totals.weights.sum(), totals.weights.shape))

        def loss(params: Params, rows: Batch) -> tuple[Array, Array]:
            logits = self._read(params, rows)
            parts = teacher_objective(
                logits=logits, labels=rows["labels"], answer_weights=self.answer_weights, totals=totals
            )
            return parts.total, parts.total

        total, gradients = differentiate(loss, state.params, rows, global_batch)
        state = apply_gradients(state, NAME, self.optimizer, gradients)
        metrics = {f"{NAME}/total": total, f"{NAME}/gradient_norm": global_norm(gradients)}
        return state.replace(step=state.step + 1), metrics

    def predict(self, params: Params, batch: Batch) -> dict[str, Array]:
        """Return padded logits [case, step, answer] of all steps, asked or not."""
        return {NAME: self._read(params, batch)}

    def evaluate(self, predictions: Predictions) -> dict[str, float]:
        """Return the published F1, 0 to 1, of answers with the network's own history."""
        return {NAME: measure_f1(predictions.logits[NAME], predictions.labels, self.chain)}

    def _read(self, params: Params, rows: Batch) -> Array:
        logits: Array = self.reader.apply({"params": params[NAME]}, encode_images(self.networks, params, rows))
        return logits
