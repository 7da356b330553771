"""All tables by name: which cells each needs, and how it is made from them."""

import dataclasses
import pathlib
import shlex
from collections.abc import Sequence
from types import ModuleType

from stepcot_jax.host.errors import make_workdir
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.tables import (
    components_table,
    cost_table,
    diagnosis_table,
    effect_table,
    steps_table,
    transfer_table,
)
from stepcot_jax.tables.plan import Plan
from stepcot_jax.tables.writing import write_table

TABLES: dict[str, ModuleType] = {
    "diagnosis": diagnosis_table,
    "steps": steps_table,
    "components": components_table,
    "effect": effect_table,
    "transfer": transfer_table,
    "cost": cost_table,
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
