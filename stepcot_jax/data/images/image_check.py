"""Decoding every image of a collection once, before a run depends on them."""

import collections
import concurrent.futures
import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import numpy as np
from jaxtyping import UInt8

from stepcot_jax.data.images.decoding import MAX_PIXELS
from stepcot_jax.data.images.image_files import FolderFiles, ImageFiles, most_bytes
from stepcot_jax.data.images.preprocessing import Preprocessing, decode_image_bytes, prepare_image, repeat_grey
from stepcot_jax.data.records.cases import Case, CaseTable
from stepcot_jax.data.records.records import Collection, OnBadRecord, SetAside, describe_bad_records
from stepcot_jax.host.errors import BadInput

Pixels = UInt8[np.ndarray, "height width 3"]
Prepared = TypeVar("Prepared")


def check_images(
    collection: Collection,
    *,
    images: ImageFiles | None = None,
    on_bad_record: OnBadRecord = "stop",
    max_pixels: int = MAX_PIXELS,
    preprocessing: Preprocessing | None = None,
    visit: Callable[[int, Pixels], None] | None = None,
    is_known: Callable[[Case, bytes], bool] | None = None,
    progress: Callable[[Iterable[Case]], Iterable[Case]] | None = None,
    num_threads: int = 2,
) -> Collection:
    """Decodes every image fully that is not known yet; the collection without those that cannot be.

    At most `num_threads` + 2 decoded images are in memory at a time, besides what `visit` keeps.

    Args:
      collection: the records as `read_records` gives them.
      images: the cases' images; None for the files below the collection's root.
      on_bad_record: "stop" raises after the last image if any is unreadable, "skip" sets them aside.
      max_pixels: largest accepted width times height of an image.
      preprocessing: if given, images are resized before they are visited, in the decoding threads.
      visit: called in order, in the caller's thread, with each readable image's index among the cases that
        are returned and its pixels: uint8 [height, width, 3], or [size, size, 3] with `preprocessing`.
      is_known: says of a case and the content of its image file that it was decoded before and need not be again;
        it is not visited.
      progress: wraps the iterable of cases, as progress bars do.
      num_threads: images decoded at the same time; >= 1.

    Raises:
      BadInput: an image is unreadable and `on_bad_record` is "stop", or none is readable; names file and record.
    """
    files = images or folder_files(collection, max_pixels=max_pixels)

    def prepare(index: int, case: Case) -> Pixels | BadInput | None:
        try:
            content, name = files.read(index), files.name(index)
            if is_known is not None and is_known(case, content):
                return None
            if preprocessing is None:
                return decode_image_bytes(content, name=name, max_pixels=max_pixels)
            pixels = prepare_image(content, name=name, preprocessing=preprocessing, max_pixels=max_pixels)
            return repeat_grey(pixels) if pixels.ndim == 2 else pixels
        except BadInput as error:
            return error

    numbers = record_numbers(collection)
    cases: list[Case] = []
    unreadable: list[SetAside] = []
    watched = collection.cases if progress is None else progress(collection.cases)
    for number, (case, pixels) in zip(numbers, in_threads(prepare, watched, num_threads=num_threads), strict=True):
        if isinstance(pixels, BadInput):
            unreadable.append(SetAside(number, case.image_path, str(pixels), case.patient_id))
            continue
        if visit is not None and pixels is not None:
            visit(len(cases), pixels)
        cases.append(case)
    if unreadable and (on_bad_record == "stop" or not cases):
        raise BadInput(describe_bad_records(collection.root / collection.file, unreadable, num_good=len(cases)))
    set_aside = sorted([*collection.set_aside, *unreadable], key=lambda aside: aside.record)
    return dataclasses.replace(collection, cases=CaseTable(cases), set_aside=tuple(set_aside))


def folder_files(collection: Collection, *, max_pixels: int = MAX_PIXELS) -> FolderFiles:
    """The cases' image files below the collection's root."""
    paths = tuple(case.image_path for case in collection.cases)
    return FolderFiles(collection.root, paths, most_bytes(max_pixels))


def record_numbers(collection: Collection) -> list[int]:
    """Position of each case among the records: the cases are what is left of them, in order."""
    aside = {item.record for item in collection.set_aside}
    num_records = len(collection.cases) + len(aside)
    return [number for number in range(num_records) if number not in aside]


def numbers_by_path(collection: Collection) -> dict[str, int]:
    """Position among the records of each case, by its image path."""
    return dict(zip((case.image_path for case in collection.cases), record_numbers(collection), strict=True))


def in_threads(
    prepare: Callable[[int, Case], Prepared], cases: Iterable[Case], *, num_threads: int
) -> Iterator[tuple[Case, Prepared]]:
    """Each case with what `prepare` makes of its place and it, in order; a slow consumer holds the threads back."""
    pending: collections.deque[tuple[Case, concurrent.futures.Future[Prepared]]] = collections.deque()
    pool = concurrent.futures.ThreadPoolExecutor(max_workers=num_threads)
    try:
        for index, case in enumerate(cases):
            pending.append((case, pool.submit(prepare, index, case)))
            if len(pending) > num_threads:
                earliest, result = pending.popleft()
                yield earliest, result.result()
        while pending:
            earliest, result = pending.popleft()
            yield earliest, result.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
