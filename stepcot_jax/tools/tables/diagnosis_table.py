"""Table 3: the diagnosis by baselines without and with the intermediate steps, teacher and student."""

from collections.abc import Sequence

from stepcot_jax.chain import NOT_ANNOTATED, Chain
from stepcot_jax.evaluation.chains import FIGURES
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
from stepcot_jax.evaluation.predictions import SplitPredictions, describe_difference
from stepcot_jax.evaluation.published import DIAGNOSIS_FIGURES, Constrained, Level, digest_cases
from stepcot_jax.host.errors import BadInput
from stepcot_jax.pages.sheets import Entry, Row, Table, columns
from stepcot_jax.tools.tables.cells import Cell
from stepcot_jax.tools.tables.plan import Plan

WITHOUT, WITH = "without", "with"

_GIVEN = {"constraints": WITH, "own": f"{WITH}, own answers given", "true": f"{WITH}, true answers given"}

ABOUT = (
    "Large models are not trained here: without the steps is the diagnosis asked directly, with them all steps as "
    "constraints (stepcot constrain). Their answers have no probabilities, so that their mAUC is the "
    "mean of sensitivity and specificity of each answer; a reply without a readable answer is wrong."
)

METRICS = {"accuracy": "accuracy", "auc": "mAUC", "sensitivity": "sensitivity", "specificity": "specificity"}
FIGURE_COLUMNS = (
    *columns("percent", *METRICS.values()),
    *columns("points", *(f"difference in {heading}" for heading in METRICS.values())),
    *columns("text", *(f"gain in {heading}" for heading in METRICS.values())),
)
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
    all_steps, encoders = plan.compare_baselines(("last", "all")), plan.encoders()
    check_chain(plan.constrained, all_steps.chain)
    comparison = all_steps.choose_steps([all_steps.chain.num_steps - 1])
    large = [(model, steps, level) for model in plan.constrained for steps, level in list_rows(model)]
    evidence = [item for model, _, level in large if level.level for item in make_evidence(model, level, [*METRICS])]
    (gains,), verdicts = compare_supervision([comparison], [encoder.name for encoder in encoders], evidence)
    rows: list[Row] = [{"model": "most frequent answer", "accuracy": comparison.constant(0)}]
    for encoder in encoders:
        for steps in (WITHOUT, WITH):
            name = f"{encoder.name}, {steps} steps"
            known = encoder.name if encoder.name in DIAGNOSIS_FIGURES else name
            row: Row = {"model": encoder.name, "intermediate steps": steps}
            row |= list_figures(comparison, name) | (gains[encoder.name] if steps == WITH else {})
            rows.append(row | _published(known))
    remaining = iter(verdicts)
    for model, steps, level in large:
        row = {"model": model.model, "intermediate steps": steps}
        row |= {heading: level.diagnosis[metric].figure for metric, heading in METRICS.items()}
        for metric, heading in METRICS.items() if level.level else ():
            row[f"difference in {heading}"] = level.differences[metric].figure
            row[f"gain in {heading}"] = next(remaining)
        # For a model of the paper, the row without the steps has the published figures.
        rows.append(row | ({} if level.level else _published(model.model)))
    for network in ("teacher", "student"):
        rows.append({"model": network, "intermediate steps": WITH})
        rows[-1] |= list_figures(comparison, network) | _published(network)
    shown = {str(row["model"]).casefold() for row in rows}
    shown |= {f"{row['model']}, {row.get('intermediate steps')} steps".casefold() for row in rows}
    rows += [{"model": name, **_published(name)} for name in DIAGNOSIS_FIGURES if name.casefold() not in shown]
    notes = (
        f"{comparison.chain.steps[-1].name} alone, {comparison.num_cases(0)} test cases, seeds {list(plan.seeds)}.",
        INTERVALS,
        CORRECTED,
        *SUPERVISION,
        *(encoder.note for encoder in encoders if encoder.note),
        *describe_cases(plan.constrained, comparison.splits[0]),
    )
    headings = (
        *columns("text", "model", "intermediate steps"),
        *FIGURE_COLUMNS,
        *columns("percent", *METRICS.values(), published=True),
    )
    return [Table.of("diagnosis", "Diagnosis with and without intermediate steps", headings, rows, notes)]


def list_figures(comparison: AnswerComparison, model: str) -> dict[str, Entry]:
    """Return a model's figures of the diagnosis, which is the only step of the comparison."""
    return {heading: comparison.figure(model, metric, 0) for metric, heading in METRICS.items()}


