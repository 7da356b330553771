import dataclasses

import numpy as np
import pytest
from tables.finished_cells import LABELS, finish, make_plan

from configs import quickstart
from stepcot_jax.chain import NOT_ANNOTATED, Chain, Step
from stepcot_jax.data.dataset import TestSplitClosed
from stepcot_jax.evaluation.interventions import POLICIES, as_probabilities
from stepcot_jax.run.inputs import Inputs, load_cases
from stepcot_jax.run.settings import make_settings
from stepcot_jax.tools.tables import correction_tables
from stepcot_jax.tools.tables.cells import Cells
from stepcot_jax.tools.tables.command import find_recipe
from stepcot_jax.tools.tables.correction_tables import COUNTED, NETWORKS, fit_readers
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


def with_noise(dataset, split):
    labels, rng = dataset.labels.copy(), np.random.default_rng(1)
    members = list(getattr(dataset.splits, split))
    labels[members] = np.stack([rng.integers(0, n, len(members)) for n in dataset.chain.answers_per_step], axis=1)
    return dataclasses.replace(dataset, cases=dataset.cases.with_labels(labels, dataset.cases.uncertain))


def load():
    return load_cases("tables_phantom", **{"phantom.num_cases": 80, "phantom.image_size": 32})


def test_what_chooses_sees_no_test_labels():
    inputs = Inputs(load(), None, None, lambda batch: batch)
    labels = inputs.dataset.labels
    test = list(inputs.dataset.splits.test)
    seen, opened = inputs.choose_then_open(lambda view: view.dataset)
    with pytest.raises(TestSplitClosed):
        seen.pixels[test[0]]
    assert (seen.labels[test] == NOT_ANNOTATED).all()
    np.testing.assert_array_equal(opened.dataset.labels, labels)


def test_joint_models_are_learned_from_training_labels_and_fitted_on_validation_cases():
    dataset, rng = load(), np.random.default_rng(2)
    chain = dataset.chain
    exists = np.arange(max(chain.answers_per_step)) < np.array(chain.answers_per_step)[:, None]
    cases = rng.normal(size=(len(dataset.splits.val), *exists.shape))

    def read(given):
        return np.where(exists, cases + given.sum(axis=-2, keepdims=True), -1e9)

    def fit(data, labels=None):
        labels = data.labels[list(data.splits.val)] if labels is None else labels
        return fit_readers(data, dict.fromkeys(NETWORKS, (read, labels)), chain)

    given = np.zeros((1, 3, *exists.shape), np.float32)
    given[:, :, 0, 1] = 1
    found = fit(dataset)
    for other in (fit(with_noise(dataset, "test")), fit(dataset.hold_out()[0])):
        assert all(found.joints[name].weights == other.joints[name].weights for name in NETWORKS)
        np.testing.assert_array_equal(found.joints["student"].tree.last, other.joints["student"].tree.last)
        np.testing.assert_array_equal(found.counting.read(given), other.counting.read(given))
    of_noise = fit(with_noise(dataset, "train"))
    assert not np.array_equal(found.joints["student"].tree.last, of_noise.joints["student"].tree.last)
    assert (
        found.joints["student"].weights
        != fit(dataset, rng.permutation(dataset.labels)[: len(cases)]).joints["student"].weights
    )
