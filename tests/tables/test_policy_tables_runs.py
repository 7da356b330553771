"""Table `vqa` from real runs of the smallest policies: from a config to cells, replies and files."""

import csv

import jax
import pytest
from tables.policy_tables import make_policy_plan

from stepcot_jax.tools.tables import command as making
from stepcot_jax.tools.tables import vqa_table


@pytest.mark.slow
def test_every_training_is_a_row_with_figures_of_its_own_replies(tmp_path):
    plan = make_policy_plan(tmp_path, seeds=(0,), phantom__num_cases=30, policy__longest_reply=40)
    with jax.numpy_dtype_promotion("standard"):
        names = making.make_tables(["vqa"], plan, command=["python"], folder=tmp_path / "tables")
    assert {"vqa.csv", "vqa_differences.csv", "vqa.tex"} <= set(names)
    with (tmp_path / "tables" / "vqa.csv").open(newline="", encoding="utf-8") as file:
        rows = [row["training"].lstrip("'") for row in csv.DictReader(file) if row["training"]]
    assert [cell.name for cell in vqa_table.list_cells(plan)] == [name for name in rows if "majority" not in name]
    for cell in vqa_table.list_cells(plan):
        assert (plan.cells.folder(cell) / "replies" / f"{cell.settings.job}_test.jsonl").is_file()
