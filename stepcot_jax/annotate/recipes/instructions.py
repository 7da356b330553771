"""Instructions by task (MEDSAGE, A.3.2), and the balanced sample for reinforcement learning (A.4); texts are ours."""

import collections
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from stepcot_jax.box import as_corners
from stepcot_jax.record import Record

Instructions = Literal["none", "by-task"]
BALANCES = ("instruction", "modality", "difficulty")
_TEMPLATES: dict[str, list[str]] = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
_SMALL = 0.01  # share of the picture, below which a box makes a question difficult


def instruction_type(record: Record) -> str:
    """Return the task of a question: presence, normality, choice, choices, cause or description."""
    if record.kind == "closed" and not record.is_answered_in_words:
        return "normality" if record.topic == "normality" else "presence"
    by_kind = {"single": "choice", "multi": "choices"}
    return by_kind.get(record.kind) or ("cause" if record.topic.startswith("cause of ") else "description")


def write_instruction(record: Record, seed: int) -> tuple[str, str]:
    """Return a question in one of its task's instructions, and the name of the instruction."""
    kind = instruction_type(record)
    number = _draw(record.id, seed) % len(_TEMPLATES[kind])
    return _TEMPLATES[kind][number].format(question=record.question.strip()), f"{kind} {number + 1}"


def difficulty(record: Record) -> str:
    """Return how hard a question is taken to be, in this library's measure: easy, medium or hard."""
    boxes = as_corners([box.corners for box in record.references])
    shares = (boxes[:, 2:] - boxes[:, :2]).prod(axis=1) / (record.image_size[0] * record.image_size[1])
    if record.kind == "multi" or len(boxes) > 1 or (shares < _SMALL).any():
        return "hard"
    return "easy" if record.kind == "closed" else "medium"


def sample_balanced(
    records: Sequence[Record], *, number: int, by: Sequence[str], seed: int
) -> tuple[list[Record], dict[str, tuple[int, int]]]:
    """Return training questions, spread over the cells of `by`, with all others, and the counts of each cell.

    A question has one record; a cell's counts are those of its training questions, and of those drawn.
    """
    chosen = {record.provenance.get("question", record.id): record for record in records[::-1]}
    cells: dict[str, list[Record]] = collections.defaultdict(list)
    drawn = {record.id for record in chosen.values() if record.split in ("val", "test")}
    for record in chosen.values():
        if record.id not in drawn:
            cells[_name_cell(record, by)].append(record)
    counts, left = {}, number
    for position, (cell, members) in enumerate(sorted(cells.items(), key=lambda item: (len(item[1]), item[0]))):
        taken = sorted(members, key=lambda record: _draw(record.id, seed))[: left // (len(cells) - position)]
        drawn.update(record.id for record in taken)
        counts[cell], left = (len(members), len(taken)), left - len(taken)
    return [record for record in records if record.id in drawn], counts


def _name_cell(record: Record, by: Sequence[str]) -> str:
    names = {"instruction": instruction_type, "modality": lambda it: it.modality or "unknown", "difficulty": difficulty}
    return ", ".join(names[name](record) for name in by)


def _draw(name: str, seed: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed} {name}".encode()).digest()[:8])
