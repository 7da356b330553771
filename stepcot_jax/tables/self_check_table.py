"""Table `self_check`: the weight of the self-check and the parts of MEDSAGE, as printed.

Our rows come from policies that a run trains.
"""

from stepcot_jax.tables import published_vqa as published
from stepcot_jax.tables.plan import Plan
from stepcot_jax.tables.writing import Column, Entry, Table, columns


def make_tables(plan: Plan | None) -> list[Table]:
    """Return MEDSAGE's Tables 4 and 5 with the recomputed averages."""
    del plan
    weights = {f"alpha {alpha:.2f}": found for alpha, found in published.SELF_CHECK_WEIGHT.items()}
    note = "Alpha 0.20 should be the full model of the parts' table and alpha 0 its SFT + RL; neither agrees."
    return [
        tabulate_three_sets("self_check", "Weight of the self-check (MEDSAGE, Table 4)", weights, note),
        tabulate_three_sets("self_check_parts", "Parts of the method (MEDSAGE, Table 5)", published.PARTS, note),
    ]


def tabulate_three_sets(name: str, title: str, figures: dict[str, tuple[dict[str, float], float]], note: str) -> Table:
    """Return a table of accuracies on SLAKE, VQA-RAD and PathVQA."""
    rows: list[tuple[Entry, ...]] = [
        (method, *row.values(), overall, published.round_half_up(published.recompute_mean(row), 4))
        for method, (row, overall) in figures.items()
    ]
    return Table(
        name,
        title,
        (
            Column("method"),
            *columns("percent", *published.THREE_SETS, "overall", published=True, digits=1),
            Column("overall", "percent", recomputed=True, digits=2),
        ),
        tuple(rows),
        (note,),
    )
