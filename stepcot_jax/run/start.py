"""The weights that a run starts from (`config.start.checkpoint`): those of another run, perhaps of another chain."""

import contextlib
import dataclasses
import functools
import json
import math
import pathlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import jax
import msgspec
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from stepcot_jax.chain import Chain, fold
from stepcot_jax.data.dataset import Dataset
from stepcot_jax.data.questions.vqa_dataset import VqaDataset
from stepcot_jax.data.splits.splits import read_members
from stepcot_jax.features.patch_input import PatchInput
from stepcot_jax.host.download import find_path, name_source
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import read_json, write_whole
from stepcot_jax.models.prefix_vlm import PrefixVlm
from stepcot_jax.policies.policy import AnyPolicy, start_coordinates
from stepcot_jax.policies.policy_files import AnyTokenizer
from stepcot_jax.run.qwen_source import QwenSource
from stepcot_jax.run.settings import Settings, changed_keys, read_run_settings, read_settings
from stepcot_jax.run.stored_policy import StoredPolicy, read_policy
from stepcot_jax.run.stored_reading import StoredReading, read_reading
from stepcot_jax.training.checkpoints import read_best, restore_params
from stepcot_jax.training.state import Params

# Parameters of one chain's networks for another chain: steps and answers are matched by name.
#
# Teacher and student have a head for each step and a column for each answer; everything else is shared by all steps.
# What has no counterpart, or one of another shape, keeps its fresh values.


_STACKED = re.compile(r"teacher/(?:heads/|image_projections/|step_vectors$)")
"""Parameters of all steps, stacked on the leading axis."""

_OF_STEP = re.compile(r"((?:teacher/classifier|student/head)_)(\d+)(/.*)")
"""Classifiers of one step, with the answers on the last axis."""


@dataclasses.dataclass(frozen=True)
class Matched:
    """Parameters, some of them taken over.

    Attributes:
      num_taken: numbers that were taken over.
      answers: by step that both chains have, the answers that both have.
      fresh: steps, answers, and networks that have no counterpart, as lines of text.
      misfits: parameters whose counterpart has another shape, with both shapes.
    """

    params: Params
    num_taken: int
    num_all: int
    answers: dict[str, tuple[str, ...]]
    fresh: tuple[str, ...]
    misfits: tuple[str, ...]


def match_params(found: Params, like: Params, *, found_chain: Chain, chain: Chain) -> Matched:
    """Return fresh parameters with those of other networks put in wherever name and shape fit."""
    source, fresh = flatten_dict(found, sep="/"), flatten_dict(like, sep="/")
    places = _match_steps(found_chain, chain)
    leaves, misfits, taken = {}, [], 0
    for path, leaf in fresh.items():
        values, number, misfit = _fill(path, np.asarray(leaf), source, places)
        leaves[path], taken = values, taken + number
        misfits += [misfit] if misfit else []
    return Matched(
        params=unflatten_dict(leaves, sep="/"),
        num_taken=taken,
        num_all=sum(math.prod(leaf.shape) for leaf in leaves.values()),
        answers={chain.steps[place].name: tuple(own) for place, (_, own) in places.items()},
        fresh=tuple(_list_fresh(found, like, chain, places)),
        misfits=tuple(misfits),
    )


_Places = dict[int, tuple[int, dict[str, tuple[int, int]]]]
"""New step -> (found step, answer -> (label among the found answers, label among the new ones))."""


def _match_steps(found: Chain, chain: Chain) -> _Places:
    there = {fold(step.name): place for place, step in enumerate(found.steps)}
    places: _Places = {}
    for place, step in enumerate(chain.steps):
        other = there.get(fold(step.name))
        if other is not None:
            labels = {fold(option): label for label, option in enumerate(found.steps[other].options)}
            own = {
                option: (labels[fold(option)], label)
                for label, option in enumerate(step.options)
                if fold(option) in labels
            }
            places[place] = (other, own)
    return places


