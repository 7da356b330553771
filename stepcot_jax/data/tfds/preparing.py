"""Prepare a folder in the published layout: its cases, splits and image files, and the cases as examples."""

import dataclasses
import functools
import hashlib
import json
import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from stepcot_jax.chain import NOT_ANNOTATED
from stepcot_jax.data.images.image_decoding import MAX_PIXELS
from stepcot_jax.data.images.image_files import ImageFiles, check_images, folder_files
from stepcot_jax.data.images.near_duplicates import find_near_duplicates, perceptual_hash
from stepcot_jax.data.records.data_json import FILE_NAME
from stepcot_jax.data.records.records import PUBLISHED_STEP_NAMES, Collection, OnBadRecord, read_records
from stepcot_jax.data.splits.making import PUBLISHED_FRACTIONS, make_splits
from stepcot_jax.data.splits.split_resolver import find_tables, read_splits
from stepcot_jax.data.splits.splits import Splits
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import digest_file
from stepcot_jax.host.text import install_extra
from stepcot_jax.record import Record


@dataclasses.dataclass(frozen=True)
class Reading:
    """How a folder is read; part of the identity of a prepared dataset."""

    step_names: tuple[str, ...] = PUBLISHED_STEP_NAMES  # name of each step, in order
    on_bad_record: OnBadRecord = "stop"  # "stop" at a bad record or image, or "skip" it: set it aside with its reason
    max_pixels: int = MAX_PIXELS  # largest accepted width times height of an image
    split_seed: int = 0  # for new splits, made if the folder has no split tables
    split_fractions: tuple[float, float, float] = PUBLISHED_FRACTIONS  # shares of train, val and test of new splits
    near_duplicate_radius: int = 0  # new splits keep images together whose hashes differ in at most this many bits

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
    collection = read_records(root, step_names=reading.step_names, on_bad_record=reading.on_bad_record)
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


def identify_source(root: Path, reading: Reading) -> str:
    """Return the SHA-256 of the records, the split tables and the reading settings; `BadInput` if unreadable."""
    digest = hashlib.sha256(msgspec.json.encode(reading))
    tables = find_tables(root) or {}
    for path in (root / FILE_NAME, *(tables[name] for name in sorted(tables))):
        digest.update(digest_of_file(path).encode())
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
