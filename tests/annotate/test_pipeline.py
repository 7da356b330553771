"""Whole runs of the command against the server on localhost: a complete result, or a stop that says why and goes on."""

import contextlib
import csv
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest
from annotate.answer_files import read_rows
from annotate.archive import sample_archive
from annotate.misbehaving_server import GOOD, NORMAL, NUM_TOKENS, REPORT, MisbehavingServer, read_data
from PIL import Image
from refusals import refuse

from stepcot_jax import __version__
from stepcot_jax.annotate import runner
from stepcot_jax.annotate.llm.prompts import write_annotation_prompt
from stepcot_jax.chain import DEFAULT_CHAIN, NOT_ANNOTATED
from stepcot_jax.data.records.records import read_records
from stepcot_jax.host.errors import RunStopped
from stepcot_jax.host.files import lock_folder
from stepcot_jax.tools.annotate.command import main

pytestmark = pytest.mark.slow

pytest.importorskip("openai", reason="the extra annotate")

KEY = "sk-marker-0123456789"
ROOT = pathlib.Path(__file__).resolve().parents[2]


def write_reports(tmp_path, texts, name="reports.jsonl"):
    path = tmp_path / name
    lines = [json.dumps({"id": f"r{n}", "report": text, "image": f"images/{n}.png"}) for n, text in enumerate(texts)]
    path.write_text("\n".join(lines))
    return path


@pytest.fixture
def six(tmp_path):
    return write_reports(tmp_path, [REPORT.format(number) for number in range(6)])


def command(source, out, server, *more):
    llm = ["--annotator=llm", "--model=m", f"--base-url={server.base_url}"]
    return [str(source), f"--out={out}", *llm, "--timeout=5", "--attempts=3", *more]


def run(source, out, server, *more):
    main(command(source, out, server, *more))
    return read_records(out, require_images=False).cases


def read_lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def read_funnel(out):
    with (out / "funnel.csv").open(newline="") as file:
        return [(row["stage"], row["what"], int(row["number"])) for row in csv.DictReader(file)]


def test_a_run_leaves_records_with_their_provenance(tmp_path, six, capsys):
    with MisbehavingServer() as server:
        cases = run(six, tmp_path / "out", server)
        assert server.most_at_once <= 4
    assert [case.image for case in cases] == [f"images/{number}.png" for number in range(6)]
    assert all(case.answers == NORMAL.labels and case.reasoning == NORMAL.reasoning for case in cases)
    assert [case.report for case in cases] == [REPORT.format(number) for number in range(6)]
    said = dict(cases[2].provenance)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", said.pop("date"))
    digest = write_annotation_prompt(DEFAULT_CHAIN).digest
    evidence = {f"step {number} evidence": "The lungs are clear" for number in range(1, 8)}
    model = {"annotator": "llm", "model": "m", "served model": "served-model-0613", "prompt": f"2 {digest[:12]}"}
    model["version"] = __version__
    assert (said, read_lines(tmp_path / "out" / "set_aside.jsonl")) == (evidence | model, [])
    funnel = [("collected", "reports", 6), ("kept", "reports", 6), ("written", "records, one a frontal image", 6)]
    assert read_funnel(tmp_path / "out") == funnel
    rows = read_rows(tmp_path / "out")
    header, entries = rows[0][0], [entry for _, entry in rows]
    assert (header["prompt_digest"], header["model"], header["decoding"]["temperature"]) == (digest, "m", 0.0)
    assert {entry["report"] for entry in entries} == {f"r{number}" for number in range(6)}
    assert all(entry["answer"] == GOOD and entry["prompt_tokens"] == NUM_TOKENS[0] for entry in entries)
    printed = capsys.readouterr()
    assert "| collected | reports" in printed.out
    assert "lungs" not in printed.out + printed.err
    assert "6 records in" in printed.out


def test_a_second_run_pays_nothing_and_one_of_another_setting_or_model_pays_anew(tmp_path, six):
    with MisbehavingServer() as server:
        first = run(six, tmp_path / "out", server)
        assert (run(six, tmp_path / "out", server, "--overwrite"), len(server.paid)) == (first, 6)
        refuse(r"data\.json exists", run, six, tmp_path / "out", server)
        run(six, tmp_path / "out", server, "--overwrite", "--seed=1")
        run(six, tmp_path / "out", server, "--overwrite", "--model=n")
        assert len(server.paid) == 18
        run(six, tmp_path / "out", server, "--overwrite", "--omit=seed")
        assert len(server.paid) == 24
        assert "seed" not in server.requests[-1]
    assert len({json.dumps(fields) for fields, _ in read_rows(tmp_path / "out")}) == 4


