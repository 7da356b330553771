"""Grammar of MEDSAGE's replies, by hand (Figure 12 and the public code)."""

import pytest
from reasoning_records import make_record

from stepcot_jax.box import GRID_1000, Box
from stepcot_jax.reasoning.dialects import read_reply, write_reply

PUBLISHED = (
    "This is a non-contrast axial CT image of the upper abdomen. <LOC>The region of interest is the left upper "
    "quadrant near the spleen, where free fluid is present "
    '{"box_2d": [315, 742, 785, 968], "label": "perisplenic hyperdense fluid"}. No definite abnormal fluid is seen in '
    'the right upper quadrant {"point": [420, 215], "label": "right upper quadrant"}.</LOC>\n'
    "<VISUAL>Hyperdense free fluid.</VISUAL><KNOWLEDGE>- It appears hyperdense.</KNOWLEDGE>\n"
    "<CON>Acute blood.</CON><ANSWER>Findings are consistent with hemoperitoneum.</ANSWER>"
)
RELEASED = '<LOC>{"bbox_xyxy_pixel": [[10, 20, 30, 40]]}</LOC><VIS>v</VIS><KNO>k</KNO><CON>Yes</CON>'


def with_place(place):
    return f"<LOC>Here {place}.</LOC><VISUAL>v</VISUAL><KNOWLEDGE>k</KNOWLEDGE><CON>c</CON><ANSWER>a</ANSWER>"


def test_the_published_sample_is_well_formed():
    reply = read_reply(PUBLISHED, "lvkc")
    assert reply.problems == ()
    assert reply.preamble == "This is a non-contrast axial CT image of the upper abdomen."
    assert reply.answer == "Findings are consistent with hemoperitoneum."
    assert reply.space == GRID_1000
    assert [(each.label, each.corners) for each in reply.references] == [
        ("perisplenic hyperdense fluid", (315, 742, 785, 968))  # y first: it lies on the picture's right
    ]
    assert reply.boxes((1000, 500)).tolist() == [[742, 157.5, 968, 392.5]]
    assert reply.stages["localisation"].endswith("in the right upper quadrant .")
    assert "{" not in reply.stages["localisation"]
    assert (reply.stages["visual"], reply.stages["conclusion"]) == ("Hyperdense free fluid.", "Acute blood.")


def test_what_is_written():
    references = (Box("left lung", (10, 20, 30, 45)), Box("heart", (0, 0, 1, 200)))
    record = make_record(image_size=(100, 200), references=references, preamble="A chest radiograph.")
    assert write_reply(record, "lvkc") == (
        'A chest radiograph.\n<LOC>The lower zone of the right lung. {"box_2d": [100, 100, 225, 300], "label": "left '
        'lung"} {"box_2d": [0, 0, 1000, 10], "label": "heart"}</LOC><VISUAL>A hazy opacity.</VISUAL><KNOWLEDGE>Haze '
        "over fluid.</KNOWLEDGE><CON>Fluid it is.</CON><ANSWER>Yes</ANSWER>"
    )
    assert write_reply(record, "lvkc_released") == (
        '<LOC>{"bbox_xyxy_pixel": [[10, 20, 30, 45], [0, 0, 1, 200]]}</LOC><VIS>A hazy opacity.</VIS><KNO>Haze over '
        "fluid.</KNO><CON>Yes</CON>"
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "<LOC> is missing"),
        (PUBLISHED.replace("</LOC>", "<LOC>"), "</LOC> is missing"),  # as sample (e) is printed
        (PUBLISHED.replace("</KNOWLEDGE>", "<KNOWLEDGE>"), "</KNOWLEDGE> is missing"),  # sample (d)
        (PUBLISHED.replace("<VISUAL>", "<visual>"), "<VISUAL> is missing"),
        (PUBLISHED + "<CON>c</CON>", "<CON> occurs more than once"),
        (PUBLISHED.replace("<CON>", "so <CON>"), "text outside of the tags"),
        (PUBLISHED.replace("Acute blood.", " "), "<CON> is empty"),
        (
            "<VISUAL>v</VISUAL><LOC>l</LOC><KNOWLEDGE>k</KNOWLEDGE><CON>c</CON><ANSWER>a</ANSWER>",
            "tags are out of order",
        ),
    ],
)
def test_each_violation_has_its_problem(text, problem):
    assert problem in read_reply(text, "lvkc").problems


@pytest.mark.parametrize(
    "place",
    [
        *(
            f'{{"box_2d": [{numbers}], "label": "a"}}'
            for numbers in (
                *("1, 2, 3", '1, 2, 3, "4"', "1, 2, 3, NaN", "1, 2, 3, 1e999", "1, 2, 3, 1001", "-1, 2, 3, 4"),
                *(f"1, 2, 3, {'1' * 5000}", f"1, 2, 3, 0.{'1' * 5000}"),
            )
        ),
        *(f'{{"box_2d": [1, 2, 3, 4]{more}}}' for more in ("", ', "label": ""', ', "label": 7', ', "label": "\ud800"')),
        '{"box_2d": [1, 2, 3, 4], "point": [1, 2], "label": "a"}',
        *('{"point": [1], "label": "a"}', '{"point": [1, 2000], "label": "a"}', '{"label": "a"}', "{}"),
        *("{'box_2d': [1, 2, 3, 4], 'label': 'a'}", '{"box_2d": [1, 2, 3, 4], "label": "a"'),
        *('"box_2d": [1, 2, 3, 4], "label": "a"}', '{{"box_2d": [1, 2, 3, 4], "label": "a"}}'),
        '{"box_2d": [1, 2, 3, 4], "label": "a"} {"label": "b"}',
    ],
)
def test_a_place_that_is_no_json_object_of_a_box_or_point(place):
    reply = read_reply(with_place(place), "lvkc")
    assert len(reply.problems) == 1
    assert reply.problems[0].startswith("<LOC> has a place that is no JSON object")
    assert reply.references is None
    assert reply.answer == "a"


def test_long_numbers_and_any_letters_in_labels_are_read_and_no_box_is_well_formed():
    for label in ("9" * 30, "Ω β", "a, b: c", " left  lung "):
        record = make_record(references=(Box(label, (1, 2, 30, 40)),))
        for dialect in ("lvkc", "gemex", "medclm"):
            assert read_reply(write_reply(record, dialect), dialect).references[0].label == label
    reply = read_reply(with_place(""), "lvkc")
    assert (reply.problems, reply.references) == ((), ())


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("<LOC>", "Hello <LOC>", "text outside of the tags"),
        ("</CON>", "</CON><ANSWER>Yes</ANSWER>", "text outside of the tags"),
        ("Yes", "", "<CON> is empty"),
        *(
            (old, new, "<LOC> is not a JSON object with bbox_xyxy_pixel")
            for old, new in (
                *(("[10,", "[NaN,"), ("[10,", "[1e12,"), ("[10, 20, 30, 40]", "[10, 20, 30]")),
                *(("bbox_xyxy_pixel", "box_2d"), ("<LOC>{", "<LOC>Here: {"), ("[[", "[" * 100_000)),
            )
        ),
    ],
)
def test_violations_of_the_released_grammar(old, new, problem):
    assert read_reply(RELEASED.replace(old, new), "lvkc_released").problems == (problem,)
