"""Tables of the figures of replies: for files, for the page and for a terminal."""

from collections.abc import Mapping, Sequence

from stepcot_jax.evaluation.replies import HEADED_FIGURES, Key, Results
from stepcot_jax.pages.sheets import Entry, Interval, Kind, Table, columns
from stepcot_jax.record import STAGE_NAMES

TABLE_NAMES = ("table", "differences", "stages", "rated_stages", "perturbed")
"""Names of all tables that an evaluation may write."""

_STAGES = (
    *((name, ("stage", name)) for name in STAGE_NAMES),
    *((f"{name}, steps", ("step_quality", name)) for name in ("description", "reasoning", "together")),
)
_RATED = tuple((name, ("rated", name)) for name in STAGE_NAMES)

_PAIRED = ", in the same resamples of patients; replies that either was not scored on take no part."
_TEST = "p: exact McNemar test of all answers, which takes the questions of a patient as independent."
_CHECKED = (
    "Stages are checked against the records' facts, or labelled by the judge: descriptions are worth 1, 0.5 or 0, "
    "reasoning 1 or 0. Stages of replies that do not count are worth 0. This is our definition, after MiCEval."
)


def make_tables(results: Results) -> list[Table]:
    """Make the table of all models, and those of differences and of stages where there are any."""
    title = f"{results.num_records} questions of {results.num_patients} patients, dialect {results.settings.dialect}"
    tables = [_tabulate("table", title, results.figures, HEADED_FIGURES, results.notes)]
    if results.differences:
        first = next(name for name in results.figures if name not in results.differences)
        tests = {name: [found["all"].exact_p if "all" in found else None] for name, found in results.tests.items()}
        compared = (f"Figures less those of {first}{_PAIRED}", _TEST)
        title = f"Differences to {first}"
        tables.append(_tabulate("differences", title, results.differences, HEADED_FIGURES, compared, "points", tests))
    if results.stages:
        counts = (
            f"{name}: scored {', '.join(f'{number} of {stage}' for stage, number in results.num_stages[name].items())}."
            for name in results.stages
        )
        tables.append(_tabulate("stages", "Quality of the stages", results.stages, _STAGES, (_CHECKED, *counts)))
    if any(key in row for row in results.stages.values() for _, key in _RATED):
        notes = ("Scores of the judge from 1 to 5 (MEDSAGE, Table 2).",)
        tables.append(_tabulate("rated_stages", "Stages as rated", results.stages, _RATED, notes, "number"))
    return tables


def _tabulate(
    name: str,
    title: str,
    rows: Mapping[str, Mapping[Key, Interval]],
    keys: Sequence[tuple[str, Key]],
    notes: Sequence[str],
    kind: Kind = "percent",
    tests: Mapping[str, Sequence[Entry]] | None = None,
) -> Table:
    shown = [(heading, key) for heading, key in keys if any(key in row for row in rows.values())]
    entries = [
        (label, *(row.get(key) for _, key in shown), *(tests or {}).get(label, ())) for label, row in rows.items()
    ]
    heads = (*columns("text", "replies"), *columns(kind, *(heading for heading, _ in shown)))
    return Table(name, title, (*heads, *columns("number", *(["p"] if tests else []))), tuple(entries), tuple(notes))


def to_text(table: Table) -> str:
    """Format a table for a terminal: a line for each column of the table, a column for each row."""
    lines = list(zip([column.heading for column in table.columns], *table.show(), strict=True))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
    return "\n".join([table.title, "", *text, "", *(f"- {note}" for note in table.notes)]) + "\n"
