"""The cases of a run: chain, labels, splits and pixels at the encoder's size, from a folder or from the phantom."""

import dataclasses
import hashlib
import json
import pathlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int32, UInt8

from stepcot_jax.chain import DEFAULT_CHAIN, Chain
from stepcot_jax.data.cases import Case
from stepcot_jax.data.image_check import check_images
from stepcot_jax.data.images import Preprocessing, decode_image, resize_image
from stepcot_jax.data.phantom import draw_case
from stepcot_jax.data.records import SetAside, read_records, write_quarantine
from stepcot_jax.data.splits import Splits, make_splits, read_splits, write_manifest
from stepcot_jax.errors import BadInput
from stepcot_jax.settings import Settings

Pixels = UInt8[np.ndarray, "size size 3"]
Progress = Callable[[Iterable[Any], str], Iterable[Any]]
"""Wraps an iterable with a known length and a description, as progress bars do."""


class PixelCache:
    """Pixels of cases, kept in memory as far as a budget goes and read again beyond it.

    Args:
      read: case index -> uint8 [size, size, 3].
      budget_bytes: how much may be kept; grey images count a third.
    """

    def __init__(self, read: Callable[[int], Pixels], budget_bytes: float) -> None:
        self._read = read
        self._left = budget_bytes
        self._kept: dict[int, np.ndarray] = {}

    def put(self, index: int, pixels: Pixels) -> None:
        """Keep the pixels of a case if the budget allows."""
        grey = np.array_equal(pixels[..., 0], pixels[..., 1]) and np.array_equal(pixels[..., 0], pixels[..., 2])
        kept = np.ascontiguousarray(pixels[..., 0]) if grey else pixels
        if index not in self._kept and kept.nbytes <= self._left:
            self._left -= kept.nbytes
            self._kept[index] = kept

    def __getitem__(self, index: int) -> Pixels:
        kept = self._kept.get(index)
        if kept is None:
            return self._read(index)
        return kept if kept.ndim == 3 else np.repeat(kept[..., None], 3, axis=-1)


@dataclasses.dataclass(frozen=True)
class Dataset:
    """All that training and evaluation need of the data.

    Attributes:
      chain: the steps with their options.
      cases: every case that can be read.
      splits: which cases train, validate and test.
      pixels: case index -> uint8 [size, size, 3].
      preprocessing: what the image encoder asks for.
      features: float32 [case, width] of a frozen encoder, in memory or read by index; None where images are encoded
        in training.
      set_aside: records that are not among the cases, each with its reason.
      splits_source: where the splits come from, in words.
    """

    chain: Chain
    cases: Sequence[Case]
    splits: Splits
    pixels: PixelCache
    preprocessing: Preprocessing
    features: Any = None
    set_aside: tuple[SetAside, ...] = ()
    splits_source: str = ""

    @property
    def labels(self) -> Int32[np.ndarray, "case step"]:
        """Labels of all cases, NOT_ANNOTATED where nobody answered."""
        return np.array([case.labels for case in self.cases], np.int32)

    @property
    def digest(self) -> str:
        """SHA-256 over what a resumed run must find unchanged: steps, options, and each split's images and labels."""
        splits = {
            name: [(self.cases[index].image_path, self.cases[index].labels) for index in indices]
            for name, indices in self.splits.by_name().items()
        }
        text = json.dumps([[(step.name, step.options) for step in self.chain.steps], splits])
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def num_cases(self) -> dict[str, int]:
        """Number of cases in each split."""
        return {name: len(getattr(self.splits, name)) for name in ("train", "val", "test")}


def load_dataset(
    settings: Settings,
    *,
    preprocessing: Preprocessing,
    is_known: Callable[[Case], bool] | None = None,
    require_images: bool = True,
    progress: Progress | None = None,
) -> Dataset:
    """The data that the settings name; every image that is not known has been decoded once when this returns.

    Args:
      settings: of the run.
      preprocessing: what the image encoder asks for.
      is_known: says of a folder's case that its image is good and need not be decoded now.
      require_images: whether a folder's images have to be there.
      progress: shows how far the reading is.

    Raises:
      BadInput: a record, an image or a split cannot be used and the settings say to stop.
    """
    if settings.data.source == "phantom":
        return _load_phantom(settings, preprocessing, progress)
    return _load_folder(settings, preprocessing, is_known, require_images, progress)


