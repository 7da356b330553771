"""Loads the data that the settings name, from a folder, tfds or the phantom: cases, then questions with boxes."""

import functools
import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from stepcot_jax.chain import DEFAULT_CHAIN
from stepcot_jax.data.dataset import Dataset
from stepcot_jax.data.images.pixels import FilePixels, PhantomPixels, PixelCache
from stepcot_jax.data.images.preprocessing import Preprocessing, decode_image_bytes
from stepcot_jax.data.record_table import RecordTable
from stepcot_jax.data.splits.making import make_fold, make_splits
from stepcot_jax.data.splits.splits import SPLIT_NAMES, Splits
from stepcot_jax.host.download import find_path, is_address
from stepcot_jax.host.errors import BadInput
from stepcot_jax.record import Record
from stepcot_jax.run.settings import Settings

if TYPE_CHECKING:
    from stepcot_jax.data.images.image_files import ImageFiles
    from stepcot_jax.data.questions.record_files import VqaCollection
    from stepcot_jax.data.questions.vqa_dataset import Progress as WatchQuestions
    from stepcot_jax.data.questions.vqa_dataset import VqaDataset
    from stepcot_jax.data.records.records import Collection

Progress = Callable[[Iterable[Any], str], Iterable[Any]]  # wraps an iterable with a description, as progress bars do
IsKnown = Callable[[str], bool]  # whether an image with this SHA-256 was decoded before and need not be now


def load_dataset(
    settings: Settings,
    *,
    preprocessing: Preprocessing,
    is_known: IsKnown | None = None,
    require_images: bool = True,
    progress: Progress | None = None,
) -> Dataset:
    """Return the dataset that the settings name."""
    watch = progress or _watch_silently
    if settings.data.source == "phantom":
        return _load_phantom(settings, preprocessing, watch)
    if settings.data.source == "tfds":
        return _load_prepared(settings, preprocessing, watch)
    from stepcot_jax.data.images.image_files import folder_files  # phantoms need no reader of files
    from stepcot_jax.data.sources.layouts import read_source

    data, root = settings.data, find_path(settings.data.root, "config.data.root")
    if require_images and (data.check_images, data.on_bad_record) == ("on_use", "skip"):
        raise BadInput("config.data.check_images: 'on_use' with config.data.on_bad_record='skip'; expected 'ahead'")
    collection = read_source(
        root,
        layout=data.layout,
        step_names=data.step_names,
        on_bad_record=data.on_bad_record,
        require_images=require_images,
        single_label=data.single_label,
        labels_from=data.labels_from,
    )
    return make_dataset(
        settings,
        collection,
        folder_files(collection, max_pixels=data.max_pixels),
        preprocessing=preprocessing,
        are_checked=not require_images or data.check_images == "on_use",
        is_known=is_known,
        progress=watch,
    )


def _watch_silently(items: Iterable[Any], _: str) -> Iterable[Any]:
    return items


def make_dataset(
    settings: Settings,
    collection: "Collection",
    images: "ImageFiles",
    *,
    preprocessing: Preprocessing,
    are_checked: bool,
    splits: tuple[Splits, str] | None = None,
    is_known: IsKnown | None = None,
    progress: Progress = _watch_silently,
) -> Dataset:
    """Return the dataset of a run from a collection and its images; see `load_dataset`."""
    from stepcot_jax.data.images.image_files import Selection, check_images

    max_pixels, file, numbers = settings.data.max_pixels, str(collection.path), collection.record_numbers
    read = FilePixels(images, preprocessing, max_pixels, file, numbers, says_notes=are_checked)
    cache = PixelCache(read, _budget(settings))
    digests: dict[str, str] = {}  # by image path

    def digest_known(case: Record, content: bytes) -> bool:
        digests[case.image] = hashlib.sha256(content).hexdigest()
        return is_known is not None and is_known(digests[case.image])

    if not are_checked:  # decodes every image once, into the cache
        collection = check_images(
            collection,
            images=images,
            on_bad_record=settings.data.on_bad_record,
            max_pixels=max_pixels,
            preprocessing=preprocessing,
            visit=cache.put,
            is_known=digest_known,
            progress=lambda cases: progress(cases, "reading the images"),
            num_threads=settings.data.decoding_threads,
        )
        kept = collection.record_numbers
        if len(kept) < len(numbers):
            images = Selection(images, np.searchsorted(numbers, kept).tolist())
            cache.read = FilePixels(images, preprocessing, max_pixels, file, kept)
    elif known := getattr(images, "digest", None):  # a prepared dataset knows them
        digests = {path: known(index) for index, path in enumerate(collection.cases.image_paths)}
    chosen_splits, source = splits or _find_splits(settings, collection, images, progress)
    return Dataset(
        collection.chain,
        collection.cases,
        chosen_splits,
        cache,
        preprocessing,
        set_aside=collection.set_aside,
        splits_source=source,
        images=images,
        digests={index: digests[path] for index, path in enumerate(collection.cases.image_paths) if path in digests},
        uncertain=settings.data.uncertain,
    )


