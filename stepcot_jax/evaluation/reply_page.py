"""A page to look through replies, with the true and the predicted boxes drawn over the pictures."""

import base64
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from stepcot_jax.evaluation.replies import ReplyScore
from stepcot_jax.host.files import write_whole
from stepcot_jax.host.machine import map_in_threads
from stepcot_jax.pages.sheets import Table
from stepcot_jax.pages.shell import SHARED, Section, name_unseen, read_part, render_page
from stepcot_jax.record import Record

MOST_SHOWN = 10_000  # Default for the most records on a page

_MOST_EMBEDDED = 16_000_000  # characters of pictures within the page; more are written as separate files
_LONGEST_SHOWN = 4000  # characters of a reply


@dataclasses.dataclass(frozen=True)
class ShownTable:
    """A table above the replies; its first column heads the rows, "12.3 [10.1, 14.0]" is a value with its interval."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, table: Table) -> "ShownTable":
        """Return a table as the page shows it."""
        headings = tuple(column.heading for column in table.columns)
        return cls(table.title, headings, tuple(map(tuple, table.show())), table.notes)


_PARTS = ("page.css", "browse.css", "shared.js", "browse.js")


def write_page(
    folder: Path,
    records: Sequence[Record],
    models: Mapping[str, Sequence[ReplyScore]],
    tables: Sequence[ShownTable],
    *,
    title: str,
    writer: str,
    read_picture: Callable[[str], str | None] | None,
    num_shown: int = MOST_SHOWN,
    file_name: str = "index.html",
    about: Sequence[str] = (),
    sections: Sequence[Section] = (),
    closing: Sequence[Section] = (),
) -> tuple[int, int]:
    """Write the page, and pictures too many to embed; return its size in bytes and the number of unread ones."""
    shown = records[:num_shown]
    positions, pictures = _read_pictures(shown, read_picture)
    as_files = sum(len(picture or "") for picture in pictures) > _MOST_EMBEDDED
    data = {
        "records": [_describe_record(record, positions) for record in shown],
        "models": _describe_models(models, num_shown),
        "pictures": _write_files(folder, pictures) if as_files else pictures,
    }
    style, browse_style, shared, script = map(read_part, _PARTS)
    page = render_page(
        SHARED.get_template("browse.html.j2"),
        style=style + browse_style,
        script=shared + script,
        images="'self' file:" if as_files else "",
        title=title,
        writer=writer,
        about=about,
        left_out=f"The page shows the first {len(shown)} of {len(records)}." if len(shown) < len(records) else "",
        tables=tables,
        sections=sections,
        closing=closing,
        data=data,
        kinds=sorted({record.kind for record in shown}),
        models=list(models),
    ).encode()
    write_whole(folder / file_name, page)
    return len(page), sum(picture is None for picture in pictures)


def _describe_models(models: Mapping[str, Sequence[ReplyScore]], num_shown: int) -> list[dict[str, Any]]:
    return [
        {"name": name_unseen(name), "replies": [_describe_score(score) for score in scores[:num_shown]]}
        for name, scores in models.items()
    ]


def _read_pictures(
    records: Sequence[Record], read_picture: Callable[[str], str | None] | None
) -> tuple[dict[str, int], list[str | None]]:
    """Return the position of each image path among the pictures, and the pictures as data URIs."""
    if read_picture is None:
        return {}, []
    paths = list(dict.fromkeys(record.image for record in records))
    pictures = [picture for _, picture in map_in_threads(read_picture, paths, num_threads=2, num_ahead=64)]
    return {path: position for position, path in enumerate(paths)}, pictures


def _write_files(folder: Path, pictures: Sequence[str | None]) -> list[str | None]:
    """Write pictures given as data URIs to files, and return their names; None where there is no picture."""
    names: list[str | None] = []
    for position, picture in enumerate(pictures):
        names.append(f"pictures/{position:06}.jpg" if picture else picture)
        if picture:
            write_whole(folder / f"pictures/{position:06}.jpg", base64.b64decode(picture.partition(",")[2]))
    return names


def _describe_record(record: Record, positions: Mapping[str, int]) -> dict[str, Any]:
    return {
        "id": _shorten(record.id),
        "kind": record.kind,
        "question": _shorten(record.question),
        "choices": [f"{letter}: {_shorten(text)}" for letter, text in zip(record.letters, record.options, strict=True)],
        "truth": _shorten(_join(record.answer)),
        "size": record.image_size,
        "picture": positions.get(record.image, -1),
        "boxes": [[name_unseen(box.label), *_round(box.corners)] for box in record.references],
    }


def _describe_score(score: ReplyScore) -> dict[str, Any]:
    return {
        "text": None if score.text is None else _shorten(score.text),
        "answer": None if score.answer is None else _shorten(_join(score.answer)),
        "boxes": [[_shorten(region.label), *_round(region.corners)] for region in score.boxes],
        "a": _number(score.a_score),
        "v": _number(score.v_score),
        "passed": _number(score.grounding),
        "formed": _number(score.format),
        "problems": [_shorten(problem) for problem in score.problems],
    }


def _shorten(text: str) -> str:
    """Return the text as the page shows it: cut to a length, unprintable characters named."""
    cut = text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]} … ({len(text)} characters)"
    return cut if cut.replace("\n", "").isprintable() else name_unseen(cut)


def _join(answer: str | Sequence[str]) -> str:
    return answer if isinstance(answer, str) else ", ".join(answer)


def _round(numbers: Sequence[float]) -> list[float]:
    return [round(number, 2) for number in numbers]


def _number(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 4)
