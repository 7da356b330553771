"""Batch files in place of live requests: the same result, and each kind of reply line by name."""

import contextlib
import json
import random
import re
import shutil
import subprocess
import sys

import msgspec
import pytest
from annotate.batch_runner import BatchRunner, write_lines
from annotate.misbehaving_server import NUM_TOKENS, REPORT, MisbehavingServer
from annotate.phantom_records import write_folder
from annotate.test_pipeline import KEY, command, read_lines, six, write_reports  # noqa: F401
from annotate.test_sharding import entries, files
from annotate.vqa.test_vqa_pipeline import answer, learn
from annotate.vqa.test_vqa_pipeline import command as vqa_command
from refusals import refuse

from stepcot_jax.annotate.llm.answers import Answers
from stepcot_jax.data.records.records import read_records
from stepcot_jax.host.errors import BadInput, RunStopped
from stepcot_jax.tools.annotate.command import main

pytest.importorskip("openai", reason="the extra annotate")

FLAGS = ("--model=m", "--attempts=3")


def ask(source, out, *more):
    main(["requests", *map(str, source if isinstance(source, tuple) else (source,)), f"--out={out}", *FLAGS, *more])


def take(out, *paths):
    main(["replies", str(out), *map(str, paths)])


def finish(source, out, runner, *more, most=12):
    """Rounds until the result is there; returns their number."""
    for number in range(most):
        ask(source, out, *more)
        if any((out / name).exists() for name in ("data.json", "records.jsonl")):
            return number
        replies = runner.run(out)
        assert replies
        random.Random(number).shuffle(replies)  # noqa: S311
        take(out, write_lines(out.parent / f"replies-{number}.jsonl", replies))
    raise AssertionError("no result")


def assert_same_result(folder, live):
    found = {name: content for name, content in files(folder).items() if not name.startswith("batch/")}
    assert (found, entries(folder)) == (files(live), entries(live))


WORDS = ("plain", "alpha", "beta", "gamma", "delta")


def by_content(request, number):
    """Answers that depend on the messages alone: a repair, distrust, a refusal, a vote against."""
    text, last = json.dumps(request["messages"]), request["messages"][-1]["content"]
    is_vote = '"vote"' in request["messages"][0]["content"]
    if "alpha" in text and len(request["messages"]) == 2 and not is_vote:
        return "answer", "not an object"
    if "beta" in text and '"trust"' in last:
        return "answer", json.dumps({"reasoning": "Unsure.", "trust": "not sure"})
    if "gamma" in text:
        return "status", (400, {"error": {"message": "filtered", "code": "content_filter"}}, {})
    if "delta" in text and is_vote and request["model"] == "v2":
        return "answer", json.dumps({"reasoning": "No.", "vote": "incorrect"})
    return None


@pytest.mark.parametrize("layout", ["openai", "vllm"])
def test_batches_give_the_result_of_the_live_endpoint(tmp_path, monkeypatch, capsys, layout):
    source = write_reports(tmp_path, [REPORT.format(f"{number} {WORDS[number % 5]}") for number in range(10)])
    more = ["--trust", "--voter=v1", "--voter=v2", "--on-failure=set-aside"]
    with MisbehavingServer(by_content) as server:
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        main(command(source, tmp_path / "live", server, *more))
        monkeypatch.delenv("OPENAI_API_KEY")  # batch files need no key
        runner, sent = BatchRunner(server, layout), {json.dumps(body, sort_keys=True) for body in server.requests}
        num_live = len(server.paid)
        num_rounds = finish(source, tmp_path / "batch", runner, *more)
        assert len(server.paid) == 2 * num_live
    assert num_rounds == 5  # annotate, repair, trust, and two voters, one after the other
    assert {json.dumps(line["body"], sort_keys=True) for line in runner.lines} == sent
    assert_same_result(tmp_path / "batch", tmp_path / "live")
    assert len({line["custom_id"] for line in runner.lines}) == len(runner.lines)
    assert all(len(line["custom_id"]) <= 64 for line in runner.lines)
    kinds = {path.name for path in (tmp_path / "batch" / "batch").glob("*")}
    assert {"round-001-m-001.jsonl", "round-004-v1-001.jsonl"} <= kinds
    assert all(path.stat().st_mode & 0o077 == 0 for path in (tmp_path / "batch" / "batch").glob("*"))
    printed = capsys.readouterr()
    assert "refused: HTTP 400 (content_filter)" in printed.out
    assert "lungs" not in printed.out + printed.err


