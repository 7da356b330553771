"""Dialect "free": replies in the styles of released models, written by hand, and what a person reads in each."""

import time

import pytest

from stepcot_jax.reasoning.dialects import interpret_answer, read_reply
from stepcot_jax.record import Record


def question(kind, options=(), answer="A"):
    return Record(
        id="1",
        image="a.png",
        image_size=(64, 64),
        patient="7",
        kind=kind,
        question="What is seen?",
        options=options,
        answer=answer,
    )


OPTIONS = ("Mass", "Edema", "Pneumothorax", "Pleural effusion")
SINGLE, MULTI = question("single", OPTIONS), question("multi", OPTIONS, ("A",))
YES_NO, CLOSED, OPEN = question("single", ("Yes", "No")), question("closed", answer="Yes"), question("open")


def read(text, record):
    return interpret_answer(read_reply(text, "free"), record)


@pytest.mark.parametrize(
    ("record", "text", "answer"),
    [
        (SINGLE, "Option D) Pleural effusion. The image shows blunting.", "D"),
        (SINGLE, "Option D) ...", "D"),
        (YES_NO, "(B) No", "B"),
        (CLOSED, "(B) No", "No"),
        (SINGLE, "<think>It may be A or B.</think><answer>B</answer>", "B"),
        (SINGLE, "<think>x</think>\n<answer> (B) Edema </answer>", "B"),
        (SINGLE, "\\boxed{B}", "B"),
        (SINGLE, "The final result is $\\boxed{\\text{B}}$.", "B"),
        (SINGLE, "\\boxed{\\text{(C) Pneumothorax}}", "C"),
        (SINGLE, "(B)", "B"),
        (SINGLE, "B.", "B"),
        (SINGLE, "B", "B"),
        (SINGLE, "b)", "B"),
        (SINGLE, "**B**", "B"),
        (SINGLE, "`B`", "B"),
        (SINGLE, "The answer is B", "B"),
        (SINGLE, "The correct answer is (B).", "B"),
        (SINGLE, "The correct answer is: **B) Edema**", "B"),
        (SINGLE, "Answer: B", "B"),
        (SINGLE, "**Answer:** B", "B"),
        (SINGLE, "Final answer: B. Edema\nExplanation: option C is wrong as no air.", "B"),
        (SINGLE, "Edema", "B"),
        (SINGLE, "Edema.", "B"),
        (SINGLE, "pleural effusion", "D"),
        (SINGLE, "The image shows a pleural effusion on the left.", "D"),
        (SINGLE, "A", "A"),
        (SINGLE, "A mass is seen.", "A"),
        (SINGLE, "B because there are Kerley lines, not C.", "B"),
        (SINGLE, "B is the correct answer.", "B"),
        (SINGLE, "I would choose B.", "B"),
        (SINGLE, "I'd go with option B", "B"),
        (SINGLE, "Based on the image, the most likely finding is edema, so the answer is B", "B"),
        (SINGLE, "The opacity is bilateral. Therefore, B.", "B"),
        (SINGLE, "So, (B)", "B"),
        (SINGLE, '{"answer": "B", "explanation": "..."}', "B"),
        (SINGLE, '```json\n{"answer": "B"}\n```', "B"),
        (SINGLE, "<answer>B</answer><|im_end|>", "B"),
        (SINGLE, "\uff22", "B"),
        (SINGLE, '"B"', "B"),
        (SINGLE, "B</s>", "B"),
        (SINGLE, "The answer is A. Wait, no. The answer is B.", "B"),
        (SINGLE, "Answer:\n\nB", "B"),
        (SINGLE, "Option B", "B"),
        (SINGLE, "Choice B", "B"),
        (SINGLE, "option b", "B"),
        (SINGLE, "The best option is D: Pleural effusion", "D"),
        (SINGLE, "D. Pleural effusion\n\nThe costophrenic angle is blunted.", "D"),
        (SINGLE, "D - Pleural effusion", "D"),
        (SINGLE, "D \u2013 Pleural effusion", "D"),
        (SINGLE, "[D]", "D"),
        (SINGLE, "D: Pleural effusion", "D"),
        (SINGLE, "The radiograph shows opacity (D).", "D"),
        (SINGLE, "Pneumothorax (C)", "C"),
        (SINGLE, "The finding is most consistent with option C", "C"),
        (CLOSED, "Yes", "Yes"),
        (CLOSED, "yes.", "Yes"),
        (CLOSED, "Yes, there is a large effusion.", "Yes"),
        (CLOSED, "No, the lungs are clear with no sign of it.", "No"),
        (CLOSED, "No.", "No"),
        (CLOSED, "No - clear lungs", "No"),
        (CLOSED, "Yes, there is no pneumothorax but an effusion", "Yes"),
        (CLOSED, "The answer is yes.", "Yes"),
        (CLOSED, "<answer>No</answer>", "No"),
        (CLOSED, "\\boxed{Yes}", "Yes"),
        (CLOSED, "The heart is wide. Therefore, yes.", "Yes"),
        (CLOSED, "Answer: No\nReason: clear", "No"),
        (CLOSED, "**Yes**, the heart is enlarged", "Yes"),
        (CLOSED, "A. Yes", "Yes"),
        (MULTI, "ABD", ("A", "B", "D")),
        (MULTI, "A, B, D", ("A", "B", "D")),
        (MULTI, "A, B and D are correct.", ("A", "B", "D")),
        (MULTI, "<answer>A,C</answer>", ("A", "C")),
        (MULTI, "The answers are A and C.", ("A", "C")),
        (MULTI, "A. Mass\nC. Pneumothorax", ("A", "C")),
        (MULTI, "- A) Mass\n- D) Pleural effusion", ("A", "D")),
        (MULTI, "(A) and (C)", ("A", "C")),
        (MULTI, "\\boxed{A, C}", ("A", "C")),
        (MULTI, "Mass, edema", ("A", "B")),
        (MULTI, "Both A and C", ("A", "C")),
        (MULTI, "B", ("B",)),
        (MULTI, "Option B) Edema", ("B",)),
        (MULTI, "A; B; D", ("A", "B", "D")),
        (MULTI, "\\boxed{ABD}", ("A", "B", "D")),
        (MULTI, "A B D", ("A", "B", "D")),
        (MULTI, '["A", "C"]', ("A", "C")),
        (MULTI, '{"answer": ["A", "C"]}', ("A", "C")),
        (MULTI, "All of the above", ("A", "B", "C", "D")),
        (MULTI, "The correct options are: A. Mass, D. Pleural effusion", ("A", "D")),
        (MULTI, "A, C because of the shadow", ("A", "C")),
        (OPEN, "Cardiomegaly.", "cardiomegaly"),
        (OPEN, "**Cardiomegaly**", "cardiomegaly"),
        (OPEN, "The answer is cardiomegaly.", "cardiomegaly"),
        (OPEN, "<answer>cardiomegaly</answer>", "cardiomegaly"),
    ],
)
def test_the_answer_of_a_reply_is_read(record, text, answer):
    assert read(text, record) == answer


