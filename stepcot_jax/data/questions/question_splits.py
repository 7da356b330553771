"""Splits of questions: patients that no file names, pictures that stand in several splits, and splits that are made."""

import collections
import dataclasses
import hashlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

from stepcot_jax.data.images.image_decoding import MAX_PIXELS, most_bytes
from stepcot_jax.data.images.image_files import read_picture
from stepcot_jax.data.questions.record_files import VqaCollection
from stepcot_jax.data.questions.vocabulary import canonical
from stepcot_jax.data.splits.making import PUBLISHED_FRACTIONS, join_patients, split_by_patient
from stepcot_jax.data.splits.near_duplicates import find_near_duplicates
from stepcot_jax.data.splits.splits import SPLIT_NAMES, count_shared
from stepcot_jax.host.errors import BadInput
from stepcot_jax.record import Record

SEEN = "seen"
"""Fact of a validation or test record whose picture, or a near-duplicate of it, stands in the training part too."""

Shared = Literal["keep", "drop"]
_PREFIX = "picture-"
_LOG = logging.getLogger(__name__)


ONE_EACH = "expected one each, or no split in any record: patients are then dealt to splits"
TEST_HINT = "; a val part may be named test: validation is then taken from training"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SplitOptions:
    """How questions are split; `config.data` and `config.vqa` document the names."""

    fractions: tuple[float, ...] = PUBLISHED_FRACTIONS  # of train, val and test, where no record names a split
    seed: int = 0
    val_share: float = 0.15  # of the training patients, where a source has train and test alone
    shared: Shared = "keep"
    near_duplicate_radius: int = 0


def name_patients(records: Iterable[Record], root: Path) -> tuple[list[Record], int]:
    """Return records, and how many name no patient; the digest of the picture's file takes its place.

    A record whose patient is its image's path names none. Where the file is missing the path stays.
    """
    names, named, number = dict[str, str](), list[Record](), 0
    for record in records:
        if record.patient == record.image:
            number += 1
            if record.image not in names:
                names[record.image] = digest_picture(root, record.image)
            record = msgspec.structs.replace(record, patient=names[record.image])
        named.append(record)
    return named, number


def digest_picture(root: Path, image: str) -> str:
    """Return a name for the content of a picture's file; its path where the file cannot be read."""
    try:
        content = read_picture(root, image, max_bytes=most_bytes(MAX_PIXELS))
    except BadInput:
        return image
    return _PREFIX + hashlib.sha256(content).hexdigest()[:16]


def is_picture(patient: str) -> bool:
    """Return whether a patient is a picture's digest, so that it may stand in several splits."""
    return patient.startswith(_PREFIX)


def note_shared(records: Sequence[Record], path: Path, joined: Mapping[str, str] | None = None) -> tuple[Record, ...]:
    """Mark the validation and test records whose picture stands in the training part, and warn of them.

    `joined` gives the same name to the patients of near-duplicate pictures.
    """
    shared = _find_shared(records, joined or {})
    if not shared:
        return tuple(records)
    marked = [
        msgspec.structs.replace(record, facts={**record.facts, SEEN: "picture"})
        if record.split in ("val", "test") and "train" in shared.get(_name(record, joined), ())
        else record
        for record in records
    ]
    counts = collections.Counter(record.split for record in marked if SEEN in record.facts)
    parts = " and ".join(f"{number} of the {name} part" for name, number in sorted(counts.items())) or "none"
    what = f"{path}: {len(shared)} pictures stand in several splits; questions about a picture of the training part: "
    advice = "config.vqa.shared_pictures=drop takes the training part's questions about them away"
    _LOG.warning("%s%s; %s", what, parts, advice)
    return tuple(marked)


def _name(record: Record, joined: Mapping[str, str] | None) -> str:
    return (joined or {}).get(record.patient, record.patient)


def _find_shared(records: Iterable[Record], joined: Mapping[str, str]) -> dict[str, set[str]]:
    """Return the splits of pictures without a named patient, and of near-duplicates, that stand in several."""
    splits = collections.defaultdict(set)
    for record in records:
        if record.split and (is_picture(record.patient) or record.patient in joined):
            splits[_name(record, joined)].add(record.split)
    return {name: found for name, found in splits.items() if len(found) > 1}


def _drop_shared(records: Sequence[Record], joined: Mapping[str, str], path: Path) -> list[Record]:
    """Return records without the training and validation ones whose picture a later split has."""
    shared = _find_shared(records, joined)

    def is_repeated(record: Record) -> bool:
        later = SPLIT_NAMES[SPLIT_NAMES.index(record.split) + 1 :] if record.split else ()
        return not shared.get(_name(record, joined), set()).isdisjoint(later)

    kept = [record for record in records if not is_repeated(record)]
    if len(kept) < len(records):
        number = len(records) - len(kept)
        _LOG.warning("%s: %d questions left out: a later split has their picture (shared_pictures=drop)", path, number)
    return kept


