import dataclasses
import math

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from evaluate_replies.asked import ask

from stepcot_jax.box import Box
from stepcot_jax.evaluation.replies import (
    ScoringSettings,
    as_columns,
    count_replies,
    reference_kind,
    score_all,
    score_models,
    score_text,
)
from stepcot_jax.reasoning.dialects import DIALECTS, write_reply
from stepcot_jax.record import Record
from stepcot_jax.rewards.answers import Judged

RECORDS, _ = ask(24)
LEAST_V = {"lvkc": 0.97, "medclm": 0.999}  # boxes of a few pixels on a grid of 1000; four decimals

HEART = Record(
    id="1", image="a.png", image_size=(64, 64), patient="p", kind="closed", question="Is the heart enlarged?",
    answer="Yes", references=(Box("Cardiomegaly", (10, 20, 50, 60)),), thinking="It is wide.",
)  # fmt: skip
WHOLE = write_reply(HEART, "gemex")


@pytest.mark.parametrize("dialect", DIALECTS)
def test_perfect_replies_have_full_marks(dialect):
    settings = ScoringSettings(dialect=dialect)
    replies = {record.id: write_reply(record, dialect) for record in RECORDS}
    scores = score_all(RECORDS, replies, settings)
    figures = score_models({"m": as_columns(RECORDS, scores)}, num_resamples=20)["m"]
    for (name, group), interval in figures.items():
        least = LEAST_V.get(dialect, 1.0) if name == "v_score" else 1.0
        assert least <= interval.value <= 1, (name, group)
    assert all(score.problems == () and score.text != "" for score in scores)
    assert [score.answer for score in scores if score.answer is None] == []


@hypothesis.given(st.lists(st.text(max_size=200), min_size=4, max_size=4), st.sampled_from(DIALECTS))
@hypothesis.settings(max_examples=100)
def test_any_text_is_scored(texts, dialect):
    for text, record in zip(texts, RECORDS, strict=False):
        for reading in ("strict", "parts"):
            found = score_text(text, record, ScoringSettings(dialect=dialect, reading=reading))
            for value in (found.a_score, found.v_score, found.grounding, found.format):
                assert 0 <= value <= 1


def test_a_reply_that_is_not_well_formed_earns_nothing_unless_its_parts_are_read():
    broken = WHOLE.replace("</think>", "")
    strict = score_text(broken, HEART, ScoringSettings())
    assert (strict.a_score, strict.v_score, strict.grounding, strict.format) == (0, 0, 0, 0)
    assert strict.problems
    parts = score_text(broken, HEART, ScoringSettings(reading="parts"))
    assert (parts.a_score, parts.v_score, parts.grounding, parts.format) == (1, 1, 1, 0)
    no_boxes = score_text(WHOLE[: WHOLE.index("<location>")], HEART, ScoringSettings(reading="parts"))
    assert (no_boxes.a_score, no_boxes.v_score, no_boxes.grounding, no_boxes.format) == (1, 0, 0, 0)


def test_boxes_by_hand():
    near = WHOLE.replace("[10, 20, 50, 60]", "[10, 20, 50, 50]")  # IoU 0.75 exactly
    found = score_text(near, HEART, ScoringSettings())
    assert (found.v_score, found.grounding, found.a_score) == (0.75, 0, 1)
    two = WHOLE.replace("</location>", "<ref>x</ref><box>[0, 0, 5, 5]</box></location>")
    for unequal, expected in (("penalise", 0.5), ("zero", 0), ("matched", 1)):
        found = score_text(two, HEART, ScoringSettings(unequal_counts=unequal))
        assert (found.v_score, found.grounding) == (expected, 0)
    assert [region.corners for region in found.boxes] == [(10, 20, 50, 60), (0, 0, 5, 5)]


def test_replies_of_models_that_were_trained_without_thinking():
    alone = WHOLE[WHOLE.index("<response>") :]
    assert score_text(alone, HEART, ScoringSettings()).a_score == 0
    found = score_text(alone, HEART, ScoringSettings(with_thinking=False))
    assert (found.a_score, found.v_score, found.format, found.problems) == (1, 1, 1, ())
    with_it = score_text(WHOLE, HEART, ScoringSettings(with_thinking=False))
    assert (with_it.format, with_it.a_score) == (1, 1)
    broken = (
        alone.replace("</answer>", ""),
        "<think>" + alone,
        "It shows. " + alone,
        WHOLE.replace("</think>", ""),
        "",
    )
    for text in broken:
        found = score_text(text, HEART, ScoringSettings(with_thinking=False))
        assert (found.a_score, found.v_score, found.format) == (0, 0, 0), text
        assert found.problems
    plain = ScoringSettings(dialect="gemex_plain", with_thinking=False)
    assert score_text(alone, HEART, plain).format == 0


