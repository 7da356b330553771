"""How far the rules annotator agrees with the experts' coding of IU X-Ray, step by step, on each half of the reports.

python -m stepcot_jax.annotate.coding_agreement NLMCXR_reports.tgz

Which half a report is in depends on its id alone. The rules were tuned on the half "tuning". Of the half "held out" one
report was read, for the layout of its file (CXR2199, whose coding names no diagnosis of the chain); its totals, without
the reports behind them, were seen about fourteen times while general wordings were added, which makes its numbers
slightly favourable.

The diagnosis counts over the reports whose coding names exactly one of the nine. Distribution, pattern, location and
morphology count over all reports whose coding carries exactly one answer of the step, whether or not it names a
diagnosis ("Calcified Granuloma/lung/lower lobe/left" carries all but one), and are those of `describe_report`; what
`annotate_report` gives where there is a diagnosis is printed before. A report that the annotator sets aside, or for
which it has no answer, is a disagreement. Normal chests count in the diagnosis only: that their lesion has no location
says nothing about reading locations. Entries of the archive that have neither findings nor impression (all of them
coded "normal") are no reports to read: they are counted and left out, and the accuracy with them as disagreements is
told too.
"""

import argparse
import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from jaxtyping import Int

from stepcot_jax.annotate.annotation import Annotation, CannotAnnotate, Report
from stepcot_jax.annotate.rules import annotate_report, describe_report
from stepcot_jax.chain import DEFAULT_CHAIN, NOT_ANNOTATED
from stepcot_jax.data.records.records import SetAside
from stepcot_jax.data.sources.iu_coding import read_coding
from stepcot_jax.data.sources.iu_xray import ORIGIN, read_reports
from stepcot_jax.host.errors import run_tool

Coded = tuple[Report, tuple[str, ...]]
"""A report with the major headings of its coding."""

Half = Literal["tuning", "held out"]

SET_ASIDE = "set aside"


@dataclasses.dataclass(frozen=True)
class StepAgreement:
    """Agreement of one step.

    Attributes:
      step: name of the step.
      num_reports: reports whose coding carries the step.
      accuracy: share of them that the annotator answers as coded, 0 to 1; NaN without reports.
      kappa: Cohen's kappa over the answers and `SET_ASIDE`; NaN where it is not defined.
      answers: rows and columns of the confusion; the last is `SET_ASIDE`.
      confusion: number of reports, [coded answer, annotator's answer].
    """

    step: str
    num_reports: int
    accuracy: float
    kappa: float
    answers: tuple[str, ...]
    confusion: Int[np.ndarray, "coded given"]


def half_of(report_id: str) -> Half:
    """The half that a report is in, by a hash of its id."""
    return "held out" if hashlib.sha256(report_id.encode()).digest()[-1] % 2 else "tuning"


def measure(
    reports: Iterable[Coded], *, annotate: Callable[[Report], Annotation] = annotate_report
) -> tuple[StepAgreement, ...]:
    """Agreement of an annotator with the coding, one entry a step.

    Args:
      reports: reports with the major headings of their coding.
      annotate: the annotator.
    """
    pairs: list[list[tuple[int, int]]] = [[] for _ in DEFAULT_CHAIN.steps]
    for report, mesh in reports:
        coded = read_coding(mesh)
        given = _labels(report, annotate)
        for number, (expected, found) in enumerate(zip(coded, given, strict=True)):
            if expected != NOT_ANNOTATED and (coded[-1] != 0 or number == len(coded) - 1):
                pairs[number].append((expected, found))
    return tuple(_agreement(number, found) for number, found in enumerate(pairs))


def _labels(report: Report, annotate: Callable[[Report], Annotation]) -> tuple[int, ...]:
    try:
        return annotate(report).labels
    except CannotAnnotate:
        return (NOT_ANNOTATED,) * DEFAULT_CHAIN.num_steps


def _agreement(number: int, pairs: Sequence[tuple[int, int]]) -> StepAgreement:
    from sklearn.metrics import cohen_kappa_score, confusion_matrix

    step = DEFAULT_CHAIN.steps[number]
    answers = (*step.options, SET_ASIDE)
    if not pairs:
        empty = np.zeros((len(answers), len(answers)), dtype=int)
        return StepAgreement(step.name, 0, float("nan"), float("nan"), answers, empty)
    last = len(answers) - 1
    coded = [expected for expected, _ in pairs]
    given = [last if found == NOT_ANNOTATED else found for _, found in pairs]
    defined = len({*coded, *given}) > 1
    return StepAgreement(
        step=step.name,
        num_reports=len(pairs),
        accuracy=float(np.mean(np.equal(coded, given))),
        kappa=float(cohen_kappa_score(coded, given)) if defined else float("nan"),
        answers=answers,
        confusion=confusion_matrix(coded, given, labels=range(len(answers))),
    )


def read_coded_reports(source: Path) -> Iterator[Coded]:
    """The reports of the IU X-Ray archive with their coding; one without text has the text "".

    Raises:
      BadInput: the source cannot be used.
    """
    for found in read_reports(source):
        if not isinstance(found, SetAside):
            yield Report(found.uid, found.uid, found.text, (), ORIGIN), found.mesh


def format_agreement(agreements: Sequence[StepAgreement]) -> str:
    """One line a step: reports, accuracy and kappa."""
    lines = [f"{'step':<22}{'reports':>8}{'accuracy':>10}{'kappa':>8}"]
    lines += [f"{item.step:<22}{item.num_reports:>8}{item.accuracy:>10.4f}{item.kappa:>8.4f}" for item in agreements]
    return "\n".join(lines)


def format_confusion(agreement: StepAgreement) -> str:
    """The confusion of a step: a row a coded answer, a column an answer of the annotator."""
    width = max(len(answer) for answer in agreement.answers) + 2
    rows = [" " * width + "".join(f"{number:>5}" for number in range(1, len(agreement.answers) + 1))]
    for number, (answer, counts) in enumerate(zip(agreement.answers, agreement.confusion, strict=True), start=1):
        rows.append(f"{number:>2} {answer:<{width - 3}}" + "".join(f"{count:>5}" for count in counts))
    return "\n".join(rows)


def main() -> None:
    """Prints the agreement on both halves."""
    parser = argparse.ArgumentParser(description="Agreement of the rules annotator with the coding of IU X-Ray.")
    parser.add_argument("source", type=Path, help="NLMCXR_reports.tgz or a folder with its XML files")
    coded = list(read_coded_reports(parser.parse_args().source))
    for half in get_args(Half):
        _print_half(half, [(report, mesh) for report, mesh in coded if half_of(report.id) == half])


def _print_half(half: Half, coded: Sequence[Coded]) -> None:
    readable = [(report, mesh) for report, mesh in coded if report.text]
    in_taxonomy = [(report, mesh) for report, mesh in readable if read_coding(mesh)[-1] != NOT_ANNOTATED]
    agreements = measure(in_taxonomy)
    diagnosis = agreements[-1]
    everything = measure(coded)[-1]
    print(f"half {half!r}: {len(coded)} reports, {len(coded) - len(readable)} of them without text and left out")
    print(f"\ncoding names exactly one diagnosis\n{format_agreement(agreements)}")
    print(f"\ndiagnosis, coded (rows) and given\n{format_confusion(diagnosis)}")
    print(
        f"with reports without text as disagreements: accuracy {everything.accuracy:.4f}, kappa {everything.kappa:.4f}"
    )
    outside = measure(readable, annotate=describe_report)
    print(f"\ncoding carries the step, with or without a diagnosis\n{format_agreement(outside[1:5])}\n")


if __name__ == "__main__":
    run_tool(main)
