"""Answers as models write them."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reasoning_records import make_record, records

from stepcot_jax.chain import fold
from stepcot_jax.reasoning.replies import read_answer

ODD = ("Left lung, upper zone", "Right and left", "Normal")


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("B", "B"),
        ("b", "B"),
        ("B.", "B"),
        ("(B)", "B"),
        ("B: Effusion", "B"),
        ("(B) effusion", "B"),
        (" EFFUSION ", "B"),
        ("Effusion", "B"),
        ("B: Nodule", None),
        ("A, B", None),
        ("A B", None),
        ("E", None),
        ("Pneumonia", None),
        ("The answer is B", None),
        ("", None),
        (" \n", None),
    ],
)
def test_single(text, answer):
    assert read_answer(text, make_record("single")) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("A, C", ("A", "C")),
        ("C,A", ("A", "C")),
        ("C A A", ("A", "C")),
        ("A and C", ("A", "C")),
        ("A, B, and D", ("A", "B", "D")),
        ("A; C.", ("A", "C")),
        ("(a) (c)", ("A", "C")),
        ("D", ("D",)),
        ("Nodule", ("A",)),
        ("Nodule; Normal", ("A", "C")),
        ("Nodule, normal", ("A", "C")),
        ("A: Nodule, C: Normal", ("A", "C")),
        ("Nodule and C", ("A", "C")),
        ("A: Effusion", None),
        ("A, E", None),
        ("AC", ("A", "C")),
        ("A, none", None),
        ("", None),
        (", and ;", None),
    ],
)
def test_multi(text, answer):
    assert read_answer(text, make_record("multi")) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Left lung, upper zone", ("A",)),
        ("Left lung, upper zone; right and left", ("A", "B")),
        ("Right and left", ("B",)),
        ("Right and left, Normal", ("B", "C")),
    ],
)
def test_options_that_hold_a_separator(text, answer):
    assert read_answer(text, make_record("multi", options=ODD)) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Yes", "Yes"),
        ("no", "No"),
        ("YES.", "Yes"),
        ("**No**", "No"),
        ("Yes, the heart is enlarged.", "Yes"),
        ("No: nothing is seen", "No"),
        ("Yes and no", None),
        ("Yes. No effusion is seen.", None),
        ("The answer is yes", None),
        ("Nothing", None),
        ("Not at all", None),
        ("Maybe", None),
        ("", None),
    ],
)
def test_closed(text, answer):
    assert read_answer(text, make_record("closed")) == answer


def test_open():
    assert read_answer("  Pleural\n EFFUSION ", make_record("open")) == "pleural effusion"
    assert read_answer(" ", make_record("open")) is None


@given(record=records())
def test_the_records_own_answer_is_read(record):
    if record.kind == "open":
        assert read_answer(record.answer, record) == fold(record.answer)
    else:
        answer = record.answer if isinstance(record.answer, str) else ", ".join(record.answer)
        assert read_answer(answer, record) == record.answer


@given(record=records(), text=st.text(alphabet="ABCabc .,;:()and\nyesno"))
def test_what_is_read_is_an_answer_of_the_kind(record, text):
    found = read_answer(text, record)
    if found is None or record.kind == "open":
        return
    if record.kind == "closed":
        assert found in ("Yes", "No")
    elif record.kind == "single":
        assert found in record.letters
    else:
        assert list(found) == sorted(set(found))
        assert found
        assert set(found) <= set(record.letters)


@pytest.mark.parametrize("kind", ["open", "closed", "single", "multi"])
@pytest.mark.parametrize("unit", ["A, ", "A)", "a", "(", "yes ", ";", "and ", " ", ".", "Nodule, "])
def test_long_answers_are_read_in_seconds(kind, unit):
    for text in (unit * (300_000 // len(unit)), "A" + unit * (300_000 // len(unit)) + "?"):
        start = time.process_time()
        read_answer(text, make_record(kind))
        assert time.process_time() - start < 3


def test_commas_within_options_do_not_part_lettered_options():
    record = make_record("multi", options=("Effusion, small", "Nodule", "Mass"), answer=("A", "B"))
    assert read_answer("A: Effusion, small, B: Nodule", record) == ("A", "B")


def test_a_text_beyond_any_choice_is_no_answer():
    assert read_answer("A" + " " * 2**16 + "B", make_record("multi")) is None
