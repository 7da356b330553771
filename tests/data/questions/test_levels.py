"""Cases by levels: what `constrain` asks and reads, at each level and form, and what is never shown."""

import json
import logging

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refuse

from stepcot_jax.chain import DEFAULT_CHAIN, NOT_ANNOTATED
from stepcot_jax.data.phantom.phantom import export_phantom, plan_case
from stepcot_jax.data.questions.levels import ask_level
from stepcot_jax.data.sources.layouts import read_vqa_source
from stepcot_jax.host.errors import BadInput
from stepcot_jax.reasoning.dialects import answer_start, interpret_answer, read_reply, write_question, write_reply
from stepcot_jax.reasoning.levels import LEVELS, list_keys, make_dialogue, name_step, position_of
from stepcot_jax.run.settings import load_settings
from stepcot_jax.tools.constrain.constraints import verify
from stepcot_jax.tools.constrain.levels import write_messages

KEYS = list_keys(("constraints", "true"), range(8))
CASES = [plan_case(index, prevalence="flat").case for index in range(12)]
CASE = next(case for case in CASES if case.answers[-1] == 6)


def ask(key, case=CASE):
    return ask_level(case, key, DEFAULT_CHAIN, name="0")


@pytest.mark.parametrize("key", KEYS, ids=lambda key: f"{key[0]}-{key[1]}")
def test_constrain_reads_the_truth_from_a_target_and_finds_every_constraint_followed(key):
    for case in CASES:
        record, dialogue = ask(key, case), make_dialogue(key, answers={}, truth=case.answers)
        reply = write_reply(record, LEVELS)
        verified = verify(reply, chain=DEFAULT_CHAIN, dialogue=dialogue)
        assert all(verified.strict)
        assert verified.labels == {field: case.answers[position_of(field, 7)] for field in dialogue.fields}
        content = json.loads(reply)
        assert [entry["reasoning"] for entry in content.values()] == [
            case.reasoning[position_of(field, 7)] for field in content
        ]
        assert json.loads("{" + reply[answer_start(reply, LEVELS) :][:-1])["answer"] == content["diagnosis"]["answer"]
        read = read_reply(reply, LEVELS)
        assert (read.problems, interpret_answer(read, record), read.thinking) == ((), record.answer, record.thinking)


@pytest.mark.parametrize("key", KEYS, ids=lambda key: f"{key[0]}-{key[1]}")
def test_a_prompt_asks_and_gives_what_constrain_does(key):
    """The same steps in the same order under the same names, with constrain's options, and no later one."""
    prompt, dialogue = write_question(ask(key), LEVELS), make_dialogue(key, answers={}, truth=CASE.answers)
    positions = [prompt.index(f'"{field}"') for field in dialogue.fields]
    assert positions == sorted(positions)
    asked = write_messages(DEFAULT_CHAIN, dialogue)[-1]["content"]
    for position, step in enumerate(DEFAULT_CHAIN.steps[:-1]):
        options = "; ".join(step.lettered_options)
        is_asked, is_given = position in dialogue.asked, position in dict(dialogue.given)
        assert (options in prompt) == is_asked
        assert (step.question in prompt) == (is_asked or is_given) == (step.question in asked)
        written = step.lettered_options[CASE.answers[position]]
        assert (f"Known, {step.name}: {step.question} {written}" in prompt) == is_given
        assert (f'"{name_step(position)}"' in prompt) == is_asked
    others = [msgspec.structs.replace(CASE, answers=(*CASE.answers[:-1], label)) for label in range(9)]
    assert {write_question(ask(key, case), LEVELS) for case in others} == {prompt}  # which never gives the diagnosis


def test_levels_of_a_folder(tmp_path, caplog):
    export_phantom(tmp_path, num_cases=3, seed=0, size=32)
    content = json.loads((tmp_path / "data.json").read_text())
    content[1]["vqa_chain"][2]["answer"] = None
    content[2]["vqa_chain"][6]["answer"] = None
    (tmp_path / "data.json").write_text(json.dumps(content))
    with caplog.at_level(logging.WARNING):
        records = read_vqa_source(tmp_path, levels=tuple(KEYS)).records
    assert "2 steps without a certain answer are in no level that asks them" in caplog.text
    assert len({record.id for record in records}) == len(records)
    levels = [(record.id.split(":")[1], record.topic) for record in records]
    both = [*(f"level {level}" for level in range(8)), *(f"level {level} true" for level in range(2, 8))]
    unknown = {*(f"level {level}" for level in range(3, 8)), "level 3 true"}
    assert levels == [*(("0", topic) for topic in both), *(("1", topic) for topic in both if topic not in unknown)]
    refuse(r"config.vqa.levels: 9, of a chain of 7 steps", read_vqa_source, tmp_path, levels=(("constraints", 9),))
    refuse(r"coco.* is not one of auto", read_vqa_source, tmp_path, layout="coco", levels=tuple(KEYS))


GOOD = write_reply(ask(("constraints", 2)), LEVELS)


@pytest.mark.parametrize(
    ("text", "problem", "answer"),
    [
        (f"```json\n{GOOD}\n```", "text around the JSON object", "G. Cardiomegaly"),
        (GOOD.replace("diagnosis", "step_3"), "'diagnosis' the last", None),
        (GOOD[:-2], "'diagnosis' the last", None),
        (GOOD.replace('"answer": "G. Cardiomegaly"', '"answer": " "'), "the diagnosis is empty", None),
        (GOOD.replace("reasoning", "why"), "not one JSON object", None),
        ("Cardiomegaly", "not one JSON object", None),
        ("[" * 200_000, "not one JSON object", None),
        ("{" + '"a":{' * 200_000, "not one JSON object", None),
    ],
)
def test_replies_that_are_ill_formed(text, problem, answer):
    reply = read_reply(text, LEVELS)
    assert problem in reply.problems[0]
    assert reply.answer == answer


@given(st.text(alphabet='{}[]":,\\ \ud800adiagnosreasoningwer', max_size=200))
def test_no_text_raises(text):
    assert read_reply(text, LEVELS).dialect == LEVELS


def test_what_the_dialect_cannot_write(tmp_path):
    for thinking in ("It is wide.", "{}", '{"diagnosis": 1}', ""):
        with pytest.raises(BadInput, match=r"^thinking: no steps of a level"):
            write_reply(msgspec.structs.replace(ask(("constraints", 1)), thinking=thinking), LEVELS)
    assert ask(("constraints", 1), msgspec.structs.replace(CASE, answers=(NOT_ANNOTATED, *CASE.answers[1:]))) is None
    fits = {"vqa.levels": (0, 2), "vqa.dialect": LEVELS, "vqa.source": "folder", "vqa.root": str(tmp_path)}
    load_settings("base", **{"job": "sft", **fits})
    wrong = ({"vqa.levels": ()}, {"vqa.dialect": "plain"}, {"vqa.with_thinking": False})
    for change in (*wrong, {"vqa.source": "phantom", "vqa.root": ""}):
        refuse(r"^config\.vqa\.levels: .*go together", load_settings, "base", **{"job": "sft", **fits, **change})
