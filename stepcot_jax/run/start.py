"""The run that another starts from: of chains (`config.start.checkpoint`) or of a policy (`config.policy.start`).

Either refuses a test split from which the start, or a run that it started from, has learnt.
"""

import contextlib
import dataclasses
import functools
import math
import operator
import pathlib
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from stepcot_jax.chain import Chain, fold
from stepcot_jax.data.dataset import Dataset
from stepcot_jax.data.splits.splits import read_members
from stepcot_jax.host.download import find_path, name_source
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.own_folder import save
from stepcot_jax.run.fields import naming
from stepcot_jax.run.settings import Settings, changed_keys, read_settings
from stepcot_jax.run.stored import PATIENTS_FILE, StoredPolicy, StoredReading, read_patients, read_policy, read_reading
from stepcot_jax.training.checkpoints import read_best, restore_params
from stepcot_jax.training.state import Params

if TYPE_CHECKING:
    from stepcot_jax.data.questions.vqa_dataset import VqaDataset
    from stepcot_jax.features.patch_input import PatchInput
    from stepcot_jax.policies.policy import AnyPolicy
    from stepcot_jax.policies.policy_files import AnyTokenizer
    from stepcot_jax.run.qwen_source import QwenSource

_KEY = "start.checkpoint"
_POLICY_KEY = "policy.start"


def _list_changed(before: Settings, settings: Settings, same: tuple[str, ...], other: tuple[str, ...]) -> list[str]:
    """Return the changed settings that start with `same`, without those of `other`."""
    return [key for key in changed_keys(before, settings) if key.startswith(same) and key not in other]


def _have_same_source(one: Settings, other: Settings) -> bool:
    """Return whether two runs may have the same cases; True for those of a caller, which are unknown."""
    section = "vqa" if other.trains_policy else "data"
    mine, theirs = getattr(one, section), getattr(other, section)
    if mine.source == theirs.source == "phantom":
        return one.phantom.seed == other.phantom.seed
    return mine.source == theirs.source and (
        mine.source == "given" or name_source(mine.root) == name_source(theirs.root)
    )


class _Earlier(NamedTuple):
    """A run that another has started from."""

    source: str  # its workdir as settings name it, a folder or an address
    workdir: pathlib.Path  # its folder on this machine
    settings: Settings


def _list_starts(settings: Settings) -> tuple[list[_Earlier], list[str]]:
    """Return the start of a run, the start's own start and so on; and notes if the list ends early."""
    starts, visited = list[_Earlier](), set[str]()
    name_start = operator.attrgetter(_POLICY_KEY if settings.trains_policy else _KEY)
    source = name_start(settings)
    while source and name_source(source) not in visited:
        visited.add(name_source(source))
        try:
            workdir = find_path(source)
            if not (workdir / "settings.json").is_file():
                raise BadInput(f"{source}: no settings.json")
        except BadInput as error:
            return starts, [f"an earlier start cannot be read ({error}); test images may be among those it learnt from"]
        starts.append(_Earlier(source, workdir, read_settings(workdir / "settings.json")))
        source = name_start(starts[-1].settings)
    return starts, []


# The start of a run of chains. Steps and answers of another chain are matched by name: teacher and student have a head
# for each step and a column for each answer, everything else is shared by all steps. Parameters without a counterpart,
# or with one of another shape, keep their fresh values.


START_FILE = "start.json"
_SPLITS_FILE = "splits.json"
_NUM_SHOWN = 6

_STACKED = re.compile(r"teacher/(?:heads/|image_projections/|step_vectors$)")
"""Parameters of all steps, stacked on the leading axis."""

_OF_STEP = re.compile(r"((?:teacher/classifier|student/head)_)(\d+)(/.*)")
"""Classifiers of one step, with the answers on the last axis."""


@dataclasses.dataclass(frozen=True)
class Matched:
    """Parameters, some of them copied from another run."""

    params: Params
    num_taken: int  # copied scalars
    num_all: int  # all scalars
    answers: dict[str, tuple[str, ...]]  # by step of both chains, the answers of both
    fresh: tuple[str, ...]  # steps, answers and networks without a counterpart, as lines of text
    misfits: tuple[str, ...]  # parameters whose counterpart has another shape, with both shapes


