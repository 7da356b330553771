"""Cross-validation by patient: every case is a test case once; the networks against the most frequent answer."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from stepcot_jax.chain import NOT_ANNOTATED
from stepcot_jax.data.splits.making import list_folds
from stepcot_jax.evaluation.chains import answer_accuracy
from stepcot_jax.evaluation.comparison import CORRECTED, INTERVALS, MCNEMAR, AnswerComparison, choose_steps
from stepcot_jax.evaluation.predictions import FACTS, Predictions, SplitPredictions, ValidationPredictions
from stepcot_jax.evaluation.statistics import count_once, count_patients
from stepcot_jax.host.errors import BadInput
from stepcot_jax.pages.sheets import Entry, Table, columns
from stepcot_jax.tools.tables.cells import Cell, vary
from stepcot_jax.tools.tables.plan import Plan

CONSTANT = "most frequent answer"
NETWORKS = ("teacher", "student")
_Question = tuple[str, str, str, int | None]
_FIGURES = {"accuracy": "accuracy", "auc": "mAUC", "f1": "F1"}


def list_cells(plan: Plan) -> list[Cell]:
    """Return teacher and student of every fold."""
    return [_cell(plan, fold, seed) for seed in plan.seeds for fold in list_folds()]


def _cell(plan: Plan, fold: str, seed: int) -> Cell:
    return Cell(f"fold {fold}", vary(plan.settings, {"seed": seed, "data.fold": fold}))


def pool_folds(folds: Mapping[str, SplitPredictions], models: Sequence[str]) -> SplitPredictions:
    """Join the test cases of all folds, and add a model that always gives the most frequent answer.

    Returns:
      All cases with the models and `CONSTANT`, whose answers in a fold are the most frequent of the other folds' cases.
    """
    first_of: dict[str, str] = {}
    for fold, split in folds.items():
        for case in split.facts["case_id"].tolist():
            if case in first_of:
                raise BadInput(
                    f"fold {fold}, case {case!r}: also a test case of fold {first_of[case]}; expected each case once"
                )
            first_of[case] = fold
    splits = list(folds.values())
    labels = np.concatenate([split.predictions.labels for split in splits])
    logits = {model: np.concatenate([split.predictions.logits[model] for split in splits]) for model in models}
    fold_of = np.repeat(np.arange(len(splits)), [len(split.predictions.labels) for split in splits])
    constant = np.zeros_like(logits[models[0]])
    for number in range(len(splits)):
        for step, answers in enumerate(labels[fold_of != number].T):
            if (answers != NOT_ANNOTATED).any():
                constant[fold_of == number, step, np.bincount(answers[answers != NOT_ANNOTATED]).argmax()] = 1
    index = np.concatenate([split.predictions.index for split in splits])
    facts = {fact: np.concatenate([split.facts[fact] for split in splits]) for fact in FACTS}
    return SplitPredictions(Predictions(index, labels, {**logits, CONSTANT: constant}), facts)


def validation_accuracy(
    splits: Sequence[ValidationPredictions], model: str, num_answers: Sequence[int]
) -> npt.NDArray[np.float64]:
    """Return a model's accuracy of each step [step], its mean over the validation splits of folds and seeds."""
    accuracies = []
    for split in splits:
        labels, logits = split.predictions.labels, split.predictions.logits[model]
        answers = [logits[:, step, :count].argmax(axis=-1) for step, count in enumerate(num_answers)]
        accuracies.append(
            answer_accuracy(count_once(len(labels)), answers=np.stack(answers, axis=1), labels=labels)[0][0]
        )
    return np.nanmean(accuracies, axis=0)


