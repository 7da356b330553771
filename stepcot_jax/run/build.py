"""Builds losses, optimizers and the system of a chain's run from its settings; new ones are added here."""

import dataclasses
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import optax
from jaxtyping import Array

from stepcot_jax.data.dataset import Dataset
from stepcot_jax.host.errors import BadInput
from stepcot_jax.losses.step_cot import PARTS, Objective, Part, inverse_frequency_weights
from stepcot_jax.models.student import Baseline
from stepcot_jax.run.inputs import describe_supervision
from stepcot_jax.run.networks import make_networks
from stepcot_jax.run.sections import LossSettings
from stepcot_jax.run.settings import Settings
from stepcot_jax.systems.step_cot import StepCoT
from stepcot_jax.systems.updates import AnswerSchedule
from stepcot_jax.training.optimizers import Plateau, make_optimizer, make_rate
from stepcot_jax.training.system import System


def make_system(
    settings: Settings, dataset: Dataset, image_encoder: nn.Module | None, *, batches_per_epoch: int
) -> System:
    """Return the system that the settings describe, with class weights counted on the training split."""
    baseline = settings.baseline
    of_chains = settings.job != "baseline" or baseline.form == "student" or describe_supervision(settings)
    if dataset.chain.is_tree and of_chains:
        raise BadInput(
            f"config.job: {settings.job!r} with config.baseline.steps={baseline.steps!r} and form={baseline.form!r} "
            "reads a chain of steps; a tree of questions (layout rad_restruct) needs 'baseline' with steps='all', "
            "form 'heads' or 'perceptron', no label withheld"
        )
    if settings.job == "baseline":
        return _make_baseline(settings, dataset, image_encoder, batches_per_epoch)
    return _make_step_cot(settings, dataset, image_encoder, batches_per_epoch)


def make_objective_of_run(loss: LossSettings, answer_weights: Array | None) -> Objective:
    """Return the objective: settings of `config.loss` that are fields of `Objective`, and the named parts."""
    names = {field.name for field in dataclasses.fields(Objective)} - {"answer_weights", "parts"}
    return Objective(
        **{name: getattr(loss, name) for name in names}, answer_weights=answer_weights, parts=_read_parts(loss.parts)
    )


def _read_parts(texts: tuple[str, ...]) -> dict[str, tuple[Part, float]]:
    """Return the further parts and weights that `config.loss.parts` names, such as ("mine=0.1",)."""
    parts: dict[str, tuple[Part, float]] = {}
    for text in texts:
        name, _, weight = text.partition("=")
        if name not in PARTS:
            raise BadInput(
                f"config.loss.parts: {name!r} is not a part of losses.step_cot.PARTS; expected one of "
                f"{', '.join(sorted(PARTS)) or 'none: a contributed loss is added there'}"
            )
        try:
            parts[name] = PARTS[name], float(weight)
        except ValueError:
            raise BadInput(f"config.loss.parts: {text!r} is not NAME=WEIGHT with a weight of 0 or more") from None
        try:
            Objective(parts=parts)
        except ValueError as error:
            raise BadInput(f"config.loss.parts: {text!r}: {error}") from None
    return parts


def _make_step_cot(
    settings: Settings, dataset: Dataset, image_encoder: nn.Module | None, batches_per_epoch: int
) -> System:
    """Return teacher and student; `batches_per_epoch` is for the schedules of rates."""
    training = settings.training
    networks = make_networks(settings, dataset.chain, image_encoder)
    rates = {"teacher": training.teacher_learning_rate, "student": training.student_learning_rate}
    alone = settings.job == "teacher"
    num_epochs = training.teacher_job_epochs if alone else training.teacher_epochs + training.joint_epochs
    schedule = training.schedule if settings.job == "distill" else "constant"
    epochs_of = {"teacher": num_epochs, "student": training.joint_epochs}
    return StepCoT(
        dataset.chain,
        teacher=networks.teacher,
        student=networks.student,
        image_encoder=networks.image_encoder,
        objective=make_objective_of_run(settings.loss, _answer_weights(settings, dataset)),
        projection_width=settings.loss.projection_width,
        remat=networks.remat,
        optimizers={
            name: _make_adamw(
                settings,
                make_rate(rate, schedule, max(epochs_of[name] * batches_per_epoch, 1)),
                training.weight_decay,
            )
            for name, rate in rates.items()
        },
        teacher_epochs=training.teacher_job_epochs if alone else training.teacher_epochs,
        joint_epochs=training.joint_epochs,
        teacher_only=alone,
        plateau=Plateau(training.plateau_patience, training.plateau_factor, training.plateau_stop)
        if settings.job == "teacher"
        else None,
        given=AnswerSchedule(
            rate=None if training.given_answers == "none" else training.given_rate,
            varied=training.given_answers == "varied",
            noise=training.given_noise,
            student=training.given_to == "both",
        ),
    )


def _make_adamw(settings: Settings, rate: float | optax.Schedule, weight_decay: float) -> optax.GradientTransformation:
    epsilon, clip_norm = settings.training.adam_epsilon, settings.training.clip_norm
    return make_optimizer(learning_rate=rate, weight_decay=weight_decay, epsilon=epsilon, clip_norm=clip_norm)


def _make_baseline(
    settings: Settings, dataset: Dataset, image_encoder: nn.Module | None, batches_per_epoch: int
) -> System:
    """Return the system of the job "baseline", for a chain or a tree; its rate falls by `baseline.schedule`."""
    from stepcot_jax.models.form_reader import FormReader, LinearHeads  # for this job alone
    from stepcot_jax.systems.baseline import BaselineSystem
    from stepcot_jax.systems.structured_report import StructuredReport

    baseline, chain = settings.baseline, dataset.chain
    networks = make_networks(settings, chain, image_encoder)
    make: Any = StructuredReport if chain.is_tree else BaselineSystem
    answers, dtype = chain.answers_per_step, jnp.dtype(settings.training.compute_dtype)
    network: Any = LinearHeads(answers)
    if baseline.form == "perceptron":
        network = (FormReader if chain.is_tree else Baseline)(answers, hidden=baseline.hidden, dtype=dtype)
    elif baseline.form == "student":
        network = networks.student
    rate = make_rate(baseline.learning_rate, baseline.schedule, baseline.epochs * batches_per_epoch)
    system: System = make(
        chain,
        network,
        image_encoder=networks.image_encoder,
        optimizer=_make_adamw(settings, rate, baseline.weight_decay),
        num_epochs=baseline.epochs,
        answer_weights=_answer_weights(settings, dataset),
        remat=networks.remat,
    )
    return system


def _answer_weights(settings: Settings, dataset: Dataset) -> Array | None:
    if settings.loss.class_weights == "none":
        return None
    labels, answers = dataset.training_targets, dataset.chain.answers_per_step
    return jnp.asarray(inverse_frequency_weights(labels=labels, answers_per_step=answers))