def match_params(stored: Params, like: Params, *, stored_chain: Chain, chain: Chain) -> Matched:
    """Return fresh parameters, with stored ones copied where name and shape fit.

    The heads of the network plain are one matrix of all answers, so another chain's stay fresh.
    """
    if _name_answers(stored_chain) != _name_answers(chain):
        stored = {name: part for name, part in stored.items() if name != "plain"}
    source, fresh = flatten_dict(stored, sep="/"), flatten_dict(like, sep="/")
    matches = _match_steps(stored_chain, chain)
    leaves, misfits, taken = {}, [], 0
    for path, leaf in fresh.items():
        values, number, misfit = _fill(path, np.asarray(leaf), source, matches)
        leaves[path], taken = values, taken + number
        misfits += [misfit] if misfit else []
    return Matched(
        params=unflatten_dict(leaves, sep="/"),
        num_taken=taken,
        num_all=sum(math.prod(leaf.shape) for leaf in leaves.values()),
        answers={chain.steps[step].name: tuple(labels) for step, (_, labels) in matches.items()},
        fresh=tuple(_list_fresh(stored, like, chain, matches)),
        misfits=tuple(misfits),
    )


def _name_answers(chain: Chain) -> list[tuple[str, ...]]:
    return [(fold(step.name), *map(fold, step.options)) for step in chain.steps]


_Matches = dict[int, tuple[int, dict[str, tuple[int, int]]]]
"""New step -> (stored step, answer -> (label among the stored answers, label among the new ones))."""


def _match_steps(stored: Chain, chain: Chain) -> _Matches:
    stored_steps = {fold(step.name): index for index, step in enumerate(stored.steps)}
    matches: _Matches = {}
    for index, step in enumerate(chain.steps):
        if (other := stored_steps.get(fold(step.name))) is None:
            continue
        labels = {fold(option): label for label, option in enumerate(stored.steps[other].options)}
        new = {option: label for label, option in enumerate(step.options) if fold(option) in labels}
        matches[index] = (other, {option: (labels[fold(option)], label) for option, label in new.items()})
    return matches


def _fill(
    path: str, leaf: np.ndarray, source: dict[str, np.ndarray], matches: _Matches
) -> tuple[np.ndarray, int, str | None]:
    """Return a parameter with stored values copied, the number of copied scalars, and shapes that do not fit."""
    of_step, is_stacked = _OF_STEP.fullmatch(path), _STACKED.match(path) is not None
    match = None if of_step is None else matches.get(int(of_step[2]))
    if of_step is not None and match is None:
        return leaf, 0, None
    name = path if of_step is None or match is None else f"{of_step[1]}{match[0]}{of_step[3]}"
    if name not in source:
        is_missing = path.partition("/")[0] in {stored.partition("/")[0] for stored in source}
        return leaf, 0, f"{path}: not there" if is_missing else None
    other = np.asarray(source[name])
    shapes = [leaf.shape, other.shape]
    if is_stacked:
        shapes = [shape[1:] for shape in shapes]
    elif match is not None:
        shapes = [shape[:-1] for shape in shapes]
    if shapes[0] != shapes[1]:
        return leaf, 0, f"{path}: shape {other.shape} there, {leaf.shape} here"
    values = leaf.copy()
    if is_stacked:
        for new, (old, _) in matches.items():
            values[new] = other[old]
        return values, len(matches) * math.prod(leaf.shape[1:]), None
    if match is not None:
        for old, new in match[1].values():
            values[..., new] = other[..., old]
        return values, len(match[1]) * math.prod(leaf.shape[:-1]), None
    values[...] = other
    return values, leaf.size, None


def _list_fresh(stored: Params, like: Params, chain: Chain, matches: _Matches) -> Iterator[str]:
    for name in like:
        if name not in stored:
            yield f"network {name}"
    for index, step in enumerate(chain.steps):
        if index not in matches:
            yield f"step {step.name!r}"
            continue
        fresh = [option for option in step.options if option not in matches[index][1]]
        if fresh:
            yield f"answers of {step.name!r}: {', '.join(fresh)}"


