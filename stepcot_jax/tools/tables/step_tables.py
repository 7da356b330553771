"""Tables 3, 6, 8 and 9: baselines without and with the intermediate steps, teacher, student and their ablations."""

from collections.abc import Mapping, Sequence
from typing import Any

from stepcot_jax.chain import NOT_ANNOTATED, Chain
from stepcot_jax.evaluation.chains import FIGURES
from stepcot_jax.evaluation.comparison import (
    CORRECTED,
    HIGHER,
    INTERVALS,
    LOWER,
    MCNEMAR,
    NONE_SHOWN,
    AnswerComparison,
    Evidence,
    settle,
)
from stepcot_jax.evaluation.predictions import SplitPredictions, refuse_other_chain
from stepcot_jax.evaluation.published import (
    COMPONENT_ACCURACY,
    DIAGNOSIS_FIGURES,
    Constrained,
    digest_cases,
    step_figures,
)
from stepcot_jax.pages.sheets import Entry, Row, Table, columns, heads, mark_published
from stepcot_jax.run.sections import PromptSettings
from stepcot_jax.tools.tables.cells import Cell
from stepcot_jax.tools.tables.plan import ABLATIONS, NETWORKS, OF_STUDENT, Plan, Recipe

# Table 3, of the diagnosis.

WITHOUT, WITH = "without", "with"
METRICS = {"accuracy": "accuracy", "auc": "mAUC", "sensitivity": "sensitivity", "specificity": "macro specificity"}
FIGURE_COLUMNS = (
    *heads(*(f"%{heading}" for heading in METRICS.values())),
    *heads(*(f"+difference in {heading}" for heading in METRICS.values())),
    *heads(*(f"gain in {heading}" for heading in METRICS.values())),
)
SUPERVISION = (
    "Differences: with less without the intermediate steps as supervision. A gain is a higher figure, a loss a lower "
    "one, for each of the four figures separately.",
    "The best weights are chosen by different validation scores: with the intermediate steps by the mean accuracy of "
    "all steps, without them by the accuracy of the diagnosis alone, which favours the row without.",
)
"""Notes on the baselines with and without steps."""


def make_diagnosis(plan: Plan) -> list[Table]:
    """Make Table 3."""
    all_steps, encoders = plan.compare_baselines(("last", "all")), plan.encoders()
    check_chain(plan.constrained, all_steps.chain)
    comparison = all_steps.choose_steps([all_steps.chain.num_steps - 1])
    rows: list[dict[str, Any]] = [{"model": "most frequent answer", "accuracy": comparison.constant(0)}]
    for encoder in encoders:
        for row in list_supervised(comparison, encoder.name):
            in_paper = encoder.name if encoder.name in DIAGNOSIS_FIGURES else _name(row)
            rows.append(row | _published(in_paper))
    rows += [row for large in plan.constrained for row in list_rows(large)]
    rows += [list_trained(comparison, network) | _published(network) for network in NETWORKS]
    shown = {name.casefold() for row in rows for name in (str(row["model"]), _name(row))}
    rows += [{"model": name, **_published(name)} for name in DIAGNOSIS_FIGURES if name.casefold() not in shown]
    notes = (
        f"{comparison.chain.steps[-1].name} alone, {comparison.num_cases(0)} test cases, seeds {list(plan.seeds)}.",
        INTERVALS,
        CORRECTED,
        *SUPERVISION,
        *(encoder.note for encoder in encoders if encoder.note),
        *describe_cases(plan.constrained, comparison.splits[0]),
    )
    of_paper = columns("percent", *METRICS.values(), published=True)
    head = (*heads("model", "intermediate steps"), *FIGURE_COLUMNS, *of_paper)
    title = "Diagnosis with and without intermediate steps"
    return [Table.of("diagnosis", title, head, settle(rows, name_gain), notes)]


def _name(row: Mapping[str, Any]) -> str:
    return f"{row['model']}, {row.get('intermediate steps')} steps"


def list_trained(comparison: AnswerComparison, network: str) -> dict[str, Any]:
    """Return the row of the teacher or the student."""
    return {"model": network, "intermediate steps": WITH, **comparison.figures(network, METRICS, 0)}


def list_supervised(comparison: AnswerComparison, encoder: str) -> list[dict[str, Any]]:
    """Return an encoder's rows without and with the intermediate steps, with the evidence for gains."""
    rows: list[dict[str, Any]] = [{"model": encoder, "intermediate steps": steps} for steps in (WITHOUT, WITH)]
    without, given = map(_name, rows)
    for row, model in zip(rows, (without, given), strict=True):
        row |= comparison.figures(model, METRICS, 0)
    for metric, heading in METRICS.items():
        rows[1][f"difference in {heading}"] = comparison.difference(given, without, metric, 0)
        rows[1][f"gain in {heading}"] = comparison.evidence(given, without, metric, 0)
    return rows


def name_gain(verdict: str) -> str:
    """Name a verdict as a gain or a loss.

    >>> name_gain("higher in this run"), name_gain("no difference shown"), name_gain("too few patients")
    ('gain in this run', 'none shown', 'too few patients')
    """
    for prefix, name in ((HIGHER, "gain"), (LOWER, "loss"), (NONE_SHOWN, "none shown")):
        if verdict.startswith(prefix):
            return f"{name}{verdict.removeprefix(prefix)}"
    return verdict