def _fill(
    path: str, leaf: np.ndarray, source: dict[str, np.ndarray], places: _Places
) -> tuple[np.ndarray, int, str | None]:
    """Return a parameter with what fits, how many numbers were taken over, and the shapes that do not fit."""
    of_step, is_stacked = _OF_STEP.fullmatch(path), _STACKED.match(path) is not None
    place = None if of_step is None else places.get(int(of_step[2]))
    if of_step is not None and place is None:
        return leaf, 0, None
    name = path if of_step is None or place is None else f"{of_step[1]}{place[0]}{of_step[3]}"
    if name not in source:
        is_missing = path.partition("/")[0] in {each.partition("/")[0] for each in source}
        return leaf, 0, f"{path}: not there" if is_missing else None
    other = np.asarray(source[name])
    shapes = [leaf.shape, other.shape]
    if is_stacked:
        shapes = [shape[1:] for shape in shapes]
    elif place is not None:
        shapes = [shape[:-1] for shape in shapes]
    if shapes[0] != shapes[1]:
        return leaf, 0, f"{path}: shape {other.shape} there, {leaf.shape} here"
    values = leaf.copy()
    if is_stacked:
        for new, (old, _) in places.items():
            values[new] = other[old]
        return values, len(places) * math.prod(leaf.shape[1:]), None
    if place is not None:
        for old, new in place[1].values():
            values[..., new] = other[..., old]
        return values, len(place[1]) * math.prod(leaf.shape[:-1]), None
    values[...] = other
    return values, leaf.size, None


def _list_fresh(found: Params, like: Params, chain: Chain, places: _Places) -> Iterator[str]:
    for name in like:
        if name not in found:
            yield f"network {name}"
    for place, step in enumerate(chain.steps):
        if place not in places:
            yield f"step {step.name!r}"
            continue
        own = [option for option in step.options if option not in places[place][1]]
        if own:
            yield f"answers of {step.name!r}: {', '.join(own)}"


START_FILE = "start.json"
_KEY = "config.start.checkpoint"
_SPLITS_FILE = "splits.json"

_OF_INPUTS = ("config.image_encoder.", "config.prompts.")
_NUM_SHOWN = 6


