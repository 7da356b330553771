"""A sheet of your own: CSV, TSV, Excel, JSON or JSON Lines with image, question and answer.

Optional columns: options (or option_a, option_b, ...), box and label, split, patient, kind, id, topic, modality, organ,
synonyms. Options, synonyms and several answers are lists (JSON), or texts separated by "|" or ";".
"""

import re
import string
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import msgspec

from stepcot_jax.box import Box
from stepcot_jax.data.delimited import fold_column
from stepcot_jax.data.identities import read_split
from stepcot_jax.data.sources.intake import read_image_size
from stepcot_jax.data.sources.listed import How, Source
from stepcot_jax.data.sources.question_files import Asked, Place, Row, as_text, list_tables, split_answers
from stepcot_jax.host.errors import BadInput
from stepcot_jax.record import KINDS, Kind

COLUMNS = {
    "image": ("image", "image path", "image file", "image name", "img", "img path", "file", "filename"),
    "question": ("question",),
    "answer": ("answer", "answers"),
    "options": ("options", "choices"),
    "box": ("box", "bbox", "boxes"),
    "label": ("label", "labels"),
    "split": ("split",),
    "patient": ("patient", "patient id", "patientid", "subject id"),
    "kind": ("kind", "question type", "answer type"),
    "id": ("id", "qid", "question id"),
    "topic": ("topic",),
    "modality": ("modality",),
    "organ": ("organ", "body part"),
    "synonyms": ("synonyms",),
}
_TEXTS = ("image", "question", "id", "patient", "topic", "modality", "organ")  # taken as they are
_SEPARATORS = re.compile(r"\s*[|;]\s*|\s*\n\s*")
_OPTION = re.compile(r"(?:option|choice) ([a-z])")
_NUMBERS = re.compile(r"[\s,;\[\]()]+")


def is_question_sheet(columns: Iterable[str]) -> bool:
    """Return whether a table with these columns is a sheet of questions."""
    folded = set(map(fold_column, columns))
    return all(folded.intersection(COLUMNS[name]) for name in ("image", "question", "answer"))


def list_question_sheet(root: Path, how: How, files: list[Path]) -> Source:
    """List the questions of the sheets of a folder, or of one sheet."""
    origin = (root if root.is_dir() else root.parent).name or "sheet"
    folders = (".", "images", "imgs", "figures")
    return list_tables(root, how, files, _read, origin=origin, licence="unknown", folders=folders)


def _read(fields: Row, place: Place) -> Asked:
    cells = {fold_column(name): value for name, value in fields.items()}
    known = {
        name: next((cells[column] for column in columns if cells.get(column) not in (None, "")), "")
        for name, columns in COLUMNS.items()
    }
    texts: dict[str, Any] = {name: as_text(known[name], name) for name in _TEXTS}
    options = _read_list(known["options"], "options") or _letter_columns(cells)
    kind = as_text(known["kind"], "kind").casefold()
    answer = known["answer"]
    answer = answer if isinstance(answer, list) else as_text(answer, "answer")
    if isinstance(answer, str) and (answer.startswith("[") or (kind == "multi" and options)):
        answer = _read_list(answer, "answer")
    if isinstance(answer, str) and options:
        answer = split_answers(answer, len(options))
    if isinstance(answer, list) and not options:
        raise BadInput(f"answer: {len(answer)} answers without options; expected one, and others as synonyms")
    references, size = _read_boxes(known["box"], known["label"], texts["image"], place)
    split = as_text(known["split"], "split")
    return Asked(
        answer=answer,
        options=options,
        kind=_read_kind(kind, answer),
        split=read_split(split) if split else None,
        synonyms=_read_list(known["synonyms"], "synonyms"),
        references=references,
        image_size=size,
        **texts,
    )


def _read_kind(written: str, answer: str | list[str]) -> Kind | None:
    """Return the kind that a cell names; other words, such as a question's subject, say nothing."""
    named = next((kind for kind in KINDS if written.startswith(kind)), None)
    return "multi" if named == "single" and isinstance(answer, list) else named


def _letter_columns(cells: Row) -> list[str]:
    """Return the options of columns option_a, option_b, ... in order."""
    options = {match[1]: as_text(value, name) for name, value in cells.items() if (match := _OPTION.fullmatch(name))}
    return [options.get(letter, "") for letter in string.ascii_lowercase[: len(options)]] if options else []


def _read_list(value: Any, field: str) -> list[str]:
    if isinstance(value, dict) and sorted(value) == list(string.ascii_uppercase[: len(value)]):  # {"A": "text", ...}
        value = [value[letter] for letter in sorted(value)]
    if isinstance(value, list | tuple):
        return [as_text(item, field) for item in value]
    written = as_text(value, field).strip()
    if not written.startswith("["):
        return [text for text in _SEPARATORS.split(written) if text]
    try:
        return msgspec.json.decode(written.encode(), type=list[str])
    except msgspec.MsgspecError:
        raise BadInput(f"{field}: {written[:80]!r} begins as a JSON list and is none of texts") from None


def _read_boxes(value: Any, label: Any, image: str, place: Place) -> tuple[tuple[Box, ...], tuple[int, int]]:
    """Return boxes in pixels of the file, [x1, y1, x2, y2], with the file's size; () where the cell is blank."""
    if value in ("", None) or value == []:
        return (), (0, 0)
    written = value if isinstance(value, str) else str(value)
    try:
        numbers = [float(number) for number in _NUMBERS.split(written) if number]
    except ValueError:
        numbers = []
    if not numbers or len(numbers) % 4:
        raise BadInput(f"box: {written[:80]!r} is not four numbers a box, x1 y1 x2 y2 in pixels of the file")
    if max(numbers) <= 1:
        raise BadInput(f"box: {written[:80]!r} are shares; x1 y1 x2 y2 in pixels of the file are expected")
    found = place.images.find(image)
    if found.missing:
        raise BadInput(f"box: {found.missing}; the picture's size is needed for its boxes")
    names = _read_list(label, "label") or ["region"]
    boxes = [cast("tuple[float, float, float, float]", tuple(numbers[k : k + 4])) for k in range(0, len(numbers), 4)]
    if len(names) not in (1, len(boxes)):
        raise BadInput(f"label: {len(names)} labels of {len(boxes)} boxes; expected one, or one a box")
    named = zip(names * len(boxes) if len(names) == 1 else names, boxes, strict=True)
    return tuple(Box(name, box).check() for name, box in named), read_image_size(Path(found.real_path))