def compare_supervision(
    comparisons: Sequence[AnswerComparison], encoders: Sequence[str], besides: Sequence[Evidence] = ()
) -> tuple[list[dict[str, dict[str, Entry]]], list[str]]:
    """Return by comparison and encoder the gains from the intermediate steps, and the verdicts on further evidence.

    One correction covers all verdicts.
    """
    asked = [
        (number, encoder, heading, (f"{encoder}, {WITH} steps", f"{encoder}, {WITHOUT} steps", metric, 0))
        for number in range(len(comparisons))
        for encoder in encoders
        for metric, heading in METRICS.items()
    ]
    evidence = [comparisons[number].evidence(*question) for number, _, _, question in asked]
    verdicts = [_name_gain(verdict) for verdict in word_verdicts([*evidence, *besides])]
    compared: list[dict[str, dict[str, Entry]]] = [{encoder: {} for encoder in encoders} for _ in comparisons]
    for (number, encoder, heading, question), verdict in zip(asked, verdicts, strict=False):
        difference = comparisons[number].difference(*question)
        compared[number][encoder] |= {f"difference in {heading}": difference, f"gain in {heading}": verdict}
    return compared, verdicts[len(asked) :]


def _name_gain(verdict: str) -> str:
    """Name a verdict as a gain or a loss.

    >>> _name_gain("higher in this run"), _name_gain("no difference shown"), _name_gain("too few patients")
    ('gain in this run', 'none shown', 'too few patients')
    """
    for prefix, name in ((HIGHER, "gain"), (LOWER, "loss"), (NONE_SHOWN, "none shown")):
        if verdict.startswith(prefix):
            return f"{name}{verdict.removeprefix(prefix)}"
    return verdict


def _published(name: str) -> dict[str, Entry]:
    by_name = {known.casefold(): figures for known, figures in DIAGNOSIS_FIGURES.items()}
    return {f"published: {METRICS[metric]}": value for metric, value in by_name.get(name.casefold(), {}).items()}


# Large models put through the steps, beside the trained networks (paper: Tables 3 and 8).


def list_rows(large: Constrained) -> list[tuple[str, Level]]:
    """Return level 0 and the last level of each variant that was measured up to it, each with a phrase on its steps."""
    levels = [(WITHOUT, large.find("constraints", 0))]
    levels += [(words, large.find(variant, len(large.steps))) for variant, words in _GIVEN.items()]
    return [(words, level) for words, level in levels if level is not None]


def make_evidence(large: Constrained, level: Level, metrics: Sequence[str]) -> list[Evidence]:
    """Return the evidence for a level's differences from level 0, in the order of the metrics."""
    figures = {metric: level.differences[metric].figure for metric in metrics}
    return [
        Evidence(figure, (figure.value,), large.num_patients, level.p if metric == "accuracy" else None)
        for metric, figure in figures.items()
    ]


def check_chain(models: Sequence[Constrained], chain: Chain) -> None:
    """Require that large models answered the questions of a table."""
    for large in models:
        difference = describe_difference([(name, tuple(options)) for name, options in large.steps], chain)
        if difference:
            raise BadInput(f"--constrained, model {large.model!r}: another chain than the runs': {difference}")


def list_step_rows(large: Constrained, step: str) -> list[tuple[Entry, ...]]:
    """Return the rows of a step in Table 8, model, cases and figures: without the steps (the last alone) and with."""
    is_last = step == large.steps[-1][0]
    figures = {}
    if is_last and (direct := large.find("constraints", 0)) is not None:
        figures[WITHOUT] = direct.diagnosis
    if (level := large.find("constraints", len(large.steps))) is not None:
        figures[WITH] = level.diagnosis if is_last else level.steps[step]
    return [
        (f"{large.model}, {words} steps", large.num_cases, *(of_level[name].figure for name in FIGURES))
        for words, of_level in figures.items()
    ]


def describe_cases(models: Sequence[Constrained], split: SplitPredictions) -> list[str]:
    """Return notes on the large models: how they were asked, on which cases, and which rows and replies are missing."""
    diagnosed = split.facts["case_id"][split.predictions.labels[:, -1] != NOT_ANNOTATED]
    same = digest_cases(diagnosed.tolist())
    notes = [ABOUT] if models else []
    for large in models:
        cases = f"{large.num_cases} cases of {large.source}"
        which = "the test cases of the networks" if large.cases == same else f"other cases than the networks', {cases}"
        missing = f"; {large.num_missing} dialogues have no reply and count as wrong" if large.num_missing else ""
        notes.append(f"{large.model}: {which}. {large.about}{missing}.")
        last = len(large.steps)
        if large.find("constraints", last) is None:
            notes.append(
                f"{large.model}: no rows with all steps asked at once; level {last} of the variant "
                "'constraints' is missing."
            )
    return notes
