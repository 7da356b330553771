import dataclasses
import json
import math

import numpy as np
import pytest
from annotate.misbehaving_server import MisbehavingServer, read_data
from evaluate_replies.asked import ask
from refusals import refuse
from systems import policy_step

from stepcot_jax.annotate.llm.client import Endpoint
from stepcot_jax.annotate.llm.judge import Judge
from stepcot_jax.host.errors import BadInput, RunStopped
from stepcot_jax.policies.tokenizers import Vocabulary
from stepcot_jax.reasoning.dialects import read_reply, write_reply
from stepcot_jax.reasoning.replies import Judged
from stepcot_jax.run.judged_rewards import JudgedRewards, make_judge
from stepcot_jax.run.settings import load_settings
from stepcot_jax.systems.grpo import Rollouts

pytest.importorskip("openai", reason="the extra annotate")

RECORDS, _ = ask(3)
OPEN = [record for record in RECORDS if record.kind == "open"]


def rate(request, _):
    """10 for a reference; 9 for the true answer, 3 for another."""
    data = read_data(request)
    is_right = data["reply"].partition("\n")[0] == data["reference"].partition("\n")[0]
    return "answer", json.dumps({"reason": "So.", "reference": 10, "reply": 9 if is_right else 3})


def judged(server, folder, **more):
    endpoint = Endpoint("j", server.base_url, "", num_attempts=2, timeout=5)
    return JudgedRewards(Judge(endpoint, folder, concurrency=1, num_repairs=1, **more))


def true_reply(record):
    return read_reply(write_reply(record, "gemex"), "gemex")


def settings_with(**changes):
    changes = {"open_answer": "judge", "judge_url": "http://localhost:1/v1", "judge_model": "j", **changes}
    return load_settings("base", **{f"rewards.{name}": value for name, value in changes.items()}).rewards


def test_only_open_answers_that_can_earn_something_are_asked_about_and_equal_ones_once(tmp_path):
    replies = [(record, true_reply(record)) for record in RECORDS]
    broken = (OPEN[0], read_reply("no reply", "gemex"))
    unclosed = (OPEN[0], read_reply(write_reply(OPEN[0], "gemex").removesuffix("</response>"), "gemex"))
    with MisbehavingServer(rate) as server:
        found = judged(server, tmp_path)([*replies, *replies, broken, unclosed])
        assert len(server.requests) == len(OPEN)
    expected = [Judged(10, 9) if record.kind == "open" else None for record in RECORDS]
    assert found == [*expected, *expected, None, None]


def test_another_start_asks_nothing_again(tmp_path):
    replies = [(record, true_reply(record)) for record in RECORDS]
    with MisbehavingServer(rate) as server:
        first = judged(server, tmp_path)
        found = first(replies)
        assert first(replies) == found
        first.close()
        first.close()
        again = judged(server, tmp_path)
        assert again(replies) == found
        again.close()
        assert len(server.requests) == len(OPEN)


def make_rollouts(judge):
    vocabulary = Vocabulary.count([write_reply(record, "gemex") for record in RECORDS], largest=64)
    rollouts = policy_step.make_rollouts(policy_step.make_devices(), Rollouts)
    more = {"tokenizer": vocabulary, "records": RECORDS, "rewards": settings_with(), "judge": judge}
    return dataclasses.replace(rollouts, **more)


def test_rewards_follow_the_ratings_and_an_unusable_one_takes_no_part(tmp_path):
    bad = OPEN[1].question

    def behave(request, number):
        return ("answer", "no JSON") if read_data(request)["question"] == bad else rate(request, number)

    with MisbehavingServer(behave) as server:
        judge = judged(server, tmp_path)
        rollouts = make_rollouts(judge)
        rows = [(record, np.array([*rollouts.tokenizer.encode(write_reply(record, "gemex")), 1])) for record in RECORDS]
        found = dict(zip([record.id for record in RECORDS], rollouts.reward_all(rows)["total"], strict=True))
        wrong = (OPEN[0], rows[RECORDS.index(OPEN[2])][1])
        assert rollouts.reward_all([wrong])["answer"] == [0]
        judge.close()
    for record in RECORDS:
        is_unscored = record.kind == "open" and record.question == bad
        assert math.isnan(found[record.id]) == is_unscored
        assert is_unscored or found[record.id] == 2


def test_a_dead_endpoint_a_cap_and_a_refused_key_are_named(tmp_path):
    replies = [(record, true_reply(record)) for record in OPEN]
    with MisbehavingServer(lambda request, _: ("status", (503, {}, {}))) as server:
        with pytest.raises(RunStopped, match=r"^judge 'j' at http://127.*3 requests in a row"):
            judged(server, tmp_path)(replies)
        with pytest.raises(RunStopped, match=r"config\.rewards\.judge_cap: .*are spent"):
            judged(server, tmp_path / "capped", cap=10)(replies)
        server.behave = lambda request, _: ("status", (401, {}, {}))
        with pytest.raises(BadInput, match="401"):
            judged(server, tmp_path / "refused")(replies)


def test_an_endpoint_that_dies_is_named_though_each_update_asks_about_one_reply(tmp_path):
    """Answers of the ledger, which each update asks for too, do not end the count of failures."""
    first, second = ((record, true_reply(record)) for record in OPEN[:2])
    with MisbehavingServer(rate) as server:
        judge = judged(server, tmp_path)
        assert judge([first]) == [Judged(10, 9)]
        server.behave = lambda request, _: ("status", (503, {}, {}))
        for _ in range(2):
            assert judge([first, second]) == [Judged(10, 9), None]
            assert judge([first]) == [Judged(10, 9)]
        refuse(r"^judge 'j' at http://127.*3 requests in a row", judge, [first, second], error=RunStopped)
        judge.close()


def test_the_judge_of_the_settings(tmp_path):
    judge = make_judge(settings_with(judge_cap=500), tmp_path)
    assert (judge.endpoint.model, judge.endpoint.base_url) == ("j", "http://localhost:1/v1")
    assert (judge.cap, judge.folder) == (500, tmp_path / "judge")
    assert make_judge(settings_with(), tmp_path).cap is None
    with pytest.raises(BadInput, match=r"config\.rewards\.judge_url: 'localhost' is not an address"):
        make_judge(settings_with(judge_url="localhost"), tmp_path)


def test_each_process_has_its_ledger_and_its_share_of_the_cap(tmp_path, monkeypatch):
    monkeypatch.setattr("jax.process_count", lambda: 2)
    monkeypatch.setattr("jax.process_index", lambda: 1)
    judge = make_judge(settings_with(judge_cap=501), tmp_path)
    assert (judge.cap, judge.folder) == (250, tmp_path / "judge" / "process-1-of-2")
    with pytest.raises(BadInput, match=r"config\.rewards\.judge_cap: 1 is below the number of processes, 2"):
        make_judge(settings_with(judge_cap=1), tmp_path)
