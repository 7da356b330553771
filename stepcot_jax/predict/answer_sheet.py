"""Readings as a sheet: one row an image, in the order of the images; an image that cannot be read is a row as well."""

import contextlib
import csv
import io
import json
import pathlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, BinaryIO

from stepcot_jax.chain import Chain
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import writing_whole
from stepcot_jax.host.text import defuse_formula, install_extra
from stepcot_jax.predict.answers import ChainReading

PROBLEM = "problem"
SUFFIXES = (".csv", ".jsonl", ".parquet")

_ROWS_AT_ONCE = 1000
Row = dict[str, Any]


def column_names(chain: Chain) -> list[str]:
    """Return the columns of a sheet: the image, its problem, and three for each step."""
    kinds = ("", " probability", " set")
    return ["image", PROBLEM, *(f"{step.name}{kind}" for step in chain.steps for kind in kinds)]


def as_row(reading: ChainReading) -> Row:
    """Return a reading as one row; the columns are those of `column_names`.

    A step has its answer, the network's probability of it, and the answers of its conformal set, the most probable
    first, separated by "; " (None without calibration).
    """
    row: Row = {"image": reading.source, PROBLEM: ""}
    for each in reading.steps:
        name = each.step.name
        row[name], row[f"{name} probability"] = each.answer, each.probability
        row[f"{name} set"] = None if each.answer_set is None else "; ".join(each.answer_set)
    return row


def in_order(
    paths: Sequence[pathlib.Path],
    read: Callable[[Callable[[str], None]], Iterator[ChainReading]],
    *,
    refuse: Callable[[str], None],
) -> Iterator[ChainReading | Row]:
    """Yield for every path, in order, its reading or a row with its problem.

    Args:
      paths: distinct.
      read: called with what takes the message of an unreadable file; yields the readings of the others in order.
      refuse: called with the same messages.
    """
    problems: list[str] = []

    def note(message: str) -> None:
        problems.append(message)
        refuse(message)

    waiting = iter(paths)

    def skip_to(source: str | None) -> Iterator[Row]:
        for path in waiting:
            if str(path) == source:
                return
            yield {"image": str(path), PROBLEM: problems.pop(0)}

    for reading in read(note):
        yield from skip_to(reading.source)
        yield reading
    yield from skip_to(None)


def write_sheet(path: pathlib.Path, rows: Iterable[ChainReading | Row], chain: Chain) -> None:
    """Write readings and problems, as the file's ending says; it appears once complete.

    `.csv` and `.parquet` have the columns of `column_names`; a line of `.jsonl` is `ChainReading.as_dict`, or the image
    and its problem. Cells of a CSV that a spreadsheet would run as formulas get an apostrophe.

    Raises:
      BadInput: another ending, pyarrow is missing, or the file cannot be written.
    """
    write = {".csv": _write_csv, ".jsonl": _write_lines, ".parquet": _write_parquet}.get(path.suffix)
    if write is None:
        raise BadInput(f"--out: {path} ends with none of {', '.join(SUFFIXES)}")
    try:
        with writing_whole(path) as file:
            write(file, rows, chain)
    except OSError as error:
        raise BadInput(f"--out: {path} cannot be written ({error.strerror})") from None


def _write_lines(file: BinaryIO, rows: Iterable[ChainReading | Row], chain: Chain) -> None:
    del chain
    for row in rows:
        file.write(f"{json.dumps(row.as_dict() if isinstance(row, ChainReading) else row)}\n".encode())


def _write_csv(file: BinaryIO, rows: Iterable[ChainReading | Row], chain: Chain) -> None:
    text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
    writer = csv.DictWriter(text, column_names(chain))
    writer.writeheader()
    for row in rows:
        flat = as_row(row) if isinstance(row, ChainReading) else row
        writer.writerow({key: defuse_formula(cell) if isinstance(cell, str) else cell for key, cell in flat.items()})
    text.detach()


def _write_parquet(file: BinaryIO, rows: Iterable[ChainReading | Row], chain: Chain) -> None:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise BadInput(f"--out: .parquet needs pyarrow: {install_extra('parquet')}") from None
    names = column_names(chain)
    kinds = [pyarrow.float64() if name.endswith(" probability") else pyarrow.string() for name in names]
    schema = pyarrow.schema(list(zip(names, kinds, strict=True)))
    with contextlib.closing(parquet.ParquetWriter(file, schema)) as writer:
        for some in _in_chunks(as_row(row) if isinstance(row, ChainReading) else row for row in rows):
            writer.write_table(pyarrow.Table.from_pylist(some, schema=schema))


def _in_chunks(rows: Iterable[Row]) -> Iterator[list[Row]]:
    chunk: list[Row] = []
    for row in rows:
        chunk.append(row)
        if len(chunk) == _ROWS_AT_ONCE:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