def test_an_unreadable_answer_is_repaired_with_what_was_wrong_or_its_report_is_set_aside(tmp_path, six, capsys):
    answer = GOOD.replace('"answer": "A"', '"answer": "Q"')

    def cut(request, number):
        return ("answer_cut_at_the_limit", answer) if len(request["messages"]) == 2 else None

    with MisbehavingServer(cut) as server:
        assert len(run(six, tmp_path / "out", server)) == 6
        repair = next(request for request in server.requests if len(request["messages"]) == 4)
        assert repair["messages"][2] == {"role": "assistant", "content": answer}
        assert all(words in repair["messages"][3]["content"] for words in ("cut at 300 tokens", "accepted is"))
        run(six, tmp_path / "out", server, "--overwrite")
        assert len(server.paid) == 12  # the second time both answers came from the ledger

    def spoil(request, number):
        return ("answer", answer) if "Number 3" in read_data(request)["report"] else None

    with MisbehavingServer(spoil) as server:
        assert len(run(six, tmp_path / "aside", server)) == 5
        asked = [request["messages"] for request in server.requests if "Number 3" in read_data(request)["report"]]
    assert [len(messages) for messages in asked] == [2, 4, 6]  # each repair goes on from the one before
    (aside,) = read_lines(tmp_path / "aside" / "set_aside.jsonl")
    assert (aside["id"], aside["detail"]) == ("r3", "m: 3 unreadable answers, the last at step_1.answer")
    assert ("set aside", "no answer of the annotator", 1) in read_funnel(tmp_path / "aside")
    said = (
        "most frequent reason: no answer of the annotator, 1 of 1, such as m: 3 unreadable answers, the last at step_1"
    )
    assert said in capsys.readouterr().out


def stop(source, out, server, *more):
    with pytest.raises(RunStopped) as caught:
        run(source, out, server, *more)
    assert not (out / "data.json").exists()
    assert KEY not in str(caught.value)
    return str(caught.value)


def test_an_endpoint_that_goes_stops_the_run_which_then_goes_on(tmp_path, six):
    with MisbehavingServer(lambda request, number: ("status", (503, {}, {})) if number >= 3 else None) as server:
        message = stop(six, tmp_path / "out", server, "--concurrency=1", "--attempts=1")
        assert "3 of 6 reports are done; 3 requests in a row were given up, the last with: HTTP 503" in message
        server.behave = lambda request, number: None
        assert (len(run(six, tmp_path / "out", server)), len(server.paid)) == (6, 6)

    def fail_once(request, number):
        return ("status", (500, {}, {})) if "Number 5" in read_data(request)["report"] else None

    with MisbehavingServer(fail_once) as server:  # a request that is given up stops the run unless told otherwise
        message = stop(six, tmp_path / "other", server, "--attempts=1")
        assert "requests for 1 of 6 reports were given up (first: 'r5': HTTP 500 (attempts: 1))" in message
        assert len(server.paid) == 5
        assert len(run(six, tmp_path / "other", server, "--attempts=1", "--on-failure=set-aside")) == 5
        assert len(server.paid) == 5


def test_the_spending_cap_stops_the_run_and_a_larger_one_goes_on(tmp_path, six):
    one = sum(NUM_TOKENS)
    with MisbehavingServer() as server:
        message = stop(six, tmp_path / "out", server, f"--max-tokens={3 * one + 7500}")
        paid = len(server.paid)
        assert 1 <= paid < 6
        assert f"--max-tokens: {paid * one} of {3 * one + 7500} tokens are spent" in message
        # The cap is that of the folder: it counts earlier runs, and ledgers of other models and settings.
        for more in ((), ("--seed=1",), ("--model=n",)):
            assert f"{paid * one} of" in stop(six, tmp_path / "out", server, f"--max-tokens={3 * one + 7500}", *more)
        assert (len(server.paid), len(run(six, tmp_path / "out", server, "--max-tokens=1000000"))) == (paid, 6)
        assert len(server.paid) == 6


