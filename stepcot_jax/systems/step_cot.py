"""Step-CoT: the teacher alone, then teacher and student together (paper: Appendix D.5).

A joint update is: the teacher's update, fresh targets of the updated teacher without gradient, the student's update.
The image features are computed once, before the teacher's update, and serve all three.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from stepcot_jax.chain import Chain
from stepcot_jax.evaluation.chains import evaluate
from stepcot_jax.evaluation.predictions import Predictions
from stepcot_jax.losses.step_cot import Objective, Part
from stepcot_jax.models.form_reader import LinearHeads
from stepcot_jax.models.student import Student
from stepcot_jax.models.teacher import Teacher
from stepcot_jax.systems.networks import (
    Batch,
    Networks,
    init_params,
    make_given_reader,
    predict_logits,
    read_moments,
)
from stepcot_jax.systems.updates import (
    AS_PUBLISHED,
    SHARED,
    AnswerSchedule,
    Metrics,
    Optimizers,
    describe_losses,
    make_joint_update,
    make_teacher_update,
    named_numbers,
    split_shared,
    start_state,
)
from stepcot_jax.training.optimizers import Plateau, make_optimizer, scale_learning_rate
from stepcot_jax.training.state import Params, TrainState
from stepcot_jax.training.system import Phase, System, Update


class StepCoT(System):
    """Teacher and student of a chain, their losses and their optimizers.

    Args:
      chain: steps and answers.
      teacher: the network that is taught; a `Teacher` of the published size if None.
      student: the network that is distilled; a `Student` of the published size if None.
      image_encoder: images -> features [case, width], trained with the teacher; None if batches carry features.
      objective: how the losses are combined.
      parts: further parts of the student's loss by name, each with its weight, such as {"mine": (my_loss, 0.1)}; see
        `losses.step_cot.Part`.
      projection_width: width of the space in which channel alignment compares the two.
      remat: compute the encoder's activations again in the backward pass.
      optimizers: by network, "teacher" and "student"; None for AdamW with the published rates.
      teacher_epochs: epochs of the teacher alone.
      joint_epochs: epochs of both.
      teacher_only: train and evaluate the teacher alone, for `teacher_epochs`.
      plateau: halves the teacher's rate and stops early, on its validation score; None for neither.
      given: true answers that the networks are given in training; none as published.

    A batch holds "image_features" [case, width] or "images" [case, height, width, 3], "labels" int [case, step]
    (negative where not annotated), and "text_features" [step, width] for a teacher with text.
    """

    shared = SHARED

    def __init__(
        self,
        chain: Chain,
        *,
        teacher: Teacher | None = None,
        student: Student | None = None,
        image_encoder: nn.Module | None = None,
        objective: Objective | None = None,
        parts: Mapping[str, tuple[Part, float]] | None = None,
        projection_width: int = 256,
        remat: bool = False,
        optimizers: Optimizers | None = None,
        teacher_epochs: int = 2,
        joint_epochs: int = 40,
        teacher_only: bool = False,
        plateau: Plateau | None = None,
        given: AnswerSchedule = AS_PUBLISHED,
    ) -> None:
        chain.refuse_tree("StepCoT")
        answers = chain.answers_per_step
        self.chain = chain
        self.networks = Networks(
            teacher=teacher or Teacher(answers_per_step=answers),
            student=student or Student(answers_per_step=answers),
            image_encoder=image_encoder,
            projection_width=projection_width,
            remat=remat,
            plain=LinearHeads(answers) if objective and objective.plain_scale else None,
        )
        self.objective = objective or Objective()
        if parts:
            self.objective = dataclasses.replace(self.objective, parts={**self.objective.parts, **parts})
        self.has_custom_optimizers = optimizers is not None
        self.optimizers = optimizers or {
            "teacher": make_optimizer(learning_rate=5e-5),
            "student": make_optimizer(learning_rate=1e-4),
        }
        self.names: tuple[str, ...] = ("teacher",) if teacher_only else ("teacher", "student")
        if self.networks.plain is not None:
            self.names += ("plain",)
        self.teacher_epochs, self.joint_epochs = teacher_epochs, 0 if teacher_only else joint_epochs
        self.plateau, self.given = plateau, given
        self.reads_prompts, self.takes_given = getattr(self.networks.teacher, "text", True), True
        self.gated = self.names
        self.score_name = "mean_accuracy" if given.rate is None else "mean_accuracy_own_and_given"

    def init(self, key: Array, example: Batch) -> TrainState:
        """Return random parameters and fresh optimizers; of `example` only shapes matter."""
        init_key, run_key = jax.random.split(key)
        params = init_params(self.networks, key=init_key, batch=example, text_features=example.get("text_features"))
        state = start_state(params, self.objective, self.optimizers, key=run_key)
        if self.plateau is None:
            return state
        return state.replace(optimizers={**state.optimizers, "plateau": self.plateau.start()})

    def phases(self) -> Sequence[Phase]:
        """Return the teacher's phase and the joint phase, without phases of 0 epochs."""
        phases = (
            Phase("teacher", self.teacher_epochs, self.teacher_update),
            Phase("joint", self.joint_epochs, self.joint_update),
        )
        return [phase for phase in phases if phase.num_epochs]

    @functools.cached_property
    def teacher_update(self) -> Update:
        """The update of the teacher alone."""
        return make_teacher_update(self.networks, self.objective, self.optimizers, self.given)

    @functools.cached_property
    def joint_update(self) -> Update:
        """The update of the teacher, then of the student on the updated teacher's targets."""
        return make_joint_update(self.networks, self.objective, self.optimizers, self.given)

    @functools.cached_property
    def update(self) -> Any:
        """One compiled update on this process's default device: (state, batch) -> (state, metrics)."""
        return jax.jit(self.joint_update if "student" in self.names else self.teacher_update)

    def predict(self, params: Params, batch: Batch) -> dict[str, Array]:
        """Return padded logits [case, step, answer] of each network of `names`, without dropout.

        A system that trains with given answers also returns, as "NAME given", logits with all answers of "labels"
        given; with them `evaluate` prefers weights that follow corrections.
        """
        logits = predict_logits(self.networks, self.names, params, batch)
        if self.given.rate is not None and "labels" in batch:
            takes = [name for name in self.names if name != "plain"]
            given = predict_logits(self.networks, takes, params, {**batch, "given_answers": batch["labels"]})
            logits |= {f"{name} given": with_given for name, with_given in given.items()}
        return logits

    def evaluate(self, predictions: Predictions) -> dict[str, float]:
        """Return the mean accuracy over the steps of each network, 0 to 1.

        If the system trains with given answers: the mean of the accuracies with its own and with true earlier answers.
        """
        metrics = evaluate(predictions, self.chain)
        return {
            name: float(np.mean([metrics[row].mean_accuracy for row in (name, f"{name} given") if row in metrics]))
            for name in self.names
        }

    def given_reader(self, name: str, params: Params, batch: Batch) -> Callable[[np.ndarray], np.ndarray]:
        """Return a function from given answers to logits of the batch's cases (`networks.make_read_given`).

        Args:
          name: "teacher", "student" or "plain", whose logits no given answer changes.
          params: all parameters.
          batch: "images" or "image_features", and "text_features".
        """
        rows, text_features = split_shared(batch)
        return make_given_reader(self.networks, name, params, rows, text_features)

    def moments(self, params: Params, batch: Batch) -> Array:
        """Return the features of the gate, [case, feature]; compiled."""
        return read_moments(params, batch, networks=self.networks)

    def after_epoch(self, state: TrainState, scores: dict[str, float]) -> TrainState:
        """Return the state with the plateau schedule, if there is one, updated and the teacher's rate scaled."""
        if self.plateau is None:
            return state
        plateau = self.plateau.restore(state.optimizers["plateau"]).after_epoch(scores["teacher"])
        rescaled = scale_learning_rate(state.optimizers["teacher"], plateau.rate_factor)
        # Not `device_put`: of several processes each holds a part of the replicated arrays.
        schedule = jax.tree.map(
            lambda new, old: jnp.where(True, new, old), plateau.to_arrays(), state.optimizers["plateau"]
        )
        return state.replace(optimizers={**state.optimizers, "teacher": rescaled, "plateau": schedule})

    def is_done(self, state: TrainState) -> bool:
        """Return whether the plateau schedule stops training."""
        return self.plateau is not None and self.plateau.restore(state.optimizers["plateau"]).stops

    def numbers(self, metrics: Metrics) -> dict[str, float]:
        """Return the loss parts by network and step, their totals, and the gradient norms."""
        return named_numbers(metrics, self.chain, ("teacher", "student"))

    def describe(self, numbers: dict[str, float]) -> str:
        """Return the loss parts of each network in a few words."""
        return describe_losses(numbers, ("teacher", "student"))
