"""Readings as a sheet: one row an image, in the order of the images; an image that cannot be read has a row too."""

import contextlib
import io
import itertools
import json
import math
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

from stepcot_jax.chain import Chain
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import writing_for, writing_whole
from stepcot_jax.host.text import install_extra, write_csv
from stepcot_jax.reading.readings import ChainReading

PROBLEM, WARNINGS, GATE_SCORE = "problem", "warnings", "gate score"
SUFFIXES = (".csv", ".jsonl", ".parquet")
_REFUSED_SUFFIXES = {".xlsx", ".xlsm", ".xls", ".ods", ".tsv", ".feather", ".gz", ".bz2", ".xz", ".zst", ".zip"}
"""Suffixes of other sheets and of compressed files: a text file with such a name could not be opened."""

_ROWS_AT_ONCE = 1000
Row = dict[str, Any]


def is_sheet(path: pathlib.Path, *, flag: str = "") -> bool:
    """Return whether a file is a sheet by its suffix; `flag` is --json or --ask, which write lines or text."""
    ending = path.suffix.lower()
    if ending in _REFUSED_SUFFIXES:
        raise BadInput(f"--out: {path} is of an unsupported format; found {ending}, expected {', '.join(SUFFIXES)}")
    if flag and ending in SUFFIXES and (flag, ending) != ("--json", ".jsonl"):
        what, expected = {"--json": ("JSON lines", ".jsonl"), "--ask": ("text", ".txt")}[flag]
        raise BadInput(
            f"--out: {path} cannot be used with {flag}, which writes {what}; found {ending}, expected {expected}"
        )
    return ending in SUFFIXES and not flag


def find_columns(chain: Chain) -> dict[str, type]:
    """Return the columns of a sheet: image, problem, warnings, gate score, and six for each step."""
    of_step = {"": str, " probability": float, " probabilities": str, " set": str, " above": str, " thresholds": str}
    columns: dict[str, type] = {"image": str, PROBLEM: str, WARNINGS: str, GATE_SCORE: float}
    return columns | {f"{step.name}{kind}": cell for step in chain.steps for kind, cell in of_step.items()}


def as_row(reading: ChainReading) -> Row:
    """Return a reading as one row of the columns of `find_columns`; None for parts that the run does not have."""
    row: Row = {"image": reading.source, PROBLEM: ""}
    row |= {WARNINGS: "; ".join((*reading.warnings, *reading.check.notes)), GATE_SCORE: reading.check.gate_score}
    for answer in reading.steps:
        name = answer.step.name
        row[name], row[f"{name} probability"] = answer.answer, answer.probability
        row[f"{name} probabilities"] = _join(zip(answer.step.options, answer.probabilities, strict=True))
        row[f"{name} set"] = None if answer.answer_set is None else "; ".join(answer.answer_set)
        row[f"{name} above"] = "; ".join(answer.above) if answer.points else None
        thresholds = tuple((option, threshold) for option, threshold, *_ in answer.points.values())
        row[f"{name} thresholds"] = _join(thresholds) if thresholds else None
    return row


def _join(numbers: Iterable[tuple[str, float]]) -> str:
    return "; ".join(f"{name} {'never' if math.isinf(number) else f'{number:.4f}'}" for name, number in numbers)


def in_order(
    paths: Sequence[pathlib.Path],
    read: Callable[[Callable[[str], None]], Iterator[ChainReading]],
    *,
    refuse: Callable[[str], None],
) -> Iterator[ChainReading | Row]:
    """Yield for every path, in order, its reading or a row with its problem, which `read` hands to a function."""
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
    """Write readings and problems in the format of the file's suffix, atomically; cells of a CSV run no formulas."""
    write = {".csv": _write_csv, ".jsonl": _write_lines, ".parquet": _write_parquet}[path.suffix.lower()]
    with writing_for("--out", path), writing_whole(path) as file:
        write(file, rows, find_columns(chain))


def _write_lines(file: BinaryIO, rows: Iterable[ChainReading | Row], columns: Mapping[str, type]) -> None:
    del columns
    for row in rows:
        file.write(f"{json.dumps(row.as_dict() if isinstance(row, ChainReading) else row)}\n".encode())


def _write_csv(file: BinaryIO, rows: Iterable[ChainReading | Row], columns: Mapping[str, type]) -> None:
    text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
    flat = (as_row(row) if isinstance(row, ChainReading) else row for row in rows)
    write_csv(text, itertools.chain([columns], ([row.get(name) for name in columns] for row in flat)), end="\r\n")
    text.detach()


def _write_parquet(file: BinaryIO, rows: Iterable[ChainReading | Row], columns: Mapping[str, type]) -> None:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise BadInput(f"--out: .parquet needs pyarrow: {install_extra('parquet')}") from None
    kinds = {str: pyarrow.string(), float: pyarrow.float64()}
    schema = pyarrow.schema([(name, kinds[cell]) for name, cell in columns.items()])
    with contextlib.closing(parquet.ParquetWriter(file, schema)) as writer:
        flat = (as_row(row) if isinstance(row, ChainReading) else row for row in rows)
        while chunk := list(itertools.islice(flat, _ROWS_AT_ONCE)):
            writer.write_table(pyarrow.Table.from_pylist(chunk, schema=schema))
