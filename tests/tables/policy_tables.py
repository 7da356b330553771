"""Plans of the tables of policies with tiny networks, and finished cells whose replies are known to be right or not."""

import json

from sections import section
from systems.small_policy import SIZES as POLICY

from stepcot_jax.data.questions.record_files import write_vqa_records
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.reasoning.dialects import write_reply
from stepcot_jax.run.loading import load_vqa_dataset
from stepcot_jax.run.settings import load_settings
from stepcot_jax.tools.tables.cells import Cells
from stepcot_jax.tools.tables.plan import Plan

SIZES = POLICY | {
    **section("grpo", group_size=2, updates_per_epoch=1),
    "job": "distill",
    "phantom.num_cases": 40,
    "data.split_fractions": (0.6, 0.1, 0.3),
    "policy.longest_reply": 16,
    "sft.epochs": 1,
    "sft.pack_length": 256,
    "training.checkpoint_minutes": 10,
    "evaluation.batch_size": 36,
}


def make_policy_plan(workdir, *, seeds=(0, 1), **changes):
    settings = load_settings("base", **SIZES | {name.replace("__", "."): value for name, value in changes.items()})
    return Plan(settings, seeds, Cells(workdir, Terminal(silent=True)), num_resamples=60)


def read_tests(plan):
    return list(load_vqa_dataset(plan.settings, splits=("test",)).records)


def finish_policy(plan, cell, right, *, metrics=()):
    """Write what a run of the cell would leave behind; `right` says from a question's place if its reply is true."""
    folder, settings = plan.cells.folder(cell), cell.settings
    (folder / "records").mkdir(parents=True)
    (folder / "replies").mkdir()
    records = list(load_vqa_dataset(cell.settings, splits=("test",)).records)
    write_vqa_records(folder / "records" / "test.jsonl", records)
    lines = [
        {"id": record.id, "reply": write_reply(record, settings.vqa.dialect) if right(place) else "none"}
        for place, record in enumerate(records)
    ]
    (folder / "replies" / f"{settings.job}_test.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in metrics))
    best = {name: {"step": 1, "validation_score": 0.5} for name in cell.settings.trains.names}
    (folder / "report.json").write_text(json.dumps({"best": best}))


def columns_of(table):
    return {column.marked_name: [row[place] for row in table.rows] for place, column in enumerate(table.columns)}


def published_columns(tables):
    """Entries of the published and the recomputed columns of all tables, those without an entry left out."""
    return {
        (table.name, column.marked_name): sorted(row[place] for row in table.rows if row[place] is not None)
        for table in tables
        for place, column in enumerate(table.columns)
        if column.keeps_digits and column.kind != "text"
    }
