"""Tables as files: what a program reads back is what was put in, and nothing in a cell acts as markup or a formula."""

import csv
import io
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepcot_jax.experiments.writing import Column, Figure, Table, to_csv, to_latex, to_markdown, write_table

COLUMNS = (
    Column("model"),
    Column("accuracy", "percent"),
    Column("gain", "points"),
    Column("cases", "number"),
    Column("accuracy", "percent", published=True),
)
ROWS = (
    ("teacher", Figure(0.7834, 0.75, 0.82, 0.012), Figure(-0.0123, -0.05, 0.0249), 1500, 0.783),
    ("student", Figure(math.nan, math.nan, math.nan), None, 3, None),
)
TABLE = Table("small", "A small table", COLUMNS, ROWS, ("One note.",))


def read(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_csv_has_every_part_of_a_figure_in_full():
    first, second = read(to_csv(TABLE))
    assert first["model"] == "teacher"
    assert [float(first[f"accuracy{end}"]) for end in ("", " low", " high", " deviation")] == [
        0.7834,
        0.75,
        0.82,
        0.012,
    ]
    assert (float(first["gain"]), first["cases"], float(first["published: accuracy"])) == (-0.0123, "1500", 0.783)
    assert "gain deviation" not in first
    assert [second[name] for name in ("accuracy", "accuracy low", "gain", "gain high", "published: accuracy")] == [
        ""
    ] * 5


def test_markdown_shows_intervals_units_and_what_is_published():
    lines = to_markdown(TABLE).splitlines()
    assert lines[0] == "# A small table"
    assert lines[2] == "| model | accuracy (%) | gain (points) | cases | published: accuracy (%) |"
    assert lines[4] == "| teacher | 78.3 ± 1.2 [75.0, 82.0] | -1.2 [-5.0, +2.5] | 1,500 | 78.3 |"
    assert lines[5] == "| student | - | - | 3 | - |"
    assert lines[-1] == "- One note."


def test_latex_sets_published_headings_in_italics():
    text = to_latex(TABLE)
    assert r"\begin{tabular}{lrrrr}" in text
    assert r"\textit{published: accuracy (\%)}" in text
    assert r"teacher & 78.3 ± 1.2 [75.0, 82.0] & -1.2 [-5.0, +2.5] & 1,500 & 78.3 \\" in text


@given(st.text(max_size=30))
def test_any_name_stays_in_its_place(name):
    table = Table("any", "Any", COLUMNS[:1], ((name,), ("next",)))
    (found, following) = list(csv.reader(io.StringIO(to_csv(table), newline="")))[1:]
    assert found[0].removeprefix("'") == " ".join(name.split()).removeprefix("'")
    assert following == ["next"]
    assert not found[0].startswith(("=", "+", "-", "@")) or _is_number(found[0])
    rows = to_markdown(table).splitlines()[4:6]
    assert rows[1] == "| next |"
    assert "<" not in rows[0]
    body = to_latex(table).split(r"\midrule")[1].split(r"\bottomrule")[0].strip("\n").splitlines()
    assert body[-1] == r"next \\"
    assert len(body) == 2


def _is_number(text):
    try:
        float(text)
    except ValueError:
        return False
    return True


def test_files_are_written_with_pictures(tmp_path):
    table = Table("small", "A", COLUMNS, ROWS, pictures={"small.png": b"picture"})
    names = write_table(tmp_path / "tables", table)
    assert names == ["small.csv", "small.md", "small.tex", "small.png"]
    assert sorted(path.name for path in (tmp_path / "tables").iterdir()) == sorted(names)
    assert (tmp_path / "tables" / "small.png").read_bytes() == b"picture"


def test_a_row_of_another_length_is_a_mistake():
    with pytest.raises(ValueError, match="found a row of 1 entries for 5 columns"):
        Table("small", "A", COLUMNS, (("teacher",),))
