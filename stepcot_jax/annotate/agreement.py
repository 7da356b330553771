"""How far annotators agree about the same reports: share, Cohen's kappa of each pair, Fleiss' kappa of all.

Cohen, Educ. Psychol. Meas. 20 (1960); Fleiss, Psychol. Bull. 76 (1971). A kappa is 1 where all agree, 0 where they
agree as often as chance would have it, and does not exist where there was one answer only.
"""

import dataclasses
import itertools
import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64, Int, Real

from stepcot_jax.annotate.alignment import Aligned
from stepcot_jax.chain import NOT_ANNOTATED
from stepcot_jax.host.errors import BadInput


@dataclasses.dataclass(frozen=True)
class Pair:
    """Two annotators on one step.

    Attributes:
      names: of the two.
      num_cases: reports whose step both have answered.
      agreement: share of these with the same answer; NaN without any.
      kappa: Cohen's; NaN where it does not exist.
    """

    names: tuple[str, str]
    num_cases: int
    agreement: float
    kappa: float


@dataclasses.dataclass(frozen=True)
class StepComparison:
    """All annotators on one step.

    Attributes:
      step: name of the step.
      num_cases: reports whose step all have answered.
      agreement: share of these with one answer from all; NaN without any.
      kappa: Fleiss'; NaN where it does not exist.
      pairs: every two of the annotators.
    """

    step: str
    num_cases: int
    agreement: float
    kappa: float
    pairs: tuple[Pair, ...]


def compare(aligned: Aligned) -> tuple[StepComparison, ...]:
    """Agreement of two or more annotators, step by step.

    Raises:
      BadInput: there is one annotator only.
    """
    if len(aligned.names) < 2:
        raise BadInput(f"agree: found one annotator ({aligned.names[0]}), accepted are two or more")
    labels = np.array([[case.labels for case in unit.cases] for unit in aligned.units])
    return tuple(
        _compare_step(step.name, labels[:, :, place], step.num_answers, aligned.names)
        for place, step in enumerate(aligned.chain.steps)
    )


def cohen_kappa(confusion: Real[np.ndarray, "*resample answer answer"]) -> Float64[np.ndarray, "*resample"]:
    """Cohen's kappa of two annotators, for one confusion or for many.

    Args:
      confusion: number of cases [..., answer of one, answer of the other].

    Returns:
      [...]; NaN where it does not exist.

    >>> cohen_kappa(np.array([[20, 5], [10, 15]])).round(3).item()
    0.4
    """
    found = confusion.astype(np.float64)
    total = found.sum(axis=(-2, -1))
    with np.errstate(invalid="ignore"):  # 0 / 0: nothing to agree about
        expected = (found.sum(axis=-2) * found.sum(axis=-1)).sum(axis=-1) / total**2
        return _correct_for_chance(np.trace(found, axis1=-2, axis2=-1) / total, expected)


def fleiss_kappa(
    counts: Int[np.ndarray, "case answer"], weights: Real[np.ndarray, "*resample case"] | None = None
) -> Float64[np.ndarray, "*resample"]:
    """Fleiss' kappa of two or more annotators, for all cases once or for many weightings of them.

    Args:
      counts: number of annotators that gave an answer; the same number of annotators in every case.
      weights: [..., case], how often a case counts; once by default.

    Returns:
      [...]; NaN where it does not exist.

    Raises:
      ValueError: cases have different numbers of annotators, or fewer than two.
    """
    weights = np.ones(len(counts)) if weights is None else weights.astype(np.float64)
    raters = counts.sum(axis=1)
    if not len(counts):
        return np.full(weights.shape[:-1], np.nan)
    if raters.min() != raters.max() or raters[0] < 2:
        raise ValueError(f"found {raters.min()} to {raters.max()} annotators a case, accepted are the same two or more")
    number = float(raters[0])
    within = ((counts.astype(np.float64) ** 2).sum(axis=1) - number) / (number * (number - 1))
    total = weights.sum(axis=-1)
    with np.errstate(invalid="ignore"):  # 0 / 0: nothing to agree about
        shares = weights @ counts / (total * number)[..., None]
        return _correct_for_chance(weights @ within / total, (shares**2).sum(axis=-1))


def as_markdown(comparison: Sequence[StepComparison]) -> str:
    """A comparison as tables to read."""
    rows = [("Step", "Annotators", "Reports", "Agreement", "Kappa")]
    for step in comparison:
        rows.append((step.step, "all", str(step.num_cases), show_figure(step.agreement), show_figure(step.kappa)))
        if len(step.pairs) > 1:
            rows += [
                ("", " / ".join(pair.names), str(pair.num_cases), show_figure(pair.agreement), show_figure(pair.kappa))
                for pair in step.pairs
            ]
    columns = [[cell.replace("|", "\\|") for cell in column] for column in zip(*rows, strict=True)]
    widths = [max(map(len, column)) for column in columns]
    padded = [[cell.ljust(width) for cell in column] for column, width in zip(columns, widths, strict=True)]
    lines = ["| " + " | ".join(cells) + " |" for cells in zip(*padded, strict=True)]
    ruler = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    kinds = "Cohen's of the two" if len(comparison[0].pairs) == 1 else "Fleiss' of all, Cohen's of two"
    return "\n".join([lines[0], ruler, *lines[1:]]) + f"\n\nKappa is {kinds}.\n"


def show_figure(figure: float) -> str:
    """A share or a kappa as written in tables."""
    return "n/a" if math.isnan(figure) else f"{figure:.3f}"


def _compare_step(
    name: str, labels: Int[np.ndarray, "case annotator"], num_answers: int, names: Sequence[str]
) -> StepComparison:
    answered = labels[(labels != NOT_ANNOTATED).all(axis=1)]
    counts = (answered[:, :, None] == np.arange(num_answers)).sum(axis=1)
    pairs = tuple(
        _compare_pair(labels[:, [a, b]], num_answers, (names[a], names[b]))
        for a, b in itertools.combinations(range(len(names)), 2)
    )
    agreement = float((counts == len(names)).any(axis=1).mean()) if len(answered) else math.nan
    # Of two annotators the usual figure is Cohen's; Fleiss' differs from it in what chance means.
    kappa = pairs[0].kappa if len(pairs) == 1 else float(fleiss_kappa(counts))
    return StepComparison(name, len(answered), agreement, kappa, pairs)


def _compare_pair(labels: Int[np.ndarray, "case 2"], num_answers: int, names: tuple[str, str]) -> Pair:
    answered = labels[(labels != NOT_ANNOTATED).all(axis=1)]
    confusion = np.zeros((num_answers, num_answers), np.int64)
    np.add.at(confusion, (answered[:, 0], answered[:, 1]), 1)
    agreement = float(np.trace(confusion)) / len(answered) if len(answered) else math.nan
    return Pair(names, len(answered), agreement, float(cohen_kappa(confusion)))


def _correct_for_chance(
    observed: Float64[np.ndarray, "*resample"], expected: Float64[np.ndarray, "*resample"]
) -> Float64[np.ndarray, "*resample"]:
    return (observed - expected) / (1 - expected)
