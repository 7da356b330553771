"""GEMeX as released, on files written here in its layouts: no record of it is at hand."""

import csv
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reasoning_records import read_records
from refusals import refuse

from stepcot_jax.annotate.recipes.items import ground_record
from stepcot_jax.chain import strip_letters
from stepcot_jax.data.sources.layouts import detect_vqa_layout
from stepcot_jax.data.sources.released import split_question
from stepcot_jax.host.errors import BadInput
from stepcot_jax.reasoning.dialects import read_reply, write_question, write_reply
from stepcot_jax.rewards.options import PRESETS
from stepcot_jax.rewards.presets import reward

IMAGE = "files/p10/p10000032/s50414267/one.jpg"
SIZE = (336, 336)


def a_test_record(**changes):
    record = {"question": "Is the heart enlarged?", "type": "size", "answer": "yes", "reason": "The heart is wide."}
    record |= {"visual_regions": ["cardiac region"], "visual_locations": [[64, 42, 257, 262]], "image_path": IMAGE}
    return record | {"ori_report": "SECRET REPORT", "q_id": "q7", "row_id": 3} | changes


CHOICES = ["A: left lung", "B: right lung, lower zone", "C: both: lungs"]


def training(prompt, reply, q_type="single_choice_questions", **changes):
    turns = [{"from": "human", "value": prompt}, {"from": "gpt", "value": reply}]
    record = {"conversations": turns, "q_type": q_type, "image": IMAGE, "row_id": 1, "type_prompt": "Choose one."}
    return record | changes