@dataclasses.dataclass(frozen=True)
class WarmStart:
    """A run whose weights another run starts from."""

    source: str  # its workdir as the settings name it, a folder or an address
    workdir: pathlib.Path  # its folder on this machine
    settings: Settings
    reading: StoredReading
    step: int  # the update of its first network's best weights, whose checkpoint has all parts
    notes: tuple[str, ...]  # settings of images and prompts that differ

    def refuse_seen_cases(self, settings: Settings, dataset: Dataset) -> "WarmStart":
        """Refuse a test split with an image or a patient that this start, or one before it, has learnt from.

        Images are identified by their paths in the same folder, or for phantoms by their seed. Images of another
        folder, and of a converted checkpoint, cannot be compared: the start is returned with a note for each of them.
        """
        patients = {dataset.cases[index].image: dataset.cases[index].patient for index in range(len(dataset.cases))}
        test = {dataset.cases[index].image for index in dataset.splits.test}
        of_test = {patients[image] for image in test if patients[image]}
        starts, notes = _list_starts(settings)
        for source, workdir, before in starts:
            path = workdir / _SPLITS_FILE
            if not path.is_file():
                notes.append(f"{source} does not say which images it has learnt from; test images may be among them")
                continue
            if not _have_same_source(before, settings):
                continue
            members = read_members(path)
            learnt = [image for name in ("train", "val") for image in members[name]]
            seen = [image for image in learnt if image in test or patients.get(image) in of_test]
            if seen:
                raise BadInput(
                    f"config.{_KEY}: {source} has learnt from {len(seen)} images of this run's test patients "
                    f"(first {seen[0][:80]!r}); expected a test split that the start has not seen, such as its "
                    "own (the same settings of splits and the same cases)"
                )
        return dataclasses.replace(self, notes=(*self.notes, *notes))

    def apply(self, params: Params, chain: Chain) -> Matched:
        """Return fresh parameters with the run's copied, steps and answers matched by name."""
        stored = restore_params(self.workdir / "checkpoints", self.step)
        parts = {name: stored[name] for name in self.settings.trains.parts if name in stored}
        matched = match_params(parts, jax.device_get(params), stored_chain=self.reading.chain, chain=chain)
        if not matched.num_taken:
            raise BadInput(f"config.{_KEY}: nothing in {self.source} fits this run; {_shorten(matched.misfits)}")
        return matched

    def describe(self, matched: Matched) -> list[str]:
        """Return which parameters were copied and which are fresh, as lines of text."""
        steps = [f"{name!r} ({len(answers)} answers)" for name, answers in matched.answers.items()]
        lines = [
            f"start: {matched.num_taken:,} of {matched.num_all:,} numbers from update {self.step} of {self.source}",
            f"start: steps taken over: {', '.join(steps) or 'none'}",
        ]
        lines += [f"start: fresh: {_shorten(matched.fresh)}"] if matched.fresh else []
        lines += [f"start: does not fit, fresh: {_shorten(matched.misfits)}"] if matched.misfits else []
        return lines + [f"start: note: {note}" for note in self.notes]

    def write(self, workdir: pathlib.Path, matched: Matched) -> None:
        """Write which parameters were copied and which are fresh to `start.json` of the new run."""
        content = {
            "checkpoint": self.source,
            "update": self.step,
            "numbers_taken_over": matched.num_taken,
            "numbers": matched.num_all,
            "steps_taken_over": {name: list(answers) for name, answers in matched.answers.items()},
            "fresh": list(matched.fresh),
            "does_not_fit": list(matched.misfits),
            "notes": list(self.notes),
        }
        save(workdir / START_FILE, content)


def read_warm_start(settings: Settings) -> WarmStart:
    """Return the run that `start.checkpoint` names, without its weights; its data may differ."""
    source = settings.start.checkpoint
    workdir = find_path(source, f"config.{_KEY}")
    if not workdir.is_dir():
        raise BadInput(f"config.{_KEY}: {source} is not a folder; expected the workdir of a run with a teacher")
    with naming(f"config.{_KEY}"):
        before = read_settings(workdir / "settings.json")
        if not before.trains.parts:
            raise BadInput(f"{source} trained no teacher ({before.named_job})")
        reading = read_reading(workdir)
        latest, best = read_best(workdir / "checkpoints")
    changed = _list_changed(before, settings, ("config.image_encoder.", "config.prompts."), ())
    notes = tuple(f"{name} differs: its inputs were made otherwise" for name in changed)
    step = best[name].step if (name := before.trains.names[0]) in best else latest
    return WarmStart(source, workdir, before, reading, step, notes)


