"""Turn one record of the published layout into a case: locate its image, order its steps, read its labels."""

import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import msgspec

from stepcot_jax.chain import NOT_ANNOTATED, Step, read_options
from stepcot_jax.data.records.cases import Box, Case
from stepcot_jax.data.records.data_json import NOTHING_ADDED, PublishedRecord, PublishedStep
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.untrusted import read_limits

_STEP_LABEL = re.compile(r"step\s*([0-9]{1,4})(?:\s*[:.-].*)?", re.IGNORECASE | re.DOTALL)
# Nearly every image path: already normal, and without a part that begins with a dot it cannot leave the root.
_PLAIN_PATH = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*(?:/[A-Za-z0-9_-][A-Za-z0-9_.-]*)*")

_NUM_SHOWN = 80
_MOST_REMEMBERED = 4096
_LONGEST_REMEMBERED = 10_000


class MissingImage(BadInput):
    """A record's image file does not exist."""


def normalise_image_path(image_path: str) -> str:
    r"""Return an image path with "/" as separator and without "." parts.

    >>> normalise_image_path(r".\images\a.png")
    'images/a.png'
    """
    if _PLAIN_PATH.fullmatch(image_path):
        return image_path
    return str(PurePosixPath(image_path.replace("\\", "/")))


class _Cache(dict[Any, Any]):
    """A dict bounded in size, also where nothing repeats."""

    def keep(self, key: Any, value: Any, *, num_chars: int = 0) -> None:
        """Store a value unless its key is long."""
        if num_chars <= _LONGEST_REMEMBERED:
            if len(self) >= _MOST_REMEMBERED:
                self.clear()
            self[key] = value


class ImageLocator:
    """Locates images below a data root, which may be a link itself, and refuses paths that leave it.

    With `require_images` it also refuses images that do not exist.
    """

    def __init__(self, root: Path, *, require_images: bool) -> None:
        self._root = os.path.realpath(root)
        self._require_images = require_images
        self._folders = _Cache()

    def locate(self, image_path: str) -> str:
        """Return the image's path with every link resolved."""
        found = repr(image_path[:_NUM_SHOWN])
        if len(image_path) > (most := read_limits().name):
            raise BadInput(f"{found} … has {len(image_path)} characters; at most {most} are accepted")
        if not _PLAIN_PATH.fullmatch(image_path):
            windows = PureWindowsPath(image_path)
            if windows.drive or windows.root or ".." in windows.parts or not windows.parts:
                raise BadInput(f"{found} must be a path below the data root (not empty, not absolute, without '..')")
        try:
            return self._follow(normalise_image_path(image_path), found=found)
        except (OSError, ValueError) as error:
            if isinstance(error, BadInput):
                raise
            raise BadInput(f"{found} cannot be read as a path of an image file ({error})") from error

    def _follow(self, normal_path: str, *, found: str) -> str:
        folder, name = os.path.split(normal_path)
        if folder not in self._folders:
            # Resolving the links of every image would take most of the time of reading the records.
            self._folders.keep(folder, os.path.realpath(os.path.join(self._root, folder)))  # noqa: PTH118
        real_path = os.path.join(self._folders[folder], name)  # noqa: PTH118
        if os.path.islink(real_path):  # noqa: PTH114
            real_path = os.path.realpath(real_path)
        if not real_path.startswith(os.path.join(self._root, "")):  # noqa: PTH118
            raise BadInput(f"{found} is a link out of the data root; images must lie below it")
        if self._require_images:
            try:
                is_file = stat.S_ISREG(os.stat(real_path).st_mode)  # noqa: PTH116
            except FileNotFoundError:
                raise MissingImage(f"{found} does not exist below the data root") from None
            if not is_file:
                raise BadInput(f"{found} is not a file; an image below the data root is required")
        return real_path


