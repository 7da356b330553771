"""Decoding every image of a collection once, before a run depends on them."""

import collections
import concurrent.futures
import dataclasses
from collections.abc import Callable, Iterable, Iterator

import numpy as np
from jaxtyping import UInt8

from stepcot_jax.data.cases import Case
from stepcot_jax.data.images import MAX_PIXELS, Preprocessing, decode_image, resize_image
from stepcot_jax.data.published import FILE_NAME
from stepcot_jax.data.records import Collection, OnBadRecord, SetAside, describe_bad_records
from stepcot_jax.errors import BadInput

Pixels = UInt8[np.ndarray, "height width 3"]


def check_images(
    collection: Collection,
    *,
    on_bad_record: OnBadRecord = "stop",
    max_pixels: int = MAX_PIXELS,
    preprocessing: Preprocessing | None = None,
    visit: Callable[[int, Pixels], None] | None = None,
    is_known: Callable[[Case], bool] | None = None,
    progress: Callable[[Iterable[Case]], Iterable[Case]] | None = None,
    num_threads: int = 2,
) -> Collection:
    """Decodes every image fully that is not known yet; the collection without those that cannot be.

    At most `num_threads` + 2 decoded images are in memory at a time, besides what `visit` keeps.

    Args:
      collection: the records as `read_records` gives them.
      on_bad_record: "stop" raises after the last image if any is unreadable, "skip" sets them aside.
      max_pixels: largest accepted width times height of an image.
      preprocessing: if given, images are resized before they are visited, in the decoding threads.
      visit: called in order, in the caller's thread, with each readable image's index among the cases that
        are returned and its pixels: uint8 [height, width, 3], or [size, size, 3] with `preprocessing`.
      is_known: says of a case that its image was read before and need not be again; it is not visited.
      progress: wraps the iterable of cases, as progress bars do.
      num_threads: images decoded at the same time; >= 1.

    Raises:
      BadInput: an image is unreadable and `on_bad_record` is "stop", or none is readable; names file and record.
    """

    def prepare(case: Case) -> Pixels | BadInput | None:
        try:
            if is_known is not None and is_known(case):
                return None
            pixels = decode_image(collection.root / case.image_path, max_pixels=max_pixels)
        except BadInput as error:
            return error
        return pixels if preprocessing is None else resize_image(pixels, preprocessing)

    numbers = _record_numbers(collection)
    cases: list[Case] = []
    unreadable: list[SetAside] = []
    watched = collection.cases if progress is None else progress(collection.cases)
    for number, (case, pixels) in zip(numbers, _in_threads(prepare, watched, num_threads=num_threads), strict=True):
        if isinstance(pixels, BadInput):
            unreadable.append(SetAside(number, case.image_path, str(pixels), case.patient_id))
            continue
        if visit is not None and pixels is not None:
            visit(len(cases), pixels)
        cases.append(case)
    if unreadable and (on_bad_record == "stop" or not cases):
        raise BadInput(describe_bad_records(collection.root / FILE_NAME, unreadable, num_good=len(cases)))
    set_aside = sorted([*collection.set_aside, *unreadable], key=lambda aside: aside.record)
    return dataclasses.replace(collection, cases=tuple(cases), set_aside=tuple(set_aside))


def _record_numbers(collection: Collection) -> list[int]:
    """Position of each case in `data.json`: the cases are what is left of the records, in order."""
    aside = {item.record for item in collection.set_aside}
    num_records = len(collection.cases) + len(aside)
    return [number for number in range(num_records) if number not in aside]


def _in_threads(
    prepare: Callable[[Case], Pixels | BadInput | None], cases: Iterable[Case], *, num_threads: int
) -> Iterator[tuple[Case, Pixels | BadInput | None]]:
    """Each case with what `prepare` makes of it, in order; a slow consumer holds the threads back."""
    pending: collections.deque[tuple[Case, concurrent.futures.Future[Pixels | BadInput | None]]] = collections.deque()
    pool = concurrent.futures.ThreadPoolExecutor(max_workers=num_threads)
    try:
        for case in cases:
            pending.append((case, pool.submit(prepare, case)))
            if len(pending) > num_threads:
                earliest, result = pending.popleft()
                yield earliest, result.result()
        while pending:
            earliest, result = pending.popleft()
            yield earliest, result.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
