"""Table 3: the diagnosis by baselines without and with the intermediate steps, teacher and student."""

from collections.abc import Sequence

from stepcot_jax.evaluation.comparison import (
    CORRECTED,
    HIGHER,
    INTERVALS,
    LOWER,
    NONE_SHOWN,
    AnswerComparison,
    Evidence,
    word_verdicts,
)
from stepcot_jax.evaluation.published import DIAGNOSIS_FIGURES, Level
from stepcot_jax.pages.sheets import Entry, Table, columns
from stepcot_jax.tools.tables.cells import Cell
from stepcot_jax.tools.tables.constrained_rows import (
    WITH,
    WITHOUT,
    check_chain,
    describe_cases,
    list_rows,
    make_evidence,
)
from stepcot_jax.tools.tables.plan import Plan

METRICS = {"accuracy": "accuracy", "auc": "mAUC", "sensitivity": "sensitivity", "specificity": "specificity"}
SUPERVISION = (
    "Differences: with less without the intermediate steps as supervision. A gain is a higher figure, a loss a lower "
    "one, for each of the four figures separately.",
    "The best weights are chosen by different validation scores: with the intermediate steps by the mean accuracy of "
    "all steps, without them by the accuracy of the diagnosis alone, which favours the row without.",
)
"""Notes on the baselines with and without steps."""


def list_cells(plan: Plan) -> list[Cell]:
    """Return teacher and student, and each encoder's baseline without and with the intermediate steps."""
    return [cell for seed in plan.seeds for cell in (plan.main(seed), *plan.baselines(seed))]


def make_tables(plan: Plan) -> list[Table]:
    """Make the table from finished cells."""
    all_steps = plan.compare_baselines(("last", "all"))
    check_chain(plan.constrained, all_steps.chain)
    comparison = all_steps.choose_steps([all_steps.chain.num_steps - 1])
    nothing = [None] * (4 * len(METRICS) - 1)
    rows: list[tuple[Entry, ...]] = [("most frequent answer", None, comparison.constant(0), *nothing)]
    large = [(model, steps, level) for model in plan.constrained for steps, level in list_rows(model)]
    evidence = [item for model, _, level in large if level.level for item in make_evidence(model, level, [*METRICS])]
    (gains,), verdicts = compare_supervision([comparison], [encoder.name for encoder in plan.encoders()], evidence)
    for encoder in plan.encoders():
        rows.append(_row(comparison, f"{encoder.name}, {WITHOUT} steps", encoder.name, WITHOUT))
        rows.append(_row(comparison, f"{encoder.name}, {WITH} steps", encoder.name, WITH, gains[encoder.name]))
    remaining = iter(verdicts)
    for model, steps, level in large:
        shown_verdicts = [next(remaining) for _ in METRICS] if level.level else None
        rows.append(_large_row(model.model, steps, level, shown_verdicts))
    rows += [_row(comparison, network, network, WITH) for network in ("teacher", "student")]
    shown = {str(row[0]).casefold() for row in rows} | {f"{row[0]}, {row[1]} steps".casefold() for row in rows}
    rows += [
        (name, None, *[None] * (3 * len(METRICS)), *_published(name))
        for name in DIAGNOSIS_FIGURES
        if name.casefold() not in shown
    ]
    notes = [
        f"{comparison.chain.steps[-1].name} alone, {comparison.num_cases(0)} test cases, seeds {list(plan.seeds)}.",
        INTERVALS,
        CORRECTED,
        *SUPERVISION,
        *(encoder.note for encoder in plan.encoders() if encoder.note),
        *describe_cases(plan.constrained, comparison.splits[0]),
    ]
    headings = (
        *columns("text", "model", "intermediate steps"),
        *columns("percent", *METRICS.values()),
        *columns("points", *(f"difference in {heading}" for heading in METRICS.values())),
        *columns("text", *(f"gain in {heading}" for heading in METRICS.values())),
        *columns("percent", *METRICS.values(), published=True),
    )
    return [Table("diagnosis", "Diagnosis with and without intermediate steps", headings, tuple(rows), tuple(notes))]


def compare_supervision(
    comparisons: Sequence[AnswerComparison], encoders: Sequence[str], besides: Sequence[Evidence] = ()
) -> tuple[list[dict[str, list[Entry]]], list[str]]:
    """Compare the baselines with and without the intermediate steps, each on the same cases.

    Args:
      besides: further evidence; one correction covers its verdicts and those of the baselines.

    Returns:
      For each comparison, by encoder, the differences in all figures and then their verdicts; and the verdicts on
      `besides`.
    """
    asked = [
        (comparison, (f"{encoder}, {WITH} steps", f"{encoder}, {WITHOUT} steps", metric, 0))
        for comparison in comparisons
        for encoder in encoders
        for metric in METRICS
    ]
    worded = word_verdicts([*(comparison.evidence(*question) for comparison, question in asked), *besides])
    verdicts = iter(worded[: len(asked)])
    differences = iter([comparison.difference(*question) for comparison, question in asked])
    compared: list[dict[str, list[Entry]]] = [
        {
            encoder: [*(next(differences) for _ in METRICS), *(_name_gain(next(verdicts)) for _ in METRICS)]
            for encoder in encoders
        }
        for _ in comparisons
    ]
    return compared, [_name_gain(verdict) for verdict in worded[len(asked) :]]


def _name_gain(verdict: str) -> str:
    """Name a verdict as a gain or a loss.

    >>> _name_gain("higher in this run"), _name_gain("no difference shown"), _name_gain("too few patients")
    ('gain in this run', 'none shown', 'too few patients')
    """
    for prefix, name in ((HIGHER, "gain"), (LOWER, "loss"), (NONE_SHOWN, "none shown")):
        if verdict.startswith(prefix):
            return f"{name}{verdict.removeprefix(prefix)}"
    return verdict


def _row(
    comparison: AnswerComparison, model: str, name: str, steps: str, gains: list[Entry] | None = None
) -> tuple[Entry, ...]:
    figures = [comparison.figure(model, metric, 0) for metric in METRICS]
    compared = [None] * (2 * len(METRICS)) if gains is None else gains
    published = _published(name if name in DIAGNOSIS_FIGURES else f"{name}, {steps} steps")
    return (name, steps, *figures, *compared, *published)


def _large_row(model: str, steps: str, level: Level, verdicts: Sequence[str] | None) -> tuple[Entry, ...]:
    """Return the row of a large model; for one of the paper's, the row without the steps has the published figures."""
    compared: list[Entry] = [None] * (2 * len(METRICS))
    if verdicts is not None:
        compared = [*(level.differences[metric].figure for metric in METRICS), *verdicts]
    published = _published(model) if not level.level else [None] * len(METRICS)
    return (model, steps, *(level.diagnosis[metric].figure for metric in METRICS), *compared, *published)


def _published(name: str) -> list[Entry]:
    by_name = {known.casefold(): figures for known, figures in DIAGNOSIS_FIGURES.items()}
    figures = by_name.get(name.casefold(), {})
    return [figures.get(metric) for metric in METRICS]
