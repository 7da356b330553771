"""Dialect "plain": what is well formed, what real replies may add, its prompts, and pictures in words."""

import math

import msgspec
import pytest
from hypothesis import given
from reasoning_records import make_record, records, texts

from stepcot_jax.data.questions.check_examples import draw_check_examples
from stepcot_jax.evaluation.replies import ScoringSettings, choose_dialect, score_text
from stepcot_jax.host.errors import BadInput
from stepcot_jax.reasoning.dialects import answer_start, interpret_answer, read_reply, write_question, write_reply
from stepcot_jax.reasoning.imaging import name_picture
from stepcot_jax.record import Record
from stepcot_jax.rewards.answers import why_unread

LEFT = Record(id="1", image="1.png", patient="p", kind="closed", question="Left or right?", answer="Left")


@pytest.mark.parametrize(
    ("text", "answer", "problem"),
    [
        ("Left", "Left", ""), (" left.\n", "left.", ""), ("<think>It is.</think>\nLeft", "Left", ""),
        ("<think>a\n\nb</think>Left<|im_end|>", "Left", ""), ("Answer: Left", "Left", ""),
        ("<think>a</think>\n<answer>Left</answer>", "Left", ""), ("\\boxed{Left}", "\\boxed{Left}", ""),
        ("", None, "the answer is empty"), ("<think>a</think> ", None, "the answer is empty"),
        ("<think></think>Left", "Left", "<think> is empty"), ("a</think>Left", "Left", "not one <think>"),
        ("Left <think>a</think>", None, "not one <think>"), ("<think>a", None, "not one <think>"),
        ("<think>a</think><think>b</think>Left", "Left", "not one <think>"),
        ("<answer>Left</answer> or so", None, "the answer holds a tag"),
        ("<response><answer>Left</answer></response>", None, "the answer holds a tag"),
    ],
)  # fmt: skip
def test_replies(text, answer, problem):
    reply = read_reply(text, "plain")
    assert reply.answer == answer
    assert [found[: len(problem)] for found in reply.problems[:1]] == [problem] * bool(problem)
    if answer and not problem:
        assert interpret_answer(reply, LEFT) == "left"
        assert score_text(text, LEFT, ScoringSettings("plain")).a_score == 1


@given(record=records(), thinking=texts)
def test_thinking_is_optional_and_the_answer_stands_alone_behind_it(record, thinking):
    for changed in (msgspec.structs.replace(record, thinking=text, references=()) for text in ("", thinking)):
        try:
            reply = write_reply(changed, "plain")
        except BadInput:
            continue
        read = read_reply(reply, "plain")
        assert (read.problems, read.thinking, read.references) == ((), changed.thinking.strip(), ())
        assert reply[answer_start(reply, "plain") :] == read.answer
        if not record.is_answered_in_words:
            assert interpret_answer(read, changed) == record.answer


def test_no_box_is_asked_for_even_where_the_record_has_one():
    record = make_record("closed")
    score = score_text("Yes", record, ScoringSettings("plain"))
    assert (score.a_score, score.format) == (1, 1)
    assert math.isnan(score.v_score)
    assert why_unread(read_reply("Yes", "plain"), record) == ("", None)


def test_plain_is_never_chosen_for_replies_of_unknown_form():
    assert choose_dialect(["Left", "<think>a</think>Left"], ScoringSettings()) == "free"


def test_prompts_name_the_form_of_the_answer_and_the_picture_where_the_record_does():
    asked = {
        ("Left", ""): "a word or a short text", ("yes", ""): "Yes or No", ("Left", "think"): "a word or a short text",
    }  # fmt: skip
    for (answer, think), form in asked.items():
        record = msgspec.structs.replace(LEFT, answer=answer, modality="CT", organ="Abdomen")
        prompt = write_question(record, "plain", with_thinking=bool(think))
        assert prompt.startswith("This is a CT of the abdomen.\nLeft or right?\nThis is a closed-ended question. ")
        assert form in prompt
        assert ("think" in prompt) == bool(think)
        assert "box" not in prompt
    bare = write_question(LEFT, "gemex")
    for fields in ({"modality": "xray"}, {"modality": "xray", "organ": "left lung", "lesion": "Mass"}):
        assert write_question(msgspec.structs.replace(LEFT, **fields), "gemex") == bare  # as before, and no answer
    named = write_question(msgspec.structs.replace(LEFT, modality="CT", organ="liver", lesion="Mass"), "gemex")
    assert named == f"This is a CT.\n{bare}"


@pytest.mark.parametrize(
    ("modality", "organ", "words"),
    [
        ("X-Ray", "Chest", "a chest radiograph"), ("xray", "Left lung", "a chest radiograph"),
        ("X-Ray", "hand", "a radiograph of the hand"), ("CT(Computed Tomography)", "Lung", "a CT of the lung"),
        ("MR (Mag-netic Resonance Imaging)", "Brain_Tissue", "an MRI of the brain tissue"),
        ("OCT (Optical Coherence Tomography", "", "an OCT image"), ("Fundus Photography", "", "a fundus photograph"),
        ("Microscopy Images", "", "a microscopy image"), ("Dermoscopy", "skin", "a dermoscopy image of the skin"),
        ("ultrasound", "ABD", "an ultrasound image of the abdomen"), ("Endoscopy", "", "an endoscopy image"),
        ("SPECT", "heart", "a SPECT image of the heart"), ("", "", "a picture"),
    ],
)  # fmt: skip
def test_pictures_in_words(modality, organ, words):
    assert name_picture(modality, organ) == words


def test_self_checks_of_plain_replies_name_no_place():
    records = [msgspec.structs.replace(LEFT, id=str(k), answer=side) for k, side in enumerate(("Left", "Right") * 8)]
    examples = draw_check_examples(records, range(16), share=1.0, seed=0, dialect="plain")
    assert len(examples) == 16
    for index, example in examples.items():
        assert records[example.wrong].answer != records[index].answer
        assert records[example.wrong].answer in example.check
        assert "place" not in example.check
