"""The weights that a run starts from (`config.start.checkpoint`): those of another run, perhaps of another chain."""

import dataclasses
import json
import pathlib
from typing import Any

import jax
import msgspec

from stepcot_jax.chain import Chain
from stepcot_jax.data.dataset import Dataset
from stepcot_jax.data.splits.split_manifest import read_members
from stepcot_jax.host.addresses import name_place
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import read_json, write_whole
from stepcot_jax.host.store_cache import find_workdir
from stepcot_jax.run.stored_reading import StoredReading, read_reading
from stepcot_jax.settings.run_settings import Settings
from stepcot_jax.settings.stored_settings import changed_keys, read_settings
from stepcot_jax.systems.matched_params import Matched, match_params
from stepcot_jax.training.state import Params
from stepcot_jax.training.stored_params import read_best, restore_params

START_FILE = "start.json"
_KEY = "config.start.checkpoint"
_SPLITS_FILE = "splits.json"

_PARTS = {
    "teacher": ("teacher", "image_encoder"),
    "chain_grpo": ("teacher", "image_encoder"),
    "distill": ("teacher", "image_encoder", "student", "teacher_projection", "student_projection"),
}
"""What a job trains, as parts of the parameters."""

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
        names = _PARTS[self.settings.job]
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
    workdir = find_workdir(source, _KEY)
    if not workdir.is_dir():
        raise BadInput(f"{_KEY}: {source} is not a folder; expected the workdir of a run with a teacher")
    try:
        before = read_settings(workdir / "settings.json")
        if before.job not in _PARTS:
            raise BadInput(f"{source} trained no teacher (config.job={before.job!r})")
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
    patients = {dataset.cases[index].image_path: dataset.cases[index].patient_id for index in range(len(dataset.cases))}
    test = {dataset.cases[index].image_path for index in dataset.splits.test}
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
            workdir = find_workdir(before)
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
    return name_place(one.data.root) == name_place(other.data.root)


def _shorten(items: tuple[str, ...]) -> str:
    more = f"; and {len(items) - _NUM_SHOWN} more in {START_FILE}" if len(items) > _NUM_SHOWN else ""
    return "; ".join(items[:_NUM_SHOWN]) + more
