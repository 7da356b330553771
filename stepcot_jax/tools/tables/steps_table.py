"""Table 8: every figure of every step, of baselines with the intermediate steps, teacher and student."""

from collections.abc import Sequence

from stepcot_jax.evaluation.chains import FIGURES
from stepcot_jax.evaluation.comparison import INTERVALS, AnswerComparison
from stepcot_jax.evaluation.published import Constrained, step_figures
from stepcot_jax.pages.sheets import Row, Table, columns
from stepcot_jax.tools.tables.cells import Cell
from stepcot_jax.tools.tables.diagnosis_table import check_chain, describe_cases, list_step_rows
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
    known = {(model, step.name): step_figures(model, step.name) for step in comparison.chain.steps for model in models}
    shown = [figure for figure in FIGURES if any(figure in figures for figures in known.values())]
    rows: list[Row] = []
    for index, step in enumerate(comparison.chain.steps):
        about: Row = {"step": step.name, "cases": comparison.num_cases(index)}
        rows.append(about | {"model": "most frequent answer", "accuracy": comparison.constant(index)})
        for model in models:
            row = about | {"model": model}
            row |= {heading: comparison.figure(model, figure, index) for figure, heading in HEADINGS.items()}
            published = known[model, step.name].items()
            rows.append(row | {f"published: {HEADINGS[figure]}": share for figure, share in published})
        for constrained in large:
            for of_large, num_cases, *figures in list_step_rows(constrained, step.name):
                row = {"step": step.name, "model": of_large, "cases": num_cases}
                rows.append(row | dict(zip(HEADINGS.values(), figures, strict=True)))
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
    return Table.of(name, title, headings, rows, notes)
