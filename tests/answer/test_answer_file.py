"""A file of questions asked of a fake endpoint that misbehaves: nothing is asked twice, and every outcome is a line."""

import base64
import io
import json
import subprocess
import sys

import msgspec
import pytest
from annotate.misbehaving_server import MisbehavingServer
from evaluate_replies.asked import ask, write_folder
from PIL import Image
from refusals import refuse

from stepcot_jax.box import Box
from stepcot_jax.data.questions.reply_files import read_replies
from stepcot_jax.evaluation.replies import ScoringSettings
from stepcot_jax.host.errors import RunStopped
from stepcot_jax.reasoning.dialects import write_question, write_reply
from stepcot_jax.run.scored_replies import score_file
from stepcot_jax.tools.answer import main
from stepcot_jax.tools.evaluate_replies.command import main as evaluate

pytest.importorskip("openai", reason="the extra annotate")

KEY = "sk-marker-0123456789"
MADE, PICTURES = ask(4, num_train=1)
RECORDS = [msgspec.structs.replace(record, question=f"{record.question} {at}?") for at, record in enumerate(MADE)]
TESTS = [record for record in RECORDS if record.split == "test"]
TRUE = {write_question(record, "gemex"): write_reply(record, "gemex") for record in TESTS}
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


@pytest.fixture(autouse=True)
def _key(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


@pytest.fixture
def folder(tmp_path):
    return write_folder(tmp_path / "questions", RECORDS, PICTURES)


def text_of(request):
    return request["messages"][-1]["content"][-1]["text"]


def well(request, number):
    """The true reply, by the prompt alone: no two are equal."""
    return "answer", TRUE[text_of(request)]


def command(folder, server, *more):
    out = folder.with_name("replies.jsonl")
    few = ["--timeout=5", "--attempts=4", "--concurrency=3"]
    return [f"--questions={folder}", f"--out={out}", f"--endpoint={server.base_url}", "--model=m", *few, *more]


def read_lines(folder):
    return {line["id"]: line for line in map(json.loads, folder.with_name("replies.jsonl").read_text().splitlines())}


def test_each_question_is_asked_once_with_prompt_and_picture_alone(folder, capsys):
    def slowly(request, number):
        return ("answer_slowly", 0.2) if number < 6 else well(request, number)

    with MisbehavingServer(slowly) as server:
        main(command(folder, server, "--image-size=32"))
        assert server.most_at_once == 3
        main(command(folder, server, "--image-size=32"))
    assert len(server.requests) == len(TESTS)
    assert sorted(map(text_of, server.requests)) == sorted(write_question(record, "gemex") for record in TESTS)
    for request in server.requests:
        assert [message["role"] for message in request["messages"]] == ["user"]
        assert "response_format" not in request
        assert (request["temperature"], request["seed"], request["max_tokens"]) == (0, 0, 2048)
        url = request["messages"][0]["content"][0]["image_url"]["url"]
        picture = Image.open(io.BytesIO(base64.b64decode(url.removeprefix("data:image/png;base64,"))))
        assert (picture.size, picture.info) == ((32, 32), {})
        assert not any(record.patient in json.dumps(request) or record.image in json.dumps(request) for record in TESTS)
    lines = read_lines(folder)
    assert list(lines) == [record.id for record in TESTS]
    assert {(line["model"], line["finish_reason"], *line["image_size"]) for line in lines.values()} == {
        ("m", "stop", 32, 32)
    }
    assert f"{len(TESTS)} questions to m: {len(TESTS)} answered" in capsys.readouterr().out
    written = [path for path in folder.parent.rglob("*") if path.is_file() and path.suffix != ".png"]
    assert len(written) > 3
    assert not any(KEY.encode() in path.read_bytes() for path in written)


def test_boxes_are_in_pixels_of_the_picture_that_a_reply_states(tmp_path):
    """A model that saw pictures of half the size writes boxes of half the size."""
    halves = [tuple(Box(box.label, tuple(edge / 2 for edge in box.corners)) for box in r.references) for r in TESTS]
    small = [msgspec.structs.replace(record, references=half) for record, half in zip(TESTS, halves, strict=True)]
    ids = {record.id: None for record in TESTS}.keys()
    figures = {}
    for side, seen in ((64, TESTS), (32, small), (48, small)):
        lines = [
            json.dumps({"id": record.id, "reply": write_reply(record, "gemex"), "image_size": [side, side]})
            for record in seen
        ]
        (tmp_path / "r.jsonl").write_text("\n".join(lines))
        file = read_replies(tmp_path / "r.jsonl", name="m", chosen=ids, known=ids)
        scores = score_file(TESTS, file, ScoringSettings())
        figures[side] = [score.v_score for score in scores]
        if side != 48:  # of results they are in pixels of the record's picture
            for score, record in zip(scores, TESTS, strict=True):
                for box, true in zip(score.boxes, record.references, strict=True):
                    assert box.corners == pytest.approx(true.corners, abs=2)
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
        assert len(server.paid) == len(server.requests) == len(TESTS)
        before = out.read_bytes()
        out.unlink()  # the ledger has every answer
        main(command(folder, server))
        assert (out.read_bytes(), len(server.requests)) == (before, len(TESTS))


def test_every_failure_is_a_line_and_is_asked_again(folder, capsys, tmp_path):
    missing, fails, seen = TESTS[0], [True], set()
    (folder / missing.image).rename(folder / "moved.png")  # four questions about one picture
    hidden = [record.id for record in TESTS if record.image == missing.image]
    refused, filtered, cut, given_up, garbage = [record for record in TESTS if record.id not in hidden][:5]

    def misbehave(request, number):
        text = text_of(request)
        if text == write_question(refused, "gemex"):
            return "status", (400, {"error": {"message": "no", "code": "content_policy"}}, {})
        if text == write_question(filtered, "gemex"):
            message = {"role": "assistant", "content": None, "refusal": "I cannot."}
            return "body", json.dumps({"choices": [{"message": message, "finish_reason": "stop"}]}).encode()
        if text == write_question(cut, "gemex"):
            return "answer_cut_at_the_limit", "<think>I look at"
        if text == write_question(given_up, "gemex") and fails[0]:
            return "status", (500, {}, {})
        if text in seen:
            return well(request, number)
        seen.add(text)
        return ("body", b"<html>busy</html>") if text == write_question(garbage, "gemex") else ("refuse_for_now", 0)

    with MisbehavingServer(misbehave) as server:
        refuse("1 requests were given up", main, command(folder, server), error=RunStopped)
        fails[0] = False
        num_before = len(server.requests)
        (folder / "moved.png").rename(folder / missing.image)
        lines = read_lines(folder)
        for record_id in hidden:
            assert lines[record_id]["reply"] is None
            assert lines[record_id]["error"].startswith("picture: ")
        assert lines[given_up.id]["error"].startswith("request: HTTP 500")
        assert (lines[filtered.id]["reply"], lines[filtered.id]["finish_reason"]) == ("", "refusal")
        assert (lines[refused.id]["finish_reason"], lines[refused.id]["error"]) == (
            "refusal",
            "request: HTTP 400 (content_policy)",
        )
        assert lines[cut.id]["finish_reason"] == "length"
        evaluate([str(folder), str(folder.with_name("replies.jsonl")), f"--out={tmp_path / 'e'}", "--num-resamples=5"])
        notes = (tmp_path / "e" / "table.md").read_text()
        assert f"5 of 12 records have no reply (5 failed: picture {len(hidden)}, request 1)" in notes
        assert "refused (2); without content: cut while thinking (1)" in notes
        capsys.readouterr()
        main(command(folder, server))
    assert "12 questions to m: 9 answered, 1 cut at the limit of their length, 2 refused" in capsys.readouterr().out
    again = {text_of(request) for request in server.requests[num_before:]}
    assert again == {write_question(record, "gemex") for record in (refused, given_up)} | {
        write_question(record, "gemex") for record in TESTS if record.id in hidden
    }


def test_the_cap_stops_and_a_larger_one_resumes(folder):
    with MisbehavingServer(well) as server:
        cap = ["--concurrency=1", "--max-answer-tokens=300"]
        refuse("--max-tokens", main, command(folder, server, "--max-tokens=9000", *cap), error=RunStopped)
        assert 0 < len(server.paid) < len(TESTS)
        assert 0 <= len(server.paid) - len(read_lines(folder)) <= 1  # the ledger has the last
        main(command(folder, server, *cap))
    assert len(server.paid) == len(TESTS)


def test_other_options_are_refused_in_one_sentence_and_a_larger_draw_continues(folder):
    with MisbehavingServer(well) as server:
        main(command(folder, server, "--num-questions=4"))
        for more, words in (
            (["--model=other"], r"line 1: a reply of m \(.*\), while this command asks other"),
            (["--max-answer-tokens=9"], "max answer tokens 9"),
            (["--dialect=lvkc"], "does not ask 'phantom_.*', or in other words; choose another --out"),
            (["--without-thinking"], "does not ask"),
            (["--split=train"], "does not ask"),
        ):
            refuse(words, main, command(folder, server, *more))
        main(command(folder, server))
        assert (len(server.requests), len(read_lines(folder))) == (len(TESTS), len(TESTS))
        folder.with_name("replies.jsonl").write_text('{"id": "a", "reply": "No"}\n')
        refuse("line 1: not written by stepcot answer", main, command(folder, server))


def test_no_answer_at_all_is_wrong_input(folder):
    with MisbehavingServer(lambda request, number: ("status", (400, {"error": {"code": "no_vision"}}, {}))) as server:
        refuse(
            r"none of 12 questions was answered \(the last: request: HTTP 400 \(no_vision\)\)",
            main,
            command(folder, server),
        )


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], "one of --checkpoint RUN, --local FOLDER, and --endpoint URL"),
        (["--local=x", "--checkpoint=y"], "one of --checkpoint RUN"),
        (["--local=x", "--out=a.png"], "must end in .jsonl"),
        (["--model=m"], "--endpoint URL and --model NAME are required together"),
        (["--checkpoint=y", "--image-size=64"], "--image-size and --max-answer-tokens have no effect"),
        (["--local=y", "--temperature=1"], "--temperature requires --endpoint"),
        (["--local=y", "--concurrency=0"], "--concurrency: 0 must be at least 1"),
    ],
)
def test_wrong_flags_are_named(flags, words):
    refuse(words, main, ["--questions=x", "--out=a.jsonl", *flags])
