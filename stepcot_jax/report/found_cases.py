"""Find the cases of a finished run in its data, with their pictures as the network saw them."""

import dataclasses
import re
from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Int, UInt8

from stepcot_jax.chain import NOT_ANNOTATED
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
    *,
    image_paths: Sequence[str],
    labels: Int[np.ndarray, "case step"],
    preprocessing: Preprocessing,
    progress: Progress,
) -> list[FoundCase]:
    """Find cases by their images' paths; phantoms are drawn again.

    Args:
      settings: of the run.
      image_paths: of the cases.
      labels: [case, step] in the run's predictions.
      preprocessing: of the run's image encoder.
      progress: shows the progress.

    Raises:
      BadInput: the data cannot be read, or lack a case, or have other labels than the run had.
    """
    find = _draw if settings.data.source == "phantom" else _read
    where = settings.data.root or "the phantom"
    cases = []
    found = find(settings, image_paths, preprocessing, progress)
    for path, expected, each in zip(image_paths, labels, found, strict=True):
        if each is None:
            raise BadInput(f"{where} has no case with image {path!r}; expected the data that the run was trained on")
        known = expected != NOT_ANNOTATED  # a run that was supervised on some steps has no labels of the others
        if (np.array(each.case.labels, np.int32)[known] != expected[known]).any():
            raise BadInput(
                f"{where}, {path}: labels {each.case.labels} are not those of the run, {tuple(expected.tolist())}"
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
    # Only training needs the search for near duplicates, the cache and the splits; images are decoded when shown.
    data = dataclasses.replace(settings.data, near_duplicate_radius=0, cache_megabytes=0.0)
    dataset = load_dataset(
        dataclasses.replace(settings, data=data),
        preprocessing=preprocessing,
        is_known=lambda _: True,
        progress=progress,
    )
    places = {case.image_path: place for place, case in enumerate(dataset.cases)}
    for path in progress(image_paths, "reading the cases"):
        place = places.get(path)
        yield None if place is None else FoundCase(dataset.cases[place], dataset.pixels[place])
