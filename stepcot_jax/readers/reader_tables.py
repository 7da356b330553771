"""Tables of readers and models, with the paper's figures in columns of their own."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from stepcot_jax.evaluation.intervals import Interval
from stepcot_jax.evaluation.subgroups import MIN_PATIENTS
from stepcot_jax.host.files import make_workdir
from stepcot_jax.readers.reader_scores import ALL_READERS, Comparison
from stepcot_jax.tables.published_figures import READER_ACCURACY, READER_F1, READER_SENSITIVITY
from stepcot_jax.tables.verdicts import ALPHA, HIGHER, LOWER, NONE_SHOWN, Evidence, decide
from stepcot_jax.tables.writing import Entry, Figure, Table, columns, write_table

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
