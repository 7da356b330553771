"""A file of questions asked of a fake endpoint that misbehaves: nothing is asked twice, and every outcome is a line."""

import json
import subprocess
import sys

import msgspec
import pytest
from annotate.misbehaving_server import MisbehavingServer, open_url, text_of
from evaluate_replies.asked import ask, write_folder
from refusals import refuse

from stepcot_jax.box import Box
from stepcot_jax.host.errors import RunStopped
from stepcot_jax.reasoning.dialects import write_question, write_reply
from stepcot_jax.tools.answer import main
from stepcot_jax.tools.evaluate_replies.command import main as evaluate

pytest.importorskip("openai", reason="the extra annotate")

KEY = "sk-marker-0123456789"
MADE, PICTURES = ask(4, num_train=1)
RECORDS = [msgspec.structs.replace(record, question=f"{record.question} {at}?") for at, record in enumerate(MADE)]
TESTS = [record for record in RECORDS if record.split == "test"]
PROMPTS = {record.id: write_question(record, "gemex") for record in TESTS}
TRUE = {PROMPTS[record.id]: write_reply(record, "gemex") for record in TESTS}
KILLED = """
import os, signal, sys
from stepcot_jax.annotate.llm import answers
from stepcot_jax.tools.answer import main

append, left = answers.Ledger.append, [int(sys.argv[1])]

def die(ledger, entry):
    append(ledger, entry)
    left[0] -= 1
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)

answers.Ledger.append = die
main(sys.argv[2:])
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    return write_folder(tmp_path / "questions", RECORDS, PICTURES)


def well(request, number):
    return "answer", TRUE[text_of(request)]


def command(folder, server, *more):
    out, few = folder.with_name("replies.jsonl"), ["--timeout=5", "--attempts=4", "--concurrency=3"]
    return [f"--questions={folder}", f"--out={out}", f"--endpoint={server.base_url}", "--model=m", *few, *more]


def read_lines(folder):
    return {line["id"]: line for line in map(json.loads, folder.with_name("replies.jsonl").read_text().splitlines())}


def test_each_question_is_asked_once_with_prompt_and_picture_alone(folder, capsys):
    def slowly(request, number):
        return ("answer_slowly", 0.2) if number < 6 else well(request, number)

    with MisbehavingServer(slowly) as server:
        for _ in range(2):
            main(command(folder, server, "--image-size=32"))
    assert server.most_at_once == 3
    assert sorted(map(text_of, server.requests)) == sorted(PROMPTS.values())
    for request in server.requests:
        assert {*request} == {"messages", "model", "temperature", "seed", "max_tokens"}
        assert [message["role"] for message in request["messages"]] == ["user"]
        picture = open_url(request["messages"][0]["content"][0]["image_url"]["url"])
        assert (picture.size, picture.info) == ((32, 32), {})
    lines = read_lines(folder)
    assert list(lines) == [record.id for record in TESTS]
    assert {(line["finish_reason"], *line["image_size"]) for line in lines.values()} == {("stop", 32, 32)}
    assert f"{len(TESTS)} questions to m: {len(TESTS)} answered" in capsys.readouterr().out
    written = [path for path in folder.parent.rglob("*") if path.is_file() and path.suffix != ".png"]
    assert {path.name for path in written} > {"replies.jsonl", "answers.sqlite"}
    assert not any(KEY.encode() in path.read_bytes() for path in written)


def test_boxes_are_in_pixels_of_the_picture_that_a_reply_states(folder, tmp_path):
    """A model that saw pictures of half the size writes boxes of half the size."""
    figures = {}
    for side, share in ((64, 1), (32, 2), (48, 2)):
        lines = []
        for record in TESTS:
            boxes = tuple(Box(box.label, tuple(edge / share for edge in box.corners)) for box in record.references)
            reply = write_reply(msgspec.structs.replace(record, references=boxes), "gemex")
            lines.append(json.dumps({"id": record.id, "reply": reply, "image_size": [side, side]}))
        (tmp_path / "r.jsonl").write_text("\n".join(lines))
        evaluate([str(folder), str(tmp_path / "r.jsonl"), f"--out={tmp_path / 'e'}", "--num-resamples=5"])
        scores = [json.loads(line) for line in (tmp_path / "e" / "scores.jsonl").read_text().splitlines()]
        figures[side] = [score["v_score"] for score in scores]
        drawn = [box["box"] for score in scores for box in score["boxes"]]
        expected = [[edge * 64 / side / share for edge in box.corners] for r in TESTS for box in r.references]
        assert all(box == pytest.approx(true, abs=2) for box, true in zip(drawn, expected, strict=True))
    assert min(figures[64]) == 1
    assert min(figures[32]) > 0.5  # halves are written as whole pixels
    assert sum(figures[48]) < 0.8 * sum(figures[32])


@pytest.mark.slow
def test_a_killed_command_resumes_and_asks_nothing_twice(folder):
    out = folder.with_name("replies.jsonl")
    with MisbehavingServer(well) as server:
        for at in (1, 4):
            asked = command(folder, server, "--concurrency=1")
            ended = subprocess.run([sys.executable, "-c", KILLED, str(at), *asked], capture_output=True, text=True)
            assert ended.returncode == -9, ended.stderr
        assert len(server.paid) == 5
        with out.open("ab") as file:  # as a kill in the middle of a write leaves it
            file.write(out.read_bytes()[:40])
        main(command(folder, server, "--concurrency=1"))
        before = out.read_bytes()
        out.unlink()  # the ledger has every answer
        main(command(folder, server))
        assert (out.read_bytes(), len(server.paid), len(server.requests)) == (before, len(TESTS), len(TESTS))


def test_every_failure_is_a_line_and_is_asked_again(folder, capsys):
    missing, fails, seen = TESTS[0], [True], set()
    (folder / missing.image).rename(folder / "moved.png")
    hidden = [record.id for record in TESTS if record.image == missing.image]
    refused, filtered, cut, given_up, garbage = [name for name in PROMPTS if name not in hidden][:5]
    declined = {"choices": [{"message": {"content": None, "refusal": "I cannot."}, "finish_reason": "stop"}]}
    always = {
        PROMPTS[refused]: ("status", (400, {"error": {"code": "content_policy"}}, {})),
        PROMPTS[filtered]: ("body", json.dumps(declined).encode()),
        PROMPTS[cut]: ("answer_cut_at_the_limit", "<think>I look at"),
    }

    def misbehave(request, number):
        text = text_of(request)
        if text in always or (text == PROMPTS[given_up] and fails[0]):
            return always.get(text, ("status", (500, {}, {})))
        if text in seen:
            return well(request, number)
        seen.add(text)
        return ("body", b"<html>busy</html>") if text == PROMPTS[garbage] else ("refuse_for_now", 0)

    with MisbehavingServer(misbehave) as server:
        refuse("requests about 1 of 12 questions were given up", main, command(folder, server), error=RunStopped)
        lines, num_before = read_lines(folder), len(server.requests)
        evaluate([str(folder), str(folder.with_name("replies.jsonl")), f"--out={folder}", "--num-resamples=5"])
        fails[0] = False
        (folder / "moved.png").rename(folder / missing.image)
        capsys.readouterr()
        main(command(folder, server))
    what = {name: tuple(line.get(k) for k in ("reply", "finish_reason", "error")) for name, line in lines.items()}
    assert {what[name][0] for name in hidden} == {None}
    assert what[hidden[0]][2].startswith(f"picture: {folder / missing.image}")
    assert what[given_up] == (None, None, "request: HTTP 500 (attempts: 4)")
    assert what[refused] == ("", "refusal", "request: HTTP 400 (content_policy)")
    assert what[filtered] == ("", "refusal", None)
    assert what[cut] == ("<think>I look at", "length", None)
    notes = (folder / "table.md").read_text()
    assert "5 of 12 records have no reply (5 failed: picture 4, request 1)" in notes
    assert "refused (2); without content: cut while thinking (1)" in notes
    assert "12 questions to m: 9 answered, 1 cut at the limit of their length, 2 refused" in capsys.readouterr().out
    again = {text_of(request) for request in server.requests[num_before:]}
    assert again == {PROMPTS[name] for name in (refused, given_up, *hidden)}


def test_other_options_are_refused_in_one_sentence_and_a_larger_draw_continues(folder):
    with MisbehavingServer(well) as server:
        main(command(folder, server, "--num-questions=4"))
        for more, words in (
            ("--model=other", r"line 1: a reply of m \(.*\), while this command asks other"),
            ("--max-answer-tokens=9", "max answer tokens 9"),
            ("--dialect=lvkc", "does not ask 'phantom_.*', or in other words; choose another --out"),
            ("--split=train", "does not ask"),
        ):
            refuse(words, main, command(folder, server, more))
        main(command(folder, server))
        assert (len(server.requests), len(read_lines(folder))) == (len(TESTS), len(TESTS))
        folder.with_name("replies.jsonl").write_text('{"id": "a", "reply": "No"}\n')
        refuse("line 1: not written by stepcot answer", main, command(folder, server))


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], "one of --checkpoint RUN, --local FOLDER, and --endpoint URL"),
        (["--local=x", "--out=a.png"], "must end in .jsonl"),
        (["--checkpoint=y", "--image-size=64"], "--image-size and --max-answer-tokens have no effect"),
        (["--local=y", "--phase=sft"], "--phase requires --checkpoint"),
    ],
)
def test_wrong_flags_are_named(flags, words):
    refuse(words, main, ["--questions=x", "--out=a.jsonl", *flags])


def test_no_answer_at_all_is_wrong_input(folder):
    with MisbehavingServer(lambda request, number: ("status", (400, {"error": {"code": "no_vision"}}, {}))) as server:
        refuse(r"none of 12 questions was answered \(the last: request: HTTP 400", main, command(folder, server))
