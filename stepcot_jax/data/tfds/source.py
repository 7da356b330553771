"""Prepare a folder in the published layout for tensorflow_datasets, and open a prepared dataset.

Next to the shards are `data.json`, `quarantine.jsonl` and `step_cot.json`, which is written last.
"""

import dataclasses
import functools
import hashlib
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from stepcot_jax.chain import NOT_ANNOTATED
from stepcot_jax.data.dataset import write_quarantine
from stepcot_jax.data.images.image_decoding import MAX_PIXELS, most_bytes
from stepcot_jax.data.images.image_files import ImageFiles, check_images, folder_files
from stepcot_jax.data.records.data_json import FILE_NAME
from stepcot_jax.data.records.records import (
    PUBLISHED_STEP_NAMES,
    Collection,
    OnBadRecord,
    read_records,
    write_records,
)
from stepcot_jax.data.sources.layout_table import AUTO, CaseLayout
from stepcot_jax.data.sources.layouts import read_source
from stepcot_jax.data.splits.making import PUBLISHED_FRACTIONS, make_splits
from stepcot_jax.data.splits.near_duplicates import find_near_duplicates, perceptual_hash
from stepcot_jax.data.splits.split_resolver import find_tables, read_splits
from stepcot_jax.data.splits.splits import SPLIT_NAMES, Splits, check_splits
from stepcot_jax.data.tfds.shards import Location, ShardFiles, check_size
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import MAX_LISTING_BYTES, digest_file
from stepcot_jax.host.own_folder import load, save
from stepcot_jax.host.ranges import Count
from stepcot_jax.host.text import install_extra
from stepcot_jax.record import Record, SetAside


