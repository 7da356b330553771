"""Table `vqa` from real runs of the smallest policies: from a config to cells, replies and files."""

import csv

import jax
import pytest
from tables.policy_tables import make_policy_plan

from stepcot_jax.tools.tables import command as making
from stepcot_jax.tools.tables import vqa_table


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("policies")
    plan = make_policy_plan(workdir, seeds=(0,), phantom__num_cases=30, policy__longest_reply=40)
    with jax.numpy_dtype_promotion("standard"):
        names = making.make_tables(["vqa"], plan, command=["python"], folder=workdir / "tables")
    return plan, workdir / "tables", names


def read_rows(folder, name):
    with (folder / f"{name}.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_every_training_is_a_row_with_figures_of_its_own_replies(made):
    plan, folder, names = made
    assert {"vqa.csv", "vqa_differences.csv", "vqa.tex"} <= set(names)
    rows = {row["training"].lstrip("'"): row for row in read_rows(folder, "vqa") if row["training"]}
    assert [cell.name for cell in vqa_table.list_cells(plan)] == [name for name in rows if "majority" not in name]
    for cell in vqa_table.list_cells(plan):
        assert (plan.cells.folder(cell) / "replies" / f"{cell.settings.job}_test.jsonl").is_file()


def test_every_grpo_starts_from_the_fine_tuning_with_thinking(made):
    plan, _, _ = made
    cells = {cell.name: cell for cell in vqa_table.list_cells(plan)}
    start = str(plan.cells.folder(cells[vqa_table.THINKING]))
    starts = {name: cell.settings.policy.start for name, cell in cells.items() if cell.settings.job == "grpo"}
    assert len(starts) == 4
    assert set(starts.values()) == {start}
