"""True answers given to our teacher: the effect of each additional one on the accuracy of later steps.

This is not an experiment of the paper.
"""

import collections
import dataclasses
from typing import Any

import numpy as np
from jaxtyping import Int

from stepcot_jax.chain import NOT_ANNOTATED
from stepcot_jax.data.dataset import Dataset
from stepcot_jax.evaluation.comparison import CORRECTED, INTERVALS, AnswerComparison, settle
from stepcot_jax.evaluation.predictions import SplitPredictions
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.pages.sheets import Table, columns
from stepcot_jax.tools.tables.cells import Cell
from stepcot_jax.tools.tables.plan import Plan, Recipe

_ALONE = "accuracy from the true earlier answers without an image"


def make_tables(plan: Plan) -> list[Table]:
    """Make the table and its curve: the teachers of finished cells read the test split again."""
    chain = plan.cells.chain(plan.main(plan.seeds[0]))
    splits, alone = zip(*(_read(plan, plan.main(seed), chain.num_steps) for seed in plan.seeds), strict=True)
    comparison = AnswerComparison(splits, plan.num_resamples, chain=chain)
    of_answers = np.mean(alone, axis=0)
    rows: list[dict[str, Any]] = []
    for position, step in enumerate(chain.steps):
        for count in range(position + 1) if comparison.num_cases(position) else ():
            given, none = f"{count} given", "0 given"
            row = {"step": step.name, "answers given": count, _ALONE: float(of_answers[position])}
            row["accuracy"] = comparison.figure(given, "accuracy", position)
            if count:
                row["difference from none given"] = comparison.difference(given, none, "accuracy", position)
                row["accuracy is"] = comparison.evidence(given, none, "accuracy", position)
            rows.append(row)
    headings = (
        *columns("text", "step"),
        *columns("number", "answers given"),
        *columns("percent", "accuracy"),
        *columns("points", "difference from none given"),
        *columns("text", "accuracy is"),
        *columns("percent", _ALONE),
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
    return [Table.of("effect", title, headings, settle(rows), notes, pictures)]


def _read(plan: Plan, cell: Cell, num_steps: int) -> tuple[SplitPredictions, list[float]]:
    """Return predictions on the test split for each number of given answers, and accuracies from answers alone."""
    from stepcot_jax.run.inputs import load_inputs
    from stepcot_jax.tools.tables.cell_networks import load_weights, read_cases, read_given

    folder, settings = plan.cells.folder(cell), plan.cells.share_features(cell.settings)
    counted, opened = load_inputs(settings, folder, Terminal()).choose_then_open(
        lambda view: EarlierAnswers.count(view.dataset)
    )
    predict = read_given(load_weights(folder, ("teacher",)), range(num_steps))
    split = read_cases(predict, opened, "test", settings)
    return split, counted.accuracies(opened.dataset.labels[np.asarray(opened.dataset.splits.test, int)])


def draw_curve(comparison: AnswerComparison) -> bytes:
    """Draw each step's accuracy against the number of given answers, with intervals, as PNG."""
    from matplotlib.figure import Figure as Picture

    from stepcot_jax.pages.figures import draw_band, to_png

    picture = Picture(figsize=(8, 4.5), layout="constrained")
    axes = picture.subplots()
    for position, step in enumerate(comparison.chain.steps):
        if not comparison.num_cases(position):
            continue
        figures = [comparison.figure(f"{count} given", "accuracy", position) for count in range(position + 1)]
        draw_band(axes, figures, label=step.name, size=4, alpha=0.12)
    axes.set_xlabel("true answers given to the teacher, from the first step on")
    axes.set_ylabel("accuracy of the step (%)")
    axes.set_xticks(np.arange(comparison.chain.num_steps))
    axes.grid(alpha=0.3)
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    return to_png(picture)


_Counts = dict[tuple[int, ...], int]


@dataclasses.dataclass(frozen=True)
class EarlierAnswers:
    """The most frequent answer to each step among training cases with the same earlier answers.

    >>> counted = EarlierAnswers.of_labels(np.array([[0, 1], [0, 1], [1, 0], [1, 2], [1, 2]]))
    >>> counted.predict(np.array([[0, 0], [1, 0], [3, 0]]), step=1).tolist()
    [1, 2, 1]
    """

    tables: tuple[tuple[_Counts, ...], ...]  # by step, then by the number of earliest answers left out

    @classmethod
    def count(cls, dataset: Dataset) -> "EarlierAnswers":
        """Count the training cases of a dataset."""
        return cls.of_labels(dataset.labels[np.asarray(dataset.splits.train, int)])

    @classmethod
    def of_labels(cls, labels: Int[np.ndarray, "case step"]) -> "EarlierAnswers":
        """Count cases; a missing answer is an answer of its own, and of equally frequent ones the first counts."""
        return cls(tuple(_count_step(labels, step) for step in range(labels.shape[1])))

    def predict(self, asked: Int[np.ndarray, "case step"], *, step: int) -> Int[np.ndarray, " case"]:
        """Return the counted answer to a step of each case, `NOT_ANNOTATED` if no training case has the step annotated.

        Where no training case has the same earlier answers, the earliest one is left out, and so on.
        """
        answers = []
        for row in asked.tolist():
            known = (table.get(tuple(row[start:step])) for start, table in enumerate(self.tables[step]))
            answers.append(next((answer for answer in known if answer is not None), NOT_ANNOTATED))
        return np.array(answers, np.int32)

    def accuracies(self, asked: Int[np.ndarray, "case step"]) -> list[float]:
        """Return the accuracy of `predict` at each step over the annotated cases; NaN without any."""
        shares = []
        for step, truth in enumerate(asked.T):
            annotated = truth != NOT_ANNOTATED
            right = self.predict(asked, step=step) == truth
            shares.append(float(right[annotated].mean()) if annotated.any() else float("nan"))
        return shares


def _count_step(labels: Int[np.ndarray, "case step"], step: int) -> tuple[_Counts, ...]:
    known, tables = labels[labels[:, step] != NOT_ANNOTATED], []
    for start in range(step + 1):
        counts: dict[tuple[int, ...], collections.Counter[int]] = collections.defaultdict(collections.Counter)
        for row in known.tolist():
            counts[tuple(row[start:step])][row[step]] += 1
        tables.append({earlier: max(sorted(counter), key=counter.__getitem__) for earlier, counter in counts.items()})
    return tuple(tables)


RECIPES = {"effect": Recipe(lambda plan, seed: [plan.main(seed)], make_tables)}
