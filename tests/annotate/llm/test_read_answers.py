"""Answers of a model: what is read, what is refused, and what the refusal says to it."""

import json
import re
import runpy

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refuse

from stepcot_jax.annotate.annotation import Annotation, Reason
from stepcot_jax.annotate.llm.interviews import (
    MAX_REASONING,
    read_chain_answer,
    read_choice,
    read_scores,
    read_texts,
    write_chain_answer,
)
from stepcot_jax.annotate.llm.json_objects import BadAnswer, find_object
from stepcot_jax.chain import DEFAULT_CHAIN

CHAIN = DEFAULT_CHAIN
ANNOTATION = Annotation((1, 0, 0, 2, 1, 6, 5), tuple(f"because {number}" for number in range(7)), ("Opacity",) * 7)
ANSWER = write_chain_answer(ANNOTATION, chain=CHAIN)
TEXT = json.dumps(ANSWER)


def read(text):
    return read_chain_answer(text, chain=CHAIN, report="FINDINGS:\nHazy opacity  in the LEFT base, 2 cm.")


def change(**steps):
    return json.dumps({**ANSWER, **steps})


def answered(answer):
    return change(step_7={"quote": "opacity", "answer": answer, "reasoning": "x"})


def reasoned(reasoning):
    return change(step_3={"quote": "opacity", "answer": "A", "reasoning": reasoning})


@given(st.tuples(*(st.integers(0, step.num_answers - 1) for step in CHAIN.steps)))
def test_what_is_written_reads_back(labels):
    annotation = Annotation(labels, ("a",) * 7, ("hazy",) * 7)
    assert read(json.dumps(write_chain_answer(annotation, chain=CHAIN))) == annotation


@pytest.mark.parametrize(
    "text",
    [
        *(f"Here is the chain:\n```json\n{TEXT}\n```\nI hope that helps {{truly}}.", f"{TEXT}\n{TEXT}"),
        f"{{}} {{not json}} {TEXT}",
        change(step_1={"quote": "Opacity", "reasoning": " because 0\n", "answer": "increased OPACITY"}),
        change(step_1={"quote": "Opacity", "reasoning": "because 0", "answer": "B. Increased opacity"}),
    ],
)
def test_text_around_and_other_spellings_make_no_difference(text):
    assert read(text) == ANNOTATION


@pytest.mark.parametrize(
    ("text", "words"),
    [
        *(("I cannot do that.", "no JSON object"), (TEXT[:-10], "names")),
        (json.dumps({"step_1": ANSWER["step_1"]}), "step_2"),
        (json.dumps({**ANSWER, "step_8": ANSWER["step_1"]}), "more names: ['step_8']"),
        (TEXT + TEXT.replace('"answer": "B"', '"answer": "A"', 1), "2 objects that differ"),
        *((TEXT.replace('"step_2"', '"step_1"'), "a name twice"), (change(step_3="A"), "step_3: found 'A'")),
        (change(step_3={"quote": "opacity", "answer": "A"}), "step_3: found"),
        (change(step_3={"quote": "opacity", "answer": "A", "reasoning": "x", "confidence": 1}), "step_3: found"),
        *((reasoned(" "), "step_3.reasoning"), (reasoned(None), "step_3.reasoning")),
        (reasoned("x" * (MAX_REASONING + 1)), "4001 characters"),
        (answered("Z"), "step_7.answer: found 'Z', accepted is one of A. Normal"),
        *((answered(answer), "step_7.answer") for answer in ("N/A", "A. Mass", "", None, 0, ["A"])),
    ],
)
def test_what_does_not_follow_the_schema_is_refused_and_named(text, words):
    with pytest.raises(BadAnswer) as caught:
        read(text)
    assert words in str(caught.value)
    assert len(str(caught.value)) < 500


@given(st.text() | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps))
def test_any_text_is_read_or_refused(text):
    with pytest.raises(BadAnswer):
        read(text)


def test_text_made_to_take_long_is_refused_at_once():
    for text in ("{" * 300_000, '{"a":' * 300_000, "[" * 300_000, "<think>" * 50_000):
        with pytest.raises(BadAnswer):
            read(text)


def test_a_quote_differs_from_the_report_in_case_and_white_space_alone():
    for quote in ("hazy", "Opacity in\n the left\tbase", " findings: HAZY ", "base, 2 cm."):
        found = read(change(step_2={"quote": quote, "reasoning": "x", "answer": "A"}))
        assert found.quotes[:3] == ("Opacity", " ".join(quote.split()), "Opacity")


