"""The judge: scores in the order of the exchanges, unscored where there is no usable answer, and paid once."""

import dataclasses
import json
import re

import pytest
from annotate.misbehaving_server import MisbehavingServer, read_data
from refusals import refuse

from stepcot_jax.annotate.llm.client import Endpoint
from stepcot_jax.annotate.llm.judge import Exchange, Judge, judge_answers
from stepcot_jax.host.errors import RunStopped
from stepcot_jax.reasoning.replies import Judged

pytest.importorskip("openai", reason="the extra annotate")


def exchanges(count, **more):
    return [Exchange(f"e{n}", "A chest.", f"Question {n}?", "effusion", "fluid", **more) for n in range(count)]


def make_judge(server, folder, **more):
    endpoint = Endpoint("j", server.base_url, "", num_attempts=2, timeout=5)
    return Judge(endpoint, folder, **more)


def number_of(request):
    return int(re.search(r"Question (\d+)", read_data(request)["question"])[1])


def rate(request, _):
    return "answer", json.dumps({"reason": "So.", "reference": 10, "reply": 1 + number_of(request) % 10})


def test_scores_come_in_order_and_are_paid_once(tmp_path):
    with MisbehavingServer(rate) as server:
        judge = make_judge(server, tmp_path)
        expected = [Judged(10.0, 1.0 + number) for number in range(10)]
        assert (judge_answers(exchanges(10), judge), judge_answers(exchanges(10), judge)) == (expected, expected)
        assert len(server.paid) == 10
        assert judge_answers([dataclasses.replace(exchanges(1)[0], reply="air")], judge) == expected[:1]
        assert len(server.paid) == 11  # another reply of the same id is another request


def test_an_unusable_answer_a_refused_and_a_given_up_request_are_unscored_never_zero(tmp_path):
    def misrate(request, number):
        bad = '{"reason": "", "reference": 5, "reply": 11}'
        return ("answer", bad) if number_of(request) == 1 else rate(request, number)

    with MisbehavingServer(misrate) as server:
        found = judge_answers(exchanges(3), make_judge(server, tmp_path / "bad", num_repairs=1))
        assert found == [Judged(10.0, 1.0), None, Judged(10.0, 3.0)]
        assert len(server.paid) == 4  # one repair

    def behave(request, number):
        wrong = {1: ("status", (400, {"error": {"code": "content_filter"}}, {})), 3: ("hang_up", None)}
        return wrong.get(number_of(request)) or rate(request, number)

    with MisbehavingServer(behave) as server:
        scores = judge_answers(exchanges(5), make_judge(server, tmp_path, concurrency=1))
        assert [score is None for score in scores] == [False, True, False, True, False]
        server.behave = rate
        assert None not in judge_answers(exchanges(5), make_judge(server, tmp_path))
        assert len(server.paid) == 5


def test_an_endpoint_that_is_gone_and_a_wrong_key_stop(tmp_path):
    with MisbehavingServer(lambda request, _: ("status", (503, {}, {}))) as server:
        with pytest.raises(RunStopped, match="3 requests in a row"):
            judge_answers(exchanges(5), make_judge(server, tmp_path, concurrency=1))
        server.behave = lambda request, _: ("status", (401, {}, {}))
        refuse("401", lambda: judge_answers(exchanges(5), make_judge(server, tmp_path)))
        refuse("--max-tokens", judge_answers, exchanges(5), make_judge(server, tmp_path, cap=10), error=RunStopped)
