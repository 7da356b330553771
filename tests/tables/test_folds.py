import dataclasses

import numpy as np
import pytest
from refusals import refuse
from tables.finished_cells import CHAIN, LABELS, NUM_CASES, make_plan, make_split, write_finished

from stepcot_jax.chain import NOT_ANNOTATED
from stepcot_jax.data.splits.making import list_folds
from stepcot_jax.evaluation.predictions import Predictions, SplitPredictions
from stepcot_jax.tools.tables.command import find_recipe
from stepcot_jax.tools.tables.folds_table import CONSTANT, pool_folds, validation_accuracy


def choose(split, cases):
    found = split.predictions
    logits = {name: values[cases] for name, values in found.logits.items()}
    facts = {fact: values[cases] for fact, values in split.facts.items()}
    return SplitPredictions(Predictions(found.index[cases], found.labels[cases], logits), facts)


def folds_of(split):
    patient = np.arange(NUM_CASES) // 2
    return {fold: choose(split, np.flatnonzero(patient % 5 == k)) for k, fold in enumerate(list_folds())}


def with_labels(split, labels):
    return dataclasses.replace(split, predictions=dataclasses.replace(split.predictions, labels=labels))


def finish(plan, qualities, labels=LABELS):
    """Write what the folds' runs would leave behind; the validation cases are half as often right."""
    for seed in plan.seeds:
        folds = list(folds_of(with_labels(make_split(qualities, seed=seed), labels)).values())
        halved = {name: quality / 2 for name, quality in qualities.items()}
        validated = list(folds_of(with_labels(make_split(halved, seed=seed), labels)).values())
        cells = [cell for cell in find_recipe("folds").list_cells(plan) if cell.settings.seed == seed]
        for cell, test, val in zip(cells, folds, validated[1:] + validated[:1], strict=True):
            write_finished(plan.cells.folder(cell), val=val, test=test)


def test_pooling_keeps_every_case_with_its_own_logits():
    split = make_split({"teacher": 0.6, "student": 0.5, "other": 0.5})
    folds = folds_of(split)
    pooled = pool_folds(folds, ["teacher", "student"])
    order = np.argsort(pooled.predictions.index)
    assert list(pooled.predictions.logits) == ["teacher", "student", CONSTANT]
    np.testing.assert_array_equal(pooled.predictions.index[order], split.predictions.index)
    np.testing.assert_array_equal(pooled.predictions.labels[order], LABELS)
    np.testing.assert_array_equal(pooled.predictions.logits["student"][order], split.predictions.logits["student"])
    np.testing.assert_array_equal(pooled.facts["patient_id"][order], split.facts["patient_id"])
    folds["2/5"] = folds["1/5"]
    refuse(r"fold 2/5, case 'images/0\.png': also a test case of fold 1/5", pool_folds, folds, ["teacher"])


def test_the_most_frequent_answer_is_that_of_the_other_folds():
    labels = np.full_like(LABELS, NOT_ANNOTATED)
    first = np.flatnonzero(np.arange(NUM_CASES) // 2 % 5 == 0)
    labels[:, 0] = 1
    labels[first, 0] = 2  # the test cases of the first fold disagree with all others
    labels[first, 1] = 3  # nobody else has an answer to the second step
    pooled = pool_folds(folds_of(with_labels(make_split({"teacher": 0.6}), labels)), ["teacher"])
    answers = pooled.predictions.logits[CONSTANT].argmax(axis=-1)
    assert (answers[:, 0] == 1).all()
    in_first = np.isin(pooled.predictions.index, first)
    assert (answers[in_first, 1] == 0).all()
    assert (answers[~in_first, 1] == 3).all()


def test_validation_accuracy_is_a_mean_over_splits_and_ignores_padding():
    split = make_split({"teacher": 1.0})
    split.predictions.logits["teacher"][:, 0, CHAIN.answers_per_step[0] :] = 100.0
    unannotated = np.full_like(LABELS, NOT_ANNOTATED)
    unannotated[:, 1:] = LABELS[:, 1:]
    found = validation_accuracy([split, with_labels(split, unannotated)], "teacher", CHAIN)
    expected = [
        np.mean(split.predictions.logits["teacher"][:, step, :count].argmax(axis=-1) == LABELS[:, step])
        for step, count in enumerate(CHAIN.answers_per_step)
    ]
    np.testing.assert_allclose(found, expected)


def test_the_table_has_figures_of_all_cases_and_leaves_steps_with_one_answer_out(tmp_path):
    plan = make_plan(tmp_path / "whole")
    finish(plan, {"teacher": 0.9, "student": 0.1})
    (table,) = find_recipe("folds").tabulate(plan)
    names = [column.name for column in table.columns]
    rows = [dict(zip(names, row, strict=True)) for row in table.rows]
    assert len(rows) == 3 * (CHAIN.num_steps + 1)
    teacher, constant = ([row for row in rows if row["model"] == model] for model in ("teacher", CONSTANT))
    assert [row["cases"] for row in teacher] == [NUM_CASES] * CHAIN.num_steps + [None]
    for row, base in zip(teacher, constant, strict=True):
        difference = row[f"accuracy above {CONSTANT}"]
        assert difference.value == pytest.approx(row["accuracy"].value - base["accuracy"].value)
        assert difference.low <= difference.value <= difference.high
        assert row["accuracy is"] == "higher in both runs"
        assert row["accuracy on validation"] < row["accuracy"].value - 0.2  # of other cases
    assert any("120 cases of 60 patients" in note for note in table.notes)
    plan = make_plan(tmp_path / "some", seeds=(0,))
    labels = LABELS.copy()
    labels[:, 0] = 1
    finish(plan, {"teacher": 0.9, "student": 0.5}, labels)
    (table,) = find_recipe("folds").tabulate(plan)
    assert {row[0] for row in table.rows} == {step.name for step in CHAIN.steps[1:]} | {"mean of the steps"}
    assert any(note.endswith(f"{CHAIN.steps[0].name}.") and "Left out" in note for note in table.notes)
    plan = make_plan(tmp_path / "all", seeds=(0,))
    finish(plan, {"teacher": 0.9, "student": 0.5}, np.zeros_like(LABELS))
    refuse("one answer only at every step", find_recipe("folds").tabulate, plan)
