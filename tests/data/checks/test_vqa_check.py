import json
import shutil

import msgspec
import pytest
from refusals import refuse

from stepcot_jax.data.questions.making import write_records
from stepcot_jax.data.questions.record_files import holds_records, read_vqa_records
from stepcot_jax.data.statistics import find_difference
from stepcot_jax.reasoning.dialects import WRITTEN, write_reply
from stepcot_jax.record import KINDS
from stepcot_jax.tools.data.command import main


@pytest.fixture
def damaged(folder, tmp_path):
    (tmp_path / "records.jsonl").write_bytes((folder / "records.jsonl").read_bytes())
    return tmp_path


def _check(root, *flags, capsys):
    code = main(["check", str(root), "--json=-", *flags])
    return code, json.loads(capsys.readouterr().out)


def test_facts_of_good_records_and_replies_that_say_something_else(folder, capsys):
    code, facts = _check(folder, capsys=capsys)
    records = read_vqa_records(folder).records
    assert (code, facts["layout"], facts["stops"], facts["notes"]) == (0, "records", [], [])
    assert (facts["records"], facts["set_aside"], facts["pictures"]) == (120, 0, 30)
    assert facts["patients"] == len({record.patient for record in records})
    assert facts["boxes"] == sum(len(record.references) for record in records)
    assert sum(int(number) * count for number, count in facts["boxes_of_records"].items()) == facts["boxes"]
    assert {kind: sum(counts.values()) for kind, counts in facts["kinds"].items()} == dict.fromkeys(KINDS, 30)
    assert facts["with_stages"] == facts["with_thinking"] == 120
    assert facts["lengths"]["thinking"]["longest"] == max(len(record.thinking.split()) for record in records)
    formats = [(each["dialect"], each["written"], each["read_back"]) for each in facts["formats"]]
    assert formats == [(dialect, 120, 120) for dialect in WRITTEN]
    record = next(record for record in read_vqa_records(folder).records if record.kind == "closed")
    text = write_reply(record, "gemex")
    other = text.replace(f"<answer>{record.answer}", f"<answer>{'No' if record.answer == 'Yes' else 'Yes'}")
    moved = msgspec.structs.replace(record, references=())
    pairs = ((record, text, ""), (record, other, "answer"), (moved, text, "boxes"), (record, text[8:], "form"))
    for expected, reply, problem in pairs:
        assert find_difference(expected, reply, "gemex").partition(":")[0] == problem


def test_lines_too_short_to_be_records_are_refused_and_not_kept_each_with_its_reason(damaged, capsys):
    for number, total in ((10_000, 10_000), (1, 10_001)):
        with (damaged / "records.jsonl").open("ab") as file:
            file.write(b'{"id":"a"}\n' * number)
        if total == 10_000:
            _, facts = _check(damaged, "--images=none", capsys=capsys)
            assert (facts["records"], facts["set_aside"]) == (10_120, 10_000)
    words = r"records\.jsonl, line 10121: 10001 lines are too short to be records; expected"
    refuse(words, read_vqa_records, damaged, on_bad_record="skip")


