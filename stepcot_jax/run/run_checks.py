"""Checks before a run trains: the workdir, the data, the splits; and errors of the disk."""

import contextlib
import pathlib
from collections.abc import Iterator

import numpy as np

from stepcot_jax.chain import Chain
from stepcot_jax.data.dataset import Dataset
from stepcot_jax.data.splits.splits import check_manifest
from stepcot_jax.data.uncertain import note_one_answers
from stepcot_jax.host.errors import DISK_ERRORS, BadInput, RunStopped
from stepcot_jax.run.given import Given, check_same_given
from stepcot_jax.run.more_epochs import Raised, epochs_keys, find_raised
from stepcot_jax.run.settings import Settings, changed_keys, read_settings
from stepcot_jax.training.checkpoints import saved_steps


@contextlib.contextmanager
def explain_disk(workdir: pathlib.Path) -> Iterator[None]:
    """Report a disk error in one line."""
    try:
        yield
    except OSError as error:
        if error.errno not in DISK_ERRORS:
            raise
        raise RunStopped(
            f"{error.filename or workdir}: the disk failed ({error.strerror}); the checkpoints stay, and the same "
            "command resumes from the latest once the disk can be written to"
        ) from error


def check_earlier_run(settings: Settings, workdir: pathlib.Path, given: Given = Given()) -> list[Raised]:  # noqa: B008
    """Return the raised epochs; refuse a workdir that these settings and values of a caller cannot resume."""
    if not saved_steps(workdir / "checkpoints"):
        return []
    if not settings.resume:
        raise BadInput(f"{workdir}: there are checkpoints of an earlier run; use a new workdir or config.resume=True")
    check_same_given(workdir, given)
    path = workdir / "settings.json"
    before = read_settings(path)
    changed = [key for key in changed_keys(before, settings) if key not in epochs_keys(before)]
    if changed:
        raise BadInput(
            f"{path}: the run started with other values of {', '.join(changed)}; use the same settings or a new workdir"
        )
    return find_raised(before, settings)


def check_step_costs(settings: Settings, chain: Chain) -> None:
    """Refuse costs unless there is one for each step, or none."""
    num_costs = len(settings.evaluation.step_costs)
    if num_costs not in (0, chain.num_steps):
        raise BadInput(
            f"config.evaluation.step_costs: found {num_costs} costs, expected one for each of {chain.num_steps} steps"
        )


def check_annotated(dataset: Dataset) -> list[str]:
    """Refuse data without annotated answers in the training or the validation split.

    Returns:
      A note for each step that is never trained, and for each split with steps that have one answer.
    """
    counts = {
        name: (dataset.labels[np.asarray(indices, int)] >= 0).sum(axis=0)
        for name, indices in dataset.splits.by_name().items()
    } | {"train": (dataset.training_targets.labels >= 0).sum(axis=0)}
    for name in ("train", "val"):
        if not counts[name].any():
            raise BadInput(f"{dataset.splits_source}: the {name} split has no annotated answer")
    member = np.zeros((len(counts), len(dataset.cases)), bool)
    for row, indices in zip(member, dataset.splits.by_name().values(), strict=True):
        row[list(indices)] = True
    untrained = [
        f"note: {step.name!r} has no annotated answer in the train split and is not trained"
        for step, num_train in zip(dataset.chain.steps, counts["train"], strict=True)
        if not num_train
    ]
    notes = note_one_answers(dataset.labels, member, dataset.training_targets, dataset.chain)
    return untrained + [f"note: {note}" for note in notes]


def check_same_splits(dataset: Dataset, workdir: pathlib.Path) -> None:
    """Refuse to resume with other splits than the run started with."""
    check_manifest(workdir / "splits.json", dataset.splits, dataset.cases, set_aside=dataset.set_aside)


def check_same_data(current: str, saved: str, workdir: pathlib.Path) -> None:
    """Refuse to resume on data with another digest than the checkpoint was trained on."""
    if saved != current:
        raise BadInput(
            f"{workdir}: cases, labels or splits differ from those the run started with (splits.json lists them); use "
            "the same data or a new workdir"
        )
