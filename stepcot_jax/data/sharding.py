"""Write the images of a folder into shards, with its records and split tables: a data root for fast starts."""

import hashlib
import pathlib
from typing import Any

from stepcot_jax.data.images.image_files import folder_files, set_aside_cases
from stepcot_jax.data.images.image_shards import INDEX_NAME, find_missing, has_shards
from stepcot_jax.data.images.shard_writing import ShardWriter, only_writer, saying_what_fails
from stepcot_jax.data.records.data_json import FILE_NAME
from stepcot_jax.data.records.records import PUBLISHED_STEP_NAMES, encode_records, write_quarantine
from stepcot_jax.data.sources.layouts import read_source
from stepcot_jax.data.splits.split_resolver import TABLE_SUFFIXES
from stepcot_jax.data.splits.splits import SPLIT_NAMES
from stepcot_jax.host.errors import BadInput, make_workdir
from stepcot_jax.host.files import write_whole
from stepcot_jax.host.terminal import Terminal

_QUARANTINE_NAME = "quarantine.jsonl"


def make_shards(
    root: pathlib.Path,
    out: pathlib.Path,
    *,
    reading: dict[str, Any],
    max_pixels: int,
    shard_bytes: int,
    num_threads: int,
    terminal: Terminal,
) -> None:
    """Write a folder's images into shards, and its records and split tables next to them; see `ShardWriter`.

    `root` is a folder or file in any layout, with image files, and `reading` has the keyword arguments of
    `layouts.read_source`. `out` is a new folder, or one in which this was interrupted.

    Raises:
      BadInput: the records are invalid, `root` has shards already, or `out` cannot be used.
    """
    if has_shards(root):
        raise BadInput(f"{root} has shards already ({INDEX_NAME}); a folder with image files is required")
    if out.resolve() == root.resolve():
        raise BadInput(f"--out: {out} is the folder that is read; another one is required")
    collection = read_source(root, **reading)
    make_workdir(out)
    with only_writer(out):
        published = collection.layout == "published"
        records = collection.path.read_bytes() if published else encode_records(collection.chain, collection.cases)
        writer = ShardWriter(
            collection,
            folder_files(collection, max_pixels=max_pixels),
            out,
            source=hashlib.sha256(records).hexdigest(),
            on_bad_record=reading["on_bad_record"],
            max_pixels=max_pixels,
            shard_bytes=shard_bytes,
            num_threads=num_threads,
        )
        index, num_found = writer.write(lambda cases: terminal.watch(cases, "writing shards"))
        missing = find_missing(index, collection.cases.image_paths)
        set_aside = set_aside_cases(collection, missing, on_bad_record="skip").set_aside
        with saying_what_fails(out):
            write_whole(out / FILE_NAME, records)
            for name in (name + suffix for name in SPLIT_NAMES for suffix in TABLE_SUFFIXES):
                if (collection.root / name).is_file():
                    write_whole(out / name, (collection.root / name).read_bytes())
            if set_aside:
                write_quarantine(out / _QUARANTINE_NAME, set_aside)
        writer.finish(index)
    num_images = sum(len(entry.paths) for entry in index.shards)
    print(f"{num_images} images in {len(index.shards)} shards in {out}, {num_found} of them from an earlier start")
    names = tuple(step.name for step in collection.chain.steps)
    if names != PUBLISHED_STEP_NAMES:
        print(f"data.json has no step names: read it with config.data.step_names={names}")
    if set_aside:
        print(f"{len(set_aside)} records are set aside, each with its reason in {out / _QUARANTINE_NAME}")
