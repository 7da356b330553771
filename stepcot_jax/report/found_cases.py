"""The cases of a finished run in the data that it was trained on, with their pictures as the network saw them."""

import dataclasses
import re
from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Int, UInt8

from stepcot_jax.chain import NOT_ANNOTATED
from stepcot_jax.data.dataset import Dataset
from stepcot_jax.data.images.pixels import PhantomPixels
from stepcot_jax.data.images.preprocessing import Preprocessing, repeat_grey
from stepcot_jax.data.loading import Progress, load_dataset
from stepcot_jax.data.records.cases import Case
from stepcot_jax.host.errors import BadInput
from stepcot_jax.settings.run_settings import Settings

_PHANTOM_NAME = re.compile(r"images/phantom_(\d{6,9})\.png")


@dataclasses.dataclass(frozen=True)
class FoundCase:
    """A case with its pixels at the encoder's size."""

    case: Case
    pixels: UInt8[np.ndarray, "size size 3"]


def find_cases(
    settings: Settings,
    image_paths: Sequence[str],
    labels: Int[np.ndarray, "case step"],
    *,
    preprocessing: Preprocessing,
    progress: Progress,
) -> list[FoundCase]:
    """Cases by their images' paths; the phantom's are drawn again.

    Args:
      settings: of the run.
      image_paths: of the cases that are wanted.
      labels: [case, step] that the run had for them.
      preprocessing: what the run's image encoder asks for.
      progress: shows how far the reading is.

    Raises:
      BadInput: the data cannot be read, or a case is not there or has other labels than the run had.
    """
    if settings.data.source == "phantom":
        found = _draw(settings, image_paths, preprocessing, progress)
    else:
        found = _read(settings, image_paths, preprocessing, progress)
    where = settings.data.root or "the phantom"
    cases = []
    for path, wanted, each in zip(image_paths, labels, found, strict=True):
        if each is None:
            raise BadInput(f"{where}: found no case with image {path!r}, accepted is the data that the run had")
        known = wanted != NOT_ANNOTATED  # a run that was supervised on some steps alone has no labels of the others
        if (np.array(each.case.labels, np.int32)[known] != wanted[known]).any():
            raise BadInput(
                f"{where}: {path}: found labels {each.case.labels}, accepted are {tuple(wanted.tolist())}, as the run "
                "had them"
            )
        cases.append(each)
    return cases


def _draw(
    settings: Settings, image_paths: Sequence[str], preprocessing: Preprocessing, progress: Progress
) -> Iterator[FoundCase | None]:
    phantom = settings.phantom
    drawing = PhantomPixels(phantom.seed, phantom.image_size, phantom.prevalence, preprocessing)
    for path in progress(image_paths, "drawing the cases"):
        match = _PHANTOM_NAME.fullmatch(path)
        if match is None or int(match[1]) >= phantom.num_cases:
            yield None
            continue
        case, pixels = drawing.draw(int(match[1]))
        yield FoundCase(case, pixels if pixels.ndim == 3 else repeat_grey(pixels))


def _read(
    settings: Settings, image_paths: Sequence[str], preprocessing: Preprocessing, progress: Progress
) -> Iterator[FoundCase | None]:
    dataset = _load(settings, preprocessing, progress)
    places = {case.image_path: place for place, case in enumerate(dataset.cases)}
    for path in progress(image_paths, "reading the cases"):
        place = places.get(path)
        yield None if place is None else FoundCase(dataset.cases[place], dataset.pixels[place])


def _load(settings: Settings, preprocessing: Preprocessing, progress: Progress) -> Dataset:
    """The data without what only training needs: no image is decoded before it is shown, no splits are looked for."""
    data = dataclasses.replace(settings.data, near_duplicate_radius=0, cache_megabytes=0.0)

    settings = dataclasses.replace(settings, data=data)
    return load_dataset(settings, preprocessing=preprocessing, is_known=lambda _: True, progress=progress)
