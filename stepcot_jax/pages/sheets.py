"""Write tables as CSV, Markdown and LaTeX, with intervals and marked published columns.

pandas writes the same CSV, but no figures with intervals, no marked headings, and not this escaping.
"""

import dataclasses
import decimal
import io
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Literal

from stepcot_jax.host.files import write_whole
from stepcot_jax.host.ranges import Interval
from stepcot_jax.host.text import escape_markdown, write_csv

Kind = Literal["text", "percent", "points", "number"]

_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}",
}  # fmt: skip


Entry = str | int | float | Interval | None
"""An entry of a table; None if empty."""

Row = dict[str, Entry]
"""Entries by marked column name; those left out are empty."""


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of a table."""

    name: str
    kind: Kind = "text"  # "percent" and "points" are shares of 1, printed times 100, points with a sign
    published: bool = False  # the paper's figures, which keep their digits
    recomputed: bool = False  # our arithmetic on the paper's figures
    digits: int | None = None  # decimals of published or recomputed figures as printed; None prints all

    @property
    def marked_name(self) -> str:
        """The name, marked if published or recomputed."""
        return f"{'published: ' if self.published else 'recomputed: ' if self.recomputed else ''}{self.name}"

    @property
    def heading(self) -> str:
        """The marked name with the unit."""
        return self.marked_name + {"percent": " (%)", "points": " (points)"}.get(self.kind, "")

    @property
    def keeps_digits(self) -> bool:
        """Whether its figures are printed with all their digits."""
        return self.published or self.recomputed


def columns(kind: Kind, *names: str, published: bool = False, digits: int | None = None) -> tuple[Column, ...]:
    """Return columns of one kind."""
    return tuple(Column(name, kind, published, digits=digits) for name in names)


_MARKS: Mapping[str, Kind] = {"%": "percent", "+": "points", "#": "number"}


def heads(*marked: str) -> tuple[Column, ...]:
    """Return columns by names that begin with the mark of their kind, as "%accuracy"; those without one are text."""
    return tuple(Column(name.lstrip("%+#"), _MARKS.get(name[:1], "text")) for name in marked)


def mark_published(figures: Mapping[str, Entry], **recomputed: Entry) -> Row:
    """Return printed figures, and our arithmetic on them, by the marked names of their columns."""
    of_kinds = {"published": figures, "recomputed": recomputed}
    return {f"{kind}: {name}": entry for kind, entries in of_kinds.items() for name, entry in entries.items()}


@dataclasses.dataclass(frozen=True)
class Table:
    """A table, whose name is that of its files without suffix."""

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Entry, ...], ...]
    notes: tuple[str, ...] = ()
    pictures: Mapping[str, bytes] = dataclasses.field(default_factory=dict)  # content of more files, by file name

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"{self.name}: a row has {len(row)} entries for {len(self.columns)} columns")

    @classmethod
    def of(
        cls,
        name: str,
        title: str,
        columns: Sequence[Column],
        rows: Sequence[Row],
        notes: Sequence[str] = (),
    ) -> "Table":
        """Make a table from rows by column."""
        names = [column.marked_name for column in columns]
        if unknown := {key for row in rows for key in row} - set(names):
            raise ValueError(f"{name}: no columns {sorted(unknown)}")
        entries = tuple(tuple(map(row.get, names)) for row in rows)
        return cls(name, title, tuple(columns), entries, tuple(notes))

    def show(self) -> list[list[str]]:
        """Return the entries of each row as Markdown and LaTeX print them."""
        return [
            [show_entry(entry, column) for entry, column in zip(row, self.columns, strict=True)] for row in self.rows
        ]


def write_table(folder: pathlib.Path, table: Table) -> list[str]:
    """Write a table as NAME.csv, NAME.md and NAME.tex and its pictures, each atomically; return the file names."""
    texts = {"csv": to_csv(table), "md": to_markdown(table), "tex": to_latex(table)}
    contents = {f"{table.name}.{ending}": text.encode("utf-8", "backslashreplace") for ending, text in texts.items()}
    contents |= table.pictures
    for name, content in contents.items():
        write_whole(folder / name, content)
    return list(contents)


def to_csv(table: Table) -> str:
    """Format as CSV: shares of 1 with all digits, interval and deviation in columns of their own."""
    suffixes = [_find_suffixes([row[index] for row in table.rows]) for index in range(len(table.columns))]
    names = zip(table.columns, suffixes, strict=True)
    lines = [[f"{column.marked_name}{suffix}" for column, endings in names for suffix in endings]]
    lines += [
        [_plain(entry, suffix) for entry, endings in zip(row, suffixes, strict=True) for suffix in endings]
        for row in table.rows
    ]
    text = io.StringIO()
    write_csv(text, lines)
    return text.getvalue()


_ATTRIBUTES = {"": "value", " low": "low", " high": "high", " deviation": "deviation"}


def _find_suffixes(entries: Sequence[Entry]) -> list[str]:
    figures = [entry for entry in entries if isinstance(entry, Interval)]
    ends = [" low", " high"] if any(figure.is_bootstrapped for figure in figures) else []
    return ["", *ends, *([" deviation"] if any(figure.deviation is not None for figure in figures) else [])]


def _plain(entry: Entry, suffix: str) -> str:
    """Return an entry, or the part of it that a suffix names, as the CSV has it."""
    if isinstance(entry, Interval):
        entry = getattr(entry, _ATTRIBUTES[suffix])
    elif suffix:
        return ""
    if entry is None or (isinstance(entry, float) and math.isnan(entry)):
        return ""
    return repr(float(entry)) if isinstance(entry, float) else " ".join(str(entry).split())


def to_markdown(table: Table) -> str:
    """Format as Markdown, with title and notes."""
    notes = [f"- {escape_markdown(note)}" for note in table.notes]
    return "\n".join([f"# {escape_markdown(table.title)}", "", *list_markdown_rows(table), "", *notes]).rstrip() + "\n"


def list_markdown_rows(table: Table) -> list[str]:
    """Return the lines of a table in Markdown, its head among them."""
    rows = [[column.heading for column in table.columns], *table.show()]
    lines = [f"| {' | '.join(map(escape_markdown, cells))} |" for cells in rows]
    rule = f"|{'|'.join('---' if column.kind == 'text' else '---:' for column in table.columns)}|"
    return [lines[0], rule, *lines[1:]]


def to_latex(table: Table) -> str:
    """Format as a booktabs `tabular` with the title as caption; published headings are in italics."""
    spec = "".join("l" if column.kind == "text" else "r" for column in table.columns)
    escaped = [_escape_latex(column.heading) for column in table.columns]
    marked = zip(table.columns, escaped, strict=True)
    headings = [rf"\textit{{{heading}}}" if column.published else heading for column, heading in marked]
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{_escape_latex(table.title)}}}",
        rf"\begin{{tabular}}{{{spec}}}",
        r"\toprule",
        " & ".join(headings) + r" \\",
        r"\midrule",
        *(" & ".join(map(_escape_latex, cells)) + r" \\" for cells in table.show()),
        r"\bottomrule",
        r"\end{tabular}",
        *(rf"\par\footnotesize {_escape_latex(note)}" for note in table.notes),
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _escape_latex(text: str) -> str:
    escaped = "".join(_LATEX.get(letter, letter) for letter in " ".join(text.split()))
    # Two hyphens would become a dash; \\ and \toprule read a following [ or *, even in the next line, as an option.
    escaped = escaped.replace("--", "-{}-").replace("--", "-{}-")
    return f"{{{escaped[0]}}}{escaped[1:]}" if escaped.startswith(("[", "*")) else escaped


def show_entry(entry: Entry, column: Column) -> str:
    """Return an entry as Markdown and LaTeX print it."""
    if entry is None:
        return "-"
    if isinstance(entry, str):
        return entry
    if column.digits is not None and isinstance(entry, float) and not math.isnan(entry):
        number = entry if column.kind == "number" else 100 * entry
        return f"{number:{'+' if column.kind == 'points' and entry else ''}.{column.digits}f}"
    if not isinstance(entry, Interval):
        return _number(entry, column.kind, keeps_digits=column.keeps_digits)
    shown = _number(entry.value, column.kind)
    if entry.deviation is not None:
        shown += f" ± {_number(entry.deviation, 'percent' if column.kind == 'points' else column.kind)}"
    if not math.isnan(entry.low + entry.high):
        shown += f" [{_number(entry.low, column.kind)}, {_number(entry.high, column.kind)}]"
    return shown


def _number(value: int | float, kind: Kind, *, keeps_digits: bool = False) -> str:
    if isinstance(value, float) and math.isnan(value):
        return "-"
    if kind in ("percent", "points"):
        digits = _count_digits(value) if keeps_digits else 1
        return f"{100 * value:{'+' if kind == 'points' else ''}.{digits}f}"
    if isinstance(value, int) or keeps_digits:
        return f"{value:,}"
    return f"{value:,.4g}" if abs(value) < 1 else f"{value:,.2f}"


def _count_digits(share: float) -> int:
    """Return the number of decimals of a share in percent, at least one.

    >>> _count_digits(0.7212), _count_digits(0.46)
    (2, 1)
    """
    exponent = decimal.Decimal(repr(float(share))).scaleb(2).normalize().as_tuple().exponent
    return max(1, -exponent) if isinstance(exponent, int) else 1
