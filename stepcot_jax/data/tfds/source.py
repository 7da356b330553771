"""Open a prepared dataset: cases, splits and encoded images by number."""

from pathlib import Path

from stepcot_jax.data.images.image_decoding import MAX_PIXELS
from stepcot_jax.data.images.image_files import most_bytes
from stepcot_jax.data.images.image_shards import ShardFiles
from stepcot_jax.data.tfds.contents import CONTENTS_NAME, NAME, VERSION, read_collection, read_contents
from stepcot_jax.data.tfds.examples import import_tfds, read_image
from stepcot_jax.data.tfds.preparing import Prepared, Reading, identify_source
from stepcot_jax.host.errors import BadInput


def open_prepared(folder: Path, *, max_pixels: int = MAX_PIXELS) -> Prepared:
    """Open a prepared dataset.

    Args:
      folder: of the prepared dataset, or the `data_dir` that it is in.
      max_pixels: largest accepted width times height of an image; a file too large for it is not read.

    Raises:
      BadInput: nothing is prepared there, or it is of another version, truncated, altered or incomplete.
    """
    import_tfds()
    place = find_prepared(folder)
    contents = read_contents(place)
    collection, splits = read_collection(place, contents)
    paths = tuple(collection.cases.image_paths)
    images = ShardFiles(place, contents.index(paths), paths, max_bytes=most_bytes(max_pixels), unpack=read_image)
    return Prepared(collection, splits, contents.splits_source, images)


def find_prepared(folder: Path) -> Path:
    """Return the folder of the prepared dataset: `folder` itself, or the one of our version in a `data_dir`."""
    folder = Path(folder)
    for place in (folder, folder / VERSION, folder / NAME / VERSION):
        if (place / CONTENTS_NAME).is_file():
            return place
    raise BadInput(
        f"{folder}: no prepared dataset (neither {CONTENTS_NAME} nor {NAME}/{VERSION}/{CONTENTS_NAME}); "
        "prepare one with `python -m stepcot_jax.data.tfds`"
    )


def check_prepared_from(folder: Path, root: Path, reading: Reading | None = None) -> None:
    """Refuse a dataset in `folder` that was prepared from other data than those of `root`, or with another `reading`.

    Raises:
      BadInput: it was prepared from something else; names both folders.
    """
    if read_contents(find_prepared(folder)).source != identify_source(Path(root), reading or Reading()):
        raise BadInput(
            f"{folder}: the dataset was prepared from other records, splits or settings than those of {root}; "
            "delete it or prepare to another folder"
        )
