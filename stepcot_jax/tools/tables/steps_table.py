"""Table 8: every figure of every step, of baselines with the intermediate steps, teacher and student."""

from collections.abc import Sequence

from stepcot_jax.evaluation.chains import FIGURES
from stepcot_jax.evaluation.comparison import INTERVALS, AnswerComparison
from stepcot_jax.evaluation.published import Constrained, step_figures
from stepcot_jax.pages.sheets import Entry, Table, columns
from stepcot_jax.tools.tables.cells import Cell
from stepcot_jax.tools.tables.constrained_rows import check_chain, describe_cases, list_step_rows
from stepcot_jax.tools.tables.plan import Plan

HEADINGS = {name: {"auc": "mAUC", "f1": "F1"}.get(name, name) for name in FIGURES}


def list_cells(plan: Plan) -> list[Cell]:
    """Return teacher and student, and each encoder's baseline with the intermediate steps."""
    return [cell for seed in plan.seeds for cell in (plan.main(seed), *plan.baselines(seed, ("all",)))]


def make_tables(plan: Plan) -> list[Table]:
    """Make the table from finished cells."""
    comparison = plan.compare_baselines(("all",))
    teacher, student, *baselines = comparison.models
    models = [*baselines, teacher, student]
    return [tabulate_steps("steps", "Every step of every model", comparison, models, plan.seeds, plan.constrained)]


def tabulate_steps(
    name: str,
    title: str,
    comparison: AnswerComparison,
    models: list[str],
    seeds: tuple[int, ...],
    large: Sequence[Constrained] = (),
) -> Table:
    """Make a table of all figures of each model and step, with published ones and the best constant answer."""
    check_chain(large, comparison.chain)
    known = [step_figures(model, step.name) for step in comparison.chain.steps for model in models]
    shown = [figure for figure in FIGURES if any(figure in figures for figures in known)]
    rows: list[tuple[Entry, ...]] = []
    for position, step in enumerate(comparison.chain.steps):
        num_cases = comparison.num_cases(position)
        nothing = [None] * (len(FIGURES) - 1 + len(shown))
        rows.append((step.name, "most frequent answer", num_cases, comparison.constant(position), *nothing))
        for model in models:
            figures = (comparison.figure(model, figure, position) for figure in FIGURES)
            published = step_figures(model, step.name)
            rows.append((step.name, model, num_cases, *figures, *(published.get(figure) for figure in shown)))
        rows += [(*row, *[None] * len(shown)) for model in large for row in list_step_rows(model, step.name)]
    headings = (
        *columns("text", "step", "model"),
        *columns("number", "cases"),
        *columns("percent", *HEADINGS.values()),
        *columns("percent", *(HEADINGS[figure] for figure in shown), published=True),
    )
    notes = [f"Test split, seeds {list(seeds)}.", INTERVALS]
    notes.append("The most frequent answer is that of the whole split in every resample; no model knows it.")
    notes += describe_cases(large, comparison.splits[0])
    if shown:
        notes.append("Published: accuracies of Tables 6 and 9, the diagnosis of Table 3; others are unknown.")
    return Table(name, title, headings, tuple(rows), tuple(notes))
