"""The baseline: a perceptron on pooled image and prompt embeddings (paper: the encoders of Table 3)."""

from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array

from stepcot_jax.chain import Chain
from stepcot_jax.evaluation.chains import evaluate
from stepcot_jax.evaluation.predictions import Predictions
from stepcot_jax.losses.step_cot import LossParts, batch_totals, teacher_objective
from stepcot_jax.models.student import Baseline, Student
from stepcot_jax.models.teacher import Teacher
from stepcot_jax.systems.networks import (
    Batch,
    Networks,
    encode_images,
    init_encoder,
    predict_logits,
    read_as_baseline,
)
from stepcot_jax.systems.updates import SHARED, Metrics, describe_losses, named_numbers, split_shared
from stepcot_jax.training.devices import ONE_DEVICE, GlobalBatch, differentiate
from stepcot_jax.training.optimizers import global_norm
from stepcot_jax.training.state import Params, TrainState, apply_gradients
from stepcot_jax.training.system import Phase, System

NAME = "baseline"
"""Name of the network in parameters, optimizers, predictions and reports."""


class BaselineSystem(System):
    """The baseline and its optimizer.

    The loss is the teacher's: the sum over the steps of the cross-entropy of the annotated answers. Which steps
    supervise depends on the labels, see `data.dataset.Dataset.with_last_step_alone`.

    Args:
      chain: steps and answers.
      baseline: the perceptron.
      image_encoder: images -> features [case, width], trained along; None if batches carry features.
      optimizer: of the baseline and the encoder.
      num_epochs: epochs of the run.
      answer_weights: [step, answer] weights of the labels; None weighs all answers the same.
      remat: compute the encoder's activations again in the backward pass.
    """

    names = (NAME,)
    score_name = "mean_accuracy"
    shared = SHARED
    reads_prompts = True

    def __init__(
        self,
        chain: Chain,
        baseline: Baseline,
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
        self.networks = Networks(Teacher(answers), Student(answers), image_encoder, remat=remat, baseline=baseline)
        self.optimizer, self.num_epochs, self.answer_weights = optimizer, num_epochs, answer_weights

    def init(self, key: Array, example: Batch) -> TrainState:
        """Return random parameters of the baseline and of a trained encoder; of `example` only shapes matter.

        Raises:
          ValueError: `example` has no "text_features".
        """
        if "text_features" not in example:
            raise ValueError("example['text_features'] is required: only prompts distinguish the baseline's steps")
        init_key, run_key = jax.random.split(key)
        encoder_key, baseline_key = jax.random.split(init_key)
        params, features = init_encoder(self.networks, key=encoder_key, batch=example)
        params[NAME] = self.baseline.init(
            baseline_key, image_features=features, text_features=example["text_features"]
        )["params"]
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
    ) -> tuple[TrainState, Metrics]:
        """Return the state and metrics after one device's update."""
        rows, text_features = split_shared(batch)
        totals = global_batch.add_up(batch_totals(rows["labels"], self.answer_weights))

        def loss(params: Params, rows: Batch) -> tuple[Array, LossParts]:
            features = encode_images(self.networks, params, rows)
            logits = read_as_baseline(self.networks, params, features, text_features)
            parts = teacher_objective(
                logits=logits,
                labels=rows["labels"],
                answer_weights=self.answer_weights,
                totals=totals,
            )
            return parts.total, parts

        parts, gradients = differentiate(loss, state.params, rows, global_batch)
        state = apply_gradients(state, NAME, self.optimizer, gradients)
        metrics = Metrics(losses={NAME: parts}, gradient_norms={NAME: global_norm(gradients)})
        return state.replace(step=state.step + 1), metrics

    def predict(self, params: Params, batch: Batch) -> dict[str, Array]:
        """Return padded logits [case, step, answer]."""
        return predict_logits(self.networks, self.names, params, batch)

    def evaluate(self, predictions: Predictions) -> dict[str, float]:
        """Return the mean accuracy over the steps, 0 to 1."""
        return {NAME: evaluate(predictions, self.chain)[NAME].mean_accuracy}

    def numbers(self, metrics: Metrics) -> dict[str, float]:
        """Return the loss of each step, their sum, and the gradient norm."""
        return named_numbers(metrics, self.chain, self.names)

    def describe(self, numbers: dict[str, float]) -> str:
        """Return the loss in a few words."""
        return describe_losses(numbers, self.names)
