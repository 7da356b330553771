import dataclasses
import math

import pytest
from reasoning_records import make_record
from refusals import refuse

from stepcot_jax.box import Box
from stepcot_jax.reasoning.dialects import DIALECTS, read_reply, write_reply
from stepcot_jax.reasoning.replies import Judged, Reply
from stepcot_jax.rewards.presets import PRESETS, Rewards, RewardSettings, reward

A = (0, 0, 100, 100)
RECORD = make_record(references=(Box("lung", A),))


def reply_of(answer="Yes", boxes=(A,), problems=(), **fields):
    references = None if boxes is None else tuple(Box("", box) for box in boxes)
    return Reply("lvkc_released", answer, references, problems=problems, **fields)


WRONG_BOX = ((0, 0, 100, 50),)


@pytest.mark.parametrize(
    ("preset", "reply", "expected"),
    [
        ("gemex", reply_of(), (1, 1, 1, 2)),
        ("gemex", reply_of("No"), (0, 1, 1, 1)),
        ("gemex", reply_of(boxes=WRONG_BOX), (1, 0, 1, 1)),
        ("gemex", reply_of(boxes=(A, A)), (1, 0, 1, 1)),
        ("gemex", reply_of(problems=("x",)), (0, 0, 0, 0)),
        ("paper", reply_of("No"), (0, 1, 1, 0.1)),
        ("paper", reply_of(boxes=()), (1, 0, 1, 1)),
        ("paper", reply_of(problems=("x",)), (1, 1, 0, 0.9)),  # the answer can be read
        ("paper", reply_of(None, problems=("x",)), (0, 1, 0, 0)),
        ("released", reply_of(), (1, 1, 1, 1)),
        ("released", reply_of("No"), (0, 1, 1, 0.4)),
        ("released", reply_of("Yes, probably"), (0, 1, 1, 0.4)),
        ("released", reply_of(boxes=WRONG_BOX), (1, 0.5, 1, 0.85)),
        ("released", reply_of(boxes=(A, A)), (1, 0.5, 1, 0)),  # another number of boxes
        ("released", reply_of(boxes=()), (1, 0, 1, 0)),
        ("released", reply_of(None), (0, 1, 1, 0)),
        ("released", reply_of(problems=("x",)), (0, 0, 0, 0)),
        ("released", reply_of(stages={"conclusion": ""}), (1, 1, 1, 0)),
    ],
)
def test_presets_by_hand(preset, reply, expected):
    found = reward(reply, RECORD, PRESETS[preset])
    assert (found.answer, found.grounding, found.format, found.total) == pytest.approx(expected)
    assert found.consistency == 0


def test_released_without_boxes():
    """Boxes are required of records with references only; an empty side is worth 0."""
    record = make_record(references=())
    assert reward(reply_of(boxes=()), record, PRESETS["released"]).total == pytest.approx(0.7)
    assert reward(reply_of(), record, PRESETS["released"]).total == pytest.approx(0.7)
    assert reward(reply_of(boxes=()), record, PRESETS["gemex"]).total == 2


def test_published_weights():
    weights = {
        name: (preset.answer_weight, preset.grounding_weight, preset.format_weight, preset.consistency_weight)
        for name, preset in PRESETS.items()
    }
    assert weights == {"gemex": (1, 1, 0, 0), "paper": (0.9, 0, 0.1, 0), "released": (0.6, 0.3, 0.1, 0)}
    assert RewardSettings() == PRESETS["gemex"]
    record = make_record("open", references=RECORD.references, synonyms=("fluid",))
    assert reward(reply_of("Fluid"), record, PRESETS["released"]).total == pytest.approx(0.4)  # takes no synonym
    assert reward(reply_of("Fluid"), record, PRESETS["gemex"]).total == 2


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("kind", ["open", "closed", "single", "multi"])
def test_a_records_own_reply_earns_all(dialect, kind):
    record = make_record(kind)
    text = write_reply(record, dialect)
    ill_formed = read_reply(text.replace("nswer", "").replace("NSWER", "").replace("CON", ""), dialect)
    for name, preset in PRESETS.items():
        found = reward(read_reply(text, dialect), record, preset)
        assert found.total == pytest.approx(2 if name == "gemex" else 1, abs=1e-3)  # the mean IoU after rounding
        found = reward(ill_formed, record, preset)
        assert found == Rewards(0, found.grounding, 0, 0, 0)
        assert found.grounding == 0 or name == "paper"  # its parts are read, and boxes have no weight


def test_an_unscored_part_makes_the_total_nan():
    record = make_record("open", references=RECORD.references)
    settings = RewardSettings(open_answer="judge")
    found = reward(reply_of(), record, settings)
    assert math.isnan(found.answer)
    assert math.isnan(found.total)
    assert found.grounding == 1
    assert reward(reply_of(), record, settings, judged=Judged(8, 7)).total == 2
    assert reward(reply_of(), record, settings, judged=Judged(8, 5)).total == 1
    assert reward(reply_of(problems=("x",)), record, settings).total == 0
    only_boxes = dataclasses.replace(settings, answer_weight=0.0)
    assert reward(reply_of(), record, only_boxes).total == 1  # a part without weight takes no part
    gated = dataclasses.replace(settings, gate="released")
    assert reward(reply_of(boxes=()), record, gated).total == 0


def test_consistency():
    settings = RewardSettings(consistency_weight=0.5)
    assert reward(reply_of(), RECORD, settings, consistency=lambda record, reply: 0.4).total == pytest.approx(2.2)
    found = reward(reply_of(), RECORD, settings, consistency=lambda record, reply: math.nan)
    assert math.isnan(found.total)
    assert reward(reply_of(problems=("x",)), RECORD, settings, consistency=lambda record, reply: 1.0).total == 0
    refuse("a consistency function is required", reward, reply_of(), RECORD, settings)
    refuse("expected .record, reply.", reward, reply_of(), RECORD, settings, consistency=lambda reply, record: 1.0)
    refuse("returned .'1'", reward, reply_of(), RECORD, settings, consistency=lambda record, reply: "1")
    for number in (-0.1, 1.1):
        refuse("0 to 1", reward, reply_of(), RECORD, settings, consistency=lambda record, reply, number=number: number)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("answer_weight", -1.0), ("grounding_weight", math.nan), ("format_weight", math.inf)),
        *(("least_iou", 1.0), ("least_iou", math.nan), ("grounding", "iou"), ("open_answer", "bleu"), ("gate", "both")),
    ],
)
def test_settings_are_checked(name, value):
    refuse(rf"^rewards\.{name}", RewardSettings, **{name: value})
    refuse("at least one must be positive", RewardSettings, answer_weight=0.0, grounding_weight=0.0)
