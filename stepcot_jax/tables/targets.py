"""Transfer targets: answers mapped to the networks' chain, and checks for overlap with the training data."""

import collections
import dataclasses
import pathlib
from collections.abc import Iterator, Sequence

from stepcot_jax.chain import NOT_ANNOTATED, Chain, fold
from stepcot_jax.data.dataset import Dataset
from stepcot_jax.data.images.image_files import digest_content
from stepcot_jax.data.loading import load_dataset
from stepcot_jax.data.records.cases import CaseTable
from stepcot_jax.data.splits.splits import Splits
from stepcot_jax.features.store import digest_pixels
from stepcot_jax.features.trained_input import trained_preprocessing
from stepcot_jax.host.addresses import name_place
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.settings.run_settings import Settings
from stepcot_jax.tables.cells import vary


def relabel_last_step(dataset: Dataset, chain: Chain, *, name: str) -> tuple[Dataset, str]:
    """Map the answers to the last step to the labels of another chain, and drop all other answers.

    Options are matched by text, case and spacing folded. The options of other steps may differ.

    Returns:
      The cases under the other chain, where those whose answer it lacks are in no split; and a sentence on the cases
    """
    own, known = dataset.chain.steps[-1], chain.steps[-1]
    by_text = {fold(option): label for label, option in enumerate(known.options)}
    label_of = {label: by_text.get(fold(option), NOT_ANNOTATED) for label, option in enumerate(own.options)}
    label_of[NOT_ANNOTATED] = NOT_ANNOTATED
    indices = _members(dataset, "train", "val", "test")
    counts = collections.Counter(dataset.cases[index].labels[-1] for index in indices)
    num_unanswered = counts.pop(NOT_ANNOTATED, 0)
    unknown = sorted(label for label in counts if label_of[label] == NOT_ANNOTATED)
    if counts and len(unknown) == len(counts):
        found = [own.options[label] for label in unknown]
        raise BadInput(f"{name}: answers {found} to {own.name!r} are not among {list(known.options)}")
    nothing, no_reasoning = [NOT_ANNOTATED] * (chain.num_steps - 1), ("",) * chain.num_steps
    relabelled = [
        dataclasses.replace(case, labels=(*nothing, label_of[case.labels[-1]]), uncertain=(), reasoning=no_reasoning)
        for case in dataset.cases
    ]
    kept = {
        split: tuple(index for index in members if dataset.cases[index].labels[-1] not in unknown)
        for split, members in dataset.splits.by_name().items()
    }
    changed = dataclasses.replace(dataset, chain=chain, cases=CaseTable(relabelled), splits=Splits(**kept))
    named = ", ".join(f"{own.options[label]} {counts[label]}" for label in unknown)
    parts = {
        f"cases of classes that the networks do not have ({named})": sum(counts[label] for label in unknown),
        "unannotated cases": num_unanswered,
        "records set aside by the loader": len(dataset.set_aside),
    }
    left_out = ", ".join(f"{count} {what}" for what, count in parts.items() if count)
    return changed, f"Left out: {left_out}." if left_out else ""


def check_target(source: Settings, target: Settings, *, name: str) -> None:
    """Refuse a transfer target that overlaps with the training data, before anything is trained.

    Patients are compared by id within one data root, or within phantoms of one seed; elsewhere equal ids mean nothing.
    Images are compared by file content; with a phantom, which has no files, by their pixels after preprocessing; with
    imported features by path.
    """
    by_path = source.image_encoder.name == "imported"
    are_phantoms = source.data.source == target.data.source == "phantom"
    if are_phantoms and source.phantom.seed != target.phantom.seed and not by_path:
        return
    trained, read = _load(source), _load(target)
    relabel_last_step(read, trained.chain, name=name)
    learned, asked = _members(trained, "train", "val"), _members(read, "train", "val", "test")
    found: list[int] = []
    if _has_same_patients(source, target):
        patients = {trained.cases[index].patient_id for index in learned}
        found = [index for index in asked if read.cases[index].patient_id in patients]
    if not found and (by_path or not are_phantoms):
        by_pixels = trained.images is None or read.images is None
        known = set(_identify_images(trained, learned, by_path=by_path, by_pixels=by_pixels))
        keys = _identify_images(read, asked, by_path=by_path, by_pixels=by_pixels)
        found = [index for index, key in zip(asked, keys, strict=True) if key in known]
    if found:
        first, num_patients = read.cases[found[0]], len({read.cases[index].patient_id for index in found})
        raise BadInput(
            f"--target_config: {num_patients} patients with {len(found)} of the {len(asked)} cases of {name} are in "
            f"the source's train or val split, the first is {first.patient_id!r} ({first.image_path}); "
            "expected held-out data"
        )


def _load(settings: Settings) -> Dataset:
    """The dataset of a run with the settings, with its splits."""
    if settings.data.on_bad_record == "stop":  # else images that cannot be decoded change the splits
        settings = vary(settings, {"data.check_images": "on_use"})
    dataset = load_dataset(
        settings,
        preprocessing=trained_preprocessing(settings),
        require_images=settings.image_encoder.name != "imported",
        progress=Terminal().watch,
    )
    return dataset.with_origins(settings.data.origins) if settings.data.origins else dataset


def _members(dataset: Dataset, *splits: str) -> list[int]:
    by_name = dataset.splits.by_name()
    return sorted(index for split in splits for index in by_name[split])


def _has_same_patients(source: Settings, target: Settings) -> bool:
    """Whether equal ids mean the same patient."""
    if "phantom" in (source.data.source, target.data.source):
        # A phantom's patient depends on seed and id alone.
        return source.data.source == target.data.source and source.phantom.seed == target.phantom.seed
    return _folder(source.data.root) == _folder(target.data.root)


def _folder(root: str) -> str:
    path = pathlib.Path(root)
    return name_place(str(path.parent) if path.is_file() else root)


def _identify_images(dataset: Dataset, indices: Sequence[int], *, by_path: bool, by_pixels: bool) -> Iterator[str]:
    """A key that is equal for equal images."""
    for index in indices:
        if by_path:
            yield dataset.cases[index].image_path
        elif by_pixels or dataset.images is None:
            yield digest_pixels(dataset.pixels[index])
        else:
            yield digest_content(dataset.images, index)
