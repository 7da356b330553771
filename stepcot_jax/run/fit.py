"""Datasets and training from Python, without a config: `make_dataset`, `fit`.

`fit` does what `Run` does with the values that settings describe. Values that settings can name are written as
settings, so that every command reads the run; the others are listed in given.json (`run.given`).
"""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from stepcot_jax.data.dataset import Dataset
from stepcot_jax.data.images.image_files import folder_files
from stepcot_jax.data.questions.record_files import FILE_NAME, VqaCollection
from stepcot_jax.data.questions.vqa_dataset import VqaDataset
from stepcot_jax.data.record_table import RecordTable
from stepcot_jax.data.records.records import Collection
from stepcot_jax.encoders.prompts import hash_prompts, write_prompts
from stepcot_jax.encoders.resnet import make_resnet
from stepcot_jax.host.errors import BadInput
from stepcot_jax.losses.step_cot import Objective
from stepcot_jax.models.student import Baseline, Student
from stepcot_jax.models.teacher import Teacher
from stepcot_jax.record import Records
from stepcot_jax.run import loading
from stepcot_jax.run.chain_task import ChainTask, find_start
from stepcot_jax.run.given import Given, name_class
from stepcot_jax.run.inputs import Inputs, choose_supervision, select_entries
from stepcot_jax.run.networks import TEACHER, trained_preprocessing
from stepcot_jax.run.settings import Settings, load_settings
from stepcot_jax.run.task import Task
from stepcot_jax.run.training_run import Run
from stepcot_jax.systems.baseline import NAMES, BaselineSystem
from stepcot_jax.systems.networks import Networks
from stepcot_jax.systems.recipes import GRPO, SFT, is_recipe
from stepcot_jax.systems.step_cot import StepCoT
from stepcot_jax.training.log import Logger
from stepcot_jax.training.system import System


def fit(
    system: System | SFT | GRPO,
    data: Dataset | VqaDataset | Records,
    *,
    workdir: str | pathlib.Path,
    batch_size: int | None = None,
    seed: int = 0,
    start: Run | str | pathlib.Path | None = None,
    writers: Sequence[Logger] = (),
    prompts: np.ndarray | None = None,
    **settings: Any,
) -> Run:
    """Train a system, or resume it, and evaluate its best weights on the test split.

    Args:
      system: what is trained, such as `StepCoT(data.chain)`, `SFT(policy)`, `GRPO(policy, rewards=[...])`, or your own
        `System`.
      data: cases, or for a policy questions, with their splits; see `make_dataset`, which is applied to records.
      workdir: folder of checkpoints, logs and results; a second call resumes there.
      batch_size: cases of an update, over all devices; None for 32, or a policy's own.
      seed: of parameters, order and dropout.
      start: a finished run, or its workdir, whose weights training starts from.
      writers: loggers of the metrics, besides metrics.jsonl and TensorBoard.
      prompts: float32 [step, width], vectors of the steps' prompts; None for fixed random ones, if any are read.
      **settings: further settings that do not describe system or data, full names without "config." -> values, such as
        `**{"training.log_every": 1}`.

    Returns:
      The run; its `report` holds the figures.

    Raises:
      BadInput: the workdir holds another run, or the values cannot be trained.
      RunStopped: training cannot continue; the last good state is kept.
    """
    data = make_dataset(data, seed=seed) if isinstance(data, Records) else data
    make: Callable[..., Task]
    if is_recipe(system) and isinstance(data, VqaDataset):
        described, given = describe_policy(system, data, batch_size)
        make, start_key = functools.partial(_make_policy_task, system, data), "policy.start"
    elif not is_recipe(system) and isinstance(data, Dataset):
        chain_system = cast(System, system)
        described, given = describe_values(chain_system, data, prompts=prompts)
        described |= {"training.batch_size": batch_size or 32, "baseline.batch_size": batch_size or 32}
        make, start_key = functools.partial(_make_chain_task, chain_system, data, prompts), "start.checkpoint"
    else:
        raise BadInput("data: SFT and GRPO train on questions, all other systems on answers to the steps of a chain")
    described["seed"] = seed
    if start is not None:
        described[start_key] = start.place.name if isinstance(start, Run) else str(start)
    if clash := sorted(described.keys() & settings.keys()):
        raise BadInput(f"{clash[0]}: given by the system, the data or an argument of fit; leave it out")
    resolved = load_settings("base", **described, **settings)
    run = Run.of_values(resolved, workdir, functools.partial(make, resolved), given=given, writers=tuple(writers))
    run.execute()
    return run


