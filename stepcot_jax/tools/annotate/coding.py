"""Agreement of the rules annotator with the experts' coding of IU X-Ray, per step and half of the reports.

A hash of the id assigns each report to a half; the rules were tuned on one (docs/results/annotation.md).
"""

import argparse
import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from jaxtyping import Int

from stepcot_jax.annotate.agreement import cohen_kappa
from stepcot_jax.annotate.annotation import Annotation, CannotAnnotate, Report
from stepcot_jax.annotate.rules.annotator import annotate_report, describe_report
from stepcot_jax.chain import DEFAULT_CHAIN, NOT_ANNOTATED, Step
from stepcot_jax.data.records.records import SetAside
from stepcot_jax.data.sources.iu_xray import ORIGIN, read_coding, read_reports
from stepcot_jax.tools.options import local_path

Coded = tuple[Report, tuple[str, ...]]
"""A report and the major headings of its coding."""

Half = Literal["tuning", "held out"]

SET_ASIDE = "set aside"


@dataclasses.dataclass(frozen=True)
class StepAgreement:
    """Agreement of one step."""

    step: str
    num_reports: int  # reports whose coding answers the step
    accuracy: float  # share of them answered as coded, 0 to 1; NaN without reports
    kappa: float  # Cohen's kappa over the answers and `SET_ASIDE`; NaN if undefined
    answers: tuple[str, ...]  # rows and columns of the confusion; the last is `SET_ASIDE`
    confusion: Int[np.ndarray, "coded given"]  # number of reports [coded answer, annotator's answer]


def half_of(report_id: str) -> Half:
    """Return the half of a report, by a hash of its id."""
    return "held out" if hashlib.sha256(report_id.encode()).digest()[-1] % 2 else "tuning"


def measure(
    reports: Iterable[Coded], *, annotate: Callable[[Report], Annotation] = annotate_report
) -> tuple[StepAgreement, ...]:
    """Measure an annotator's agreement with the coding of reports; one entry per step."""
    confusions = [np.zeros((step.num_answers + 1,) * 2, int) for step in DEFAULT_CHAIN.steps]
    for report, mesh in reports:
        coded = read_coding(mesh)
        try:
            given = annotate(report).labels
        except CannotAnnotate:
            given = (NOT_ANNOTATED,) * DEFAULT_CHAIN.num_steps
        for number, (expected, answer) in enumerate(zip(coded, given, strict=True)):
            if expected != NOT_ANNOTATED and (coded[-1] != 0 or number == len(coded) - 1):
                confusions[number][expected, -1 if answer == NOT_ANNOTATED else answer] += 1
    return tuple(map(_agreement, DEFAULT_CHAIN.steps, confusions))


def _agreement(step: Step, confusion: Int[np.ndarray, "coded given"]) -> StepAgreement:
    num_reports = confusion.sum().item()
    accuracy = np.trace(confusion).item() / num_reports if num_reports else float("nan")
    kappa = cohen_kappa(confusion).item()
    return StepAgreement(step.name, num_reports, accuracy, kappa, (*step.options, SET_ASIDE), confusion)


def read_coded_reports(source: Path) -> Iterator[Coded]:
    """Yield the reports of the IU X-Ray archive with their coding; the text may be empty."""
    for report in read_reports(source):
        if not isinstance(report, SetAside):
            yield Report(report.uid, report.uid, report.text, (), ORIGIN), report.mesh


def format_agreement(agreements: Sequence[StepAgreement]) -> str:
    """Format reports, accuracy and kappa, one line per step."""
    lines = [f"{'step':<22}{'reports':>8}{'accuracy':>10}{'kappa':>8}"]
    lines += [f"{item.step:<22}{item.num_reports:>8}{item.accuracy:>10.4f}{item.kappa:>8.4f}" for item in agreements]
    return "\n".join(lines)


def format_confusion(agreement: StepAgreement) -> str:
    """Format a confusion matrix: coded answers in rows, the annotator's in columns."""
    width = max(len(answer) for answer in agreement.answers) + 2
    rows = [" " * width + "".join(f"{number:>5}" for number in range(1, len(agreement.answers) + 1))]
    for number, (answer, counts) in enumerate(zip(agreement.answers, agreement.confusion, strict=True), start=1):
        rows.append(f"{number:>2} {answer:<{width - 3}}" + "".join(f"{count:>5}" for count in counts))
    return "\n".join(rows)


def main(arguments: list[str] | None = None) -> None:
    """Print the agreement on both halves."""
    parser = argparse.ArgumentParser(
        prog="stepcot annotate coding", description="Agreement of the rules annotator with the coding of IU X-Ray."
    )
    parser.add_argument("source", type=local_path, help="NLMCXR_reports.tgz or a folder with its XML files")
    coded = list(read_coded_reports(parser.parse_args(arguments).source))
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