def _budget(settings: Settings) -> float:
    return settings.data.cache_megabytes * 1e6


def _load_phantom(settings: Settings, preprocessing: Preprocessing, progress: Progress | None) -> Dataset:
    phantom = settings.phantom

    def draw(index: int) -> tuple[Case, Pixels]:
        drawn = draw_case(index, seed=phantom.seed, size=phantom.image_size, prevalence=phantom.prevalence)
        return drawn.case, resize_image(np.repeat(drawn.image[..., None], 3, axis=-1), preprocessing)

    pixels = PixelCache(lambda index: draw(index)[1], _budget(settings))
    indices: Iterable[int] = range(phantom.num_cases)
    cases = []
    for index in indices if progress is None else progress(indices, "drawing the phantom"):
        case, drawn_pixels = draw(index)
        cases.append(case)
        pixels.put(index, drawn_pixels)
    splits, source = _make_splits(settings, cases, "the phantom")
    return Dataset(DEFAULT_CHAIN, tuple(cases), splits, pixels, preprocessing, splits_source=source)


def _load_folder(
    settings: Settings,
    preprocessing: Preprocessing,
    is_known: Callable[[Case], bool] | None,
    require_images: bool,
    progress: Progress | None,
) -> Dataset:
    data = settings.data
    root = pathlib.Path(data.root)
    max_pixels = int(data.max_megapixels * 1e6)
    collection = read_records(
        root, step_names=data.step_names, on_bad_record=data.on_bad_record, require_images=require_images
    )
    readable: list[Case] = []

    def read(index: int) -> Pixels:
        return resize_image(decode_image(root / readable[index].image_path, max_pixels=max_pixels), preprocessing)

    pixels = PixelCache(read, _budget(settings))
    collection = check_images(
        collection,
        on_bad_record=data.on_bad_record,
        max_pixels=max_pixels,
        preprocessing=preprocessing,
        visit=pixels.put,
        is_known=is_known,
        progress=None if progress is None else lambda cases: progress(cases, "reading the images"),
        num_threads=data.num_threads,
    )
    readable.extend(collection.cases)
    splits, source = read_splits(root, collection.cases, set_aside=collection.set_aside), str(root)
    if splits is None:
        splits, source = _make_splits(settings, collection.cases, str(root))
    return Dataset(
        collection.chain,
        collection.cases,
        splits,
        pixels,
        preprocessing,
        set_aside=collection.set_aside,
        splits_source=source,
    )


def _make_splits(settings: Settings, cases: Sequence[Case], where: str) -> tuple[Splits, str]:
    seed, fractions = settings.data.split_seed, settings.data.split_fractions
    try:
        splits = make_splits(cases, seed=seed, fractions=fractions)  # type: ignore[arg-type]
    except BadInput as error:
        raise BadInput(f"{where}: {error}") from None
    return splits, f"made from seed {seed}, {fractions}: stratified by the last step, disjoint by patient"


def write_account(dataset: Dataset, workdir: pathlib.Path) -> str | None:
    """Write who is in which split to `splits.json`, and what was set aside, with its reason, to `quarantine.jsonl`.

    Returns:
      A sentence for the person if anything was set aside, else None.
    """
    write_manifest(workdir / "splits.json", dataset.splits, dataset.cases, source=dataset.splits_source)
    quarantine = workdir / "quarantine.jsonl"
    if not dataset.set_aside:
        quarantine.unlink(missing_ok=True)
        return None
    write_quarantine(quarantine, dataset.set_aside)
    num_records = len(dataset.set_aside) + len(dataset.cases)
    return f"{len(dataset.set_aside)} of {num_records} records are set aside, each with its reason in {quarantine}"
