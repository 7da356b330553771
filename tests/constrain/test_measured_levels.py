import math

import pytest
from constrain.asked import Noisy, ask, make_asking, make_cases

from stepcot_jax.chain import DEFAULT_CHAIN
from stepcot_jax.tools.constrain import results as level_tables
from stepcot_jax.tools.constrain.constraints import KINDS
from stepcot_jax.tools.constrain.results import summarise_levels

ABOUT = {"model": "m", "about": "a", "source": "s", "prompt": "p", "lists_diagnoses": True}
NUM_CASES = 200


@pytest.fixture(scope="module")
def model():
    cases = make_cases(NUM_CASES)
    return Noisy(
        {case.id: case.truth for case in cases},
        accuracy=(0.95, 0.9, 0.85, 0.8, 0.75, 0.7),
        direct=0.3,
        gains=(0.02, 0.05, 0.1, 0.1, 0.15, 0.2),
        cut=0.04,
        fenced=0.15,
        bare=0.1,
    )


@pytest.fixture(scope="module")
def measured(model):
    cases = make_cases(NUM_CASES)
    return summarise_levels(cases, ask(cases, model, make_asking()), DEFAULT_CHAIN, about=ABOUT, num_resamples=100)


def test_the_measured_accuracies_agree_with_the_expected_ones(measured, model):
    assert len(measured.levels) == 1 + 3 * 7
    inside = []
    for level in measured.levels:
        found, expected = level.diagnosis["accuracy"], model.expected((level.variant, level.level))
        inside.append(found.low <= expected <= found.high)
        assert abs(found.value - expected) < 4 * math.sqrt(expected * (1 - expected) / NUM_CASES)
    assert sum(inside) >= len(inside) - 2  # 22 intervals of 95 %, on the same cases
    accuracies = [measured.find(variant, 7).diagnosis["accuracy"].value for variant in ("true", "own")]
    assert accuracies[0] > accuracies[1] > measured.find("own", 0).diagnosis["accuracy"].value


@pytest.mark.parametrize("reading", ["strict", "loose"])
def test_constraints_are_followed_as_often_as_expected(measured, model, reading):
    uncut = 1 - model.cut
    rates = {
        **dict.fromkeys(("schema", "order", "answered", "option"), uncut),
        "json": uncut if reading == "loose" else uncut * (1 - model.fenced),
        "letter": uncut * (1 - model.bare),
    }
    assert {*rates, "consistent"} == set(KINDS)
    for kind, expected in rates.items():
        for level in measured.levels:
            if kind in level.constraints:
                found = getattr(level.constraints[kind], reading).value
                assert abs(found - expected) < 4 * math.sqrt(expected * (1 - expected) / NUM_CASES)


def test_level_1_is_one_comparison_in_all_variants(measured, monkeypatch):
    compared, decide = [], level_tables.decide
    monkeypatch.setattr(level_tables, "decide", lambda found: compared.extend(found) or decide(found))
    rows = level_tables.make_tables(measured)[0].rows
    assert len(compared) == 1 + 3 * 6
    of_level_1 = [row[6] for row in rows if row[1] == 1]
    assert of_level_1 == of_level_1[:1] * 3
    assert sorted(row[6] for row in rows[1:]) == sorted([*decide(compared), *of_level_1[1:]])
