import contextlib
import json
import pathlib
import re

import pytest
from evaluate_replies.asked import ask, write_folder, write_replies
from reasoning_records import make_record
from refusals import refuse

from stepcot_jax.data.questions.record_files import write_vqa_records
from stepcot_jax.host.errors import BadInput
from stepcot_jax.reasoning.dialects import interpret_answer, read_reply, write_reply
from stepcot_jax.tools.evaluate_replies.command import main

SHARED = pathlib.Path(__file__).parents[3] / "shared" / "data" / "first_contact"
RECORDS, _ = ask(6)
SINGLE = next(record for record in RECORDS if record.kind == "single")


def run(folder, replies, *flags, doubt=None):
    """Score; return a model's part of metrics.json, its figures A and V in percent, and the notes."""
    out = folder / "out"
    with contextlib.nullcontext() if doubt is None else pytest.raises(BadInput, match=doubt):
        main([str(folder), str(replies), "--out", str(out), "--num-resamples=20", "--without-pictures", *flags])
    found = json.loads((out / "metrics.json").read_text())
    mine = found["models"][replies.stem]
    a, v = mine["figures"]["a_score"]["mean"], mine["figures"].get("v_score", {"all": {"value": None}})["all"]
    values = [a["value"], v["value"]]
    return mine, [None if value is None else round(100 * value, 1) for value in values], " ".join(found["notes"])


@pytest.mark.skipif(not SHARED.is_dir(), reason="the inputs of first contact are not here")
@pytest.mark.parametrize(
    ("name", "flags", "a", "v", "note"),
    [
        ("g00_true", (), 100, 100, "dialect gemex"),
        ("g01_im_end", (), 100, 100, ""),
        ("g04_fullwidth_boxes", (), 100, 100, ""),
        ("g05_unit_boxes", (), 100, None, "--box-space=unit"),
        ("g05_unit_boxes", ("--box-space=unit",), 100, 99.9, ""),
        ("g05b_thousand_boxes", (), 100, None, "--box-space=1000"),
        ("g05b_thousand_boxes", ("--box-space=1000",), 100, 98.9, ""),
        ("g07_swapped_corners", (), 100, 100, "swapped corners"),
        ("g10_qwen_json", (), None, 100, "dialect free"),
        ("g12_answer_bold", (), 100, 100, ""),
        ("g12b_answer_dot", (), 100, 100, ""),
    ],
)
def test_the_inputs_of_first_contact(tmp_path, name, flags, a, v, note):
    (tmp_path / "records.jsonl").symlink_to(SHARED / "records" / "records.jsonl")
    doubt = "the answers of" if a is None else None  # boxes alone
    path = SHARED / "replies" / f"{name}.jsonl"
    _, (mean_a, mean_v), notes = run(tmp_path, path, "--split=all", *flags, doubt=doubt)
    assert a is None or mean_a == a
    assert v is None or mean_v == pytest.approx(v, abs=0.1)
    assert note in notes
    assert note or "overlap the true ones" not in notes


FOURTH = SHARED.with_name("first_contact_4")


@pytest.mark.skipif(not FOURTH.is_dir(), reason="the inputs of first contact are not here")
@pytest.mark.parametrize("path", sorted(FOURTH.glob("replies/*.jsonl")), ids=lambda path: path.stem)
def test_the_replies_of_a_fourth_contact_are_all_right(tmp_path, path):
    (tmp_path / "records.jsonl").symlink_to(FOURTH / "replies" / "records" / "records.jsonl")
    mine, values, _ = run(tmp_path, path)
    assert values == [100, 100]
    assert (mine["counts"]["all"]["unread_answers"], mine["counts"]["all"]["unread_boxes"]) == (0, 0)
    assert mine["figures"]["format"]["all"]["value"] == 1


@pytest.mark.skipif(not FOURTH.is_dir(), reason="the inputs of first contact are not here")
@pytest.mark.parametrize("form", ["text", "letter"])
def test_options_with_letters_are_answered_by_text_and_by_letter(tmp_path, form):
    folder = FOURTH / "records" / "choices_lettered"
    (tmp_path / "records.jsonl").symlink_to(folder / "records.jsonl")
    assert run(tmp_path, folder / f"{form}.jsonl", "--split=all")[1][0] == 100