def test_missing_replies():
    wrong = score_text(None, HEART, ScoringSettings())
    assert (wrong.a_score, wrong.v_score, wrong.format, wrong.problems) == (0, 0, 0, ("no reply",))
    skipped = score_text(None, HEART, ScoringSettings(missing="skip"))
    assert math.isnan(skipped.a_score)
    assert math.isnan(skipped.format)
    scores = [wrong, score_text("", HEART, ScoringSettings()), score_text(WHOLE, HEART, ScoringSettings())]
    counts = count_replies([HEART] * 3, scores)
    assert counts["closed"] == counts["all"]
    assert counts["all"] == {"questions": 3, "missing": 1, "ill_formed": 1, "without_answer": 1, "unscored": 0}


def test_judged_open_answers():
    opened = [each for each in RECORDS if each.kind == "open"][:3]
    settings = ScoringSettings(open_score="relative")
    replies = {each.id: write_reply(each, "gemex") for each in opened[:2]} | {opened[2].id: "unreadable"}
    judged = {opened[0].id: Judged(reference=9, reply=6)}
    scores = score_all(opened, replies, settings, judged=judged)
    assert [score.a_score for score in scores] == pytest.approx([0, math.nan, 0], nan_ok=True)
    found = as_columns(opened, scores)
    np.testing.assert_array_equal(found.judged_reply, [6, math.nan, math.nan])
    figure = score_models({"m": found}, open_score="relative", num_resamples=1)["m"]["a_score", "open"]
    assert figure.value == pytest.approx(6 / 9 / 2)


@pytest.mark.parametrize(
    ("labels", "stated", "kind"),
    [
        (["right lower lung zone"], None, "regions"),
        (["Bilateral Lung", "cardiac region"], None, "regions"),
        (["left hilar structures", "svc", "trachea", "abdomen", "spine"], None, "regions"),
        (["Effusion"], None, "findings"),
        (["left lung", "Effusion"], None, "findings"),
        (["left lung mass"], None, "findings"),
        (["left lung"], "findings", "findings"),
        (["left lung", "Mass"], "both", "both"),
        (["Mass"], "of a textbook", "findings"),
        ([], None, ""),
    ],
)
def test_what_references_show(labels, stated, kind):
    boxes = tuple(Box(label, (1, 1, 5, 5)) for label in labels)
    provenance = {} if stated is None else {"references": stated}
    record = Record(
        id="1", image="a.png", image_size=(64, 64), patient="p", kind="closed", question="Is it?", answer="No",
        references=boxes, provenance=provenance,
    )  # fmt: skip
    assert reference_kind(record) == kind


def test_stages_of_true_replies_are_right():
    scores = score_all(
        RECORDS, {record.id: write_reply(record, "lvkc") for record in RECORDS}, ScoringSettings(dialect="lvkc")
    )
    stages = np.array([score.stages for score in scores])
    assert set(stages[~np.isnan(stages)].tolist()) == {1.0}
    assert np.isnan(stages[:, 3]).tolist() == ["asked" in record.facts for record in RECORDS]


@pytest.mark.parametrize("dialect", ["lvkc", "lvkc_released"])
def test_stages_of_missing_and_of_ill_formed_replies_are_worth_nothing(dialect):
    settings = ScoringSettings(dialect=dialect)
    records = RECORDS
    true = {record.id: write_reply(record, dialect) for record in records}
    broken = {name: text.rpartition("</")[0] for name, text in true.items()}

    def stages(replies, **changes):
        own = dataclasses.replace(settings, **changes)
        return np.array([score.stages for score in score_all(records, replies, own)])

    perfect = stages(true)
    named = 4 if dialect == "lvkc" else 2
    assert np.isfinite(perfect).any(axis=0).sum() == named
    assert set(perfect[np.isfinite(perfect)].tolist()) == {1.0}
    for worthless in (stages({}), stages(broken), stages({}, reading="parts")):
        np.testing.assert_array_equal(worthless, 0 * perfect)
    assert np.isnan(stages({}, missing="skip")).all()
    parts = stages(broken, reading="parts")
    np.testing.assert_array_equal(parts[:, 1], perfect[:, 1])
    first = records[0].id
    alone = stages({first: true[first]})
    np.testing.assert_array_equal(alone[0], perfect[0])
    np.testing.assert_array_equal(alone[1:], 0 * perfect[1:])
    assert np.isnan([score.stages for score in score_all(records, {}, ScoringSettings())]).all()
