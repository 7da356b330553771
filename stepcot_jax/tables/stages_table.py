"""Table `stages`: stage scores, benchmarks and path augmentation of MEDSAGE, as printed.

Our rows come from policies that a run trains.
"""

from stepcot_jax.tables import published_vqa as published
from stepcot_jax.tables.plan import Plan
from stepcot_jax.tables.self_check_table import tabulate_three_sets
from stepcot_jax.tables.writing import Column, Table, columns


def make_tables(plan: Plan | None) -> list[Table]:
    """Return MEDSAGE's Tables 2, 1 and 3 with the recomputed averages and gaps."""
    del plan
    stages = Table(
        "stages",
        "Scores of each stage from 1 to 5 (MEDSAGE, Table 2)",
        (
            Column("model"),
            Column("data"),
            *columns("number", *published.STAGES, "average", published=True, digits=3),
            Column("average", "number", recomputed=True, digits=4),
        ),
        tuple(
            (
                *place,
                *row.values(),
                published.STAGE_AVERAGE[place],
                published.round_half_up(published.recompute_mean(row), 4),
            )
            for place, row in published.STAGE_SCORES.items()
        ),
        ("Judge and prompt are not published. None of the printed averages is the mean of its row.",),
    )
    note = "Baseline-sft lies far below the untrained model of the benchmarks' table."
    augmentation = tabulate_three_sets(
        "stages_augmentation", "Reasoning-path augmentation (MEDSAGE, Table 3)", published.PATH_AUGMENTATION, note
    )
    return [stages, _tabulate_benchmarks(), augmentation]


def _tabulate_benchmarks() -> Table:
    sets = published.BENCHMARKS
    rows = []
    for method, row in published.BENCHMARK_ACCURACY.items():
        own = (
            published.round_half_up(published.recompute_mean(row), 4),
            published.round_half_up(published.recompute_gap(method), 4),
        )
        printed = published.BENCHMARK_AVERAGE[method]
        rows.append((published.BENCHMARK_GROUPS[method], method, *(row.get(name) for name in sets), *printed, *own))
    return Table(
        "stages_benchmarks",
        "Accuracy on five benchmarks (MEDSAGE, Table 1)",
        (
            *columns("text", "group", "method"),
            *columns("percent", *sets, "average", published=True, digits=1),
            Column("gap", "points", published=True, digits=1),
            Column("average", "percent", recomputed=True, digits=2),
            Column("gap", "points", recomputed=True, digits=2),
        ),
        tuple(rows),
        (
            "Four printed averages are not the mean of their row: MEDSAGE, LLaVA-Next-7B, LLaVA-Next-13B, Med-R1. "
            "Gaps to MEDSAGE change with its mean.",
            "The mean of InternVL3-8B is over four sets.",
        ),
    )
