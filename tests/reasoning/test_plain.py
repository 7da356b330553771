"""Questions as people have them: answers in words, no box and no size; their scores, and the dialect "plain"."""

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given
from reasoning_records import make_record, records, texts

from stepcot_jax.box import Box
from stepcot_jax.data.questions.check_examples import draw_check_examples
from stepcot_jax.data.questions.record_files import read_vqa_records, write_vqa_records
from stepcot_jax.data.questions.vqa_dataset import _without_answer, scale_record
from stepcot_jax.evaluation.audits import perturb_records
from stepcot_jax.evaluation.replies import ScoringSettings, as_columns, choose_dialect, prepare_figures, score_all
from stepcot_jax.evaluation.scored_baseline import fit_baseline, score_baseline
from stepcot_jax.evaluation.statistics import count_once
from stepcot_jax.host.errors import BadInput
from stepcot_jax.reasoning.dialects import answer_start, read_reply, write_question, write_reply
from stepcot_jax.record import Record
from stepcot_jax.rewards.answers import answer_reward, why_unread


def ask(answer, kind="closed", name="1", **fields):
    fields = {"question": "Left or right?", "split": "train", "image": f"{name}.png", **fields}
    return Record(id=name, patient=f"p{name}", kind=kind, answer=answer, **fields)


MIXED = [
    ask("yes.", name="1", question="Is there a mass?"),
    ask("Left", name="2", synonyms=("Left side",), modality="CT", organ="Abdomen"),
    ask("CT", name="3", question="CT or MRI?"),
    ask("Pleural effusion", "open", name="4", synonyms=("Fluid",)),
    ask("finding 9", "single", name="5", options=tuple(f"Finding {number}" for number in range(10))),
    ask("B", "single", name="6", options=("A. Lung", "B. Liver")),
    ask(("Lung", "C"), "multi", name="7", options=("Lung", "Liver", "Spleen")),
]
LEFT = MIXED[1]


def test_the_forms_of_answers_and_their_round_trip_through_a_file(tmp_path):
    assert [record.answer for record in MIXED] == ["Yes", "Left", "CT", "Pleural effusion", "J", "B", ("A", "C")]
    write_vqa_records(tmp_path / "records.jsonl", MIXED)
    assert list(read_vqa_records(tmp_path).records) == MIXED
    line = msgspec.json.decode((tmp_path / "records.jsonl").read_bytes().split(b"\n")[1])
    short = {name: line[name] for name in ("id", "image_path", "patient_id", "kind", "question", "answer")}
    (tmp_path / "records.jsonl").write_bytes(msgspec.json.encode(short))
    (read,) = read_vqa_records(tmp_path).records
    assert (read.image_size, read.answer, read.references) == ((0, 0), "Left", ())


def test_a_closed_answer_in_words_is_right_if_equal_when_folded_by_any_rule():
    right = ("left", "Left.", "The answer is: left", "left side", "\\boxed{Left}")
    for text in (*right, "Right", "Yes", "on the left"):
        reply = read_reply(text, "plain")
        for how in ("exact", "judge", "token_f1", "equal"):
            assert answer_reward(reply, LEFT, open_answer=how, choice_reading="strict") == (text in right)
        assert why_unread(reply, LEFT) == ("", None)


@pytest.mark.parametrize("dialect", ["plain", "free"])
def test_mean_a_of_mixed_kinds_by_hand_and_no_v_without_a_box(dialect):
    said = dict(zip("1234567", ("yes", "left", "MRI", "fluid", "J", "A", "A, C"), strict=True))
    right = {"closed": [1, 1, 0], "open": [1], "single": [1, 0], "multi": [1]}
    scores = score_all(MIXED, said, ScoringSettings(dialect))
    figures = prepare_figures(as_columns(MIXED, scores))(count_once(len(MIXED)))
    by_hand = {kind: np.mean(values) for kind, values in right.items()}
    by_hand |= {"mean": np.mean(list(by_hand.values()))}
    assert {group: value[0] for (name, group), value in figures.items() if name == "a_score"} == pytest.approx(by_hand)
    assert {name for name, _ in figures} == {"a_score", "format"}


