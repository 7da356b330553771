"""`data stats` of reasoning records: tables against counts by hand, and boxes drawn where they are."""

import csv

import numpy as np
import pytest
from PIL import Image

from stepcot_jax.data.questions.record_files import read_vqa_records
from stepcot_jax.data.statistics import answer_in_words, find_majorities
from stepcot_jax.record import KINDS, Record
from stepcot_jax.tools.data.command import main
from stepcot_jax.tools.data.statistics import choose_examples, draw_examples


def _record(number, topic, answer, kind="closed", choices=()):
    fields = {"topic": topic, "options": choices, "answer": answer, "question": "Which?", "image_size": (9, 9)}
    return Record(id=str(number), image=f"{number}.png", patient="p", kind=kind, **fields)


def test_majorities_by_hand():
    records = [
        *(_record(1, "a", "No"), _record(2, "a", "Yes"), _record(3, "a", "No"), _record(4, "b", "Yes")),
        _record(5, "m", ("A", "C"), "multi", ("one", "two", "three")),
        _record(6, "m", ("B", "C"), "multi", ("two", "three", "one")),
        _record(7, "m", ("A",), "multi", ("two", "three", "one")),
    ]
    assert answer_in_words(records[4]) == answer_in_words(records[5]) == "one + three"
    found = find_majorities(records)
    assert [tuple(each) for each in found] == [
        ("closed", "a", 3, "No", 2),
        ("closed", "b", 1, "Yes", 1),
        ("multi", "m", 3, "one + three", 2),
    ]
    assert found[0].share == pytest.approx(2 / 3)


def test_tables_and_pictures_are_written(folder, tmp_path, capsys):
    main(["stats", str(folder), f"--out={tmp_path}"])
    assert "120 records in" in capsys.readouterr().out
    records = read_vqa_records(folder).records
    with (tmp_path / "boxes_per_record.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert sum(int(row["boxes"]) * int(row["records"]) for row in rows) == sum(len(each.references) for each in records)
    with (tmp_path / "majority_answers.csv").open(newline="") as file:
        assert sum(int(row["records"]) for row in csv.DictReader(file)) == 120
    with (tmp_path / "lengths.csv").open(newline="") as file:
        words = {row["text"]: float(row["mean_words"]) for row in csv.DictReader(file)}
    assert words["thinking"] == pytest.approx(np.mean([len(each.thinking.split()) for each in records]), abs=1e-3)
    assert "| kind | train | val | test | total |" in (tmp_path / "records.md").read_text()
    with Image.open(tmp_path / "examples.png") as page:
        assert min(page.size) > 1000


def test_examples_are_of_every_kind_with_boxes_at_their_corners(folder):
    chosen = choose_examples(read_vqa_records(folder).records)
    assert ([record.kind for record in chosen], len({record.image for record in chosen})) == ([*KINDS] * 3, 12)
    collection = read_vqa_records(folder)
    figure, num_missing = draw_examples(collection)
    assert num_missing == 0
    for axes, record in zip(figure.axes, choose_examples(collection.records), strict=True):
        drawn = [(*patch.get_xy(), patch.get_width(), patch.get_height()) for patch in axes.patches]
        assert drawn == [(b[0], b[1], b[2] - b[0], b[3] - b[1]) for b in (each.corners for each in record.references)]
        assert axes.images[0].get_extent() == [0, 48, 48, 0]
        assert record.question.split()[0] in axes.get_title(loc="left")
