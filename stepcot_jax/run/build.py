"""Builds losses, optimizers and the system of a chain's run from its settings; new ones are added here."""

import dataclasses
import functools
import pathlib
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from stepcot_jax.data.batches import batches_per_epoch, iterate, training_batches
from stepcot_jax.data.dataset import Dataset
from stepcot_jax.data.reading_ahead import ReadAhead
from stepcot_jax.evaluation.consistency import Rules, count_pairs, make_rules
from stepcot_jax.host.download import find_path
from stepcot_jax.host.errors import BadInput
from stepcot_jax.losses.step_cot import PARTS, Objective, Part, inverse_frequency_weights
from stepcot_jax.models.student import Baseline
from stepcot_jax.run.jobs import JOBS
from stepcot_jax.run.networks import make_networks
from stepcot_jax.run.sections import LossSettings, RewardsSettings
from stepcot_jax.run.settings import Settings, changed_keys, read_settings
from stepcot_jax.systems.baseline import BaselineSystem, make_baseline_optimizer
from stepcot_jax.systems.chain_grpo import ChainGrpo, ChainRewards
from stepcot_jax.systems.step_cot import StepCoT
from stepcot_jax.systems.updates import AnswerSchedule
from stepcot_jax.training.checkpoints import read_best, restore_params
from stepcot_jax.training.optimizers import Plateau, make_optimizer
from stepcot_jax.training.state import Params
from stepcot_jax.training.system import Stream, System


def make_system(
    settings: Settings, dataset: Dataset, image_encoder: nn.Module | None, *, batches_per_epoch: int
) -> System:
    """Return the system that the settings describe, with class weights counted on the training split."""
    make = {"baseline": _make_baseline, "chain_grpo": _make_chain_grpo}.get(settings.trains.name, _make_step_cot)
    return make(settings, dataset, image_encoder, batches_per_epoch)


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
            Objective(parts=parts)
        except ValueError:
            raise BadInput(f"config.loss.parts: {text!r} is not NAME=WEIGHT with a weight of 0 or more") from None
    return parts


def _make_step_cot(
    settings: Settings, dataset: Dataset, image_encoder: nn.Module | None, batches_per_epoch: int
) -> StepCoT:
    """Return the system of the job "distill" or "teacher"."""
    return StepCoT(dataset.chain, **_teaching(settings, dataset, image_encoder, batches_per_epoch))


def _teaching(
    settings: Settings, dataset: Dataset, image_encoder: nn.Module | None, batches_per_epoch: int
) -> dict[str, Any]:
    """Return the arguments of `StepCoT`; `batches_per_epoch` is for the schedule of given answers."""
    training = settings.training
    networks = make_networks(settings, dataset.chain, image_encoder)
    rates = {"teacher": training.teacher_learning_rate, "student": training.student_learning_rate}
    alone = settings.trains.names == ("teacher",)
    num_epochs = training.teacher_job_epochs if alone else training.teacher_epochs + training.joint_epochs
    return {
        "teacher": networks.teacher,
        "student": networks.student,
        "image_encoder": networks.image_encoder,
        "objective": make_objective_of_run(settings.loss, _answer_weights(settings, dataset)),
        "projection_width": settings.loss.projection_width,
        "remat": networks.remat,
        "optimizers": {
            name: make_optimizer(
                learning_rate=rate,
                weight_decay=training.weight_decay,
                epsilon=training.adam_epsilon,
                clip_norm=training.clip_norm,
            )
            for name, rate in rates.items()
        },
        "teacher_epochs": training.teacher_job_epochs if alone else training.teacher_epochs,
        "joint_epochs": training.joint_epochs,
        "teacher_only": alone,
        "plateau": Plateau(training.plateau_patience, training.plateau_factor, training.plateau_stop)
        if settings.trains is JOBS["teacher"]
        else None,
        "given": AnswerSchedule(
            schedule=training.given_answers,
            rate=training.given_rate,
            noise=training.given_noise,
            student=training.given_to == "both",
            num_updates=num_epochs * batches_per_epoch,
        ),
    }


def _make_baseline(
    settings: Settings, dataset: Dataset, image_encoder: nn.Module | None, batches_per_epoch: int
) -> BaselineSystem:
    """Return the system of the job "baseline"; its rate falls to 0 over the run by `baseline.schedule`."""
    baseline, training, chain = settings.baseline, settings.training, dataset.chain
    networks = make_networks(settings, chain, image_encoder)
    return BaselineSystem(
        chain,
        Baseline(chain.answers_per_step, hidden=baseline.hidden, dtype=jnp.dtype(training.compute_dtype)),
        image_encoder=networks.image_encoder,
        optimizer=make_baseline_optimizer(
            learning_rate=baseline.learning_rate,
            schedule=baseline.schedule,
            num_batches=baseline.epochs * batches_per_epoch,
            weight_decay=baseline.weight_decay,
            epsilon=training.adam_epsilon,
            clip_norm=training.clip_norm,
        ),
        num_epochs=baseline.epochs,
        answer_weights=_answer_weights(settings, dataset),
        remat=networks.remat,
    )


