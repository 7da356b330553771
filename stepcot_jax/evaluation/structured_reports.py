"""Figures of structured reports: the published evaluation of Rad-ReStruct (Pellegrini et al., MICCAI 2023), restated.

A report is a form with a cell for every option of every question. A network answers the tree of questions with its own
earlier answers (`answer_tree`); questions that these do not open are never asked, and their cells say no or nothing.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt
from jaxtyping import Bool, Float, Int

from stepcot_jax.chain import NOT_ANNOTATED, YES_NO, Chain, Step, fold
from stepcot_jax.evaluation.predictions import softmax
from stepcot_jax.evaluation.statistics import Interval, Weights, count_once, count_patients, name_patients, percentiles

YES, NO = 0, 1
NOTHING_CHOSEN = ("no selection", "unspecified")
"""Options of a question with several right answers that exclude the others."""

FIGURES = ("report_accuracy", "precision", "recall", "f1", "f1_of_cells")
NO_TO_EVERYTHING = "no to everything"
ALL = "all"

PUBLISHED: dict[str, dict[str, float]] = {
    ALL: {"report_accuracy": 0.302, "f1": 0.320, "precision": 0.646, "recall": 0.333},
    "level 1": {"report_accuracy": 0.337, "f1": 0.643, "precision": 0.811, "recall": 0.646},
    "level 2": {"report_accuracy": 0.310, "f1": 0.716, "precision": 0.853, "recall": 0.720},
    "level 2/diseases": {"report_accuracy": 0.481, "f1": 0.736, "precision": 0.853, "recall": 0.720},
    "level 2/signs": {"report_accuracy": 0.719, "f1": 0.743, "precision": 0.931, "recall": 0.745},
    "level 2/body_regions": {"report_accuracy": 0.524, "f1": 0.687, "precision": 0.822, "recall": 0.696},
    "level 2/objects": {"report_accuracy": 0.877, "f1": 0.672, "precision": 0.773, "recall": 0.676},
    "level 3": {"report_accuracy": 0.302, "f1": 0.041, "precision": 0.500, "recall": 0.063},
}
"""hi-VQA on the test part, updated data set (README of ChantalMP/Rad-ReStruct at b293158), from pictures."""

NO_ON_TEST: dict[str, tuple[float, float, float, float]] = {
    ALL: (0.396, 0.997, 0.288, 0.287),
    "level 1": (0.396, 0.971, 0.581, 0.566),
    "level 2": (0.396, 0.995, 0.702, 0.700),
    "level 2/diseases": (0.596, 0.995, 0.721, 0.719),
    "level 2/signs": (0.778, 0.997, 0.732, 0.730),
    "level 2/body_regions": (0.687, 0.992, 0.674, 0.670),
    "level 2/objects": (0.912, 0.996, 0.656, 0.654),
    "level 3": (0.396, 1.0, 0.002, 0.002),
}
"""Figures of "no to everything" on the published test part, by image as published (374; 38.9 % of the 360 reports)."""


def is_whole_yes_or_no(step: Step) -> bool:
    """Return whether a step is a question of yes or no, not one option of a question."""
    return not step.choice and tuple(map(fold, step.options)) == YES_NO


def answer_tree(
    logits: Float[np.ndarray, "case step answer"], chain: Chain, *, threshold: float = 0.5
) -> Int[np.ndarray, "case step"]:
    """Return the answers that a network gives with its own history; `NOT_ANNOTATED` where these open no question.

    Args:
      logits: padded, each step's own answers first; of steps that are never asked they do not matter.
      chain: the tree.
      threshold: probability from which a question or option is answered yes; 0.5 as published. Where several answers
        may be right and none is chosen, it is "no selection" or "unspecified", which otherwise is chosen alone.

    Returns:
      Labels [case, step]. Questions with one right answer among three or more take the most probable.
    """
    answers = np.empty(logits.shape[:2], np.int64)
    for position, step in enumerate(chain.steps):
        probabilities = softmax(logits[:, position, : step.num_answers].astype(np.float64))
        is_binary = step.choice or is_whole_yes_or_no(step)
        answers[:, position] = probabilities[:, YES] < threshold if is_binary else probabilities.argmax(axis=1)
    for question in chain.questions:
        choices = [fold(chain.steps[position].choice) for position in question]
        nothing = [position for position, choice in zip(question, choices, strict=True) if choice in NOTHING_CHOSEN]
        if nothing and len(question) > 1:
            number = (answers[:, question] == YES).sum(axis=1)
            excluded = np.where(number > 1, NO, np.where(number == 0, YES, answers[:, nothing[0]]))
            answers[:, nothing[0]] = excluded
    return chain.close(answers)


def answer_no(chain: Chain, num_cases: int) -> Int[np.ndarray, "case step"]:
    """Return the answers of the constant that says no to everything, which opens no question.

    >>> tree = Chain((Step("Mass", "?", ("yes", "no")), Step("Side", "?", ("left", "right"), asked_if=(0, 0))))
    >>> answer_no(tree, 1).tolist()
    [[1, -100]]
    """
    says_no = [
        is_whole_yes_or_no(step) or (step.choice and fold(step.choice) not in NOTHING_CHOSEN) for step in chain.steps
    ]
    labels = [NO if no else YES for no in says_no]
    return chain.close(np.tile(labels, (num_cases, 1)))


@dataclasses.dataclass(frozen=True)
class Form:
    """The cells of a form: one for every option of every question, in the chain's order."""

    step: Int[np.ndarray, " cell"]
    label: Int[np.ndarray, " cell"]
    says_no: Bool[np.ndarray, " cell"]  # cells that are true where their step is not asked: the "no" of yes and no
    parts: Mapping[str, Bool[np.ndarray, " cell"]]  # cells of "all" and of each part, with parts of parts

    @staticmethod
    def of(chain: Chain) -> "Form":
        """Return the form of a tree; an option of a question with several right answers is one cell."""
        cells = [
            (position, label, is_whole_yes_or_no(step) and label == NO, step.part)
            for position, step in enumerate(chain.steps)
            for label in range(1 if step.choice else step.num_answers)
        ]
        steps, labels, says_no, parts = map(np.array, zip(*cells, strict=True))
        names = [name for name in dict.fromkeys(step.part for step in chain.steps) if name]
        wider = dict.fromkeys(prefix for name in sorted(names) for prefix in (name.partition("/")[0], name))
        of_part = {name: (parts == name) | np.char.startswith(parts, f"{name}/") for name in wider}
        return Form(steps, labels, says_no, {ALL: np.ones(len(cells), bool), **of_part})

    def fill(self, answers: Int[np.ndarray, "case step"]) -> Bool[np.ndarray, "case cell"]:
        """Return the cells that answers fill; those of questions that are not asked say no, or nothing."""
        of_cells = answers[:, self.step]
        return (of_cells == self.label) | ((of_cells == NOT_ANNOTATED) & self.says_no)


