"""Figures of readers and models on the same cases by step, with intervals, gains and agreement."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from jaxtyping import Int32

from stepcot_jax.annotate.agreement import cohen_kappa, fleiss_kappa
from stepcot_jax.chain import NOT_ANNOTATED, Chain
from stepcot_jax.evaluation.chains import FIGURES, step_figures, weighted_confusion
from stepcot_jax.evaluation.comparison import ALPHA, HIGHER, LOWER, NONE_SHOWN, Evidence, settle
from stepcot_jax.evaluation.predictions import read_predictions
from stepcot_jax.evaluation.published import READER_ACCURACY, READER_F1, READER_SENSITIVITY
from stepcot_jax.evaluation.statistics import MIN_PATIENTS, Weights, bootstrap, flip_signs, name_patients, weighted_mean
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import make_workdir
from stepcot_jax.host.ranges import Interval
from stepcot_jax.pages.sheets import Entry, Table, columns, write_table
from stepcot_jax.tools.readers.forms import FilledForm, Key

ALL_READERS = "readers"
"""Name of all readers together; each of their answers counts once."""

_NUM_SHOWN = 80

Answers = dict[str, Int32[np.ndarray, "case step"]]


@dataclasses.dataclass(frozen=True)
class Agreement:
    """Agreement of two readers, a reader and a model, or all readers at a step."""

    names: tuple[str, ...]
    kind: str
    num_cases: int
    share: Interval
    kappa: Interval


@dataclasses.dataclass(frozen=True)
class StepScores:
    """One step of the comparison."""

    step: str
    num_cases: int
    accuracy: Mapping[str, Interval]
    sensitivity: Mapping[str, Interval]
    f1: Mapping[str, Interval]
    gains: Mapping[str, Interval]
    num_patients: int
    p_values: Mapping[str, float]
    agreements: tuple[Agreement, ...]


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Readers and models on the cases of a sample."""

    readers: tuple[str, ...]
    models: tuple[str, ...]
    num_cases: int
    steps: tuple[StepScores, ...]


def compare_readers(
    key: Key, forms: Sequence[FilledForm], predictions: Path | None = None, *, num_resamples: int = 1000, seed: int = 0
) -> Comparison:
    """Compare readers with the true answers, with each other and with the models."""
    if not forms:
        raise BadInput("FORM is required (the filled forms of one or more readers)")
    for name, number, least in (("--num-resamples", num_resamples, 1), ("--seed", seed, 0)):
        if number < least:
            raise BadInput(f"{name}={number} is not a whole number from {least}")
    people = {f"reader {form.reader}": form.labels for form in forms}
    models = {} if predictions is None else read_answers(predictions, key)
    patients = np.array([case.patient_id for case in key.cases], np.str_)
    agreed = _list_agreements(people, models)
    compute = _prepare(key, people, models, agreed)
    figures = bootstrap(compute, patients, num_resamples=num_resamples, seed=seed)
    num_patients, p_values = compare_signs(key, people, models)

    def pick(figure: str, index: int) -> dict[str, Interval]:
        return {name: of_steps[index] for (known, name), of_steps in figures.items() if known == figure}

    def agreements(index: int) -> Iterator[Agreement]:
        for number, (kind, answers) in enumerate(agreed):
            num_cases = int(_are_answered(answers, index).sum())
            yield Agreement(tuple(answers), kind, num_cases, *figures["agreement", str(number)][index])

    steps = tuple(
        StepScores(
            step=step.name,
            num_cases=sum(case.labels[index] != NOT_ANNOTATED for case in key.cases),
            accuracy=pick("accuracy", index),
            sensitivity=pick("sensitivity", index),
            f1=pick("f1", index),
            gains=pick("gain", index),
            num_patients=num_patients[index],
            p_values={name: of_steps[index] for name, of_steps in p_values.items()},
            agreements=tuple(agreements(index)),
        )
        for index, step in enumerate(key.steps)
    )
    return Comparison(tuple(people), tuple(models), len(key.cases), steps)


def read_answers(path: Path, key: Key) -> dict[str, Int32[np.ndarray, "case step"]]:
    """Read each model's most probable answers to the sample's cases, in the key's order."""
    split = read_predictions(path, key.chain)
    rows = {image: row for row, image in enumerate(split.facts["image_path"].tolist())}
    chosen = []
    for case in key.cases:
        where = f"{path}, case {case.image_path[:_NUM_SHOWN]!r}"
        if case.image_path not in rows:
            raise BadInput(f"{where} is missing; expected predictions of all cases of the sample")
        row = rows[case.image_path]
        if tuple(split.predictions.labels[row].tolist()) != case.labels:
            raise BadInput(f"{where} has other labels than in the sample's key")
        chosen.append(row)
    answers = {}
    for name, logits in split.predictions.logits.items():
        of_steps = [logits[chosen, index, : step.num_answers].argmax(axis=1) for index, step in enumerate(key.steps)]
        answers[name] = np.stack(of_steps, axis=1).astype(np.int32)
    return answers


def _list_agreements(people: Answers, models: Answers) -> list[tuple[str, Answers]]:
    """Return whose answers are compared, with the kind of kappa: all readers, each two, and each with each model."""
    pairs = [*itertools.combinations(people, 2), *itertools.product(people, models)]
    everyone = people | models
    all_readers = [("Fleiss", people)] if len(people) > 1 else []
    return [*all_readers, *(("Cohen", {one: everyone[one], other: everyone[other]}) for one, other in pairs)]


def _are_answered(answers: Answers, index: int) -> npt.NDArray[np.bool_]:
    return np.all([labels[:, index] != NOT_ANNOTATED for labels in answers.values()], axis=0)


def _prepare(
    key: Key, people: Answers, models: Answers, agreed: Sequence[tuple[str, Answers]]
) -> Callable[[Weights], dict[tuple[str, str], npt.NDArray[np.float64]]]:
    """Return a function from weights [resample, case] to figures [resample, step] by figure and name."""
    truth = np.array([case.labels for case in key.cases], np.int32)
    correct = {name: answers == truth for name, answers in (people | models).items()}
    correct[ALL_READERS] = np.mean([correct[name] for name in people], axis=0)

    def compute(weights: Weights) -> dict[tuple[str, str], npt.NDArray[np.float64]]:
        figures = {
            ("accuracy", name): weighted_mean(weights, values=correct[name], counted=truth != NOT_ANNOTATED)
            for name in (ALL_READERS, *people, *models)
        }
        figures |= {("gain", name): figures["accuracy", name] - figures["accuracy", ALL_READERS] for name in models}
        for name, answers in (people | models).items():
            of_steps = [
                # All of the probability on the answer.
                step_figures(weights, probabilities=np.eye(number)[answers[:, index]], labels=truth[:, index])
                for index, number in enumerate(key.chain.answers_per_step)
            ]
            for figure in ("sensitivity", "f1"):
                figures[figure, name] = np.stack([values[:, FIGURES.index(figure)] for values in of_steps], axis=1)
        for figure in ("sensitivity", "f1"):
            figures[figure, ALL_READERS] = np.mean([figures[figure, name] for name in people], axis=0)
        for number, (kind, compared) in enumerate(agreed):
            agreements = [_agree(weights, kind, compared, index, key.chain) for index in range(key.chain.num_steps)]
            figures["agreement", str(number)] = np.stack(agreements, axis=1)
        return figures

    return compute


def _agree(weights: Weights, kind: str, answers: Answers, index: int, chain: Chain) -> npt.NDArray[np.float64]:
    """Return share of equal answers and kappa [resample, 2] at a step, over the cases that all have answered."""
    answered, number = _are_answered(answers, index), chain.answers_per_step[index]
    given, weights = np.stack([labels[answered, index] for labels in answers.values()], axis=1), weights[:, answered]
    alike = (given == given[:, :1]).all(axis=1, keepdims=True)
    if kind == "Fleiss":
        kappa = fleiss_kappa((given[:, :, None] == np.arange(number)).sum(axis=1), weights)
    else:
        one, other = given.T
        kappa = cohen_kappa(weighted_confusion(weights, truth=one, answers=other, num_answers=number))
    return np.stack([weighted_mean(weights, values=alike, counted=np.ones_like(alike))[:, 0], kappa], axis=1)


