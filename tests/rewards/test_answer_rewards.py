"""The answer reward."""

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reasoning_records import make_record

from stepcot_jax.host.errors import BadInput
from stepcot_jax.reasoning.replies import Reply
from stepcot_jax.rewards.answers import Judged, answer_reward, token_f1


def reply_of(answer, *problems):
    return Reply("gemex", answer=answer, references=(), problems=problems)


@pytest.mark.parametrize(
    ("kind", "answer", "expected"),
    [
        ("closed", "Yes", 1),
        ("closed", "yes, it is", 1),
        ("closed", "No", 0),
        ("closed", "Yes and no", 0),
        ("closed", "It is", 0),
        ("single", "B", 1),
        ("single", "(b)", 1),
        ("single", "B: Effusion", 1),
        ("single", "effusion", 1),
        ("single", "B: Mass", 0),
        ("single", "A", 0),
        ("single", "A, B", 0),
        ("multi", "A, C", 1),
        ("multi", "C and A", 1),
        ("multi", "A", 0),
        ("multi", "A, B, C", 0),
        ("open", "pleural  effusion", 1),
        ("open", "fluid", 1),
        ("open", "mass", 0),
    ],
)
def test_right_or_wrong(kind, answer, expected):
    record = make_record(kind, synonyms=("Fluid",) if kind == "open" else ())
    assert answer_reward(reply_of(answer), record) == expected


@pytest.mark.parametrize(
    ("answer", "expected"),
    [("A, C", 1), ("A", 1 / 2), ("A, B, C", 2 / 3), ("A, B", 1 / 3), ("B, D", 0), ("A, B, C, D", 1 / 2), ("none", 0)],
)
def test_jaccard_of_several_choices(answer, expected):
    assert answer_reward(reply_of(answer), make_record("multi"), multi_choice="jaccard") == pytest.approx(expected)
    assert answer_reward(reply_of(answer), make_record("multi")) == (expected == 1)


@pytest.mark.parametrize(
    ("reference", "reply", "expected"),
    [
        (8, 8, 1),
        (8, 6.5, 1),
        (8, 6, 0),  # less than 2, strictly
        (6, 8, 0),
        (8, 9.9, 1),
        (4.1, 2.1, 0),  # 4.1 - 2.1 is below 2 in floating point
        (2.1, 4.1, 0),
        (1, 10, 0),
        (10, 10, 1),
        (0, 1, math.nan),
        (8, 11, math.nan),
        (math.nan, 8, math.nan),
        (8, math.inf, math.nan),
    ],
)
def test_the_judges_scores(reference, reply, expected):
    judged = Judged(reference, reply)
    found = answer_reward(reply_of("anything"), make_record("open"), open_answer="judge", judged=judged)
    assert found == pytest.approx(expected, nan_ok=True)


def test_without_a_judge_an_open_answer_is_unscored_unless_it_cannot_be_read():
    record = make_record("open")
    assert math.isnan(answer_reward(reply_of("a"), record, open_answer="judge"))
    assert answer_reward(reply_of(None, "<answer> is missing"), record, open_answer="judge") == 0
    assert answer_reward(reply_of("a", "<think> is missing"), record, open_answer="judge", judged=Judged(8, 8)) == 0
    assert answer_reward(reply_of("Yes"), make_record("closed"), open_answer="judge") == 1


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("left pleural effusion", "pleural effusion", 0.8),
        ("Effusion.", "effusion", 1),
        ("a a b", "a b b", 2 / 3),
        ("a", "b", 0),
        ("a b c d", "a", 0.4),
        ("a b c", "a", 0.5),
        ("", "", 1),
        ("", "a", 0),
        ("?", "!", 0),
    ],
)
def test_token_f1(first, second, expected):
    assert token_f1(first, second) == pytest.approx(expected)
    assert token_f1(second, first) == pytest.approx(expected)


@given(st.lists(st.sampled_from("abc"), min_size=1), st.lists(st.sampled_from("abc"), min_size=1))
def test_token_f1_is_the_harmonic_mean_of_precision_and_recall(first, second):
    remaining = list(second)
    for word in first:
        if word in remaining:
            remaining.remove(word)
    shared = len(second) - len(remaining)
    precision, recall = shared / len(first), shared / len(second)
    expected = 2 * precision * recall / (precision + recall) if shared else 0
    assert token_f1(" ".join(first), " ".join(second)) == pytest.approx(expected)
    assert shared == sum(min(Counter(first)[word], Counter(second)[word]) for word in "abc")


def test_token_f1_of_one_half_is_enough():
    record = make_record("open", answer="effusion", synonyms=("pleural fluid collection",))
    assert answer_reward(reply_of("effusion left side"), record, open_answer="token_f1") == 1  # exactly 0.5
    assert answer_reward(reply_of("effusion on left side"), record, open_answer="token_f1") == 0  # 0.4
    assert answer_reward(reply_of("fluid collection"), record, open_answer="token_f1") == 1  # of a synonym


def test_equal_takes_no_synonym():
    record = make_record("open", synonyms=("Fluid",))
    assert answer_reward(reply_of("fluid"), record, open_answer="equal") == 0
    assert answer_reward(reply_of("PLEURAL effusion"), record, open_answer="equal") == 1


@pytest.mark.parametrize(
    ("kind", "answer", "is_refused"),
    [
        ("closed", "Yes", False),
        ("closed", "Yes, the heart is enlarged.", False),
        ("closed", "Yes, probably.", True),
        ("closed", "Yes, it may be.", True),
        ("closed", "Yes. Wait, I was mistaken.", True),
        ("closed", "Yes?", True),
        ("closed", "Yes, but it is not certain", True),
        ("single", "B", False),
        ("single", "B: Effusion", False),
    ],
)
def test_strict_reading_refuses_what_is_hedged_or_taken_back(kind, answer, is_refused):
    record = make_record(kind)
    assert answer_reward(reply_of(answer), record) == 1
    assert answer_reward(reply_of(answer), record, choice_reading="strict") == (not is_refused)


def test_words_of_the_options_are_no_hedge():
    record = make_record("single", options=("Unlikely", "Possible", "Certain"))
    for answer in ("B", "Possible", "B: possible"):
        assert answer_reward(reply_of(answer), record, choice_reading="strict") == 1


def test_an_ill_formed_reply_earns_nothing_unless_its_parts_do():
    reply = reply_of("Yes", "<think> is missing")
    assert answer_reward(reply, make_record()) == 0
    assert answer_reward(reply, make_record(), ill_formed="parts") == 1


@pytest.mark.parametrize("name", ["multi_choice", "open_answer", "choice_reading", "ill_formed"])
def test_another_setting_is_refused(name):
    with pytest.raises(BadInput, match=f"{name} must be one of"):
        answer_reward(reply_of(None), make_record(), **{name: "other"})
