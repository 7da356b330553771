import csv
import json
import math
import pathlib
import re

import pytest
from pyarrow import parquet

from stepcot_jax.chain import DEFAULT_CHAIN
from stepcot_jax.host.errors import BadInput
from stepcot_jax.reading import answer_sheet
from stepcot_jax.reading.answer_sheet import as_row, find_columns, in_order, is_sheet, write_sheet
from stepcot_jax.reading.readings import ChainReading, StepAnswer
from stepcot_jax.tools.predict import main as predict

PATHS = [pathlib.Path(name) for name in ("bad.png", "=a.png", "worse.png", "worst.png", "b.png", "last.png")]
GOOD = ("=a.png", "b.png")


def reading_of(source, *, with_sets=True):
    steps = []
    for index, step in enumerate(DEFAULT_CHAIN.steps):
        number = len(step.options)
        shares = tuple((1 + (answer == index % number)) / (number + 1) for answer in range(number))
        answer_set = (step.options[index % number], step.options[0]) if with_sets else None
        steps.append(StepAnswer(step, index % number, shares, (), answer_set))
    return ChainReading(source, "student", with_sets, 0.9, tuple(steps))


def read_in_order():
    complaints = []

    def read(refuse):
        for path in PATHS:  # in batches, as `read_pictures` does: problems come before the readings ahead of them
            if str(path) not in GOOD:
                refuse(f"{path}: no picture")
        yield from map(reading_of, GOOD)

    return list(in_order(PATHS, read, refuse=complaints.append)), complaints


def test_a_row_has_answer_probability_set_and_thresholds_of_each_step():
    row = as_row(reading_of("x.png"))
    assert list(row) == list(find_columns(DEFAULT_CHAIN))
    first, last = DEFAULT_CHAIN.steps[0], DEFAULT_CHAIN.steps[6]
    share = 1 / (len(first.options) + 1)
    assert (row[first.name], row[f"{first.name} probability"]) == (first.options[0], pytest.approx(2 * share))
    told = [f"{option} {share * (2 if option == first.options[0] else 1):.4f}" for option in first.options]
    assert row[f"{first.name} probabilities"] == "; ".join(told)
    assert row[f"{last.name} set"] == f"{last.options[6]}; {last.options[0]}"
    assert row[f"{first.name} thresholds"] is None
    assert as_row(reading_of("x.png", with_sets=False))[f"{last.name} set"] is None
    one, other = first.options[:2]
    shares = (0.25, 0.75, *(0.0,) * (len(first.options) - 2))
    points = {0: (one, math.inf, 0.0, 1.0), 1: (other, 0.5, 0.8, 0.7)}
    row = as_row(ChainReading("x.png", "student", True, None, (StepAnswer(first, 1, shares, (), None, points=points),)))
    assert row[f"{first.name} above"] == other
    assert row[f"{first.name} thresholds"] == f"{one} never; {other} 0.5000"


def test_three_formats_hold_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(answer_sheet, "_ROWS_AT_ONCE", 4)
    for ending in (".CSV", ".Jsonl", ".PARQUET"):
        assert is_sheet(tmp_path / f"out{ending}")
        write_sheet(tmp_path / f"out{ending}", read_in_order()[0], DEFAULT_CHAIN)
    with (tmp_path / "out.CSV").open(newline="", encoding="utf-8") as file:
        cells = list(csv.DictReader(file))
    table = parquet.read_table(tmp_path / "out.PARQUET").to_pylist()
    lines = [json.loads(line) for line in (tmp_path / "out.Jsonl").read_text().splitlines()]
    assert [row["image"] for row in table] == [line["image"] for line in lines] == [str(path) for path in PATHS]
    assert cells[1]["image"] == "'=a.png"  # no formula
    assert list(cells[0]) == list(table[0]) == list(find_columns(DEFAULT_CHAIN))
    for path, cell, row, line in zip(PATHS, cells, table, lines, strict=True):
        assert cell["image"].lstrip("'") == str(path)
        assert (row["problem"] or "") == cell["problem"] == line.get("problem", "")
        for step in DEFAULT_CHAIN.steps:
            assert cell[f"{step.name} probabilities"] == (row[f"{step.name} probabilities"] or "")
            assert cell[step.name] == (row[step.name] or "")
            share = row[f"{step.name} probability"]
            assert share is None or float(cell[f"{step.name} probability"]) == pytest.approx(share)


@pytest.mark.parametrize(
    ("name", "flag", "words"),
    [
        ("x.XLSX", "", "is of an unsupported format; found .xlsx, expected .csv, .jsonl, .parquet"),
        ("x.csv", "--json", "cannot be used with --json, which writes JSON lines; found .csv"),
        ("x.jsonl", "--ask", "cannot be used with --ask, which writes text; found .jsonl"),
    ],
)
def test_no_file_gets_what_its_ending_does_not_say(tmp_path, name, flag, words):
    with pytest.raises(BadInput, match=rf"^--out: \S*{re.escape(name)} .*{re.escape(words)}"):
        predict([str(tmp_path), "--checkpoint=none", f"--out={tmp_path / name}", *([flag] if flag else [])])