@pytest.mark.parametrize("dialect", ["medclm", "lvkc"])
def test_boxes_of_another_space_than_the_dialects_are_read_where_it_is_stated(tmp_path, dialect):
    """MedCLM writes shares of the sides and MEDSAGE 0 to 1000; a model that writes pixels follows no one's grammar."""
    records, _ = ask(6, size=1400)  # so that pixels exceed 1000, too
    folder = write_folder(tmp_path, records)

    def in_pixels(text, place):
        boxes = iter([box.corners for box in records[place].references])

        def rewrite(match):
            x1, y1, x2, y2 = next(boxes)
            return str([x1, y1, x2, y2] if dialect == "medclm" else [y1, x1, y2, x2])

        return re.sub(r"\[[\d., ]+\]", rewrite, text)

    replies = write_replies(folder / "mine.jsonl", records, dialect=dialect, change=in_pixels)
    mine, (_, v), notes = run(folder, replies, f"--dialect={dialect}", doubt="the boxes of")
    assert mine["figures"]["format"]["all"]["value"] < 1
    assert v < 50
    assert "--box-space=pixels" in notes
    mine, (_, v), _ = run(folder, replies, f"--dialect={dialect}", "--box-space=pixels")
    assert mine["figures"]["format"]["all"]["value"] == 1
    assert v == pytest.approx(100, abs=0.1)


def test_without_true_boxes_there_is_no_v_and_a_true_box_below_one_pixel_is_refused(tmp_path):
    folder = write_folder(tmp_path, RECORDS)
    replies = write_replies(folder / "mine.jsonl", RECORDS, dialect="gemex")
    path = folder / "records.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]

    def rewrite(box):
        for record in records:
            for reference in record["references"]:
                reference["box"] = box
        path.write_text("".join(json.dumps(record) + "\n" for record in records))

    rewrite([0.1, 0.2, 0.4, 0.6])
    refuse("less than a pixel wide or high", run, folder, replies)
    for record in records:
        record["references"] = []
    rewrite([])
    mine, (a, _), _ = run(folder, replies)
    assert (a, set(mine["figures"])) == (100, {"a_score", "format"})


@pytest.mark.parametrize("dialect", ["gemex", "gemex_plain", "lvkc", "lvkc_released", "medclm", "plain"])
def test_thoughts_hold_no_answer_in_any_dialect(dialect):
    text = write_reply(SINGLE, dialect).rpartition("</think>")[2]
    for drafted in (f"<think>Maybe {text} or not", f"<think>x</think>{text}<think>No"):
        assert interpret_answer(read_reply(drafted, dialect), SINGLE) is None
    for thoughts in (f"A draft: {text} no.</think>{text}", f"<think>{text}</think>{text}"):
        assert interpret_answer(read_reply(thoughts, dialect), SINGLE) == SINGLE.answer


NUM = 100
LVKC = "<LOC>{}</LOC><VISUAL>v</VISUAL><KNOWLEDGE>k</KNOWLEDGE><CON>c</CON><ANSWER>Yes</ANSWER>"
BARE = {"thinking": ""}


def gemex(answer="Yes", box="<ref>lung</ref><box>[64, 42, 257, 262]</box>"):
    return f"<think>x</think><response><answer>{answer}</answer><location>{box}</location></response>"


def score(folder, record, models, *flags, fails=""):
    """Score files of replies, None for a missing one; return the models of metrics.json."""
    records = [make_record(id=f"q{place}", patient=f"p{place}", split="test", **record) for place in range(NUM)]
    write_vqa_records(folder / "records.jsonl", records)
    for name, texts in models.items():
        lines = [
            json.dumps({"id": each.id, **(text if isinstance(text, dict) else {"reply": text})})
            for each, text in zip(records, texts, strict=True)
            if text is not None
        ]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    files = [str(folder / f"{name}.jsonl") for name in models]
    with pytest.raises(BadInput, match=fails) if fails else contextlib.nullcontext():
        main([str(folder), *files, f"--out={folder / 'out'}", "--num-resamples=2", "--without-pictures", *flags])
    return json.loads((folder / "out" / "metrics.json").read_text())["models"]