def test_only_chains_that_are_trusted_and_voted_for_by_all_are_kept(tmp_path, six):
    replies = {("trust", "m", 1): "no", ("trust", "m", 2): "not sure"}
    replies |= {("vote", "v1", 4): "incorrect", ("vote", "v2", 5): "uncertain", ("vote", "v2", 4): "incorrect"}

    def behave(request, number):
        """Distrust, or vote against, by report number."""
        messages, report = request["messages"], int(re.search(r"Number (\d)", read_data(request)["report"])[1])
        task = "vote" if '"vote"' in messages[0]["content"] else "trust" if '"trust"' in messages[-1]["content"] else ""
        reply = replies.get((task, request["model"], report))
        return reply and ("answer", json.dumps({"reasoning": "", task: reply}))

    with MisbehavingServer(behave) as server:
        more = ["--trust", "--voter=v1", f"--voter=v2,base-url={server.base_url}"]
        cases = run(six, tmp_path / "out", server, *more)
    question = next(request for request in server.requests if len(request["messages"]) == 4)
    assert json.loads(question["messages"][2]["content"]) == json.loads(GOOD)
    assert all(read_data(one)["chain"] == json.loads(GOOD) for one in server.requests if one["model"] != "m")
    assert [case.image for case in cases] == ["images/0.png", "images/3.png"]
    said = dict(cases[0].provenance)
    assert (said["trusts itself"], said["votes"]) == ("yes", "v1: correct, v2: correct")
    asides = [(aside["id"], aside["reason"], aside["detail"]) for aside in read_lines(tmp_path / "out/set_aside.jsonl")]
    distrust, against = "annotator does not trust its chain", "vote not unanimous"
    assert asides == [
        *(("r1", distrust, "m: no"), ("r2", distrust, "m: not sure"), ("r4", against, "v1: incorrect")),
        ("r5", against, "v1: correct, v2: uncertain"),
    ]
    asked = [(fields["task"], fields["model"]) for fields, _ in read_rows(tmp_path / "out")]
    counts = [asked.count(each) for each in (("annotate", "m"), ("trust", "m"), ("vote", "v1"), ("vote", "v2"))]
    assert counts == [6, 6, 4, 3]  # v2 is not asked about what v1 has voted down
    assert len(server.paid) == sum(counts)


def sent_keys(server):
    return {{name.lower(): value for name, value in headers.items()}["authorization"] for headers in server.headers}


def test_a_voter_elsewhere_is_not_told_the_annotators_key(tmp_path, six, monkeypatch):
    monkeypatch.setenv("OTHER_KEY", "sk-other-9876543210")
    own = f"Bearer {KEY}"
    cases = {"": "Bearer none", ",key-variable=OTHER_KEY": "Bearer sk-other-9876543210"}
    for number, (more, expected) in enumerate({**cases, ",key-variable=OPENAI_API_KEY": own}.items()):
        with MisbehavingServer() as server, MisbehavingServer() as other:
            run(six, tmp_path / f"out{number}", server, f"--voter=v,base-url={other.base_url}{more}")
            assert (sent_keys(server), sent_keys(other)) == ({own}, {expected})
    with MisbehavingServer() as server:  # the same host may know it
        run(six, tmp_path / "same", server, "--voter=v", f"--voter=w,base-url={server.base_url}/")
        assert sent_keys(server) == {own}


def test_one_run_at_a_time_and_a_result_that_another_run_left_meanwhile_is_not_replaced(tmp_path, six, monkeypatch):
    with lock_folder(tmp_path / "locked"), MisbehavingServer() as server:
        refuse(r"\.lock: in use", run, six, tmp_path / "locked", server, "--model=n")
        assert server.requests == []

    @contextlib.contextmanager
    def write_and_lock(folder):
        with lock_folder(folder):
            (folder / "data.json").write_text("[]")
            yield

    monkeypatch.setattr(runner, "lock_folder", write_and_lock)
    with MisbehavingServer() as server:
        refuse(r"data\.json exists", run, six, tmp_path / "out", server)
        assert server.requests == []
    assert (tmp_path / "out" / "data.json").read_text() == "[]"


