"""The types shared by all annotators: reports, annotations and the reasons for having none."""

import dataclasses
import enum


class Reason(enum.StrEnum):
    """Why a report is set aside, in the order of the funnel."""

    UNREADABLE = "report that cannot be read"
    REPEATED = "report or image that came before"
    NO_REPORT = "no report"
    """The report is empty, or has neither findings nor impression."""
    NO_FRONTAL_IMAGE = "no frontal image"
    OUTSIDE_TAXONOMY = "diagnosis outside the taxonomy"
    INVALID_STEP = "invalid or missing step"
    INCONSISTENT_CHAIN = "chain inconsistent with itself"
    """An answer of a step excludes that of another, such as no abnormality beside a mass."""
    REASONING_NOT_IN_REPORT = "reasoning cites words not in the report"
    CONFLICTING_FINDINGS = "conflicting findings"
    """The report denies the diagnosis, whether or not it asserts it elsewhere."""
    NO_ANSWER = "no answer of the annotator"
    NOT_TRUSTED = "annotator does not trust its chain"
    VOTED_DOWN = "vote not unanimous"


Provenance = tuple[tuple[str, str], ...]
"""How a chain was made: names and values."""


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


@dataclasses.dataclass(frozen=True)
class Aside:
    """A report, or a file that is none, set aside; `detail` has no text of the report."""

    id: str
    reason: Reason
    detail: str


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The outcome of a report: its chain, or why it is set aside.

    With `has_failed` a request was given up, so that another run may succeed.
    """

    report: Report
    annotation: Annotation | None = None
    provenance: Provenance = ()
    aside: Aside | None = None
    has_failed: bool = False


class CannotAnnotate(Exception):
    """A report without a chain; `detail` has no text of the report."""

    def __init__(self, reason: Reason, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail
