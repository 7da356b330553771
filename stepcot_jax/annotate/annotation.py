"""The types shared by all annotators: reports, annotations and the reasons for having none."""

import dataclasses

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
"""Every reason for setting a report aside -> its meaning, in the order of the funnel."""


@dataclasses.dataclass(frozen=True)
class Report:
    """A radiology report.

    Attributes:
      id: unique name within its source.
      patient_id: patient; splits are disjoint by patient.
      text: sections with headings, such as "FINDINGS: ... IMPRESSION: ...".
      images: frontal images, as paths relative to the source; may be empty.
      origin: name of the collection.
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
      labels: label of each step; `chain.NOT_ANNOTATED` if the report does not say.
      reasoning: for each step, the supporting sentences of the report, verbatim.
    """

    labels: tuple[int, ...]
    reasoning: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(self.labels) != len(self.reasoning):
            raise ValueError(f"{len(self.labels)} labels do not match {len(self.reasoning)} reasonings")


class CannotAnnotate(Exception):
    """A report without a chain.

    Attributes:
      reason: one of `REASONS`.
      detail: details for the user, without text of the report.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        if reason not in REASONS:
            raise ValueError(f"reason {reason!r} is not one of {', '.join(REASONS)}")
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail
