"""Figures of readers and models on the same cases by step, with intervals, gains and agreement."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stepcot_jax.annotate.agreement import cohen_kappa, fleiss_kappa
from stepcot_jax.chain import NOT_ANNOTATED
from stepcot_jax.evaluation.chains import FIGURES, step_figures, weighted_confusion
from stepcot_jax.evaluation.comparison import ALPHA, HIGHER, LOWER, NONE_SHOWN, Evidence, settle
from stepcot_jax.evaluation.predictions import read_predictions
from stepcot_jax.evaluation.published import READER_ACCURACY, READER_F1, READER_SENSITIVITY
from stepcot_jax.evaluation.statistics import MIN_PATIENTS, Weights, bootstrap, flip_signs, name_patients, weighted_mean
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import make_workdir
from stepcot_jax.pages.sheets import Row, Table, columns, heads, mark_published, write_table
from stepcot_jax.tools.readers.forms import Answers, Key

ALL_READERS = "readers"
"""Name of all readers together; each of their answers counts once."""


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Readers and models on the cases of a sample, by step.

    Attributes:
      figures: by ("accuracy", who), ("sensitivity", who), ("f1", who) and ("gain", model) the intervals of the steps;
        by ("Fleiss", all readers) and ("Cohen", two of them) those of the share of equal answers and of kappa.
    """

    steps: tuple[str, ...]
    readers: tuple[str, ...]
    models: tuple[str, ...]
    num_cases: int
    num_annotated: list[int]
    num_patients: list[int]
    figures: Mapping[tuple[str, ...], list[Any]]
    p_values: Mapping[str, list[float]]


def compare_readers(
    key: Key, forms: Answers, predictions: Path | None = None, *, num_resamples: int = 1000, seed: int = 0
) -> Comparison:
    """Compare readers with the true answers, with each other and with the models."""
    people = {f"reader {name}": labels for name, labels in forms.items()}
    models = {} if predictions is None else read_answers(predictions, key)
    everyone = people | models
    pairs = [*itertools.combinations(people, 2), *itertools.product(people, models)]
    agreed = [*([("Fleiss", *people)] if len(people) > 1 else []), *(("Cohen", *pair) for pair in pairs)]
    truth = np.array([case.labels for case in key.cases], np.int32)
    patients = np.array([case.patient_id for case in key.cases], np.str_)

    sizes = key.chain.answers_per_step

    def compute(weights: Weights) -> dict[tuple[str, ...], npt.NDArray[np.float64]]:
        figures: dict[tuple[str, ...], npt.NDArray[np.float64]] = {}
        for name, answers in everyone.items():
            certain = [np.eye(number)[labels] for number, labels in zip(sizes, answers.T, strict=True)]
            steps = zip(certain, truth.T, strict=True)
            measured = np.stack([step_figures(weights, probabilities=of, labels=true) for of, true in steps], axis=1)
            figures |= {(figure, name): measured[:, :, FIGURES.index(figure)] for figure in _FIGURES}
        for figure in _FIGURES:
            figures[figure, ALL_READERS] = np.mean([figures[figure, name] for name in people], axis=0)
        figures |= {("gain", name): figures["accuracy", name] - figures["accuracy", ALL_READERS] for name in models}
        for kind, *names in agreed:
            given = np.stack([everyone[name] for name in names], axis=2)
            at_steps = [_agree(weights, kind, given[:, index], number) for index, number in enumerate(sizes)]
            figures[kind, *names] = np.stack(at_steps, axis=1)
        return figures

    known, names = truth != NOT_ANNOTATED, name_patients(patients)
    people_labels = list(people.values())
    return Comparison(
        steps=tuple(step.name for step in key.steps),
        readers=tuple(people),
        models=tuple(models),
        num_cases=len(truth),
        num_annotated=known.sum(axis=0).tolist(),
        num_patients=[len(np.unique(names[of_step])) for of_step in known.T],
        figures=bootstrap(compute, patients, num_resamples=num_resamples, seed=seed),
        p_values={name: _compare_signs(answers, people_labels, truth, names) for name, answers in models.items()},
    )


def read_answers(path: Path, key: Key) -> Answers:
    """Read each model's most probable answers to the sample's cases."""
    split = read_predictions(path, key.chain)
    rows = {image: row for row, image in enumerate(split.facts["image_path"].tolist())}
    for case in key.cases:
        where = f"{path}, case {case.image_path[:80]!r}"
        if case.image_path not in rows:
            raise BadInput(f"{where} is missing; expected predictions of all cases of the sample")
        if tuple(split.predictions.labels[rows[case.image_path]].tolist()) != case.labels:
            raise BadInput(f"{where} has other labels than in the sample's key")
    chosen = [rows[case.image_path] for case in key.cases]
    exists = np.arange(max(key.chain.answers_per_step)) < np.array(key.chain.answers_per_step)[:, None]
    return {
        name: np.where(exists, logits[chosen][..., : exists.shape[1]], -np.inf).argmax(axis=-1).astype(np.int32)
        for name, logits in split.predictions.logits.items()
    }


def _agree(weights: Weights, kind: str, given: npt.NDArray[np.int32], num_answers: int) -> npt.NDArray[np.float64]:
    """Return share of equal answers and kappa [resample, 2] of answers [case, who]."""
    alike = (given == given[:, :1]).all(axis=1, keepdims=True)
    if kind == "Fleiss":
        kappa = fleiss_kappa((given[:, :, None] == np.arange(num_answers)).sum(axis=1), weights)
    else:
        one, other = given.T
        kappa = cohen_kappa(weighted_confusion(weights, truth=one, answers=other, num_answers=num_answers))
    return np.stack([weighted_mean(weights, values=alike, counted=np.ones_like(alike))[:, 0], kappa], axis=1)


