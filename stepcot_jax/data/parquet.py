"""Parquet tables as the Hugging Face hub stores them (extra `parquet`): rows, and pictures within cells.

A picture in a cell has the path `FILE.parquet#ROW:COLUMN`; rows are counted from 0 in the whole file.
"""

import functools
import itertools
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.extras import install_extra
from stepcot_jax.host.text import one_line
from stepcot_jax.host.untrusted import exceeds, open_untrusted, read_limits

SUFFIX = ".parquet"
_CELL = re.compile(r"(.+\.parquet)#([0-9]{1,12}):([A-Za-z0-9_.-]{1,80})", re.IGNORECASE | re.DOTALL)
_ROWS_AT_ONCE = 64
_GROUPS_KEPT = 2  # row groups whose pictures are kept in memory


class UnreadableTable(BadInput):
    """A table that cannot be opened: broken, a pointer of Git LFS, or without the extra `parquet`."""


class Cell(NamedTuple):
    """A picture's place in a table."""

    file: str
    row: int
    column: str


def find_cell(image_path: str) -> Cell | None:
    """Return the place in a table that an image path names; None for the path of an image file.

    >>> find_cell("data/test.parquet#12:image"), find_cell("images/a#1.png")
    (Cell(file='data/test.parquet', row=12, column='image'), None)
    """
    match = _CELL.fullmatch(image_path)
    return match and Cell(match[1], int(match[2]), match[3])


def read_fields(path: Path) -> list[str]:
    """Return the names of a table's columns."""
    return list(_open(path).schema_arrow.names)


def read_rows(path: Path, *, name: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the number, from 0, and the cells of each row; a picture is the path of its cell in the table `name`."""
    table = _open(path)
    pictures = [field.name for field in table.schema_arrow if _is_picture(field.type)]
    others = [column for column in table.schema_arrow.names if column not in pictures]
    first = 0
    for group in range(table.metadata.num_row_groups):
        _check_size(table, group, others, path)
        present = {column: _find_present(table, group, column, path) for column in pictures}
        for row in _read_group(table, group, others, path):
            number, index = first + row[0], row[0]
            cells = {column: f"{name}#{number}:{column}" if present[column][index] else None for column in pictures}
            yield number, row[1] | cells
        first += table.metadata.row_group(group).num_rows


def read_cell(path: Path, cell: Cell, *, max_bytes: int) -> bytes:
    """Return the picture of a cell, as it is encoded there."""
    status = os.stat(path)  # noqa: PTH116
    starts = _find_starts(path, status.st_mtime_ns, status.st_size)
    group = next((group for group, start in enumerate(starts[1:]) if cell.row < start), None)
    if group is None:
        raise BadInput(f"{path}: has {starts[-1]} rows; expected a row {cell.row}, counted from 0")
    pictures = _read_pictures(path, status.st_mtime_ns, status.st_size, group, cell.column)
    content: bytes | None = pictures[cell.row - starts[group]].as_py()
    if content is None:
        raise BadInput(f"{path}, row {cell.row}: column {cell.column} has no picture")
    if len(content) > max_bytes:
        raise BadInput(f"{path}, row {cell.row}: a picture of {len(content)} bytes; at most {max_bytes}")
    return content


def _open(path: Path) -> Any:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise UnreadableTable(f"{path}: reading Parquet needs pyarrow: {install_extra('parquet')}") from None
    try:
        table = parquet.ParquetFile(open_untrusted(path, accepted="a Parquet table"))
        # A dictionary is decoded once: many rows with one long text stay small.
        texts = [table.schema.column(k).path for k in range(len(table.schema.names))]
        opened = parquet.ParquetFile(open_untrusted(path, accepted="a Parquet table"), read_dictionary=texts)
    except (ArrowException, OSError) as error:
        with open_untrusted(path, accepted="a Parquet table") as file:
            is_pointer = file.read(23) == b"version https://git-lfs"
        what = "it is a Git LFS pointer: run `git lfs pull`" if is_pointer else one_line(error)[:200]
        raise UnreadableTable(f"{path}: cannot be read as a Parquet table ({what})") from None
    if opened.metadata.num_rows > read_limits().rows:
        raise exceeds(path, f"{opened.metadata.num_rows} rows", "rows")
    return opened


def _is_picture(kind: Any) -> bool:
    return str(kind).startswith("struct<") and "bytes" in [field.name for field in kind]


def _check_size(table: Any, group: int, columns: list[str], path: Path) -> None:
    """Refuse a row group whose columns are too large in memory, before they are read."""
    described = table.metadata.row_group(group)
    chunks = [described.column(k) for k in range(described.num_columns)]
    size = sum(chunk.total_uncompressed_size for chunk in chunks if chunk.path_in_schema.split(".")[0] in columns)
    if size > read_limits().unpacked_bytes:
        where = f"{path}, row group {group}"
        raise exceeds(where, f"{size} bytes of {', '.join(columns)[:80]}", "unpacked_bytes")


def _reading(path: Path, read: Any) -> Any:
    from pyarrow import ArrowException

    try:
        return read()
    except (ArrowException, OSError) as error:
        raise BadInput(f"{path}: a row group cannot be read ({one_line(error)[:200]})") from None


def _read_group(table: Any, group: int, columns: list[str], path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    batches = table.iter_batches(batch_size=_ROWS_AT_ONCE, row_groups=[group], columns=columns)
    number = itertools.count()
    longest = read_limits().text
    while (batch := _reading(path, lambda: next(batches, None))) is not None:
        for index in range(batch.num_rows):
            row = {name: batch.column(k)[index].as_py() for k, name in enumerate(batch.schema.names)}
            for column, value in row.items():
                if isinstance(value, str) and len(value) > longest:
                    raise exceeds(f"{path}: column {column}", f"a text of {len(value)} characters", "text")
            yield next(number), row


def _find_present(table: Any, group: int, column: str, path: Path) -> list[bool]:
    """Return which rows of a row group have a picture, from its null counts where these say it."""
    described = table.metadata.row_group(group)
    chunks = [described.column(k) for k in range(described.num_columns)]
    chunk = next(chunk for chunk in chunks if chunk.path_in_schema == f"{column}.bytes")
    nulls = chunk.statistics.null_count if chunk.statistics is not None else None
    if nulls in (0, described.num_rows):
        return [not nulls] * described.num_rows
    present: list[bool] = _read_bytes(table, group, column, path).is_valid().to_pylist()
    return present


@functools.lru_cache(maxsize=64)
def _find_starts(path: Path, modified: int, size: int) -> tuple[int, ...]:  # noqa: ARG001 - part of the cache's key
    described = _open(path).metadata
    sizes = [described.row_group(group).num_rows for group in range(described.num_row_groups)]
    return tuple(itertools.accumulate(sizes, initial=0))


@functools.lru_cache(maxsize=_GROUPS_KEPT)
def _read_pictures(path: Path, modified: int, size: int, group: int, column: str) -> Any:  # noqa: ARG001
    table = _open(path)
    if column not in table.schema_arrow.names or not _is_picture(table.schema_arrow.field(column).type):
        raise BadInput(f"{path}: has no pictures in a column {column[:80]!r}")
    return _read_bytes(table, group, column, path)


def _read_bytes(table: Any, group: int, column: str, path: Path) -> Any:
    """Return the encoded pictures of a row group."""
    _check_size(table, group, [column], path)
    read = _reading(path, lambda: table.read_row_group(group, columns=[f"{column}.bytes"]))
    return read.column(0).combine_chunks().flatten()[0]