def test_an_image_named_like_an_output_is_refused(tmp_path):
    (tmp_path / "in" / "ledger").mkdir(parents=True)
    for name in ("set_aside.jsonl", "./data.json", "Funnel.CSV", "funnel.md", "ledger/a.png", ".lock"):
        (tmp_path / "in" / name).write_bytes(b"source")
        row = json.dumps({"id": "r", "report": REPORT.format(1), "image": name})
        (tmp_path / "in" / "reports.jsonl").write_text(row)
        refuse("name of an output", main, [str(tmp_path / "in" / "reports.jsonl"), f"--out={tmp_path / 'out'}"])
        assert (tmp_path / "in" / name).read_bytes() == b"source"
    assert not (tmp_path / "out" / "data.json").exists()


def test_nothing_is_lost_between_collected_and_kept(tmp_path):
    lines = [
        {"id": "kept", "report": REPORT.format(1), "image": ["images/a.png", "images/b.png"]},
        {"id": "blank", "report": " ", "image": "images/c.png"},
        {"id": "blind", "report": REPORT.format(2), "image": None},
        {"id": "kept", "report": "again", "image": "images/d.png"},
        {"id": "same image", "report": REPORT.format(3), "image": "images/a.png"},
        {"id": "odd", "report": REPORT.format(4), "image": "images/e.png"},
    ]
    source = tmp_path / "reports.jsonl"
    source.write_text("\n".join(map(json.dumps, lines)))

    def behave(request, number):
        return ("answer", "no") if "Number 4" in read_data(request)["report"] else None

    with MisbehavingServer(behave) as server:
        cases = run(source, tmp_path / "out", server)
    assert [case.image for case in cases] == ["images/a.png", "images/b.png"]
    asides = read_lines(tmp_path / "out" / "set_aside.jsonl")
    assert sorted(aside["id"] for aside in asides) == ["blank", "blind", "kept", "odd", "same image"]
    funnel = read_funnel(tmp_path / "out")
    assert funnel[0] == ("collected", "reports", 6)
    assert funnel[-2:] == [("kept", "reports", 1), ("written", "records, one a frontal image", 2)]
    reasons = {what: number for stage, what, number in funnel if stage == "set aside"}
    once = ("no report", "no frontal image", "no answer of the annotator")
    assert reasons == {"report or image that came before": 2, **dict.fromkeys(once, 1)}


def test_images_that_are_there_come_along(tmp_path, six):
    (tmp_path / "images").mkdir()
    for number in range(5):
        Image.new("L", (8, 8), number).save(tmp_path / "images" / f"{number}.png")
    (tmp_path / "images" / "5.png").symlink_to("/etc/hostname")
    refuse("a link out", main, [str(six), f"--out={tmp_path / 'out'}"])
    (tmp_path / "images" / "5.png").unlink()
    main([str(six), f"--out={tmp_path / 'out'}"])
    linked = sorted((tmp_path / "out" / "images").iterdir())
    assert [path.name for path in linked] == [f"{number}.png" for number in range(5)]
    assert linked[3].read_bytes() == (tmp_path / "images" / "3.png").read_bytes()
    main([str(six), f"--out={tmp_path / 'out'}", "--overwrite"])
    (tmp_path / "images" / "3.png").unlink()
    (tmp_path / "images" / "3.png").write_bytes(b"other")
    refuse("exists and differs", main, [str(six), f"--out={tmp_path / 'out'}", "--overwrite"])
    main([str(six), f"--out={tmp_path / 'bare'}", "--images=none"])
    assert not (tmp_path / "bare" / "images").exists()


def test_a_source_is_never_overwritten(tmp_path, six):
    main([str(six), f"--out={tmp_path}", "--images=none"])
    main([str(six), f"--out={tmp_path}", "--images=none", "--overwrite"])  # beside its table
    before = (tmp_path / "data.json").read_bytes()
    for source, more, words in (
        *((tmp_path, [], "data.json exists"), (tmp_path, ["--overwrite"], "data.json is the source itself")),
        (tmp_path / "data.json", ["--overwrite"], "data.json is the source itself"),
        (tmp_path / "gone" / "reports.csv", ["--overwrite"], "does not exist"),
    ):
        refuse(words, main, [str(source), f"--out={tmp_path}", *more])
    assert (tmp_path / "data.json").read_bytes() == before
    main([str(tmp_path), f"--out={tmp_path / 'second'}"])
    assert read_records(tmp_path / "second", require_images=False).cases[0].patient == "r0"


