"""The published layout of `data.json`: bytes to typed records and back.

One array of records as on the authors' dataset card; the optional `stepcot_jax` holds our additional fields.
"""

import array
import dataclasses
import itertools
import logging
import os
import re
import stat
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path, PureWindowsPath
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from jaxtyping import Bool

from stepcot_jax.box import Box
from stepcot_jax.chain import NOT_ANNOTATED, Chain, Step, fold, read_options
from stepcot_jax.data.identities import PLAIN_PATH, join_patients_of, normalise_image_path, read_patient, read_split
from stepcot_jax.data.projections import LATERAL, name_projection
from stepcot_jax.data.record_table import RecordTable, find_first
from stepcot_jax.data.records.json_arrays import find_no_json, read_raw_records
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.text import shorten
from stepcot_jax.host.untrusted import Limits, exceeds, read_limits
from stepcot_jax.record import Record, SetAside

FILE_NAME = "data.json"
_MOST_OPTIONS = 1000
_LARGE_RECORD = 2**16
ONE_IMAGE = "a record is about one image, whose path is a text in image_path"
_LONGEST_MESSAGE = 200


class PublishedStep(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of `vqa_chain`; a missing answer means the same as null: not annotated."""

    step: str
    question: str
    options: tuple[str, ...]
    answer: str | None = None
    uncertain: bool | msgspec.UnsetType = msgspec.UNSET
    reasoning: str | None


class PublishedBox(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A finding's location, in pixels of the image file."""

    label: str
    x: Annotated[float, msgspec.Meta(ge=0)]
    y: Annotated[float, msgspec.Meta(ge=0)]
    width: Annotated[float, msgspec.Meta(gt=0)]
    height: Annotated[float, msgspec.Meta(gt=0)]
    sentence: str = ""


class Addition(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Our additional fields of a case, under one key that collides with no other field."""

    boxes: tuple[PublishedBox, ...] = ()
    sex: Literal["", "F", "M", "O"] = ""
    age: Annotated[float, msgspec.Meta(ge=0, le=150)] | None = None
    view: str = ""
    provenance: dict[str, str] = {}


NOTHING_ADDED = Addition()


class PublishedRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One entry of `data.json`; `stepcot_jax` is ours and optional."""

    patient_id: str | int
    split: str | None = None
    image_path: str
    origin: str | None
    report: str | None
    vqa_chain: tuple[PublishedStep, ...]
    stepcot_jax: Addition | None = None


class _Identity(msgspec.Struct):
    patient_id: object = None
    image_path: object = None


_DECODER = msgspec.json.Decoder(PublishedRecord)
_IDENTITY_DECODER = msgspec.json.Decoder(_Identity)


def decode_record(raw: bytes) -> PublishedRecord:
    """Decode one record."""
    try:
        record = _DECODER.decode(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        field, message = (part[:_LONGEST_MESSAGE] for part in split_message(error, raw))
        if field == "image_path" and "array" in message:
            message += f"; {ONE_IMAGE}"
        raise BadInput(f"{field}: {message}" if field else message) from error
    if len(raw) > _LARGE_RECORD:  # comparing lengths takes as long as decoding
        _check_lengths(record, read_limits())
    return record


def split_message(error: Exception, content: bytes = b"") -> tuple[str, str]:
    """Return the field that an error of msgspec about a content names, "" if none, and the rest of its message."""
    if not isinstance(error, msgspec.ValidationError) and (found := find_no_json(content)):
        return found
    message, _, field = str(error).partition(" - at `$")
    return field.rstrip("`").lstrip("."), message


def _check_lengths(record: PublishedRecord, limits: Limits) -> None:
    added = record.stepcot_jax or NOTHING_ADDED
    names = [("patient_id", str(record.patient_id)), ("image_path", record.image_path), ("origin", record.origin)]
    names.append(("split", record.split))
    texts = [("report", record.report)]
    for index, entry in enumerate(record.vqa_chain):
        where = f"vqa_chain[{index}]"
        if len(entry.options) > _MOST_OPTIONS:
            raise BadInput(f"{where}.options: {len(entry.options)} options; at most {_MOST_OPTIONS} are accepted")
        names += [(f"{where}.step", entry.step), (f"{where}.answer", entry.answer)]
        names += [(f"{where}.options", option) for option in entry.options]
        texts += [(f"{where}.question", entry.question), (f"{where}.reasoning", entry.reasoning)]
    for box in added.boxes:
        names.append(("stepcot_jax.box.label", box.label))
        texts.append(("stepcot_jax.box.sentence", box.sentence))
    names.append(("stepcot_jax.view", added.view))
    names += [("stepcot_jax.provenance", part) for pair in added.provenance.items() for part in pair]
    for fields, limit, most in ((names, "name", limits.name), (texts, "text", limits.text)):
        for field, text in fields:
            if text is not None and len(text) > most:
                raise exceeds(field, f"{shorten(text)!r} has {len(text)} characters", limit)


def identify(raw: bytes) -> tuple[str, str]:
    """Return patient and image path of a record that may be invalid, "" for one that cannot be read."""
    try:
        identity = _IDENTITY_DECODER.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return "", ""
    patient = str(identity.patient_id) if isinstance(identity.patient_id, str | int) else ""
    path, most = identity.image_path if isinstance(identity.image_path, str) else "", read_limits().name
    return patient if len(patient) <= most else shorten(patient), path if len(path) <= most else shorten(path)


# Turn one record of the published layout into a case: locate its image, order its steps, read its labels.

_STEP_LABEL = re.compile(r"step\s*([0-9]{1,4})(?:\s*[:.-].*)?", re.IGNORECASE | re.DOTALL)
_ADDRESS = re.compile(r"\s*(?:[A-Za-z][A-Za-z0-9+.-]+:/|data:image/|//?www\.|www\.)")
_NUM_SHOWN = 80
_MOST_REMEMBERED = 4096
_LONGEST_REMEMBERED = 10_000


class MissingImage(BadInput):
    """A record's image file does not exist."""


def fold_name(name: str) -> str:
    """Return a file's name with Unicode form and letter case normalised."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


class _Cache(dict[Any, Any]):
    def keep(self, key: Any, value: Any, *, num_chars: int = 0) -> None:
        if num_chars <= _LONGEST_REMEMBERED:
            if len(self) >= _MOST_REMEMBERED:
                self.clear()
            self[key] = value


class ImageLocator:
    """Locates images below a data root, which may be a link itself, and refuses paths that leave it."""

    def __init__(self, root: Path, *, require_images: bool) -> None:
        self._root = os.path.realpath(root)
        self._require_images = require_images
        self._folders, self._names = _Cache(), _Cache()

    def locate(self, image_path: str) -> str:
        """Return the image's path with every link resolved."""
        shown = repr(image_path[:_NUM_SHOWN])
        if len(image_path) > (most := read_limits().name):
            raise BadInput(f"{shown} … has {len(image_path)} characters; at most {most} are accepted")
        if not PLAIN_PATH.fullmatch(image_path):
            if _ADDRESS.match(image_path):
                raise BadInput(f"{shown} is an address; addresses are not fetched: download the image first")
            windows = PureWindowsPath(image_path)
            if windows.drive or windows.root or ".." in windows.parts or not windows.parts:
                raise BadInput(f"{shown} must be a path below the data root (not empty, not absolute, without '..')")
        try:
            return self._follow(normalise_image_path(image_path), shown=shown)
        except (OSError, ValueError) as error:
            if isinstance(error, BadInput):
                raise
            raise BadInput(f"{shown} cannot be read as a path of an image file ({error})") from error

    def _follow(self, normal_path: str, *, shown: str) -> str:
        folder, name = os.path.split(normal_path)
        if folder not in self._folders:
            # Resolving the links of every image would take most of the time of reading the records.
            self._folders.keep(folder, os.path.realpath(os.path.join(self._root, folder)))  # noqa: PTH118
        real_path = os.path.join(self._folders[folder], name)  # noqa: PTH118
        if os.path.islink(real_path):  # noqa: PTH114
            real_path = os.path.realpath(real_path)
        if not real_path.startswith(os.path.join(self._root, "")):  # noqa: PTH118
            raise BadInput(f"{shown} is a link out of the data root; images must lie below it (cp -rL copies them)")
        if self._require_images:
            try:
                is_file = stat.S_ISREG(os.stat(real_path).st_mode)  # noqa: PTH116
            except FileNotFoundError:
                near = self._find_near(normal_path)
                raise MissingImage(f"{shown} does not exist below the data root{near}") from None
            if not is_file:
                raise BadInput(f"{shown} is not a file; an image below the data root is required")
        return real_path

    def _find_near(self, normal_path: str) -> str:
        """Return the end of a message that names a file whose name differs in Unicode form or letter case."""
        folder = ""
        for name in normal_path.split("/"):
            if folder not in self._names:
                try:
                    names = os.listdir(os.path.join(self._root, folder))  # noqa: PTH118, PTH208
                except OSError:
                    return ""
                self._names.keep(folder, {fold_name(near): near for near in names})
            if (near := self._names[folder].get(fold_name(name))) is None:
                return ""
            folder = f"{folder}/{near}" if folder else near
        return f"; {folder[:_NUM_SHOWN]!r} does: its name differs in Unicode form or letter case"


class RecordReader:
    """Reads single records; caches steps and labels, which repeat in nearly every record."""

    def __init__(self, root: Path, *, step_names: Sequence[str], require_images: bool) -> None:
        self._locator = ImageLocator(root, require_images=require_images)
        self._step_names = tuple(step_names)
        self._steps, self._orders, self._labels = _Cache(), _Cache(), _Cache()

    def read(self, record: PublishedRecord) -> tuple[Record, tuple[Step, ...], str]:
        """Return a record as a case, its steps as it writes them, and its image with every link resolved."""
        patient_id = read_patient(written := str(record.patient_id))
        if not patient_id.strip():
            what = "means a missing value" if written.strip() else "is blank"
            raise BadInput(f"patient_id: {written[:_NUM_SHOWN]!r} {what}; a patient's identifier is required")
        try:
            real_path = self._locator.locate(record.image_path)
        except BadInput as error:
            raise type(error)(f"image_path: {error}") from error
        entries = self._order(record.vqa_chain)
        steps, labels = [], []
        for position, index in enumerate(entries):
            steps.append(self._read_step(record.vqa_chain[index], position=position, index=index))
            labels.append(self._read_label(record.vqa_chain[index], step=steps[-1], index=index))
        added = record.stepcot_jax or NOTHING_ADDED
        marks = [record.vqa_chain[index].uncertain is True for index in entries]
        for index, label, mark in zip(entries, labels, marks, strict=True):
            if mark and label == NOT_ANNOTATED:
                raise BadInput(f"vqa_chain[{index}].uncertain: true without an answer; expected the possible answer")
        case = Record(
            patient=patient_id,
            image=normalise_image_path(record.image_path),
            origin=record.origin or "",
            split="" if record.split is None else read_split(record.split),
            report=record.report or "",
            answers=tuple(labels),
            reasoning=tuple([record.vqa_chain[index].reasoning or "" for index in entries]),
            boxes=tuple([Box.of_size(**msgspec.structs.asdict(box)) for box in added.boxes]),
            sex=added.sex,
            age=added.age,
            view=added.view,
            provenance=dict(sorted(added.provenance.items())),
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
            shown = [name[:_NUM_SHOWN] for name in names[:26]]
            raise BadInput(
                f"vqa_chain: {len(entries)} steps {shown} are not the expected {len(expected)}, each once: {expected}; "
                "config.data.step_names (of data check --step-names) names those of another chain"
            )
        order = sorted(range(len(numbers)), key=numbers.__getitem__)
        self._orders.keep(names, order, num_chars=sum(map(len, names)))
        return order

    def _read_step(self, entry: PublishedStep, *, position: int, index: int) -> Step:
        key = (position, entry.question, entry.options)
        step: Step | None = self._steps.get(key)
        if step is None:
            try:
                step = Step(self._step_names[position], entry.question, read_options(entry.options))
            except BadInput as error:
                raise BadInput(f"vqa_chain[{index}].options: {error}") from error
            self._steps.keep(key, step, num_chars=len(entry.question) + sum(map(len, entry.options)))
        return step

    def _read_label(self, entry: PublishedStep, *, step: Step, index: int) -> int:
        key = (entry.options, entry.answer)
        label: int | None = self._labels.get(key)
        if label is None:
            try:
                label = step.read_answer(entry.answer)
            except BadInput as error:
                raise BadInput(f"vqa_chain[{index}].answer: {error}") from error
            self._labels.keep(key, label, num_chars=len(entry.answer or "") + sum(map(len, entry.options)))
        return label


# Some checks need all records: the option set that most share, and images named twice.

_LOG = logging.getLogger(__name__)
_MOST_KEPT = 100_000_000
_COST_OF_STEPS = 2_000
_MOST_WORDINGS = 1000
Options = tuple[tuple[str, ...], ...]


@dataclasses.dataclass
class Scan:
    """The records of a data root. An index counts the records that are valid by themselves."""

    root: Path  # folder that the image paths start from
    file: Path  # the file with the records
    table: RecordTable  # the records that are valid by themselves
    numbers: Sequence[int]  # position in the file of each of them, from 0
    set_aside: Callable[[SetAside], None]  # takes the records that are set aside
    good: Bool[np.ndarray, " record"]  # which of `table` are not set aside
    chain: Chain | None = None  # the chain of most records; None if no record is valid
    reference: int = 0  # the first record with these options
    questions: list[int] = dataclasses.field(default_factory=list)  # hash of each record's questions
    num_wordings: tuple[int, ...] = ()  # for each step, the number of wordings of its question; 1000 stands for more
    num_found: int | None = None  # records whose image exists; None if not looked for
    num_missing: int = 0
    num_other_options: int = 0  # records whose options are not those of most
    num_repeated: int = 0  # records whose image an earlier one has
    is_frontal: bool = True  # whether lateral views are set aside

    def drop(self, index: int, reason: str, *, by_rule: bool = False) -> None:
        """Set a valid record aside."""
        self.good[index] = False
        path, patient = self.table.image_paths[index], self.table.patient_ids[index]
        self.set_aside(SetAside(self.numbers[index], path, reason, patient, by_rule))

    def count_other_wordings(self) -> int:
        """Count the good records whose questions differ from those of the first."""
        hashes = list(itertools.compress(self.questions, self.good))
        return sum(other != hashes[0] for other in hashes)


def scan_records(
    root: Path,
    set_aside: Callable[[SetAside], None],
    *,
    step_names: Sequence[str],
    require_images: bool,
    with_texts: bool,
    visit: Callable[[int], None] | None = None,
) -> Scan:
    """Read `root/data.json` record by record."""
    path = Path(root) / FILE_NAME
    reader = RecordReader(Path(root), step_names=step_names, require_images=require_images)
    kinds, images, cases, numbers = _OptionKinds(path), list[str](), list[Record](), array.array("q")
    scan = Scan(Path(root), path, RecordTable(), numbers, set_aside, np.ones(0, bool))
    wordings: list[set[str]] = [set() for _ in step_names]
    laterals: list[int] = []
    last_steps: tuple[Step, ...] = ()
    for index, raw in enumerate(read_raw_records(path, visit=visit)):
        try:
            case, steps, real_path = reader.read(decode_record(raw))
        except BadInput as error:
            patient_id, image_path = identify(raw)
            set_aside(SetAside(index, image_path, str(error), patient_id))
            scan.num_missing += isinstance(error, MissingImage)
            continue
        kinds.append(steps, index)
        images.append(real_path)
        if name_projection(case.view) == "lateral":
            laterals.append(len(numbers))
        cases.append(case if with_texts else _without_texts(case))
        numbers.append(index)
        scan.questions.append(hash(tuple([step.question for step in steps])))
        if steps != last_steps:
            last_steps = steps
            for seen, step in zip(wordings, steps, strict=True):
                if len(seen) < _MOST_WORDINGS:
                    seen.add(step.question)
    scan.table, scan.good = RecordTable(cases), np.ones(len(numbers), bool)
    scan.num_wordings = tuple(map(len, wordings))
    scan.num_found = len(numbers) if require_images else None
    if len(numbers):
        _compare(scan, kinds, images)
        scan.table, sentence = join_patients_of(scan.table)
        if sentence:
            _LOG.warning("%s: %s", path, sentence)
    scan.is_frontal = len(laterals) < len(numbers)
    for index in laterals if scan.is_frontal else ():
        if scan.good[index]:
            scan.drop(index, f"stepcot_jax.view: {LATERAL}", by_rule=True)
    return scan


def _without_texts(case: Record) -> Record:
    boxes = tuple([msgspec.structs.replace(box, sentence="") for box in case.boxes])
    return msgspec.structs.replace(case, report="", reasoning=(), provenance={}, boxes=boxes)


class _OptionKinds:
    """The option sets of records, numbered in the order of their first records."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.kinds = array.array("i")
        self._kind_of: dict[Options, int] = {}
        self._kind_of_folded: dict[Options, int] = {}
        self.steps: list[tuple[Step, ...]] = []
        self._num_kept = 0

    def append(self, steps: tuple[Step, ...], index: int) -> None:
        options = tuple([step.options for step in steps])
        kind = self._kind_of.get(options)
        if kind is None:
            self._num_kept += _COST_OF_STEPS + sum(len(option) for step in steps for option in step.options)
            if self._num_kept > _MOST_KEPT:
                raise BadInput(
                    f"{self._path}: the first {index} records have {len(self._kind_of)} different lists of options; "
                    "all records must have the same"
                )
            kind = self._kind_of_folded.setdefault(_fold_options(steps), len(self.steps))
            self._kind_of[options] = kind
            if kind == len(self.steps):
                self.steps.append(steps)
        self.kinds.append(kind)


def _compare(scan: Scan, kinds: _OptionKinds, images: Sequence[str]) -> None:
    """Set aside the records with other options than most, and those that repeat an image."""
    kind_of = np.array(kinds.kinds)
    usual = int(np.argmax(np.bincount(kind_of)))  # the first record's on a tie
    agrees = kind_of == usual
    indices = np.flatnonzero(agrees)
    original = np.arange(len(kind_of))
    original[indices] = indices[find_first(itertools.compress(images, agrees))]
    scan.chain, scan.reference = Chain(kinds.steps[usual]), int(indices[0])
    for index in np.flatnonzero(~agrees | (original != np.arange(len(original)))).tolist():
        if agrees[index]:
            scan.num_repeated += 1
            known = int(original[index])
            reason = f"image_path: the image of record {scan.numbers[known]} ({_name(scan, known)}) is named again"
        else:
            scan.num_other_options += 1
            reason = _describe_difference(scan, kinds.steps[kind_of[index]], kinds.steps[usual])
        scan.drop(index, reason)


def _describe_difference(scan: Scan, steps: Sequence[Step], usual: Sequence[Step]) -> str:
    pairs = enumerate(zip(_fold_options(steps), _fold_options(usual), strict=True))
    index = next(index for index, (folded, expected) in pairs if folded != expected)
    options, expected = ([option[:_NUM_SHOWN] for option in chain[index].options] for chain in (steps, usual))
    return (
        f"step {index + 1} ({steps[index].name}): options {options} differ from {expected} in record "
        f"{scan.numbers[scan.reference]} ({_name(scan, scan.reference)}); all records must have the same"
    )


def _fold_options(steps: Sequence[Step]) -> Options:
    return tuple(tuple(fold(option) for option in step.options) for step in steps)


def _name(scan: Scan, index: int) -> str:
    return f"image_path {scan.table.image_paths[index][:_NUM_SHOWN]!r}"