def some(number, bad, good=None):
    return [bad if place < number else gemex() if good is None else good for place in range(NUM)]


@pytest.mark.parametrize(
    ("texts", "record", "flags", "answers", "boxes"),
    [  # unread of how many
        (some(100, gemex("perhaps")), {}, (), (100, 100), (0, 100)),
        (some(100, "<answer>Yes</answer> at 9 by 20 to 34 by 32"), {}, (), (0, 100), (100, 100)),
        (some(50, gemex("perhaps"), gemex(box="there")), {}, ("--dialect=gemex",), (50, 100), (50, 100)),
        (some(4, gemex("perhaps")), {}, (), (4, 100), (0, 100)),
        (some(6, gemex(box="there")), {}, (), (0, 100), (6, 100)),
        (some(60, gemex("")), {"kind": "open", "answer": "x"}, ("--dialect=gemex",), (60, 100), (0, 100)),
        (some(10, {"reply": "", "finish_reason": "refusal"}), {}, (), (10, 100), (10, 100)),
        (some(60, None), {}, (), (0, 40), (0, 40)),
        (some(60, None, gemex("perhaps")), {}, ("--missing=skip",), (40, 40), (0, 40)),
        (some(100, LVKC.format("here")), {}, ("--dialect=lvkc",), (0, 100), (100, 100)),
        (some(100, "<answer> Yes <reason> r <location> []"), {}, ("--dialect=gemex_plain",), (0, 100), (100, 100)),
        (some(100, "Answer: Yes"), {}, ("--dialect=medclm",), (0, 100), (100, 100)),
        (some(100, "Answer: Yes"), {}, ("--dialect=medclm", "--without-thinking"), (0, 100), (0, 0)),
        (some(100, "Answer: Yes"), BARE, ("--dialect=medclm",), (0, 100), (0, 0)),
        (some(100, "Reasoning: [9, 20, 34, 32]\n\nAnswer: Yes"), BARE, ("--dialect=medclm",), (0, 100), (100, 100)),
        (some(100, "Yes"), {"references": ()}, (), (0, 100), (0, 0)),
    ],
)
def test_answers_and_boxes_are_counted_apart(tmp_path, capsys, texts, record, flags, answers, boxes):
    fails = "cannot be read" if any(2 * number > of for number, of in (answers, boxes)) else ""
    mine = score(tmp_path, record, {"mine": texts}, *flags, fails=fails)["mine"]
    first = capsys.readouterr().out.partition("\n")[0]
    for what, (number, of) in (("answers", answers), ("boxes", boxes)):
        if not of:  # no box is asked for
            assert what not in mine["unread"]
            assert f"unread {what}" not in first + (tmp_path / "out" / "table.md").read_text()
            continue
        assert f"unread {what} {number} of {of}" in first
        assert mine["counts"]["all"][f"unread_{what}"] == sum(mine["unread"][what]["reasons"].values()) == number
        assert mine["unread"][what]["num_replies"] == of
        assert f"unread {what}" in (tmp_path / "out" / "table.md").read_text()
    assert first.startswith("WARNING: mine") == any(of and number / of >= 0.05 for number, of in (answers, boxes))
    assert ("v_score" in mine["figures"]) == ("grounding" in mine["figures"]) == (boxes[1] > 0)


def test_the_model_that_cannot_be_read_comes_first_and_ends_the_command(tmp_path, capsys):
    said = "^bad: the answers of 60 of 100 replies cannot be read, as dialect gemex; the results"
    score(tmp_path, {}, {"good": some(0, ""), "bad": some(60, gemex("perhaps"))}, fails=said)
    first, second, *_ = capsys.readouterr().out.split("\n")
    assert first == "WARNING: bad: unread answers 60 of 100 [neither yes nor no (60)]; unread boxes 0 of 100"
    assert second == "good: unread answers 0 of 100; unread boxes 0 of 100"