def test_a_bad_row_or_none_is_found_before_anything_is_paid_for_and_if_nothing_is_kept_the_reasons_are(tmp_path, six):
    (tmp_path / "r.csv").write_text("id,report,image\n")
    refuse("holds no report", main, [str(tmp_path / "r.csv"), f"--out={tmp_path / 'out'}"])
    six.write_text(six.read_text() + "\nbad")
    with MisbehavingServer() as server:
        refuse("line 7", run, six, tmp_path / "out", server)
        assert server.requests == []
    source = write_reports(tmp_path, ["", " "])
    refuse(r"all 2 reports were set aside \(.+: [12]", main, [str(source), f"--out={tmp_path / 'out'}"])
    assert len(read_lines(tmp_path / "out" / "set_aside.jsonl")) == 2
    assert not (tmp_path / "out" / "data.json").exists()
    for more, words in ((["--annotator=llm"], "--model"), (["--trust"], "--trust")):
        refuse(words, main, [str(source), f"--out={tmp_path / 'out'}", *more])


def test_the_exit_code_of_a_stopped_run_and_the_key_and_reports_in_no_output_or_file(tmp_path, six):
    echo = {"quote": "lungs", "reasoning": f"Bearer {KEY}", "answer": "A"}
    answer = json.dumps({f"step_{number}": echo for number in range(1, 8)})
    error = {"error": {"message": KEY, "code": KEY, "type": KEY}}

    def behave(request, number):
        return [("answer", answer), ("status", (500, error, {"X": KEY})), ("body", KEY.encode()), None][number % 4]

    with MisbehavingServer(behave) as server:
        arguments = command(six, tmp_path / "out", server, "--attempts=1", "--voter=v")
        started = [sys.executable, "-m", "stepcot_jax", "annotate", *arguments]
        environment = {**os.environ, "OPENAI_API_KEY": KEY, "OPENAI_LOG": "debug"}
        done = subprocess.run(started, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 3, done.stderr
    for words in ("Traceback", KEY, "The lungs are clear"):
        assert words not in done.stdout + done.stderr
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if KEY.encode() in path.read_bytes()]


def test_an_interrupted_run_says_how_to_go_on(tmp_path, six):
    with MisbehavingServer(lambda request, number: ("answer_slowly", 0.3)) as server:
        arguments = command(six, tmp_path / "out", server, "--concurrency=1")
        started = [sys.executable, "-m", "stepcot_jax", "annotate", *arguments]
        process = subprocess.Popen(started, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while len(server.paid) < 2:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
        assert process.returncode == 3
        assert re.search(r"stopped: [12] of 6 reports are done; interrupted; rerun", err)
        assert "Traceback" not in err
        server.behave = lambda request, number: None
        assert len(run(six, tmp_path / "out", server)) == 6
        assert len(server.paid) <= 7


def test_the_archive_is_annotated_and_accounted_for(shared, tmp_path, capsys):
    main([str(sample_archive(shared, tmp_path)), f"--out={tmp_path}"])
    cases = read_records(tmp_path, require_images=False).cases
    asides = read_lines(tmp_path / "set_aside.jsonl")
    kept = {case.patient for case in cases}
    assert all(re.fullmatch(r"CXR\d+", name) for name in kept)
    assert len(cases) > len(kept) > 80  # several frontal images of a report are several records
    funnel = {(stage, what): number for stage, what, number in read_funnel(tmp_path)}
    assert funnel["collected", "reports"] == len(kept) + len(asides)
    assert kept.isdisjoint(aside["id"] for aside in asides)
    assert sum(number for (stage, _), number in funnel.items() if stage == "set aside") == len(asides)
    assert all(dict(case.provenance)["annotator"] == "rules" for case in cases)
    assert "lungs" not in capsys.readouterr().err


def test_rules_mark_possible_findings_uncertain_in_the_records(tmp_path):
    texts = ["FINDINGS: Possible right lower lobe pneumonia.", "FINDINGS: Right lower lobe pneumonia."]
    main([str(write_reports(tmp_path, texts)), f"--out={tmp_path / 'out'}", "--images=none"])
    possible, stated = read_records(tmp_path / "out", require_images=False).cases
    assert (possible.stated, DEFAULT_CHAIN.steps[-1].options[possible.uncertain[-1]]) == (stated.answers, "Pneumonia")
    assert (possible.answers[-1], stated.uncertain) == (NOT_ANNOTATED, ())
