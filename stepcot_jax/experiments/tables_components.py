"""Tables 6 and 9: what memory, text, write-back, distillation and channel alignment are worth."""

from stepcot_jax.evaluation.prediction_files import SplitPredictions
from stepcot_jax.experiments.cells import Cell
from stepcot_jax.experiments.comparing import DIFFERENCES, HIGHER, INTERVALS, LOWER, Comparison, join
from stepcot_jax.experiments.plan import ABLATIONS, OF_STUDENT, Plan
from stepcot_jax.experiments.published import COMPONENT_ACCURACY
from stepcot_jax.experiments.tables_steps import tabulate_steps
from stepcot_jax.experiments.writing import Column, Entry, Figure, Table


def list_cells(plan: Plan) -> list[Cell]:
    """Teacher and student with everything, and with each thing taken away."""
    return [
        cell for seed in plan.seeds for cell in (plan.main(seed), *(plan.ablation(name, seed) for name in ABLATIONS))
    ]


def variants() -> dict[str, str]:
    """The models with something taken away -> the one with everything that each is compared with."""
    of_teacher = {f"teacher {name}": "teacher" for name in ABLATIONS if name not in OF_STUDENT}
    return of_teacher | {f"student {name}": "student" for name in ABLATIONS}


def make_tables(plan: Plan) -> list[Table]:
    """Accuracies, their differences, and all figures of each step, of finished cells."""
    splits = []
    for seed in plan.seeds:
        main = plan.cells.predictions(plan.main(seed))
        parts: dict[str, tuple[SplitPredictions, str]] = {model: (main, model) for model in ("teacher", "student")}
        ablated = {name: plan.cells.predictions(plan.ablation(name, seed)) for name in ABLATIONS}
        for variant, base in variants().items():
            parts[variant] = (ablated[variant.removeprefix(f"{base} ")], base)
        splits.append(join(parts))
    comparison = Comparison(splits, plan.cells.chain(plan.main(plan.seeds[0])), plan.num_resamples)
    models = list(splits[0].predictions.logits)
    return [
        _tabulate_accuracy(comparison, plan),
        _tabulate_differences(comparison, plan),
        tabulate_steps("components_steps", "Every step with parts taken away", comparison, models, plan.seeds),
    ]


def _tabulate_accuracy(comparison: Comparison, plan: Plan) -> Table:
    steps = comparison.chain.steps
    published_steps = [step.name for step in steps if step.name in COMPONENT_ACCURACY["teacher"]]
    rows: list[tuple[Entry, ...]] = []
    order = ["teacher", *(name for name, base in variants().items() if base == "teacher")]
    order += ["student", *(name for name, base in variants().items() if base == "student")]
    for model in order:
        base = variants().get(model)
        difference: Figure | None = None
        verdict: str | None = None
        if base is not None:
            difference = comparison.difference(model, base, "mean_accuracy")
            verdict = comparison.verdict(model, base, "mean_accuracy")
        # The paper takes memory and text away from the teacher.
        published = COMPONENT_ACCURACY.get(model.removeprefix("teacher "), {})
        rows.append(
            (
                model,
                *(comparison.figure(model, "accuracy", position) for position in range(len(steps))),
                comparison.figure(model, "mean_accuracy"),
                comparison.figure(model, "chain_accuracy"),
                difference,
                verdict,
                *(published.get(name) for name in published_steps),
            )
        )
    columns = (
        Column("model"),
        *(Column(step.name, "percent") for step in steps),
        Column("mean of the steps", "percent"),
        Column("whole chain", "percent"),
        Column("difference of the mean from everything", "points"),
        Column("with it taken away the mean is"),
        *(Column(name, "percent", published=True) for name in published_steps),
    )
    notes = (f"Accuracy on the test split, seeds {list(plan.seeds)}.", INTERVALS, DIFFERENCES, *conclude(comparison))
    return Table("components", "Accuracy with parts taken away", columns, tuple(rows), notes)


def conclude(comparison: Comparison) -> list[str]:
    """What the differences allow to be said of each part, a sentence each."""
    sentences = []
    for variant, base in variants().items():
        difference = comparison.difference(variant, base, "mean_accuracy")
        verdict = comparison.verdict(variant, base, "mean_accuracy")
        said = {
            HIGHER: f"the {base} is better without it",
            LOWER: f"the {base} needs it",
        }.get(verdict, "no difference is shown")
        ends = f"[{100 * (difference.low or 0):+.1f}, {100 * (difference.high or 0):+.1f}]"
        sentences.append(
            f"{variant[0].upper()}{variant[1:]}: mean accuracy {100 * difference.value:+.1f} {ends} points; {said}."
        )
    return sentences


def _tabulate_differences(comparison: Comparison, plan: Plan) -> Table:
    rows: list[tuple[Entry, ...]] = []
    for variant, base in variants().items():
        for position, step in enumerate(comparison.chain.steps):
            if not comparison.num_cases(position):
                continue
            rows.append(
                (
                    variant,
                    base,
                    step.name,
                    comparison.difference(variant, base, "accuracy", position),
                    comparison.p_value(variant, base, position),
                    comparison.verdict(variant, base, "accuracy", position),
                    comparison.difference(variant, base, "auc", position),
                    comparison.verdict(variant, base, "auc", position),
                )
            )
    columns = (
        Column("model"),
        Column("less"),
        Column("step"),
        Column("accuracy", "points"),
        Column("p", "number"),
        Column("accuracy is"),
        Column("mAUC", "points"),
        Column("mAUC is"),
    )
    notes = (f"Paired on the test split, seeds {list(plan.seeds)}.", INTERVALS, DIFFERENCES)
    return Table("components_differences", "Differences with parts taken away", columns, tuple(rows), notes)
