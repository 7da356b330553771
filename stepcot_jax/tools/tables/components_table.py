"""Tables 6 and 9: ablations of memory, text, write-back, distillation and channel alignment."""

import math

from stepcot_jax.evaluation.comparison import CORRECTED, HIGHER, INTERVALS, LOWER, MCNEMAR, TOO_FEW, AnswerComparison
from stepcot_jax.evaluation.published import COMPONENT_ACCURACY
from stepcot_jax.pages.sheets import Entry, Interval, Table, columns
from stepcot_jax.run.sections import PromptSettings
from stepcot_jax.tools.tables.cells import Cell
from stepcot_jax.tools.tables.plan import ABLATIONS, OF_STUDENT, Plan
from stepcot_jax.tools.tables.steps_table import tabulate_steps

VARIANTS = {f"teacher {name}": "teacher" for name in ABLATIONS if name not in OF_STUDENT}
VARIANTS |= {f"student {name}": "student" for name in ABLATIONS}
"""The full model that each ablated model is compared with."""


def list_cells(plan: Plan) -> list[Cell]:
    """Return the full model and its ablations."""
    return [
        cell for seed in plan.seeds for cell in (plan.main(seed), *(plan.ablation(name, seed) for name in ABLATIONS))
    ]


def make_tables(plan: Plan) -> list[Table]:
    """Make the tables of accuracies, of their differences, and of all figures of each step, from finished cells."""

    def list_parts(seed: int) -> dict[str, tuple[Cell, str]]:
        full = {model: (plan.main(seed), model) for model in ("teacher", "student")}
        ablated = {name: plan.ablation(name, seed) for name in ABLATIONS}
        return full | {name: (ablated[name.removeprefix(f"{base} ")], base) for name, base in VARIANTS.items()}

    comparison = plan.compare(list_parts)
    models = list(comparison.models)
    return [
        _tabulate_accuracy(comparison, plan),
        _tabulate_differences(comparison, plan),
        tabulate_steps("components_steps", "Every step of the ablations", comparison, models, plan.seeds),
    ]


def _tabulate_accuracy(comparison: AnswerComparison, plan: Plan) -> Table:
    steps = comparison.chain.steps
    published_steps = [step.name for step in steps if step.name in COMPONENT_ACCURACY["teacher"]]
    constant = [comparison.constant(step) for step in (*range(len(steps)), None)]
    rows: list[tuple[Entry, ...]] = [("most frequent answer", *constant, *[None] * (3 + len(published_steps)))]
    verdicts = _judge(comparison)
    for model in sorted([*VARIANTS, "teacher", "student"], key=_order):
        base = VARIANTS.get(model)
        # The paper ablates memory and text of the teacher.
        published = COMPONENT_ACCURACY.get(model.removeprefix("teacher "), {})
        rows.append(
            (
                model,
                *(comparison.figure(model, "accuracy", index) for index in range(len(steps))),
                comparison.figure(model, "mean_accuracy"),
                comparison.figure(model, "chain_accuracy"),
                None if base is None else comparison.difference(model, base, "mean_accuracy"),
                verdicts.get(model),
                *(published.get(name) for name in published_steps),
            )
        )
    headings = (
        *columns("text", "model"),
        *columns("percent", *(step.name for step in steps), "mean of the steps", "whole chain"),
        *columns("points", "difference of the mean from the full model"),
        *columns("text", "mean accuracy without it"),
        *columns("percent", *published_steps, published=True),
    )
    notes = (
        f"Accuracy on the test split, seeds {list(plan.seeds)}.",
        describe_text(plan.settings.prompts),
        INTERVALS,
        CORRECTED,
        *conclude(comparison),
    )
    return Table("components", "Accuracy of the ablations", headings, tuple(rows), notes)


def _order(model: str) -> tuple[bool, bool]:
    """Sort key: the teacher and its ablations, then the student and its."""
    return VARIANTS.get(model, model) == "student", model in VARIANTS


def describe_text(prompts: PromptSettings) -> str:
    """Return what the ablation of the text compares, which depends on the prompt vectors."""
    if prompts.encoder == "hashed":
        compared = 'that are fixed random ones (config.prompts.encoder="hashed")'
        about = "it says nothing about the meaning of the questions"
    else:
        compared = "imported with the features" if prompts.encoder == "imported" else f"of {prompts.weights}"
        about = "the questions' meaning is in the former only"
    return (
        f'"Without text" compares prompt vectors {compared} with one vector per step that the teacher learns from a '
        f"random start: {about}. The student reads no text in either case. The paper does not say what takes the place "
        "of the prompts."
    )


def _judge(comparison: AnswerComparison) -> dict[str, str]:
    questions = [(variant, base, "mean_accuracy", None) for variant, base in VARIANTS.items()]
    return dict(zip(VARIANTS, comparison.verdicts(questions), strict=True))


def conclude(comparison: AnswerComparison) -> list[str]:
    """Return one sentence on the effect of each part."""
    sentences = []
    for variant, verdict in _judge(comparison).items():
        base = VARIANTS[variant]
        if verdict.startswith(HIGHER):
            effect = f"the {base} is better without it{verdict.removeprefix(HIGHER)}"
        elif verdict.startswith(LOWER):
            effect = f"the {base} needs it{verdict.removeprefix(LOWER)}"
        else:
            effect = "too few patients to tell" if verdict == TOO_FEW else "no significant difference"
        difference = _describe(comparison.difference(variant, base, "mean_accuracy"))
        sentences.append(f"{variant[0].upper()}{variant[1:]}: mean accuracy {difference}; {effect}.")
    return sentences


def _describe(difference: Interval) -> str:
    """Describe a difference with its interval, if it has one.

    >>> _describe(Interval(0.012, 0.001, 0.025)), _describe(Interval(0.012, math.nan, math.nan))
    ('+1.2 [+0.1, +2.5] points', '+1.2 points (no interval)')
    """
    if math.isnan(difference.value):
        return "is undefined"
    value, low, high = (100 * end for end in (difference.value, difference.low, difference.high))
    interval = " points (no interval)" if math.isnan(low + high) else f" [{low:+.1f}, {high:+.1f}] points"
    return f"{value:+.1f}{interval}"


def _tabulate_differences(comparison: AnswerComparison, plan: Plan) -> Table:
    """Return the table of accuracy and mAUC of every step; one correction covers all verdicts."""
    asked = [
        (variant, base, index)
        for variant, base in VARIANTS.items()
        for index in range(comparison.chain.num_steps)
        if comparison.num_cases(index)
    ]
    questions = [(variant, base, figure, index) for variant, base, index in asked for figure in ("accuracy", "auc")]
    verdicts = iter(comparison.verdicts(questions))
    rows: list[tuple[Entry, ...]] = [
        (
            variant,
            base,
            comparison.chain.steps[index].name,
            comparison.difference(variant, base, "accuracy", index),
            comparison.p_value(variant, base, "accuracy", index),
            next(verdicts),
            comparison.difference(variant, base, "auc", index),
            next(verdicts),
        )
        for variant, base, index in asked
    ]
    headings = (
        *columns("text", "model", "less", "step"),
        *columns("points", "accuracy"),
        *columns("number", "p"),
        *columns("text", "accuracy is"),
        *columns("points", "mAUC"),
        *columns("text", "mAUC is"),
    )
    text = describe_text(plan.settings.prompts)
    notes = (f"Paired on the test split, seeds {list(plan.seeds)}.", text, INTERVALS, CORRECTED, MCNEMAR)
    title = "Differences of the ablations from the full model"
    return Table("components_differences", title, headings, tuple(rows), notes)
