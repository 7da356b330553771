"""Grammar of MedCLM's replies, by hand (its public code)."""

import msgspec
import pytest
from reasoning_records import make_record
from refusals import refuse

from stepcot_jax.box import UNIT_SQUARE, Box
from stepcot_jax.evaluation.replies import ScoringSettings, score_text
from stepcot_jax.reasoning.dialects import read_reply, write_reply
from stepcot_jax.rewards.options import PRESETS
from stepcot_jax.rewards.presets import reward

MASS = Box("Mass", (15, 40, 20, 44))
HEART = Box("heart", (0, 0, 64, 1))


def write(thinking, *references):
    return write_reply(make_record(image_size=(64, 64), thinking=thinking, references=references), "medclm")


def test_the_writer_puts_the_references_into_the_reasoning():
    thinking = "There is a **Mass** ([15, 40, 20, 44]) in the left lung."
    assert write(thinking, MASS) == (
        "Reasoning: There is a **Mass** [0.2344, 0.6250, 0.3125, 0.6875] in the left lung.\n\nAnswer: Yes"
    )
    listed = (
        "Boxes: **Mass** [0.2344, 0.6250, 0.3125, 0.6875], **heart** [0.0000, 0.0000, 1.0000, 0.0156]\n\nAnswer: Yes"
    )
    assert write("It is there.", MASS, HEART) == f"Reasoning: It is there.\n{listed}"
    thinking = "The **heart** ([0, 0, 64, 1]) and the **Mass** ([15, 40, 20, 44])."
    assert write(thinking, MASS, HEART) == f"Reasoning: The **heart** and the **Mass**.\n{listed}"
    assert write("The left lung ([1, 2, 3, 4]) is clear.") == "Reasoning: The left lung is clear.\n\nAnswer: Yes"
    thinking = "A mass at [0.2344, 0.6250, 0.3125, 0.6875]."  # in the unit square already
    assert write(thinking, MASS) == f"Reasoning: {thinking}\n\nAnswer: Yes"


@pytest.mark.parametrize(
    ("text", "with_thinking", "expected"),
    [  # A and format; the reasoning's lack costs the format alone
        ("Answer: Nodule", True, (1, 0)),
        ("Answer: Nodule", False, (1, 1)),
        ("Answer: Mass", True, (0, 0)),
        ("Reasoning: It is round.\n\nAnswer: Nodule", True, (1, 1)),
        ("Reasoning: It is round.\n\nAnswer: Nodule", False, (1, 1)),
        ("So.\nAnswer: Nodule", True, (0, 0)),
        ("So.\nAnswer: Nodule", False, (0, 0)),
        ("Reasoning: \n\nAnswer: Nodule", True, (0, 0)),
    ],
)
def test_an_answer_alone_has_no_format_outside_of_the_hard_stage(text, with_thinking, expected):
    record = make_record("open", answer="Nodule", references=())
    score = score_text(text, record, ScoringSettings(dialect="medclm", with_thinking=with_thinking))
    assert (score.a_score, score.format) == expected
    hard = msgspec.structs.replace(record, thinking="")  # asks for no reasoning
    bare = score_text(text, record, ScoringSettings(dialect="medclm", with_thinking=False))
    assert score_text(text, hard, ScoringSettings(dialect="medclm", with_thinking=with_thinking)) == bare
    reply = read_reply(text, "medclm", with_thinking=with_thinking)
    paper = reward(reply, record, PRESETS["paper"])
    assert paper["total"] == pytest.approx(0.9 * paper["answer"] + 0.1 * expected[1])


@pytest.mark.parametrize(
    ("reasoning", "references"),
    [
        ("**Mass** [0.1, 0.2, 0.3, 0.4]", [("Mass", 0.1)]),
        ("There. A mass [0.1, 0.2, 0.3, 0.4] and [0.5, 0.5, 1, 1.0]", [("A mass", 0.1), ("and", 0.5)]),
        ("[0.1, 0.2, 0.3, 0.4]", [("", 0.1)]),
        ("**Mass** ([0.1, 0.2, 0.3, 0.4])", [("Mass", 0.1)]),
        ("as seen [1, 2] before [sic]", []),
    ],
)
def test_boxes_of_the_reasoning_are_the_references(reasoning, references):
    reply = read_reply(f"Reasoning: {reasoning}\n\nAnswer: Mass", "medclm")
    assert reply.problems == ()
    assert reply.space == UNIT_SQUARE
    assert [(each.label, each.corners[0]) for each in reply.references] == references
    assert reply.thinking == reasoning


@pytest.mark.parametrize(
    "numbers",
    ["[1, 2, 3, 4]", "[nan, 0, 1, 1]", "[0, 0, 1, inf]", "[-0.1, 0, 1, 1]", "[0, 0, 1, 1, 1]", "[.1, 0, 1, 1]"],
)
def test_a_list_that_is_no_box_of_the_unit_square(numbers):
    reply = read_reply(f"Reasoning: A mass {numbers}.\n\nAnswer: Mass", "medclm")
    assert reply.problems == ("a list of numbers is no box of the unit square",)
    assert reply.references is None


@pytest.mark.parametrize(
    "text",
    [
        *("", "Mass", "Reasoning: a", "Answer:", "Reasoning: \n\nAnswer: a", "Reasoning: a\n\nAnswer: "),
        *("So. Reasoning: a\n\nAnswer: b", "So.\nReasoning: a\n\nAnswer: b", "Answer: a\nReasoning: b"),
        *("Reasoning: a\nAnswer: b\nAnswer: c", "reasoning: a\n\nanswer: b", "Reasoning: a Answer: b"),
    ],
)
def test_violations(text):
    assert not read_reply(text, "medclm").is_well_formed


def test_a_head_that_appears_once_boxes_are_gone_and_a_box_of_another_name_are_refused():
    for thinking in ("x\nAnswer ([1, 2, 3, 4]): No", "x\nReasoning ([15, 40, 20, 44]): No"):
        refuse("a line begins with", write, thinking, MASS)
    refuse("other than the references", write, "The **lung** [0.2344, 0.6250, 0.3125, 0.6875].", MASS)
