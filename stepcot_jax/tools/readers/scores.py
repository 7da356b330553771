"""Figures of readers and models on the same cases by step, with intervals, gains and agreement."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float64, Int32

from stepcot_jax.chain import NOT_ANNOTATED
from stepcot_jax.evaluation.comparison import ALPHA, HIGHER, LOWER, NONE_SHOWN, Evidence, decide
from stepcot_jax.evaluation.intervals import Interval, percentiles
from stepcot_jax.evaluation.metrics import FIGURES, step_figures
from stepcot_jax.evaluation.predictions import read_predictions
from stepcot_jax.evaluation.published import READER_ACCURACY, READER_F1, READER_SENSITIVITY
from stepcot_jax.evaluation.resamples import count_once, count_patients, draw_weights, weighted_mean
from stepcot_jax.evaluation.summary import MIN_PATIENTS
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import make_workdir
from stepcot_jax.pages.sheets import Entry, Figure, Table, columns, write_table
from stepcot_jax.tools.readers.agreements import LEVEL, Agreement, Answers, compare_signs, measure_agreements
from stepcot_jax.tools.readers.forms import FilledForm, Key

ALL_READERS = "readers"
"""Name of all readers together; each of their answers counts once."""

_NUM_SHOWN = 80


@dataclasses.dataclass(frozen=True)
class StepScores:
    """One step of the comparison.

    Attributes:
      num_cases: cases whose true answer is known; accuracy counts no others.
      accuracy: of all readers together, each reader and each model, in 0..1; NaN without such cases.
      sensitivity: macro recall over the answers that occur as true ones, of the same; NaN likewise.
      f1: macro F1 over these answers, of the same.
      gains: each model's accuracy less that of all readers together.
      p_values: of each gain, by `agreements.flip_signs`.
      agreements: of all readers, of each two, and of each reader with each model, on all cases.
    """

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
    """Readers and models on the cases of a sample.

    Attributes:
      readers: their names as in `StepScores.accuracy`.
      models: their names as in `StepScores.accuracy`.
    """

    readers: tuple[str, ...]
    models: tuple[str, ...]
    num_cases: int
    steps: tuple[StepScores, ...]


def compare_readers(
    key: Key, forms: Sequence[FilledForm], predictions: Path | None = None, *, num_resamples: int = 1000, seed: int = 0
) -> Comparison:
    """Compare readers with the true answers, with each other and with the models.

    Intervals come from resampling patients: they show how the figures of these readers vary with the cases, not how
    those of other readers would differ.

    Args:
      predictions: predictions file of a run that has all cases of the sample; None for no models.
    """
    if not forms:
        raise BadInput("FORM is required (the filled forms of one or more readers)")
    for name, found, least in (("--num-resamples", num_resamples, 1), ("--seed", seed, 0)):
        if found < least:
            raise BadInput(f"{name}={found} is not a whole number from {least}")
    people = {f"reader {form.reader}": form.labels for form in forms}
    models = {} if predictions is None else read_answers(predictions, key)
    patients = np.array([case.patient_id for case in key.cases], np.str_)
    weights = np.zeros((1, len(patients)))  # one patient's resamples would all be alike
    if count_patients(patients) > 1:
        weights = np.concatenate(list(draw_weights(patients, num_resamples=num_resamples, seed=seed)))
    accuracy, gains = _measure(key, people, models, weights)
    sensitivity, f1 = _measure_macro(key, people, models, weights)
    num_patients, p_values = compare_signs(key, people, models)
    agreements = measure_agreements(people, models, key.chain, weights)
    steps = tuple(
        StepScores(
            step=step.name,
            num_cases=sum(case.labels[place] != NOT_ANNOTATED for case in key.cases),
            accuracy={name: intervals[place] for name, intervals in accuracy.items()},
            sensitivity={name: intervals[place] for name, intervals in sensitivity.items()},
            f1={name: intervals[place] for name, intervals in f1.items()},
            gains={name: intervals[place] for name, intervals in gains.items()},
            num_patients=num_patients[place],
            p_values={name: found[place] for name, found in p_values.items()},
            agreements=agreements[place],
        )
        for place, step in enumerate(key.steps)
    )
    return Comparison(tuple(people), tuple(models), len(key.cases), steps)


def read_answers(path: Path, key: Key) -> dict[str, Int32[np.ndarray, "case step"]]:
    """Read each model's most probable answers to the sample's cases, in the key's order."""
    split = read_predictions(path, key.chain)
    places = {name: place for place, name in enumerate(split.facts["image_path"].tolist())}
    chosen = []
    for case in key.cases:
        where = f"{path}, case {case.image_path[:_NUM_SHOWN]!r}"
        if case.image_path not in places:
            raise BadInput(f"{where} is missing; expected predictions of all cases of the sample")
        place = places[case.image_path]
        if tuple(split.predictions.labels[place].tolist()) != case.labels:
            raise BadInput(f"{where} has other labels than in the sample's key")
        chosen.append(place)
    answers = {}
    for name, logits in split.predictions.logits.items():
        own = [logits[chosen, place, : step.num_answers].argmax(axis=1) for place, step in enumerate(key.steps)]
        answers[name] = np.stack(own, axis=1).astype(np.int32)
    return answers


