import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reasoning_records import make_record

from stepcot_jax.box import Box
from stepcot_jax.reasoning.replies import Reply
from stepcot_jax.rewards.boxes import grounding_reward, localisation


def reply_of(*boxes, problems=(), space=None):
    return Reply("gemex", "Yes", tuple(Box("", box) for box in boxes), problems=problems, space=space)


def record_of(*boxes):
    return make_record(references=tuple(Box("lung", box) for box in boxes))


A, B = (0, 0, 100, 100), (200, 200, 300, 300)
C, D, E = (0, 200, 100, 300), (200, 0, 300, 100), (120, 120, 180, 180)


@pytest.mark.parametrize(
    ("predicted", "true", "expected"),
    [
        ((A,), (A,), 1), ((A,), (A, B), 0), ((A, A), (A,), 0), ((), (A,), 0), ((A,), (), 0), ((), (), 1),
        (((0, 0, 100, 76),), (A,), 1), (((0, 0, 100, 75),), (A,), 0),  # exactly 0.75
        ((B, A), (A, B), 1),  # paired by overlap, not by place
        (((0, 0, 100, 51), B), (A, B), 1), (((0, 0, 100, 50), B), (A, B), 0),  # (0.51 + 1) / 2, and exactly 0.75
        (((100, 100, 0, 0),), (A,), 0), ((A, B, C, D, E), (A, B, C, D), 0),  # four right boxes of five: 0.8
    ],
)  # fmt: skip
def test_by_hand(predicted, true, expected):
    assert grounding_reward(reply_of(*predicted), record_of(*true)) == expected


def test_a_mean_of_three_quarters_is_not_enough_however_it_is_rounded():
    boxes = [(0, 110 * place, 100, 110 * place + 100) for place in range(4)]
    predicted = [(0, box[1], 100, box[1] + height) for box, height in zip(boxes, (33, 81, 93, 93), strict=True)]
    record = make_record(image_size=(100, 430), references=tuple(Box("lung", box) for box in boxes))
    assert localisation(reply_of(*predicted), record) > 0.75  # by one rounding error
    assert grounding_reward(reply_of(*predicted), record) == 0


def test_settings():
    assert grounding_reward(reply_of(), record_of(), empty_boxes="zero") == 0
    assert grounding_reward(reply_of(B, A), record_of(A, B), matching="ordered") == 0
    assert grounding_reward(reply_of((0, 0, 100, 51)), record_of(A), least_iou=0.5) == 1
    assert grounding_reward(reply_of((0, 0, 100, 50)), record_of(A), least_iou=0.5) == 0


@given(st.lists(st.integers(0, 100), min_size=1, max_size=4))
def test_the_threshold_is_exact_for_whole_pixels(heights):
    boxes = [(0, 110 * place, 100, 110 * place + 100) for place in range(len(heights))]
    predicted = [(0, box[1], 100, box[1] + height) for box, height in zip(boxes, heights, strict=True)]
    record = make_record(image_size=(1000, 1000), references=tuple(Box("lung", box) for box in boxes))
    expected = 4 * sum(heights) > 3 * 100 * len(heights)
    for order in itertools.islice(itertools.permutations(predicted), 3):
        assert grounding_reward(reply_of(*order), record) == expected


def test_localisation_three_ways():
    reply, record = reply_of((0, 0, 100, 50), B), record_of(A)
    found = [localisation(reply, record, unequal_counts=way) for way in ("penalise", "zero", "matched")]
    assert found == pytest.approx([0.25, 0, 0.5])
    assert localisation(reply_of(), record_of()) == 1
    assert localisation(reply_of(), record_of(), empty_boxes="zero") == 0


def test_an_unreadable_reply_earns_nothing():
    without_boxes = Reply("gemex", "Yes", None)
    ill_formed = reply_of(A, problems=("<think> is missing",))
    for record in (record_of(A), record_of()):
        for reply in (without_boxes, ill_formed):
            assert localisation(reply, record) == 0
            assert grounding_reward(reply, record) == 0
        assert localisation(without_boxes, record, ill_formed="parts") == 0
    assert localisation(ill_formed, record_of(A), ill_formed="parts") == 1
    assert grounding_reward(ill_formed, record_of(A), ill_formed="parts") == 1