@dataclasses.dataclass(frozen=True)
class Reading:
    """How a folder is read; part of the identity of a prepared dataset."""

    step_names: tuple[str, ...] = PUBLISHED_STEP_NAMES  # name of each step, in order
    on_bad_record: OnBadRecord = "stop"  # "stop" at a bad record or image, or "skip" it: set it aside with its reason
    max_pixels: int = MAX_PIXELS  # largest accepted width times height of an image
    split_seed: int = 0  # for new splits, made if the folder has no split tables
    split_fractions: tuple[float, float, float] = PUBLISHED_FRACTIONS  # shares of train, val and test of new splits
    near_duplicate_radius: int = 0  # new splits keep images together whose hashes differ in at most this many bits
    layout: CaseLayout = AUTO  # "auto" detects it

    def __post_init__(self) -> None:
        if self.on_bad_record not in ("stop", "skip"):
            raise BadInput(f"on_bad_record: {self.on_bad_record!r} is not 'stop' or 'skip'")


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A dataset that is prepared or to be prepared."""

    collection: Collection  # the cases with readable images in the order of `data.json`
    splits: Splits
    splits_source: str  # where the splits come from, in words
    images: ImageFiles  # the encoded image of each case


def gather(root: Path, reading: Reading) -> Prepared:
    """Read the records of a folder, decode every image once, and read or make the splits."""
    collection = _read(root, reading)
    if collection.chain.is_tree:
        raise BadInput(f"{root}: a tree of questions; a prepared dataset holds a chain of steps")
    root = collection.root
    with_tables = find_tables(root) is not None
    hashes: list[np.uint64] = []
    hashing = bool(reading.near_duplicate_radius) and not with_tables
    collection = check_images(
        collection,
        on_bad_record=reading.on_bad_record,
        max_pixels=reading.max_pixels,
        visit=(lambda _, pixels: hashes.append(perceptual_hash(pixels))) if hashing else None,
    )
    splits = read_splits(root, collection.cases, set_aside=collection.set_aside)
    source = "the folder's tables"
    if splits is None:
        joined = find_near_duplicates(np.array(hashes), radius=reading.near_duplicate_radius) if hashing else ()
        seed, fractions = reading.split_seed, reading.split_fractions
        splits = make_splits(collection.cases, seed=seed, fractions=fractions, joined=joined)
        source = f"made from seed {seed}, {fractions}, near-duplicate radius {reading.near_duplicate_radius}"
    return Prepared(collection, splits, source, folder_files(collection, max_pixels=reading.max_pixels))


def _read(root: Path, reading: Reading) -> Collection:
    how: Any = {"layout": reading.layout, "step_names": reading.step_names, "on_bad_record": reading.on_bad_record}
    return read_source(root, **how)


def identify_source(root: Path, reading: Reading) -> str:
    """Return the SHA-256 of the records, the split tables and the reading settings; `BadInput` if unreadable."""
    settings = dataclasses.asdict(reading)
    if reading.layout == AUTO:
        del settings["layout"]  # of which datasets of before know nothing
    digest = hashlib.sha256(msgspec.json.encode(settings))
    if reading.layout in (AUTO, "published") and (root / FILE_NAME).is_file():
        digest.update(digest_of_file(root / FILE_NAME).encode())
    else:
        for case in _read(root, reading).cases:
            digest.update(msgspec.json.encode(case))
    tables = find_tables(root if root.is_dir() else root.parent) or {}
    for name in sorted(tables):
        digest.update(digest_of_file(tables[name]).encode())
    return digest.hexdigest()


def digest_of_file(path: Path) -> str:
    """Return the SHA-256 of a file in hex; `BadInput` if it cannot be read."""
    try:
        return digest_file(path)[1]
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror})") from None


def import_tfds() -> Any:
    """Return the module tensorflow_datasets; `BadInput` if it is not installed."""
    try:
        import importlib_resources  # noqa: F401 - tensorflow_datasets needs it and does not say so
        import tensorflow_datasets
    except ImportError as error:
        raise BadInput(
            f"tensorflow_datasets is required and cannot be imported ({error}): {install_extra('tfds')}"
        ) from None
    return tensorflow_datasets


def make_features() -> Any:
    """Return the features of an example, a `FeaturesDict`."""
    features = import_tfds().features
    text = features.Text
    return features.FeaturesDict(
        {
            "image": features.Tensor(shape=(), dtype=np.object_, doc="Content of the PNG or JPEG file."),
            "image_path": text(doc="Path of the file in the published folder."),
            "patient_id": text(doc="No patient is in two splits."),
            "origin": text(doc="Collection the image comes from."),
            "report": text(doc="The radiologist's report."),
            "labels": features.Tensor(shape=(None,), dtype=np.int32, doc="Label of each step; -100: not annotated."),
            "uncertain": features.Tensor(
                shape=(None,), dtype=np.int32, doc="Label of each step's uncertain answer; -100 elsewhere."
            ),
            "reasoning": features.Sequence(text(), doc="Reason given for each step's answer."),
            "boxes": features.Sequence(
                {"label": text(), **dict.fromkeys(("x", "y", "width", "height"), np.float64), "sentence": text()},
                doc="Where findings are, in pixels of the image.",
            ),
            "sex": text(doc="F, M, O or empty."),
            "age": features.Scalar(np.float64, doc="In years; NaN where unknown."),
            "view": text(doc="Projection, such as PA."),
            "provenance": text(doc="How the answers came about: JSON, names to values."),
        }
    )


@functools.cache
def _image_features() -> Any:
    """The image alone: parsing the other features would only cost time."""
    return import_tfds().features.FeaturesDict({"image": make_features()["image"]})


def read_image(example: bytes) -> bytes:
    """Return the content of the image file in a serialised example."""
    return _image_features().deserialize_example_np(example)["image"]


def make_example(case: Record, content: bytes) -> dict[str, Any]:
    """Return the values of a case's features; `content` is that of its image file."""
    boxes = [
        {
            "label": box.label,
            **dict(zip(("x", "y", "width", "height"), map(float, (box.x1, box.y1, *box.size)), strict=True)),
            "sentence": box.sentence,
        }
        for box in case.boxes
    ]
    return {
        "image": content,
        "image_path": case.image,
        "patient_id": case.patient,
        "origin": case.origin,
        "report": case.report,
        "sex": case.sex,
        "view": case.view,
        "labels": np.array(case.answers, np.int32),
        "uncertain": np.array(case.uncertain or (NOT_ANNOTATED,) * len(case.answers), np.int32),
        "reasoning": list(case.reasoning),
        "boxes": boxes,
        "age": math.nan if case.age is None else float(case.age),
        "provenance": json.dumps(case.provenance, ensure_ascii=False),
    }


NAME = "step_cot"
VERSION = "1.1.0"
CONTENTS_NAME = "step_cot.json"
QUARANTINE_NAME = "quarantine.jsonl"
_EXPECTED = "expected what `stepcot_jax.data.tfds` prepared"


class Shard(msgspec.Struct, frozen=True, kw_only=True):
    """One ArrayRecord file; its records are the next ones of its split."""

    file: Annotated[str, msgspec.Meta(pattern="^[^/\\\\]+$")]
    split: Literal["train", "val", "test"]
    num_bytes: int
    num_records: Count