def _measure(
    key: Key, people: Answers, models: Answers, weights: Float64[np.ndarray, "resample case"]
) -> tuple[dict[str, list[Interval]], dict[str, list[Interval]]]:
    """Accuracy of all, and gain of each model over the readers, by step; all in the same resamples."""
    truth = np.array([case.labels for case in key.cases], np.int32)
    known = truth != NOT_ANNOTATED
    correct = {name: answers == truth for name, answers in people.items()}
    everyone = {ALL_READERS: np.mean(list(correct.values()), axis=0), **correct}
    everyone |= {name: answers == truth for name, answers in models.items()}
    once = count_once(len(truth))
    values = {name: weighted_mean(once, values=own, counted=known)[0] for name, own in everyone.items()}
    resampled = {name: weighted_mean(weights, values=own, counted=known) for name, own in everyone.items()}
    accuracy = {name: _intervals(values[name], resampled[name]) for name in everyone}
    gains = {
        name: _intervals(values[name] - values[ALL_READERS], resampled[name] - resampled[ALL_READERS])
        for name in models
    }
    return accuracy, gains


def _measure_macro(
    key: Key, people: Answers, models: Answers, weights: Float64[np.ndarray, "resample case"]
) -> tuple[dict[str, list[Interval]], dict[str, list[Interval]]]:
    """Macro sensitivity and macro F1 of all, by step; of all readers together the means of theirs."""
    truth = np.array([case.labels for case in key.cases], np.int32)
    once_and_resampled = np.concatenate([count_once(len(truth)), weights])
    chosen = [FIGURES.index("sensitivity"), FIGURES.index("f1")]

    def compute(answers: Int32[np.ndarray, "case step"]) -> Float64[np.ndarray, "step resample figure"]:
        of_steps = []
        for place, step in enumerate(key.steps):
            given = np.eye(step.num_answers)[answers[:, place]]  # all of the probability on the answer
            found = step_figures(once_and_resampled, probabilities=given, labels=truth[:, place])
            of_steps.append(found[:, chosen])
        return np.stack(of_steps)

    found = {name: compute(answers) for name, answers in people.items()}
    everyone = {ALL_READERS: np.mean(list(found.values()), axis=0), **found}
    everyone |= {name: compute(answers) for name, answers in models.items()}
    sensitivity, f1 = (
        {name: _intervals(values[:, 0, place], values[:, 1:, place].T) for name, values in everyone.items()}
        for place in range(len(chosen))
    )
    return sensitivity, f1


def _intervals(values: Float64[np.ndarray, "step"], resampled: Float64[np.ndarray, "resample step"]) -> list[Interval]:
    return [percentiles(value, drawn, level=LEVEL) for value, drawn in zip(values.tolist(), resampled.T, strict=True)]


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
_WORDS = {HIGHER: "better", LOWER: "worse", NONE_SHOWN: "not significantly different"}