def _published(name: str) -> dict[str, Entry]:
    by_name = {known.casefold(): figures for known, figures in DIAGNOSIS_FIGURES.items()}
    return mark_published({METRICS[metric]: value for metric, value in by_name.get(name.casefold(), {}).items()})


# Large models put through the steps, beside the trained networks (paper: Tables 3 and 8).

_GIVEN = {"constraints": WITH, "own": f"{WITH}, own answers given", "true": f"{WITH}, true answers given"}

ABOUT = (
    "Large models are not trained here: without the steps is the diagnosis asked directly, with them all steps as "
    "constraints (stepcot constrain). Their answers have no probabilities, so that their mAUC is the "
    "mean of sensitivity and specificity of each answer; a reply without a readable answer is wrong."
)


def list_rows(large: Constrained) -> list[dict[str, Any]]:
    """Return the rows of level 0 and of the last level of each variant that was measured up to it."""
    rows: list[dict[str, Any]] = []
    measured = {WITHOUT: large.find("constraints", 0)}
    measured |= {words: large.find(variant, len(large.steps)) for variant, words in _GIVEN.items()}
    for steps, level in measured.items():
        if level is None:
            continue
        row: dict[str, Any] = {"model": large.model, "intermediate steps": steps}
        row |= {heading: level.diagnosis[metric] for metric, heading in METRICS.items()}
        for metric, heading in METRICS.items() if level.level else ():
            figure, p = level.differences[metric], level.p if metric == "accuracy" else None
            row[f"difference in {heading}"] = figure
            row[f"gain in {heading}"] = Evidence(figure, (figure.value,), large.num_patients, p)
        # For a model of the paper, the row without the steps has the published figures.
        rows.append(row if level.level else row | _published(large.model))
    return rows


def check_chain(models: Sequence[Constrained], chain: Chain) -> None:
    """Require that large models answered the questions of a table."""
    for large in models:
        steps = [(name, tuple(options)) for name, options in large.steps]
        refuse_other_chain(f"--constrained, model {large.model!r}: another chain than the runs'", steps, chain)


