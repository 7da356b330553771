"""What a run refuses: another run's workdir, other data, data that teach nothing, a disk that has failed."""

import contextlib
import errno
import pathlib
from collections.abc import Iterator

import numpy as np

from stepcot_jax.data.dataset import Dataset
from stepcot_jax.data.splits.split_manifest import check_manifest
from stepcot_jax.host.errors import BadInput, RunStopped
from stepcot_jax.settings.run_settings import Settings, changed_keys, read_settings
from stepcot_jax.training.checkpoints import saved_steps

_OF_THE_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE, errno.EACCES, errno.EPERM}


@contextlib.contextmanager
def explain_disk(workdir: pathlib.Path) -> Iterator[None]:
    """Say in a line that a file of a run cannot be written any more.

    Raises:
      RunStopped: in place of an OSError of the disk.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _OF_THE_DISK:
            raise
        raise RunStopped(
            f"{error.filename or workdir}: cannot be used any more ({error.strerror}), accepted is a disk with room "
            "that can be written to; the checkpoints stay, and the same command goes on from the latest"
        ) from error


def check_earlier_run(settings: Settings, workdir: pathlib.Path) -> None:
    """Refuse a workdir with checkpoints that these settings cannot go on from.

    Raises:
      BadInput: `settings.resume` is False, or keys differ that may not.
    """
    if not saved_steps(workdir / "checkpoints"):
        return
    if not settings.resume:
        raise BadInput(
            f"{workdir}: found checkpoints of an earlier run, accepted are a new workdir or config.resume=True"
        )
    path = workdir / "settings.json"
    changed = changed_keys(read_settings(path), settings)
    if changed:
        raise BadInput(
            f"{path}: found other values than now for {', '.join(changed)}; accepted are the same settings as when "
            "the run started (or a new workdir)"
        )


def check_annotated(dataset: Dataset) -> list[str]:
    """Refuse data that nothing can be learned from or chosen by.

    Returns:
      A note for each step that is never trained.

    Raises:
      BadInput: the train or the val split has no annotated answer.
    """
    counts = {
        name: (dataset.labels[np.asarray(indices, int)] >= 0).sum(axis=0)
        for name, indices in dataset.splits.by_name().items()
    }
    for name in ("train", "val"):
        if not counts[name].any():
            raise BadInput(
                f"{dataset.splits_source}: found no annotated answer in the {name} split, accepted is at least one"
            )
    return [
        f"note: nobody answered {step.name!r} in the train split; it is not trained"
        for step, num_train in zip(dataset.chain.steps, counts["train"], strict=True)
        if not num_train
    ]


def check_same_splits(dataset: Dataset, workdir: pathlib.Path) -> None:
    """Refuse to go on with other splits than the run began with.

    Raises:
      BadInput: an image is in another split, or splits.json is missing or was altered.
    """
    check_manifest(workdir / "splits.json", dataset.splits, dataset.cases, set_aside=dataset.set_aside)


def check_same_data(dataset: Dataset, digest: str, workdir: pathlib.Path) -> None:
    """Refuse to go on with other data than a checkpoint says it was trained on.

    Raises:
      BadInput: `digest`, of the checkpoint, is another than the dataset's.
    """
    if digest != dataset.digest:
        raise BadInput(
            f"{workdir}: found other cases, labels or splits than when the run started, accepted are the same "
            "(splits.json there says which they were) or a new workdir"
        )
