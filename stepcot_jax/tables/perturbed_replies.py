"""Replies of a finished cell to perturbed test questions, kept in its folder."""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np

from stepcot_jax.data.grounded.record_files import read_vqa_records, write_vqa_records
from stepcot_jax.data.grounded.reply_files import read_replies
from stepcot_jax.data.grounded.vqa_dataset import VqaDataset, load_vqa_dataset
from stepcot_jax.evaluation.interventions import perturb_records
from stepcot_jax.evaluation.replies import encode
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import write_whole
from stepcot_jax.policies.policy_choice import read_tokenizer
from stepcot_jax.predict.record_answers import answer_records, leave_out
from stepcot_jax.predict.trained_policy import load_policy
from stepcot_jax.reasoning.dialects import write_question
from stepcot_jax.reasoning.record import VqaRecord
from stepcot_jax.settings.stored_settings import read_settings

ROUND_SEED = 0
"""Seed of the perturbations: the same questions for every training."""

FOLDER = "perturbed"


@dataclasses.dataclass(frozen=True)
class PerturbedReplies:
    """Perturbed questions with replies.

    Attributes:
      rounds: records and replies by id of each round.
      left_out: pieces that a closed vocabulary does not have, for each prompt that they were left out of.
    """

    rounds: Sequence[tuple[Sequence[VqaRecord], Mapping[str, str]]]
    left_out: Sequence[str]


def answer_rounds(folder: pathlib.Path, records: Sequence[VqaRecord], *, num_rounds: int) -> PerturbedReplies:
    """Return a run's replies to the perturbed closed and single-choice records; those in `perturbed/` are reused."""
    settings = read_settings(folder / "settings.json")
    perturbed = [perturb_records(records, seed=ROUND_SEED, round_number=number + 1) for number in range(num_rounds)]
    places = [folder / FOLDER / f"replies_{number + 1}.jsonl" for number in range(num_rounds)]
    missing = [number for number in range(num_rounds) if not _is_answered(places[number], perturbed[number])]
    if missing:
        trained = load_policy(folder)
        dataset = load_vqa_dataset(settings, splits=("test",))
        _check_records(folder, dataset, records)
        for number in missing:
            texts = answer_records(
                trained, perturbed[number], _image_loader(dataset, perturbed[number]), leave_out_unknown=True
            )
            _write(places[number], perturbed[number], texts)
    tokenizer, vqa = read_tokenizer(folder, settings), settings.vqa
    left_out = [
        word.strip()
        for own in perturbed
        for record in own
        for word in leave_out(write_question(record, vqa.dialect, with_thinking=vqa.with_thinking), tokenizer)[1]
    ]
    return PerturbedReplies(
        [(own, _read(path, own)) for own, path in zip(perturbed, places, strict=True)],
        left_out,
    )


def _records_path(path: pathlib.Path) -> pathlib.Path:
    return path.with_name(path.name.replace("replies", "records"))


def _is_answered(path: pathlib.Path, records: Sequence[VqaRecord]) -> bool:
    """Return whether the replies are there, and to these records."""
    written = _records_path(path)
    return path.is_file() and written.is_file() and list(read_vqa_records(written).records) == list(records)


def _write(path: pathlib.Path, records: Sequence[VqaRecord], texts: Sequence[str]) -> None:
    """Write replies, then their records, without which the replies do not count."""
    path.parent.mkdir(exist_ok=True)
    _records_path(path).unlink(missing_ok=True)
    lines = [encode({"id": record.id, "reply": text}) for record, text in zip(records, texts, strict=True)]
    write_whole(path, b"".join(lines))
    write_vqa_records(_records_path(path), records)


def _read(path: pathlib.Path, records: Sequence[VqaRecord]) -> Mapping[str, str]:
    ids = {record.id: None for record in records}
    return read_replies(path, name=path.stem, chosen=ids.keys(), known=ids.keys(), missing="stop").replies


def _check_records(folder: pathlib.Path, dataset: VqaDataset, records: Sequence[VqaRecord]) -> None:
    if list(dataset.records) != list(records):
        raise BadInput(f"{folder}: the test records of its data have changed since it ran; restore them")


def _image_loader(dataset: VqaDataset, records: Sequence[VqaRecord]):  # type: ignore[no-untyped-def]
    """Return a function from places of the records to their images."""
    image_of = {record.id: image for record, image in zip(dataset.records, dataset.image_of, strict=True)}
    images = np.array([image_of[record.id] for record in records])
    return lambda places: dataset.load_images(images[list(places)])
