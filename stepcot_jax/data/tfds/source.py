"""Write and open a prepared dataset: the files next to its shards, its cases, splits and encoded images.

Next to the shards are `data.json`, `quarantine.jsonl` and `step_cot.json`, which is written last.
"""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from stepcot_jax.data.images.image_decoding import MAX_PIXELS, most_bytes
from stepcot_jax.data.images.shards import ShardEntry, ShardFiles, ShardIndex, check_size
from stepcot_jax.data.records.data_json import FILE_NAME
from stepcot_jax.data.records.records import Collection, SetAside, read_records, write_quarantine, write_records
from stepcot_jax.data.splits.splits import SPLIT_NAMES, Splits, check_splits
from stepcot_jax.data.tfds import preparing
from stepcot_jax.data.tfds.preparing import Prepared, Reading, read_image
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import MAX_LISTING_BYTES, read_json, write_whole
from stepcot_jax.host.ranges import Count

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

    def index(self, paths: tuple[str, ...]) -> ShardIndex:
        """Return the shards as `ShardFiles` expects them; `paths` has the image path of each case."""
        # Shards follow each other as the splits do.
        order = iter([case for name in SPLIT_NAMES for case in self.splits[name]])
        entries = []
        for shard in self.shards:
            cases = list(itertools.islice(order, shard.num_records))
            entries.append(
                ShardEntry(
                    file=shard.file,
                    num_bytes=shard.num_bytes,
                    sha256="",
                    paths=tuple(paths[case] for case in cases),
                    sizes=tuple(self.sizes[case] for case in cases),
                    digests=tuple(self.digests[case] for case in cases),
                )
            )
        return ShardIndex(source=self.source, shards=tuple(entries))


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
        records=preparing.digest_of_file(folder / FILE_NAME),
        step_names=tuple(step.name for step in collection.chain.steps),
        splits=splits,
        splits_source=gathered.splits_source,
        shards=tuple(shards),
        sizes=tuple(size for size, _ in order),
        digests=tuple(digest for _, digest in order),
        set_aside=collection.set_aside,
    )
    write_whole(folder / CONTENTS_NAME, msgspec.json.encode(contents))


def read_contents(folder: Path) -> Contents:
    """Read `step_cot.json` and check the sizes of the shards."""
    path = folder / CONTENTS_NAME
    contents = read_json(path, Contents, accepted=_EXPECTED, max_bytes=MAX_LISTING_BYTES)
    if contents.version != VERSION:
        raise BadInput(f"{path}: version {contents.version[:20]!r} is not {VERSION}; prepare the dataset anew")
    num_cases = len(contents.digests)
    lengths = dict.fromkeys(SPLIT_NAMES, 0)
    for shard in contents.shards:
        lengths[shard.split] += shard.num_records
    members = [index for name in SPLIT_NAMES for index in contents.splits.get(name, ())]
    is_complete = sorted(members) == list(range(num_cases)) and len(contents.sizes) == num_cases
    if not is_complete or lengths != {name: len(indices) for name, indices in contents.splits.items()}:
        raise BadInput(f"{path}: the numbers of splits, shards and images disagree; {_EXPECTED}")
    for shard in contents.shards:
        check_size(folder / shard.file, shard.num_bytes)
    return contents


def read_collection(folder: Path, contents: Contents) -> tuple[Collection, Splits]:
    """Read the cases next to the shards, those set aside, and the splits; `BadInput` if the records have changed."""
    path = folder / FILE_NAME
    if preparing.digest_of_file(path) != contents.records:
        raise BadInput(f"{path}: the records have changed since they were prepared; {_EXPECTED}, unaltered")
    collection = read_records(folder, step_names=contents.step_names, require_images=False)
    if len(collection.cases) != len(contents.digests):
        raise BadInput(f"{path}: {len(collection.cases)} cases instead of the {len(contents.digests)} prepared")
    splits = Splits(**contents.splits)
    check_splits(splits, collection.cases, source=str(folder / CONTENTS_NAME))
    return Collection(folder, collection.chain, collection.cases, contents.set_aside), splits


def open_prepared(folder: Path, *, max_pixels: int = MAX_PIXELS) -> Prepared:
    """Open a prepared dataset."""
    preparing.import_tfds()
    prepared = find_prepared(folder)
    contents = read_contents(prepared)
    collection, splits = read_collection(prepared, contents)
    paths = tuple(collection.cases.image_paths)
    images = ShardFiles(prepared, contents.index(paths), paths, max_bytes=most_bytes(max_pixels), unpack=read_image)
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
    if read_contents(find_prepared(folder)).source != preparing.identify_source(Path(root), reading or Reading()):
        raise BadInput(
            f"{folder}: the dataset was prepared from other records, splits or settings than those of {root}; "
            "delete it or prepare to another folder"
        )