def _compare_signs(
    answers: npt.NDArray[np.int32],
    people: Sequence[npt.NDArray[np.int32]],
    truth: npt.NDArray[np.int32],
    patients: npt.NDArray[np.str_],
) -> list[float]:
    """Test a model's gain over all readers together at each step."""
    names, member = np.unique(patients, return_inverse=True)
    # Times the number of readers, so that all are whole numbers: +2 where the model and one of three is correct.
    more = len(people) * (answers == truth) - np.sum([labels == truth for labels in people], axis=0)
    summed = np.zeros((len(names), truth.shape[1]), np.int64)
    np.add.at(summed, member, np.where(truth != NOT_ANNOTATED, more, 0))
    return [flip_signs(column) for column in summed.T]


# Tables of readers and models, with the paper's figures in columns of their own.

_INTERVALS = (
    "Intervals are 95 %, from resampling patients: they show how the figures of these readers vary with the cases, not "
    "how those of other readers would differ."
)
_PUBLISHED = (
    "Published figures are the paper's, of other cases and other readers (N = 200); they are not compared with ours."
)
_MACRO = (
    f'"{ALL_READERS}" is the mean of the readers\' figures.',
    "Sensitivity and F1 are macro averages: those of each answer against all others, averaged with equal weight over "
    "the answers that are the true ones of some case, as in the tables of models. The paper does not say how it "
    "averages over a step's answers or which of them it takes as positive.",
)
_JUDGED = (
    f"A model is better or worse only if {MIN_PATIENTS} patients or more are annotated, the interval excludes 0 and p "
    f"is below {ALPHA} after Holm's correction for the number of comparisons in the table. The printed p is not "
    "corrected: an exact test that flips the signs of the patients' differences (McNemar's with one reader and one "
    "radiograph per patient).",
    "The models are of one training run: the intervals do not cover other training runs.",
)
_AGREED = (
    "Agreement counts all cases of the sample, with or without a known true answer. Kappa is undefined where only "
    "one answer occurs; such resamples do not count for its interval."
)
_FIGURES = {
    "accuracy": ("readers", "Accuracy", READER_ACCURACY),
    "sensitivity": ("readers_sensitivity", "Sensitivity", READER_SENSITIVITY),
    "f1": ("readers_f1", "F1", READER_F1),
}
_VERDICTS = {HIGHER: "better", LOWER: "worse", NONE_SHOWN: "not significantly different"}


def write_comparison(folder: Path, comparison: Comparison) -> list[str]:
    """Write the tables of a comparison and return the file names."""
    make_workdir(folder)
    tables = [*(tabulate_figure(comparison, figure) for figure in _FIGURES), tabulate_agreement(comparison)]
    if comparison.models:
        tables.append(tabulate_gains(comparison))
    return [name for table in tables for name in write_table(folder, table)]


def tabulate_figure(comparison: Comparison, figure: str) -> Table:
    """Make the table of a figure of all readers, each reader and each model by step (paper: Tables 5 and 10)."""
    name, what, published = _FIGURES[figure]
    ours = (ALL_READERS, *comparison.readers, *comparison.models)
    rows: list[Row] = []
    for index, step in enumerate(comparison.steps):
        printed = mark_published({who: figures.get(step) for who, figures in published.items()})
        measured = {who: comparison.figures[figure, who][index] for who in ours}
        rows.append({"step": step, "cases": comparison.num_annotated[index], **measured, **printed})
    head = (*heads("step", "#cases"), *columns("percent", *ours), *columns("percent", *published, published=True))
    together = f'"{ALL_READERS}" is the mean accuracy of the readers, who each read all {comparison.num_cases} cases.'
    notes = (together,) if figure == "accuracy" else _MACRO
    title = f"{what} of {len(comparison.readers)} readers and {len(comparison.models)} models"
    return Table.of(name, title, head, rows, (*notes, _INTERVALS, _PUBLISHED))


def tabulate_gains(comparison: Comparison) -> Table:
    """Make the table of each model's accuracy less the readers' by step, with the significance of the difference."""
    rows = []
    for index, step in enumerate(comparison.steps):
        for name in comparison.models:
            gain, p = comparison.figures["gain", name][index], comparison.p_values[name][index]
            verdict = Evidence(gain, (gain.value,), comparison.num_patients[index], p)
            row = {"step": step, "model": name, "cases": comparison.num_annotated[index]}
            rows.append(row | {"model less readers": gain, "p": p, "model is": verdict})
    head = heads("step", "model", "#cases", "+model less readers", "#p", "model is")
    title = "Models less readers, on the same cases"
    settled = settle(rows, lambda verdict: _VERDICTS.get(verdict.removesuffix(" in this run"), verdict))
    return Table.of("readers_gains", title, head, settled, (_INTERVALS, *_JUDGED))


def tabulate_agreement(comparison: Comparison) -> Table:
    """Make the table of the agreement among readers, and of readers with models, by step."""
    rows = [
        (step, "all readers" if kind == "Fleiss" else " / ".join(who), comparison.num_cases, *figures[index], kind)
        for index, step in enumerate(comparison.steps)
        for (kind, *who), figures in comparison.figures.items()
        if kind in ("Fleiss", "Cohen")
    ]
    head = heads("step", "who", "#cases", "%agreement", "#kappa", "kind of kappa")
    return Table("readers_agreement", "Agreement of readers", head, tuple(rows), (_AGREED, _INTERVALS))
