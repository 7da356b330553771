import json

import msgspec
import pytest
from annotate.misbehaving_server import MisbehavingServer, read_data
from evaluate_replies.asked import ask, write_folder, write_replies
from refusals import refuse

from stepcot_jax.host.errors import RunStopped
from stepcot_jax.tools.evaluate_replies.command import main

RECORDS, PICTURES = ask(6, num_train=2)
OPEN = [record for record in RECORDS if record.split == "test" and record.kind == "open"]


def judge(request, number):
    """8 for a reference, 6 for a reply; the stages as they are asked for."""
    prompt = request["messages"][0]["content"]
    if "rate the answers" in prompt:
        return "answer", json.dumps({"reason": "It fits.", "reference": 8, "reply": 6})
    if "score the stages" in prompt:
        scores = {"localisation": 5, "visual": 4, "knowledge": 3, "conclusion": 2}
        return "answer", json.dumps({"reason": "It fits.", **scores})
    labels = {"localisation": "Partially correct", "visual": "fully correct", "knowledge": "incorrect"}
    return "answer", json.dumps({"reason": "It fits.", **labels, "conclusion": "correct"})


def score(folder, replies, server, *flags):
    address = ["--judge", "m", "--base-url", server.base_url, "--num-resamples", "20", "--without-pictures"]
    main([str(folder), str(replies), "--out", str(folder / "out"), *address, *flags])
    return json.loads((folder / "out" / "metrics.json").read_text())["models"]["mine"]


@pytest.fixture
def folder(tmp_path):
    return write_folder(tmp_path, RECORDS, PICTURES)


def test_open_answers_are_judged_once_and_others_never(folder):
    replies = write_replies(folder / "mine.jsonl", RECORDS, change=lambda text, place: text if place != 8 else "?")
    assert RECORDS[8] is OPEN[0]
    with MisbehavingServer(judge) as server:
        found = score(folder, replies, server)
        # Three of four could be read: 6/8 of them, times 3/4.
        assert found["figures"]["a_score"]["open"]["value"] == pytest.approx(6 / 8 * 3 / 4)
        assert found["figures"]["a_score"]["closed"]["value"] == 1
        assert len(server.requests) == 3
        assert found["figures"]["a_score"]["mean"]["value"] == 1  # without open questions: the baseline has no judge
        notes = json.loads((folder / "out" / "metrics.json").read_text())["notes"]
        assert "majority answer + constant box: 4 open unscored." in notes
        assert any("every row is scored on (closed, single, multi)" in note for note in notes)
        data = [read_data(request) for request in server.requests]
        assert {each["question"] for each in data} == {record.question for record in OPEN[1:]}
        assert all("diagnosis: " in each["caption"] for each in data)
        assert {each["reference"].partition("\n")[0] for each in data} == {record.answer for record in OPEN[1:]}
        again = score(folder, replies, server, "--open-score", "within_two")
        assert len(server.requests) == 3  # from the ledger
        assert again["figures"]["a_score"]["open"]["value"] == 0  # a difference of 2 is too much
    lines = [json.loads(line) for line in (folder / "out" / "scores.jsonl").open()]
    assert [line["judged"] for line in lines if "judged" in line] == [{"reference": 8, "reply": 6}] * 3


def test_answers_without_a_usable_score_take_no_part(folder):
    def behave(request, number):
        if read_data(request)["question"] == OPEN[0].question and OPEN[0].facts["side"] in str(read_data(request)):
            return "answer", json.dumps({"reason": "?", "reference": 11, "reply": 0})
        return judge(request, number)

    replies = write_replies(folder / "mine.jsonl", RECORDS)
    with MisbehavingServer(behave) as server:
        found = score(folder, replies, server)
    assert found["counts"]["open"]["unscored"] >= 1
    assert found["figures"]["a_score"]["open"]["value"] == pytest.approx(6 / 8)
    assert found["figures"]["v_score"]["open"]["value"] == 1


def test_a_cap_stops_the_run_and_a_larger_one_resumes(folder):
    replies = write_replies(folder / "mine.jsonl", RECORDS)
    with MisbehavingServer(judge) as server:
        refuse("--max-tokens", score, folder, replies, server, "--max-tokens", "100", error=RunStopped)
        assert not (folder / "out" / "metrics.json").exists()
        score(folder, replies, server, "--max-tokens", "10000000")
        assert len(server.requests) == 4


def test_stages_are_rated_and_labelled_where_facts_are_missing(folder):
    records = [msgspec.structs.replace(record, facts={}) for record in RECORDS]
    write_folder(folder, records)
    replies = write_replies(folder / "mine.jsonl", records, dialect="lvkc", keep=lambda place: place < 10)
    flags = ["--judge-stages", "--open-score", "exact", "--dialect", "lvkc"]
    with MisbehavingServer(judge) as server:
        stages = score(folder, replies, server, *flags, "--missing", "skip")["stages"]
        assert len(server.requests) == 2 * 2
        assert {name: each["value"] for name, each in stages["rated"].items()} == {
            "localisation": 5, "visual": 4, "knowledge": 3, "conclusion": 2
        }  # fmt: skip
        assert stages["step_quality"]["description"]["value"] == 0.75
        assert stages["step_quality"]["reasoning"]["value"] == 0.5
        assert "| 5.00" in (folder / "out" / "rated_stages.md").read_text()
        stages = score(folder, replies, server, *flags)["stages"]
    assert stages["step_quality"]["description"]["value"] == pytest.approx(0.75 * 2 / 16)


def test_only_what_counts_is_judged(folder):
    replies = write_replies(folder / "mine.jsonl", RECORDS, change=lambda text, place: text.replace("</think>", ""))
    with MisbehavingServer(judge) as server:
        assert score(folder, replies, server, "--dialect=gemex")["figures"]["a_score"]["open"]["value"] == 0
        assert server.requests == []
        found = score(folder, replies, server, "--reading", "parts", "--dialect=gemex")
        assert found["figures"]["a_score"]["open"]["value"] == pytest.approx(6 / 8)
        assert len(server.requests) == 4


def test_facts_go_before_labels(folder):
    replies = write_replies(folder / "mine.jsonl", RECORDS, dialect="lvkc", keep=lambda place: place < 10)
    flags = ["--judge-stages", "--open-score", "exact", "--dialect", "lvkc", "--missing", "skip"]
    with MisbehavingServer(judge) as server:
        stages = score(folder, replies, server, *flags)["stages"]
        assert len(server.requests) == 2
    assert stages["rated"]["visual"]["value"] == 4
    assert stages["step_quality"]["together"]["value"] == 1
