"""A prepared dataset as the rest of the package takes data: cases, splits and encoded images by number."""

import bisect
import dataclasses
import functools
import itertools
import threading
from pathlib import Path
from typing import Any

from stepcot_jax.data.images.decoding import MAX_PIXELS
from stepcot_jax.data.images.image_files import most_bytes
from stepcot_jax.data.records.records import Collection
from stepcot_jax.data.splits.splits import SPLIT_NAMES, Splits
from stepcot_jax.data.tfds.contents import (
    CONTENTS_NAME,
    NAME,
    VERSION,
    Contents,
    digest_image,
    read_collection,
    read_contents,
)
from stepcot_jax.data.tfds.examples import import_tfds, make_image_features
from stepcot_jax.data.tfds.preparing import Reading, identify_source
from stepcot_jax.host.errors import BadInput, make_workdir

_READER_OPTIONS = "readahead_buffer_size:0,max_parallelism:0"
_MOST_OPEN = 64


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A prepared dataset.

    Attributes:
      folder: of the shards.
      collection: the cases in the order of the published `data.json`, and the records that were set aside.
      splits: indices into the cases.
      splits_source: where the splits come from, in words.
      images: the encoded image of each case.
    """

    folder: Path
    collection: Collection
    splits: Splits
    splits_source: str
    images: "PreparedFiles"


def prepare(root: Path, data_dir: Path, reading: Reading | None = None) -> Path:
    """Prepares a folder in the published layout, unless it is prepared there already.

    Args:
      root: the folder.
      data_dir: where datasets are kept; this one goes to `step_cot/1.0.0` below it.
      reading: how the folder is read; None for the defaults.

    Returns:
      The folder of the prepared dataset.

    Raises:
      BadInput: the folder cannot be used, other data are prepared there, or tensorflow_datasets is not installed.
    """
    import_tfds()
    make_workdir(Path(data_dir))
    from stepcot_jax.data.tfds.builder import StepCot  # imports what may not be installed

    builder = StepCot(data_root=root, reading=reading, data_dir=data_dir)
    builder.download_and_prepare()
    return Path(builder.data_dir)


def open_prepared(folder: Path, *, max_pixels: int = MAX_PIXELS) -> Prepared:
    """Opens a prepared dataset.

    Args:
      folder: of the prepared dataset, or the `data_dir` that it is in.
      max_pixels: largest accepted width times height of an image; a file that is too large for it is not read.

    Raises:
      BadInput: nothing is prepared there, or it is of another version, truncated, altered or not whole.
    """
    import_tfds()
    place = find_prepared(folder)
    contents = read_contents(place)
    collection, splits = read_collection(place, contents)
    paths = tuple(case.image_path for case in collection.cases)
    images = PreparedFiles(place, contents, paths, max_bytes=most_bytes(max_pixels))
    return Prepared(place, collection, splits, contents.splits_source, images)


def find_prepared(folder: Path) -> Path:
    """The folder of the prepared dataset: the one given, or the one of our version in a `data_dir`.

    Raises:
      BadInput: nothing is prepared there.
    """
    folder = Path(folder)
    for place in (folder, folder / VERSION, folder / NAME / VERSION):
        if (place / CONTENTS_NAME).is_file():
            return place
    raise BadInput(
        f"{folder}: found no dataset that `stepcot_jax.data.tfds` prepared (neither {CONTENTS_NAME} nor "
        f"{NAME}/{VERSION}/{CONTENTS_NAME}), accepted is a folder with one: see StepCot(...).download_and_prepare()"
    )


def check_prepared_from(folder: Path, root: Path, reading: Reading | None = None) -> None:
    """Refuses a prepared dataset that was made from other data than a folder's, or read otherwise.

    Args:
      folder: as in `open_prepared`.
      root: the folder in the published layout that it should come from.
      reading: how it should have been read; None for the defaults.

    Raises:
      BadInput: it was made from something else; names both folders.
    """
    if read_contents(find_prepared(folder)).source != identify_source(Path(root), reading or Reading()):
        raise BadInput(
            f"{folder}: found a dataset prepared from other records, splits or settings than those of {root}, accepted "
            "is one prepared from these: delete it or prepare to another folder"
        )


class PreparedFiles:
    """Encoded images in a prepared dataset; every one is checked against its digest when it is read.

    Args:
      folder: of the shards.
      contents: of the folder.
      paths: image path of each case.
      max_bytes: a larger image file is refused before it is read.
    """

    def __init__(self, folder: Path, contents: Contents, paths: tuple[str, ...], *, max_bytes: int) -> None:
        self._folder, self._paths, self._max_bytes = folder, paths, max_bytes
        self._sizes, self._digests = contents.sizes, contents.digests
        self._files = tuple(shard.file for shard in contents.shards)
        # Shards follow each other as the splits do, so that a case's rank over all splits says which shard it is in.
        self._ends = tuple(itertools.accumulate(shard.num_records for shard in contents.shards))
        order = [index for name in SPLIT_NAMES for index in contents.splits[name]]
        self._ranks = [0] * len(order)
        for rank, index in enumerate(order):
            self._ranks[index] = rank
        self._open()

    def _open(self) -> None:
        self._readers: dict[int, Any] = {}
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_readers", "_lock", "_features")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._open()

    def __len__(self) -> int:
        return len(self._paths)

    def name(self, index: int) -> str:
        """The image's path and the shard that it is in."""
        return f"{self._paths[index]} in {self._folder / self._files[self._place(index)[0]]}"

    def digest(self, index: int) -> str:
        """SHA-256 of the image's content in hex."""
        return self._digests[index]

    def read(self, index: int) -> bytes:
        """The content of an image file.

        Raises:
          BadInput: the shard cannot be read, or holds something else than what was prepared.
        """
        if self._sizes[index] > self._max_bytes:
            raise BadInput(
                f"{self.name(index)}: found a file of {self._sizes[index]} bytes, accepted are at most "
                f"{self._max_bytes}"
            )
        shard, record = self._place(index)
        try:
            content = self._features.deserialize_example_np(self._reader(shard).read([record])[0])["image"]
        # The libraries give every failure to read or parse as one of a dozen kinds; each is the file's fault.
        except Exception as error:
            raise BadInput(
                f"{self.name(index)}: cannot be read ({str(error)[:200]}), accepted is the shard as it was prepared"
            ) from None
        if digest_image(content) != (self._sizes[index], self._digests[index]):
            raise BadInput(
                f"{self.name(index)}: found another image than was prepared, accepted is the shard as it was prepared: "
                "copy it again or prepare the dataset anew"
            )
        return content

    def _place(self, index: int) -> tuple[int, int]:
        """Shard of a case, and its record there."""
        rank = self._ranks[index]
        shard = bisect.bisect_right(self._ends, rank)
        return shard, rank - (self._ends[shard - 1] if shard else 0)

    @functools.cached_property
    def _features(self) -> Any:
        return make_image_features()

    def _reader(self, shard: int) -> Any:
        with self._lock:
            reader = self._readers.pop(shard, None)
            if reader is None:
                from array_record.python.array_record_module import ArrayRecordReader  # only shards need it

                reader = ArrayRecordReader(str(self._folder / self._files[shard]), options=_READER_OPTIONS)
            self._readers[shard] = reader  # last in the order of use
            if len(self._readers) > _MOST_OPEN:
                # Not closed here: another thread may be reading from it. It closes when that thread lets go of it.
                del self._readers[next(iter(self._readers))]
        return reader
