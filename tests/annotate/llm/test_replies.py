"""What an endpoint's reply says: behind its thoughts, in parts, refused, filtered, empty or cut."""

import asyncio
import collections
import json
import types

import pytest
from annotate.misbehaving_server import MisbehavingServer

from stepcot_jax.annotate.annotation import CannotAnnotate, Reason
from stepcot_jax.annotate.llm.client import Endpoint
from stepcot_jax.annotate.llm.crew import Crew
from stepcot_jax.annotate.llm.interviews import read_choice
from stepcot_jax.annotate.llm.prompts import Prompt
from stepcot_jax.annotate.llm.replies import Entry, read_body, reply_text
from stepcot_jax.reasoning.endings import goes_on_behind

GOOD = '{"reasoning": "x", "vote": "correct"}'
DRAFT = GOOD.replace("correct", "incorrect")
ABOUT = {"report": "1", "text": "", "request": "", "answer": None, "form": "plain", "seconds": 0.0, "time": ""}
LOST = Entry(**ABOUT, prompt_tokens=9, answer_tokens=9, is_final=False, is_counted=False)
TEXT, THINKING = {"type": "text", "text": GOOD}, {"type": "thinking", "thinking": [{"type": "text", "text": DRAFT}]}

READ = {
    "plain": ({"content": GOOD}, "stop"),
    "closed thoughts": ({"content": f"<think>{DRAFT}</think>\n{GOOD}"}, "stop"),
    "thoughts opened by the template": ({"content": f"A draft: {DRAFT} but no.</think>{GOOD}"}, "stop"),
    "thoughts twice": ({"content": f"<think>{DRAFT}</think>{DRAFT}</think>{GOOD}"}, "stop"),
    "parts": ({"content": [TEXT]}, "stop"),
    "parts of a text": ({"content": [{"type": "text", "text": GOOD[:9]}, {"type": "text", "text": GOOD[9:]}]}, "stop"),
    "thinking parts": ({"content": [THINKING, {"type": "reasoning", "text": DRAFT}, TEXT]}, "stop"),
    "reasoning apart": ({"content": GOOD, "reasoning_content": DRAFT}, "stop"),
    "cut at its end": ({"content": f"```json\n{GOOD}\n```"}, "length"),
}
NOT_READ = {
    "cut in thoughts": ({"content": f"<think>Maybe {DRAFT}"}, "length", Reason.CUT),
    "cut in second thoughts": ({"content": f"<think>x</think>{DRAFT}<think>No"}, "length", Reason.CUT),
    "only thoughts": ({"content": None, "reasoning_content": DRAFT}, "length", Reason.CUT),
    "thoughts never closed": ({"content": f"<think>{DRAFT}"}, "stop", Reason.EMPTY),
    "refused": ({"content": None, "refusal": "I cannot help."}, "stop", Reason.REFUSED),
    "refused in a part": ({"content": [{"type": "refusal", "refusal": "No."}]}, "stop", Reason.REFUSED),
    "filtered": ({"content": DRAFT}, "content_filter", Reason.FILTERED),
    "empty": ({"content": " \n"}, "stop", Reason.EMPTY),
    "no text": ({"content": [THINKING]}, "stop", Reason.EMPTY),
    "cut behind its answer": ({"content": f"{DRAFT} But wait"}, "length", Reason.CUT_BEHIND),
}


def write_body(message, finish):
    return json.dumps({"choices": [{"message": message, "finish_reason": finish}]}).encode()


@pytest.mark.parametrize("way", READ)
def test_the_answer_stands_behind_the_thoughts_in_the_text_parts(way):
    entry = read_body(write_body(*READ[way]), lost=LOST, key="")
    text = reply_text(entry, model="m")
    assert read_choice(text, field="vote", accepted=("correct", "incorrect")) == "correct"
    assert not goes_on_behind(text, entry.finish)


def test_a_reply_without_an_answer_is_set_aside_at_once_and_never_paid_for_again(tmp_path):
    prompt = Prompt("vote", "system", "", "", "", {})
    item = [types.SimpleNamespace(id=way, text=way) for way in NOT_READ]

    def behave(request, number):
        message, finish, _ = NOT_READ[request["messages"][-1]["content"]]
        return "body", write_body(message, finish)

    async def ask(server):
        crew = Crew(tmp_path, cap=None, num_repairs=2)
        interviewer, reasons = crew.interview(Endpoint("m", server.base_url), prompt), {}
        try:
            for one in item:
                with pytest.raises(CannotAnnotate) as caught:
                    await interviewer.ask(
                        one,
                        [{"role": "system", "content": "s"}, {"role": "user", "content": one.id}],
                        lambda text: read_choice(text, field="vote", accepted=("correct", "incorrect")),
                    )
                reasons[one.id] = caught.value.reason
        finally:
            await crew.close()
        return reasons

    with MisbehavingServer(behave) as server:
        for _ in range(2):
            assert asyncio.run(ask(server)) == {way: reason for way, (*_, reason) in NOT_READ.items()}
    paid = collections.Counter(request["messages"][-1]["content"] for request in server.requests)
    assert paid == dict.fromkeys(NOT_READ, 1)