def write_comparison(folder: Path, comparison: Comparison) -> list[str]:
    """Write the tables of a comparison and return the file names."""
    make_workdir(folder)
    tables = [
        tabulate_accuracy(comparison),
        tabulate_sensitivity(comparison),
        tabulate_f1(comparison),
        tabulate_agreement(comparison),
    ]
    if comparison.models:
        tables.append(tabulate_gains(comparison))
    return [name for table in tables for name in write_table(folder, table)]


def tabulate_accuracy(comparison: Comparison) -> Table:
    """Make the table of the accuracy of all readers, each reader and each model by step (paper: Tables 5 and 10)."""
    together = f'"{ALL_READERS}" is the mean accuracy of the readers, who each read all {comparison.num_cases} cases.'
    accuracy = [step.accuracy for step in comparison.steps]
    return _tabulate("readers", "Accuracy", comparison, accuracy, READER_ACCURACY, (together,))


def tabulate_sensitivity(comparison: Comparison) -> Table:
    """Make the table of their macro sensitivity by step (paper: Table 10)."""
    found = [step.sensitivity for step in comparison.steps]
    return _tabulate("readers_sensitivity", "Sensitivity", comparison, found, READER_SENSITIVITY, _MACRO)


def tabulate_f1(comparison: Comparison) -> Table:
    """Make the table of their macro F1 by step (paper: Table 10)."""
    return _tabulate("readers_f1", "F1", comparison, [step.f1 for step in comparison.steps], READER_F1, _MACRO)


def _tabulate(
    name: str,
    what: str,
    comparison: Comparison,
    of_steps: Sequence[Mapping[str, Interval]],
    published: Mapping[str, Mapping[str, float]],
    notes: tuple[str, ...],
) -> Table:
    """A figure of all by step, with the published ones."""
    ours = (ALL_READERS, *comparison.readers, *comparison.models)
    rows: list[tuple[Entry, ...]] = []
    for step, found in zip(comparison.steps, of_steps, strict=True):
        known = (figures.get(step.step) for figures in published.values())
        rows.append((step.step, step.num_cases, *(_figure(found[each]) for each in ours), *known))
    headings = (
        *columns("text", "step"),
        *columns("number", "cases"),
        *columns("percent", *ours),
        *columns("percent", *published, published=True),
    )
    title = f"{what} of {len(comparison.readers)} readers and {len(comparison.models)} models"
    return Table(name, title, headings, tuple(rows), (*notes, _INTERVALS, _PUBLISHED))


def tabulate_gains(comparison: Comparison) -> Table:
    """Make the table of each model's accuracy less the readers' by step, with the significance of the difference."""
    asked = [(step, name) for step in comparison.steps for name in comparison.models]
    verdicts = decide(
        [
            Evidence(_figure(step.gains[name]), (step.gains[name].value,), step.num_patients, step.p_values[name])
            for step, name in asked
        ]
    )
    rows: list[tuple[Entry, ...]] = [
        (step.step, name, step.num_cases, _figure(step.gains[name]), step.p_values[name], _WORDS.get(said, said))
        for (step, name), said in zip(asked, verdicts, strict=True)
    ]
    headings = (
        *columns("text", "step", "model"),
        *columns("number", "cases"),
        *columns("points", "model less readers"),
        *columns("number", "p"),
        *columns("text", "model is"),
    )
    title = "Models less readers, on the same cases"
    return Table("readers_gains", title, headings, tuple(rows), (_INTERVALS, *_JUDGED))


def tabulate_agreement(comparison: Comparison) -> Table:
    """Make the table of the agreement among readers, and of readers with models, by step."""
    rows: list[tuple[Entry, ...]] = []
    for step in comparison.steps:
        for found in step.agreements:
            who = "all readers" if found.kind == "Fleiss" else " / ".join(found.names)
            rows.append((step.step, who, found.num_cases, _figure(found.share), _figure(found.kappa), found.kind))
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


def _figure(interval: Interval) -> Figure:
    return Figure(interval.value, interval.low, interval.high)
