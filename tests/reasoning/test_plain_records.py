"""Questions as people have them: no box and no size, closed answers in words, several right answers, any options."""

import math

import msgspec
import numpy as np
import pytest

from stepcot_jax.box import Box
from stepcot_jax.data.questions.check_examples import is_wrong
from stepcot_jax.data.questions.record_files import read_vqa_records, write_vqa_records
from stepcot_jax.data.questions.vqa_dataset import _without_answer, scale_record
from stepcot_jax.evaluation.audits import perturb, perturb_records
from stepcot_jax.evaluation.replies import ScoringSettings, as_columns, prepare_figures, score_all
from stepcot_jax.evaluation.statistics import count_once
from stepcot_jax.host.errors import BadInput
from stepcot_jax.reasoning.dialects import interpret_answer, read_reply
from stepcot_jax.record import Record
from stepcot_jax.rewards.answers import answer_reward, why_unread
from stepcot_jax.run.scored_baseline import fit_baseline, score_baseline


def ask(answer, kind="closed", name="1", **fields):
    fields = {"question": "Which side?", "split": "train", "image": f"{name}.png", **fields}
    return Record(id=name, patient=f"p{name}", kind=kind, answer=answer, **fields)


TEN = tuple(f"Finding {number}" for number in range(10))
MIXED = [
    ask("yes.", name="1", question="Is there a mass?"),
    ask("Left", name="2", synonyms=("Left side",), modality="CT", organ="abdomen"),
    ask("CT", name="3", question="CT or MRI?"),
    ask("Pleural effusion", "open", name="4", synonyms=("Fluid",)),
    ask("finding 9", "single", name="5", options=TEN),
    ask("B", "single", name="6", options=("A. Lung", "B. Liver")),
    ask(("Lung", "C"), "multi", name="7", options=("Lung", "Liver", "Spleen")),
]


def test_the_forms_of_answers_and_their_round_trip_through_a_file(tmp_path):
    answers = [record.answer for record in MIXED]
    assert answers == ["Yes", "Left", "CT", "Pleural effusion", "J", "B", ("A", "C")]
    in_words = [record.is_answered_in_words for record in MIXED]
    assert in_words == [False, True, True, True, False, False, False]
    write_vqa_records(tmp_path / "records.jsonl", MIXED)
    assert list(read_vqa_records(tmp_path).records) == MIXED
    line = msgspec.json.decode((tmp_path / "records.jsonl").read_bytes().split(b"\n")[1])
    short = {name: line[name] for name in ("id", "image_path", "patient_id", "kind", "question", "answer")}
    (tmp_path / "records.jsonl").write_bytes(msgspec.json.encode(short))
    (read,) = read_vqa_records(tmp_path).records
    assert (read.image_size, read.answer, read.references) == ((0, 0), "Left", ())
    with_box = short | {"references": [{"label": "mass", "box": [1, 1, 9, 9]}]}
    (tmp_path / "records.jsonl").write_bytes(msgspec.json.encode(with_box))
    with pytest.raises(BadInput, match=r"line 1, image_size: \[0, 0\] is not \[width, height\] of 1 to "):
        read_vqa_records(tmp_path)


def test_options_with_equal_texts_are_named_by_letters():
    with pytest.raises(BadInput, match=r"^choices: .* must be distinct and not empty; B and D are equal$"):
        ask("A", "single", options=("Lung", "Left  lung", "Liver", "left lung"))


@pytest.mark.parametrize(
    ("reply", "worth"),
    [("left", 1.0), ("Left.", 1.0), ("The answer is: left", 1.0), ("left side", 1.0), ("Right", 0.0), ("Yes", 0.0),
     ("on the left", 0.0), ("", 0.0)],
)  # fmt: skip
def test_a_closed_answer_in_words_is_right_if_equal_when_folded(reply, worth):
    record, reply = MIXED[1], read_reply(f"<answer> {reply} <reason> r <location> []", "gemex_plain")
    for how in ("exact", "judge", "token_f1", "equal"):
        assert answer_reward(reply, record, open_answer=how, choice_reading="strict") == worth
    expected = "<answer> is empty" if not reply.answer else ""
    assert why_unread(reply, record) == (expected, None)


