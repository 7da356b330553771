"""Agreement on reasoning records, by hand."""

import json
import math

import msgspec
import pytest
from refusals import refuse

from stepcot_jax.annotate.agreement import compare_records
from stepcot_jax.data.questions.record_files import write_vqa_records
from stepcot_jax.record import Record
from stepcot_jax.tools.annotate.command import main

RECORD = Record(
    id="a", image="a.png", image_size=(64, 64), patient="p", kind="open", question="What?", answer="Air",
    thinking="dark air **lung** ([0, 0, 2, 2])",
)  # fmt: skip


def write(folder, records, asides):
    folder.mkdir()
    write_vqa_records(folder / "records.jsonl", records)
    lines = [json.dumps({"id": name, "reason": "r", "detail": ""}) for name in asides]
    (folder / "set_aside.jsonl").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture
def two(tmp_path):
    change = msgspec.structs.replace
    other = change(RECORD, answer="air ", thinking="dark air **lung** ([1, 0, 3, 2])")
    closed = change(RECORD, id="b", kind="closed", answer="No", thinking="none")
    one = write(tmp_path / "one", [RECORD, closed, change(RECORD, id="c")], ["d"])
    return one, write(tmp_path / "two", [other, change(closed, answer="Yes")], ["c", "d", "e"])


def test_figures_by_hand_are_printed_and_written_and_nothing_in_common_is_refused(two, tmp_path, capsys):
    (opened, closed, both), num_items, kappa = compare_records(*two)
    assert (opened.kind, opened.num_records, opened.answers, opened.regions) == ("open", 1, 1.0, pytest.approx(1 / 3))
    assert (closed.num_records, closed.answers, closed.regions, closed.texts) == (1, 0.0, 1.0, 1.0)
    assert (both.kind, both.num_records, both.answers, both.regions) == ("all", 2, 0.5, pytest.approx(2 / 3))
    assert 0.5 < opened.texts < 1
    # Of a, b, c, d: both keep a and b, one keeps c, nobody d. Observed 3/4, expected (3/4)(1/2) + (1/4)(1/2) = 1/2.
    assert (num_items, kappa) == (4, pytest.approx(0.5))
    main(["agree", *map(str, two), f"--out={tmp_path / 'out'}"])
    printed = capsys.readouterr().out
    assert "| all | 2 | 0.500 | 0.667 |" in printed
    assert "4 items: Cohen's kappa 0.500" in printed
    assert json.loads((tmp_path / "out" / "agreement.json").read_text())["annotators"] == ["one", "two"]
    refuse("two annotators; got 1", main, ["agree", str(two[0])])
    (two[1] / "set_aside.jsonl").unlink()
    assert math.isnan(compare_records(*two)[2])
    other = write(tmp_path / "other", [msgspec.structs.replace(RECORD, id="z")], [])
    refuse("no record id in common", compare_records, two[0], other)
    (two[0] / "set_aside.jsonl").write_text("{")
    refuse("set_aside", compare_records, *two)
