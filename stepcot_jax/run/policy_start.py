"""What a run of the job "sft" or "grpo" starts from: the policy of a run (`policy.start`), a checkpoint, or chance."""

import contextlib
import functools
import json
import pathlib
from collections.abc import Callable, Iterator

from stepcot_jax.data.grounded.vqa_dataset import VqaDataset
from stepcot_jax.features.patch_input import PatchInput
from stepcot_jax.host.addresses import name_place
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import read_json, write_whole
from stepcot_jax.host.store_cache import find_workdir
from stepcot_jax.models.prefix_vlm import PrefixVlm
from stepcot_jax.policies.policy_choice import AnyPolicy
from stepcot_jax.policies.policy_files import AnyTokenizer
from stepcot_jax.policies.policy_network import Params, start_coordinates
from stepcot_jax.policies.qwen.qwen_setup import QwenSource
from stepcot_jax.settings.run_settings import Settings
from stepcot_jax.settings.stored_settings import changed_keys, read_run_settings
from stepcot_jax.systems.stored_policy import StoredPolicy, read_policy

PATIENTS_FILE = "records/patients.json"
"""Patients of each split of a policy's run."""

_KEY = "config.policy.start"
_MOST_BYTES = 2**28
_SAME = (
    "config.policy.",
    "config.image_encoder.image_size",
    "config.image_encoder.mean",
    "config.image_encoder.std",
)
_MAY_DIFFER = ("config.policy.start", "config.policy.num_merges", "config.policy.longest_reply")
_OF_OWN_ENCODER = ("config.image_encoder.mean", "config.image_encoder.std")
_SPLITS = (
    "config.data.split_fractions",
    "config.data.split_seed",
    "config.phantom.num_cases",
    "config.phantom.prevalence",
)


def read_policy_start(settings: Settings, patches: PatchInput | None = None) -> StoredPolicy:
    """Read the policy of a finished run, with the best weights of its last phase.

    Its vocabulary becomes that of the new run. The data may be others; of the same phantoms or folder the settings of
    splits must be the same. `refuse_seen_patients` compares the splits themselves.
    """
    workdir = settings.policy.start
    folder = find_workdir(workdir, _KEY)
    try:
        stored = read_policy(folder, for_training=True, patches=patches)
    except BadInput as error:
        raise BadInput(f"{_KEY}: {error}") from None
    changed = changed_keys(stored.settings, settings)
    may_differ = _MAY_DIFFER if patches is None else (*_MAY_DIFFER, *_OF_OWN_ENCODER)
    other = [key for key in changed if key.startswith(_SAME) and key not in may_differ]
    if other:
        raise BadInput(
            f"{_KEY}: {workdir} has other values of {', '.join(other)}; expected a run with the same "
            "network and size of pictures"
        )
    splits = [key for key in changed if key.startswith(_SPLITS)] if _have_same_cases(stored.settings, settings) else []
    if splits:
        raise BadInput(
            f"{_KEY}: {workdir} was trained on the same cases with other values of {', '.join(splits)}; "
            "expected the same splits, or test cases may have been training cases"
        )
    return stored


def write_patients(workdir: pathlib.Path, dataset: VqaDataset) -> None:
    """Write the patients of each split, for runs that start from this one."""
    patients = {
        split: sorted({dataset.records[place].patient_id for place in places})
        for split, places in dataset.splits.items()
    }
    path = workdir / PATIENTS_FILE
    path.parent.mkdir(exist_ok=True)
    write_whole(path, f"{json.dumps(patients, ensure_ascii=False)}\n".encode())


def refuse_seen_patients(settings: Settings, dataset: VqaDataset) -> None:
    """Refuse a test split with patients that `policy.start`, or a run that it started from, has learnt from.

    Of other phantoms, of another folder, of runs whose folder is gone and of runs of earlier versions, which did not
    write their patients, nobody can say.
    """
    of_test = {dataset.records[place].patient_id for place in dataset.splits["test"]}
    for start, workdir in _earlier_runs(settings):
        before, path = read_run_settings(workdir), workdir / PATIENTS_FILE
        if not path.is_file() or not _have_same_cases(before, settings):
            continue
        found = read_json(path, dict[str, list[str]], accepted="expected the patients of a run", max_bytes=_MOST_BYTES)
        seen = of_test & {*found.get("train", ()), *found.get("val", ())}
        if seen:
            raise BadInput(
                f"{_KEY}: {start} has learnt from {len(seen)} of the {len(of_test)} patients of this run's test split; "
                "expected a test split that the start has not seen, such as its own"
            )


def _earlier_runs(settings: Settings) -> Iterator[tuple[str, pathlib.Path]]:
    """Yield the start and the starts before it, as named and as a folder, as far as they can be read."""
    looked_at: set[str] = set()
    start = settings.policy.start
    while start and name_place(start) not in looked_at:
        looked_at.add(name_place(start))
        try:
            workdir = find_workdir(start, _KEY)
        except BadInput:  # of a run before the start, which has been read
            return
        if not (workdir / "settings.json").is_file():
            return
        yield start, workdir
        start = read_run_settings(workdir).policy.start


def _have_same_cases(one: Settings, other: Settings) -> bool:
    if one.vqa.source != other.vqa.source:
        return False
    if one.vqa.source == "phantom":
        return one.phantom.seed == other.phantom.seed
    return name_place(one.vqa.root) == name_place(other.vqa.root)


def given_start(
    policy: AnyPolicy, stored: StoredPolicy | None, source: QwenSource | None
) -> Callable[[], Params] | None:
    """Return what loads the parameters that a run starts from; None for random ones."""
    if stored is not None:
        params = stored.params
        return lambda: params
    if isinstance(policy, PrefixVlm) or source is None or not policy.is_given:
        return None
    return functools.partial(source.load, policy)


def smooth_start(policy: AnyPolicy, tokenizer: AnyTokenizer, *, largest: int) -> Callable[[Params], Params] | None:
    """Return what is applied to random parameters of the small decoder, see `policy_network.start_coordinates`."""
    if not isinstance(policy, PrefixVlm):
        return None
    return functools.partial(start_coordinates, tokenizer=tokenizer, largest=largest)


@contextlib.contextmanager
def naming_start(settings: Settings) -> Iterator[None]:
    """Name `policy.start` in a `BadInput` about a word that its vocabulary does not have."""
    try:
        yield
    except BadInput as error:
        if not settings.policy.start:
            raise
        raise BadInput(f"{_KEY}: {settings.policy.start} cannot write these records: {error}") from None
