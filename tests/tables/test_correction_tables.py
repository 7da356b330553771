import numpy as np
import pytest
from tables.finished_cells import LABELS, finish, make_plan

from configs import quickstart
from stepcot_jax.chain import Chain, Step
from stepcot_jax.evaluation.interventions import POLICIES, as_probabilities
from stepcot_jax.run.settings import make_settings
from stepcot_jax.tools.tables import correction_tables
from stepcot_jax.tools.tables.cells import Cells
from stepcot_jax.tools.tables.command import find_recipe
from stepcot_jax.tools.tables.correction_tables import COUNTED
from stepcot_jax.tools.tables.plan import Plan

CHAIN = Chain((Step("A", "A?", ("one", "two")), Step("B", "B?", ("up", "down", "off")), Step("C", "C?", ("yes", "no"))))
PATIENTS = np.array([f"p{case // 2}" for case in range(200)])


def test_differences_are_taken_case_by_case(tmp_path):
    rng = np.random.default_rng(2)
    published, given = ("without answers given", "teacher"), ("with answers given", "teacher")
    keys = [(*reader, policy) for reader in (COUNTED, published, given) for policy in POLICIES]
    right = {key: [(rng.random((4, 200)) < 0.6).astype(float) for _ in range(2)] for key in keys}
    plan = Plan(make_settings(quickstart.get_config()), (0, 1), Cells(tmp_path, None), num_resamples=50)
    table = correction_tables._tabulate_differences(right, PATIENTS, CHAIN, plan)
    _, of_published, of_given = table.rows
    assert of_published[2].value == 0
    found = {column.name: entry for column, entry in zip(table.columns, of_given, strict=True)}
    expected = {
        "2 corrected, expected gain from random": (2, (*given, "random")),
        "2 corrected, from counting without the picture": (2, (*COUNTED, "expected gain")),
        "own answers, from 'without answers given'": (0, (*published, "expected gain")),
    }
    for name, (count, other) in expected.items():
        pairs = zip(right[*given, "expected gain"], right[other], strict=True)
        difference = np.mean([one[count].mean() - base[count].mean() for one, base in pairs])
        assert found[name].value == pytest.approx(difference)
        assert found[name].low < difference < found[name].high


def test_rows_are_those_of_each_training_and_network_after_the_one_without_a_picture(tmp_path, monkeypatch):
    plan, asked = make_plan(tmp_path, seeds=(0,)), []
    for cell in find_recipe("corrections").list_cells(plan):
        finish(plan.cells, cell, {"teacher": 0.6, "student": 0.5})
    first = as_probabilities(lambda given: np.where(np.arange(9) == 0, 1.0, 0.0) + np.zeros(given.shape))

    def read_networks(plan, cell, chain):
        asked.append(cell.name)
        patients = np.array([f"P{case // 2}" for case in range(len(LABELS))])
        read = dict.fromkeys(("teacher", "teacher, joined", "student", "student, joined"), first)
        return correction_tables.Readers(read, first, LABELS, patients)

    monkeypatch.setattr(correction_tables, "read_networks", read_networks)
    curves, differences, steps = find_recipe("corrections").tabulate(plan)
    assert asked == ["trained without answers given", "trained with answers given"]
    readers = [row[:2] for row in differences.rows]
    assert readers[:2] == [COUNTED, ("without answers given", "teacher")]
    assert len(readers) == 1 + 2 * 4
    assert [row[:3] for row in curves.rows] == [(*reader, policy) for reader in readers for policy in POLICIES]
    assert [row[:3] for row in steps.rows] == [(*reader, str(count)) for reader in readers for count in range(3)]
    shares = [(LABELS[:, step] == 0).mean() for step in range(3)]
    assert all(figure.value == pytest.approx(shares[-1]) for row in curves.rows for figure in row[3:])
    assert [figure and figure.value for figure in steps.rows[1][3:]] == [None, *map(pytest.approx, shares[1:])]