def split_records(
    collection: VqaCollection, how: SplitOptions, *, hashes: Mapping[str, np.uint64] | None = None
) -> tuple[Record, ...]:
    """Return the records with their splits, by patient; with `shared` "drop" without those that a later split repeats.

    Splits that all records name are kept. If they name only "train" and "test", `val_share` of the training patients
    become "val" (GEMeX and VQA-RAD have no validation split). If no record names a split, all are made. Images are
    stratified by diagnosis, or else lesion, and origin; records of one image stay together. `hashes` are the
    perceptual hashes of the images: patients whose images differ in at most `near_duplicate_radius` bits count as one.
    """
    _check_patients(collection)
    records, path = collection.records, collection.path
    named = {record.split for record in records}
    if "" in named and len(named) > 1:
        number = sum(not record.split for record in records)
        raise BadInput(f"{path}: {number} of {len(records)} records have no split; expected all or none")
    joined = _join_duplicates(records, hashes or {}, radius=how.near_duplicate_radius, path=path)
    if joined and named != {""}:
        records = note_shared(records, path, joined)
    if how.shared == "drop" and named != {""}:
        records = tuple(_drop_shared(records, joined, path))
    names: tuple[str, ...] = SPLIT_NAMES
    shares = how.fractions
    if named == {"train", "test"}:
        names, shares = ("train", "val"), (1 - how.val_share, how.val_share)
    elif named != {""}:
        return records
    first = {record.image: record for record in records if record.split in ("", "train")}
    made = _make_splits(list(first.values()), joined, seed=how.seed, shares=shares, names=names, path=path)
    if named != {""}:
        number = sum(split == "val" for split in made.values())
        what = "%s: no validation split: %d of %d training pictures become it (config.vqa.val_share=%g)"
        _LOG.warning(what, path, number, len(made), how.val_share)
    splits = (made[record.image] if record.split in ("", "train") else record.split for record in records)
    return tuple(_with_split(record, split) for record, split in zip(records, splits, strict=True))


def _with_split(record: Record, split: str) -> Record:
    return msgspec.structs.replace(record, split=split)


def _check_patients(collection: VqaCollection) -> None:
    """Refuse an image of two patients, and named patients in two splits."""
    first: dict[str, Record] = {}
    for record, line in zip(collection.records, collection.lines, strict=True):
        other = first.setdefault(record.image, record)
        split_differs = other.split != record.split and not is_picture(record.patient)
        if other.patient != record.patient or split_differs:
            what = "patient" if other.patient != record.patient else "split"
            where = f"{collection.path}, {collection.unit} {line}"
            raise BadInput(f"{where}: {what} differs from that of {other.id[:80]!r}, which has the same image")
    members = {(image.patient, image.split) for image in first.values() if not is_picture(image.patient)}
    if number := count_shared(members):
        total = len({image.patient for image in first.values()})
        raise BadInput(f"{collection.path}: {number} of {total} patients are in more than one split; {ONE_EACH}")


def _join_duplicates(
    records: Sequence[Record], hashes: Mapping[str, np.uint64], *, radius: int, path: Path
) -> dict[str, str]:
    """Return one name for the patients whom near-duplicate pictures join; others are left out."""
    if not hashes:
        return {}
    images, of_patient = list(hashes), collections.defaultdict(list)
    patient_of = {record.image: record.patient for record in records}
    for number, image in enumerate(images):
        of_patient[patient_of[image]].append(number)
    pairs = find_near_duplicates(np.array(list(hashes.values()), np.uint64), radius=radius)
    groups = join_patients(sorted(of_patient), of_patient, pairs, num_cases=len(images))
    joined = {patient: group[0] for group in groups if len(group) > 1 for patient in group}
    if joined:
        what = "%s: near-duplicates within %d bits join %d patients to %d"
        _LOG.warning(what, path, radius, len(joined), len(set(joined.values())))
    return joined


def _make_splits(
    images: Sequence[Record],
    joined: Mapping[str, str],
    *,
    seed: int,
    shares: Sequence[float],
    names: Sequence[str],
    path: Path,
) -> dict[str, str]:
    """Return the split of each image."""
    strata = [image.facts.get("diagnosis") or canonical(image.lesion) for image in images]
    patients = [msgspec.structs.replace(image, patient=_name(image, joined)) for image in images]
    try:
        splits = split_by_patient(patients, strata, seed=seed, fractions=tuple(shares), names=names)
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from None
    return {image.image: split for image, split in zip(images, splits, strict=True)}
