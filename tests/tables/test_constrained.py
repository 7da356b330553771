import dataclasses

import pytest
from constrain.asked import NO_IMAGE, Noisy, ask, make_asking
from refusals import refuse
from tables.finished_cells import CHAIN, LABELS, NUM_CASES, finish_all, make_plan

from stepcot_jax.host.ranges import Interval
from stepcot_jax.tools.constrain.asking_levels import AskedCase
from stepcot_jax.tools.constrain.results import summarise_levels
from stepcot_jax.tools.tables.command import find_recipe

ABOUT = {"about": "Noisy", "source": "made up", "prompt": "p", "lists_diagnoses": True}


def measure(model, *, variants=("constraints", "true"), num_cases=NUM_CASES, levels=(0, 3)):
    truths = LABELS[:num_cases].tolist()
    cases = [AskedCase(f"images/{n}.png", f"P{n // 2}", tuple(truth), NO_IMAGE) for n, truth in enumerate(truths)]
    truth = {case.id: case.truth for case in cases}
    noisy = Noisy(truth, accuracy=(0.9, 0.9), direct=0.2, gains=(0.3, 0.4), chain=CHAIN)
    replies = ask(cases, noisy, make_asking(variants=variants, levels=levels, chain=CHAIN))
    return summarise_levels(cases, replies, CHAIN, about={"model": model, **ABOUT}, num_resamples=60)


@pytest.fixture(scope="module")
def found():
    return measure("LLaVA-Med")


@pytest.fixture(scope="module")
def plan(tmp_path_factory, found):
    few = measure("Other", variants=("constraints",), num_cases=40, levels=(0,))
    made = make_plan(tmp_path_factory.mktemp("tables"), seeds=(0,), constrained=(found, few))
    finish_all(made)
    return made


def test_diagnosis_has_rows_without_and_with_the_steps(plan, found):
    (table,) = find_recipe("diagnosis").tabulate(plan)
    names = [column.marked_name for column in table.columns]
    rows = {row[:2]: dict(zip(names, row, strict=True)) for row in table.rows}
    without, given = rows["LLaVA-Med", "without"], rows["LLaVA-Med", "with, true answers given"]
    assert without["accuracy"] == found.find("constraints", 0).diagnosis["accuracy"]
    assert given["difference in accuracy"] == found.find("true", 3).differences["accuracy"]
    assert given["gain in accuracy"] == "gain in this run"
    assert (without["gain in accuracy"], without["difference in accuracy"]) == (None, None)
    # The paper's row is shown once, beside the row without the steps.
    assert without["published: accuracy"] == 0.427
    assert rows["LLaVA-Med", "with"]["published: accuracy"] is None
    assert [row[0] for row in table.rows].count("LLaVA-Med") == 3
    assert ("Other", "without") in rows
    assert ("Other", "with") not in rows


def test_steps_have_rows_of_replies_with_all_steps(plan, found):
    (table,) = find_recipe("steps").tabulate(plan)
    rows = {row[:2]: row for row in table.rows}
    assert len(rows) == len(table.rows)
    level = found.find("constraints", 3)
    for step in CHAIN.steps:
        row = rows[step.name, "LLaVA-Med, with steps"]
        figures = level.diagnosis if step is CHAIN.steps[-1] else level.steps[step.name]
        assert row[2:4] == (len(LABELS), figures["accuracy"])
        assert isinstance(row[4], Interval)
    last, large = CHAIN.steps[-1].name, [row for row in table.rows if row[1].endswith(" steps")]
    direct = found.find("constraints", 0).diagnosis["accuracy"]
    # Before the same model with the steps.
    assert large[-3][:4] == (last, "LLaVA-Med, without steps", len(LABELS), direct)
    assert [row[:3] for row in large if row[1].startswith("Other")] == [(last, "Other, without steps", 40)]


def test_notes_say_whether_the_cases_are_the_same(plan, found):
    missing = "no rows with all steps asked at once; level 3 of the variant 'constraints' is missing."
    alone = dataclasses.replace(plan, constrained=())
    steps = [(name, [*options[:-1], "Other"]) for name, options in found.steps]
    wrong = dataclasses.replace(plan, constrained=(dataclasses.replace(found, steps=steps),))
    for recipe in map(find_recipe, ("diagnosis", "steps")):
        (table,) = recipe.tabulate(plan)
        notes = " ".join(table.notes)
        assert "LLaVA-Med: the test cases of the networks. Noisy." in notes
        assert "Other: other cases than the networks', 40 cases of made up." in notes
        assert [note for note in table.notes if missing in note] == [f"Other: {missing}"]
        assert "Large models" not in " ".join(recipe.tabulate(alone)[0].notes)
        refuse("--constrained, model 'LLaVA-Med': another chain", recipe.tabulate, wrong)
