"""Read a knowledge base that extends the package's own: a table of findings, statements and sources."""

from pathlib import Path

from stepcot_jax.annotate.checks import INSTRUCTION_WORDS, find_word
from stepcot_jax.chain import fold
from stepcot_jax.data.delimited import read_columns
from stepcot_jax.data.questions.vocabulary import canonical
from stepcot_jax.host.errors import BadInput
from stepcot_jax.reasoning.rules import ENTRIES, Entry

REQUIRED = ("finding", "statement", "source")


def read_knowledge(path: Path) -> tuple[Entry, ...]:
    """Return the entries of a table, and behind them the package's own."""
    entries = []
    for row, cells, problem in read_columns(path, REQUIRED, optional=("signs", "against", "place")):
        where = f"{path}, row {row.number}"
        if problem:
            raise BadInput(f"{where}: {problem}")
        blank = [name for name, cell in zip(REQUIRED, cells, strict=False) if not cell]
        if blank:
            raise BadInput(f"{where}: {blank[0]} is blank; expected a finding, a statement and its source")
        if find_word(cells[1], INSTRUCTION_WORDS):
            raise BadInput(f"{where}: the statement gives an instruction; expected a sentence of medical knowledge")
        finding, statement, source, *words = cells
        entries.append(Entry(canonical(finding), statement, source, *map(fold, words)))
    if not entries:
        raise BadInput(f"{path}: has no row; expected one or more entries of {', '.join(REQUIRED)}")
    return (*entries, *ENTRIES)
