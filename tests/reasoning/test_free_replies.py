"""Dialect "free": replies in the styles of released models, written by hand, and what a person reads in each."""

import functools
import json
import pathlib

import pytest
from reasoning_records import make_record
from timing import least_seconds

from stepcot_jax.reasoning.dialects import interpret_answer, read_reply
from stepcot_jax.reasoning.endings import read_finish

OPTIONS = ("Mass", "Edema", "Pneumothorax", "Pleural effusion")
SINGLE = make_record("single", options=OPTIONS, answer="A")
MULTI = make_record("multi", options=OPTIONS, answer=("A",))
YES_NO, CLOSED, OPEN = make_record("single", options=("Yes", "No")), make_record("closed"), make_record("open")
ANSWERS = [
    (SINGLE, "D", [
        "Option D) Pleural effusion. The image shows blunting.", "Option D) ...", "pleural effusion",
        "The image shows a pleural effusion on the left.", "The best option is D: Pleural effusion",
        "D. Pleural effusion\n\nThe costophrenic angle is blunted.", "D - Pleural effusion",
        "D \u2013 Pleural effusion", "[D]", "D: Pleural effusion", "The radiograph shows opacity (D).",
    ]),
    (YES_NO, "B", [
        "(B) No",
    ]),
    (CLOSED, "No", [
        "(B) No", "No, the lungs are clear with no sign of it.", "No.", "No - clear lungs", "<answer>No</answer>",
        "Answer: No\nReason: clear",
    ]),
    (SINGLE, "B", [
        "<think>It may be A or B.</think><answer>B</answer>", "<think>x</think>\n<answer> (B) Edema </answer>",
        "\\boxed{B}", "The final result is $\\boxed{\\text{B}}$.", "(B)", "B.", "B", "b)", "**B**", "`B`",
        "The answer is B", "The correct answer is (B).", "The correct answer is: **B) Edema**", "Answer: B",
        "**Answer:** B", "Final answer: B. Edema\nExplanation: option C is wrong as no air.", "Edema", "Edema.",
        "B because there are Kerley lines, not C.", "B is the correct answer.", "I would choose B.",
        "I'd go with option B", "Based on the image, the most likely finding is edema, so the answer is B",
        "The opacity is bilateral. Therefore, B.", "So, (B)", "{\"answer\": \"B\", \"explanation\": \"...\"}",
        "```json\n{\"answer\": \"B\"}\n```", "<answer>B</answer><|im_end|>", "\uff22", "\"B\"", "B</s>",
        "The answer is A. Wait, no. The answer is B.", "Answer:\n\nB", "Option B", "Choice B", "option b",
    ]),
    (SINGLE, "C", [
        "\\boxed{\\text{(C) Pneumothorax}}", "Pneumothorax (C)", "The finding is most consistent with option C",
    ]),
    (SINGLE, "A", [
        "A", "A mass is seen.",
    ]),
    (CLOSED, "Yes", [
        "Yes", "yes.", "Yes, there is a large effusion.", "Yes, there is no pneumothorax but an effusion",
        "The answer is yes.", "\\boxed{Yes}", "The heart is wide. Therefore, yes.", "**Yes**, the heart is enlarged",
        "A. Yes",
    ]),
    (MULTI, ("A", "B", "D"), [
        "ABD", "A, B, D", "A, B and D are correct.", "A; B; D", "\\boxed{ABD}", "A B D",
    ]),
    (MULTI, ("A", "C"), [
        "<answer>A,C</answer>", "The answers are A and C.", "A. Mass\nC. Pneumothorax", "(A) and (C)",
        "\\boxed{A, C}", "Both A and C", "[\"A\", \"C\"]", "{\"answer\": [\"A\", \"C\"]}",
        "A, C because of the shadow",
    ]),
    (MULTI, ("A", "D"), [
        "- A) Mass\n- D) Pleural effusion", "The correct options are: A. Mass, D. Pleural effusion",
    ]),
    (MULTI, ("A", "B"), [
        "Mass, edema",
    ]),
    (MULTI, ("B",), [
        "B", "Option B) Edema",
    ]),
    (MULTI, ("A", "B", "C", "D"), [
        "All of the above",
    ]),
    (SINGLE, "B", [
        "### Answer\nB", "**Final Answer**\n\nB", "<|im_start|>assistant\nB<|im_end|>", "USER: Which?\nASSISTANT: B",
        "[THINK]A?[/THINK]B. Edema",
        "<unused94>thought\nA?<unused95>**B**", "<|begin_of_thought|>A?<|end_of_thought|>B",
        "<|channel|>analysis<|message|>A?<|end|><|start|>assistant<|channel|>final<|message|>B",
        "{\"choice\": \"B\"}",
        "{\"answer\": {\"letter\": \"B\"}}", "[ANSWER]B[/ANSWER]", "[[B]]", "\u3010B\u3011", "\u7b54\u6848\uff1aB",
        "> B", "1. B",
        "There is no mass and no pneumothorax. There is edema.", "It shows edema, not a mass.", "\\(B\\)", "Answer:B",
        "I cannot diagnose, but the correct option appears to be B) Edema.", "It's B.", "Only B", "B [end of text]",
    ]),
    (CLOSED, "Yes", [
        "True", "I would say yes.", "Definitely yes.", "Based on the X-ray, yes, the heart is large.",
        "{\"answer\": true}",
    ]),
    (MULTI, ("A", "C"), [
        "\\boxed{A} and \\boxed{C}", "(A)(C)", "The correct choices are A and C", "A and C, because both are seen.",
    ]),
    (OPEN, "cardiomegaly", [
        "Cardiomegaly.", "**Cardiomegaly**", "The answer is cardiomegaly.", "<answer>cardiomegaly</answer>",
    ]),
    (OPEN, None, [
        "[{\"bbox_2d\": [2, 3, 4, 5], \"label\": \"Mass\"}]", "<think>The answer is B",
    ]),
    (SINGLE, None, [
        "A large heart is seen.", "either C or D", "C or D", "(C) or (D)", "It is either (C) or (D).",
        "The answer is either C or D.", "The answer could be C or D", "D/C", "There is no edema.", "B) Pneumothorax",
        "E", "<think>Maybe B", "I'm sorry, I can't help with that.", "", "The answer is not B.",
    ]),
    (CLOSED, None, [
        "No idea.", "No image was provided.", "No conclusion is possible.", "Probably yes, but maybe no",
        "Yes or no", "Yes and no", "I cannot tell.", "Yes. Wait, actually no.", "Maybe",
    ]),
    (MULTI, None, [
        "A or B", "A, maybe C",
    ]),
    (SINGLE, None, [
        "B, or C if the patient is supine", "B, C", "Edema is ruled out.", "Edema cannot be seen",
        "[THINK]The answer is B",
        "A. Mass\nB. Edema", "<|channel|>analysis<|message|>The answer is B",
    ]),
]  # fmt: skip