def _shorten(items: tuple[str, ...]) -> str:
    more = f"; and {len(items) - _NUM_SHOWN} more in {START_FILE}" if len(items) > _NUM_SHOWN else ""
    return "; ".join(items[:_NUM_SHOWN]) + more


# The start of a policy's run.


_OF_OWN_ENCODER = ("config.image_encoder.mean", "config.image_encoder.std")
_SAME_POLICIES = ("config.policy.", "config.image_encoder.image_size", *_OF_OWN_ENCODER)
_OTHER_POLICIES = ("config.policy.start", "config.policy.num_merges", "config.policy.longest_reply")
_SPLITS = (
    "config.data.split_fractions", "config.data.split_seed", "config.phantom.num_cases", "config.phantom.prevalence",
)  # fmt: skip


def read_policy_start(settings: Settings, patches: "PatchInput | None" = None) -> StoredPolicy:
    """Return the policy of a finished run, with its vocabulary and the best weights of its last phase.

    Its data may differ; for the same phantoms or folder the settings of splits must be equal. `refuse_seen_patients`
    compares the splits themselves.
    """
    workdir = settings.policy.start
    folder = find_path(workdir, f"config.{_POLICY_KEY}")
    with naming(f"config.{_POLICY_KEY}"):
        stored = read_policy(folder, for_training=True, patches=patches)
        before = stored.run.settings
        may_differ = _OTHER_POLICIES if patches is None else (*_OTHER_POLICIES, *_OF_OWN_ENCODER)
        if other := _list_changed(before, settings, _SAME_POLICIES, may_differ):
            raise BadInput(
                f"{workdir} has other values of {', '.join(other)}; expected a run with the same network and size of "
                "pictures"
            )
        is_same = _have_same_source(before, settings)
        if splits := _list_changed(before, settings, _SPLITS, ()) if is_same else []:
            raise BadInput(
                f"{workdir} was trained on the same cases with other values of {', '.join(splits)}; expected the same "
                "splits, or test cases may have been training cases"
            )
    return stored


def refuse_seen_patients(settings: Settings, dataset: "VqaDataset") -> None:
    """Refuse a test split with patients that `policy.start`, or a run that it started from, has learnt from.

    Patients cannot be compared with those of other phantoms, of another folder, and of runs whose folder is gone.
    """
    of_test = {dataset.records[index].patient for index in dataset.splits.test}
    for start, workdir, before in _list_starts(settings)[0]:
        if not (workdir / PATIENTS_FILE).is_file() or not _have_same_source(before, settings):
            continue
        patients = read_patients(workdir)
        seen = of_test & {*patients.get("train", ()), *patients.get("val", ())}
        if seen:
            raise BadInput(
                f"config.{_POLICY_KEY}: {start} has learnt from {len(seen)} of the {len(of_test)} patients of this "
                "run's test split; expected a test split that the start has not seen, such as its own"
            )


def given_start(
    policy: "AnyPolicy", stored: StoredPolicy | None, source: "QwenSource | None"
) -> Callable[[], Params] | None:
    """Return a function that loads the parameters to start from; None for random ones."""
    if stored is not None:
        params = stored.params
        return lambda: params
    large: Any = policy
    is_given = source is not None and getattr(large, "is_given", False)  # the small decoder has no checkpoint
    return functools.partial(source.load, large) if source is not None and is_given else None


def smooth_start(policy: "AnyPolicy", tokenizer: "AnyTokenizer", *, largest: int) -> Callable[[Params], Params] | None:
    """Return a function for random parameters of the small decoder, see `policies.policy.start_coordinates`."""
    from stepcot_jax.models.prefix_vlm import PrefixVlm  # starts of chains need no policy
    from stepcot_jax.policies.policy import start_coordinates

    if not isinstance(policy, PrefixVlm):
        return None
    return functools.partial(start_coordinates, tokenizer=tokenizer, largest=largest)


@contextlib.contextmanager
def naming_start(settings: Settings) -> Iterator[None]:
    """Add `policy.start` to a `BadInput` about a word that is not in its vocabulary."""
    start = settings.policy.start
    with naming(f"config.{_POLICY_KEY}: {start} cannot write these records") if start else contextlib.nullcontext():
        yield
