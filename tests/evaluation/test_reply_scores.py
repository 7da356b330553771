import dataclasses
import math

import hypothesis
import hypothesis.strategies as st
import msgspec
import numpy as np
import pytest
from evaluate_replies.asked import ask

from stepcot_jax.box import Box
from stepcot_jax.evaluation import replies as tested
from stepcot_jax.evaluation.reply_page import make_tables
from stepcot_jax.reasoning.dialects import WRITTEN, write_reply
from stepcot_jax.reasoning.replies import Judged
from stepcot_jax.record import Record
from stepcot_jax.systems.policy_system import PolicySystem

RECORDS, _ = ask(24)
LEAST_V = {"lvkc": 0.97, "medclm": 0.999}  # boxes of a few pixels on a grid of 1000; four decimals
HEART = Record(
    id="1", image="a.png", image_size=(64, 64), patient="p", kind="closed", question="Is the heart enlarged?",
    answer="Yes", references=(Box("Cardiomegaly", (10, 20, 50, 60)),), thinking="It is wide.",
)  # fmt: skip
WHOLE = write_reply(HEART, "gemex")
ALONE = WHOLE[WHOLE.index("<response>") :]
BROKEN = WHOLE.replace("</think>", "")
NAN = math.nan


@pytest.mark.parametrize("dialect", WRITTEN)
def test_perfect_replies_have_full_marks(dialect):
    settings = tested.ScoringSettings(dialect=dialect)
    replies = {record.id: write_reply(record, dialect) for record in RECORDS}
    scores = tested.score_all(RECORDS, replies, settings)
    figures = tested.score_models({"m": tested.as_columns(RECORDS, scores)}, num_resamples=20)["m"]
    for (name, group), interval in figures.items():
        least = LEAST_V.get(dialect, 1.0) if name == "v_score" else 1.0
        assert least <= interval.value <= 1, (name, group)
    assert all(score.problems == () and score.text != "" and score.answer is not None for score in scores)


@hypothesis.given(st.lists(st.text(max_size=200), min_size=4, max_size=4), st.sampled_from(WRITTEN))
@hypothesis.settings(max_examples=100)
def test_any_text_is_scored(texts, dialect):
    for text, record in zip(texts, RECORDS, strict=False):
        for reading in ("strict", "parts"):
            found = tested.score_text(text, record, tested.ScoringSettings(dialect=dialect, reading=reading))
            assert math.isnan(found.v_score) == math.isnan(found.grounding) == (dialect == "plain")
            for value in (found.a_score, found.format, *(found.v_score, found.grounding) * (dialect != "plain")):
                assert 0 <= value <= 1


@pytest.mark.parametrize(
    ("text", "settings", "expected"),
    [
        (BROKEN, {}, (0, 0, 0, 0)),
        (BROKEN, {"reading": "parts"}, (1, 1, 1, 0)),
        (WHOLE[: WHOLE.index("<location>")], {"reading": "parts"}, (1, 0, 0, 0)),
        (WHOLE.replace("[10, 20, 50, 60]", "[10, 20, 50, 50]"), {}, (1, 0.75, 0, 1)),  # IoU 0.75 exactly
        (ALONE, {}, (0, 0, 0, 0)),
        (ALONE, {"with_thinking": False}, (1, 1, 1, 1)),
        (WHOLE, {"with_thinking": False}, (1, 1, 1, 1)),
        *(
            (text, {"with_thinking": False}, (0, 0, 0, 0))
            for text in (ALONE.replace("</answer>", ""), "<think>" + ALONE, "It shows. " + ALONE, BROKEN, "")
        ),
        (ALONE, {"with_thinking": False, "dialect": "gemex_plain"}, (0, 0, 0, 0)),
        (None, {}, (0, 0, 0, 0)),
        (None, {"missing": "skip"}, (NAN, NAN, NAN, NAN)),
    ],
)
def test_what_a_reply_earns(text, settings, expected):
    found = tested.score_text(text, HEART, tested.ScoringSettings(**settings))
    assert (found.a_score, found.v_score, found.grounding, found.format) == pytest.approx(expected, nan_ok=True)
    assert bool(found.problems) == (found.format != 1)


def test_replies_are_counted_by_outcome_and_boxes_by_number():
    two = WHOLE.replace("</location>", "<ref>x</ref><box>[0, 0, 5, 5]</box></location>")
    for unequal, expected in (("penalise", 0.5), ("zero", 0), ("matched", 1)):
        found = tested.score_text(two, HEART, tested.ScoringSettings(unequal_counts=unequal))
        assert (found.v_score, found.grounding) == (expected, 0)
    assert [region.corners for region in found.boxes] == [(10, 20, 50, 60), (0, 0, 5, 5)]
    scores = [tested.score_text(text, HEART, tested.ScoringSettings()) for text in (None, "", WHOLE)]
    assert scores[0].problems == ("no reply",)
    counts = tested.count_replies([HEART] * 3, scores)
    assert counts["closed"] == counts["all"]
    names = ("questions", "missing", "ill_formed", "unread_answers", "unread_boxes", "unscored")
    assert counts["all"] == dict(zip(names, (3, 1, 1, 1, 1, 0), strict=True))


