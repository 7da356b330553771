"""What a policy's run starts from (`config.policy.start`): the policy of a run, a checkpoint, or random weights."""

import contextlib
import functools
import json
import pathlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from stepcot_jax.data.questions.vqa_dataset import VqaDataset
from stepcot_jax.features.patch_input import PatchInput
from stepcot_jax.host.download import find_path, name_source
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import read_json, write_whole
from stepcot_jax.models.prefix_vlm import PrefixVlm
from stepcot_jax.policies.policy import AnyPolicy, start_coordinates
from stepcot_jax.policies.policy_files import AnyTokenizer
from stepcot_jax.run.fields import naming
from stepcot_jax.run.settings import Settings, read_run_settings
from stepcot_jax.run.start import POLICY_KEY, have_same_source, list_changed
from stepcot_jax.run.stored_policy import StoredPolicy, read_policy
from stepcot_jax.training.state import Params

if TYPE_CHECKING:
    from stepcot_jax.run.qwen_source import QwenSource

PATIENTS_FILE = "records/patients.json"
"""Patients of each split of a policy's run."""

_MOST_BYTES = 2**28
_OF_OWN_ENCODER = ("config.image_encoder.mean", "config.image_encoder.std")
_SAME_POLICIES = ("config.policy.", "config.image_encoder.image_size", *_OF_OWN_ENCODER)
_OTHER_POLICIES = ("config.policy.start", "config.policy.num_merges", "config.policy.longest_reply")
_SPLITS = (
    "config.data.split_fractions", "config.data.split_seed", "config.phantom.num_cases", "config.phantom.prevalence",
)  # fmt: skip


def read_policy_start(settings: Settings, patches: PatchInput | None = None) -> StoredPolicy:
    """Return the policy of a finished run, with its vocabulary and the best weights of its last phase.

    Its data may differ; for the same phantoms or folder the settings of splits must be equal. `refuse_seen_patients`
    compares the splits themselves.
    """
    workdir = settings.policy.start
    folder = find_path(workdir, POLICY_KEY)
    with naming(POLICY_KEY):
        stored = read_policy(folder, for_training=True, patches=patches)
        before = stored.run.settings
        may_differ = _OTHER_POLICIES if patches is None else (*_OTHER_POLICIES, *_OF_OWN_ENCODER)
        if other := list_changed(before, settings, _SAME_POLICIES, may_differ):
            raise BadInput(
                f"{workdir} has other values of {', '.join(other)}; expected a run with the same network and size of "
                "pictures"
            )
        is_same = have_same_source(before, settings, "vqa")
        if splits := list_changed(before, settings, _SPLITS, ()) if is_same else []:
            raise BadInput(
                f"{workdir} was trained on the same cases with other values of {', '.join(splits)}; expected the same "
                "splits, or test cases may have been training cases"
            )
    return stored


def write_patients(workdir: pathlib.Path, dataset: VqaDataset) -> None:
    """Write the patients of each split, for runs that start from this one."""
    patients = {
        split: sorted({dataset.records[index].patient for index in indices})
        for split, indices in dataset.splits.by_name().items()
    }
    path = workdir / PATIENTS_FILE
    path.parent.mkdir(exist_ok=True)
    write_whole(path, f"{json.dumps(patients, ensure_ascii=False)}\n".encode())


def read_patients(workdir: pathlib.Path) -> dict[str, list[str]]:
    """Return the patients of each split of a policy's run."""
    accepted = "expected the patients of a run"
    return read_json(workdir / PATIENTS_FILE, dict[str, list[str]], accepted=accepted, max_bytes=_MOST_BYTES)


def refuse_seen_patients(settings: Settings, dataset: VqaDataset) -> None:
    """Refuse a test split with patients that `policy.start`, or a run that it started from, has learnt from.

    Patients cannot be compared with those of other phantoms, of another folder, and of runs whose folder is gone.
    """
    of_test = {dataset.records[index].patient for index in dataset.splits.test}
    for start, workdir in _earlier_runs(settings):
        before, path = read_run_settings(workdir), workdir / PATIENTS_FILE
        if not path.is_file() or not have_same_source(before, settings, "vqa"):
            continue
        patients = read_patients(workdir)
        seen = of_test & {*patients.get("train", ()), *patients.get("val", ())}
        if seen:
            raise BadInput(
                f"{POLICY_KEY}: {start} has learnt from {len(seen)} of the {len(of_test)} patients of this run's test "
                "split; expected a test split that the start has not seen, such as its own"
            )


def _earlier_runs(settings: Settings) -> Iterator[tuple[str, pathlib.Path]]:
    """Yield name and folder of the start and of the starts before it, as far as they can be read."""
    visited: set[str] = set()
    start = settings.policy.start
    while start and name_source(start) not in visited:
        visited.add(name_source(start))
        try:
            workdir = find_path(start, POLICY_KEY)
        except BadInput:  # an earlier start; the start itself has been read
            return
        if not (workdir / "settings.json").is_file():
            return
        yield start, workdir
        start = read_run_settings(workdir).policy.start


def given_start(
    policy: AnyPolicy, stored: StoredPolicy | None, source: "QwenSource | None"
) -> Callable[[], Params] | None:
    """Return a function that loads the parameters to start from; None for random ones."""
    if stored is not None:
        params = stored.params
        return lambda: params
    large: Any = policy
    is_given = source is not None and getattr(large, "is_given", False)  # the small decoder has no checkpoint
    return functools.partial(source.load, large) if source is not None and is_given else None


def smooth_start(policy: AnyPolicy, tokenizer: AnyTokenizer, *, largest: int) -> Callable[[Params], Params] | None:
    """Return a function for random parameters of the small decoder, see `policies.policy.start_coordinates`."""
    if not isinstance(policy, PrefixVlm):
        return None
    return functools.partial(start_coordinates, tokenizer=tokenizer, largest=largest)


@contextlib.contextmanager
def naming_start(settings: Settings) -> Iterator[None]:
    """Add `policy.start` to a `BadInput` about a word that is not in its vocabulary."""
    start = settings.policy.start
    with naming(f"{POLICY_KEY}: {start} cannot write these records") if start else contextlib.nullcontext():
        yield
