"""Records and images of a data root for `data check`, read as a run reads them, with reasons grouped, not listed."""

import hashlib
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64

from stepcot_jax.data.columns import DigestColumn, TextColumn, find_first
from stepcot_jax.data.images.image_decoding import most_bytes
from stepcot_jax.data.images.image_files import FolderFiles, ImageFiles, Selection
from stepcot_jax.data.images.preprocessing import decode_image_bytes
from stepcot_jax.data.images.shards import ShardFiles, has_shards, read_index
from stepcot_jax.data.records.data_json import ImageLocator, MissingImage, Scan
from stepcot_jax.data.records.records import Collection
from stepcot_jax.data.splits.splits import Problem
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.machine import map_in_threads
from stepcot_jax.record import SetAside

_MOST_KINDS = 100
_NUM_EXAMPLES = 3
_NUM_SHOWN = 300
# The parts of a reason that differ between records.
_PARTICULAR = re.compile(
    r"^(?:row \d+|(?![a-z_]+\[\d+\])\S*[\d/]\S*)(?=: )"  # the place that a reason begins with, but no field
    r"|(?<=references\[)\d+(?=\])|(?<!\w)\[-?\d[^\]]*\]"  # the place of a box, and the box found
    r"|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""  # the value found
    r"|(?<=of record )\d+|(?<=in record )\d+|\d+ x \d+|(?<=starts with bytes )[0-9a-f ]+(?=;)"
)


class Reasons:
    """Counts records set aside by reason; keeps their names, which split tables may use."""

    def __init__(self) -> None:
        self._reasons: dict[str, Problem] = {}
        self.image_paths = TextColumn()
        self.patient_ids = TextColumn()

    def append(self, item: SetAside) -> None:
        """Add a record."""
        kind = _PARTICULAR.sub("…", item.reason)[:_NUM_SHOWN]
        if kind not in self._reasons and len(self._reasons) >= _MOST_KINDS:
            kind = "further reasons"
        image_path, reason = item.image_path[:_NUM_SHOWN], item.reason[:_NUM_SHOWN]
        example = {"record": item.record, "image_path": image_path, "reason": reason}
        self._reasons.setdefault(kind, Problem(kind)).add(example, most=_NUM_EXAMPLES)
        self.image_paths.append(item.image_path)
        self.patient_ids.append(item.patient_id)

    def __len__(self) -> int:
        return len(self.image_paths)

    def as_facts(self) -> list[dict[str, Any]]:
        """Return each reason with "…" for the parts that differ, its count and examples; the most frequent first."""
        return [
            {"reason": reason.kind, "count": reason.count, "examples": reason.examples}
            for reason in sorted(self._reasons.values(), key=lambda reason: -reason.count)
        ]


def scan_collection(collection: Collection, reasons: Reasons, *, require_images: bool) -> Scan:
    """Return a collection that was read without requiring images as a scan; it shares the collection's table.

    `reasons` takes the records set aside and, with `require_images`, those without their image file.
    """
    for item in collection.set_aside:
        reasons.append(item)
    scan = Scan(
        collection.root,
        collection.path,
        collection.cases,
        collection.record_numbers,
        reasons,
        np.ones(len(collection.cases), bool),
        collection.chain,
        num_wordings=(1,) * collection.chain.num_steps,
    )
    if require_images:
        locator = ImageLocator(collection.root, require_images=True)
        for place, image_path in enumerate(scan.table.image_paths):
            try:
                locator.locate(image_path)
            except BadInput as error:
                scan.num_missing += isinstance(error, MissingImage)
                scan.drop(place, str(error))
        scan.num_found = int(scan.good.sum())
    return scan


def decode_pictures(
    scan: Scan,
    root: Path,
    *,
    max_pixels: int,
    num_threads: int,
    progress: Callable[[Iterable[Any], str], Iterable[Any]],
) -> tuple[int, Int64[np.ndarray, " record"]]:
    """Decode the image of every good record, from files or shards; set records aside where that fails.

    Returns:
      The number of images that cannot be decoded, and for each record the first one whose image has the same pixels,
    """
    places = np.flatnonzero(scan.good)
    paths, limit = scan.table.image_paths, most_bytes(max_pixels)
    files: ImageFiles
    if has_shards(root):
        files = ShardFiles(scan.root, read_index(root), [paths[place] for place in places.tolist()], max_bytes=limit)
    else:
        files = Selection(FolderFiles(scan.root, paths, limit), places)

    def digest(index: int) -> bytes | BadInput:
        try:
            pixels = decode_image_bytes(files.read(index), name=files.name(index), max_pixels=max_pixels)
        except BadInput as error:
            return error
        content = hashlib.blake2b(str(pixels.shape).encode())
        content.update(np.ascontiguousarray(pixels).data)
        return content.digest()

    column = DigestColumn()
    watched = progress(range(len(places)), "reading the images")
    for index, found in map_in_threads(digest, watched, num_threads=num_threads):
        if isinstance(found, BadInput):
            scan.drop(int(places[index]), str(found))
        else:
            column.append(found)
    original = np.arange(len(scan.table))
    readable = np.flatnonzero(scan.good)
    original[readable] = readable[find_first(column.halves)]
    return len(places) - len(readable), original