class RecordReader:
    """Reads single records; caches steps and labels, which repeat in nearly every record."""

    def __init__(self, root: Path, *, step_names: Sequence[str], require_images: bool) -> None:
        self._locator = ImageLocator(root, require_images=require_images)
        self._step_names = tuple(step_names)
        self._steps, self._orders, self._labels = _Cache(), _Cache(), _Cache()

    def read(self, record: PublishedRecord) -> tuple[Case, tuple[Step, ...], str]:
        """Return a record as a case, its steps as it writes them, and its image with every link resolved."""
        patient_id = str(record.patient_id)
        if not patient_id.strip():
            raise BadInput(f"patient_id: {patient_id[:_NUM_SHOWN]!r} is blank; a patient's identifier is required")
        try:
            real_path = self._locator.locate(record.image_path)
        except BadInput as error:
            raise type(error)(f"image_path: {error}") from error
        entries = self._order(record.vqa_chain)
        steps, labels = [], []
        for position, place in enumerate(entries):
            steps.append(self._read_step(record.vqa_chain[place], position=position, place=place))
            labels.append(self._read_label(record.vqa_chain[place], step=steps[-1], place=place))
        added = record.stepcot_jax or NOTHING_ADDED
        marks = [record.vqa_chain[place].uncertain is True for place in entries]
        for place, label, mark in zip(entries, labels, marks, strict=True):
            if mark and label == NOT_ANNOTATED:
                raise BadInput(f"vqa_chain[{place}].uncertain: true without an answer; expected the possible answer")
        case = Case(
            patient_id=patient_id,
            image_path=normalise_image_path(record.image_path),
            origin=record.origin or "",
            report=record.report or "",
            labels=tuple(labels),
            reasoning=tuple([record.vqa_chain[place].reasoning or "" for place in entries]),
            boxes=tuple([Box(**msgspec.structs.asdict(box)) for box in added.boxes]),
            sex=added.sex,
            age=added.age,
            view=added.view,
            provenance=tuple(sorted(added.provenance.items())),
        )
        return case.with_stated(labels, marks) if any(marks) else case, tuple(steps), real_path

    def _order(self, entries: Sequence[PublishedStep]) -> list[int]:
        """Return the position in `vqa_chain` of each step of the chain."""
        names = tuple([entry.step for entry in entries])
        known: list[int] | None = self._orders.get(names)
        if known is not None:
            return known
        expected = [f"Step {number}" for number in range(1, len(self._step_names) + 1)]
        matches = [_STEP_LABEL.fullmatch(name.strip()) for name in names]
        numbers = [int(match[1]) if match else 0 for match in matches]
        if sorted(numbers) != list(range(1, len(expected) + 1)):
            found = [name[:_NUM_SHOWN] for name in names[:26]]
            raise BadInput(
                f"vqa_chain: {len(entries)} steps {found} are not the expected {len(expected)}, each once: {expected}"
            )
        order = sorted(range(len(numbers)), key=numbers.__getitem__)
        self._orders.keep(names, order, num_chars=sum(map(len, names)))
        return order

    def _read_step(self, entry: PublishedStep, *, position: int, place: int) -> Step:
        key = (position, entry.question, entry.options)
        step: Step | None = self._steps.get(key)
        if step is None:
            try:
                step = Step(self._step_names[position], entry.question, read_options(entry.options))
            except BadInput as error:
                raise BadInput(f"vqa_chain[{place}].options: {error}") from error
            self._steps.keep(key, step, num_chars=len(entry.question) + sum(map(len, entry.options)))
        return step

    def _read_label(self, entry: PublishedStep, *, step: Step, place: int) -> int:
        key = (entry.options, entry.answer)
        label: int | None = self._labels.get(key)
        if label is None:
            try:
                label = step.read_answer(entry.answer)
            except BadInput as error:
                raise BadInput(f"vqa_chain[{place}].answer: {error}") from error
            self._labels.keep(key, label, num_chars=len(entry.answer or "") + sum(map(len, entry.options)))
        return label
