"""Records scaled to another picture: floats for references, whole pixels in texts, no box without area."""

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from reasoning_records import make_record, records

from stepcot_jax.box import Box
from stepcot_jax.data.questions.vqa_dataset import scale_record
from stepcot_jax.reasoning.dialects import read_reply, write_reply


@pytest.mark.parametrize("edge", [15, 30, 60, 63])
def test_a_box_that_rounding_would_close_stays_open(edge):
    left = float(np.nextafter(edge, 0))
    assert left * 48 / 78 == edge * 48 / 78
    record = make_record(image_size=(78, 78), references=(Box("line", (left, 0, edge, 5)),))
    (reference,) = scale_record(record, (48, 48)).references
    assert reference.corners[0] < reference.corners[2] == edge * 48 / 78


@hypothesis.given(record=records(), side=st.integers(1, 512))
def test_scaled_records_are_valid_and_their_boxes_keep_their_shares(record, side):
    scaled = scale_record(record, (side, side))
    width, height = record.image_size
    for new, old in zip(scaled.references, record.references, strict=True):
        assert np.divide(new.corners, side) == pytest.approx(np.divide(old.corners, [width, height] * 2), abs=1e-5)
    assert scale_record(scaled, (side, side)) is scaled


@pytest.mark.parametrize("dialect", ["gemex", "medclm"])
def test_regions_of_the_thinking_are_still_the_references(dialect):
    record = make_record()  # ([64, 42, 257, 262]) in both
    assert "**bilateral lung**" in write_reply(record, dialect)
    scaled = scale_record(record, (64, 48))
    assert scaled.thinking == "I look at the **bilateral lung** ([12, 6, 49, 37]). It is hazy."
    reply = write_reply(scaled, dialect)
    assert reply.count("bilateral lung") == write_reply(record, dialect).count("bilateral lung")
    assert read_reply(reply, dialect).is_well_formed
