"""Sheets of readings: every image has its row, in the order of the images, in three formats."""

import csv
import json
import pathlib

import pytest
from pyarrow import parquet

from stepcot_jax.chain import DEFAULT_CHAIN
from stepcot_jax.host.errors import BadInput
from stepcot_jax.predict import answer_sheet
from stepcot_jax.predict.answer_sheet import as_row, column_names, in_order, write_sheet
from stepcot_jax.predict.answers import ChainReading, StepAnswer

PATHS = [pathlib.Path(name) for name in ("bad.png", "=a.png", "worse.png", "worst.png", "b.png", "last.png")]
GOOD = ("=a.png", "b.png")


def reading_of(source, *, with_sets=True):
    steps = []
    for place, step in enumerate(DEFAULT_CHAIN.steps):
        number = len(step.options)
        shares = tuple((1 + (each == place % number)) / (number + 1) for each in range(number))
        answer_set = (step.options[place % number], step.options[0]) if with_sets else None
        steps.append(StepAnswer(step, place % number, shares, (), answer_set))
    return ChainReading(source, "student", with_sets, 0.9, tuple(steps))


def read_in_order():
    complaints = []

    def read(refuse):
        for path in PATHS:  # in batches, as `read_pictures` does: problems come before the readings ahead of them
            if str(path) not in GOOD:
                refuse(f"{path}: no picture")
        yield from map(reading_of, GOOD)

    rows = list(in_order(PATHS, read, refuse=complaints.append))
    return rows, complaints


def test_every_image_has_its_row_in_order():
    rows, complaints = read_in_order()
    assert [row.source if isinstance(row, ChainReading) else row["image"] for row in rows] == [str(p) for p in PATHS]
    problems = [row["problem"] for row in rows if isinstance(row, dict)]
    assert (
        problems == complaints == [f"{name}: no picture" for name in ("bad.png", "worse.png", "worst.png", "last.png")]
    )


def test_a_row_has_answer_probability_and_set_of_each_step():
    row = as_row(reading_of("x.png"))
    assert list(row) == column_names(DEFAULT_CHAIN)
    first = DEFAULT_CHAIN.steps[0]
    assert row[first.name] == first.options[0]
    assert row[f"{first.name} probability"] == pytest.approx(2 / (len(first.options) + 1))
    last = DEFAULT_CHAIN.steps[6]
    assert row[f"{last.name} set"] == f"{last.options[6]}; {last.options[0]}"
    assert as_row(reading_of("x.png", with_sets=False))[f"{last.name} set"] is None


def test_three_formats_hold_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(answer_sheet, "_ROWS_AT_ONCE", 4)
    for suffix in answer_sheet.SUFFIXES:
        write_sheet(tmp_path / f"out{suffix}", read_in_order()[0], DEFAULT_CHAIN)
    with (tmp_path / "out.csv").open(newline="", encoding="utf-8") as file:
        cells = list(csv.DictReader(file))
    table = parquet.read_table(tmp_path / "out.parquet").to_pylist()
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["image"] for row in table] == [line["image"] for line in lines] == [str(path) for path in PATHS]
    assert [row["image"].lstrip("'") for row in cells] == [str(path) for path in PATHS]
    assert cells[1]["image"] == "'=a.png"  # no formula
    assert list(cells[0]) == list(table[0]) == column_names(DEFAULT_CHAIN)
    for cell, row, line in zip(cells, table, lines, strict=True):
        assert (row["problem"] or "") == cell["problem"] == line.get("problem", "")
        for step in DEFAULT_CHAIN.steps:
            assert cell[step.name] == (row[step.name] or "")
            assert float(cell[f"{step.name} probability"] or "nan") == pytest.approx(
                row[f"{step.name} probability"] or float("nan"), nan_ok=True
            )


def test_an_unknown_ending_or_folder_is_refused(tmp_path):
    with pytest.raises(BadInput, match=r"out.xlsx ends with none of .csv, .jsonl, .parquet"):
        write_sheet(tmp_path / "out.xlsx", [], DEFAULT_CHAIN)
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="cannot be written"):
        write_sheet(tmp_path / "file" / "out.csv", [], DEFAULT_CHAIN)
