"""Figures of audits, counted by hand."""

import math

import msgspec
import pytest

from stepcot_jax.box import Box
from stepcot_jax.evaluation.audits import (
    AGREES,
    CASES,
    CHANGED,
    ELSE,
    FOLLOWS,
    KEEPS,
    MOVED,
    UNREAD,
    A,
    audit_pictures,
    audit_thinking,
)
from stepcot_jax.evaluation.replies import ReplyScore
from stepcot_jax.record import Record

BOX, NEAR, HALF, FAR = ((0, 0, 4, 4), (0, 0, 4, 3), (0, 0, 4, 1.9), (8, 8, 9, 9))


def question(name, answer="A", options=("Mass", "Edema", "Nodule"), **made):
    provenance = {f"audit_{key}": value for key, value in made.items()}
    return Record(
        id=name, image="a.png", image_size=(9, 9), patient=name[0], kind="single", question="What is seen?",
        options=options, answer=answer, provenance=provenance,
    )  # fmt: skip


def score(answer, *boxes, right=0.0):
    return ReplyScore("", "", answer, tuple(Box("", box) for box in boxes), right, math.nan, math.nan, 1.0)


def values(row):
    return {name: figure if name == CASES else round(figure.value, 6) for name, figure in row.items()}


def test_changes_unread_answers_and_boxes_that_move():
    own = {
        "1": score("A", BOX),
        "2": score("B", BOX),
        "3": score("C"),
        "4": score(None, BOX),
        "5": score("A", (3, 3, 3, 3)),
    }
    asked = [
        (question("1x", of="1"), score("B", NEAR)),  # changed, IoU 0.75
        (question("2x", of="2"), score(None, HALF)),  # unread, IoU 0.475: moved
        (question("3x", of="3"), score("C", FAR, right=1.0)),  # kept; no box before
        (question("4x", of="4"), score("A")),  # was unread: takes no part; its box is gone: moved
        (question("5x", of="5"), score("A", FAR)),  # kept; a box without area before
    ]
    row = audit_pictures(own, asked, num_resamples=50)
    assert values(row) == {CASES: 5, CHANGED: 0.25, UNREAD: 0.25, MOVED: 0.666667, A: 0.2}
    assert 0 <= row[CHANGED].low < 0.25 < row[CHANGED].high <= 1


def test_following_the_donor_keeping_and_something_else():
    swapped = question("d", options=("Edema", "Mass", "Nodule"))
    own = {"1": score("A"), "2": score("A"), "3": score("A"), "4": score("A"), "d": score("A")}  # the donor: edema
    made = {"donor": "d"}
    asked = [
        (question("1x", of="1", agree="0.5", **made), score("B")),  # edema: follows
        (question("2x", of="2", agree="0.1", **made), score("A")),  # mass: keeps
        (question("3x", of="3", agree="0.3", **made), score("C")),
        (question("4x", of="4", agree="0.3", **made), score(None)),
    ]
    row = audit_thinking(own, asked, {"d": swapped}, num_resamples=50)
    assert values(row) == {CASES: 4, FOLLOWS: 0.25, KEEPS: 0.25, ELSE: 0.25, UNREAD: 0.25, AGREES: 0.3}
    alone = [(msgspec.structs.replace(record, provenance={"audit_of": record.id[0]}), said) for record, said in asked]
    assert values(audit_thinking(own, alone, {}, num_resamples=50)) == {CASES: 4, KEEPS: 0.25, ELSE: 0.5, UNREAD: 0.25}


@pytest.mark.parametrize(("said", "counted"), [("B", FOLLOWS), ("A", KEEPS), ("C", ELSE)])
def test_what_is_followed_or_kept_is_what_the_model_said_and_not_what_is_true(said, counted):
    own, donor = {"1": score("A"), "d": score("B")}, question("d", answer="C")
    asked = [(question("1x", answer="C", of="1", donor="d"), score(said))]
    row = values(audit_thinking(own, asked, {"d": donor}, num_resamples=2))
    assert {name: row[name] for name in (FOLLOWS, KEEPS, ELSE)} == {FOLLOWS: 0, KEEPS: 0, ELSE: 0, counted: 1}


def test_intervals_resample_patients_with_all_their_questions():
    own = {name: score("A") for name in ("1", "2")}
    asked = [(question(f"{name}{place}", of=name), score("AB"[name == "2"])) for name in own for place in range(40)]
    row = audit_pictures(own, asked, num_resamples=200)
    assert (row[CHANGED].low, row[CHANGED].value, row[CHANGED].high) == pytest.approx((0, 0.5, 1))
