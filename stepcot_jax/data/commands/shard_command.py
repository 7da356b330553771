"""The command that writes the images of a folder into shards beside its records."""

import argparse
import hashlib
import math
import pathlib
import tempfile
from typing import Any

from stepcot_jax.data.commands.root_options import add_reading_options, reading_arguments
from stepcot_jax.data.images.image_check import folder_files, numbers_by_path
from stepcot_jax.data.images.image_shards import INDEX_NAME, ShardIndex, has_shards
from stepcot_jax.data.images.shard_writing import ShardWriter, only_writer, saying_what_fails
from stepcot_jax.data.records.data_json import FILE_NAME
from stepcot_jax.data.records.records import PUBLISHED_STEP_NAMES, Collection, SetAside, write_quarantine, write_records
from stepcot_jax.data.sources.layouts import read_source
from stepcot_jax.data.splits.splits import SPLIT_NAMES
from stepcot_jax.host.errors import BadInput, make_workdir
from stepcot_jax.host.files import write_whole
from stepcot_jax.host.terminal import Terminal

_QUARANTINE_NAME = "quarantine.jsonl"
_TABLE_NAMES = tuple(name + suffix for name in SPLIT_NAMES for suffix in (".xlsx", ".csv"))


def add_command(commands: Any) -> None:
    """Add `shards` to the subcommands of `python -m stepcot_jax.data`."""
    parser = commands.add_parser("shards", help="write a folder's images into ArrayRecord shards to train from")
    add_reading_options(parser)
    parser.add_argument("--out", type=pathlib.Path, required=True, metavar="DIR", help="new folder, or one to go on in")
    parser.add_argument("--max-megapixels", type=float, default=64.0, help="of an image, default 64")
    parser.add_argument("--shard-megabytes", type=float, default=256.0, help="of a shard, default 256")
    parser.add_argument("--num-threads", type=int, default=2, help="images decoded at a time, default 2")
    parser.set_defaults(run=make_shards)


def make_shards(options: argparse.Namespace) -> None:
    """Write the images of a folder into shards, and its records and split tables beside them."""
    for name, value in (
        ("max-megapixels", options.max_megapixels),
        ("shard-megabytes", options.shard_megabytes),
        ("num-threads", options.num_threads),
    ):
        if not 0 < value < math.inf:
            raise BadInput(f"--{name}: found {value}, accepted are numbers above 0")
    root, out = options.root, options.out
    if has_shards(root):
        raise BadInput(f"{root}: found shards already ({INDEX_NAME}), accepted is a folder with image files")
    if out.resolve() == root.resolve():
        raise BadInput(f"--out: found {out}, the folder that is read, accepted is another")
    collection = read_source(root, **reading_arguments(options))
    make_workdir(out)
    with only_writer(out):
        records = _records_of(collection, out)
        writer = ShardWriter(
            collection,
            folder_files(collection, max_pixels=int(options.max_megapixels * 1e6)),
            out,
            source=hashlib.sha256(records).hexdigest(),
            on_bad_record=options.on_bad_record,
            max_pixels=int(options.max_megapixels * 1e6),
            shard_bytes=int(options.shard_megabytes * 2**20),
            num_threads=options.num_threads,
        )
        index, num_found = writer.write(lambda cases: Terminal().watch(cases, "writing shards"))
        with saying_what_fails(out):
            _write_tables(collection, out, records)
            num_aside = _write_quarantine(collection, index, out)
        writer.finish(index)
    num_images = sum(len(entry.paths) for entry in index.shards)
    print(f"{num_images} images in {len(index.shards)} shards in {out}, {num_found} of them from an earlier start")
    names = tuple(step.name for step in collection.chain.steps)
    if names != PUBLISHED_STEP_NAMES:
        print(f"data.json has no step names: read it with config.data.step_names={names}")
    if num_aside:
        print(f"{num_aside} records are set aside, each with its reason in {out / _QUARANTINE_NAME}")


def _records_of(collection: Collection, out: pathlib.Path) -> bytes:
    """The `data.json` of the new folder: the published one as it is, else the cases in its layout."""
    if collection.layout == "published":
        return (collection.root / FILE_NAME).read_bytes()
    # Not in place yet: the folder may turn out to have other records' shards.
    with saying_what_fails(out), tempfile.TemporaryDirectory(dir=out) as folder:
        write_records(pathlib.Path(folder), chain=collection.chain, cases=collection.cases)
        return (pathlib.Path(folder) / FILE_NAME).read_bytes()


def _write_tables(collection: Collection, out: pathlib.Path, records: bytes) -> None:
    write_whole(out / FILE_NAME, records)
    for name in _TABLE_NAMES:
        if (collection.root / name).is_file():
            write_whole(out / name, (collection.root / name).read_bytes())


def _write_quarantine(collection: Collection, index: ShardIndex, out: pathlib.Path) -> int:
    """List the records that are in no shard."""
    reasons = dict(index.set_aside)
    numbers = numbers_by_path(collection)
    undecodable = [
        SetAside(numbers[case.image_path], case.image_path, reasons[case.image_path], case.patient_id)
        for case in collection.cases
        if case.image_path in reasons
    ]
    set_aside = sorted([*collection.set_aside, *undecodable], key=lambda aside: aside.record)
    if set_aside:
        write_quarantine(out / _QUARANTINE_NAME, set_aside)
    return len(set_aside)