def read(text, record):
    return interpret_answer(read_reply(text, "free"), record)


@pytest.mark.parametrize(("record", "answer", "texts"), ANSWERS)
def test_the_answer_of_a_reply_is_read_or_none_where_there_is_not_one(record, answer, texts):
    assert {text: read(text, record) for text in texts} == dict.fromkeys(texts, answer)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            '```json\n[{"bbox_2d": [2, 3, 4, 5], "label": "Mass"}, {"label": "heart", "bbox_2d": [1, 2, 3, 4]}]\n```',
            [("Mass", (2, 3, 4, 5)), ("heart", (1, 2, 3, 4))],
        ),
        ("The **mass** [2, 3, 4.5, 5] is large.", [("mass", (2, 3, 4.5, 5))]),
        ("mass<|box_start|>(2,3),(4,5)<|box_end|>", [("mass", (2, 3, 4, 5))]),
        ('[{"box_2d": [2, 3, 4, 5], "label": "Mass"}]', [("Mass", (2, 3, 4, 5))]),
        ("<think>[1, 2, 3, 4]</think> Yes", []),
        ('<tool_call>{"bbox_2d": [9, 9, 10, 10]}</tool_call>[1, 2, 3, 4]', [("", (1, 2, 3, 4))]),
        ("[[1, 2], [3, 4], [5, 6]]", []),  # a polygon
        *(
            (text, [("", (1, 2, 3, 4))])
            for text in (
                '{"bbox": {"x1": 1, "y1": 2, "x2": 3, "y2": 4}}', '{"left": 1, "top": 2, "right": 3, "bottom": 4}',
                '{"x": 1, "y": 2, "width": 2, "height": 2}', "(1, 2, 3, 4)", '[{"bbox_2d": ["1", "2", "3", "4"]}]',
                '{"bbox_2d": "1, 2, 3, 4"}', "[[1, 2], [3, 4]]", "(1, 2) to (3, 4)", '{"p1": {"x": 1, "y": 2}, "p2": '
                '{"x": 3, "y": 4}}', '{"bbox_2d": [1, 2, 3, 4], "score": 0.9}', "[1, 2, 3, 4, 0.93]",
                "[1px, 2px, 3px, 4px]", "x1: 1px, y1: 2px, x2: 3px, y2: 4px", "<box>1, 2, 3, 4</box>",
                "{<1><2><3><4>}", "[1 2 3 4]",
            )
        ),
    ],
)  # fmt: skip
def test_boxes_are_read_with_their_names(text, expected):
    reply = read_reply(text, "free")
    assert [(box.label, box.corners) for box in reply.references or ()] == expected


