"""Records and replies: each field's error, and what is accepted."""

import msgspec
import pytest
from reasoning_records import STAGES, make_record
from refusals import refuse

from stepcot_jax.box import Box
from stepcot_jax.record import Stages


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("closed", {"id": "a\nb"}, r"id: 'a\\nb' is not a name on one line"),
        ("closed", {"id": "a" * 501}, "id: 'aaa.* of 1 to 500 characters"),
        ("closed", {"patient": " "}, "patient_id: the value is not a name"),
        ("closed", {"image": ""}, "image_path: '' is not a name"),
        ("closed", {"image_size": (0, 9)}, r"image_size: \[0, 9\] is not \[width, height\]"),
        ("closed", {"question": " "}, "question: blank"),
        ("closed", {"options": ("a", "b")}, "choices: 2 choices of a question of kind 'closed'; none expected"),
        ("single", {"options": ("one",)}, "choices: 1 options; 2 to 26 are required"),
        ("single", {"options": tuple(f"c{k}" for k in range(27))}, "choices: 27 options"),
        ("single", {"options": ("one", "two", "One ")}, "choices: options .* must be distinct .*; A and C are equal"),
        ("closed", {"answer": "y"}, "answer: 'y' is not one of Yes, No, a text"),
        ("closed", {"image_size": (0, 0)}, r"image_size: \[0, 0\] is not \[width, height\]"),
        ("closed", {"answer": ("Yes",)}, "answer: .* is a list; kind 'closed' expects a text"),
        ("single", {"answer": "E"}, "answer: 'E' is not one of A, B, C, D"),
        ("multi", {"answer": "A"}, "answer: 'A' is not an answer of kind 'multi'"),
        ("multi", {"answer": ()}, "answer: .* at least one"),
        ("multi", {"answer": ("C", "A")}, "answer: .* in order"),
        ("multi", {"answer": ("A", "E")}, "answer: .* letters of ABCD"),
        ("open", {"answer": " "}, "answer: blank"),
        ("closed", {"synonyms": ("Yeah",)}, "synonyms: 1 synonyms of the answer 'Yes' .* only an answer in words"),
        ("closed", {"image_size": (100, 300)}, r"references\[0\].box: .* leaves the picture of image_size 100 by 300"),
    ],
)
def test_each_field_is_checked(kind, changes, message):
    refuse(f"^{message}", make_record, kind, **changes)


LABELS = ("", " ", "a\nb", "a" * 201, *(f"a{sign}" for sign in "<>[](){}*\"'`|\\"), "a\u2028b", "\x00")
NAN, INF = float("nan"), float("inf")
BOXES = ((1, 0, 1, 1), (0, 1, 1, 1), (2, 0, 1, 1), (-1, 0, 1, 1), (0, -1, 1, 1), (0, 0, 1, NAN), (0, 0, INF, 1))


def test_labels_that_would_break_markup_boxes_without_an_area_and_blank_stages_are_refused():
    for label in LABELS:
        refuse(r"^label: ", Box(label, (0, 0, 1, 1)).check)
    for box in BOXES:
        refuse(r"^box: ", Box("lung", box).check)
    for name in Stages.__struct_fields__:
        refuse(f"^{name}: blank", msgspec.structs.replace, STAGES, **{name: " "})
