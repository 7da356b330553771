"""Table `robustness`: answers to perturbed questions, as GEMeX-RMCoT prints them.

Our rows come from policies that a run trains; `evaluation` has the perturbations and the three standard deviations.
"""

from stepcot_jax.tables import published_vqa as published
from stepcot_jax.tables.plan import Plan
from stepcot_jax.tables.writing import Column, Entry, Table, columns


def make_tables(plan: Plan | None) -> list[Table]:
    """Return GEMeX-RMCoT's Table 5 with the recomputed standard deviation."""
    del plan
    rows: tuple[tuple[Entry, ...], ...] = tuple(
        (
            kind,
            training,
            *figures.values(),
            published.PERTURBED_STD[kind, training],
            published.round_half_up(published.recompute_std(figures), 6),
        )
        for (kind, training), figures in published.PERTURBED.items()
    )
    table = Table(
        "robustness",
        "A-score under perturbation of the questions (GEMeX-RMCoT, Table 5)",
        (
            Column("questions"),
            Column("training"),
            *columns("percent", *published.ROUNDS, published=True, digits=2),
            Column("std", "percent", published=True, digits=3),
            Column("std", "percent", recomputed=True, digits=4),
        ),
        rows,
        (
            "Recomputed: population standard deviation of the three rounds about their own mean, which the printed "
            "figures are, though the paper's note says from the original.",
        ),
    )
    return [table]
