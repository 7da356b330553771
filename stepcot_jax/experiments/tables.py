"""All tables by name: which cells each needs, and how it is made from them."""

import dataclasses
import pathlib
import shlex
from collections.abc import Sequence
from types import ModuleType

from stepcot_jax.errors import make_workdir
from stepcot_jax.experiments import (
    tables_components,
    tables_cost,
    tables_diagnosis,
    tables_effect,
    tables_steps,
    tables_transfer,
)
from stepcot_jax.experiments.plan import Plan
from stepcot_jax.experiments.writing import write_table
from stepcot_jax.terminal import Terminal

TABLES: dict[str, ModuleType] = {
    "diagnosis": tables_diagnosis,
    "steps": tables_steps,
    "components": tables_components,
    "effect": tables_effect,
    "transfer": tables_transfer,
    "cost": tables_cost,
}


def make_tables(names: Sequence[str], plan: Plan, *, command: Sequence[str], folder: pathlib.Path) -> list[str]:
    """Run the cells that are not finished, then make and write the tables.

    Args:
      names: of `TABLES`.
      plan: what they are made from.
      command: what was called, to be named in the tables.
      folder: where the tables go.

    Returns:
      The names of the files.
    """
    terminal = Terminal()
    make_workdir(folder)
    plan.cells.run([cell for name in names for cell in TABLES[name].list_cells(plan)])
    written = []
    for name in names:
        terminal.say(f"table {name}")
        for table in TABLES[name].make_tables(plan):
            notes = (*table.notes, f"Made by: {shlex.join(command)}")
            written += write_table(folder, dataclasses.replace(table, notes=notes))
    return written
