import math

import pytest
from reasoning_records import make_record

from stepcot_jax.reasoning.replies import Judged, Reply, token_f1
from stepcot_jax.rewards.answers import answer_reward


def reply_of(answer, *problems):
    return Reply("gemex", answer=answer, references=(), problems=problems)


@pytest.mark.parametrize(
    ("kind", "right", "wrong"),
    [
        ("closed", ["Yes", "yes, it is"], ["No", "Yes and no", "It is"]),
        ("single", ["B", "(b)", "B: Effusion", "effusion"], ["B: Mass", "A", "A, B"]),
        ("multi", ["A, C", "C and A"], ["A", "A, B, C"]),
        ("open", ["pleural  effusion", "fluid"], ["mass"]),
    ],
)
def test_right_or_wrong(kind, right, wrong):
    record = make_record(kind, synonyms=("Fluid",) if kind == "open" else ())
    assert {answer_reward(reply_of(answer), record) for answer in right} == {1}
    assert {answer_reward(reply_of(answer), record) for answer in wrong} == {0}


@pytest.mark.parametrize(
    ("answer", "expected"),
    [("A, C", 1), ("A", 1 / 2), ("A, B, C", 2 / 3), ("A, B", 1 / 3), ("B, D", 0), ("A, B, C, D", 1 / 2), ("none", 0)],
)
def test_jaccard_of_several_choices(answer, expected):
    assert answer_reward(reply_of(answer), make_record("multi"), multi_choice="jaccard") == pytest.approx(expected)


@pytest.mark.parametrize(
    ("reference", "reply", "expected"),
    [
        (8, 8, 1), (8, 6.5, 1), (8, 9.9, 1), (10, 10, 1),
        (8, 6, 0), (6, 8, 0), (1, 10, 0),  # less than 2, strictly
        (4.1, 2.1, 0), (2.1, 4.1, 0),  # 4.1 - 2.1 is below 2 in floating point
        (0, 1, math.nan), (8, 11, math.nan), (math.nan, 8, math.nan), (8, math.inf, math.nan),
    ],
)  # fmt: skip
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
        ("left pleural effusion", "pleural effusion", 0.8), ("Effusion.", "effusion", 1), ("a a b", "a b b", 2 / 3),
        ("a", "b", 0), ("", "", 1), ("", "a", 0), ("?", "!", 0),
    ],
)  # fmt: skip
def test_token_f1(first, second, expected):
    assert token_f1(first, second) == token_f1(second, first) == pytest.approx(expected)


def test_open_answers_by_token_f1_and_without_synonyms():
    record = make_record("open", answer="effusion", synonyms=("pleural fluid collection",))
    assert answer_reward(reply_of("effusion left side"), record, open_answer="token_f1") == 1  # exactly 0.5
    assert answer_reward(reply_of("effusion on left side"), record, open_answer="token_f1") == 0  # 0.4
    assert answer_reward(reply_of("fluid collection"), record, open_answer="token_f1") == 1  # of a synonym
    assert answer_reward(reply_of("pleural fluid collection"), record, open_answer="equal") == 0
    assert answer_reward(reply_of("EFFUSION"), record, open_answer="equal") == 1


def test_strict_reading_refuses_what_is_hedged_or_taken_back():
    sure = {"closed": ["Yes", "Yes, the heart is enlarged."], "single": ["B", "B: Effusion"]}
    hedged = ["Yes, probably.", "Yes, it may be.", "Yes. Wait, I was mistaken.", "Yes?", "Yes, but it is not certain"]
    for kind, answers in sure.items():
        for answer in answers:
            assert answer_reward(reply_of(answer), make_record(kind), choice_reading="strict") == 1
    for answer in hedged:
        assert answer_reward(reply_of(answer), make_record()) == 1
        assert answer_reward(reply_of(answer), make_record(), choice_reading="strict") == 0
    record = make_record("single", options=("Unlikely", "Possible", "Certain"))
    for answer in ("B", "Possible", "B: possible"):  # words of the options are no hedge
        assert answer_reward(reply_of(answer), record, choice_reading="strict") == 1


@pytest.mark.parametrize("reply", ["Pneumonia", "pneumonia.", "The answer is pneumonia."])
def test_a_full_stop_of_the_truth_is_no_difference(reply):
    record = make_record("open", answer="Pneumonia.", thinking="", stages=None)
    assert answer_reward(reply_of(reply), record) == 1