@dataclasses.dataclass(frozen=True)
class WarmStart:
    """A run whose weights another run starts from.

    Attributes:
      source: the run's workdir as the settings name it, a folder or an address on a store.
      workdir: of the run, on this machine.
      step: the update of its best teacher, whose checkpoint all parts are taken from.
      notes: settings of images and prompts that differ.
    """

    source: str
    workdir: pathlib.Path
    settings: Settings
    reading: StoredReading
    step: int
    notes: tuple[str, ...]

    def apply(self, params: Params, chain: Chain) -> Matched:
        """Return fresh parameters with those of the run put in, steps and answers matched by name."""
        names = self.settings.trains.parts
        found = restore_params(self.workdir / "checkpoints", self.step)
        own = {name: found[name] for name in names if name in found}
        matched = match_params(own, jax.device_get(params), found_chain=self.reading.chain, chain=chain)
        if not matched.num_taken:
            raise BadInput(f"{_KEY}: nothing in {self.source} fits this run; {_shorten(matched.misfits)}")
        return matched

    def describe(self, matched: Matched) -> list[str]:
        """Return what was taken over and what is fresh, as lines of text."""
        steps = [f"{name!r} ({len(answers)} answers)" for name, answers in matched.answers.items()]
        lines = [
            f"start: {matched.num_taken:,} of {matched.num_all:,} numbers from update {self.step} of {self.source}",
            f"start: steps taken over: {', '.join(steps) or 'none'}",
        ]
        lines += [f"start: fresh: {_shorten(matched.fresh)}"] if matched.fresh else []
        lines += [f"start: does not fit, fresh: {_shorten(matched.misfits)}"] if matched.misfits else []
        return lines + [f"start: note: {note}" for note in self.notes]

    def write(self, workdir: pathlib.Path, matched: Matched) -> None:
        """Write what was taken over and what is fresh to `start.json` of the new run."""
        content: dict[str, Any] = {
            "checkpoint": self.source,
            "update": self.step,
            "numbers_taken_over": matched.num_taken,
            "numbers": matched.num_all,
            "steps_taken_over": {name: list(answers) for name, answers in matched.answers.items()},
            "fresh": list(matched.fresh),
            "does_not_fit": list(matched.misfits),
            "notes": list(self.notes),
        }
        write_whole(workdir / START_FILE, (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode())


def read_warm_start(settings: Settings) -> WarmStart:
    """Read which run `start.checkpoint` names, before any weights.

    The data may be others; `refuse_seen_cases` says whether their test split may be used.
    """
    source = settings.start.checkpoint
    workdir = find_path(source, _KEY)
    if not workdir.is_dir():
        raise BadInput(f"{_KEY}: {source} is not a folder; expected the workdir of a run with a teacher")
    try:
        before = read_settings(workdir / "settings.json")
        if not before.trains.parts:
            raise BadInput(f"{source} trained no teacher ({before.named_job})")
        reading = read_reading(workdir)
        latest, best = read_best(workdir / "checkpoints")
    except BadInput as error:
        raise BadInput(f"{_KEY}: {error}") from None
    changed = changed_keys(before, settings)
    notes = tuple(f"{name} differs: its inputs were made otherwise" for name in changed if name.startswith(_OF_INPUTS))
    return WarmStart(source, workdir, before, reading, best["teacher"].step if "teacher" in best else latest, notes)


def refuse_seen_cases(start: WarmStart, settings: Settings, dataset: Dataset) -> tuple[str, ...]:
    """Refuse a test split with an image or a patient that the start, or a run that it started from, has learnt from.

    Images are known by their paths in the same folder, or of phantoms by their seed. Of another folder nobody can say
    whether its images are the same; neither can a converted checkpoint.
    """
    patients = {dataset.cases[index].image: dataset.cases[index].patient for index in range(len(dataset.cases))}
    test = {dataset.cases[index].image for index in dataset.splits.test}
    of_test = {patients[image] for image in test if patients[image]}
    starts, notes = _list_starts(start)
    for source, workdir in starts.items():
        path = workdir / _SPLITS_FILE
        if not path.is_file():
            notes.append(f"{source} does not say which images it has learnt from; test images may be among them")
            continue
        if not _have_same_cases(read_settings(workdir / "settings.json"), settings):
            continue
        members = read_members(path)
        learnt = [image for name in ("train", "val") for image in members[name]]
        seen = [image for image in learnt if image in test or patients.get(image) in of_test]
        if seen:
            raise BadInput(
                f"{_KEY}: {source} has learnt from {len(seen)} images of this run's test patients "
                f"(first {seen[0][:80]!r}); expected a test split that the start has not seen, such as its "
                "own (the same settings of splits and the same cases)"
            )
    return tuple(notes)


def _list_starts(start: WarmStart) -> tuple[dict[str, pathlib.Path], list[str]]:
    """Return a run, the run that it started from, and so on: name -> folder; and why the list ends early, in words."""
    found, workdir = {start.source: start.workdir}, start.workdir
    while (path := workdir / START_FILE).is_file():
        before = read_json(path, _StartFile, accepted="expected the start.json of a run").checkpoint
        if before in found:
            break
        try:
            workdir = find_path(before)
            if not workdir.is_dir():
                raise BadInput(f"{before}: no such folder")
        except BadInput as error:
            return found, [f"an earlier start cannot be read ({error}); test images may be among those it learnt from"]
        found[before] = workdir
    return found, []


class _StartFile(msgspec.Struct):
    checkpoint: str


def _have_same_cases(one: Settings, other: Settings) -> bool:
    if one.data.source != other.data.source:
        return False
    if one.data.source == "phantom":
        return one.phantom.seed == other.phantom.seed
    return name_source(one.data.root) == name_source(other.data.root)


def _shorten(items: tuple[str, ...]) -> str:
    more = f"; and {len(items) - _NUM_SHOWN} more in {START_FILE}" if len(items) > _NUM_SHOWN else ""
    return "; ".join(items[:_NUM_SHOWN]) + more


# What a run of the job "sft" or "grpo" starts from: the policy of a run (`policy.start`), a checkpoint, or chance.


PATIENTS_FILE = "records/patients.json"
"""Patients of each split of a policy's run."""

_POLICY_KEY = "config.policy.start"
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
    folder = find_path(workdir, _POLICY_KEY)
    try:
        stored = read_policy(folder, for_training=True, patches=patches)
    except BadInput as error:
        raise BadInput(f"{_POLICY_KEY}: {error}") from None
    changed = changed_keys(stored.run.settings, settings)
    may_differ = _MAY_DIFFER if patches is None else (*_MAY_DIFFER, *_OF_OWN_ENCODER)
    other = [key for key in changed if key.startswith(_SAME) and key not in may_differ]
    if other:
        raise BadInput(
            f"{_POLICY_KEY}: {workdir} has other values of {', '.join(other)}; expected a run with the same "
            "network and size of pictures"
        )
    splits = (
        [key for key in changed if key.startswith(_SPLITS)] if _have_same_records(stored.run.settings, settings) else []
    )
    if splits:
        raise BadInput(
            f"{_POLICY_KEY}: {workdir} was trained on the same cases with other values of {', '.join(splits)}; "
            "expected the same splits, or test cases may have been training cases"
        )
    return stored


def write_patients(workdir: pathlib.Path, dataset: VqaDataset) -> None:
    """Write the patients of each split, for runs that start from this one."""
    patients = {
        split: sorted({dataset.records[place].patient for place in places}) for split, places in dataset.splits.items()
    }
    path = workdir / PATIENTS_FILE
    path.parent.mkdir(exist_ok=True)
    write_whole(path, f"{json.dumps(patients, ensure_ascii=False)}\n".encode())


def refuse_seen_patients(settings: Settings, dataset: VqaDataset) -> None:
    """Refuse a test split with patients that `policy.start`, or a run that it started from, has learnt from.

    Of other phantoms, of another folder, of runs whose folder is gone and of runs of earlier versions, which did not
    write their patients, nobody can say.
    """
    of_test = {dataset.records[place].patient for place in dataset.splits["test"]}
    for start, workdir in _earlier_runs(settings):
        before, path = read_run_settings(workdir), workdir / PATIENTS_FILE
        if not path.is_file() or not _have_same_records(before, settings):
            continue
        found = read_json(path, dict[str, list[str]], accepted="expected the patients of a run", max_bytes=_MOST_BYTES)
        seen = of_test & {*found.get("train", ()), *found.get("val", ())}
        if seen:
            raise BadInput(
                f"{_POLICY_KEY}: {start} has learnt from {len(seen)} of the {len(of_test)} patients of this run's test "
                "split; expected a test split that the start has not seen, such as its own"
            )


def _earlier_runs(settings: Settings) -> Iterator[tuple[str, pathlib.Path]]:
    """Yield the start and the starts before it, as named and as a folder, as far as they can be read."""
    looked_at: set[str] = set()
    start = settings.policy.start
    while start and name_source(start) not in looked_at:
        looked_at.add(name_source(start))
        try:
            workdir = find_path(start, _POLICY_KEY)
        except BadInput:  # of a run before the start, which has been read
            return
        if not (workdir / "settings.json").is_file():
            return
        yield start, workdir
        start = read_run_settings(workdir).policy.start


def _have_same_records(one: Settings, other: Settings) -> bool:
    if one.vqa.source != other.vqa.source:
        return False
    if one.vqa.source == "phantom":
        return one.phantom.seed == other.phantom.seed
    if one.vqa.source == "given":  # nobody knows, so patients are compared, but not the settings of splits
        return True
    return name_source(one.vqa.root) == name_source(other.vqa.root)


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
        raise BadInput(f"{_POLICY_KEY}: {settings.policy.start} cannot write these records: {error}") from None
