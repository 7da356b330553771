"""What lies beside the shards of a prepared dataset: the records, and a list of what is where.

tensorflow_datasets writes the shards and what it needs to read them. Beside these stand `data.json` with the cases
that take part, in the published layout, so that nobody has to read all images to learn the labels; `quarantine.jsonl`
with those that do not; and `step_cot.json`, which says where each image is and what it must be. That one is written
last: where it is missing, nothing was prepared.
"""

import hashlib
from pathlib import Path

import msgspec

from stepcot_jax.data.records.data_json import FILE_NAME
from stepcot_jax.data.records.records import Collection, SetAside, read_records, write_quarantine, write_records
from stepcot_jax.data.splits.splits import SPLIT_NAMES, Splits, check_splits
from stepcot_jax.data.tfds.preparing import Gathered, hash_file
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import read_json, write_whole

NAME = "step_cot"
VERSION = "1.0.0"
CONTENTS_NAME = "step_cot.json"
QUARANTINE_NAME = "quarantine.jsonl"

_ACCEPTED = "accepted is what `stepcot_jax.data.tfds` prepared"


class Shard(msgspec.Struct, frozen=True, kw_only=True):
    """One ArrayRecord file; its records are the next ones of its split."""

    file: str
    split: str
    num_bytes: int
    num_records: int


class Contents(msgspec.Struct, frozen=True, kw_only=True):
    """All of a prepared dataset but the images.

    `source` is `gathering.identify_source` of the folder it was prepared from, `records` the SHA-256 of the `data.json`
    beside it; `sizes` and `digests` (SHA-256) are those of each case's image file, in the order of that `data.json`;
    `splits` has indices of the same order.
    """

    version: str = VERSION
    source: str
    records: str
    step_names: tuple[str, ...]
    splits: dict[str, tuple[int, ...]]
    splits_source: str
    shards: tuple[Shard, ...]
    sizes: tuple[int, ...]
    digests: tuple[str, ...]
    set_aside: tuple[SetAside, ...]


def write_account(folder: Path, gathered: Gathered) -> None:
    """Writes the cases and, if there are any, the records that were set aside."""
    collection = gathered.collection
    write_records(folder, chain=collection.chain, cases=collection.cases)
    if collection.set_aside:
        write_quarantine(folder / QUARANTINE_NAME, collection.set_aside)


def write_contents(
    folder: Path,
    gathered: Gathered,
    *,
    source: str,
    shard_lengths: dict[str, list[tuple[str, int]]],
    images: dict[int, tuple[int, str]],
) -> None:
    """Writes the list of what is where, after everything that it speaks of.

    Args:
      folder: of the shards.
      gathered: what was prepared.
      source: `identify_source` of where it comes from.
      shard_lengths: file name and number of records of each shard of each split, in order.
      images: size and SHA-256 of each case's image.

    Raises:
      BadInput: the shards do not hold as many records as the splits have cases.
    """
    for name, indices in gathered.splits.by_name().items():
        found = sum(length for _, length in shard_lengths[name])
        if found != len(indices):
            raise BadInput(f"{folder}: found {found} records written of split {name}, accepted are all {len(indices)}")
    order = [images[index] for index in range(len(gathered.collection.cases))]
    contents = Contents(
        source=source,
        records=hash_file(folder / FILE_NAME),
        step_names=tuple(step.name for step in gathered.collection.chain.steps),
        splits=gathered.splits.by_name(),
        splits_source=gathered.splits_source,
        shards=tuple(
            Shard(file=file, split=name, num_bytes=(folder / file).stat().st_size, num_records=length)
            for name in SPLIT_NAMES
            for file, length in shard_lengths[name]
        ),
        sizes=tuple(size for size, _ in order),
        digests=tuple(digest for _, digest in order),
        set_aside=gathered.collection.set_aside,
    )
    write_whole(folder / CONTENTS_NAME, msgspec.json.encode(contents))


def read_contents(folder: Path) -> Contents:
    """The list of what is where, checked against the shards' sizes.

    Raises:
      BadInput: it is missing or damaged, of another version, or a shard is missing, truncated or too long.
    """
    path = folder / CONTENTS_NAME
    contents = read_json(path, Contents, accepted=_ACCEPTED)
    if contents.version != VERSION:
        raise BadInput(f"{path}: found version {contents.version[:20]!r}, accepted is {VERSION}: prepare it anew")
    num_cases = len(contents.digests)
    lengths = dict.fromkeys(SPLIT_NAMES, 0)
    for shard in contents.shards:
        if Path(shard.file).name != shard.file or shard.split not in lengths or shard.num_records < 1:
            raise BadInput(f"{path}: found a shard {shard.file[:80]!r} that cannot be; {_ACCEPTED}")
        lengths[shard.split] += shard.num_records
    members = [index for name in SPLIT_NAMES for index in contents.splits.get(name, ())]
    whole = sorted(members) == list(range(num_cases)) and len(contents.sizes) == num_cases
    if not whole or lengths != {name: len(indices) for name, indices in contents.splits.items()}:
        raise BadInput(f"{path}: found splits, shards and images that do not agree in number; {_ACCEPTED}")
    for shard in contents.shards:
        _check_size(folder / shard.file, shard.num_bytes)
    return contents


def _check_size(path: Path, num_bytes: int) -> None:
    try:
        found = path.stat().st_size
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror}), accepted is the shard as prepared") from None
    if found != num_bytes:
        raise BadInput(
            f"{path}: found {found} bytes, accepted is the shard as it was prepared, of {num_bytes} bytes: copy it "
            "again or prepare the dataset anew"
        )


def read_collection(folder: Path, contents: Contents) -> tuple[Collection, Splits]:
    """The cases beside the shards, with those set aside, and their splits.

    Raises:
      BadInput: the records are not those that were prepared.
    """
    path = folder / FILE_NAME
    if hash_file(path) != contents.records:
        raise BadInput(f"{path}: found other records than were prepared; {_ACCEPTED}, unaltered")
    found = read_records(folder, step_names=contents.step_names, require_images=False)
    if len(found.cases) != len(contents.digests):
        raise BadInput(f"{path}: found {len(found.cases)} cases, accepted are the {len(contents.digests)} prepared")
    splits = Splits(**contents.splits)
    check_splits(splits, found.cases, source=str(folder / CONTENTS_NAME))
    return Collection(folder, found.chain, found.cases, contents.set_aside), splits


def digest_image(content: bytes) -> tuple[int, str]:
    """Size and SHA-256 of an image file's content, as `Contents` keeps them."""
    return len(content), hashlib.sha256(content).hexdigest()