@pytest.mark.parametrize("text", [
    'mass\n```json\n[{"bbox_2d": [9, 20, 34, 32], "label": "mass"}]\n```', "mass, bounding box: [9, 20, 34, 32]",
    'Answer: mass\n[{"box": [9, 20, 34, 32], "score": 0.9}]',
    'Answer: mass\n{"xmin": 9, "ymin": 20, "xmax": 34, "ymax": 32}',
    *(f"{call}\n<answer>mass</answer> [9, 20, 34, 32]" for call in (
        '[TOOL_CALLS][{"name": "zoom", "arguments": {"bbox_2d": [0, 0, 9, 9]}}]', "<python>x = [0, 0, 9, 9]</python>",
        '<function=zoom>{"bbox_2d": [0, 0, 9, 9]}</function>', 'Action: zoom\nAction Input: {"bbox_2d": [0, 0, 9, 9]}',
        "<|tool_call_start|>[0, 0, 9, 9]<|tool_call_end|>", "<observation>[0, 0, 9, 9]</observation>",
    )),
    "<answer>mass</answer> [9, 20, 34, 32], seen on days (1, 2, 3, 4)",
])  # fmt: skip
def test_open_answers_stand_apart_from_boxes_and_calls_of_tools(text):
    assert read(text, OPEN) == "mass"
    assert [box.corners for box in read_reply(text, "free").references] == [(9, 20, 34, 32)]


