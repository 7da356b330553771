"""Rewards as functions: ours equal the preset's parts, a caller's are summed by weight, bad ones are named."""

import functools
import math
import re
import runpy

import numpy as np
import pytest
from reasoning_records import make_record
from refusals import refuse

from stepcot_jax import rewards
from stepcot_jax.host.errors import BadInput
from stepcot_jax.reasoning.dialects import read_reply, write_reply
from stepcot_jax.rewards.functions import apply_functions, name_functions

RECORDS = [make_record(kind, id=kind) for kind in ("open", "closed", "single", "multi")]


def brief(replies, records):
    return [float(len(reply.text) < 400) for reply in replies]


def read_all():
    return [read_reply(write_reply(record, "gemex"), "gemex") for record in RECORDS], list(RECORDS)


def test_a_callers_reward_is_summed_with_its_weight_and_unscored_where_it_is_nan():
    replies, records = read_all()
    found = apply_functions(name_functions([rewards.answer, (brief, 0.1)]), replies, records)
    assert found["total"] == pytest.approx([a + 0.1 * b for a, b in zip(found["answer"], found["brief"], strict=True)])

    def unsure(replies, records):
        return [math.nan, *[1.0] * (len(replies) - 1)]

    found = apply_functions(name_functions([unsure, (brief, 0.0)]), replies, records)
    assert math.isnan(found["total"][0])
    assert not any(map(math.isnan, found["total"][1:]))
    assert not any(map(math.isnan, apply_functions(name_functions([(unsure, 0.0), brief]), replies, records)["total"]))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([brief, brief], r"rewards\[1\]: 'brief' is not a function with a name of its own"),
        (["answer"], r"rewards\[0\]: 'answer' is not a function"),
        ([(brief, -1.0)], r"rewards\[0\]: the weight of brief is -1.0"),
    ],
)
def test_what_is_no_reward_is_refused(given, words):
    refuse(words, name_functions, given)


class Scorer:
    def __call__(self, texts, rows, scale=1.0, **more):
        return [scale] * len(texts)


async def waits(replies, records):
    return []


SIGNATURES = {
    "(prompts, completions, **kwargs)": lambda prompts, completions, **kwargs: [],
    "(completions, answer)": lambda completions, answer: [],
    "(reward_inputs, weight=0.1)": lambda reward_inputs, weight=0.1: [],
    "(records, replies)": lambda records, replies: [],
    "(replies)": lambda replies: [],
    "(a, b, c)": lambda a, b, c: [],
    "(*, replies, records)": lambda *, replies, records: [],
}


def test_signatures_are_looked_at_before_the_first_call():
    for signature, function in SIGNATURES.items():
        function.__name__ = "mine"
        refuse(rf"mine takes {re.escape(signature)}; expected \(replies, records\) ->", name_functions, [function])
    for function in (waits, Scorer):
        refuse(r"no (plain )?function", name_functions, [function])
    assert list(name_functions([Scorer(), functools.partial(brief), (max, 0.0)])) == ["Scorer", "brief", "max"]


@pytest.mark.parametrize(
    "returned",
    [
        *(["1", "0"], None, {"score": 1.0}, [1.0, None], [{}, {}], iter([1.0, 0.0]), np.ones(2) * 1j, [[1], []]),
        *([1.0], [1.0, math.inf]),
    ],
)
def test_what_is_no_number_or_fails_is_refused_under_the_rewards_name(returned):
    replies, records = read_all()

    def mine(replies, records):
        return returned if len(replies) == 2 else replies[0].nothing

    with pytest.raises(BadInput, match=r"rewards: mine returned .+; expected a number for each of 2 replies"):
        apply_functions(name_functions([mine]), replies[:2], records[:2])
    with pytest.raises(BadInput, match=r"rewards: mine failed with AttributeError: .*nothing") as caught:
        apply_functions(name_functions([mine]), replies, records)
    assert isinstance(caught.value.__cause__, AttributeError)


def test_functions_of_public_reports_are_refused_by_name(shared):
    for function in runpy.run_path(str(shared / "data/first_contact_4/rewards/signatures.py"))["FUNCTIONS"]:
        with pytest.raises(BadInput, match=function.__name__):
            apply_functions(name_functions([function]), *read_all())