def make_tables(plan: Plan) -> list[Table]:
    """Make the table from finished cells."""
    chain = plan.cells.chain(_cell(plan, list_folds()[0], plan.seeds[0]))
    pooled = [
        pool_folds({fold: plan.cells.predictions(_cell(plan, fold, seed)) for fold in list_folds()}, NETWORKS)
        for seed in plan.seeds
    ]
    comparison = AnswerComparison(pooled, plan.num_resamples, chain=chain)
    labels = pooled[0].predictions.labels
    kept = [index for index, answers in enumerate(labels.T) if len(np.unique(answers[answers != NOT_ANNOTATED])) > 1]
    left_out = [step.name for index, step in enumerate(chain.steps) if index not in kept]
    if not kept:
        raise BadInput("table folds: the cases have one answer only at every step; expected a step with two or more")
    validated = [choose_steps(plan.cells.validation(cell), kept) for cell in list_cells(plan)]
    return [_tabulate(comparison.choose_steps(kept), validated, plan, left_out)]


def _tabulate(
    comparison: AnswerComparison, validated: Sequence[ValidationPredictions], plan: Plan, left_out: Sequence[str]
) -> Table:
    facts, answers = comparison.splits[0].facts, comparison.chain.answers_per_step
    validation = {model: validation_accuracy(validated, model, answers) for model in NETWORKS}
    headings = (
        *columns("text", "step", "model"),
        *columns("number", "cases"),
        *columns("percent", *_FIGURES.values(), "accuracy on validation"),
        *columns("points", f"accuracy above {CONSTANT}"),
        *columns("number", "p"),
        *columns("text", "accuracy is"),
    )
    num_patients, num_folds = count_patients(facts["patient_id"]), len(list_folds())
    notes = [
        f"{len(facts['case_id'])} cases of {num_patients} patients, each a test case of exactly one of {num_folds} "
        f"folds; seeds {list(plan.seeds)}. mAUC pools the scores of {num_folds} networks.",
        f"{CONSTANT[0].upper()}{CONSTANT[1:]}: of the other folds' cases.",
        "Accuracy on validation: of the cases that choose the weights, mean of folds and seeds; choose settings by it.",
        INTERVALS,
        CORRECTED,
        MCNEMAR,
    ]
    if left_out:
        notes.insert(1, f"Left out, because their cases have one answer only or none: {', '.join(left_out)}.")
    title = f"Cross-validation by patient, {num_folds} folds"
    return Table("folds", title, headings, tuple(_list_rows(comparison, validation)), tuple(notes))


def _list_rows(
    comparison: AnswerComparison, validation: Mapping[str, npt.NDArray[np.float64]]
) -> list[tuple[Entry, ...]]:
    """Return the rows of each step and of the mean; `validation` has each network's accuracy [step]."""
    steps = comparison.chain.steps
    questions: list[_Question] = [
        (model, CONSTANT, "accuracy", index) for index in range(len(steps)) for model in NETWORKS
    ]
    questions += [(model, CONSTANT, "mean_accuracy", None) for model in NETWORKS]
    verdict_of = dict(zip(questions, comparison.verdicts(questions), strict=True))
    rows: list[tuple[Entry, ...]] = []
    for index, step in enumerate(steps):
        for model in (CONSTANT, *NETWORKS):
            compared: tuple[Entry, ...] = (None,) * 4
            if model != CONSTANT:
                question: _Question = (model, CONSTANT, "accuracy", index)
                p = comparison.p_value(model, CONSTANT, "accuracy", index)
                validated = float(validation[model][index])
                compared = (validated, comparison.difference(*question), p, verdict_of[question])
            figures = (comparison.figure(model, figure, index) for figure in _FIGURES)
            rows.append((step.name, model, comparison.num_cases(index), *figures, *compared))
    for model in (CONSTANT, *NETWORKS):
        compared = (None,) * 4
        if model != CONSTANT:
            question = (model, CONSTANT, "mean_accuracy", None)
            validated = float(np.nanmean(validation[model]))
            compared = (validated, comparison.difference(*question), None, verdict_of[question])
        rows.append(
            ("mean of the steps", model, None, comparison.figure(model, "mean_accuracy"), None, None, *compared)
        )
    return rows
