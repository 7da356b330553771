"""Inter-annotator agreement per step: share of equal answers, Cohen's kappa of pairs, Fleiss' kappa of all.

Cohen, Educ. Psychol. Meas. 20 (1960); Fleiss, Psychol. Bull. 76 (1971). Kappa is 1 for full agreement, 0 for chance
agreement, and undefined if only one answer occurs. An uncertain answer counts as the answer that it is.
"""

import dataclasses
import itertools
import json
import math
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
from jaxtyping import Float64, Int, Real

from stepcot_jax.annotate.alignment import Aligned, Unit
from stepcot_jax.chain import NOT_ANNOTATED, Step
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import make_workdir, write_whole
from stepcot_jax.host.text import escape_markdown
from stepcot_jax.pages.shell import make_environment, render_page
from stepcot_jax.record import Record

PAGE_NAME = "disagreements.html"

_HERE = Path(__file__).parent


@dataclasses.dataclass(frozen=True)
class Pair:
    """Two annotators on one step, as in `StepComparison`: the reports that both answered, and Cohen's kappa."""

    names: tuple[str, str]
    num_cases: int
    agreement: float
    kappa: float


@dataclasses.dataclass(frozen=True)
class StepComparison:
    """All annotators on one step.

    Attributes:
      agreement: share of them with one common answer, 0 to 1; NaN without reports.
      kappa: Fleiss' kappa, of two annotators Cohen's; NaN if undefined.
    """

    step: str
    num_cases: int
    agreement: float
    kappa: float
    pairs: tuple[Pair, ...]


def compare(aligned: Aligned) -> tuple[StepComparison, ...]:
    """Compute the agreement of two or more annotators, step by step."""
    if len(aligned.names) < 2:
        raise BadInput(f"agree requires two or more annotators; got only {aligned.names[0]}")
    labels = np.array([[case.stated for case in unit.cases] for unit in aligned.units])
    return tuple(
        _compare_step(step.name, labels[:, :, place], step.num_answers, aligned.names)
        for place, step in enumerate(aligned.chain.steps)
    )


def cohen_kappa(confusion: Real[np.ndarray, "*resample answer answer"]) -> Float64[np.ndarray, "*resample"]:
    """Return Cohen's kappa of two annotators, (observed - expected) / (1 - expected) agreement.

    >>> cohen_kappa(np.array([[20, 5], [10, 15]])).round(3).item()
    0.4
    """
    found = confusion.astype(np.float64)
    total = found.sum(axis=(-2, -1))
    with np.errstate(invalid="ignore"):  # 0 / 0: nothing to agree about
        expected = (found.sum(axis=-2) * found.sum(axis=-1)).sum(axis=-1) / total**2
        return (np.trace(found, axis1=-2, axis2=-1) / total - expected) / (1 - expected)


def fleiss_kappa(
    counts: Int[np.ndarray, "case answer"], weights: Real[np.ndarray, "*resample case"] | None = None
) -> Float64[np.ndarray, "*resample"]:
    """Return Fleiss' kappa of two or more annotators, for one or many weightings of the cases.

    Args:
      counts: number of annotators per answer [case, answer]; every case has the same number of annotators.
    """
    weights = np.ones(len(counts)) if weights is None else weights.astype(np.float64)
    raters = counts.sum(axis=1)
    if not len(counts):
        return np.full(weights.shape[:-1], np.nan)
    if raters.min() != raters.max() or raters[0] < 2:
        raise ValueError(f"every case needs the same two or more annotators; got {raters.min()} to {raters.max()}")
    number = float(raters[0])
    within = ((counts.astype(np.float64) ** 2).sum(axis=1) - number) / (number * (number - 1))
    total = weights.sum(axis=-1)
    with np.errstate(invalid="ignore"):  # 0 / 0: nothing to agree about
        shares = weights @ counts / (total * number)[..., None]
        expected = (shares**2).sum(axis=-1)
        return (weights @ within / total - expected) / (1 - expected)


def as_markdown(comparison: Sequence[StepComparison]) -> str:
    """Write a comparison as a Markdown table."""
    rows = [("Step", "Annotators", "Reports", "Agreement", "Kappa")]
    for step in comparison:
        rows.append((step.step, "all", str(step.num_cases), show_figure(step.agreement), show_figure(step.kappa)))
        if len(step.pairs) > 1:
            rows += [
                ("", " / ".join(pair.names), str(pair.num_cases), show_figure(pair.agreement), show_figure(pair.kappa))
                for pair in step.pairs
            ]
    cells = [[escape_markdown(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in cells]
    ruler = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    kinds = "Cohen's of the two" if len(comparison[0].pairs) == 1 else "Fleiss' of all, Cohen's of two"
    return "\n".join([lines[0], ruler, *lines[1:]]) + f"\n\nKappa is {kinds}.\n"


def show_figure(figure: float) -> str:
    """Format a share or a kappa for tables."""
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
    # Fleiss' kappa of two annotators is not Cohen's: the two define chance agreement differently.
    kappa = pairs[0].kappa if len(pairs) == 1 else float(fleiss_kappa(counts))
    return StepComparison(name, len(answered), agreement, kappa, pairs)


def _compare_pair(labels: Int[np.ndarray, "case 2"], num_answers: int, names: tuple[str, str]) -> Pair:
    answered = labels[(labels != NOT_ANNOTATED).all(axis=1)]
    confusion = np.zeros((num_answers, num_answers), np.int64)
    np.add.at(confusion, (answered[:, 0], answered[:, 1]), 1)
    agreement = float(np.trace(confusion)) / len(answered) if len(answered) else math.nan
    return Pair(names, len(answered), agreement, float(cohen_kappa(confusion)))


def write_agreement(folder: Path, aligned: Aligned, comparison: Sequence[StepComparison]) -> None:
    """Write `agreement.json`, `agreement.md` and the page."""
    make_workdir(folder)
    figures = {
        "annotators": list(aligned.names),
        "num_reports": len(aligned.units),
        "num_missing": dict(zip(aligned.names, aligned.num_missing, strict=True)),
        "steps": json.loads(msgspec.json.encode(comparison)),  # NaN becomes null
    }
    write_whole(folder / "agreement.json", json.dumps(figures, indent=1, ensure_ascii=False).encode() + b"\n")
    write_whole(folder / "agreement.md", as_markdown(comparison).encode())
    page = render_page(
        make_environment(_HERE).get_template("disagreements.html.j2"),
        style=(_HERE / "disagreements.css").read_text(encoding="utf-8"),
        title="Disagreements of annotators",
        aligned=aligned,
        comparison=comparison,
        units=find_disagreements(aligned),
        show_figure=show_figure,
        show_answer=show_answer,
    )
    write_whole(folder / PAGE_NAME, page.encode())


def find_disagreements(aligned: Aligned) -> list[Unit]:
    """Return the reports on which annotators differ in at least one step."""
    return [unit for unit in aligned.units if len({case.stated for case in unit.cases}) > 1]


def show_answer(step: Step, case: Record, place: int) -> str:
    """Return a case's answer to the step at `place` as shown to people."""
    label = case.stated[place]
    doubt = "" if label == case.answers[place] else " (uncertain)"
    return "not answered" if label == NOT_ANNOTATED else step.lettered_options[label] + doubt
