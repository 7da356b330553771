"""What every annotator takes and gives: a report, the chain read from it, or the reason why there is none."""

import dataclasses
from collections.abc import Callable

NO_REPORT = "no report"
NO_FRONTAL_IMAGE = "no frontal image"
OUTSIDE_TAXONOMY = "diagnosis outside the taxonomy"
INVALID_STEP = "invalid or missing step"
INCONSISTENT_CHAIN = "chain inconsistent with itself"
REASONING_NOT_IN_REPORT = "reasoning cites words not in the report"
CONFLICTING_FINDINGS = "conflicting findings"
NO_ANSWER = "no answer of the annotator"
NOT_TRUSTED = "annotator does not trust its chain"
VOTED_DOWN = "vote not unanimous"

REASONS: dict[str, str] = {
    NO_REPORT: "the report is empty, or has neither findings nor impression",
    NO_FRONTAL_IMAGE: "the report names no frontal image",
    OUTSIDE_TAXONOMY: "the report has findings, and none of them is one of the chain's diagnoses",
    INVALID_STEP: "a step has no answer, or one that is none of its options",
    INCONSISTENT_CHAIN: "an answer of a step excludes that of another, such as no abnormality beside a mass",
    REASONING_NOT_IN_REPORT: "a reasoning quotes words, or names numbers or sides, that the report does not have",
    CONFLICTING_FINDINGS: "the report denies the diagnosis, whether or not it asserts it elsewhere",
    NO_ANSWER: "the annotator gave no chain that can be read, after all retries",
    NOT_TRUSTED: "asked whether it trusts its own chain, the annotator did not answer yes",
    VOTED_DOWN: "a further model did not vote that the chain is correct",
}
"""Every reason for setting a case aside, with what it means; the order is that of the funnel table."""


@dataclasses.dataclass(frozen=True)
class Report:
    """What an annotator reads.

    Attributes:
      id: name of the report, unique in its collection.
      patient_id: patient; splits are disjoint by it.
      text: sections with their headings as the source has them, such as "FINDINGS: ... IMPRESSION: ...".
      images: frontal images, as paths relative to the source; none where the source names none.
      origin: collection the report comes from.
    """

    id: str
    patient_id: str
    text: str
    images: tuple[str, ...]
    origin: str


@dataclasses.dataclass(frozen=True)
class Annotation:
    """The chain read from a report.

    Attributes:
      labels: label of each step, `chain.NOT_ANNOTATED` where the report does not say.
      reasoning: for each step the sentences of the report that support its label, quoted word for word.
    """

    labels: tuple[int, ...]
    reasoning: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(self.labels) != len(self.reasoning):
            raise ValueError(f"found {len(self.labels)} labels and {len(self.reasoning)} reasonings, one a step each")


class CannotAnnotate(Exception):
    """A report that gives no chain.

    Attributes:
      reason: one of `REASONS`.
      detail: what was found, for the person who looks into it; no text of the report.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        if reason not in REASONS:
            raise ValueError(f"found the reason {reason!r}, accepted are {', '.join(REASONS)}")
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail


Annotator = Callable[[Report], Annotation]
"""A function from a report to its annotation; it raises `CannotAnnotate` where there is none."""