def _list_step_rows(large: Constrained, step: str) -> list[Row]:
    """Return a large model's rows of a step in Table 8: without the steps (the last alone) and with."""
    is_last, figures = step == large.steps[-1][0], {}
    if is_last and (direct := large.find("constraints", 0)) is not None:
        figures[WITHOUT] = direct.diagnosis
    if (level := large.find("constraints", len(large.steps))) is not None:
        figures[WITH] = level.diagnosis if is_last else level.steps[step]
    return [
        {"step": step, "model": f"{large.model}, {words} steps", "cases": large.num_cases}
        | {heading: of_level[name] for name, heading in HEADINGS.items()}
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


# Table 8, of every step.

HEADINGS = {name: {"auc": "mAUC", "f1": "F1"}.get(name, name) for name in FIGURES}


def make_steps(plan: Plan) -> list[Table]:
    """Make Table 8."""
    comparison = plan.compare_baselines(("all",))
    check_chain(plan.constrained, comparison.chain)
    models = [*(model for model in comparison.models if model not in NETWORKS), *NETWORKS]
    return [_tabulate_steps("steps", "Every step of every model", comparison, models, plan)]


def _tabulate_steps(name: str, title: str, comparison: AnswerComparison, models: list[str], plan: Plan) -> Table:
    """Make a table of all figures of each model and step, with published ones and the best constant answer."""
    large = plan.constrained if name == "steps" else ()
    known = {(model, step.name): step_figures(model, step.name) for step in comparison.chain.steps for model in models}
    shown = [heading for figure, heading in HEADINGS.items() if any(figure in figures for figures in known.values())]
    rows: list[Row] = []
    for index, step in enumerate(comparison.chain.steps):
        about: Row = {"step": step.name, "cases": comparison.num_cases(index)}
        rows.append(about | {"model": "most frequent answer", "accuracy": comparison.constant(index)})
        for model in models:
            ours = comparison.figures(model, HEADINGS, index)
            published = {HEADINGS[figure]: share for figure, share in known[model, step.name].items()}
            rows.append(about | {"model": model} | ours | mark_published(published))
        rows += [row for constrained in large for row in _list_step_rows(constrained, step.name)]
    of_paper = columns("percent", *shown, published=True)
    head = (*heads("step", "model", "#cases"), *columns("percent", *HEADINGS.values()), *of_paper)
    notes = [f"Test split, seeds {list(plan.seeds)}.", INTERVALS]
    notes.append("The most frequent answer is that of the whole split in every resample; no model knows it.")
    notes += describe_cases(large, comparison.splits[0])
    if shown:
        notes.append("Published: accuracies of Tables 6 and 9, the diagnosis of Table 3; others are unknown.")
    return Table.of(name, title, head, rows, notes)


# Tables 6 and 9, of the ablations.

VARIANTS = {f"teacher {name}": "teacher" for name in ABLATIONS if name not in OF_STUDENT}
VARIANTS |= {f"student {name}": "student" for name in ABLATIONS}
"""The full model that each ablated model is compared with."""


def make_components(plan: Plan) -> list[Table]:
    """Make the tables of accuracies, of their differences, and of all figures of each step."""

    def list_parts(seed: int) -> dict[str, tuple[Cell, str]]:
        ablated = {name: plan.ablation(name, seed) for name in ABLATIONS}
        parts = {name: (ablated[name.removeprefix(f"{base} ")], base) for name, base in VARIANTS.items()}
        return {model: (plan.main(seed), model) for model in NETWORKS} | parts

    comparison = plan.compare(list_parts)
    return [
        _tabulate_accuracy(comparison, plan),
        _tabulate_differences(comparison, plan),
        _tabulate_steps("components_steps", "Every step of the ablations", comparison, list(comparison.models), plan),
    ]


def _tabulate_accuracy(comparison: AnswerComparison, plan: Plan) -> Table:
    steps = [step.name for step in comparison.chain.steps]
    in_paper = [name for name in steps if name in COMPONENT_ACCURACY["teacher"]]
    mean, chain = "mean of the steps", "whole chain"
    gain, verdict = "difference of the mean from the full model", "mean accuracy without it"
    constant = {name: comparison.constant(index) for index, name in enumerate(steps)}
    rows: list[dict[str, Any]] = [{"model": "most frequent answer", **constant, mean: comparison.constant(None)}]
    # The teacher and its ablations, then the student and its.
    order = sorted([*VARIANTS, *NETWORKS], key=lambda name: (VARIANTS.get(name, name) == "student", name in VARIANTS))
    for model in order:
        row: dict[str, Any] = {"model": model}
        row |= {name: comparison.figure(model, "accuracy", index) for index, name in enumerate(steps)}
        row |= {mean: comparison.figure(model, "mean_accuracy"), chain: comparison.figure(model, "chain_accuracy")}
        if model in VARIANTS:
            pair = model, VARIANTS[model], "mean_accuracy"
            row |= {gain: comparison.difference(*pair), verdict: comparison.evidence(*pair)}
        # The paper ablates memory and text of the teacher.
        published = COMPONENT_ACCURACY.get(model.removeprefix("teacher "), {})
        rows.append(row | mark_published({name: published[name] for name in in_paper if name in published}))
    head = (
        *heads("model"),
        *columns("percent", *steps, mean, chain),
        *heads(f"+{gain}", verdict),
        *columns("percent", *in_paper, published=True),
    )
    notes = (
        f"Accuracy on the test split, seeds {list(plan.seeds)}.",
        describe_text(plan.settings.prompts),
        INTERVALS,
        CORRECTED,
    )
    return Table.of("components", "Accuracy of the ablations", head, settle(rows), notes)


def describe_text(prompts: PromptSettings) -> str:
    """Return what the ablation of the text compares, which depends on the prompt vectors."""
    compared, about = f"of {prompts.weights}", "the questions' meaning is in the former only"
    if prompts.encoder == "hashed":
        compared = 'that are fixed random ones (config.prompts.encoder="hashed")'
        about = "it says nothing about the meaning of the questions"
    elif prompts.encoder == "imported":
        compared = "imported with the features"
    return (
        f'"Without text" compares prompt vectors {compared} with one vector per step that the teacher learns from a '
        f"random start: {about}. The student reads no text in either case. The paper does not say what takes the place "
        "of the prompts."
    )


def _tabulate_differences(comparison: AnswerComparison, plan: Plan) -> Table:
    rows: list[dict[str, Any]] = []
    for variant, base in VARIANTS.items():
        for index, step in enumerate(comparison.chain.steps):
            if comparison.num_cases(index):
                accuracy, area = ((variant, base, figure, index) for figure in ("accuracy", "auc"))
                row: dict[str, Any] = {"model": variant, "less": base, "step": step.name}
                row |= {"accuracy": comparison.difference(*accuracy), "p": comparison.p_value(*accuracy)}
                row |= {"accuracy is": comparison.evidence(*accuracy)}
                rows.append(row | {"mAUC": comparison.difference(*area), "mAUC is": comparison.evidence(*area)})
    head = heads("model", "less", "step", "+accuracy", "#p", "accuracy is", "+mAUC", "mAUC is")
    text = describe_text(plan.settings.prompts)
    notes = (f"Paired on the test split, seeds {list(plan.seeds)}.", text, INTERVALS, CORRECTED, MCNEMAR)
    title = "Differences of the ablations from the full model"
    return Table.of("components_differences", title, head, settle(rows), notes)


RECIPES = {
    "diagnosis": Recipe(lambda plan, seed: [plan.main(seed), *plan.baselines(seed)], make_diagnosis),
    "steps": Recipe(lambda plan, seed: [plan.main(seed), *plan.baselines(seed, ("all",))], make_steps),
    "components": Recipe(
        lambda plan, seed: [plan.main(seed), *(plan.ablation(name, seed) for name in ABLATIONS)], make_components
    ),
}
