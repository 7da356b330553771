"""Section 4.2: how each additional given answer changes the accuracy of the later steps."""

import io

import numpy as np

from stepcot_jax.evaluation.prediction_files import SplitPredictions
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.tables.answers_alone import accuracies_from_answers
from stepcot_jax.tables.cells import Cell, vary
from stepcot_jax.tables.comparing import INTERVALS, Comparison
from stepcot_jax.tables.plan import Plan
from stepcot_jax.tables.verdicts import CORRECTED
from stepcot_jax.tables.writing import Column, Entry, Figure, Table


def list_cells(plan: Plan) -> list[Cell]:
    """Teacher and student."""
    return [plan.main(seed) for seed in plan.seeds]


def make_tables(plan: Plan) -> list[Table]:
    """The table of finished cells, whose teachers read the test split now; the curve is drawn beside it."""
    chain = plan.cells.chain(plan.main(plan.seeds[0]))
    splits, alone = [], []
    for seed in plan.seeds:
        split, of_answers = _read(plan, plan.main(seed), chain.num_steps)
        splits.append(split)
        alone.append(of_answers)
    comparison = Comparison(splits, chain, plan.num_resamples)
    of_answers = np.mean(alone, axis=0)
    asked = [
        (position, count)
        for position in range(chain.num_steps)
        if comparison.num_cases(position)
        for count in range(position + 1)
    ]
    with_answers = [place for place in asked if place[1]]
    found = comparison.verdicts([_question(count, position) for position, count in with_answers])
    verdicts = dict(zip(with_answers, found, strict=True))
    rows: list[tuple[Entry, ...]] = [
        (
            chain.steps[position].name,
            count,
            comparison.figure(f"{count} given", "accuracy", position),
            comparison.difference(*_question(count, position)) if count else None,
            verdicts.get((position, count)),
            float(of_answers[position]),
        )
        for position, count in asked
    ]
    columns = (
        Column("step"),
        Column("answers given", "number"),
        Column("accuracy", "percent"),
        Column("difference from none given", "points"),
        Column("accuracy is"),
        Column("accuracy from the true earlier answers without an image", "percent"),
    )
    notes = (
        f"The teacher on the test split with the true answers of the first steps written to its memory, seeds "
        f"{list(plan.seeds)}.",
        INTERVALS,
        CORRECTED,
        "The last column is what the most frequent answer of training cases with the same earlier answers reaches: how "
        "far the true earlier answers alone, without the image, tell the step.",
    )
    pictures = {"effect.png": draw_curve(comparison)}
    return [Table("effect", "What given answers change in later steps", columns, tuple(rows), notes, pictures)]


def _question(count: int, position: int) -> tuple[str, str, str, int]:
    """Is a step's accuracy another with so many answers given than with none?"""
    return f"{count} given", "0 given", "accuracy", position


def _read(plan: Plan, cell: Cell, num_steps: int) -> tuple[SplitPredictions, list[float]]:
    """Predictions on the test split for each number of given answers, and accuracies from answers alone."""
    from stepcot_jax.features.inputs import load_inputs
    from stepcot_jax.tables.cell_networks import load_weights
    from stepcot_jax.tables.cell_reading import read_cases, read_given

    folder = plan.cells.folder(cell)
    settings = vary(cell.settings, {"features.folder": cell.settings.features.folder or str(plan.workdir / "features")})
    inputs = load_inputs(settings, folder, Terminal())
    split = read_cases(
        read_given(load_weights(folder, ("teacher",)), range(num_steps)),
        inputs,
        "test",
        batch_size=settings.evaluation.batch_size,
        num_threads=settings.data.num_threads,
    )
    labels = inputs.dataset.labels
    train, test = (labels[np.asarray(getattr(inputs.dataset.splits, name), int)] for name in ("train", "test"))
    return split, accuracies_from_answers(train=train, asked=test)


def draw_curve(comparison: Comparison) -> bytes:
    """A line for each step: its accuracy against the number of answers given before it, with intervals; as PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Picture

    picture = Picture(figsize=(8, 4.5), layout="constrained")
    axes = picture.subplots()
    for position, step in enumerate(comparison.chain.steps):
        if not comparison.num_cases(position):
            continue
        figures = [comparison.figure(f"{count} given", "accuracy", position) for count in range(position + 1)]
        counts, values = np.arange(position + 1), np.array([figure.value for figure in figures])
        lines = axes.plot(counts, 100 * values, marker="o", markersize=4, label=step.name)
        lows, highs = (np.array([_end(figure, end) for figure in figures]) for end in ("low", "high"))
        axes.fill_between(counts, 100 * lows, 100 * highs, color=lines[0].get_color(), alpha=0.12, linewidth=0)
    axes.set_xlabel("true answers given to the teacher, from the first step on")
    axes.set_ylabel("accuracy of the step (%)")
    axes.set_xticks(np.arange(comparison.chain.num_steps))
    axes.grid(alpha=0.3)
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    content = io.BytesIO()
    FigureCanvasAgg(picture).print_png(content)
    return content.getvalue()


def _end(figure: Figure, end: str) -> float:
    found = getattr(figure, end)
    return float("nan") if found is None else found