@pytest.mark.parametrize(
    ("record", "text"),
    [
        (SINGLE, "A large heart is seen."),
        (SINGLE, "either C or D"),
        (SINGLE, "C or D"),
        (SINGLE, "It is either (C) or (D)."),
        (SINGLE, "The answer is either C or D."),
        (SINGLE, "The answer could be C or D"),
        (SINGLE, "D/C"),
        (SINGLE, "There is no edema."),
        (SINGLE, "B) Pneumothorax"),
        (SINGLE, "E"),
        (SINGLE, "<think>Maybe B"),
        (SINGLE, "I'm sorry, I can't help with that."),
        (SINGLE, ""),
        (SINGLE, "### Answer\nB"),
        (SINGLE, "The answer is not B."),
        (CLOSED, "Yes or no"),
        (CLOSED, "Yes and no"),
        (CLOSED, "I cannot tell."),
        (CLOSED, "Yes. Wait, actually no."),
        (CLOSED, "Maybe"),
        (MULTI, "A or B"),
    ],
)
def test_a_reply_without_one_answer_is_not_read(record, text):
    assert read(text, record) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            '```json\n[{"bbox_2d": [2, 3, 4, 5], "label": "Mass"}, {"label": "heart", "bbox_2d": [1, 2, 3, 4]}]\n```',
            [("Mass", (2, 3, 4, 5)), ("heart", (1, 2, 3, 4))],
        ),
        ("The **mass** [2, 3, 4.5, 5] is large.", [("mass", (2, 3, 4.5, 5))]),
        ("mass<|box_start|>(2,3),(4,5)<|box_end|>", [("mass", (2, 3, 4, 5))]),
        ("<think>[1, 2, 3, 4]</think> Yes", []),
    ],
)
def test_boxes_are_read_with_their_names(text, expected):
    reply = read_reply(text, "free")
    assert [(box.label, box.corners) for box in reply.references or ()] == expected


def test_labels_of_boxes_are_no_answers_and_a_draft_in_open_thoughts_is_none():
    boxes = read_reply('[{"bbox_2d": [2, 3, 4, 5], "label": "Mass"}]', "free")
    assert boxes.answer is None
    assert boxes.is_well_formed
    draft = read_reply("<think>The answer is B", "free")
    assert (draft.answer, draft.problems) == (None, ("thoughts are opened and not closed",))


@pytest.mark.parametrize(
    "piece", ["(", "answer ", "so ", "\\boxed{", "<think>", "A, ", "[1,", "no ", "<answer>", "option ", "the "]
)
def test_a_long_reply_takes_little_time(piece):
    start = time.monotonic()
    read(piece * (2**17 // len(piece)), MULTI)
    assert time.monotonic() - start < 20  # seconds; a reading that is quadratic takes minutes


@pytest.mark.parametrize("written", ["**B**", "B.", '"B"', "`B`", "\uff22", "B<|im_end|>", "(B)."])
def test_every_dialect_reads_an_answer_without_its_wrapping(written):
    reply = read_reply(f"<answer> {written} <reason> It is wide. <location> []", "gemex_plain")
    assert interpret_answer(reply, SINGLE) == "B"
    assert interpret_answer(
        read_reply("<answer> ABD <reason> It is. <location> []<|im_end|>", "gemex_plain"), MULTI
    ) == tuple("ABD")