Figures = dict[tuple[str, str], npt.NDArray[np.float64]]
"""Figures [resample] by part and name of `FIGURES`."""


def compute_figures(
    form: Form, truth: Bool[np.ndarray, "case cell"], given: Bool[np.ndarray, "case cell"], weights: Weights
) -> Figures:
    """Return figures for weights [resample, case].

    Report accuracy is the share of cases whose cells of the part are all right. Precision, recall and F1 are the
    published means: over the cells that are true in some case, and over the four averages of scikit-learn's
    `classification_report` (micro, macro over all cells, weighted, by case), each of which counts as one more cell;
    what is undefined counts 1. "f1_of_cells" is the mean F1 over the cells that are true in some case alone.
    """
    return {
        (part, name): values
        for part, mask in form.parts.items()
        for name, values in zip(FIGURES, _compute_part(weights, truth[:, mask], given[:, mask]), strict=True)
    }


def _compute_part(weights: Weights, true: npt.NDArray, said: npt.NDArray) -> Iterator[npt.NDArray[np.float64]]:
    num_cases = weights.sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        yield weights @ (true == said).all(axis=1) / num_cases
        hits, positive, claimed = (weights @ cells.astype(np.float64) for cells in (true & said, true, said))
        occurs = positive > 0
        number = occurs.sum(axis=1)
        of_cells = _rates(hits, positive, claimed)
        of_all = _rates(*(counts.sum(axis=1) for counts in (hits, positive, claimed)))
        of_cases = _rates(*(cells.sum(axis=1).astype(np.float64) for cells in (true & said, true, said)))
        for rates, micro, by_case in zip(of_cells, of_all, of_cases, strict=True):
            in_cells = np.where(occurs, rates, 0.0).sum(axis=1)
            weighted = (rates * positive).sum(axis=1) / positive.sum(axis=1)
            averages = micro + rates.mean(axis=1) + weighted + weights @ by_case / num_cases
            yield np.where(number > 0, (in_cells + averages) / (number + 4), math.nan)
        yield in_cells / number


def _rates(hits: npt.NDArray, positive: npt.NDArray, claimed: npt.NDArray) -> tuple[npt.NDArray, ...]:
    """Return precision, recall and F1, 1 where undefined."""
    pairs = ((hits, claimed), (hits, positive), (2 * hits, positive + claimed))
    return tuple(np.divide(part, of, out=np.ones_like(part), where=of > 0) for part, of in pairs)


