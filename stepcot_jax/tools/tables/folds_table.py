"""Cross-validation by patient: every case is a test case once; the networks against the most frequent answer."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from stepcot_jax.chain import NOT_ANNOTATED, Chain
from stepcot_jax.data.splits.making import list_folds
from stepcot_jax.evaluation.chains import evaluate, most_frequent
from stepcot_jax.evaluation.comparison import CORRECTED, INTERVALS, MCNEMAR, AnswerComparison, choose_steps, settle
from stepcot_jax.evaluation.predictions import FACTS, Predictions, SplitPredictions
from stepcot_jax.evaluation.statistics import count_patients
from stepcot_jax.host.errors import BadInput
from stepcot_jax.pages.sheets import Row, Table, heads
from stepcot_jax.tools.tables.cells import Cell, vary
from stepcot_jax.tools.tables.plan import NETWORKS, Plan, Recipe

CONSTANT = "most frequent answer"
_FIGURES = {"accuracy": "accuracy", "auc": "mAUC", "f1": "F1"}


def _cell(plan: Plan, fold: str, seed: int) -> Cell:
    return Cell(f"fold {fold}", vary(plan.settings, {"seed": seed, "data.fold": fold}))


def pool_folds(folds: Mapping[str, SplitPredictions], models: Sequence[str]) -> SplitPredictions:
    """Join the test cases of all folds, with `CONSTANT`: in a fold, the most frequent answer of the other folds."""
    first_of: dict[str, str] = {}
    for fold, split in folds.items():
        for case in split.facts["case_id"].tolist():
            if first_of.setdefault(case, fold) != fold:
                first = first_of[case]
                raise BadInput(f"fold {fold}, case {case!r}: also a test case of fold {first}; expected each case once")
    splits = list(folds.values())
    labels, index = (
        np.concatenate([getattr(split.predictions, name) for split in splits]) for name in ("labels", "index")
    )
    logits = {model: np.concatenate([split.predictions.logits[model] for split in splits]) for model in models}
    fold_of = np.repeat(np.arange(len(splits)), [len(split.predictions.labels) for split in splits])
    constant = np.zeros_like(logits[models[0]])
    for number in range(len(splits)):
        constant[fold_of == number] = np.eye(constant.shape[-1])[most_frequent(labels[fold_of != number])]
    facts = {fact: np.concatenate([split.facts[fact] for split in splits]) for fact in FACTS}
    return SplitPredictions(Predictions(index, labels, {**logits, CONSTANT: constant}), facts)


def validation_accuracy(splits: Sequence[SplitPredictions], model: str, chain: Chain) -> npt.NDArray[np.float64]:
    """Return a model's accuracy of each step [step], its mean over the validation splits of folds and seeds."""
    steps = [evaluate(split.predictions, chain)[model].steps for split in splits]
    return np.nanmean([[step.accuracy for step in of_split] for of_split in steps], axis=0)


def make_tables(plan: Plan) -> list[Table]:
    """Make the table from finished cells."""
    folds, cells = list_folds(), RECIPES["folds"].list_cells(plan)
    chain = plan.cells.chain(cells[0])
    pooled = [
        pool_folds({fold: plan.cells.predictions(_cell(plan, fold, seed)) for fold in folds}, NETWORKS)
        for seed in plan.seeds
    ]
    labels = pooled[0].predictions.labels
    kept = [index for index, answers in enumerate(labels.T) if len(np.unique(answers[answers != NOT_ANNOTATED])) > 1]
    left_out = [step.name for index, step in enumerate(chain.steps) if index not in kept]
    if not kept:
        raise BadInput("table folds: the cases have one answer only at every step; expected a step with two or more")
    comparison = AnswerComparison(pooled, plan.num_resamples, chain=chain).choose_steps(kept)
    validated = [choose_steps(plan.cells.predictions(cell, "val"), kept) for cell in cells]
    facts = comparison.splits[0].facts
    validation = {model: validation_accuracy(validated, model, comparison.chain) for model in NETWORKS}
    figures = (f"%{heading}" for heading in _FIGURES.values())
    ours = "%accuracy on validation", f"+accuracy above {CONSTANT}", "#p", "accuracy is"
    head = heads("step", "model", "#cases", *figures, *ours)
    notes = [
        f"{len(facts['case_id'])} cases of {count_patients(facts['patient_id'])} patients, each a test case of exactly "
        f"one of {len(folds)} folds; seeds {list(plan.seeds)}. mAUC pools the scores of {len(folds)} networks.",
        *([f"Left out, because their cases have one answer only or none: {', '.join(left_out)}."] if left_out else []),
        f"{CONSTANT[0].upper()}{CONSTANT[1:]}: of the other folds' cases.",
        "Accuracy on validation: of the cases that choose the weights, mean of folds and seeds; choose settings by it.",
        INTERVALS,
        CORRECTED,
        MCNEMAR,
    ]
    title = f"Cross-validation by patient, {len(folds)} folds"
    return [Table.of("folds", title, head, _list_rows(comparison, validation), notes)]


def _list_rows(comparison: AnswerComparison, validation: Mapping[str, npt.NDArray[np.float64]]) -> list[Row]:
    """Return the rows of each step and of the mean; `validation` has each network's accuracy [step]."""
    rows: list[dict[str, Any]] = []
    for index, step in [*enumerate(comparison.chain.steps), (None, None)]:
        about: dict[str, Any] = {"step": "mean of the steps" if step is None else step.name}
        figures = {"mean_accuracy": "accuracy"} if index is None else _FIGURES
        if index is not None:
            about["cases"] = comparison.num_cases(index)
        for model in (CONSTANT, *NETWORKS):
            row = about | {"model": model} | comparison.figures(model, figures, index)
            if model != CONSTANT:
                question, of_steps = (model, CONSTANT, next(iter(figures)), index), validation[model]
                row |= {
                    "accuracy on validation": float(np.nanmean(of_steps) if index is None else of_steps[index]),
                    f"accuracy above {CONSTANT}": comparison.difference(*question),
                    "p": comparison.p_value(*question),
                    "accuracy is": comparison.evidence(*question),
                }
            rows.append(row)
    return settle(rows)


RECIPES = {"folds": Recipe(lambda plan, seed: [_cell(plan, fold, seed) for fold in list_folds()], make_tables)}
