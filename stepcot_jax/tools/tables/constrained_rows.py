"""Rows of large models put through the steps, beside the trained networks (paper: Tables 3 and 8)."""

from collections.abc import Sequence

from stepcot_jax.chain import NOT_ANNOTATED, Chain
from stepcot_jax.evaluation.chains import FIGURES
from stepcot_jax.evaluation.comparison import Evidence
from stepcot_jax.evaluation.predictions import SplitPredictions, describe_difference
from stepcot_jax.evaluation.published import Constrained, Level, digest_cases
from stepcot_jax.host.errors import BadInput
from stepcot_jax.pages.sheets import Entry

WITHOUT, WITH = "without", "with"

_GIVEN = {"constraints": WITH, "own": f"{WITH}, own answers given", "true": f"{WITH}, true answers given"}

ABOUT = (
    "Large models are not trained here: without the steps is the diagnosis asked directly, with them all steps as "
    "constraints (stepcot constrain). Their answers have no probabilities, so that their mAUC is the "
    "mean of sensitivity and specificity of each answer; a reply without a readable answer is wrong."
)


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