def test_reasons_keep_their_field_and_are_counted_together(damaged, capsys):
    lines = [json.loads(line) for line in (damaged / "records.jsonl").open()]
    lines[1]["references"][0]["box"], lines[2]["references"][0]["box"] = [5, 2, 3, 9], [7, 2, 3, 9]
    lines[3]["references"][-1]["label"] = ""
    lines[4]["references"][0]["box"] = [1, 2, 3]
    lines[5]["references"][0]["box"][2] = 4000
    (damaged / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    code, facts = _check(damaged, "--images=none", capsys=capsys)
    assert (code, "records.jsonl: 5 of 120 lines are bad" in facts["stops"][0]) == (1, True)
    reasons = {each["reason"]: each["count"] for each in facts["set_aside_reasons"]}
    first = "references[…].box: … is not [x1, y1, x2, y2] with 0 <= x1 < x2 and 0 <= y1 < y2"
    assert (reasons.pop(first), reasons.pop("references[…].box: Expected `array` of length 4")) == (2, 1)
    (label, leaving) = sorted(reasons, reverse=True)
    assert label.startswith("references[…].label: … is not a name")
    assert leaving.startswith("references[…].box: … leaves the picture")
    assert "references[0].box: [5" in facts["set_aside_reasons"][0]["examples"][0]["reason"]
    main(["check", str(damaged), "--images=none"])
    shown = capsys.readouterr().out
    assert "2, 3" in shown
    assert "()" not in shown
    code, facts = _check(damaged, "--images=none", "--on-bad-record=skip", capsys=capsys)
    assert (code, facts["stops"], facts["set_aside"]) == (0, [], 5)


def test_missing_and_unreadable_images_stop_a_run_and_the_way_on_is_named(damaged, folder, capsys):
    words = r"no line is valid.*phantom_000000\.png.*--images=none checks the records alone$"
    refuse(words, main, ["check", str(damaged)])
    shutil.copytree(folder / "images", damaged / "images")
    (damaged / "images/phantom_000003.png").write_bytes(b"no picture")
    (damaged / "images/phantom_000005.png").unlink()
    code, facts = _check(damaged, capsys=capsys)
    assert (code, facts["set_aside"]) == (1, 8)
    (stop,) = (stop for stop in facts["stops"] if "does not exist below the data root" in stop)
    assert stop.startswith("records.jsonl: 8 of 120 lines are bad (set aside below, such as line 21, image_path: ")
    assert stop.endswith("--images=none checks the records alone")
    assert _check(damaged, "--images=exists", capsys=capsys)[1]["set_aside"] == 4
    for root in (damaged / "none", damaged / "images"):
        refuse(r"a folder with records\.jsonl \(reasoning records\)", main, ["check", str(root)])


def test_patients_in_several_splits_stop_a_run(damaged, capsys):
    records = [*read_vqa_records(damaged).records]
    moved = {"train": "test", "test": "train", "val": "train"}[records[0].split]
    records[0] = msgspec.structs.replace(records[0], split=moved)
    write_records(damaged, records)
    code, facts = _check(damaged, "--images=none", capsys=capsys)
    assert code == 1
    assert any(
        "records.jsonl: 1 patients are in more than one split; expected one each" in stop for stop in facts["stops"]
    )
    write_records(damaged, [msgspec.structs.replace(records[0], split=""), *records[1:]])
    assert _check(damaged, "--images=none", capsys=capsys)[1]["patients_in_several_splits"] == 0
    write_records(damaged, [msgspec.structs.replace(record, split="val") for record in records])
    assert "no record is in the train split" in _check(damaged, "--images=none", capsys=capsys)[1]["stops"][0]


def test_what_each_dialect_can_write_is_counted(damaged, capsys):
    records = read_vqa_records(damaged).records
    changed = [msgspec.structs.replace(record, stages=None, split="") for record in records]
    for place, tokens in ((0, "<|im_end|>"), (1, "<image>\n<|im_end|>"), (2, "</think> <b>")):
        changed[place] = msgspec.structs.replace(changed[place], question=f"{changed[place].question} {tokens}")
    write_records(damaged, changed)
    code, facts = _check(damaged, "--images=none", capsys=capsys)
    assert (code, [each["written"] for each in facts["formats"]]) == (0, [120, 120, 0, 0, 120, 120])
    assert next(iter(facts["formats"][2]["refused"])).startswith("stages: none")
    assert "120 records are in no split" in facts["notes"]
    assert facts["control_tokens"] == {"<|im_end|>": 2, "<image>": 1, "</think>": 1}
    assert "1 question has '<image>', which tokenizers read as a control token" in facts["notes"]


def test_data_json_wins_unless_the_file_is_named(damaged):
    assert holds_records(damaged)
    (damaged / "data.json").write_text("[]")
    files = [damaged / f"records.{ending}" for ending in ("jsonl", "jsonl.gz", "csv.gz")]
    assert [holds_records(path) for path in (damaged, *files)] == [False, True, True, False]
