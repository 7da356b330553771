import functools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reasoning_records import make_record, records
from timing import least_seconds

from stepcot_jax.chain import fold
from stepcot_jax.reasoning.answers import open_text, read_answer

ANSWERS = [
    ("single", "B", ["B", "b", "B.", "(B)", "The answer is B", "B: Effusion", "(B) effusion", " EFFUSION "]),
    ("single", None, ["B: Nodule", "A, B", "A B", "E", "Pneumonia", "", " \n"]),
    ("multi", ("A", "C"), ["A, C", "C,A", "C A A", "A and C", "A; C.", "(a) (c)", "Nodule and C", "AC"]),
    ("multi", ("A", "C"), ["Nodule; Normal", "Nodule, normal", "A: Nodule, C: Normal"]),
    ("multi", ("A", "B", "D"), ["A, B, and D"]),
    ("multi", ("D",), ["D"]),
    ("multi", ("A",), ["Nodule"]),
    ("multi", None, ["A" + " " * 2**16 + "B", "A: Effusion", "A, E", "A, none", "", ", and ;"]),
    ("closed", "Yes", ["Yes", "YES.", "Yes, the heart is enlarged.", "The answer is yes"]),
    ("closed", "No", ["no", "**No**", "No: nothing is seen"]),
    ("closed", None, ["Yes and no", "Yes or no?", "Options: yes, no", "Nothing", ""]),
    ("open", "pleural effusion", ["  Pleural\n EFFUSION "]),
    ("open", None, [" "]),
]


@pytest.mark.parametrize(("kind", "answer", "texts"), ANSWERS)
def test_the_answer_that_a_text_gives(kind, answer, texts):
    assert {text: read_answer(text, make_record(kind)) for text in texts} == dict.fromkeys(texts, answer)


def test_options_that_hold_a_separator():
    record = make_record("multi", options=("Left lung, upper zone", "Right and left", "Normal"))
    assert read_answer("Left lung, upper zone", record) == ("A",)
    assert read_answer("Left lung, upper zone; right and left", record) == ("A", "B")
    assert read_answer("Right and left", record) == ("B",)
    assert read_answer("Right and left, Normal", record) == ("B", "C")
    record = make_record("multi", options=("Effusion, small", "Nodule", "Mass"), answer=("A", "B"))
    assert read_answer("A: Effusion, small, B: Nodule", record) == ("A", "B")


@given(record=records())
def test_the_records_own_answer_is_read(record):
    if record.is_answered_in_words:
        assert read_answer(record.answer, record) in (fold(record.answer), fold(open_text(record.answer)))
    else:
        answer = record.answer if isinstance(record.answer, str) else ", ".join(record.answer)
        assert read_answer(answer, record) == record.answer


@given(record=records(), text=st.text(alphabet="ABCabc .,;:()and\nyesno"))
def test_what_is_read_is_an_answer_of_the_kind(record, text):
    found = read_answer(text, record)
    if found is None or record.is_answered_in_words:
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
def test_long_answers_are_read_in_seconds(kind):
    for unit in ("A, ", "A)", "(", "yes ", "and ", " ", "Nodule, "):
        for text in (unit * (65_000 // len(unit)), "A" + unit * (300_000 // len(unit)) + "?"):
            assert least_seconds(functools.partial(read_answer, text, make_record(kind)), 3) < 3