def test_files_keep_their_limits(tmp_path, six):  # noqa: F811
    out = tmp_path / "out"
    ask(six, out, "--max-requests=4")
    assert [len(read_lines(path)) for path in sorted((out / "batch").glob("round-001-m-*.jsonl"))] == [4, 2]
    big = write_reports(tmp_path, ["FINDINGS: " + "The lungs are clear. " * 20_000] * 4, "big.jsonl")
    ask(big, tmp_path / "big", "--max-megabytes=1")
    paths = sorted((tmp_path / "big" / "batch").glob("round-001-m-*.jsonl"))
    assert [len(read_lines(path)) for path in paths] == [2, 2]
    assert all(path.stat().st_size <= 1_000_000 for path in paths)
    for flag in ("--max-requests", "--max-megabytes"):
        refuse(f"{flag} must be above 0", ask, six, tmp_path / "none", f"{flag}=0")


def start(source, out, server):
    """One round, and its replies, not yet taken."""
    ask(source, out)
    return BatchRunner(server).run(out)


def test_partial_repeated_foreign_and_damaged_lines_are_named(tmp_path, six, capsys):  # noqa: F811
    out, path = tmp_path / "out", tmp_path / "replies.jsonl"
    with MisbehavingServer() as server:
        ask(six, out)
        runner = BatchRunner(server)
        replies = runner.run(out)
    foreign = [{**replies[0], "custom_id": "annotate-of-another-run"}, {**replies[1], "custom_id": "x-r1"}]
    other = json.loads(json.dumps(replies[0]))
    other["response"]["body"]["choices"][0]["message"]["content"] = "another answer"
    future = {**replies[5], "custom_id": replies[5]["custom_id"].replace("-r1", "-r2")}
    capsys.readouterr()
    take(out, write_lines(path, [*replies[:3], replies[2], *foreign, other, future]))
    assert capsys.readouterr().out.splitlines() == [
        *("3 answers taken", "1 lines repeat what is known"),
        f"1 answered before, with another answer: the first stays: {replies[0]['custom_id']}",
        f"3 not asked by this folder: annotate-of-another-run, x-r1, {future['custom_id']}",
        "3 requests have no reply yet",
    ]
    path.write_text("\n".join([json.dumps(replies[3]), "{", "[]", "", json.dumps(replies[4])[:-20]]))
    refuse(r"replies.jsonl, line 2 \(.*\) and 2 more lines: not a reply of a batch", take, out, path)
    assert "1 answers taken\n2 requests have no reply yet" in capsys.readouterr().out
    ask(six, out)
    assert "2 requests of earlier rounds have no reply yet; --again" in capsys.readouterr().out
    assert not (out / "batch" / "round-002-m-001.jsonl").exists()
    ask(six, out, "--again")
    again = read_lines(out / "batch" / "round-002-m-001.jsonl")
    assert [line["body"] for line in again] == [line["body"] for line in runner.lines[4:]]
    # A late reply of the first round counts too, and the reply of the second round repeats it.
    take(out, write_lines(path, replies[4:]))
    take(out, write_lines(path, [{**replies[4], "custom_id": again[0]["custom_id"]}]))
    ask(six, out)
    assert len(read_records(out, require_images=False).cases) == 6
    with pytest.raises(BadInput, match=r"none of 1 replies is about a request of \S*out \(first custom_id: 'x-r1'\)"):
        take(out, write_lines(path, foreign[1:]))
    refuse(r"nowhere has no batch; expected a folder that `annotate requests` wrote", take, tmp_path / "nowhere", path)


