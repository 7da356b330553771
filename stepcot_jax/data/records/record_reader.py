"""One record of the published layout as a case: its image's place, its steps in order, its labels."""

import dataclasses
import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import msgspec

from stepcot_jax.chain import Step, read_options
from stepcot_jax.data.records.cases import Box, Case
from stepcot_jax.data.records.data_json import NOTHING_ADDED, PublishedRecord, PublishedStep
from stepcot_jax.host.errors import BadInput

_STEP_LABEL = re.compile(r"step\s*([0-9]{1,4})(?:\s*[:.-].*)?", re.IGNORECASE | re.DOTALL)
_PLAIN_PATH = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*(?:/[A-Za-z0-9_-][A-Za-z0-9_.-]*)*")
"""What nearly every image path is, and then it is normal and leads nowhere but down: no part begins with a dot."""

_NUM_SHOWN = 80
_MOST_REMEMBERED = 4096
_LONGEST_REMEMBERED = 10_000


class MissingImage(BadInput):
    """A record whose image is not there."""


@dataclasses.dataclass(frozen=True)
class ReadRecord:
    """A record that is fine by itself.

    Attributes:
      record: its position in `data.json`, from 0.
      case: what it says.
      steps: the chain as this record has it.
      real_path: its image with every link followed, which tells one image from another.
    """

    record: int
    case: Case
    steps: tuple[Step, ...]
    real_path: str


def normalise_image_path(image_path: str) -> str:
    r"""An image path with "/" between its parts and without "." parts.

    >>> normalise_image_path(r".\images\a.png")
    'images/a.png'
    """
    if _PLAIN_PATH.fullmatch(image_path):
        return image_path
    return str(PurePosixPath(image_path.replace("\\", "/")))


class ImageLocator:
    """Finds images below a data root and nowhere else.

    Args:
      root: the data root; may itself be reached through a link.
      require_images: whether an image that does not exist is refused.
    """

    def __init__(self, root: Path, *, require_images: bool) -> None:
        self._root = os.path.realpath(root)
        self._require_images = require_images
        self._folders: dict[str, str] = {}

    def locate(self, image_path: str) -> str:
        """The image's path with every link followed.

        Raises:
          BadInput: the path is absolute, has "..", leads out of the root through a link, cannot be a path,
            or there is no such file.
        """
        found = f"found {image_path[:_NUM_SHOWN]!r}"
        if not _PLAIN_PATH.fullmatch(image_path):
            windows = PureWindowsPath(image_path)
            if windows.drive or windows.root or ".." in windows.parts or not windows.parts:
                accepted = "accepted is a path below the data root: not empty, not absolute, without '..'"
                raise BadInput(f"{found}, {accepted}")
        try:
            return self._follow(normalise_image_path(image_path), found=found)
        except (OSError, ValueError) as error:
            if isinstance(error, BadInput):
                raise
            raise BadInput(f"{found}, which cannot be read as a path of an image file ({error})") from error

    def _follow(self, normal_path: str, *, found: str) -> str:
        folder, name = os.path.split(normal_path)
        if folder not in self._folders:
            # Following every link of every image would take most of the time of reading the records.
            _make_room(self._folders)
            self._folders[folder] = os.path.realpath(os.path.join(self._root, folder))  # noqa: PTH118
        real_path = os.path.join(self._folders[folder], name)  # noqa: PTH118
        if os.path.islink(real_path):  # noqa: PTH114
            real_path = os.path.realpath(real_path)
        if not real_path.startswith(os.path.join(self._root, "")):  # noqa: PTH118
            raise BadInput(f"{found}, a link that leads out of the data root; accepted are files below the data root")
        if self._require_images:
            try:
                is_file = stat.S_ISREG(os.stat(real_path).st_mode)  # noqa: PTH116
            except FileNotFoundError:
                raise MissingImage(f"{found}, which does not exist; accepted is an image below the data root") from None
            if not is_file:
                raise BadInput(f"{found}, which is not a file; accepted is an image below the data root")
        return real_path


