"""Records of a folder, and datasets from records, without a config: `load_records`, `make_dataset`."""

import os
from typing import Any

from stepcot_jax.data.columns import RecordTable
from stepcot_jax.data.dataset import Dataset
from stepcot_jax.data.images.image_files import folder_files
from stepcot_jax.data.questions.record_files import FILE_NAME, VqaCollection, read_vqa_records
from stepcot_jax.data.questions.vqa_dataset import VqaDataset
from stepcot_jax.data.records.records import Collection, OnBadRecord
from stepcot_jax.data.sources.layouts import AUTO, read_source
from stepcot_jax.host.download import find_path
from stepcot_jax.host.errors import BadInput
from stepcot_jax.record import Records
from stepcot_jax.run import loading, loading_questions
from stepcot_jax.run.networks import trained_preprocessing
from stepcot_jax.run.settings import load_settings


def load_records(
    root: str | os.PathLike[str], *, layout: str = AUTO, on_bad_record: OnBadRecord = "stop", **reading: Any
) -> Records:
    """Read the records of a folder: answers to the steps of a chain, or questions.

    Args:
      root: a folder in a layout that `stepcot data check` knows, or with `records.jsonl`, or such a file.
      layout: "auto" detects it.
      on_bad_record: "stop" raises at a bad record, "skip" sets it aside.
      **reading: `step_names`, `single_label` and others of `data.sources.layouts.read_source`.

    Raises:
      BadInput: the folder has no known layout, or a record is bad.
    """
    source = find_path(root, "root")
    path = source / FILE_NAME if source.is_dir() else source
    if path.is_file() and path.suffix == ".jsonl":
        questions = read_vqa_records(path, on_bad_record=on_bad_record)
        return Records(questions.records, root=questions.root, set_aside=questions.set_aside)
    cases = read_source(source, layout=layout, on_bad_record=on_bad_record, **reading)
    return Records(cases.cases, root=cases.root, chain=cases.chain, set_aside=cases.set_aside)


def make_dataset(records: Records, *, image_size: int = 224, seed: int = 0, **settings: Any) -> Dataset | VqaDataset:
    """Return the dataset of a run: splits by patient and pictures of one size, each decoded once.

    Splits that the records name are kept. Otherwise they are read from the folder's tables, or made from `seed`.

    Args:
      image_size: side in pixels of the networks' pictures.
      **settings: further settings of `config.data` and `config.image_encoder`, such as
        `**{"data.split_fractions": (0.8, 0.1, 0.1)}`.

    Returns:
      A `Dataset` for answers of a chain, a `VqaDataset` for questions.

    Raises:
      BadInput: a picture cannot be read, a split is empty, or a patient is in two splits.
    """
    if not len(records):
        raise BadInput(f"{records.root}: no record; expected at least one")
    sizes = {"image_encoder.image_size": image_size, "data.split_seed": seed}
    if records.chain is None:
        lines = tuple(range(1, len(records) + 1))
        questions = VqaCollection(records.root / FILE_NAME, tuple(records), records.set_aside, lines)
        return loading_questions.load_questions(load_settings("base", **sizes, **settings), questions)
    names = tuple(step.name for step in records.chain.steps)
    of_folder = {"data.source": "folder", "data.root": str(records.root), "data.step_names": names}
    resolved = load_settings("base", **sizes, **of_folder, **settings)
    collection = Collection(records.root, records.chain, RecordTable(records), records.set_aside)
    return loading.make_dataset(
        resolved,
        collection,
        folder_files(collection, max_pixels=resolved.data.max_pixels),
        preprocessing=trained_preprocessing(resolved),
        are_checked=resolved.data.check_images == "on_use",
    )