def _make_chain_task(
    system: System, data: Dataset, prompts: np.ndarray | None, settings: Settings, **context: Any
) -> Task:
    image_encoder = getattr(getattr(system, "networks", None), "image_encoder", None)
    text = _text(system, data, settings, prompts)
    inputs = Inputs(choose_supervision(settings, data), text, image_encoder, select_entries)
    return ChainTask(settings, inputs, lambda _: system, start=find_start(settings, context["workdir"]), **context)


def _make_policy_task(recipe: SFT | GRPO, data: VqaDataset, settings: Settings, **context: Any) -> Task:
    from stepcot_jax.run.policy_task import PolicyTask  # a chain's run needs no tokenizer

    return PolicyTask(settings, dataset=data, functions=getattr(recipe, "rewards", {}), **context)


def describe_policy(recipe: SFT | GRPO, data: VqaDataset, batch_size: int | None) -> tuple[dict[str, Any], Given]:
    """Return the settings that describe a policy's training on a dataset, and the values that none describes."""
    policy, section = recipe.policy, recipe.section
    described: dict[str, Any] = {
        "job": section,
        "vqa.source": "given",
        "vqa.dialect": policy.dialect,
        "vqa.with_thinking": policy.with_thinking,
        "image_encoder.image_size": data.records[0].image_size[0],
        **{f"policy.{name}": value for name, value in policy.network.items()},
        **{f"{section}.{name}": value for name, value in vars(recipe.options).items()},
    }
    if section == "grpo":
        described["sft.epochs"] = 0
    for name in ("self_check", "curriculum"):
        if (part := getattr(recipe, name, None)) is not None:
            described |= {f"{name}.{field}": value for field, value in vars(part).items()}
    if batch_size is not None:
        described[f"{section}.batch_size"] = batch_size
    rewards = {name: weight for name, (_, weight) in getattr(recipe, "rewards", {}).items()}
    return described, Given(rewards=rewards)


def describe_values(
    system: System, data: Dataset, *, prompts: np.ndarray | None = None
) -> tuple[dict[str, Any], Given]:
    """Return the settings that describe a system and a dataset, and the values that none describes."""
    preprocessing = data.preprocessing
    unusual = {name: value for name, value in preprocessing.unusual.items() if name != "reduced_jpeg"}
    if unusual and data.features is None:
        raise BadInput(f"data: no setting describes {unusual} of its preprocessing; expected the defaults")
    described: dict[str, Any] = {
        "data.source": "given",
        "image_encoder.image_size": preprocessing.size,
        "image_encoder.mean": tuple(preprocessing.mean),
        "image_encoder.std": tuple(preprocessing.std),
        "image_encoder.fit": preprocessing.fit,
        "image_encoder.reduced_jpeg": preprocessing.reduced_jpeg,
    }
    if data.features is not None:
        described |= {"image_encoder.name": "imported", "image_encoder.weights": "given"}
    features = ("prompts",) if prompts is not None else ()
    if features and type(system) in (StepCoT, BaselineSystem) and not system.reads_prompts:
        raise BadInput("prompts: none of the system's networks reads prompts; leave them out")
    if type(system) is StepCoT:
        return _describe_step_cot(system, described, features)
    if type(system) is BaselineSystem:
        dtype = str(jnp.dtype(getattr(system.baseline, "dtype", jnp.float32)))
        described |= {"job": "baseline", "baseline.epochs": system.num_epochs, "training.compute_dtype": dtype}
        described["parallel.remat"] = system.networks.remat
        if isinstance(system.baseline, Baseline):
            described["baseline.hidden"] = system.baseline.hidden
        elif isinstance(system.baseline, Student):
            described |= {"baseline.form": "student", "student.dropout": 0.0, "student.width": system.baseline.width}
        else:
            described["baseline.form"] = "heads"
        custom = _describe_encoder(system.networks, described)
        if type(system.baseline) not in NAMES:
            custom = (system.name, *custom)
        if system.answer_weights is not None:
            features = (*features, "answer_weights")
        return described, Given(networks=custom, optimizers=system.names, features=features)
    return described | {"job": "own"}, Given(system=name_class(system), features=features)


