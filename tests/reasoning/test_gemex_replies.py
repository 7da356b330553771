"""Grammar of GEMeX's replies, by hand (GEMeX-RMCoT, Figure 3 and Section 4.1)."""

import pytest
from reasoning_records import make_record

from stepcot_jax.box import Box
from stepcot_jax.reasoning.dialects import read_reply, write_reply

LOCATION = "<location><ref>bilateral lung</ref><box>[64, 42, 257, 262]</box></location>"
RESPONSE = f"<response><answer>B</answer>{LOCATION}</response>"
THINK = "<think>Focus on the **bilateral lung regions** ([64, 42, 257, 262]).</think>"
PUBLISHED = f"{THINK}\n\n{RESPONSE}"


def problems(text):
    return read_reply(text, "gemex").problems


def test_the_published_sample_is_well_formed():
    reply = read_reply(PUBLISHED, "gemex")
    assert reply.problems == ()
    assert reply.answer == "B"
    assert [(each.label, each.corners) for each in reply.references] == [("bilateral lung", (64, 42, 257, 262))]
    assert [(each.label, each.corners) for each in reply.regions] == [("bilateral lung regions", (64, 42, 257, 262))]
    assert reply.boxes((336, 336)).tolist() == [[64, 42, 257, 262]]


def test_the_writer_gives_one_ref_and_one_box_each():
    references = (Box("left lung", (1, 2, 3, 4)), Box("left lung", (2.5, 2.4, 9, 9)))
    assert write_reply(make_record(references=references, thinking=" It is wide. "), "gemex") == (
        "<think>It is wide.</think>\n<response><answer>Yes</answer><location>"
        "<ref>left lung</ref><box>[1, 2, 3, 4]</box>"
        "<ref>left lung</ref><box>[3, 2, 9, 9]</box></location></response>"
    )


@pytest.mark.parametrize(
    ("dialect", "text", "problem"),
    [
        ("gemex", "", "<think> is missing"),
        ("gemex", RESPONSE, "<think> is missing"),
        ("gemex", f"Sure! {PUBLISHED}", "text outside of the tags"),
        ("gemex", f"{THINK} so {RESPONSE}", "text outside of the tags"),
        ("gemex", f"{THINK}<response><answer>B</answer>x{LOCATION}</response>", "text outside of the tags"),
        ("gemex", f"{THINK}{RESPONSE}{RESPONSE}", "<response> occurs more than once"),
        ("gemex", f"{RESPONSE}{THINK}", "tags are out of order"),
        ("gemex", PUBLISHED.replace("<think>", "<Think>"), "<think> is missing"),
        ("gemex", PUBLISHED.replace("</think>", ""), "</think> is missing"),
        ("gemex", PUBLISHED.replace("<answer>B</answer>", "<answer> </answer>"), "<answer> is empty"),
        ("gemex", PUBLISHED.replace("<answer>B", "<answer><ref>B</ref>"), "<ref> or <box> outside of <location>"),
        ("gemex_plain", "No <reason> b <location> []", "<answer> is missing"),
        ("gemex_plain", "<answer> a <reason> b <location>", "<location> is empty"),
        ("gemex_plain", "<answer> a <location> [] <reason> b", "tags are out of order"),
        ("gemex_plain", "x <answer> a <reason> b <location> []", "text outside of the tags"),
        *(
            ("gemex_plain", f"<answer> a <reason> b <location> {location}", "<location> is not a list of boxes")
            for location in ("[1, 2, 3, 4]", "[[1, 2, 3, 4]] x", "[[1, 2, 3, 4]", "[")
        ),
    ],
)
def test_each_violation_has_its_problem(dialect, text, problem):
    reply = read_reply(text, dialect)
    assert problem in reply.problems
    assert not reply.is_well_formed


