"""Answers and boxes that cannot be read are counted apart, said first, and end the command if they are over half."""

import contextlib
import json

import pytest
from reasoning_records import make_record

from stepcot_jax.data.questions.record_files import write_vqa_records
from stepcot_jax.host.errors import BadInput
from stepcot_jax.tools.evaluate_replies.command import main

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
