import dataclasses

import msgspec
import numpy as np
import pytest
from refusals import refuse

from stepcot_jax.box import GRID_1000, Box
from stepcot_jax.evaluation.box_forms import BoxForm, find_better_form, place_boxes
from stepcot_jax.reasoning.replies import Reply
from stepcot_jax.record import Record

WIDTH, HEIGHT = 640, 480
SPACES = ("", "pixels", "unit", "1000", "qwen", "320x240", "896x896")
FORMS = [BoxForm(space, order) for space in SPACES for order in ("", "xywh", "yxyx")]


def make_record(number=0):
    x, y = 30 + 40 * number, 20 + 30 * number
    true = (Box("mass", (x, y, x + 200, y + 90)),)
    return Record(
        id=str(number), image="a.png", image_size=(WIDTH, HEIGHT), patient="p", kind="closed", question="Mass?",
        answer="Yes", references=true,
    )  # fmt: skip


def write(record, form):
    x1, y1, x2, y2 = record.references[0].corners
    sizes = {"unit": (1, 1), "1000": (1000, 1000), "qwen": (644, 476), "320x240": (320, 240), "896x896": (896, 896)}
    across, down = sizes.get(form.space, (WIDTH, HEIGHT))
    x1, x2, y1, y2 = x1 / WIDTH * across, x2 / WIDTH * across, y1 / HEIGHT * down, y2 / HEIGHT * down
    written = {"xywh": (x1, y1, x2 - x1, y2 - y1), "yxyx": (y1, x1, y2, x2)}.get(form.order, (x1, y1, x2, y2))
    return Reply("gemex", answer="Yes", references=(Box("mass", written),))


@pytest.mark.parametrize("form", FORMS)
def test_a_stated_form_places_the_box_and_one_that_is_not_stated_is_named(form):
    records = [make_record(number) for number in range(6)]
    replies = [write(record, form) for record in records]
    placed, turned = place_boxes(replies[0], records[0], form)
    np.testing.assert_allclose(placed.boxes(records[0].image_size)[0], records[0].references[0].corners, rtol=1e-12)
    assert turned == 0
    assert find_better_form(replies, records, form) == ""
    if form.space == "320x240":  # of sizes only the usual ones are tried
        return
    note = find_better_form(replies, records, BoxForm())
    # 644 x 476 pixels are 640 x 480 within 1 %.
    if form.space in ("", "pixels", "qwen") and not form.order:
        assert note == ""
    else:
        assert f"100.0 % with {form.describe().replace('--box-space=pixels ', '')}" in note


def test_swapped_corners_are_sorted_and_counted_and_a_dialects_own_order_stays_unless_another_is_stated():
    record = make_record()
    x1, y1, x2, y2 = record.references[0].corners
    reply = Reply("gemex", references=(Box("mass", (x2, y2, x1, y1)), Box("", (x1, y1, x2, y2))))
    placed, turned = place_boxes(reply, record, BoxForm())
    assert turned == 1
    assert [box.corners for box in placed.references] == [record.references[0].corners] * 2
    reply = Reply("lvkc", references=(Box("", (100, 0, 500, 1000)),), space=GRID_1000)
    for form, expected in ((BoxForm(), (0, 48, 640, 240)), (BoxForm(order="xyxy"), (64, 0, 320, 480))):
        assert place_boxes(reply, record, form)[0].boxes(record.image_size)[0].tolist() == list(expected)


def test_another_form_is_refused():
    refuse("--box-", BoxForm, space="0x5")


def test_forms_are_tested_with_the_replies_of_few_boxes_if_there_are_many():
    records = [make_record(number) for number in range(6)]
    replies = [write(record, BoxForm("unit")) for record in records]
    crowd = dataclasses.replace(replies[0], references=2300 * (Box("mass", (0.0, 0.0, 1.0, 1.0)),))
    note = find_better_form([*replies, *(40 * [crowd])], [*records, *(40 * records[:1])], BoxForm())
    assert note.startswith("the boxes of 7 replies overlap the true ones by 0.0 %")
    assert note.endswith("with --box-space=unit")
    strip = msgspec.structs.replace(records[0], image_size=(9000, 4), references=(Box("mass", (0, 0, 9, 4)),))
    refuse("--box-space=qwen, id '0': image of 9000 x 4 px", place_boxes, replies[0], strip, BoxForm("qwen"))
    assert find_better_form([*replies, replies[0]], [*records, strip], BoxForm()).endswith("with --box-space=unit")
