"""Table 8: every figure of every step, of baselines with the intermediate steps, teacher and student."""

from stepcot_jax.evaluation.metrics import FIGURES
from stepcot_jax.tables.cells import Cell
from stepcot_jax.tables.comparing import INTERVALS, Comparison, join
from stepcot_jax.tables.plan import Plan
from stepcot_jax.tables.published_figures import step_figures
from stepcot_jax.tables.writing import Column, Entry, Table

HEADINGS = {name: {"auc": "mAUC", "f1": "F1"}.get(name, name) for name in FIGURES}


def list_cells(plan: Plan) -> list[Cell]:
    """Return teacher and student, and each encoder's baseline with the intermediate steps."""
    return [cell for seed in plan.seeds for cell in (plan.main(seed), *plan.baselines(seed, ("all",)))]


def make_tables(plan: Plan) -> list[Table]:
    """Make the table from finished cells."""
    splits = []
    for seed in plan.seeds:
        main = plan.cells.predictions(plan.main(seed))
        parts = {model: (main, model) for model in ("teacher", "student")}
        for cell in plan.baselines(seed, ("all",)):
            parts[cell.name] = (plan.cells.predictions(cell), "baseline")
        splits.append(join(parts))
    comparison = Comparison(splits, plan.cells.chain(plan.main(plan.seeds[0])), plan.num_resamples)
    models = [name for name in splits[0].predictions.logits if name not in ("teacher", "student")]
    return [
        tabulate_steps("steps", "Every step of every model", comparison, [*models, "teacher", "student"], plan.seeds)
    ]


def tabulate_steps(name: str, title: str, comparison: Comparison, models: list[str], seeds: tuple[int, ...]) -> Table:
    """Make a table of all figures of each model and step, with published ones and the best constant answer."""
    found = [step_figures(model, step.name) for step in comparison.chain.steps for model in models]
    shown = [figure for figure in FIGURES if any(figure in figures for figures in found)]
    rows: list[tuple[Entry, ...]] = []
    for position, step in enumerate(comparison.chain.steps):
        num_cases = comparison.num_cases(position)
        nothing = [None] * (len(FIGURES) - 1 + len(shown))
        rows.append((step.name, "most frequent answer", num_cases, comparison.constant(position), *nothing))
        for model in models:
            figures = (comparison.figure(model, figure, position) for figure in FIGURES)
            published = step_figures(model, step.name)
            rows.append((step.name, model, num_cases, *figures, *(published.get(figure) for figure in shown)))
    columns = (
        Column("step"),
        Column("model"),
        Column("cases", "number"),
        *(Column(heading, "percent") for heading in HEADINGS.values()),
        *(Column(HEADINGS[figure], "percent", published=True) for figure in shown),
    )
    notes = [f"Test split, seeds {list(seeds)}.", INTERVALS]
    notes.append("The most frequent answer is that of the whole split in every resample; no model knows it.")
    if shown:
        notes.append("Published: accuracies of Tables 6 and 9, the diagnosis of Table 3; others are unknown.")
    return Table(name, title, columns, tuple(rows), tuple(notes))
