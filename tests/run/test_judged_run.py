import json

import pytest
from annotate.misbehaving_server import MisbehavingServer, read_data
from policies.policy_workdir import SIZES
from run.small_policy_run import share_programs
from sections import section

from stepcot_jax.annotate.llm import client
from stepcot_jax.host.errors import RunStopped
from stepcot_jax.reasoning.dialects import read_reply
from stepcot_jax.run import judged_rewards
from stepcot_jax.run.settings import load_settings
from stepcot_jax.run.training_run import Run

pytestmark = pytest.mark.slow

pytest.importorskip("openai", reason="the extra annotate")

REPLY = (
    "<think>The **heart** ([3, 4, 20, 22]).</think><response><answer>finding {}</answer>"
    "<location><ref>heart</ref><box>[3, 4, 20, 22]</box></location></response>"
)


def rate(request, number):
    return "answer", json.dumps({"reason": "So.", "reference": 10, "reply": 10 if number % 2 else 1})


def small_run(server, workdir):
    short = {
        **section("grpo", batch_size=16, group_size=2, epochs=2, updates_per_epoch=2),
        **section("evaluation", batch_size=8, num_resamples=10),
        **section("rewards", open_answer="judge", judge_url=server.base_url, judge_model="j"),
        "job": "grpo",
        "sft.epochs": 0,
        "vqa.num_validated": 4,
    }
    settings = load_settings("base", **SIZES, **short)
    run = Run(settings, workdir)
    # An untrained policy writes no reply that can be judged.
    run.system.rollouts.read = lambda tokens: read_reply(REPLY.format(int(tokens.sum()) % 5), "gemex")
    return run


def test_a_run_stops_with_its_judge_and_goes_on_with_it(tmp_path, monkeypatch):
    patient = client.Endpoint
    monkeypatch.setattr(judged_rewards, "Endpoint", lambda model, url: patient(model, url, num_attempts=2, timeout=60))
    share_programs(monkeypatch)
    workdir = tmp_path / "run"
    with MisbehavingServer(rate) as server:
        server.behave = lambda request, number: rate(request, number) if number < 12 else ("status", (503, {}, {}))
        with pytest.raises(RunStopped, match=r"judge 'j' at http.* requests in a row were given up"):
            small_run(server, workdir).execute()
        saved = {int(path.name) for path in (workdir / "checkpoints").iterdir() if path.name.isdigit()}
        num_paid = len(server.paid)
        assert saved
        assert num_paid >= 12
        server.behave = rate
        report = small_run(server, workdir).execute()
        asked = [json.dumps(read_data(request)) for request in server.paid]
    assert len(asked) > num_paid
    assert len(set(asked)) == len(asked)
    assert set(report["test"]) == {"grpo"}
    assert (workdir / "judge" / "answers.sqlite").exists()
