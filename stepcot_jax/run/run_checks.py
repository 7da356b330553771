"""Checks before a run trains: the workdir, raised epochs, the data, the splits; and errors of the disk."""

import contextlib
import dataclasses
import operator
import pathlib
import shutil
from collections.abc import Iterator

import numpy as np

from stepcot_jax.chain import Chain
from stepcot_jax.data.dataset import Dataset
from stepcot_jax.data.uncertain import note_one_answers
from stepcot_jax.host.errors import DISK_ERRORS, BadInput, RunStopped, describe_disk
from stepcot_jax.run.given import Given, check_same_given
from stepcot_jax.run.settings import Settings, changed_keys, read_settings
from stepcot_jax.run.stored import RESULT_FILES, seal
from stepcot_jax.training.checkpoints import saved_steps

_RESULTS = (*RESULT_FILES, "report.json", "predictions", "replies")


@contextlib.contextmanager
def explain_disk(workdir: pathlib.Path) -> Iterator[None]:
    """Report a disk error, or a workdir that is gone, in one line."""
    try:
        yield
    except BadInput:
        raise
    except Exception as error:
        if not workdir.is_dir():
            raise RunStopped(f"{workdir}: the workdir is gone, with its checkpoints (moved or removed?)") from error
        if not isinstance(error, OSError) or error.errno not in DISK_ERRORS:
            raise
        raise RunStopped(
            f"{describe_disk(error, workdir)}; the checkpoints stay, and the same command resumes from the latest once "
            "there is room and it can be written to"
        ) from error


def check_earlier_run(settings: Settings, workdir: pathlib.Path, given: Given = Given()) -> list["Raised"]:  # noqa: B008
    """Return the raised epochs; refuse a workdir that these settings and values of a caller cannot resume."""
    if not saved_steps(workdir / "checkpoints"):
        return []
    if not settings.resume:
        raise BadInput(f"{workdir}: there are checkpoints of an earlier run; use a new workdir or config.resume=True")
    check_same_given(workdir, given)
    path = workdir / "settings.json"
    before = read_settings(path)
    may_be_raised = {f"config.{key}" for key in before.trains.epochs}
    changed = [key for key in changed_keys(before, settings) if key not in may_be_raised]
    if changed:
        raise BadInput(
            f"{path}: the run started with other values of {', '.join(changed)}; use the same settings or a new workdir"
        )
    return find_raised(before, settings)


# More epochs for a run that has started. The phases of a run follow each other, so only the last can become longer.


@dataclasses.dataclass(frozen=True)
class Raised:
    """An epochs setting that was raised, and the settings whose schedules depend on the number of epochs."""

    key: str  # full name of the setting
    before: int
    after: int
    schedules: tuple[str, ...]  # () if the run will equal one that had `after` epochs from the start

    def describe(self) -> str:
        """Return the effect on the run, as a line of text."""
        line = f"{self.key} was raised from {self.before} to {self.after}: the run goes on from its latest checkpoint"
        if not self.schedules:
            return line
        return (
            f"{line}; {' and '.join(self.schedules)} follows {self.after} epochs from now on, so the result differs "
            f"from that of a run that had {self.after} epochs from the start"
        )


def find_raised(before: Settings, after: Settings) -> list[Raised]:
    """Return the epochs settings of a job that were raised."""
    keys, raised = before.trains.epochs, []
    for index, key in enumerate(keys):
        old, new = _value(before, key), _value(after, key)
        later = [other for other in keys[index + 1 :] if _value(before, other)]
        if new < old:
            raise BadInput(
                f"config.{key}: lowered from {old} to {new}; expected {old} or more in this workdir (a new workdir "
                "starts over)"
            )
        if new > old and later:
            raise BadInput(
                f"config.{key}: raised from {old} to {new}, but another phase follows; expected {old} in this workdir, "
                f"where only config.{later[-1]} may be raised"
            )
        if new > old:
            raised.append(Raised(f"config.{key}", old, new, tuple(_schedules(before, key))))
    return raised


def describe_longer(settings: Settings) -> str:
    """Return how to train longer after the run has ended, as a line of text."""
    keys = settings.trains.epochs
    if not keys:
        return "longer: the same call of sc.fit with more epochs goes on"
    key = next(key for key in reversed(keys) if _value(settings, key) or key == keys[0])
    return f"longer: the same command with --config.{key}=N goes on, N above {_value(settings, key)}"


def _value(settings: Settings, key: str) -> int:
    value: int = operator.attrgetter(key)(settings)
    return value


def _schedules(settings: Settings, key: str) -> Iterator[str]:
    """Yield the settings, with their values, whose schedules span the epochs of `key`."""
    section = key.partition(".")[0]
    if section in ("baseline", "sft", "grpo", "dpo") and getattr(settings, section).schedule == "cosine":
        yield f"config.{section}.schedule='cosine'"
    if key == "sft.epochs" and settings.sft.warmup_epochs > settings.sft.epochs:
        yield f"config.sft.warmup_epochs={settings.sft.warmup_epochs}"
    if key == "sft.epochs" and settings.curriculum.schedule == "epochs":
        yield "config.curriculum.schedule='epochs'"
    if key in ("training.teacher_epochs", "training.joint_epochs") and settings.training.schedule == "cosine":
        yield "config.training.schedule='cosine'"


def remove_results(workdir: pathlib.Path) -> None:
    """Remove the results of a run before more epochs change its weights; the new end writes them again."""
    for name in _RESULTS:
        if (workdir / name).is_dir():
            shutil.rmtree(workdir / name)
        else:
            (workdir / name).unlink(missing_ok=True)
    seal(workdir, RESULT_FILES)


# The data of chains.


def check_step_costs(settings: Settings, chain: Chain) -> None:
    """Refuse costs unless there is one for each step, or none."""
    num_costs = len(settings.evaluation.step_costs)
    if num_costs not in (0, chain.num_steps):
        raise BadInput(
            f"config.evaluation.step_costs: found {num_costs} costs, expected one for each of {chain.num_steps} steps"
        )


def check_annotated(dataset: Dataset) -> list[str]:
    """Refuse a training or validation split without annotated answers; return notes on steps that learn nothing."""
    members = {name: list(indices) for name, indices in dataset.splits.by_name().items()}
    counts = {name: (dataset.labels[indices] >= 0).sum(axis=0) for name, indices in members.items()}
    counts["train"] = (dataset.training_targets >= 0).sum(axis=0)
    for name in ("train", "val"):
        if not counts[name].any():
            raise BadInput(f"{dataset.splits_source}: the {name} split has no annotated answer")
    member = np.zeros((len(members), len(dataset.cases)), bool)
    for row, indices in zip(member, members.values(), strict=True):
        row[indices] = True
    if dataset.chain.is_tree:
        num_steps, num_missing = len(counts["train"]), int((counts["train"] == 0).sum())
        return [f"note: {num_missing} of {num_steps} steps are never asked in the train split and are not trained"]
    untrained = [
        f"note: {step.name!r} has no annotated answer in the train split and is not trained"
        for step, num_train in zip(dataset.chain.steps, counts["train"], strict=True)
        if not num_train
    ]
    notes = note_one_answers(dataset.labels, member, dataset.training_targets, dataset.chain)
    return untrained + [f"note: {note}" for note in notes]