def _budget(settings: Settings) -> float:
    """Return how many bytes of pixels to cache; 0 if workers read, since they do not share this cache."""
    is_stored = settings.image_encoder.is_frozen and settings.features.store
    return 0.0 if settings.data.num_workers and not is_stored else settings.data.cache_megabytes * 1e6


def _load_phantom(settings: Settings, preprocessing: Preprocessing, progress: Progress) -> Dataset:
    from stepcot_jax.data.phantom.phantom import draw_case

    phantom = settings.phantom
    drawing = PhantomPixels(phantom.seed, phantom.image_size, phantom.prevalence, preprocessing)
    pixels, drawn_cases = PixelCache(drawing, _budget(settings)), list[Record]()
    for index in progress(range(phantom.num_cases), "drawing the phantom"):
        if settings.data.num_train:  # most pictures may never be read: each is drawn at its first use
            drawn_cases.append(drawing.plan(index))
            continue
        case, drawn = drawing.draw(index)
        drawn_cases.append(case)
        pixels.put(index, drawn)

    def draw_full_size(index: int) -> np.ndarray:
        return draw_case(index, **phantom.drawing).image

    cases = RecordTable(drawn_cases)
    splits, source = _make_splits(settings, cases, "the phantom", draw_full_size, progress)
    return Dataset(
        DEFAULT_CHAIN, cases, splits, pixels, preprocessing, splits_source=source, uncertain=settings.data.uncertain
    )


def _load_prepared(settings: Settings, preprocessing: Preprocessing, progress: Progress) -> Dataset:
    from stepcot_jax.data.tfds.source import open_prepared

    prepared = open_prepared(find_path(settings.data.root, "config.data.root"), max_pixels=settings.data.max_pixels)
    names = tuple(step.name for step in prepared.collection.chain.steps)
    if names != settings.data.step_names:
        raise BadInput(
            f"config.data.step_names: {settings.data.step_names} must be {names} with {prepared.collection.root}"
        )
    return make_dataset(
        settings,
        prepared.collection,
        prepared.images,
        preprocessing=preprocessing,
        are_checked=True,
        splits=None if settings.data.fold else (prepared.splits, prepared.splits_source),
        progress=progress,
    )


def _find_splits(
    settings: Settings, collection: "Collection", images: "ImageFiles", progress: Progress
) -> tuple[Splits, str]:
    """Return splits and their source: those of the data's tables, or new ones if there are none or for a fold."""
    from stepcot_jax.data.splits.split_resolver import read_splits

    root = collection.root  # a folder even if `data.root` names a file in it
    where = settings.data.root if is_address(settings.data.root) else str(root)
    if not settings.data.fold:
        splits = read_splits(root, collection.cases, set_aside=collection.set_aside)
        if splits is not None:
            return splits, where

    def decode_full_size(index: int) -> np.ndarray:
        return decode_image_bytes(images.read(index), name=images.name(index), max_pixels=settings.data.max_pixels)

    return _make_splits(settings, collection.cases, where, decode_full_size, progress)