def _describe_step_cot(
    system: StepCoT, described: dict[str, Any], features: tuple[str, ...]
) -> tuple[dict[str, Any], Given]:
    networks, objective, custom = system.networks, system.objective, []
    alone = "student" not in system.names
    described |= {
        "job": "teacher" if alone else "distill",
        "training.teacher_job_epochs" if alone else "training.teacher_epochs": system.teacher_epochs,
        "loss.projection_width": networks.projection_width,
        "parallel.remat": networks.remat,
        "training.compute_dtype": str(jnp.dtype(getattr(networks.teacher, "dtype", jnp.float32))),
    }
    if not alone:
        described["training.joint_epochs"] = system.joint_epochs
    if type(networks.teacher) is Teacher:
        described |= {f"teacher.{name}": getattr(networks.teacher, field) for name, field in TEACHER.items()}
    else:
        custom.append("teacher")
    if type(networks.student) is Student:
        student = networks.student
        described |= {"student.width": student.width, "student.dropout": student.dropout_rate}
    else:
        custom.append("student")
    for field in dataclasses.fields(Objective):
        if field.name not in ("answer_weights", "parts"):
            described[f"loss.{field.name}"] = getattr(objective, field.name)
    if system.plateau is not None:
        plateau = system.plateau
        described |= {"training.plateau_patience": plateau.patience, "training.plateau_factor": plateau.factor}
        described["training.plateau_stop"] = plateau.stop_after
    drawn = system.given
    if drawn.rate is not None:
        kind = "varied" if drawn.varied else "random"
        described |= {"training.given_answers": kind, "training.given_rate": drawn.rate}
        described |= {"training.given_noise": drawn.noise, "training.given_to": "both" if drawn.student else "teacher"}
    if objective.answer_weights is not None:
        features = (*features, "answer_weights")
    return described, Given(
        networks=(*custom, *_describe_encoder(networks, described)),
        optimizers=system.names if system.has_custom_optimizers else (),
        parts={name: float(weight) for name, (_, weight) in objective.parts.items()},
        features=features,
    )


def _describe_encoder(networks: Networks, described: dict[str, Any]) -> tuple[str, ...]:
    """Add the name of a trained image encoder to the settings; return its name as a network that none can name."""
    if networks.image_encoder is None:
        return ()
    known = [name for name in ("resnet_small", "resnet18") if make_resnet(name) == networks.image_encoder]
    described["image_encoder.name"] = known[0] if known else "resnet_small"
    return () if known else ("image_encoder",)


def _text(system: System, data: Dataset, settings: Settings, prompts: np.ndarray | None) -> jax.Array | None:
    if prompts is None:
        if not system.reads_prompts:
            return None
        prompts = hash_prompts(write_prompts(data.chain, settings.prompts.template), settings.prompts.width)
    if prompts.shape[:1] != (data.chain.num_steps,) or prompts.ndim != 2:
        raise BadInput(f"prompts: must have shape [{data.chain.num_steps}, width]; got {list(prompts.shape)}")
    return jax.device_put(np.asarray(prompts, np.float32))


def make_dataset(records: Records, *, image_size: int = 224, seed: int = 0, **settings: Any) -> Dataset | VqaDataset:
    """Return the dataset of a run: splits by patient and pictures of one size, each decoded once.

    Splits that the records name are kept. Otherwise they are read from the folder's tables, or made from `seed`.

    Args:
      image_size: side in pixels of the networks' pictures.
      **settings: further settings of `config.data` and `config.image_encoder`, such as
        `**{"data.split_fractions": (0.8, 0.1, 0.1)}`.

    Returns:
      A `Dataset` for answers of a chain, a `VqaDataset` for questions.

    Raises:
      BadInput: a picture cannot be read, a split is empty, or a patient is in two splits.
    """
    if not len(records):
        raise BadInput(f"{records.root}: no record; expected at least one")
    sizes = {"image_encoder.image_size": image_size, "data.split_seed": seed}
    if records.chain is None:
        lines = tuple(range(1, len(records) + 1))
        questions = VqaCollection(records.root / FILE_NAME, tuple(records), records.set_aside, lines)
        return loading.load_questions(load_settings("base", job="sft", **sizes, **settings), questions)
    names = tuple(step.name for step in records.chain.steps)
    of_folder = {"data.source": "folder", "data.root": str(records.root), "data.step_names": names}
    resolved = load_settings("base", **sizes, **of_folder, **settings)
    collection = Collection(records.root, records.chain, RecordTable(records), records.set_aside)
    dataset = loading.make_dataset(
        resolved,
        collection,
        folder_files(collection, max_pixels=resolved.data.max_pixels),
        preprocessing=trained_preprocessing(resolved),
        are_checked=resolved.data.check_images == "on_use",
    )
    return choose_supervision(resolved, dataset)
