import csv
import io
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refuse

from stepcot_jax.host.ranges import Interval
from stepcot_jax.host.text import escape_controls
from stepcot_jax.pages.sheets import Column, Table, to_csv, to_latex, to_markdown, write_table

COLUMNS = (
    Column("model"),
    Column("accuracy", "percent"),
    Column("gain", "points"),
    Column("cases", "number"),
    Column("accuracy", "percent", published=True),
)
ROWS = (
    ("teacher", Interval(0.7834, 0.75, 0.82, 0.012), Interval(-0.0123, -0.05, 0.0249), 1500, 0.783),
    ("student", Interval(math.nan, math.nan, math.nan), None, 3, None),
)
TABLE = Table("small", "A small table", COLUMNS, ROWS, ("One note.",), {"small.png": b"picture"})


def test_markdown_and_latex_show_intervals_units_and_what_is_published():
    lines = to_markdown(TABLE).splitlines()
    assert lines[0] == "# A small table"
    assert lines[2] == "| model | accuracy (%) | gain (points) | cases | published: accuracy (%) |"
    assert lines[4] == "| teacher | 78.3 ± 1.2 [75.0, 82.0] | -1.2 [-5.0, +2.5] | 1,500 | 78.3 |"
    assert lines[5] == "| student | - | - | 3 | - |"
    assert lines[-1] == "- One note."
    text = to_latex(TABLE)
    assert r"\begin{tabular}{lrrrr}" in text
    assert r"\textit{published: accuracy (\%)}" in text
    assert r"teacher & 78.3 ± 1.2 [75.0, 82.0] & -1.2 [-5.0, +2.5] & 1,500 & 78.3 \\" in text


LATEX = {
    r"\textbackslash{}": "\\", r"\&": "&", r"\%": "%", r"\$": "$", r"\#": "#", r"\_": "_", r"\{": "{", r"\}": "}",
    r"\textasciitilde{}": "~", r"\textasciicircum{}": "^", r"\textless{}": "<", r"\textgreater{}": ">",
    r"\textbar{}": "|",
}  # fmt: skip


def typeset(text):
    """What LaTeX prints of a cell: escapes as their letters, groups as what is in them; all else must be harmless."""
    printed = []
    for token in re.findall(r"\\text[a-z]+\{\}|\\.|\{\}|[{}]|[^\\{}]", text):
        assert token not in set("&%$#_~^"), text
        printed.append(LATEX.get(token, "" if token in ("{}", "{", "}") else token))
    assert "--" not in text
    return "".join(printed)


def render(text):
    assert not re.search(r"(?<!\\)(?:\\\\)*[`~$*]", text), text
    return re.sub(r"\\([^a-z0-9\s])", r"\1", text).replace("&lt;", "<").replace("&amp;", "&")


NAMES = st.text(st.sampled_from("ab1 %_&#$" + "{}~^\\[]*-<>|`("), max_size=12)
SHARES = st.floats(-1, 1)
FIGURES = st.builds(Interval, SHARES, SHARES, SHARES, st.none() | st.floats(0, 1)) | st.builds(Interval, SHARES)


@st.composite
def tables(draw):
    columns = tuple(
        Column(f"{index}{draw(NAMES)}", draw(st.sampled_from(("percent", "points", "number"))), draw(st.booleans()))
        for index in range(draw(st.integers(1, 3)))
    )
    entries = st.one_of(st.none(), SHARES, FIGURES, st.integers(0, 10**7))
    rows = draw(st.lists(st.tuples(NAMES, *[entries] * len(columns)), min_size=1, max_size=4))
    return Table("random", draw(NAMES), (Column("model"), *columns), tuple(rows))


@given(tables())
def test_the_same_numbers_stand_in_all_three(table):
    in_csv = list(csv.DictReader(io.StringIO(to_csv(table))))
    markdown = [line for line in to_markdown(table).splitlines() if line.startswith("|")]
    body = re.search(r"\\toprule\n(.*)\n\\midrule\n(.*)\n\\bottomrule", to_latex(table), re.DOTALL)
    latex = [body[1], *body[2].split("\n")]
    assert len(markdown) == len(latex) + 1 == len(in_csv) + 2
    del markdown[1]
    for number, (line, printed) in enumerate(zip(markdown, latex, strict=True)):
        cells = [render(cell) for cell in re.split(r" (?<!\\)\| ", line[2:-2])]
        assert printed.endswith(r" \\")
        assert not printed.startswith(("[", "*"))
        set_cells = re.split(r" (?<!\\)& ", printed[:-3])
        assert [typeset(re.sub(r"^\\textit\{(.*)\}$", r"\1", cell)) for cell in set_cells] == cells
        if not number:
            assert cells == [" ".join(column.heading.split()) for column in table.columns]
            continue
        row = in_csv[number - 1]
        assert row["model"].removeprefix("'") == cells[0].removeprefix("'")
        for column, entry, cell in zip(table.columns[1:], table.rows[number - 1][1:], cells[1:], strict=True):
            check_numbers(row, column, entry, cell)


def check_numbers(row, column, entry, cell):
    """The numbers that a cell shows are those of the CSV's columns, rounded."""
    suffixes = ["", " deviation", " low", " high"]
    stored = [float(row[f"{column.marked_name}{end}"]) for end in suffixes if row.get(f"{column.marked_name}{end}")]
    shown = [float(part.replace(",", "")) for part in re.findall(r"[-+]?[\d,]*\d(?:\.\d+)?(?:e-?\d+)?", cell)]
    expected = [entry] if not isinstance(entry, Interval) else [entry.value, entry.deviation, entry.low, entry.high]
    assert stored == [part for part in expected if part is not None and not math.isnan(part)]
    scale = 1 if column.kind == "number" else 100
    assert shown == pytest.approx([scale * part for part in stored], abs=0.0501 if scale == 100 else 0.00501)
    if column.published and isinstance(entry, float) and scale == 100:
        assert shown == pytest.approx([100 * entry], abs=1e-9)


@given(st.text(max_size=30))
def test_any_name_stays_in_its_place(name):
    table = Table("any", "Any", COLUMNS[:1], ((name,), ("next",)))
    (found, following) = list(csv.reader(io.StringIO(to_csv(table), newline="")))[1:]
    assert found[0].removeprefix("'") == escape_controls(" ".join(name.split())).removeprefix("'")
    assert following == ["next"]
    if found[0].startswith(("=", "+", "-", "@")):
        float(found[0])  # a number is no formula
    rows = to_markdown(table).splitlines()[4:6]
    assert rows[1] == "| next |"
    assert "<" not in rows[0]
    body = to_latex(table).split(r"\midrule")[1].split(r"\bottomrule")[0].strip("\n").splitlines()
    assert (len(body), body[-1]) == (2, r"next \\")


def test_files_are_written_with_pictures_and_rows_have_the_length_of_the_head(tmp_path):
    names = write_table(tmp_path / "tables", TABLE)
    assert names == ["small.csv", "small.md", "small.tex", "small.png"]
    assert sorted(path.name for path in (tmp_path / "tables").iterdir()) == sorted(names)
    assert (tmp_path / "tables" / "small.png").read_bytes() == b"picture"
    refuse("a row has 1 entries for 5 columns", Table, "small", "A", COLUMNS, (("teacher",),), error=ValueError)