def write_lines(path, *records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def read(root, **settings):
    return read_records(root, **{"box_size": SIZE, "require_images": False} | settings)


def test_the_four_files_of_test_records(tmp_path):
    write_lines(tmp_path / "open_ended.jsonl", a_test_record(question="What is seen?", answer="An enlarged heart."))
    write_lines(tmp_path / "closed_ended.jsonl", a_test_record())
    write_lines(tmp_path / "single_choice.jsonl", a_test_record(choices=CHOICES, answer="B"))
    write_lines(tmp_path / "multi_choice.jsonl", a_test_record(choices=CHOICES, answer=["C", "A"]))
    assert detect_vqa_layout(tmp_path) == "gemex"
    closed, multi, opened, single = read(tmp_path)
    assert (closed.kind, closed.answer, closed.topic) == ("closed", "Yes", "size")
    assert (multi.kind, multi.answer, opened.kind, opened.answer) == ("multi", ("A", "C"), "open", "An enlarged heart.")
    assert (single.kind, single.answer) == ("single", "B")
    assert single.options == ("left lung", "right lung, lower zone", "both: lungs")
    assert (closed.references[0].label, closed.references[0].corners) == ("cardiac region", (64, 42, 257, 262))
    assert (closed.patient, closed.split, closed.image_size) == ("p10000032", "test", SIZE)
    assert closed.thinking == "The heart is wide."
    assert (closed.id, closed.provenance["q_id"], closed.provenance["row"]) == ("closed_ended.jsonl:1", "q7", "line 1")
    for record in (closed, multi, opened, single):  # kept, and in no text
        assert record.report == "SECRET REPORT"
        assert "SECRET" not in repr([write_question(record, "gemex"), write_reply(record, "gemex")])
        assert "SECRET" not in repr(ground_record(record).data())


def test_kinds_follow_from_the_record_if_the_file_has_no_kind_in_its_name(tmp_path):
    chosen = [a_test_record(choices=CHOICES, answer=answer) for answer in ("A", ["A"])]
    write_lines(tmp_path / "test.jsonl", a_test_record(), a_test_record(answer="No pneumothorax."), *chosen)
    assert [record.kind for record in read(tmp_path)] == ["closed", "open", "single", "multi"]


def test_training_conversations(tmp_path):
    prompt = f"<image>\nWhere is it? <choices>: [{', '.join(CHOICES)}]\nChoose one."
    reply = "<answer> B <reason> Dense there. <location> [[1, 2, 30, 40], [5, 6, 70, 80]]"
    other = training("<image>\nOne?", "<answer> No <reason> r <location> []", "closed_ended_questions")
    (tmp_path / "train.json").write_text(json.dumps([training(prompt, reply), other]))
    first, second = read(tmp_path)
    assert (first.question, first.answer, first.split) == ("Where is it?", "B", "train")
    assert first.options == ("left lung", "right lung, lower zone", "both: lungs")
    assert [reference.corners for reference in first.references] == [(1, 2, 30, 40), (5, 6, 70, 80)]
    assert {reference.label for reference in first.references} == {"region"}
    assert (second.kind, second.answer, second.references) == ("closed", "No", ())
    assert read_reply(write_reply(first, "gemex_plain"), "gemex_plain") == read_reply(reply, "gemex_plain")


def test_several_choices_are_read_as_they_were_released(tmp_path):
    """All multi-choice records of the public training subset write a list as Python does."""
    prompt = f"<image>\nWhich? <choices>: [{', '.join(CHOICES)}]\nChoose one."
    answers = ("['A', 'C']", '["A","C"]', "['A: left lung', 'C: both: lungs']", "A, C")
    replies = [f"<answer> {answer} <reason> r <location> [[1, 2, 30, 40]]" for answer in answers]
    rows = [training(prompt, reply, "multi_choice_questions", row_id=row) for row, reply in enumerate(replies)]
    (tmp_path / "train.json").write_text(json.dumps(rows))
    for record, reply in zip(read(tmp_path), replies, strict=True):
        assert record.answer == ("A", "C")
        assert reward(read_reply(reply, "gemex_plain"), record, PRESETS["gemex"])["total"] == 2


THINKING = "I look at the **right lung** ([1, 2, 30, 40]), which is dense."
RESPONSE = "<response><answer>B</answer><location><ref>right lung</ref><box>[1, 2, 30, 40]</box></location></response>"


@pytest.mark.parametrize("suffix", ["jsonl", "csv"])
@pytest.mark.parametrize("tagged", [False, True])
def test_thinking_columns(tmp_path, suffix, tagged):
    row = {
        "image_path": f"/{IMAGE}",
        "question": f"Where? <choices>: [{', '.join(CHOICES)}]",
        "question_type": "single_choice_questions",
        "thinkVG": f"<think>{THINKING}</think>" if tagged else THINKING,
        "response": RESPONSE,
    }
    if suffix == "jsonl":
        write_lines(tmp_path / "rows.jsonl", row)
    else:
        with (tmp_path / "rows.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, row)
            writer.writeheader()
            writer.writerow(row)
    (record,) = read(tmp_path)
    assert (record.image, record.patient, record.answer, record.thinking) == (IMAGE, "p10000032", "B", THINKING)
    assert [(each.label, each.corners) for each in record.references] == [("right lung", (1, 2, 30, 40))]
    written = f"<think>{THINKING}</think>{RESPONSE}"
    assert read_reply(write_reply(record, "gemex"), "gemex") == read_reply(written, "gemex")


def test_box_size_is_required_and_checked(tmp_path):
    write_lines(tmp_path / "closed.jsonl", a_test_record())
    refuse("--box-size is required: width and height", read, tmp_path, box_size=None)
    refuse("--box-size", read, tmp_path, box_size=(0, 10))
    with pytest.raises(BadInput, match=r"line 1, references\[0\].box: .* leaves the picture of image_size 224 by 224"):
        read(tmp_path, box_size=(224, 224))


BAD = [
    (a_test_record(choices=["A: x", "C: y"], answer="A"), r"choices\[1\]: 'C: y'; expected a text after 'B: '"),
    (a_test_record(choices=["A: x", "B: x"], answer="A"), "choices: "),
    (a_test_record(choices=CHOICES, answer="D"), "answer: 'D' is no readable answer of kind 'single'"),
    (a_test_record(choices=CHOICES, answer=[]), "answer: '' is no readable answer of kind 'multi'"),
    (a_test_record(visual_locations=[]), "visual_locations: 0 boxes of 1 regions"),
    (a_test_record(visual_locations=[[9, 2, 3, 4]]), r"visual_locations\[0\]: box"),
    (a_test_record(visual_regions=["<b>"]), r"visual_locations\[0\]: label"),
    (a_test_record(image_path="../../etc/passwd"), "image_path: "),
    (a_test_record(question=" "), "question: blank"),
    ({"visual_locations": []}, "Object missing required field `question`"),
    (training("<image>\nQ", "<answer> A <reason> r", "closed"), r"conversations\[1\].value: <location> is missing"),
    (training("<image>\nQ", "<answer> Yes <reason> r <location> []", "riddle"), "q_type: 'riddle' is not a question"),
    (training("Q <choices>: A, B", "<answer> A <reason> r <location> []"), "choices: "),
    (training("Q", "r", conversations=[]), "conversations: turns of"),
    (
        {"thinkVG": "t", "response": "<response>", "question": "q", "question_type": "open", "image_path": IMAGE},
        r"thinkVG, response: .* \(dialect 'gemex'\)",
    ),
]


@pytest.mark.parametrize(("bad", "message"), BAD)
def test_bad_records_name_file_line_and_field(tmp_path, bad, message):
    write_lines(tmp_path / "x.jsonl", a_test_record(), bad, a_test_record())
    refuse(rf"x\.jsonl, line 2, {message}", read, tmp_path)
    aside = []
    assert (len(read(tmp_path, on_bad_record="skip", set_aside=aside)), [item.record for item in aside]) == (2, [1])


LETTERS = st.characters(blacklist_categories=("Cs", "Cc", "Zl", "Zp"), blacklist_characters="[]:,")


@given(st.lists(st.text(LETTERS, min_size=1).map(str.strip).filter(bool), min_size=1, max_size=26))
def test_choices_survive_writing_and_splitting(choices):
    written = [f"{chr(65 + place)}: {choice}" for place, choice in enumerate(choices)]
    assert strip_letters(written) == tuple(choices)
    assert split_question(f"<image>\nQ? <choices>: [{', '.join(written)}]") == ("Q?", tuple(choices))