def test_judged_open_answers():
    opened = [each for each in RECORDS if each.kind == "open"][:3]
    settings = tested.ScoringSettings(open_score="relative")
    replies = {each.id: write_reply(each, "gemex") for each in opened[:2]} | {opened[2].id: "unreadable"}
    judged = {opened[0].id: Judged(reference=9, reply=6)}
    scores = tested.score_all(opened, replies, settings, judged=judged)
    assert [score.a_score for score in scores] == pytest.approx([0, NAN, 0], nan_ok=True)
    found = tested.as_columns(opened, scores)
    np.testing.assert_array_equal(found.judged_reply, [6, NAN, NAN])
    figure = tested.score_models({"m": found}, open_score="relative", num_resamples=1)["m"]["a_score", "open"]
    assert figure.value == pytest.approx(6 / 9 / 2)


@pytest.mark.parametrize(
    ("labels", "stated", "kind"),
    [
        (["right lower lung zone"], None, "regions"),
        (["Bilateral Lung", "cardiac region"], None, "regions"),
        (["left lung", "Effusion"], None, "findings"),
        (["left lung mass"], None, "findings"),
        (["left lung"], "findings", "findings"),
        (["Mass"], "of a textbook", "findings"),
        ([], None, ""),
    ],
)
def test_what_references_show(labels, stated, kind):
    boxes = tuple(Box(label, (1, 1, 5, 5)) for label in labels)
    provenance = {} if stated is None else {"references": stated}
    assert tested.reference_kind(msgspec.structs.replace(HEART, references=boxes, provenance=provenance)) == kind


@pytest.mark.parametrize("dialect", ["lvkc", "lvkc_released"])
def test_stages_of_true_replies_are_right_and_of_missing_or_ill_formed_ones_worth_nothing(dialect):
    settings = tested.ScoringSettings(dialect=dialect)
    true = {record.id: write_reply(record, dialect) for record in RECORDS}
    broken = {name: text.rpartition("</")[0] for name, text in true.items()}

    def stages(replies, **changes):
        own = dataclasses.replace(settings, **changes)
        return np.array([score.stages for score in tested.score_all(RECORDS, replies, own)])

    perfect = stages(true)
    assert np.isfinite(perfect).any(axis=0).sum() == (4 if dialect == "lvkc" else 2)
    assert set(perfect[np.isfinite(perfect)].tolist()) == {1.0}
    if dialect == "lvkc":
        assert np.isnan(perfect[:, 3]).tolist() == ["asked" in record.facts for record in RECORDS]
    for worthless in (stages({}), stages(broken), stages({}, reading="parts")):
        np.testing.assert_array_equal(worthless, 0 * perfect)
    assert np.isnan(stages({}, missing="skip")).all()
    np.testing.assert_array_equal(stages(broken, reading="parts")[:, 1], perfect[:, 1])
    first = RECORDS[0].id
    alone = stages({first: true[first]})
    np.testing.assert_array_equal(alone[0], perfect[0])
    np.testing.assert_array_equal(alone[1:], 0 * perfect[1:])
    assert np.isnan([score.stages for score in tested.score_all(RECORDS, {}, tested.ScoringSettings())]).all()


@pytest.mark.parametrize(("number", "v", "score"), [(0, None, 0), (1, 1, 0.5), (4, 0.75, 0.375)])
def test_a_record_without_boxes_has_no_v_in_validation_as_in_the_test_table(number, v, score):
    records = [HEART] * number + [msgspec.structs.replace(HEART, references=())] * (4 - number)
    settings = tested.ScoringSettings("gemex_plain")
    texts = [*(write_reply(record, "gemex_plain").replace("Yes", "No") for record in records[:3]), None]
    scores = [tested.score_text(text, record, settings) for text, record in zip(texts, records, strict=True)]
    figures = tested.prepare_figures(tested.as_columns(records, scores))(np.ones((1, 4)))
    table = tested.summarise(records, {"mine": scores}, settings, num_resamples=2).figures["mine"]
    for name in ("v_score", "grounding"):
        told = [figures[name, "all"][0], table[name, "all"].value] if (name, "all") in figures else []
        assert told == pytest.approx([v, v] if v is not None else [])
        assert ((name, "all") in table) == bool(told)
    found = {"phase": "sft", "a_score": figures["a_score", "mean"][0]}
    found |= {"v_score": figures["v_score", "all"][0]} if v is not None else {}
    assert PolicySystem.evaluate(None, found) == {"sft": score}  # of wrong answers


