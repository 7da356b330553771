"""Table 3: the diagnosis by baselines without and with the intermediate steps, teacher and student."""

from stepcot_jax.experiments.cells import Cell
from stepcot_jax.experiments.comparing import DIFFERENCES, HIGHER, INTERVALS, LOWER, Comparison, join, last_step_alone
from stepcot_jax.experiments.plan import Plan
from stepcot_jax.experiments.published import DIAGNOSIS_FIGURES
from stepcot_jax.experiments.writing import Column, Entry, Table

METRICS = {"accuracy": "accuracy", "auc": "mAUC", "sensitivity": "sensitivity", "specificity": "specificity"}
_WITHOUT, _WITH = "without", "with"


def list_cells(plan: Plan) -> list[Cell]:
    """Teacher and student, and each encoder's baseline without and with the intermediate steps."""
    return [cell for seed in plan.seeds for cell in (plan.main(seed), *plan.baselines(seed))]


def make_tables(plan: Plan) -> list[Table]:
    """The table of finished cells."""
    comparison = compare(plan)
    rows: list[tuple[Entry, ...]] = []
    for encoder in plan.encoders():
        without, with_steps = f"{encoder.name}, {_WITHOUT} steps", f"{encoder.name}, {_WITH} steps"
        rows.append(_row(comparison, without, encoder.name, _WITHOUT))
        rows.append(_row(comparison, with_steps, encoder.name, _WITH, against=without))
    rows += [_row(comparison, model, model, _WITH) for model in ("teacher", "student")]
    shown = {str(row[0]).casefold() for row in rows} | {f"{row[0]}, {row[1]} steps".casefold() for row in rows}
    rows += [
        (name, None, *[None] * (2 * len(METRICS) + 1), *_published(name))
        for name in DIAGNOSIS_FIGURES
        if name.casefold() not in shown
    ]
    notes = [
        f"{comparison.chain.steps[-1].name} alone, {comparison.num_cases(0)} test cases, seeds {list(plan.seeds)}.",
        INTERVALS,
        DIFFERENCES,
        "Differences: with less without the intermediate steps as supervision; what is not called a gain is none.",
        *(encoder.note for encoder in plan.encoders() if encoder.note),
    ]
    columns = (
        Column("model"),
        Column("intermediate steps"),
        *(Column(heading, "percent") for heading in METRICS.values()),
        *(Column(f"difference in {heading}", "points") for heading in METRICS.values()),
        Column("gain in accuracy"),
        *(Column(heading, "percent", published=True) for heading in METRICS.values()),
    )
    return [Table("diagnosis", "Diagnosis with and without intermediate steps", columns, tuple(rows), tuple(notes))]


def compare(plan: Plan) -> Comparison:
    """All models at the last step."""
    splits, chain = [], plan.cells.chain(plan.main(plan.seeds[0]))
    for seed in plan.seeds:
        main = plan.cells.predictions(plan.main(seed))
        parts = {model: (main, model) for model in ("teacher", "student")}
        for cell in plan.baselines(seed):
            parts[cell.name] = (plan.cells.predictions(cell), "baseline")
        splits.append(last_step_alone(join(parts), chain))
    return Comparison([split for split, _ in splits], splits[0][1], plan.num_resamples)


def _row(comparison: Comparison, model: str, name: str, steps: str, against: str | None = None) -> tuple[Entry, ...]:
    figures = [comparison.figure(model, metric, 0) for metric in METRICS]
    if against is None:
        gains: list[Entry] = [None] * (len(METRICS) + 1)
    else:
        gains = [comparison.difference(model, against, metric, 0) for metric in METRICS]
        verdict = comparison.verdict(model, against, "accuracy", 0)
        gains.append({HIGHER: "gain", LOWER: "loss"}.get(verdict, "none shown"))
    return (name, steps, *figures, *gains, *_published(name if name in DIAGNOSIS_FIGURES else f"{name}, {steps} steps"))


def _published(name: str) -> list[Entry]:
    by_name = {known.casefold(): figures for known, figures in DIAGNOSIS_FIGURES.items()}
    figures = by_name.get(name.casefold())
    return [None if figures is None else getattr(figures, metric) for metric in METRICS]
