"""The table of the teacher before and after GRPO: its cells, paired differences, and contradictions."""

import json

import numpy as np
import pytest
from tables.finished_cells import CHAIN, LABELS, finish, make_plan, make_split

from stepcot_jax.evaluation.consistency import count_pairs, inconsistent, make_rules, write_pairs
from stepcot_jax.run.stored_reading import PAIRS_FILE
from stepcot_jax.tools.tables.command import find_recipe
from stepcot_jax.tools.tables.correction_tables import score_cases

QUALITIES = {"true": {"teacher": 0.8, "start": 0.5}, "shuffled": {"teacher": 0.5, "start": 0.5}}
COUNTS = count_pairs(np.repeat(LABELS, 20, axis=0), CHAIN)


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    plan = make_plan(tmp_path_factory.mktemp("chain"))
    for cell in find_recipe("chain_grpo").list_cells(plan):
        rewards = "shuffled" if cell.settings.grpo.shuffle_rewards else "true"
        finish(plan.cells, cell, QUALITIES[rewards])
        folder = plan.cells.folder(cell)
        write_pairs(folder / PAIRS_FILE, COUNTS)
        best = {"teacher": {"step": 9, "validation_score": 0.5}, "start": {"step": 4, "validation_score": 0.5}}
        (folder / "report.json").write_text(json.dumps({"best": best}))
    return plan


def test_figures_are_means_over_seeds_with_paired_differences(plan):
    (table,) = find_recipe("chain_grpo").tabulate(plan)
    rules = make_rules(CHAIN, counts=COUNTS)
    for row, rewards in zip(table.rows, QUALITIES, strict=True):
        assert row[0] == rewards
        figures = []
        for seed in plan.seeds:
            logits = make_split(QUALITIES[rewards], seed=seed).predictions.logits
            absent = np.arange(9) >= np.array(CHAIN.answers_per_step)[:, None]
            own = {name: np.where(absent, -np.inf, found).argmax(axis=-1) for name, found in logits.items()}
            pair = [own[name] for name in ("start", "teacher")]
            right = [
                [(each[:, -1] == LABELS[:, -1]).mean() for each in pair],
                [(each == LABELS).mean() for each in pair],
            ]
            figures.append([*right, [1 - inconsistent(each, rules).mean() for each in pair]])
        for place, (before, after) in enumerate(np.mean(figures, axis=0)):
            found = row[1 + 3 * place : 4 + 3 * place]
            assert [each.value for each in found] == pytest.approx([before, after, after - before])
            assert all(each.low <= each.value <= each.high for each in found)
    assert table.rows[0][3].low > 0.1
    assert len(table.columns) == len(table.rows[0])
    assert any("4 and 9, 4 and 9" in note for note in table.notes)


def test_cases_without_labels_have_no_accuracy_but_may_contradict_themselves():
    rules = make_rules(CHAIN)
    answers = np.array([[0, 0, 0], [0, 0, 3], [1, 1, 2]])
    labels = np.array([[0, -100, -100], [-100, -100, -100], [1, 0, 2]])
    last, steps, consistent = score_cases(answers, labels, rules)
    np.testing.assert_array_equal(last, [np.nan, np.nan, 1.0])
    np.testing.assert_allclose(steps, [1.0, np.nan, 2 / 3])
    np.testing.assert_array_equal(consistent, 1.0 - inconsistent(answers, rules))
    assert 0 < consistent.sum() < 3
