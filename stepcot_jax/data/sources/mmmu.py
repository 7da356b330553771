"""MMMU (Yue et al., CVPR 2024), medical subjects: SUBJECT/{dev,validation,test}-*.parquet.

A record is about one picture; questions about several are set aside, and so are those of the test part, whose answers
are withheld ("?").
"""

import ast
import re
from pathlib import Path
from typing import Any

from stepcot_jax.data.sources.listed import How, Source
from stepcot_jax.data.sources.question_files import Asked, Place, Row, as_text, get_text, list_tables
from stepcot_jax.data.sources.released import NotARecord
from stepcot_jax.host.errors import BadInput

SUBJECTS = (
    *("Basic_Medical_Science", "Clinical_Medicine", "Diagnostics_and_Laboratory_Medicine", "Pharmacy"),
    "Public_Health",
)
_PICTURES = tuple(f"image_{number}" for number in range(1, 8))
_SUBJECT = re.compile(r"(?:dev|validation|test)_(.+)_[0-9]+")
_MARK = re.compile(r"\s*<image [0-9]>\s*")


def list_mmmu(root: Path, how: How, files: list[Path]) -> Source:
    """List the questions of the five medical subjects."""
    return list_tables(root, how, files, _read, origin="MMMU", licence="Apache-2.0 (questions); of each source")


def _read(fields: Row, place: Place) -> Asked:
    name = get_text(fields, "id")
    subject = match[1] if (match := _SUBJECT.fullmatch(name)) else place.file.parent.name
    if subject not in SUBJECTS:
        raise NotARecord(f"id: {name[:80]!r} is of the subject {subject[:40]!r}; the medical ones are read")
    pictures = [str(fields[column]) for column in _PICTURES if fields.get(column)]
    if len(pictures) != 1:
        raise NotARecord(f"{len(pictures)} pictures; a record is about one")
    options, answer = _read_list(fields.get("options"), "options"), get_text(fields, "answer")
    if answer == "?":
        raise NotARecord("answer: '?', which the release withholds")
    if any(_MARK.search(option) for option in options):
        raise NotARecord("options: pictures; texts are expected")
    is_open = not options
    answers = _read_list(answer, "answer") if is_open and answer.startswith("[") else [answer]
    return Asked(
        image=pictures[0],
        question=_MARK.sub(" ", get_text(fields, "question")).strip(),
        answer=answers[0] if answers else "",
        options=options,
        kind="open" if is_open else "single",
        id=name,
        synonyms=answers[1:],
        topic=get_text(fields, "subfield") or subject,
        facts={"subject": subject, "difficulty": get_text(fields, "topic_difficulty")},
    )


def _read_list(value: Any, field: str) -> list[str]:
    """Return a list, which the release writes as the text of a Python list."""
    if isinstance(value, str):
        try:
            value = ast.literal_eval(value) if value.strip() else []
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            raise BadInput(f"{field}: {value[:80]!r} is not a list of texts") from None
    if not isinstance(value, list | tuple | type(None)):
        raise BadInput(f"{field}: {str(value)[:80]!r} is not a list of texts")
    return [as_text(item, field) for item in value or ()]
