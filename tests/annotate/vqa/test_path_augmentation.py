"""Variants of a region: sizes by hand, bounds for any box, and texts or pictures as cues."""

import msgspec
import pytest
from annotate.phantom_records import phantom_folder, phantom_questions
from hypothesis import given
from hypothesis import strategies as st

from stepcot_jax.annotate.recipes.items import TaskSettings
from stepcot_jax.annotate.recipes.lvkc import VARIANTS, list_rois, plan_trajectories, vary_box, write_parts
from stepcot_jax.box import Box
from stepcot_jax.record import Record

RECORD = Record(
    id="q", image="a.png", image_size=(100, 80), patient="p", kind="closed", question="Is it?", answer="Yes",
    references=(Box("Nodule", (20.0, 10.0, 60.0, 30.0)),),
)  # fmt: skip


def test_sizes_by_hand():
    assert vary_box((20, 10, 60, 30), "given", RECORD, 0) == (20, 10, 60, 30)
    assert vary_box((20, 10, 60, 30), "widened", RECORD, 0) == (15, 7.5, 65, 32.5)
    assert vary_box((20, 10, 60, 30), "inner", RECORD, 0) == (25, 12.5, 55, 27.5)
    assert vary_box((0, 0, 100, 80), "widened", RECORD, 0) == (0, 0, 100, 80)
    box = RECORD.references[0].corners
    other = msgspec.structs.replace(RECORD, id="r")
    found = {vary_box(box, "perturbed", record, seed) for record in (RECORD, other) for seed in (0, 1)}
    assert len(found) == 4
    assert vary_box(box, "perturbed", RECORD, 0) in found


@given(
    st.tuples(st.floats(0, 99), st.floats(0, 79)), st.tuples(st.floats(0.01, 1), st.floats(0.01, 1)),
    st.sampled_from(VARIANTS), st.integers(0, 5),
)  # fmt: skip
def test_a_variant_is_a_box_of_the_picture_near_the_given_one(corner, share, variant, seed):
    x1, y1 = corner
    box = (x1, y1, x1 + share[0] * (100 - x1), y1 + share[1] * (80 - y1))
    found = vary_box(box, variant, RECORD, seed)
    assert 0 <= found[0] < found[2] <= 100
    assert 0 <= found[1] < found[3] <= 80
    most = 0.1 if variant == "perturbed" else 0.125
    for place in range(4):
        assert abs(found[place] - box[place]) <= most * (box[2 + place % 2] - box[place % 2]) + 1e-9


@pytest.mark.parametrize(
    ("cue", "num_regions", "expected"),
    [
        *(("box", 4, [*VARIANTS, "whole"]), ("box", 2, ["given", "perturbed", "whole"]), ("box", 0, ["whole"])),
        *(("text", 4, ["given", "whole"]), ("image", 4, ["whole"])),
    ],
)
def test_the_whole_picture_is_always_there_and_a_text_is_untouched(cue, num_regions, expected):
    rois = list_rois(msgspec.structs.replace(RECORD, cue=cue), num_regions=num_regions, seed=0)
    assert ([roi.variant for roi in rois], rois[-1].box) == (expected, (0, 0, 100, 80))


def test_every_template_words_a_trajectory_otherwise():
    """Also where a question is about another finding than the picture's diagnosis."""
    settings = TaskSettings(root=phantom_folder(), folder=phantom_folder(), num_regions=2, num_templates=3)
    questions = [each for each in phantom_questions() if each.record.stages is not None]
    for about_another in (True, False):
        chosen = [each for each in questions if ("asked" in each.record.facts) == about_another][:20]
        assert len(chosen) == 20
        texts = {}
        for item in plan_trajectories(chosen, settings):
            texts.setdefault(item.question.id, []).append(tuple(write_parts(item).values()))
        for own in texts.values():
            assert len(set(own)) == len(own)
