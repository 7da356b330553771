"""Any JSON under the names of the released fields is a record or a named fault, never another exception."""

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reasoning_records import read_records

from stepcot_jax.host.errors import BadInput
from stepcot_jax.record import Record

LOCATED = "<location><ref>r</ref><box>[1, 2, 3, 4]</box></location>"
PIECES = (
    *("<answer> A <reason> r <location> [[1, 2, 3, 4]]", "<image>\nQ <choices>: [A: x y, B: z z]"),
    *("yes", "A", "B, A", "", "A: x y", "B: z z", "single_choice_questions", "open", "human", "gpt"),
    *("a.png", "../a.png", "/a", "files/p10/p10000032/s1/a.jpg", "\x00", "[" * 500, "\ud800"),
    *("<think>t</think>", f"<response><answer>A</answer>{LOCATED}</response>", "<LOC>"),
    "<LOC>x</LOC><VISUAL>v</VISUAL><KNOWLEDGE>k</KNOWLEDGE><CON>c</CON><ANSWER>A</ANSWER>",
    '<LOC>{"bbox_xyxy_pixel": [[1, 2, 3, 1e400]]}</LOC><VIS>v</VIS><KNO>k</KNO><CON>c</CON>',
)
NUMBERS = st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
SCALARS = st.one_of(st.none(), st.booleans(), NUMBERS, st.sampled_from(PIECES), st.text(max_size=8))
NAMES = st.sampled_from(("from", "value", "x"))
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=8
)


def mostly(*good):
    """Good values four times out of five."""
    return st.integers(0, 4).flatmap(lambda draw: VALUES if draw == 0 else st.sampled_from(good))


def turns(*replies):
    prompts = ("<image>\nQ <choices>: [A: x y, B: z z]", "<image>\nQ")
    pairs = itertools.product(prompts, replies)
    return mostly(*([{"from": "human", "value": ask}, {"from": "gpt", "value": reply}] for ask, reply in pairs))


KINDS = mostly("single_choice_questions", "open_ended_questions", "closed")
IMAGES = mostly("a.png", "/files/p10/p10000032/s1/a.jpg")
FIELDS = {
    "test": {
        "question": mostly("Q"),
        "answer": mostly("A", "yes", ["A", "B"], "B: z z"),
        "choices": mostly(["A: x y", "B: z z"], None),
        "visual_regions": mostly(["heart"]),
        "visual_locations": mostly([[1, 2, 3, 4]], [[1, 2, 336, 336]], [[1, 2, 337, 4]], [[1, 2, 1e308, 4]]),
        "image_path": IMAGES,
    },
    "training": {"conversations": turns(PIECES[0], "<answer> Yes"), "q_type": KINDS, "image": IMAGES},
    "thinking": {
        "image_path": IMAGES,
        "question": mostly("Q", "Q <choices>: [A: x y, B: z z]"),
        "question_type": KINDS,
        "thinkVG": mostly("t", "<think>t</think>"),
        "response": mostly(f"<response><answer>A</answer>{LOCATED}</response>"),
    },
    "medsage": {"conversations": turns(*PIECES[-2:], "Yes", "A, B", "<LOC>x</LOC>"), "images": mostly(["a.png"])},
}


@pytest.mark.parametrize("form", FIELDS)
@settings(max_examples=40)
@given(data=st.data())
def test_any_json_is_a_record_or_a_named_fault(form, data, tmp_path_factory):
    records = data.draw(st.lists(st.fixed_dictionaries(FIELDS[form]), min_size=1, max_size=6))
    path = tmp_path_factory.mktemp("hostile") / "records.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    aside, layout = [], "medsage" if form == "medsage" else "gemex"
    options = {"layout": layout, "box_size": (336, 336), "on_bad_record": "skip", "require_images": False}
    try:
        found = read_records(path, set_aside=aside, **options)
    except BadInput as error:
        found, problem, aside = [], str(error), None
    else:
        problem = "no record is valid"
    assert "no record is valid" in problem
    if aside is None:
        return
    assert len(found) + len(aside) == len(records)
    assert all(isinstance(record, Record) for record in found)
    assert all(item.reason.startswith("records.jsonl, line ") for item in aside)
    assert not any("\n" in item.reason for item in aside)