class RecordReader:
    """Reads single records; remembers what repeats in nearly every record, which makes reading fast.

    Args:
      root: the data root.
      step_names: name of each step, in order.
      require_images: whether a record without its image file is refused, as `MissingImage`.
    """

    def __init__(self, root: Path, *, step_names: Sequence[str], require_images: bool) -> None:
        self._locator = ImageLocator(root, require_images=require_images)
        self._step_names = tuple(step_names)
        self._steps: dict[tuple[int, str, tuple[str, ...]], Step] = {}
        self._orders: dict[tuple[str, ...], list[int]] = {}
        self._labels: dict[tuple[tuple[str, ...], str | None], int] = {}

    def read(self, record: PublishedRecord, *, index: int) -> ReadRecord:
        """What the record says.

        Args:
          record: a record with the right fields and types.
          index: its position in the array, from 0, for the JSON path of an error.

        Raises:
          BadInput: a field's content is not acceptable; the message ends with the JSON path.
        """
        patient_id = str(record.patient_id)
        if not patient_id.strip():
            raise BadInput(f"found {patient_id!r}, accepted is a patient's identifier - at `$[{index}].patient_id`")
        try:
            real_path = self._locator.locate(record.image_path)
        except BadInput as error:
            raise type(error)(f"{error} - at `$[{index}].image_path`") from error
        try:
            entries = self._order(record.vqa_chain)
        except BadInput as error:
            raise BadInput(f"{error} - at `$[{index}].vqa_chain`") from error
        steps, labels = [], []
        for position, place in enumerate(entries):
            entry = record.vqa_chain[place]
            where = f"`$[{index}].vqa_chain[{place}]"
            steps.append(self._read_step(entry, position=position, where=where))
            labels.append(self._read_label(entry, step=steps[-1], where=where))
        added = record.stepcot_jax or NOTHING_ADDED
        case = Case(
            patient_id=patient_id,
            image_path=normalise_image_path(record.image_path),
            origin=record.origin or "",
            report=record.report or "",
            labels=tuple(labels),
            reasoning=tuple(record.vqa_chain[place].reasoning or "" for place in entries),
            boxes=tuple(Box(**msgspec.structs.asdict(box)) for box in added.boxes),
            sex=added.sex,
            age=added.age,
            view=added.view,
            provenance=tuple(sorted(added.provenance.items())),
        )
        return ReadRecord(index, case, tuple(steps), real_path)

    def _order(self, entries: Sequence[PublishedStep]) -> list[int]:
        """Place in the file of each step of the chain."""
        names = tuple(entry.step for entry in entries)
        if names in self._orders:
            return self._orders[names]
        expected = [f"Step {number}" for number in range(1, len(self._step_names) + 1)]
        matches = [_STEP_LABEL.fullmatch(name.strip()) for name in names]
        numbers = [int(match[1]) if match else 0 for match in matches]
        if sorted(numbers) != list(range(1, len(expected) + 1)):
            found = [name[:_NUM_SHOWN] for name in names[:26]]
            raise BadInput(
                f"found {len(entries)} steps {found}, accepted are these {len(expected)}, each once: {expected}"
            )
        order = sorted(range(len(numbers)), key=numbers.__getitem__)
        if sum(map(len, names)) <= _LONGEST_REMEMBERED:
            _make_room(self._orders)
            self._orders[names] = order
        return order

    def _read_step(self, entry: PublishedStep, *, position: int, where: str) -> Step:
        key = (position, entry.question, entry.options)
        step = self._steps.get(key)
        if step is None:
            try:
                step = Step(self._step_names[position], entry.question, read_options(entry.options))
            except BadInput as error:
                raise BadInput(f"{error} - at {where}.options`") from error
            if len(entry.question) + sum(map(len, entry.options)) <= _LONGEST_REMEMBERED:
                _make_room(self._steps)
                self._steps[key] = step
        return step

    def _read_label(self, entry: PublishedStep, *, step: Step, where: str) -> int:
        key = (entry.options, entry.answer)
        label = self._labels.get(key)
        if label is None:
            try:
                label = step.read_answer(entry.answer)
            except BadInput as error:
                raise BadInput(f"{error} - at {where}.answer`") from error
            if len(entry.answer or "") + sum(map(len, entry.options)) <= _LONGEST_REMEMBERED:
                _make_room(self._labels)
                self._labels[key] = label
        return label


def _make_room(remembered: dict[Any, Any]) -> None:
    """Keeps what is remembered small, also where nothing repeats."""
    if len(remembered) >= _MOST_REMEMBERED:
        remembered.clear()
