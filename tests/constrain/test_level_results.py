"""Figures of levels: by hand, and against the rates of a noisy model; what a reply without an answer counts."""

import json
import math

import pytest
from constrain.asked import NO_IMAGE, Noisy, Scripted, ask, make_asking, make_cases
from PIL import Image
from scipy import stats

from stepcot_jax.chain import DEFAULT_CHAIN, NOT_ANNOTATED, Chain, Step
from stepcot_jax.reading.chat_models import Reply, ShownImage
from stepcot_jax.tools.constrain import results as level_tables
from stepcot_jax.tools.constrain.asking_levels import AskedCase
from stepcot_jax.tools.constrain.results import make_tables, summarise_levels, to_text

CHAIN = Chain((Step("Size", "How large?", ("Small", "Large", "N/A")), Step("Kind", "Which?", ("Cat", "Dog"))))
ABOUT = {"model": "m", "about": "a", "source": "s", "prompt": "p", "lists_diagnoses": True}
TRUTH = [(0, 0), (1, 0), (0, 1), (2, 1), (NOT_ANNOTATED, 1), (1, NOT_ANNOTATED)]
DIRECT = ["A. Cat", "B. Dog", "B. Dog", "A. Cat", None, "A. Cat"]
STEPWISE = [
    *(("A. Small", "A. Cat"), ("B. Large", "A. Cat"), ("B. Large", "B. Dog"), ("N/A", "B. Dog"), ("A. Small", "?")),
    ("B. Large", "B. Dog"),
]


def answer(request):
    place = int(request.case)
    if not request.dialogue.level:
        said = {"diagnosis": DIRECT[place]}
    else:
        said = {"step_1": STEPWISE[place][0], "diagnosis": STEPWISE[place][1]}
    if None in said.values():
        return Reply(None, "refused")
    return json.dumps({name: {"reasoning": "", "answer": each} for name, each in said.items()})


@pytest.fixture(scope="module")
def asked():
    cases = [AskedCase(str(place), f"P{place}", truth, NO_IMAGE) for place, truth in enumerate(TRUTH)]
    model = Scripted(answer)
    replies = ask(cases, model, make_asking(variants=("constraints",), levels=(0, 1), chain=CHAIN))
    return cases, replies, model


@pytest.fixture(scope="module")
def found(asked):
    return summarise_levels(asked[0], asked[1], CHAIN, about=ABOUT, num_resamples=400)


def test_figures_by_hand_with_unreadable_answers_wrong(found):
    direct, one = found.levels
    assert direct.diagnosis["accuracy"].value == pytest.approx(2 / 5)
    assert one.diagnosis["accuracy"].value == pytest.approx(4 / 5)
    assert one.steps["Size"]["accuracy"].value == pytest.approx(4 / 5)
    assert one.differences["accuracy"].value == pytest.approx(2 / 5)
    assert direct.diagnosis["sensitivity"].value == pytest.approx((1 / 2 + 1 / 3) / 2)
    assert one.diagnosis["specificity"].value == pytest.approx(1.0)
    assert (found.num_cases, found.num_patients, found.num_missing) == (6, 5, 1)
    assert (direct.p, direct.differences, one.p) == (None, {}, pytest.approx(stats.binomtest(2, 2).pvalue))
    difference = one.differences["accuracy"]
    assert -1 <= difference.low <= difference.value <= difference.high <= 1
    assert difference.low >= 0  # no resample of these cases has a loss
    # Of six replies the fifth is missing at level 0; at level 1 its diagnosis is none of the options.
    assert direct.followed["prompt_strict"].value == pytest.approx(5 / 6)
    assert direct.followed["readable"].value == pytest.approx(5 / 6)
    assert one.followed["prompt_strict"].value == pytest.approx(5 / 6)
    assert one.followed["instruction_strict"].value == pytest.approx(1 - 2 / (6 * 9))
    assert one.constraints["letter"].strict.value == pytest.approx(11 / 12)
    assert (one.right["followed"].value, one.right["broken"].value) == (pytest.approx(1.0), pytest.approx(0.0))


def test_equal_answers_differ_by_nothing_and_without_any_diagnosis_figures_are_undefined():
    cases = [AskedCase(str(place), f"P{place // 2}", truth, NO_IMAGE) for place, truth in enumerate(TRUTH)]

    def same(request):
        answered = {"reasoning": "", "answer": DIRECT[int(request.case)]}
        return json.dumps(dict.fromkeys(request.dialogue.fields, answered))

    asking = make_asking(variants=("constraints",), levels=(0, 1), chain=CHAIN)
    one = summarise_levels(cases, ask(cases, Scripted(same), asking), CHAIN, about=ABOUT, num_resamples=50).levels[1]
    difference = one.differences["accuracy"]
    assert (difference.value, difference.low, difference.high, one.p) == (0.0, 0.0, 0.0, 1.0)
    assert one.diagnosis["accuracy"].low < one.diagnosis["accuracy"].high
    cases = [AskedCase("5", "P5", TRUTH[5], NO_IMAGE), AskedCase("3", "P3", (0, NOT_ANNOTATED), NO_IMAGE)]
    found = summarise_levels(cases, ask(cases, Scripted(answer), asking), CHAIN, about=ABOUT, num_resamples=5)
    assert found.levels[1].p is None
    assert math.isnan(found.levels[1].diagnosis["accuracy"].value)
    assert "-" in to_text(found)


def test_equal_dialogues_are_asked_once_and_a_picture_is_made_smaller():
    cases = [AskedCase("0", "P", TRUTH[0], NO_IMAGE)]
    model = Scripted(lambda request: answer(request).replace("step_1", request.dialogue.fields[0]))
    ask(cases, model, make_asking(levels=(0, 1, 2), chain=CHAIN))
    asked = [(request.dialogue.variant, request.dialogue.level) for request in model.requests]
    assert asked == [("constraints", 0), ("constraints", 1), ("constraints", 2), ("own", 2)]  # own is true here
    assert model.requests[-1].dialogue.given == ((0, 0),)
    assert ShownImage(lambda: Image.new("L", (90, 60)), longest_side=45).pixels.size == (45, 30)


def test_tables_have_a_row_a_level(found):
    tables = {table.name: table for table in make_tables(found)}
    assert ([row[1] for row in tables["levels"].rows], tables["levels"].rows[1][6]) == ([0, 1], "too few patients")
    assert [row[2] for row in tables["level_steps"].rows] == ["Size"]
    assert any("1 dialogues have no reply" in note for note in tables["levels"].notes)
    assert "level 1  Size" in to_text(found)


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


def test_level_1_is_one_comparison_in_all_variants(measured, monkeypatch):
    compared, decide = [], level_tables.decide
    monkeypatch.setattr(level_tables, "decide", lambda found: compared.extend(found) or decide(found))
    rows = level_tables.make_tables(measured)[0].rows
    assert len(compared) == 1 + 3 * 6
    of_level_1 = [row[6] for row in rows if row[1] == 1]
    assert of_level_1 == of_level_1[:1] * 3
    assert sorted(row[6] for row in rows[1:]) == sorted([*decide(compared), *of_level_1[1:]])
