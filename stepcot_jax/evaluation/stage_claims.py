"""Labels of a reply's stages from the facts, and the quality of its steps."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from jaxtyping import Float64

from stepcot_jax.evaluation.statistics import Weights, mean_defined, weighted_mean
from stepcot_jax.reasoning.claims import CHECKED_FACTS, UNCHECKED, find_claims, read_fact, states_answer_alone
from stepcot_jax.reasoning.rules import find_rules, ruled_diagnosis
from stepcot_jax.record import STAGE_NAMES

DESCRIPTIONS = ("localisation", "visual")
LABEL_VALUES: Mapping[str, float] = {
    "fully correct": 1.0,
    "partially correct": 0.5,
    "unsupported": 0.0,
    "correct": 1.0,
    "incorrect": 0.0,
}  # Worth of a judge's labels of a step, as MiCEval names them


def label_stages(stages: Mapping[str, str], facts: Mapping[str, str]) -> tuple[float, ...]:
    """Label a reply's stages from the facts, in the order of `STAGE_NAMES`; NaN without a fact to check one by."""
    if "asked" in facts:
        return (np.nan,) * len(STAGE_NAMES)
    texts = {stage: stages.get(stage, "") for stage in STAGE_NAMES}
    return tuple(
        _label_rule(text, facts) if stage == "knowledge" else _label_claims(text, stage, facts)
        for stage, text in texts.items()
    )


def _label_rule(text: str, facts: Mapping[str, str]) -> float:
    diagnosis = ruled_diagnosis(facts)
    if not diagnosis:
        return np.nan
    is_contradicted = find_claims(text, stage="knowledge", facts=facts).contradicting > 0
    return float(find_rules(text) == {diagnosis} and not is_contradicted)


def _label_claims(text: str, stage: str, facts: Mapping[str, str]) -> float:
    claims = find_claims(text, stage=stage, facts=facts)
    checked = [read_fact(name, facts.get(name)) for name in CHECKED_FACTS[stage]]
    if all(known is None or known is UNCHECKED for known in checked):
        return np.nan
    if stage == "conclusion" and states_answer_alone(text):
        return np.nan
    if claims.total and claims.agreeing == claims.total:
        return 1.0
    return 0.5 if claims.agreeing and stage in DESCRIPTIONS else 0.0


def step_quality(labels: Float64[np.ndarray, "reply stage"]) -> Float64[np.ndarray, "reply part"]:
    """Return the quality of description, of reasoning, and of both together: means, NaN for none."""
    describing = np.array([stage in DESCRIPTIONS for stage in STAGE_NAMES])
    parts = np.stack([mean_defined(labels[:, describing]), mean_defined(labels[:, ~describing])], axis=1)
    product = np.where(np.isnan(parts), 1.0, parts).prod(axis=1)
    num_parts = (~np.isnan(parts)).sum(axis=1)
    together = np.where(num_parts == 0, np.nan, product ** (1 / np.maximum(num_parts, 1)))
    return np.column_stack([parts, together])


def stage_figures(
    weights: Weights, *, labels: Float64[np.ndarray, "reply stage"]
) -> dict[tuple[str, str], npt.NDArray[np.float64]]:
    """Return the mean value of each stage and the mean step quality in each resample."""
    keys = [("stage", name) for name in STAGE_NAMES]
    keys += [("step_quality", name) for name in ("description", "reasoning", "together")]
    values: npt.NDArray[np.float64] = np.column_stack([labels, step_quality(labels)])
    return dict(zip(keys, weighted_mean(weights, values=values, counted=~np.isnan(values)).T, strict=True))