def test_a_long_reply_takes_little_time():
    for piece in (*"(\n", "answer ", "so ", "\\boxed{", "<think>", "A, ", "[1,", "no ", "<answer>", "option ", "mass "):
        text = piece * (2**17 // len(piece))
        assert least_seconds(functools.partial(read, text, MULTI), 10) < 10, piece  # minutes if it were quadratic


FORMS = {
    "gemex": "<think>x</think><response><answer>{}</answer>"
    "<location><ref>a</ref><box>[1, 2, 3, 4]</box></location></response>",
    "gemex_plain": "<answer> {} <reason> It is wide. <location> []",
    "lvkc": "<LOC>l</LOC><VISUAL>v</VISUAL><KNOWLEDGE>k</KNOWLEDGE><CON>c</CON><ANSWER>{}</ANSWER>",
    "lvkc_released": '<LOC>{{"bbox_xyxy_pixel": []}}</LOC><VIS>v</VIS><KNO>k</KNO><CON>{}</CON>',
    "medclm": "Reasoning: It is wide.\n\nAnswer: {}",
    "plain": "<think>It is wide.</think>\n{}",
    "free": "{}",
}
ACCENTED = make_record("multi", options=("Mass", "Edema", "\u00c9panchement pleural", "Nodule"), answer=("A", "C"))


@pytest.mark.parametrize("dialect", FORMS)
def test_every_dialect_reads_an_answer_without_its_wrapping(dialect):
    """The dialect's grammar alone decides what is well formed: what the answer's part holds is read alike in all."""
    single = ("**B**", "B.", '"B"', "`B`", "\uff22", "B<|im_end|>", "(B).", "\\boxed{B}", "The answer is B.", "['B']")
    single += ("\U0001d401", "\u200bB\ufeff", "\\text{B}", "<b>B</b>", "Edema, not a mass", "edema")
    several = ("['A', 'C']", '["A", "C"]', "\\boxed{A, C}", "A\uff0c C", "{A, C}", "A/C", "A and C.", "AC")
    several += ("['Mass', '\u00c9panchement pleural']", "Mass; E\u0301panchement pleural", "<b>A</b>, <b>C</b>")
    texts = {**dict.fromkeys(single, (SINGLE, "B")), **dict.fromkeys(several, (ACCENTED, ("A", "C")))}
    texts |= dict.fromkeys(("['Yes']", "\\boxed{Yes}", "The answer is yes.", "Y\u200bes"), (CLOSED, "Yes"))
    texts |= dict.fromkeys(("\\boxed{mass}", "The answer is mass.", "\U0001d40cass", '"Mass."'), (OPEN, "mass"))
    for text, (record, expected) in texts.items():
        reply = read_reply(FORMS[dialect].format(text), dialect)
        assert reply.is_well_formed, text
        assert interpret_answer(reply, record) == expected, text


WRITTEN = [
    json.loads(line)
    for line in pathlib.Path(__file__).with_name("replies_by_hand.jsonl").read_text(encoding="utf-8").splitlines()
]
RIGHT = {"single": "A", "closed": "Yes", "multi": ("A",), "open": "mass"}
LEAST_RIGHT = 0.98


def read_written(written):
    options = tuple(written.get("options", ()))
    record = make_record(written["kind"], options=options, answer=RIGHT[written["kind"]])
    reply = read_reply(written["reply"], written.get("dialect", "free"))
    answer = interpret_answer(reply, record)
    boxes = [list(box.corners) for box in reply.references or ()]
    return list(answer) if isinstance(answer, tuple) else answer, boxes


def test_replies_by_hand_are_read_as_a_person_reads_them():
    unread, others = [], []
    for written in WRITTEN:
        answer, boxes = read_written(written)
        if boxes != written.get("boxes", boxes) or answer not in (None, written["answer"]):
            others.append((written["reply"], answer, boxes))
        elif answer != written["answer"]:
            unread.append(written["reply"])
    assert not others
    assert len(unread) <= (1 - LEAST_RIGHT) * len(WRITTEN), unread


@pytest.mark.parametrize(
    ("finish", "words"),
    [
        ("stop", "stop eos end_turn STOP FINISH_REASON_STOP"),
        ("length", "length MAX_TOKENS FinishReason.MAX_TOKENS max_output_tokens token_limit repetition_truncation"),
        ("content_filter", "content_filter content-filter SAFETY contentFilter guardrail_intervened sensitive"),
        ("", "pause_turn other"),
    ],
)
def test_the_finish_reasons_of_servers(finish, words):
    assert {read_finish(word) for word in words.split()} == {finish}
