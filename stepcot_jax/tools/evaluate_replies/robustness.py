"""Perturbed questions for a model to answer, and the table of its answers (GEMeX-RMCoT, Table 5)."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from stepcot_jax.data.questions.record_files import VqaCollection, write_vqa_records
from stepcot_jax.data.questions.reply_files import ReplyFile
from stepcot_jax.data.questions.variants import VARIANT
from stepcot_jax.evaluation.audits import (
    PERTURBED_KINDS,
    NegatedAnswer,
    PerturbationStd,
    perturb_records,
    spread,
)
from stepcot_jax.evaluation.replies import A_SCORE, Key, ScoringSettings, as_columns, score_all, score_models
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import digest_file, read_file, write_whole, writing_whole
from stepcot_jax.host.ranges import Interval
from stepcot_jax.pages.sheets import Column, Entry, Table, columns
from stepcot_jax.reasoning.dialects import write_question
from stepcot_jax.record import Record

_SOURCE = "source.json"
_STDS: dict[PerturbationStd, str] = {
    "population": "standard deviation of the rounds about their mean",
    "sample": "standard deviation of the rounds about their mean, with one less in the divisor",
    "from_original": "root mean square of the rounds' differences to the original",
}


def name_round(folder: Path, number: int) -> Path:
    """Return the path of a round's records."""
    return folder / f"records_{number}.jsonl"


def write_rounds(
    folder: Path,
    records: Sequence[Record],
    collection: VqaCollection,
    *,
    num_rounds: int,
    seed: int,
    negated_answer: NegatedAnswer,
    dialect: str,
    with_thinking: bool = True,
) -> list[Path]:
    """Write the closed and single-choice records of each round, their prompts, and the digest of the source file."""
    written = []
    write_whole(folder / _SOURCE, msgspec.json.encode({"sha256": digest_file(collection.path)[1]}))
    for number in range(1, num_rounds + 1):
        perturbed = perturb_records(records, seed=seed, round_number=number, negated_answer=negated_answer)
        write_vqa_records(name_round(folder, number), perturbed)
        prompts = folder / f"prompts_{number}.jsonl"
        write_prompts(prompts, perturbed, root=collection.root, dialect=dialect, with_thinking=with_thinking)
        written += [name_round(folder, number), prompts]
    return written


def read_source(folder: Path) -> str:
    """Return the digest of the file from which the perturbed records of a folder were made."""
    try:
        return msgspec.json.decode(read_file(folder / _SOURCE, max_bytes=2**16), type=dict[str, str])["sha256"]
    except (OSError, msgspec.MsgspecError, KeyError):
        raise BadInput(f"{folder / _SOURCE}: cannot be read; expected a folder that `perturb` wrote") from None


def write_prompts(
    path: Path, records: Sequence[Record], *, root: Path, dialect: str, with_thinking: bool = True
) -> None:
    """Write prompts: JSON lines with `id`, `image` (a path), `image_size`, `prompt` and, of an audit, `variant`."""
    with writing_whole(path) as file:
        for record in records:
            line = {
                "id": record.id,
                "image": os.path.abspath(root / record.image),  # noqa: PTH100 - links are kept
                "image_size": record.image_size,
                "prompt": write_question(record, dialect, with_thinking=with_thinking),
            }
            if VARIANT in record.provenance:
                line["variant"] = record.provenance[VARIANT]
            file.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")


def score_rounds(
    rounds: Sequence[tuple[Sequence[Record], ReplyFile]],
    settings: ScoringSettings,
    *,
    num_resamples: int,
    seed: int,
) -> list[dict[Key, Interval]]:
    """Compute the figures of each round from its records and replies."""
    columns_of = {
        str(number): as_columns(records, score_all(records, file.replies, settings, finishes=file.finishes))
        for number, (records, file) in enumerate(rounds)
    }
    return list(score_models(columns_of, num_resamples=num_resamples, seed=seed).values())


def tabulate_rounds(
    rounds: Sequence[Mapping[Key, Interval]], original: Mapping[Key, Interval], *, model: str, std: PerturbationStd
) -> Table:
    """Make the table of A-scores by round, with their standard deviation."""
    heads = (
        *columns("text", "task"),
        *columns("percent", "original", *(f"per. {number}" for number in range(1, len(rounds) + 1))),
        Column("std", "percent", digits=3),
    )
    rows: list[tuple[Entry, ...]] = []
    for kind in PERTURBED_KINDS:
        key = A_SCORE, kind
        if key in original and all(key in of_round for of_round in rounds):
            intervals = [of_round[key] for of_round in rounds]
            deviation = spread([interval.value for interval in intervals], original=original[key].value, std=std)
            rows.append((kind, original[key], *intervals, deviation))
    notes = (
        'Closed questions: the leading "is" becomes "isn\'t" or "abnormal" becomes "normal", each question with '
        "probability 0.5. Single choice: the options in random order.",
        f"std: {_STDS[std]}.",
    )
    return Table("perturbed", f"A-score of {model} under perturbation", heads, tuple(rows), notes)


def describe_rounds(table: Table) -> dict[str, dict[str, Any]]:
    """Return the figures of the table, by kind of question."""
    described = {}
    for kind, original, *others, deviation in table.rows:
        figures = [{name: getattr(entry, name) for name in ("value", "low", "high")} for entry in (original, *others)]
        described[str(kind)] = {"original": figures[0], "rounds": figures[1:], "std": deviation}
    return described