def compare_signs(key: Key, people: Answers, models: Answers) -> tuple[list[int], dict[str, list[float]]]:
    """Count the patients with a known answer by step, and test each model's gain over all readers together."""
    truth = np.array([case.labels for case in key.cases], np.int32)
    patients = name_patients(np.array([case.patient_id for case in key.cases], np.str_))
    names, member = np.unique(patients, return_inverse=True)
    known = truth != NOT_ANNOTATED
    of_readers = np.sum([(answers == truth) & known for answers in people.values()], axis=0)
    p_values = {}
    for model, answers in models.items():
        # Times the number of readers, so that all are whole numbers: +2 where the model and one of three is correct.
        more = len(people) * ((answers == truth) & known) - of_readers
        summed = np.zeros((len(names), truth.shape[1]), np.int64)
        np.add.at(summed, member, more)
        p_values[model] = [flip_signs(column) for column in summed.T]
    return [len(np.unique(patients[column])) for column in known.T], p_values


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


def write_comparison(folder: Path, comparison: Comparison) -> list[str]:
    """Write the tables of a comparison and return the file names."""
    make_workdir(folder)
    tables = [*(tabulate_figure(comparison, figure) for figure in _FIGURES), tabulate_agreement(comparison)]
    if comparison.models:
        tables.append(tabulate_gains(comparison))
    return [name for table in tables for name in write_table(folder, table)]


_FIGURES = {
    "accuracy": ("readers", "Accuracy", READER_ACCURACY),
    "sensitivity": ("readers_sensitivity", "Sensitivity", READER_SENSITIVITY),
    "f1": ("readers_f1", "F1", READER_F1),
}


def tabulate_figure(comparison: Comparison, figure: str) -> Table:
    """Make the table of a figure of all readers, each reader and each model by step (paper: Tables 5 and 10)."""
    name, what, published = _FIGURES[figure]
    ours = (ALL_READERS, *comparison.readers, *comparison.models)
    rows: list[tuple[Entry, ...]] = []
    for step in comparison.steps:
        known = (figures.get(step.step) for figures in published.values())
        rows.append((step.step, step.num_cases, *(getattr(step, figure)[who] for who in ours), *known))
    headings = (
        *columns("text", "step"),
        *columns("number", "cases"),
        *columns("percent", *ours),
        *columns("percent", *published, published=True),
    )
    together = f'"{ALL_READERS}" is the mean accuracy of the readers, who each read all {comparison.num_cases} cases.'
    notes = (together,) if figure == "accuracy" else _MACRO
    title = f"{what} of {len(comparison.readers)} readers and {len(comparison.models)} models"
    return Table(name, title, headings, tuple(rows), (*notes, _INTERVALS, _PUBLISHED))


def tabulate_gains(comparison: Comparison) -> Table:
    """Make the table of each model's accuracy less the readers' by step, with the significance of the difference."""
    headings = (
        *columns("text", "step", "model"),
        *columns("number", "cases"),
        *columns("points", "model less readers"),
        *columns("number", "p"),
        *columns("text", "model is"),
    )
    rows = [
        {
            "step": step.step,
            "model": name,
            "cases": step.num_cases,
            "model less readers": gain,
            "p": step.p_values[name],
            "model is": Evidence(gain, (gain.value,), step.num_patients, step.p_values[name]),
        }
        for step in comparison.steps
        for name, gain in step.gains.items()
    ]
    title = "Models less readers, on the same cases"
    return Table.of("readers_gains", title, headings, settle(rows, _word), (_INTERVALS, *_JUDGED))


def _word(verdict: str) -> str:
    words = {HIGHER: "better", LOWER: "worse", NONE_SHOWN: "not significantly different"}
    return words.get(verdict.removesuffix(" in this run"), verdict)


def tabulate_agreement(comparison: Comparison) -> Table:
    """Make the table of the agreement among readers, and of readers with models, by step."""
    rows: list[tuple[Entry, ...]] = []
    for step in comparison.steps:
        for agreement in step.agreements:
            who = "all readers" if agreement.kind == "Fleiss" else " / ".join(agreement.names)
            rows.append((step.step, who, agreement.num_cases, agreement.share, agreement.kappa, agreement.kind))
    headings = (
        *columns("text", "step", "who"),
        *columns("number", "cases"),
        *columns("percent", "agreement"),
        *columns("number", "kappa"),
        *columns("text", "kind of kappa"),
    )
    notes = (
        "Agreement counts all cases of the sample, with or without a known true answer. Kappa is undefined where only "
        "one answer occurs; such resamples do not count for its interval.",
        _INTERVALS,
    )
    return Table("readers_agreement", "Agreement of readers", headings, tuple(rows), notes)
