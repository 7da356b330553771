"""The simulated model: what is measured of it agrees with what it has by construction."""

import math

import numpy as np
import pytest
from constrain.asked import ask, make_asking, make_cases

from stepcot_jax.chain import DEFAULT_CHAIN, NOT_ANNOTATED
from stepcot_jax.tools.constrain import results as level_tables
from stepcot_jax.tools.constrain.constraints import KINDS
from stepcot_jax.tools.constrain.models import Faults, SimulatedModel, Skill
from stepcot_jax.tools.constrain.results import summarise_levels

ABOUT = {"model": "m", "about": "a", "source": "s", "prompt": "p", "lists_diagnoses": True}
SKILL = Skill(
    accuracy=(0.95, 0.9, 0.85, 0.8, 0.75, 0.7),
    direct=0.3,
    gains=(0.02, 0.05, 0.1, 0.1, 0.15, 0.2),
    losses=(0.05, 0.05, 0.02, 0.06, 0.03, 0.04),
)
FAULTS = Faults(cut=0.04, fenced=0.1, chatty=0.06, bare=0.1, mismatched=0.05)


@pytest.fixture(scope="module")
def measured():
    cases = make_cases(100)
    model = SimulatedModel({case.id: case.truth for case in cases}, DEFAULT_CHAIN, skill=SKILL, faults=FAULTS, seed=2)
    replies = ask(cases, model, make_asking())
    return summarise_levels(
        cases, replies, DEFAULT_CHAIN, about=ABOUT, expected=model.expected_accuracy, num_resamples=100
    )


@pytest.mark.slow
def test_the_measured_curve_agrees_with_the_expected_one(measured):
    assert len(measured.levels) == 1 + 3 * 7
    inside = []
    for level in measured.levels:
        found = level.diagnosis["accuracy"]
        inside.append(found.low <= level.expected <= found.high)
        error = math.sqrt(level.expected * (1 - level.expected) / measured.num_cases)
        assert abs(found.value - level.expected) < 4 * error
    assert sum(inside) >= len(inside) - 2  # 22 intervals of 95 %, on the same cases


def test_the_expected_curve_by_hand_and_level_1_is_one_comparison_in_all_variants(measured, monkeypatch):
    readable = 0.96 * 0.95
    first, second = 0.95 * 0.02 - 0.05 * 0.05, 0.9 * 0.05 - 0.1 * 0.05
    by_hand = {
        ("constraints", 0): 0.3,
        ("constraints", 2): 0.3 + first + second,
        ("own", 2): 0.3 + readable * first + second,
        ("true", 2): 0.3 + 0.02 + second,
        ("true", 7): 0.3 + sum(SKILL.gains),
    }
    for (variant, level), chance in by_hand.items():
        assert measured.find(variant, level).expected == pytest.approx(readable * chance)
    compared, decide = [], level_tables.decide
    monkeypatch.setattr(level_tables, "decide", lambda found: compared.extend(found) or decide(found))
    rows = level_tables.make_tables(measured)[0].rows
    assert len(compared) == 1 + 3 * 6
    of_level_1 = [row[7] for row in rows if row[1] == 1]
    assert of_level_1 == of_level_1[:1] * 3
    assert sorted(row[7] for row in rows[1:]) == sorted([*decide(compared), *of_level_1[1:]])


@pytest.mark.parametrize("reading", ["strict", "loose"])
def test_constraints_are_followed_as_often_as_expected(measured, reading):
    uncut = 1 - FAULTS.cut
    rates = {
        **dict.fromkeys(("schema", "order", "answered"), uncut),
        "json": uncut if reading == "loose" else uncut - FAULTS.fenced - FAULTS.chatty,
        "option": uncut * (1 - FAULTS.mismatched),
        "letter": uncut * (1 - FAULTS.mismatched - FAULTS.bare),
    }
    assert {*rates, "consistent"} == set(KINDS)
    for kind, expected in rates.items():
        for level in measured.levels:
            if kind in level.constraints:
                found = getattr(level.constraints[kind], reading).value
                assert abs(found - expected) < 4 * math.sqrt(expected * (1 - expected) / measured.num_cases)


def test_a_perfect_model_follows_everything_and_a_seed_replies_alike():
    cases = make_cases(30)
    skill = Skill(accuracy=(1.0,) * 6, direct=1.0, gains=(0.0,) * 6, losses=(0.0,) * 6)
    model = SimulatedModel(
        {case.id: case.truth for case in cases}, DEFAULT_CHAIN, skill=skill, faults=Faults(*[0.0] * 5)
    )
    for own in ask(cases, model, make_asking()):
        for answered in own.values():
            assert all(answered.verified.strict), answered
    cases = make_cases(6)
    truth = {case.id: case.truth for case in cases}

    def replies(seed):
        found = ask(cases, SimulatedModel(truth, DEFAULT_CHAIN, seed=seed), make_asking())
        return [[each.reply.text for each in own.values()] for own in found]

    one, two, other = replies(0), replies(0), replies(1)
    assert one == two != other
    assert all(own[1] == own[8] == own[15] for own in one)


def test_an_unannotated_step_changes_nothing_and_is_not_given():
    truth = np.full((2, 7), NOT_ANNOTATED)
    truth[:, -1] = 3
    model = SimulatedModel({}, DEFAULT_CHAIN, skill=SKILL, faults=FAULTS)
    for key in (("constraints", 6), ("own", 6), ("true", 7)):
        assert model.expected_accuracy(key, truth) == pytest.approx(0.96 * 0.95 * 0.3)
    truth[:, -1] = NOT_ANNOTATED
    assert math.isnan(model.expected_accuracy(("true", 7), truth))