ERRORS = {
    "not answered (batch_expired)": {"response": None, "error": {"code": "batch_expired", "message": "late"}},
    "not answered (no reason given)": {"response": None, "error": None},
    "HTTP 500 (oops)": {"response": {"status_code": 500, "body": {"error": {"code": "oops"}}}},
    "HTTP 429": {"response": {"status_code": 429, "body": "slow down"}},
    "HTTP 401": {"response": {"status_code": 401, "body": None}},
    "the response is not a chat completion": {"response": {"status_code": 200, "body": {}}},
    "HTTP 503": {"response": {"status_code": 503}, "error": "engine died"},
}


def test_each_error_is_named_and_asked_again(tmp_path, capsys):
    out, texts = tmp_path / "out", [REPORT.format(number) for number in range(len(ERRORS))]
    source = write_reports(tmp_path, texts)
    with MisbehavingServer() as server:
        replies = start(source, out, server)
    lines = [{"custom_id": reply["custom_id"], **line} for reply, line in zip(replies, ERRORS.values(), strict=True)]
    take(out, write_lines(tmp_path / "replies.jsonl", lines))
    printed = capsys.readouterr().out
    assert all(f"1 to be asked again: {problem}\n" in printed for problem in ERRORS)
    ask(source, out)
    assert len(read_lines(out / "batch" / "round-002-m-001.jsonl")) == len(ERRORS)


def test_an_error_is_asked_again_until_the_attempts_are_used_up(tmp_path, six, capsys):  # noqa: F811
    out, path, (problem, line) = tmp_path / "out", tmp_path / "replies.jsonl", next(iter(ERRORS.items()))
    with MisbehavingServer() as server:
        runner = BatchRunner(server)
        ask(six, out)
        first, *others = runner.run(out)
        failed = first["custom_id"].removesuffix("-r1")
        take(out, write_lines(path, [*others, {"custom_id": f"{failed}-r1", **line}]))
        old = path.read_bytes()
        for number in (2, 3):
            ask(six, out)
            assert [each["custom_id"] for each in runner.run(out)] == [f"{failed}-r{number}"]
            capsys.readouterr()
            path.write_bytes(old)
            take(out, path)  # the first round's file again: no news about this one
            said = ["0 answers taken", "6 lines repeat what is known", "1 requests have no reply yet"]
            assert capsys.readouterr().out.splitlines() == said
            take(out, write_lines(path, [{"custom_id": f"{failed}-r{number}", **line}] * 2))
        with pytest.raises(RunStopped, match=rf"'r0': {re.escape(problem)} \(attempts: 3\)\); all other answers"):
            ask(six, out)
        ask(six, out, "--again")
        take(out, write_lines(path, runner.run(out)))
        ask(six, out)
    assert len(read_records(out, require_images=False).cases) == 6


def test_an_endpoint_that_refuses_a_wording_is_asked_in_the_next(tmp_path, six, capsys):  # noqa: F811
    def behave(request, number):
        if "max_tokens" in request:
            return "status", (400, {"error": {"message": "use 'max_completion_tokens' instead"}}, {})
        if request.get("response_format", {}).get("type") == "json_schema":
            return "status", (400, {"error": {"message": "response_format is not known"}}, {})
        return None

    out = tmp_path / "out"
    with MisbehavingServer(behave) as server:
        runner = BatchRunner(server)
        assert finish(six, out, runner, "--attempts=1") == 3
    wordings = [("max_tokens" in line["body"], line["body"]["response_format"]["type"]) for line in runner.lines]
    assert wordings == [(True, "json_schema")] * 6 + [(False, "json_schema")] * 6 + [(False, "json_object")] * 6
    said = "6 to be asked again: HTTP 400: to be asked with json_schema, max_completion_tokens"
    assert said in capsys.readouterr().out


