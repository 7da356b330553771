"""The plain network beside a teacher and a student: its settings, and its command."""

import shlex
from typing import Any

from stepcot_jax.run.settings import MAY_CHANGE, Settings, flatten_settings, load_settings


def name_rival(config: Any) -> dict[str, Any]:
    """Return the changes that make the plain network of a config, or settings, of teacher and student.

    Batch, decay, rate, schedule and epochs are the teacher's.
    """
    training, alone = config.training, config.job == "teacher"
    return {
        "job": "baseline",
        "baseline.form": "heads",
        "baseline.steps": "all",
        "baseline.batch_size": training.batch_size,
        "baseline.epochs": training.teacher_job_epochs if alone else training.teacher_epochs + training.joint_epochs,
        "baseline.learning_rate": training.teacher_learning_rate,
        "baseline.weight_decay": training.weight_decay,
        "baseline.schedule": "constant" if alone else training.schedule,
        "training.given_answers": "none",
        "loss.plain_scale": 0.0,
    }


_READ_BY_PLAIN = (
    *("seed", "data.", "phantom.", "image_encoder.", "features.", "baseline.", "loss.class_weights", "evaluation.best"),
    *("training.updates_per_epoch", "training.adam_epsilon", "training.clip_norm", "training.compute_dtype"),
)


def name_plain_command(settings: Settings) -> str:
    """Return the command of the plain network on a run's data, with the teacher's batches, rate and epochs."""
    if settings.data.source == "given":
        return "sc.fit of a BaselineSystem with LinearHeads"
    own = flatten_settings(settings) | name_rival(settings)
    root = {"data.root": "FOLDER"} if own["data.root"] else {}  # cards are public, paths are not

    def list_changes(name: str) -> list[str]:
        plain = flatten_settings(load_settings(name, **root))
        changed = [key for key in own if key.startswith(_READ_BY_PLAIN) and own[key] != plain[key]]
        values = {key: own[key] for key in changed if f"config.{key}" not in MAY_CHANGE} | root
        return [shlex.quote(f"--config.{key}={value}") for key, value in values.items()]

    names = ("plain:step_cot",) if root else ("plain", "plain:phantom")
    name = min(names, key=lambda name: len(list_changes(name)))
    return " ".join([f"python -m stepcot_jax.main --config={name} --workdir=runs/plain", *list_changes(name)])
