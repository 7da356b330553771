"""The majority answer and the constant box: by hand, and blind to what it is measured on."""

import msgspec
import pytest
from refusals import refuse

from stepcot_jax.box import Box
from stepcot_jax.data.questions.making import ground_phantom
from stepcot_jax.data.questions.questions import ask_questions
from stepcot_jax.data.statistics import find_difference
from stepcot_jax.evaluation.replies import ScoringSettings
from stepcot_jax.evaluation.scored_baseline import fit_baseline, score_baseline
from stepcot_jax.reasoning.dialects import WRITTEN, write_reply
from stepcot_jax.record import Record


def _record(number, kind="closed", topic="t", answer="Yes", boxes=(), options=(), size=(100, 100), label="a"):
    fields = {"image": "i.png", "patient": "p", "question": "Which?", "thinking": "Seen.", "image_size": size}
    references = tuple(Box(label, box) for box in boxes)
    fields |= {"kind": kind, "topic": topic, "options": tuple(options), "answer": answer, "references": references}
    return Record(id=str(number), **fields)


def test_majority_and_median_by_hand():
    train = [
        *(_record(1, answer="No", boxes=[(0, 0, 10, 20)]), _record(2, answer="No", boxes=[(10, 20, 40, 50)])),
        _record(3, answer="Yes", boxes=[(20, 10, 30, 90)], label="b"),
        *(_record(4, answer="Yes", boxes=[(0, 0, 1, 1), (0, 0, 1, 1)]), _record(5, topic="u", answer="Yes")),
    ]
    baseline = fit_baseline(train)
    told = baseline.answer(_record(9, answer="Yes", boxes=[(1, 1, 2, 2)], size=(200, 50)))
    assert told.answer == "No"  # two each: the first in alphabetical order
    assert told.references == (Box("a", (20, 5, 60, 25)),)
    assert told.thinking == "The usual answer to this question, with the usual boxes."
    assert baseline.answer(_record(9, topic="u")).references == ()
    assert baseline.answer(_record(9, topic="unseen")).answer == "Yes"  # three of five
    refuse("no training records", fit_baseline, [])
    refuse("no training record of kind 'open'", fit_baseline([_record(1)]).answer, _record(2, "open", answer="x"))


def test_options_are_judged_by_how_often_they_were_right_where_offered():
    train = [
        _record(1, "single", answer="A", options=("one", "two")),
        _record(2, "single", answer="B", options=("two", "one")),
        _record(3, "single", answer="A", options=("Two", "three")),
        _record(4, "multi", answer=("A", "B"), options=("one", "two", "three")),
        _record(5, "multi", answer=("B",), options=("three", "one", "four")),
        _record(6, "multi", answer=("A",), options=("four", "five", "three")),
    ]
    answer = fit_baseline(train).answer
    # Offered and right: one 2 of 2, two 1 of 3, three 0 of 1.
    assert answer(_record(9, "single", answer="A", options=("two", "new", "one"))).answer == "C"
    assert answer(_record(9, "single", answer="A", options=("three", "two"))).answer == "B"
    assert answer(_record(9, "multi", answer=("C",), options=("four", "one", "two"))).answer == ("B", "C")
    assert answer(_record(9, "multi", answer=("B",), options=("four", "three"))).answer == ("A",)


def test_options_that_were_never_right_get_the_most_frequent_letter():
    train = [_record(at, "single", answer=answer, options=(f"{at}", f"{at}.")) for at, answer in enumerate("BAB")]
    asked = [_record(at, "single", answer=answer, options=("new", "newer")) for at, answer in enumerate("AABB")]
    assert fit_baseline(train).answer(asked[0]).answer == "B"
    train = [msgspec.structs.replace(record, split="train") for record in train]
    closed = [_record(at, answer=answer, topic=f"{at}") for at, answer in enumerate(("No", "No", "Yes"), start=4)]
    scores, remark = score_baseline(train, [*asked, *closed], ScoringSettings(), of_chosen=True)
    assert [score.a_score for score in scores] == [0, 0, 1, 1, 1, 1, 0]  # by topic all three would be right
    assert "of 3 training records; of the 3 evaluated questions of a kind that training lacks" in remark


@pytest.fixture(scope="module")
def records():
    return [record for index in range(125) for record in ask_questions(ground_phantom(index, size=64)[0], seed=0)]


def test_it_sees_neither_answer_nor_boxes(records):
    baseline = fit_baseline(records[:300])
    for record in records[300:500]:
        answer = record.answer
        if record.kind in ("single", "closed"):
            answer = {"A": "B", "Yes": "No", "No": "Yes"}.get(answer, "A")
        hidden = msgspec.structs.replace(
            record, answer=answer, references=(), facts={}, lesion="", organ="", stages=None
        )
        first, second = baseline.answer(record), baseline.answer(hidden)
        assert (first.answer, first.references) == (second.answer, second.references)


@pytest.mark.parametrize("dialect", WRITTEN)
def test_its_records_can_be_written_as_replies(records, dialect):
    baseline = fit_baseline(records[:300])
    for record in records[300:340]:
        told = baseline.answer(record)
        assert find_difference(told, write_reply(told, dialect), dialect) == ""
