"""Transfer targets: answers mapped to the networks' chain, and checks for overlap with the training data."""

import collections
import dataclasses
import pathlib
from collections.abc import Iterator, Mapping, Sequence

from stepcot_jax.chain import NOT_ANNOTATED, Chain, fold
from stepcot_jax.data.dataset import Dataset
from stepcot_jax.data.images.image_files import digest_content
from stepcot_jax.data.loading import load_dataset
from stepcot_jax.data.records.cases import CaseTable
from stepcot_jax.data.splits.splits import Splits
from stepcot_jax.features.inputs import trained_preprocessing
from stepcot_jax.features.keys import digest_pixels
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.settings.run_settings import Settings
from stepcot_jax.tables.cells import vary


@dataclasses.dataclass(frozen=True)
class LeftOut:
    """Cases that are not measured.

    Attributes:
      by_answer: number of cases by answer to the last step that the networks' chain lacks.
      num_unanswered: cases whose last step is unannotated.
      num_set_aside: records that the loader set aside, such as images with several labels.
    """

    by_answer: Mapping[str, int]
    num_unanswered: int
    num_set_aside: int

    def describe(self) -> str:
        """Describe them in a sentence; "" without any."""
        parts = []
        if self.by_answer:
            named = ", ".join(f"{answer} {count}" for answer, count in self.by_answer.items())
            parts.append(f"{sum(self.by_answer.values())} cases of classes that the networks do not have ({named})")
        if self.num_unanswered:
            parts.append(f"{self.num_unanswered} unannotated cases")
        if self.num_set_aside:
            parts.append(f"{self.num_set_aside} records set aside by the loader")
        return f"Left out: {', '.join(parts)}." if parts else ""


def relabel_last_step(dataset: Dataset, chain: Chain, *, name: str) -> tuple[Dataset, LeftOut]:
    """Map the answers to the last step to the labels of another chain, and drop all other answers.

    Options are matched by text, case and spacing folded. The options of other steps may differ.

    Args:
      dataset: the cases.
      chain: of the networks.
      name: of the data, for messages.

    Returns:
      The cases under the other chain, where those whose answer it lacks are in no split; and what is left out.

    Raises:
      BadInput: the other chain lacks every answer that the cases have.
    """
    own, known = dataset.chain.steps[-1], chain.steps[-1]
    by_text = {fold(option): label for label, option in enumerate(known.options)}
    label_of: dict[int, int | None] = {
        NOT_ANNOTATED: NOT_ANNOTATED,
        **{label: by_text.get(fold(option)) for label, option in enumerate(own.options)},
    }
    indices = _members(dataset, "train", "val", "test")
    counts = collections.Counter(dataset.cases[index].labels[-1] for index in indices)
    num_unanswered = counts.pop(NOT_ANNOTATED, 0)
    unknown = {label for label in counts if label_of[label] is None}
    if counts and len(unknown) == len(counts):
        raise BadInput(
            f"{name}: answers {[own.options[label] for label in sorted(counts)]} to {own.name!r} are not among "
            f"{list(known.options)}"
        )
    nothing = [NOT_ANNOTATED] * (chain.num_steps - 1)
    relabelled = []
    for case in dataset.cases:
        label = label_of[case.labels[-1]]
        labels = (*nothing, NOT_ANNOTATED if label is None else label)
        relabelled.append(dataclasses.replace(case, labels=labels, reasoning=("",) * chain.num_steps))
    kept = {
        split: tuple(index for index in members if dataset.cases[index].labels[-1] not in unknown)
        for split, members in dataset.splits.by_name().items()
    }
    left_out = {own.options[label]: counts[label] for label in sorted(unknown)}
    changed = dataclasses.replace(dataset, chain=chain, cases=CaseTable(relabelled), splits=Splits(**kept))
    return changed, LeftOut(left_out, num_unanswered, len(dataset.set_aside))


def check_target(source: Settings, target: Settings, *, name: str) -> None:
    """Refuse a transfer target that overlaps with the training data, before anything is trained.

    Patients are compared by id within one data root, or within phantoms of one seed; elsewhere equal ids mean nothing.
    Images are compared by file content; with a phantom, which has no files, by their pixels after preprocessing; with
    imported features by path.

    Args:
      source: settings of the networks' run.
      target: the same with the target's data.
      name: of the target, for messages.

    Raises:
      BadInput: a patient or an image is in the source's train or val split, or the chain lacks every answer.
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


def _folder(root: str) -> pathlib.Path:
    path = pathlib.Path(root).resolve()
    return path.parent if path.is_file() else path


def _identify_images(dataset: Dataset, indices: Sequence[int], *, by_path: bool, by_pixels: bool) -> Iterator[str]:
    """A key that is equal for equal images."""
    for index in indices:
        if by_path:
            yield dataset.cases[index].image_path
        elif by_pixels or dataset.images is None:
            yield digest_pixels(dataset.pixels[index])
        else:
            yield digest_content(dataset.images, index)