CUT, BEHIND = "without content: cut while thinking", "cut behind its answer"


@pytest.mark.parametrize(
    ("kind", "dialect", "text", "finish", "unread"),
    [
        ("closed", "gemex", WHOLE, "length", ""),  # cut at its very end
        ("closed", "gemex", f"{WHOLE} But wait", "length", BEHIND),
        ("closed", "gemex", f"{WHOLE} But wait", "stop", None),
        ("closed", "gemex", WHOLE[: WHOLE.index("</think>")], "length", CUT),
        ("closed", "gemex", WHOLE, "content_filter", "filtered"),
        ("closed", "gemex", WHOLE, "refusal", "refused"),
        ("closed", "gemex", "", "stop", "without content"),
        ("closed", "free", "<think>Maybe</think>", "stop", "without content"),
        ("closed", "free", "<think>Maybe <answer>Yes</answer>", "length", CUT),
        ("closed", "free", "", "length", CUT),  # the endpoint keeps thoughts to itself
        ("closed", "gemex", "<think>Maybe</think>\n\n", "length", "without content: cut at the limit of its length"),
        ("closed", "free", "No", "length", ""),
        ("closed", "free", "No, the heart", "length", BEHIND),
        ("single", "free", "**B**", "length", ""),  # a limit of one token
        ("single", "free", "The answer is B", "length", ""),
        ("single", "free", "The answer is B because", "length", BEHIND),
        ("single", "free", "<answer>B</answer>\n", "length", ""),
        ("single", "free", '```json\n{"answer": "B"}\n```', "length", ""),
        ("single", "free", '{"answer": "B"} Hmm', "length", BEHIND),
        ("multi", "free", "A, B", "length", BEHIND),  # more letters may follow
        ("open", "free", "Cardiomegaly", "length", BEHIND),  # so may more words
        ("closed", "medclm", "Answer: Yes", "refusal", "refused"),
    ],
)
@pytest.mark.parametrize("thinking", [HEART.thinking, ""])
def test_a_reply_that_was_cut_refused_or_filtered_has_no_answer(kind, dialect, text, finish, unread, thinking):
    answers = {"single": "B", "multi": ("A", "B"), "open": "Cardiomegaly", "closed": "Yes"}
    options = ("Heart", "Lung", "Spine") if kind in ("single", "multi") else ()
    record = msgspec.structs.replace(HEART, kind=kind, options=options, answer=answers[kind], thinking=thinking)
    found = tested.score_text(text, record, tested.ScoringSettings(dialect=dialect), finish=finish)
    if unread is not None:
        assert found.unread_answer == unread
    assert (found.answer is None) == bool(found.unread_answer)
    assert (found.boxes == ()) == (bool(found.unread_boxes) or math.isnan(found.v_score))
    assert not found.unread_answer or (found.a_score, found.format) == (0, 0)


@pytest.mark.parametrize("dialect", ["plain", "free"])
@pytest.mark.parametrize("kind", ["open", "single", "closed"])
def test_a_refusal_in_words_is_counted_as_one_and_a_denied_finding_is_not(kind, dialect):
    changes = {"open": {"answer": "Mass"}, "single": {"answer": "B", "options": ("Heart", "Lung")}, "closed": {}}
    record = msgspec.structs.replace(HEART, kind=kind, **changes[kind])
    for text, refused in (
        ("I\u2019m sorry, but I can't help with that.", True), ("There was no image provided.", True),
        ("I cannot answer without an image.", True), ("As an AI model, I only guess.", True), ("无法判断", True),
        ("I cannot see any fracture.", False), ("No image abnormality", False), ("No x-ray", False), ("Mass", False),
        ("I cannot determine the type, but it is a mass", False), ("", False),
    ):  # fmt: skip
        found = tested.score_text(text, record, tested.ScoringSettings(dialect=dialect))
        assert (found.unread_answer == "refused") == refused, text
        assert not refused or (found.answer, found.a_score) == (None, 0)


def test_refused_filtered_empty_and_cut_replies_are_counted_apart():
    ends = ("refusal", "refusal", "content_filter", "length", "stop")
    scores = [
        tested.score_text(text, HEART, tested.ScoringSettings(), finish=finish)
        for text, finish in zip((WHOLE, "", WHOLE, "<think>Maybe", WHOLE), ends, strict=True)
    ]
    table = make_tables(tested.summarise([HEART] * 5, {"mine": scores}, tested.ScoringSettings(), num_resamples=5))[0]
    counts = {column.heading: cell for column, cell in zip(table.columns, table.rows[0], strict=True)}
    assert [counts[name] for name in ("unread answers", "refused", "filtered", CUT)] == [4, 2, 1, 1]
    assert counts["unread boxes"] == 4
    assert "without content" not in counts
