"""Thinkings without their conclusion: what stays, in every dialect whose answer follows, and what is turned."""

import msgspec
import pytest

from stepcot_jax.box import Box
from stepcot_jax.reasoning.dialects import read_reply, write_reply
from stepcot_jax.reasoning.thinking import can_say, in_words, read_thinking, shorten, subject_of, tell, turn_claim
from stepcot_jax.record import Record, Stages

SEEN = "I look at the **right lung** ([10, 8, 31, 52]) where I see air between lung and chest wall."
UNBOXED = SEEN.replace(" ([10, 8, 31, 52])", "")
SIZE = "The heart is not large."
RECORD = Record(
    id="1", image="a.png", image_size=(64, 64), patient="7", kind="single", question="What is seen?",
    options=("Mass", "Pneumothorax"), answer="B", references=(Box("Pneumothorax", (10, 8, 31, 52)),),
    thinking=f"{SEEN} Option A, mass: I see no such thing. {SIZE} So the answer is B, pneumothorax.",
    stages=Stages("The right lung. There is a pneumothorax.", "I see air.", "Air is dark.", "So it is (B)."),
)  # fmt: skip


@pytest.mark.parametrize(
    ("dialect", "start", "kept"),
    [
        ("gemex", f"<think>{SEEN} {SIZE}</think>\n", (SEEN, SIZE)),
        ("medclm", f"Reasoning: {UNBOXED} {SIZE}\n\n", (UNBOXED, SIZE)),
        ("plain", f"<think>{SEEN} {SIZE}</think>\n", (SEEN, SIZE)),
        (
            "lvkc",
            '<LOC>The right lung. {"box_2d": [0, 0, 1000, 500], "label": "right lung"}</LOC><VISUAL>I see air.</VISUAL>'
            "<KNOWLEDGE>Air is dark.</KNOWLEDGE><CON>",
            ("The right lung.", "I see air.", "Air is dark."),
        ),
        (
            "lvkc_released",
            '<LOC>{"bbox_xyxy_pixel": [[10, 8, 31, 52], [0, 0, 32, 64]]}</LOC><VIS>I see air.</VIS>'
            "<KNO>Air is dark.</KNO>",
            ("I see air.", "Air is dark."),
        ),
    ],
)
def test_sentences_and_boxes_with_the_answer_or_an_option_are_left_out(dialect, start, kept):
    record = RECORD
    if dialect.startswith("lvkc"):
        lung = Box("right lung", (0, 0, 32, 64))
        record = msgspec.structs.replace(RECORD, references=(*RECORD.references, lung))
    reply = write_reply(record, dialect)
    thinking = read_thinking(reply, record, dialect)
    assert thinking.sentences == kept
    assert thinking.write() == start
    # A conclusion of which nothing stays is written anew.
    marks = {"gemex": "<response>", "medclm": "Answer:", "lvkc": "So it is (B).", "lvkc_released": "<CON>"}
    again = read_reply(thinking.write() + reply[reply.rindex(marks.get(dialect, "B")) :], dialect)
    assert again.answer == read_reply(reply, dialect).answer
    assert again.is_well_formed
    assert "pneumothorax" not in thinking.write().lower()  # no box's label either


def test_the_article_is_not_the_letter_of_an_answer():
    thinking = "I see a band. I see a mass. A is right."
    for answer in "AB":
        record = msgspec.structs.replace(RECORD, thinking=thinking, answer=answer)
        assert read_thinking(write_reply(record, "gemex"), record, "gemex").sentences == ("I see a band.",)
    options = ("Rib", "Band")
    several = msgspec.structs.replace(RECORD, kind="multi", options=options, answer=("A",), thinking=thinking)
    assert read_thinking(write_reply(several, "gemex"), several, "gemex").sentences == ("I see a mass.",)


def test_boxes_of_other_findings_stay_and_blanks_between_them_are_no_sentences():
    boxes = tuple(Box(label, (10, 8, 31, 52)) for label in ("Mass", "Rib", "Rib"))
    stages = Stages("The right lung.", "I see air.", "It is a mass.", "So it is (A).")
    record = msgspec.structs.replace(RECORD, references=boxes, stages=stages, answer="A", preamble="This is a film.")
    thinking = read_thinking(write_reply(record, "lvkc"), record, "lvkc")
    assert thinking.sentences == ("This is a film.", "The right lung.", "I see air.")
    assert [thinking.write().count(f'"label": "{label}"') for label in ("Mass", "Rib")] == [0, 2]
    assert turn_claim(thinking).sentences == ("This is a film.", "The right lung.", "I see no air.")


def test_no_thinking_of_replies_that_begin_with_the_answer_are_unread_or_only_conclude():
    assert read_thinking(write_reply(RECORD, "gemex_plain"), RECORD, "gemex_plain") is None
    assert read_thinking("I see air.", RECORD, "gemex") is None
    closed = msgspec.structs.replace(RECORD, kind="closed", options=(), answer="No", thinking="I see no air. So: No.")
    assert read_thinking(write_reply(closed, "gemex"), closed, "gemex") is None


def test_the_first_half_and_a_turned_claim():
    thinking = read_thinking(write_reply(RECORD, "gemex"), RECORD, "gemex")
    assert shorten(thinking).write() == f"<think>{SEEN}</think>\n"
    assert shorten(shorten(thinking)) is None
    in_lines = read_thinking(write_reply(RECORD, "medclm"), RECORD, "medclm")
    nothing = in_lines.keep([None] * len(in_lines.sentences))
    assert nothing.write() == "Reasoning:\n\n"  # no space that a closed vocabulary lacks
    turned = turn_claim(thinking)
    assert turned.sentences == (SEEN.replace("see air", "see no air"), SIZE)
    assert turn_claim(turned).sentences == thinking.sentences
    assert turn_claim(thinking.keep([None, SIZE])).sentences == ("The heart is large.",)
    assert turn_claim(thinking.keep([None, "Air."])) is None
    assert f"{SEEN} {SIZE}" in tell(RECORD, thinking).question


def test_answers_in_words_and_records_that_ask_the_same():
    multi = msgspec.structs.replace(RECORD, kind="multi", answer=("A", "B"))
    swapped = msgspec.structs.replace(RECORD, options=("Pneumothorax", "Edema"), answer="A")
    assert in_words("B", RECORD) == in_words("A", swapped) == {"pneumothorax"}
    assert in_words(("A", "B"), multi) == {"mass", "pneumothorax"}
    assert in_words(None, RECORD) == frozenset()
    assert (can_say({"mass"}, RECORD), can_say({"mass"}, swapped)) == (True, False)
    asked = [
        msgspec.structs.replace(RECORD, kind="closed", options=(), answer="No", topic=topic, question=question)
        for topic, question in (
            ("presence of edema", "Is there edema?"),
            ("presence of edema", "Is edema visible?"),
            ("normality", "Is it normal?"),
            ("normality", "Is it abnormal?"),
        )
    ]
    subjects = list(map(subject_of, asked))
    assert subjects[0] == subjects[1]
    assert len(set(subjects)) == 3
