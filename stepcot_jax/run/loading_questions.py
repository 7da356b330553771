"""Loads the questions with boxes that the settings name: from a folder or the phantom."""

from collections.abc import Sequence

from stepcot_jax.data.images.preprocessing import Preprocessing
from stepcot_jax.data.questions import vqa_dataset as questions
from stepcot_jax.data.questions.record_files import VqaCollection
from stepcot_jax.data.questions.vqa_dataset import SplitOptions, VqaDataset
from stepcot_jax.data.splits.splits import SPLIT_NAMES
from stepcot_jax.host.download import find_path
from stepcot_jax.host.errors import BadInput
from stepcot_jax.reasoning.levels import list_keys
from stepcot_jax.run.settings import Settings


def load_vqa_dataset(
    settings: Settings, *, splits: Sequence[str] = SPLIT_NAMES, progress: questions.Progress = iter
) -> VqaDataset:
    """Return the dataset of reasoning records that `settings.vqa` names."""
    data, phantom = settings.data, settings.phantom
    if not splits or not set(splits) <= set(SPLIT_NAMES):
        raise ValueError(f"splits must be some of {', '.join(SPLIT_NAMES)}; got {list(splits)}")
    for name in ("fold", "origins"):
        if value := getattr(data, name):
            raise BadInput(f"config.data.{name}: {value!r} has no effect on reasoning records; leave it out")
    if settings.vqa.source != "phantom":
        from stepcot_jax.data.sources.layouts import read_vqa_source  # of folders alone: 20 modules

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
    collection: VqaCollection,
    *,
    splits: Sequence[str] = SPLIT_NAMES,
    progress: questions.Progress = iter,
) -> VqaDataset:
    """Return the dataset of questions that have been read, with their pictures loaded as the settings say."""
    data, size = settings.data, settings.image_encoder.image_size
    loaded = questions.load_pictures(
        collection,
        preprocessing=Preprocessing(size, fit="stretch"),
        splits=splits,
        how=SplitOptions(
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