def measure_f1(
    logits: Float[np.ndarray, "case step answer"], labels: npt.NDArray, chain: Chain, *, threshold: float = 0.5
) -> float:
    """Return the published F1 of a network with its own history, by which weights and threshold are chosen."""
    form = Form.of(chain)
    given = form.fill(answer_tree(logits, chain, threshold=threshold))
    return float(compute_figures(form, form.fill(labels), given, count_once(len(labels)))[ALL, "f1"][0])


def choose_threshold(logits: Float[np.ndarray, "case step answer"], labels: npt.NDArray, chain: Chain) -> float:
    """Return the threshold of `answer_tree` with the highest F1, of 0.05, 0.1, .. 0.5; to be called on validation."""
    thresholds = (0.5, *(round(0.05 * number, 2) for number in range(1, 10)))
    return max(thresholds, key=lambda threshold: measure_f1(logits, labels, chain, threshold=threshold))


Rows = dict[str, dict[str, dict[str, Interval]]]


def score_reports(
    answers: Mapping[str, Int[np.ndarray, "case step"]],
    labels: Int[np.ndarray, "case step"],
    chain: Chain,
    *,
    patients: npt.NDArray[np.str_],
    num_resamples: int = 1000,
) -> tuple[Rows, Rows]:
    """Return figures with intervals by patient: of each model and the constant, and the models' less the constant's.

    Args:
      answers: of each model, with its own history, as `answer_tree` returns them.
      labels: true labels; `NOT_ANNOTATED` where a question was not asked.
      chain: the tree.
      patients: of each case.
      num_resamples: of patients.

    Returns:
      By model, part and name of `FIGURES`; "no to everything" comes first. Differences are paired.
    """
    form, once = Form.of(chain), count_once(len(labels))
    truth, is_alone = form.fill(labels), count_patients(patients) < 2
    # Positive weights (Rubin, Ann. Stat. 9 (1981)): drawing patients with replacement would drop the only report with a
    # true cell, hence the cell from the mean, and F1 of such resamples is several points higher than that of the split.
    names, member = np.unique(name_patients(patients), return_inverse=True)
    drawn = np.random.default_rng(0).exponential(size=(num_resamples, len(names)))[:, member]

    def summarise(values: Figures, resampled: Figures) -> dict[str, dict[str, Interval]]:
        found = {key: float(value[0]) for key, value in values.items()}
        rows = {key: Interval(one) if is_alone else percentiles(one, resampled[key]) for key, one in found.items()}
        return {part: {name: rows[part, name] for name in FIGURES} for part in form.parts}

    scores, differences, less = Rows(), Rows(), list[Figures]()
    for model, given in {NO_TO_EVERYTHING: answer_no(chain, len(labels)), **answers}.items():
        figures = [compute_figures(form, truth, form.fill(given), weights) for weights in (once, drawn)]
        scores[model], less = summarise(*figures), less or figures
        if model != NO_TO_EVERYTHING:
            pairs = zip(figures, less, strict=True)
            differences[model] = summarise(*({key: mine[key] - of[key] for key in mine} for mine, of in pairs))
    return scores, differences


def format_scores(scores: Rows, differences: Rows) -> str:
    """Return a Markdown table in percent: every part and model, the constant first, with the published test figures."""
    lines = [
        "| part | answers | report accuracy | precision | recall | F1 | F1 less the constant's |",
        "|---" * 7 + "|",
    ]
    for part in next(iter(scores.values())):
        for model, parts in scores.items():
            cells = [_in_percent(parts[part][name]) for name in FIGURES[:4]]
            less = _in_percent(differences[model][part]["f1"]) if model in differences else ""
            lines.append("| " + " | ".join([part, model, *cells, less]) + " |")
        if part in PUBLISHED and differences:
            cells = [f"{100 * PUBLISHED[part][name]:.1f}" for name in FIGURES[:4]]
            lines.append("| " + " | ".join([part, "published: hi-VQA (test part, pictures)", *cells, ""]) + " |")
            cells = [f"{100 * figure:.1f}" for figure in NO_ON_TEST[part]]
            lines.append("| " + " | ".join([part, f"{NO_TO_EVERYTHING} on that test part", *cells, ""]) + " |")
    return "\n".join(lines)


def _in_percent(figure: Interval) -> str:
    if math.isnan(figure.low):
        return f"{100 * figure.value:.1f}"
    return f"{100 * figure.value:.1f} [{100 * figure.low:.1f}, {100 * figure.high:.1f}]"