def test_mean_a_of_mixed_kinds_by_hand_and_no_v_without_a_box():
    said = dict(zip("1234567", ("yes", "left", "MRI", "fluid", "J", "A", "A, C"), strict=True))
    right = {"closed": [1, 1, 0], "open": [1], "single": [1, 0], "multi": [1]}
    settings = ScoringSettings(dialect="free")
    scores = score_all(MIXED, said, settings)
    columns = as_columns(MIXED, scores)
    figures = prepare_figures(columns)(count_once(len(MIXED)))
    for kind, values in right.items():
        assert figures["a_score", kind][0] == pytest.approx(np.mean(values))
    by_hand = np.mean([np.mean(values) for values in right.values()])
    assert figures["a_score", "mean"][0] == pytest.approx(by_hand)
    assert not [key for key in figures if key[0] in ("v_score", "grounding")]
    assert ("format", "all") in figures
    assert all(math.isnan(score.v_score) for score in scores)


def test_the_majority_of_answers_in_words_is_not_that_of_yes_and_no():
    train = [*(ask("Yes", name=f"y{k}") for k in range(5)), *(ask("Left", name=f"l{k}") for k in range(2))]
    fitted = fit_baseline(train)
    assert [fitted.answer(ask(answer)).answer for answer in ("No", "Right")] == ["Yes", "Left"]
    scores, _ = score_baseline(
        [*train], [ask("No"), ask("left"), ask("A", "single", options=("a", "b"))], ScoringSettings()
    )
    assert [score.a_score for score in scores][:2] == [0.0, 1.0]
    assert math.isnan(scores[2].a_score)


def test_a_withheld_answer_keeps_what_the_prompt_needs_and_no_host_of_a_lesion():
    left = _without_answer(MIXED[1])
    assert (left.answer, left.synonyms, left.organ, left.modality) == ("withheld", (), "abdomen", "CT")
    hosted = ask("Left", modality="xray", organ="left lung", lesion="mass")
    assert (_without_answer(hosted).organ, _without_answer(hosted).lesion) == ("", "")
    assert [_without_answer(record).is_answered_in_words for record in MIXED] == [
        record.is_answered_in_words for record in MIXED
    ]


def test_what_consumes_records_copes_with_words_and_with_an_unknown_size():
    assert scale_record(MIXED[1], (64, 64)).image_size == (64, 64)
    assert [perturb(MIXED[1], seed=seed, round_number=1) is MIXED[1] for seed in range(8)] == [True] * 8
    assert [record.id for record in perturb_records(MIXED, seed=0, round_number=1)] == ["1", "5", "6"]
    assert is_wrong(MIXED[2], MIXED[1])
    assert is_wrong(MIXED[0], MIXED[1])
    assert not is_wrong(ask("LEFT  side"), MIXED[1])
    stages = "<VISUAL>v</VISUAL><KNOWLEDGE>k</KNOWLEDGE><CON>c</CON><ANSWER>Left</ANSWER>"
    reply = read_reply('<LOC>here {"box_2d": [0, 0, 500, 500], "label": "m"}</LOC>' + stages, "lvkc")
    assert interpret_answer(reply, MIXED[1]) == "left"
    assert reply.boxes((0, 0)).tolist() == [[0, 0, 500, 500]]
    box = Box("mass", (1.0, 1.0, 9.0, 9.0))
    train = [
        msgspec.structs.replace(ask("Left", name=f"b{k}"), image_size=(10, 10), references=(box,)) for k in range(3)
    ]
    assert fit_baseline(train).answer(MIXED[1]).references == ()
