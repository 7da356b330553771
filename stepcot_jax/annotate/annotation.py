"""The types shared by all annotators: items, annotations and the reasons to set an item aside."""

import dataclasses
import enum
from typing import Generic, Protocol, TypeVar

from stepcot_jax.reasoning.endings import Unsaid
from stepcot_jax.record import Split


class Item(Protocol):
    """An item to annotate: a report, or a question about an image."""

    @property
    def id(self) -> str:
        """Unique name within its source."""

    @property
    def text(self) -> str:
        """Everything that an answer depends on; ledgers keep its digest."""


Made = TypeVar("Made")
ItemT = TypeVar("ItemT", bound=Item)


class Reason(enum.StrEnum):
    """Why an item is set aside, in the order of the funnel."""

    UNREADABLE = "report that cannot be read"
    UNREADABLE_RECORD = "record that cannot be read"
    REPEATED = "report or image that came before"
    NO_REPORT = "no report"
    """The report is empty, or has neither findings nor impression."""
    NOT_ENGLISH = "report in another language than English"
    NO_FRONTAL_IMAGE = "no frontal image"
    OUTSIDE_TAXONOMY = "diagnosis outside the taxonomy"
    INVALID_STEP = "invalid or missing step"
    INCONSISTENT_CHAIN = "chain inconsistent with itself"
    """An answer of a step excludes that of another, such as no abnormality beside a mass."""
    REASONING_NOT_IN_REPORT = "reasoning cites words not in the report"
    CONFLICTING_FINDINGS = "conflicting findings"
    """The report denies the diagnosis, whether or not it asserts it elsewhere."""
    NOT_NORMAL = "normal although the report asserts a finding"
    NO_LESION = "no boxed lesion"
    NO_OTHER_CASE = "no other case of the domain"
    NOT_KNOWN = "facts that the offline version needs are missing"
    MARKUP = "markup, link or code in the text"
    WRONG_BOX = "box that is not the source's under this name"
    NO_REGION = "no region with a box"
    SPEAKS_OF_REPORT = "speaks of a report or of given findings"
    INSTRUCTION = "instruction or role in a text or its source"
    WRONG_ANSWER = "last sentence does not state the answer alone"
    OPTION_NOT_NAMED = "option not named"
    WRONG_OPTION_AFFIRMED = "wrong option affirmed"
    RIGHT_OPTION_DENIED = "right option denied"
    COORDINATES = "coordinates in a stage that has none"
    APPEARANCE = "appearance in the localisation"
    SPEAKS_OF_HINT = "speaks of the hint"
    LABEL_NAMED = "names the diagnosis before the conclusion"
    INTERPRETATION = "interpretation in the visual analysis"
    REPETITION = "stage repeats another"
    CONTRADICTION = "stages that contradict each other"
    UNSUPPORTED = "answer or finding that no stage before the conclusion supports"
    OTHER_ANSWER = "conclusion of another answer than the truth"
    REGION_NOT_KEPT = "proposed region without the share of votes"
    NOT_ASSEMBLED = "record differs from its parts"
    NO_BOX_TEXT = "reasoning without the box"
    CLASS_NOT_NAMED = "answer without the class"
    BOX_IN_HARD_STAGE = "box in the hard stage"
    REFUSED = Unsaid.REFUSED.value
    FILTERED = Unsaid.FILTERED.value
    EMPTY = Unsaid.EMPTY.value
    CUT = Unsaid.CUT.value
    CUT_EMPTY = Unsaid.CUT_EMPTY.value
    CUT_BEHIND = Unsaid.CUT_BEHIND.value
    NO_ANSWER = "no answer of the annotator"
    NOT_TRUSTED = "annotator does not trust its chain"
    VOTED_DOWN = "vote not unanimous"
    REJECTED = "rejected in review"


Provenance = tuple[tuple[str, str], ...]


@dataclasses.dataclass(frozen=True)
class Report:
    """A radiology report."""

    id: str  # unique name within its source
    patient_id: str  # patient; splits are disjoint by patient
    text: str  # sections with headings, such as "FINDINGS: ... IMPRESSION: ..."
    images: tuple[str, ...]  # frontal images, as paths relative to the source; may be empty
    origin: str
    split: Split = ""  # as the source states it; "" if it states none


@dataclasses.dataclass(frozen=True)
class Annotation:
    """The chain read from a report."""

    labels: tuple[int, ...]  # label of each step; `chain.NOT_ANNOTATED` if the report does not say
    # for each step, the supporting sentences of the report, verbatim; of a language model its own words
    reasoning: tuple[str, ...]
    # quotes: for each step, the words of the report that a language model cites; empty for the rules
    quotes: tuple[str, ...] = ()
    # uncertain: for each step, whether the report calls its answer no more than possible; () if it calls none so
    uncertain: tuple[bool, ...] = ()


@dataclasses.dataclass(frozen=True)
class Aside:
    """An item set aside, or a file that is not an item; `detail` has no text of the item."""

    id: str
    reason: Reason
    detail: str


@dataclasses.dataclass(frozen=True)
class Outcome(Generic[ItemT, Made]):
    """The outcome of an item: its annotation or record, or the reason why it is set aside."""

    item: ItemT
    made: Made | None = None
    provenance: Provenance = ()
    aside: Aside | None = None
    has_failed: bool = False  # whether a request was given up, so that another run may succeed


class CannotAnnotate(Exception):
    """An item without an annotation; `detail` has no text of the item, `is_final`: asking again would be vain."""

    def __init__(self, reason: Reason, detail: str = "", *, is_final: bool = False) -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason, self.detail, self.is_final = reason, detail, is_final