def test_the_majority_of_answers_in_words_is_not_that_of_yes_and_no():
    box = (Box("mass", (1.0, 1.0, 9.0, 9.0)),)
    train = [ask("Yes", name=f"y{k}", references=box, image_size=(10, 10)) for k in range(5)] + [LEFT, LEFT]
    asked = [ask("No"), ask("left"), ask("A", "single", options=("a", "b"))]
    assert [fit_baseline(train).answer(record).answer for record in asked[:2]] == ["Yes", "Left"]
    assert fit_baseline(train).answer(asked[0]).references == ()  # its size is unknown
    scores = [score.a_score for score in score_baseline(train, asked, ScoringSettings())[0]]
    assert scores == pytest.approx([0, 1, math.nan], nan_ok=True)


def test_what_consumes_records_copes_with_words_and_with_an_unknown_size():
    assert scale_record(LEFT, (64, 64)).image_size == (64, 64)
    assert [record.id for record in perturb_records(MIXED, seed=0, round_number=1)] == ["1", "5", "6"]
    for record in (*MIXED, ask("Left", modality="xray", organ="left lung", lesion="mass")):
        bare = _without_answer(record)
        assert write_question(bare, "plain") == write_question(record, "plain")
        assert (bare.synonyms, bare.lesion) == ((), "")
        assert bare.organ in ("", "Abdomen")  # never a lesion's host
    reply = read_reply('<LOC>l {"box_2d": [0, 0, 500, 500], "label": "m"}</LOC>', "lvkc")
    assert reply.boxes((0, 0)).tolist() == [[0, 0, 500, 500]]
    sides = [ask(("Left", "Right")[k % 2], name=str(k)) for k in range(16)]
    for index, example in draw_check_examples(sides, range(16), share=1.0, seed=0, dialect="plain").items():
        assert sides[example.wrong].answer != sides[index].answer
        assert sides[example.wrong].answer in example.check
        assert "place" not in example.check


@pytest.mark.parametrize(
    ("text", "answer", "problem"),
    [
        (" left.\n", "left.", ""), ("<think>a\n\nb</think>Left<|im_end|>", "Left", ""), ("Answer: Left", "Left", ""),
        ("<think>a</think>\n<answer>Left</answer>", "Left", ""), ("", None, "the answer is empty"),
        ("<think>a</think> ", None, "the answer is empty"), ("<think></think>Left", "Left", "<think> is empty"),
        ("a</think>Left", "Left", "not one <think>"), ("Left <think>a</think>", None, "not one <think>"),
        ("<think>a", None, "not one <think>"), ("<think>a</think><think>b</think>Left", "Left", "not one <think>"),
        ("<answer>Left</answer> or so", None, "the answer holds a tag"), ("<CON>Left", None, "the answer holds a tag"),
    ],
)  # fmt: skip
def test_plain_replies(text, answer, problem):
    reply = read_reply(text, "plain")
    assert reply.answer == answer
    assert [found[: len(problem)] for found in reply.problems[:1]] == [problem] * bool(problem)


@given(record=records(), thinking=texts)
def test_thinking_is_optional_and_the_answer_stands_alone_behind_it(record, thinking):
    for changed in (msgspec.structs.replace(record, thinking=text) for text in ("", thinking)):
        try:
            reply = write_reply(changed, "plain")
        except BadInput:
            continue
        read = read_reply(reply, "plain")
        assert (read.problems, read.thinking, read.references) == ((), changed.thinking.strip(), ())
        assert reply[answer_start(reply, "plain") :] == read.answer
        assert why_unread(read, record)[1] is None  # no box is asked for, even where the record has one


def test_prompts_name_the_form_of_the_answer_and_the_picture_where_the_record_does():
    for answer, form in (("Left", "a word or a short text"), ("yes", "Yes or No")):
        prompt = write_question(ask(answer, modality="CT", organ="Abdomen"), "plain", with_thinking=False)
        assert prompt.startswith("This is a CT of the abdomen.\nLeft or right?\nThis is a closed-ended question. ")
        assert form in prompt
    bare = write_question(make_record(), "gemex")
    for fields in ({"modality": "xray"}, {"modality": "xray", "organ": "left lung", "lesion": "Mass"}):
        assert write_question(make_record(**fields), "gemex") == bare  # as before, and no answer
    assert write_question(make_record(modality="CT", organ="liver", lesion="Mass"), "gemex") == f"This is a CT.\n{bare}"
    assert choose_dialect(["Left", "<think>a</think>Left"], ScoringSettings()) == "free"  # never plain