@pytest.mark.parametrize(
    "location",
    [
        *("<ref>a</ref>", "BOX", "BOX<ref>a</ref>", "<ref>a</ref><ref>b</ref>BOX", "<ref>a</ref>BOX<ref>b</ref>"),
        *("<ref> </ref>BOX", "<ref>a</ref> and BOX", "<ref>a</ref>BOX.", "<ref>aBOX</ref>", "<ref>a</ref>BOX<ref>"),
        *("<ref>a</ref><box>[1, 2, 3, 4]", "left lung [1, 2, 3, 4]", "<ref>a</ref><box>1, 2, 3, 4</box>"),
        *("<ref>a</ref><box>[1, 2, 3, 4],</box>", "<ref>a</ref><box>[1, 2, 3, 4] [1, 2, 3, 4]</box>"),
        *(
            f"<ref>a</ref><box>[1, 2, 3{more}]</box>"
            for more in ("", ", 4, 5", ", nan", ", inf", ", 1e9", f", {'9' * 10}", f", {'9' * 5000}", ", ٤")
        ),
    ],
)
def test_a_location_that_is_no_list_of_names_with_boxes(location):
    location = location.replace("BOX", "<box>[1, 2, 3, 4]</box>")
    reply = read_reply(PUBLISHED.replace(LOCATION, f"<location>{location}</location>"), "gemex")
    assert reply.problems == ("<location> is not names with boxes",)
    assert reply.references is None
    assert reply.answer == "B"


def test_a_name_may_have_several_boxes():
    location = (
        "<location>\n<ref>lung</ref> <box>[1, 2,  3,4], [5,6,7,8]</box><box>[-1.5, 0, 9, 9.25]</box>\n"
        "<ref>heart</ref><box>[ 1, 1, 2, 2 ]</box></location>"
    )
    reply = read_reply(f" {PUBLISHED.replace(LOCATION, location)}\n", "gemex")
    assert reply.problems == ()
    of_lung = [("lung", corners) for corners in ((1, 2, 3, 4), (5, 6, 7, 8), (-1.5, 0, 9, 9.25))]
    assert [(each.label, each.corners) for each in reply.references] == [*of_lung, ("heart", (1, 1, 2, 2))]


@pytest.mark.parametrize(
    ("thinking", "regions"),
    [
        ("**left lung** ([1, 2, 3, 4])", [("left lung", 1)]),
        ("the left lung ([1, 2, 3, 4])", [("the left lung", 1)]),
        ("It is wide. left lung([1,2,3,4]) and **heart**\n([5, 2, 3, 4]).", [("left lung", 1), ("heart", 5)]),
        ("**A**: **Clear**. The locations **mediastinum** ([1, 2, 3, 4])", [("mediastinum", 1)]),
        *((text, []) for text in ("**lung** [1, 2, 3, 4]", "([1, 2, 3, 4])", "**lung** ([1, 2, 3])")),
        ("**a, b: c** ([1, 2, 3, 4]), **d** ([2, 2, 3, 4])", [("a, b: c", 1), ("d", 2)]),
    ],
)
def test_regions_of_the_thinking(thinking, regions):
    reply = read_reply(f"<think>{thinking}</think>{RESPONSE}", "gemex")
    assert reply.problems == ()
    assert [(each.label, each.corners[0]) for each in reply.regions] == regions


def test_a_plain_reply_without_boxes():
    without_boxes = write_reply(make_record(references=()), "gemex_plain")
    assert without_boxes.endswith("<location> []")
    assert read_reply(without_boxes, "gemex_plain").references == ()


@pytest.mark.parametrize(
    ("old", "new", "problems"),
    [
        ("</answer>", "</answer></answer>", ("</answer> occurs more than once",)),
        ("<answer>", "<answer>A<answer>", ("<answer> occurs more than once",)),
        ("<answer>B</answer>", "</answer>B<answer>", ("tags are out of order",)),
    ],
)  # fmt: skip
def test_parts_that_occur_twice_or_end_before_they_begin_are_not_read(old, new, problems):
    reply = read_reply(PUBLISHED.replace(old, new), "gemex")
    assert (reply.problems, reply.answer) == (problems, None)
    assert [each.corners for each in reply.references] == [(64, 42, 257, 262)]


def test_a_reply_without_thinking_is_read_as_such():
    """The target of GEMeX-200K is well formed where no thinking is asked for, and only there."""
    record = make_record(thinking="")
    text = write_reply(record, "gemex")
    assert text.startswith("<response>")
    found = read_reply(text, "gemex", with_thinking=False)
    assert found.is_well_formed
    assert found.answer == read_reply(text, "gemex").answer == record.answer
    assert [(each.label, each.corners) for each in found.references] == [("bilateral lung", (64, 42, 257, 262))]
    assert problems(text) == ("<think> is missing", "</think> is missing")
    assert not read_reply(f"<think>Hm.</think>{text}", "gemex", with_thinking=False).is_well_formed
