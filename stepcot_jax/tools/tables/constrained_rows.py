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


def list_rows(found: Constrained) -> list[tuple[str, Level]]:
    """Return level 0 and, of each variant that was measured up to the last step, that level, with its steps in words.

    Raises:
      ValueError: level 0 is missing, which `read_constrained` refuses.
    """
    direct = found.find("constraints", 0)
    if direct is None:
        raise ValueError(f"{found.model}: level 0 is missing")
    highest = ((words, found.find(variant, len(found.steps))) for variant, words in _GIVEN.items())
    return [(WITHOUT, direct), *((words, level) for words, level in highest if level is not None)]


def make_evidence(found: Constrained, level: Level, metrics: Sequence[str]) -> list[Evidence]:
    """Return the evidence for a level's differences from level 0, in the order of the metrics."""
    figures = {metric: level.differences[metric].figure for metric in metrics}
    return [
        Evidence(figure, (figure.value,), found.num_patients, level.p if metric == "accuracy" else None)
        for metric, figure in figures.items()
    ]


def check_chain(models: Sequence[Constrained], chain: Chain) -> None:
    """Require that large models answered the questions of a table."""
    for found in models:
        difference = describe_difference([(name, tuple(options)) for name, options in found.steps], chain)
        if difference:
            raise BadInput(f"--constrained, model {found.model!r}: another chain than the runs': {difference}")


def list_step_rows(found: Constrained, step: str) -> list[tuple[Entry, ...]]:
    """Return the rows of a step in Table 8: step, model, cases and figures.

    The last step, the diagnosis, has a row without the steps (level 0). Each step has a row of replies with all steps
    asked at once, if they were.
    """
    is_last = bool(found.steps) and step == found.steps[-1][0]
    figures = {}
    if is_last and (direct := found.find("constraints", 0)) is not None:
        figures[WITHOUT] = direct.diagnosis
    if (level := _find_all_steps(found)) is not None:
        figures[WITH] = level.diagnosis if is_last else level.steps[step]
    return [
        (step, f"{found.model}, {words} steps", found.num_cases, *(of_level[name].figure for name in FIGURES))
        for words, of_level in figures.items()
    ]


def _find_all_steps(found: Constrained) -> Level | None:
    return found.find("constraints", len(found.steps)) if found.steps else None


def describe_cases(models: Sequence[Constrained], split: SplitPredictions) -> list[str]:
    """Return notes: how large models were asked, whether on the same cases as the networks, and what is missing."""
    diagnosed = split.facts["case_id"][split.predictions.labels[:, -1] != NOT_ANNOTATED]
    same = digest_cases(diagnosed.tolist())
    notes = [ABOUT] if models else []
    for found in models:
        cases = f"{found.num_cases} cases of {found.source}"
        which = "the test cases of the networks" if found.cases == same else f"other cases than the networks', {cases}"
        missing = f"; {found.num_missing} dialogues have no reply and count as wrong" if found.num_missing else ""
        notes.append(f"{found.model}: {which}. {found.about}{missing}.")
        if _find_all_steps(found) is None:
            last = len(found.steps)
            notes.append(
                f"{found.model}: no rows with all steps asked at once; level {last} of the variant "
                "'constraints' is missing."
            )
    return notes
