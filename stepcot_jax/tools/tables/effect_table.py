"""True answers given to our teacher: the effect of each additional one on the accuracy of later steps.

This is not an experiment of the paper.
"""

import collections
import io

import numpy as np
from jaxtyping import Int

from stepcot_jax.chain import NOT_ANNOTATED
from stepcot_jax.evaluation.comparison import CORRECTED, INTERVALS, AnswerComparison
from stepcot_jax.evaluation.predictions import SplitPredictions
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.pages.sheets import Entry, Table, columns
from stepcot_jax.tools.tables.cells import Cell
from stepcot_jax.tools.tables.plan import Plan


def list_cells(plan: Plan) -> list[Cell]:
    """Return teacher and student."""
    return [plan.main(seed) for seed in plan.seeds]


def make_tables(plan: Plan) -> list[Table]:
    """Make the table and its curve: the teachers of finished cells read the test split again."""
    chain = plan.cells.chain(plan.main(plan.seeds[0]))
    splits, alone = zip(*(_read(plan, plan.main(seed), chain.num_steps) for seed in plan.seeds), strict=True)
    comparison = AnswerComparison(splits, plan.num_resamples, chain=chain)
    asked = [
        (position, count)
        for position in range(chain.num_steps)
        if comparison.num_cases(position)
        for count in range(position + 1)
    ]
    # Whether a step's accuracy with `count` answers given differs from that with none.
    questions = {
        (position, count): (f"{count} given", "0 given", "accuracy", position) for position, count in asked if count
    }
    verdicts = dict(zip(questions, comparison.verdicts(list(questions.values())), strict=True))
    of_answers = np.mean(alone, axis=0)
    rows: list[tuple[Entry, ...]] = []
    for position, count in asked:
        accuracy = comparison.figure(f"{count} given", "accuracy", position)
        difference = comparison.difference(*questions[position, count]) if count else None
        verdict = verdicts.get((position, count))
        rows.append((chain.steps[position].name, count, accuracy, difference, verdict, float(of_answers[position])))
    headings = (
        *columns("text", "step"),
        *columns("number", "answers given"),
        *columns("percent", "accuracy"),
        *columns("points", "difference from none given"),
        *columns("text", "accuracy is"),
        *columns("percent", "accuracy from the true earlier answers without an image"),
    )
    notes = (
        "The teacher on the test split with the true answers of the first steps in its memory, seeds "
        f"{list(plan.seeds)}. Not an experiment of the paper.",
        INTERVALS,
        CORRECTED,
        "The last column is the accuracy of the most frequent answer among training cases with the same earlier "
        "answers: what the true earlier answers tell without the image.",
    )
    pictures = {"effect.png": draw_curve(comparison)}
    title = "True answers given to our teacher: accuracy of later steps"
    return [Table("effect", title, headings, tuple(rows), notes, pictures)]


def _read(plan: Plan, cell: Cell, num_steps: int) -> tuple[SplitPredictions, list[float]]:
    """Predictions on the test split for each number of given answers, and accuracies from answers alone."""
    from stepcot_jax.run.inputs import load_inputs
    from stepcot_jax.tools.tables.cell_networks import load_weights, read_cases, read_given

    folder, settings = plan.cells.folder(cell), plan.cells.share_features(cell.settings)
    inputs = load_inputs(settings, folder, Terminal())
    predict = read_given(load_weights(folder, ("teacher",)), range(num_steps))
    split = read_cases(predict, inputs, "test", settings)
    labels = inputs.dataset.labels
    train, test = (labels[np.asarray(getattr(inputs.dataset.splits, name), int)] for name in ("train", "test"))
    return split, accuracies_from_answers(train=train, asked=test)


def draw_curve(comparison: AnswerComparison) -> bytes:
    """Draw each step's accuracy against the number of given answers, with intervals, as PNG."""
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
        # A missing interval becomes NaN.
        lows, highs = (np.array([getattr(figure, end) for figure in figures], float) for end in ("low", "high"))
        axes.fill_between(counts, 100 * lows, 100 * highs, color=lines[0].get_color(), alpha=0.12, linewidth=0)
    axes.set_xlabel("true answers given to the teacher, from the first step on")
    axes.set_ylabel("accuracy of the step (%)")
    axes.set_xticks(np.arange(comparison.chain.num_steps))
    axes.grid(alpha=0.3)
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    content = io.BytesIO()
    FigureCanvasAgg(picture).print_png(content)
    return content.getvalue()


def predict_from_answers(
    *, train: Int[np.ndarray, "case step"], asked: Int[np.ndarray, "case step"], step: int
) -> Int[np.ndarray, " case"]:
    """Predict the most frequent answer of the training cases with the same earlier answers.

    Where no training case has them, the earliest answer is left out, and so on. Of equally frequent answers the first
    is taken. A missing answer counts as an answer of its own.

    Returns:
      A label for each case, `NOT_ANNOTATED` if no training case has the step annotated.

    >>> train = np.array([[0, 1], [0, 1], [1, 0], [1, 2], [1, 2]])
    >>> predict_from_answers(train=train, asked=np.array([[0, 0], [1, 0], [3, 0]]), step=1).tolist()
    [1, 2, 1]
    """
    known = train[train[:, step] != NOT_ANNOTATED]
    tables: list[dict[tuple[int, ...], int]] = []
    for start in range(step + 1):
        counts: dict[tuple[int, ...], collections.Counter[int]] = collections.defaultdict(collections.Counter)
        for row in known.tolist():
            counts[tuple(row[start:step])][row[step]] += 1
        # Of equally frequent answers the first.
        tables.append({earlier: max(sorted(found), key=found.__getitem__) for earlier, found in counts.items()})
    answers = []
    for row in asked.tolist():
        found = (table.get(tuple(row[start:step])) for start, table in enumerate(tables))
        answers.append(next((answer for answer in found if answer is not None), NOT_ANNOTATED))
    return np.array(answers, np.int32)


def accuracies_from_answers(*, train: Int[np.ndarray, "case step"], asked: Int[np.ndarray, "case step"]) -> list[float]:
    """Return the accuracy of `predict_from_answers` at each step over the annotated cases; NaN without any."""
    shares = []
    for step in range(train.shape[1]):
        truth = asked[:, step]
        annotated = truth != NOT_ANNOTATED
        answers = predict_from_answers(train=train, asked=asked, step=step)
        shares.append(float((answers == truth)[annotated].mean()) if annotated.any() else float("nan"))
    return shares