@pytest.mark.parametrize(
    ("quote", "reason"),
    [
        *((quote, Reason.NO_ANSWER) for quote in ("", " ", "in", "2 cm", "...", None, 3, ["hazy opacity"])),
        *(
            (quote, Reason.REASONING_NOT_IN_REPORT)
            for quote in ("hazy opacity in the right base", "hazy ... base", '"hazy opacity"', "left-base")
        ),
    ],
)
def test_a_quote_that_is_not_in_the_report_is_refused(quote, reason):
    with pytest.raises(BadAnswer, match=r"^step_2\.quote: found") as caught:
        read(change(step_2={"quote": quote, "reasoning": "x", "answer": "A"}))
    assert caught.value.reason == reason


def test_choices_texts_and_scores_are_read_or_refused():
    said = 'so: {"reasoning": "", "trust": "Not  sure"}'
    assert read_choice(said, field="trust", accepted=("yes", "not sure")) == "not sure"
    for text in ('{"reasoning": "", "trust": "maybe"}', '{"trust": "yes"}', '{"reasoning": "", "trust": true}', "yes"):
        with pytest.raises(BadAnswer):
            read_choice(text, field="trust", accepted=("yes", "not sure"))
    assert read_texts('Sure: {"a": " one\\n two ", "b": "x"}', names=["a", "b"]) == {"a": "one two", "b": "x"}
    for text in ('{"a": ""}', '{"a": ["x"]}', '{"b": "x"}', json.dumps({"a": "x" * (MAX_REASONING + 1)})):
        refuse("a", read_texts, text, names=["a"], error=BadAnswer)
    scores = read_scores('{"reason": "", "x": 4.5, "y": 1}', names=["x", "y"], least=1, greatest=5)
    assert scores == {"x": 4.5, "y": 1.0}
    for value in ("0", "6", "true", '"3"', "null", "NaN", "Infinity"):
        with pytest.raises(BadAnswer, match="x: found"):
            read_scores(f'{{"reason": "", "x": {value}}}', names=["x"], least=1, greatest=5)


PARTS = ("a", "'", '"', "\\", "{", "}]", ":", "/*", "#", "\n", "\t", "\u00e9", "\u201d", " True", "// x", ",}", "\\n")
SAID = st.lists(st.sampled_from(PARTS), max_size=6).map("".join)
VALUES = st.recursive(st.none() | st.booleans() | st.integers(-9, 9) | SAID, lambda inner: st.lists(inner, max_size=3))


def write_lines(value, pattern, replacement):
    return re.sub(pattern, replacement, json.dumps(value, indent=1), flags=re.MULTILINE)


NEARLY = {
    "Python": repr,
    "wrapped": lambda value: f"\ufeffSo it's:\n```json\n{json.dumps({'result': [value]}, ensure_ascii=False)}\n```",
    "comments": lambda value: write_lines(value, r"(,?)$", r"\1 // it's {"),
    "commas": lambda value: write_lines(value, r"\n( *)([}\]])", r", /* ] */\n\1\2"),
    "names": lambda value: write_lines(value, r'^ "(.)":', " \\1:\u00a0"),
    "raw": lambda value: re.sub(
        r"\\(.)", lambda found: {"n": "\n", "t": "\t"}.get(found[1], found[0]), json.dumps(value)
    ),
}


@pytest.mark.parametrize("write", NEARLY.values(), ids=NEARLY)
@given(st.fixed_dictionaries({"a": VALUES, "b": SAID}))
def test_what_is_nearly_json_reads_as_its_json_with_its_strings_unchanged(write, value):
    assert find_object(write(value), ["a", "b"]) == value


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"a": "x",\n "b": "he said "no" twice"}', " (line 2, column 17: Expecting ',' delimiter)"),
        ('{"a": "x", "b": "cut', " (line 1, column 17: Unterminated string starting at)"),
        ('{"a": "x",}{"a": "y", "b": "z",}{"b": "z", "a": "x"}', "2 objects that differ"),
        ('{"draft": {"a": "x", "b": "y"}, "a": "p "q"", "b": "z"}', "column 42"),
        *(('{"a": 1, "a": 1, "b": 2,}', "a name twice"), ('{"state": "ok", "it": {"a": 1, "b": 2}}', "missing")),
        *(('{"a": [1,,], "b": 2}', "Expecting value"), ('{"a": 1, ..., "b": 2}', "column 10")),
        ('{"a": __import__("os").getpid(), "b": 2}', "Expecting value"),
    ],
)
def test_what_is_not_plain_is_refused_with_its_place(text, words):
    with pytest.raises(BadAnswer) as caught:
        find_object(text, ["a", "b"])
    assert words in f"{caught.value} {caught.value.field}"


def test_answers_of_public_reports_are_read(shared):
    ways = runpy.run_path(str(shared / "data" / "first_contact_4" / "llm" / "ways.py"))
    for text in ways["WAYS"].values():
        found = find_object(text, list(ways["STEPS"]))
        assert {name: {**found[name], "reasoning": "Clear lungs."} for name in found} == ways["STEPS"]
