"""Review forms of reasoning records: out, filled, and in again."""

import collections
import csv
import json
import pathlib

from annotate.phantom_records import phantom_folder
from refusals import refuse

from stepcot_jax.annotate.review import draw_sample
from stepcot_jax.data.questions.record_files import read_vqa_records
from stepcot_jax.tools.annotate.command import main

SAMPLE = ["--sample=3", "--seed=1"]


def write_form(path):
    main(["review-out", str(phantom_folder()), f"--out={path}", *SAMPLE])
    return list(csv.reader(pathlib.Path(path).read_text(encoding="utf-8-sig").splitlines(keepends=True)))


def fill(path, rows, verdicts):
    filled = [rows[0], *([*row[:-2], *said] for row, said in zip(rows[1:], verdicts, strict=True))]
    with pathlib.Path(path).open("w", newline="") as file:
        csv.writer(file).writerows(filled)


def read(path, out):
    main(["review-in", str(path), str(phantom_folder()), "--reviewer=Dr Example", f"--out={out}", *SAMPLE])


def test_a_sample_has_n_of_each_kind_and_depends_on_the_seed():
    records = read_vqa_records(phantom_folder()).records
    chosen = draw_sample(records, sample=3, seed=1)
    assert collections.Counter(record.kind for record in chosen) == {"open": 3, "closed": 3, "single": 3, "multi": 3}
    assert [record for record in records if record in chosen] == chosen == draw_sample(records, sample=3, seed=1)
    assert chosen != draw_sample(records, sample=3, seed=2)
    assert {each.id for each in chosen} < {each.id for each in draw_sample(records, sample=5, seed=1)}
    assert draw_sample(records, sample=1000, seed=1) == list(records)


def test_rejected_records_are_set_aside_and_others_say_who_confirmed_them(tmp_path, capsys):
    form = tmp_path / "form.csv"
    rows = write_form(form)
    assert len(rows) == 13
    fill(form, rows, [("reject", "wrong side"), *[("OK", "")] * 10, ("ok", "well put")])
    read(form, tmp_path / "out")
    assert "12 records reviewed, 1 rejected" in capsys.readouterr().out
    before = read_vqa_records(phantom_folder()).records
    after = {record.id: record for record in read_vqa_records(tmp_path / "out", require_images=True).records}
    assert {record.id for record in before} - set(after) == {rows[1][1]}
    aside = json.loads((tmp_path / "out" / "set_aside.jsonl").read_text())
    assert aside == {"id": rows[1][1], "reason": "rejected in review", "detail": "Dr Example: wrong side"}
    reviewed = {name for name, record in after.items() if "review 1 by" in record.provenance}
    assert (reviewed, after[rows[12][1]].provenance["review 1 comment"]) == ({row[1] for row in rows[2:]}, "well put")
    refuse("exists", read, form, tmp_path / "out")
    records = str(phantom_folder())
    refuse("holds reasoning records; expected folders with data.json", main, ["agree", records, records])
    refuse("expected one folder, without --all", main, ["review-out", records, "--all", f"--out={tmp_path / 'x.csv'}"])


def test_a_verdict_that_cannot_be_is_refused_by_record(tmp_path):
    form = tmp_path / "form.csv"
    rows = write_form(form)
    for verdict, words in (
        (("", ""), "column 'review': is required"),
        (("maybe", ""), "'maybe' is not one of 'ok', 'reject'"),
        (("reject", " "), "column 'comment' is required"),
    ):
        fill(form, rows, [("ok", "")] * 4 + [verdict] + [("ok", "")] * 7)
        assert f"record 5 ({rows[5][1]})" in refuse(words, read, form, tmp_path / "out")
    fill(form, [*rows[:3], *rows[4:]], [("ok", "")] * 11)
    refuse(rf"record 3 .*missing, moved .* found row '4' with the id '{rows[4][1]}", read, form, tmp_path / "out")