def test_the_cap_holds_for_batches(tmp_path, six, capsys):  # noqa: F811
    out, path = tmp_path / "out", tmp_path / "replies.jsonl"
    ask(six, tmp_path / "free")
    with contextlib.closing(Answers(tmp_path / "free" / "ledger")) as answers:
        bound = max(asked.num_tokens for asked in answers.outstanding())
    cap = f"--max-tokens={2 * bound + 10}"
    with MisbehavingServer() as server:
        runner = BatchRunner(server)
        ask(six, out, cap)
        assert "4 requests have to wait for tokens under --max-tokens" in capsys.readouterr().out
        ask(six, out, cap)
        assert "2 requests of earlier rounds have no reply yet" in capsys.readouterr().out
        # The first file may be charged too, so that nothing fits beside it.
        with pytest.raises(RunStopped, match=r"0 of \d+ tokens are spent and up to \d+ may be charged"):
            ask(six, out, cap, "--again")
        replies = runner.run(out)
        assert len(replies) == 2
        take(out, write_lines(path, replies))
        with pytest.raises(RunStopped, match=rf"--max-tokens: {2 * sum(NUM_TOKENS)} of \d+ tokens are spent"):
            ask(six, out, f"--max-tokens={2 * sum(NUM_TOKENS) + 100}")
        assert finish(six, out, runner) == 1


def test_a_killed_command_loses_nothing_and_an_open_batch_of_before_goes_on(tmp_path, six):  # noqa: F811
    out = tmp_path / "out"
    with MisbehavingServer() as server:
        replies = start(six, out, server)
    before = (out / "batch" / "round-001-m-001.jsonl").read_bytes()
    # A kill between files and transaction leaves files that the next run writes again, under the same names.
    shutil.rmtree(out / "ledger")
    ask(six, out)
    assert (out / "batch" / "round-001-m-001.jsonl").read_bytes() == before
    with contextlib.closing(Answers(out / "ledger")) as answers:
        asked = answers.outstanding()
        fields, number = answers.identity(asked[0].ledger)
    lines = [{"type": "identity", "ledger": asked[0].ledger, "fields": fields, "num_attempts": number}]
    lines += [{"type": "asked", **msgspec.to_builtins(each)} for each in asked]
    shutil.rmtree(out / "ledger")
    write_lines(out / "batch" / "journal.jsonl", lines)
    ask(six, out)
    assert [path.name for path in sorted((out / "batch").glob("round-*"))] == ["round-001-m-001.jsonl"]
    take(out, write_lines(tmp_path / "r.jsonl", replies))
    ask(six, out)
    assert len(read_records(out, require_images=False).cases) == 6


def test_a_live_run_continues_batches(tmp_path, six, monkeypatch):  # noqa: F811
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    out = tmp_path / "out"
    with MisbehavingServer() as server:
        take_some = start(six, out, server)[:4]
        take(out, write_lines(tmp_path / "r.jsonl", take_some))
        num_paid = len(server.paid)
        main(command(six, out, server))
        assert len(server.paid) == num_paid + 2


def test_reasoning_records_by_batches_are_those_of_the_live_endpoint(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    source = write_folder(tmp_path / "few", (1, 11))
    more = ["--trust", "--voter=v", "--regenerate=1", "--send-images"]
    known = learn("medclm", source)
    with MisbehavingServer(lambda request, _: ("answer", answer(known, request))) as server:
        main(vqa_command("medclm", source, tmp_path / "live", server, *more))
        finish(("vqa", source), tmp_path / "batch", BatchRunner(server), "--task=medclm", *more)
    assert_same_result(tmp_path / "batch", tmp_path / "live")


def test_a_full_disk_leaves_no_request_file_that_is_cut(tmp_path, six):  # noqa: F811
    out = tmp_path / "out"
    code = (
        "import resource, sys; from stepcot_jax.host.errors import run_tool; "
        "from stepcot_jax.tools.annotate.command import main; resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000)); "
        "run_tool(lambda: main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "requests", str(six), f"--out={out}", *FLAGS], capture_output=True, text=True
    )
    assert done.returncode == 3, done.stderr
    assert done.stderr.startswith("stopped: ")
    assert not list(out.rglob("*.jsonl*"))