class Contents(msgspec.Struct, frozen=True, kw_only=True):
    """A prepared dataset apart from its images.

    `source` is the result of `identify_source` for the folder it was prepared from, `records` the SHA-256 of the
    `data.json` next to it. `sizes` and `digests` (SHA-256) describe each case's image file, in the order of that
    `data.json`; `splits` has indices into the same order.
    """

    source: str
    records: str
    step_names: tuple[str, ...]
    splits: dict[str, tuple[int, ...]]
    splits_source: str
    shards: tuple[Shard, ...]
    sizes: tuple[int, ...]
    digests: tuple[str, ...]
    set_aside: tuple[SetAside, ...]

    def locate(self, paths: Sequence[str]) -> list[Location]:
        """Return the location of each case's image; `paths` has their image paths."""
        # Shards follow each other as the splits do.
        cases = [case for name in SPLIT_NAMES for case in self.splits[name]]
        records = [(shard.file, record) for shard in self.shards for record in range(shard.num_records)]
        place = dict(zip(cases, records, strict=True))
        images = enumerate(zip(paths, self.sizes, self.digests, strict=True))
        return [Location(path, *place[case], size, digest) for case, (path, size, digest) in images]


def write_contents(
    folder: Path, gathered: Prepared, *, source: str, shards: Sequence[Shard], images: dict[int, tuple[int, str]]
) -> None:
    """Write the files next to the shards, `step_cot.json` last."""
    collection, splits = gathered.collection, gathered.splits.by_name()
    for name, indices in splits.items():
        num_records = sum(shard.num_records for shard in shards if shard.split == name)
        if num_records != len(indices):
            raise BadInput(f"{folder}: {num_records} records of split {name} were written instead of {len(indices)}")
    write_records(folder, chain=collection.chain, cases=collection.cases)
    if collection.set_aside:
        write_quarantine(folder / QUARANTINE_NAME, collection.set_aside)
    order = [images[index] for index in range(len(collection.cases))]
    contents = Contents(
        source=source,
        records=digest_of_file(folder / FILE_NAME),
        step_names=tuple(step.name for step in collection.chain.steps),
        splits=splits,
        splits_source=gathered.splits_source,
        shards=tuple(shards),
        sizes=tuple(size for size, _ in order),
        digests=tuple(digest for _, digest in order),
        set_aside=collection.set_aside,
    )
    save(folder / CONTENTS_NAME, contents)


def read_contents(folder: Path) -> Contents:
    """Read `step_cot.json` and check the sizes of the shards."""
    path = folder / CONTENTS_NAME
    contents = load(path, Contents, max_bytes=MAX_LISTING_BYTES)
    for shard in contents.shards:
        check_size(folder / shard.file, shard.num_bytes)
    return contents


def read_collection(folder: Path, contents: Contents) -> tuple[Collection, Splits]:
    """Read the cases next to the shards, those set aside, and the splits; `BadInput` if the records have changed."""
    path = folder / FILE_NAME
    if digest_of_file(path) != contents.records:
        raise BadInput(f"{path}: the records have changed since they were prepared; {_EXPECTED}, unaltered")
    collection = read_records(folder, step_names=contents.step_names, require_images=False)
    splits = Splits(**contents.splits)
    check_splits(splits, collection.cases, source=str(folder / CONTENTS_NAME))
    return Collection(folder, collection.chain, collection.cases, contents.set_aside), splits


def open_prepared(folder: Path, *, max_pixels: int = MAX_PIXELS) -> Prepared:
    """Open a prepared dataset."""
    import_tfds()
    prepared = find_prepared(folder)
    contents = read_contents(prepared)
    collection, splits = read_collection(prepared, contents)
    locations = contents.locate([case.image for case in collection.cases])
    images = ShardFiles(prepared, locations, max_bytes=most_bytes(max_pixels), unpack=read_image)
    return Prepared(collection, splits, contents.splits_source, images)


def find_prepared(folder: Path) -> Path:
    """Return the folder of the prepared dataset: `folder` itself, or the one of our version in a `data_dir`."""
    folder = Path(folder)
    for candidate in (folder, folder / VERSION, folder / NAME / VERSION):
        if (candidate / CONTENTS_NAME).is_file():
            return candidate
    raise BadInput(
        f"{folder}: no prepared dataset (neither {CONTENTS_NAME} nor {NAME}/{VERSION}/{CONTENTS_NAME}); "
        "prepare one with `stepcot data tfds`"
    )


def check_prepared_from(folder: Path, root: Path, reading: Reading | None = None) -> None:
    """Raise `BadInput` if a dataset was prepared from other data than those of `root`, or with other settings."""
    if read_contents(find_prepared(folder)).source != identify_source(Path(root), reading or Reading()):
        raise BadInput(
            f"{folder}: the dataset was prepared from other records, splits or settings than those of {root}; "
            "delete it or prepare to another folder"
        )