def _make_splits(
    settings: Settings, cases: RecordTable, where: str, read_full_size: Callable[[int], np.ndarray], progress: Progress
) -> tuple[Splits, str]:
    """Return new splits and their source; near-duplicates are searched in full-size images, whatever the encoder."""
    data = settings.data
    what = f"fold {data.fold} " if data.fold else ""
    source = f"{what}made from seed {data.split_seed}, {data.split_fractions}: stratified by last step and origin, "
    source += "disjoint by patient"
    joined: Any = ()
    if data.near_duplicate_radius:
        from stepcot_jax.data.splits.near_duplicates import find_near_duplicates, perceptual_hash

        watched = progress(range(len(cases)), "looking for near-duplicates")
        hashes = np.array([perceptual_hash(read_full_size(index)) for index in watched], np.uint64)
        joined = find_near_duplicates(hashes, radius=data.near_duplicate_radius)
        source += f", near-duplicates within {data.near_duplicate_radius} bits together"
    try:
        make = functools.partial(make_fold, fold=data.fold) if data.fold else make_splits
        splits = make(cases, seed=data.split_seed, fractions=data.split_fractions, joined=joined)
    except BadInput as error:
        raise BadInput(f"{where}: {error}") from None
    return splits, source


# Questions with boxes.


def load_vqa_dataset(
    settings: Settings, *, splits: Sequence[str] = SPLIT_NAMES, progress: "WatchQuestions" = iter
) -> "VqaDataset":
    """Return the dataset of reasoning records that `settings.vqa` names."""
    from stepcot_jax.data.questions import vqa_dataset as questions

    data, phantom = settings.data, settings.phantom
    if not splits or not set(splits) <= set(SPLIT_NAMES):
        raise ValueError(f"splits must be some of {', '.join(SPLIT_NAMES)}; got {list(splits)}")
    if settings.vqa.source != "phantom":
        from stepcot_jax.data.sources.layouts import read_vqa_source  # of folders alone: 20 modules
        from stepcot_jax.reasoning.levels import list_keys

        root = find_path(settings.vqa.root, "config.vqa.root")
        collection = read_vqa_source(
            root,
            layout=settings.vqa.layout,
            box_size=settings.vqa.box_size if any(settings.vqa.box_size) else None,
            on_bad_record=data.on_bad_record,
            levels=tuple(list_keys(settings.vqa.level_forms, settings.vqa.levels)) if settings.vqa.levels else (),
            require_images=False,  # missing pictures are told of with the broken ones
        )
        return load_questions(settings, collection, splits=splits, progress=progress)
    size = settings.image_encoder.image_size
    loaded = questions.load_phantoms(
        num_cases=phantom.num_cases,
        seed=phantom.seed,
        image_size=phantom.image_size,
        prevalence=phantom.prevalence,
        preprocessing=Preprocessing(size, fit="stretch"),
        splits=splits,
        fractions=data.split_fractions,
        split_seed=phantom.seed + data.split_seed,
        cache_bytes=data.cache_megabytes * 1e6,
        progress=progress,
    )
    return questions.make_vqa_dataset(loaded, splits=splits, size=size, where="the phantoms")


def load_questions(
    settings: Settings,
    collection: "VqaCollection",
    *,
    splits: Sequence[str] = SPLIT_NAMES,
    progress: "WatchQuestions" = iter,
) -> "VqaDataset":
    """Return the dataset of questions that have been read, with their pictures loaded as the settings say."""
    from stepcot_jax.data.questions import vqa_dataset as questions

    data, size = settings.data, settings.image_encoder.image_size
    loaded = questions.load_pictures(
        collection,
        preprocessing=Preprocessing(size, fit="stretch"),
        splits=splits,
        how=questions.SplitOptions(
            fractions=data.split_fractions,
            seed=data.split_seed,
            val_share=settings.vqa.val_share,
            shared=settings.vqa.shared_pictures,
            near_duplicate_radius=data.near_duplicate_radius,
        ),
        on_bad_record=data.on_bad_record,
        check_images=data.check_images,
        max_pixels=settings.data.max_pixels,
        cache_bytes=data.cache_megabytes * 1e6,
        num_threads=data.decoding_threads,
        progress=progress,
    )
    return questions.make_vqa_dataset(loaded, splits=splits, size=size, where=str(collection.root))
