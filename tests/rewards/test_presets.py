import dataclasses
import math

import pytest
from reasoning_records import make_record
from refusals import refuse

from stepcot_jax import rewards
from stepcot_jax.box import Box
from stepcot_jax.reasoning.dialects import WRITTEN, read_reply, write_reply
from stepcot_jax.reasoning.replies import Judged, Reply
from stepcot_jax.rewards.functions import FUNCTIONS
from stepcot_jax.rewards.options import PRESETS, RewardSettings
from stepcot_jax.rewards.presets import reward
from stepcot_jax.run.settings import load_settings

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
    assert tuple(found.values()) == pytest.approx(expected)


@pytest.mark.parametrize("dialect", ["gemex", "medclm"])
def test_a_true_reply_to_a_record_without_thinking_has_full_marks(dialect):
    """MedCLM's hard stage writes no box: the grounding, which its record does not ask for, adds nothing."""
    record = make_record(thinking="")
    reply = read_reply(write_reply(record, dialect), dialect)
    found = {name: reward(reply, record, preset) for name, preset in PRESETS.items()}
    located = float(dialect == "gemex")
    assert [(each["answer"], each["well_formed"], each["grounding"]) for each in found.values()] == [
        (1, 1, located)
    ] * 3
    assert found["released"]["total"] == pytest.approx(0.7 + 0.3 * located)
    assert (rewards.answer([reply], [record]), rewards.well_formed([reply], [record])) == ([1], [1])
    assert rewards.well_formed([reply], [make_record()]) == [0]


def test_released_without_boxes():
    """Boxes are required of records with references only; an empty side is worth 0."""
    record = make_record(references=())
    assert reward(reply_of(boxes=()), record, PRESETS["released"])["total"] == pytest.approx(0.7)
    assert reward(reply_of(), record, PRESETS["released"])["total"] == pytest.approx(0.7)
    assert reward(reply_of(boxes=()), record, PRESETS["gemex"])["total"] == 2


def test_published_weights():
    weights = {name: tuple(preset.weights.values()) for name, preset in PRESETS.items()}
    assert weights == {"gemex": (1, 1, 0), "paper": (0.9, 0, 0.1), "released": (0.6, 0.3, 0.1)}
    assert RewardSettings() == PRESETS["gemex"]
    record = make_record("open", references=RECORD.references, synonyms=("fluid",))
    assert reward(reply_of("Fluid"), record, PRESETS["released"])["total"] == pytest.approx(0.4)  # takes no synonym
    assert reward(reply_of("Fluid"), record, PRESETS["gemex"])["total"] == 2


@pytest.mark.parametrize("dialect", [dialect for dialect in WRITTEN if dialect != "plain"])
@pytest.mark.parametrize("kind", ["open", "closed", "single", "multi"])
def test_a_records_own_reply_earns_all(dialect, kind):
    record = make_record(kind)
    text = write_reply(record, dialect)
    ill_formed = read_reply(text.replace("nswer", "").replace("NSWER", "").replace("CON", ""), dialect)
    for name, preset in PRESETS.items():
        found = reward(read_reply(text, dialect), record, preset)
        assert found["total"] == pytest.approx(2 if name == "gemex" else 1, abs=1e-3)  # the mean IoU after rounding
        found = reward(ill_formed, record, preset)
        assert (found["answer"], found["well_formed"], found["total"]) == (0, 0, 0)
        assert found["grounding"] == 0 or name == "paper"  # its parts are read, and boxes have no weight


def test_an_unscored_part_makes_the_total_nan():
    record = make_record("open", references=RECORD.references)
    settings = RewardSettings(open_answer="judge")
    found = reward(reply_of(), record, settings)
    assert math.isnan(found["answer"])
    assert math.isnan(found["total"])
    assert found["grounding"] == 1
    assert reward(reply_of(), record, settings, judged=Judged(8, 7))["total"] == 2
    assert reward(reply_of(), record, settings, judged=Judged(8, 5))["total"] == 1
    assert reward(reply_of(problems=("x",)), record, settings)["total"] == 0
    only_boxes = dataclasses.replace(settings, functions=("answer=0", "grounding=1"))
    assert reward(reply_of(), record, only_boxes)["total"] == 1  # a part without weight takes no part
    gated = dataclasses.replace(settings, gate="released")
    assert reward(reply_of(boxes=()), record, gated)["total"] == 0


def test_consistency():
    stages = {
        "localisation": "In the left upper zone.",
        "visual": "A focal opacity on the right, upper zone.",
        "conclusion": "",
    }
    functions = ("answer=1", "grounding=1", "consistency=0.5")
    settings = RewardSettings(functions=functions)
    assert reward(reply_of(stages=stages), RECORD, settings)["total"] == pytest.approx(2 + 0.5 * 0.5)  # the zone alone
    assert math.isnan(reward(reply_of(), RECORD, settings)["total"])
    broken = reply_of(problems=("x",), stages=stages)
    assert reward(broken, RECORD, settings)["total"] == 0
    assert reward(broken, RECORD, RewardSettings(functions=functions, ill_formed="parts"))["consistency"] == 0.5


@pytest.mark.parametrize(
    "functions",
    [("answer=-1",), ("answer=nan",), ("answer=inf",), ("answer=",), ("answer",), ("answer=0",), (),
     ("answer=1", "answer=2")],
)  # fmt: skip
def test_functions_and_weights_are_checked(functions):
    refuse(r"^rewards\.functions: ", RewardSettings, functions=functions)
    refuse("'mine' is not one of answer, grounding,", reward, reply_of(), RECORD, RewardSettings(functions=("mine=1",)))
    refuse(r"^config\.rewards\.functions: ", load_settings, "vqa_quickstart", **{"rewards.functions": functions})


def test_a_contributed_reward_is_named_weighed_and_logged(monkeypatch):
    """The row of CONTRIBUTING: a function and its entry of `FUNCTIONS`, nothing else."""
    monkeypatch.setitem(FUNCTIONS, "brief", lambda replies, records: [float(len(each.text) < 9) for each in replies])
    settings = load_settings("vqa_quickstart", **{"rewards.functions": ("answer=1", "brief=0.25")}).rewards
    assert reward(reply_of(), RECORD, settings) == {"answer": 1, "brief": 1, "total": 1.25}


@pytest.mark.parametrize(
    ("name", "value"),
    [("least_iou", 1.0), ("least_iou", math.nan), ("grounding", "iou"), ("open_answer", "bleu"), ("gate", "both")],
)
def test_settings_are_checked(name, value):
    refuse(rf"^rewards\.{name}", RewardSettings, **{name: value})