def _make_chain_grpo(
    settings: Settings, dataset: Dataset, image_encoder: nn.Module | None, batches_per_epoch: int
) -> ChainGrpo:
    """Return the system of the job "chain_grpo"; pairs of answers of the training split give its rules."""
    grpo, training, chain, start = settings.grpo, settings.training, dataset.chain, settings.policy.start
    check_settings(settings)
    counts = count_pairs(dataset.labels[np.asarray(dataset.splits.train, int)], chain)
    batches, length = read_batches(settings, dataset)
    teaching = _teaching(settings, dataset, image_encoder, batches_per_epoch)
    del teaching["teacher_only"], teaching["joint_epochs"], teaching["plateau"]
    return ChainGrpo(
        chain,
        rewards=make_chain_rewards(settings.rewards, make_rules(chain, counts=counts)),
        rollouts=grpo,  # `mask_truncated` has no effect, as every chain has all steps
        refining=make_baseline_optimizer(
            learning_rate=grpo.learning_rate,
            schedule=grpo.schedule,
            num_batches=grpo.epochs * length * grpo.num_updates,
            weight_decay=grpo.weight_decay,
            epsilon=training.adam_epsilon,
            clip_norm=training.clip_norm,
        ),
        grpo_epochs=grpo.epochs,
        grpo_stream=Stream(batches, length),
        stop_reading=batches.close,
        teacher_updates=teaching["teacher_epochs"] * batches_per_epoch,
        start=functools.partial(read_start, start, settings) if start else None,
        **teaching,
    )


def make_chain_rewards(rewards: RewardsSettings, rules: Rules) -> ChainRewards:
    """Return the rewards of a chain."""
    return ChainRewards(rules, rewards.diagnosis_weight, rewards.steps_weight, rewards.chain_weight)


def _answer_weights(settings: Settings, dataset: Dataset) -> Array | None:
    if settings.loss.class_weights == "none":
        return None
    targets, answers = dataset.training_targets, dataset.chain.answers_per_step
    return jnp.asarray(
        inverse_frequency_weights(labels=targets.labels, answers_per_step=answers, distributions=targets.distributions)
    )


# Batches of the phase "chain_grpo", and checks of its settings.


def check_settings(settings: Settings) -> None:
    """Refuse settings without an epoch, or a teacher whose steps do not read the answers before them."""
    if not settings.grpo.epochs:
        raise BadInput("config.grpo.epochs: 0; expected 1 or more with the job 'chain_grpo'")
    if not (settings.teacher.memory and settings.teacher.write_back):
        raise BadInput(
            "config.teacher.memory and write_back must be True with the job 'chain_grpo': a step must see the "
            "answers before it"
        )


def read_batches(settings: Settings, dataset: Dataset) -> tuple[ReadAhead, int]:
    """Return the batches of GRPO, of `grpo.batch_size` cases, and the number of batches in an epoch."""
    grpo, data, parallel = settings.grpo, settings.data, settings.parallel
    num_parts = (parallel.num_devices or jax.device_count()) * parallel.num_passes
    if grpo.batch_size % num_parts:
        raise BadInput(
            f"config.grpo.batch_size: {grpo.batch_size} is not a multiple of {num_parts} (devices x "
            "config.parallel.num_passes); config.parallel.num_devices changes the devices"
        )
    batches = training_batches(
        dataset,
        batch_size=grpo.batch_size,
        seed=settings.seed,
        sampling=data.sampling,
        augment=data.augment == "light",
        process_index=jax.process_index(),
        process_count=jax.process_count(),
    )
    num_workers = data.num_workers if dataset.features is None else 0
    length = grpo.updates_per_epoch or batches_per_epoch(dataset, grpo.batch_size)
    return iterate(batches, num_threads=data.num_threads, num_workers=num_workers), length


# Weights that a run starts from: the teacher of a finished run on the same data (`policy.start`).


_KEY = "config.policy.start"
_SAME = tuple(f"config.{section}." for section in ("data", "phantom", "image_encoder", "prompts", "teacher"))
_MAY_DIFFER = ("config.data.sampling", "config.data.augment")


def read_start(workdir: str, settings: Settings) -> Params:
    """Return the parameters of a run's best teacher, and of the image encoder trained with it.

    The data must be the same, with the same splits: a test case must not have been a training case of the start.
    """
    folder = find_path(workdir, _KEY)
    try:
        if not folder.is_dir():
            raise BadInput(f"{workdir} is not a folder; expected the workdir of a run with a teacher")
        return _read_teacher(folder, settings, name=workdir)
    except BadInput as error:
        raise BadInput(f"{_KEY}: {error}") from None


def _read_teacher(workdir: pathlib.Path, settings: Settings, *, name: str) -> Params:
    """Return the weights of a run's best teacher; `name` of the workdir is for messages."""
    before = read_settings(workdir / "settings.json")
    changed = [key for key in changed_keys(before, settings) if key.startswith(_SAME) and key not in _MAY_DIFFER]
    if changed:
        raise BadInput(
            f"{name} has other values of {', '.join(changed)}; expected a run with the same data and networks"
        )
    folder = workdir / "checkpoints"
    latest, best = read_best(folder)
    params = restore_params(folder, best["teacher"].step if "teacher" in best else latest)
    if "teacher" not in params:
        raise BadInput(f"{name} has no teacher; it trained {', '.join(sorted(params))}")
    parts = [part for part in ("teacher", "image_encoder") if part in params]
    return {part: jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), params[part]) for part in parts}
