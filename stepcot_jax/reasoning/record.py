"""The reasoning record: a question about an image, its answer, the boxes it refers to and the reasoning.

Design: `VqaRecord` holds what the dialects of GEMeX-RMCoT, MEDSAGE and MedCLM write; boxes are corners in pixels of
the stated image size. A record that exists is valid: its constructor checks every field.
"""

import string
from typing import Any, Literal, get_args

import msgspec

from stepcot_jax.boxes import Corners
from stepcot_jax.chain import Step, fold
from stepcot_jax.host.errors import BadInput

Kind = Literal["open", "closed", "single", "multi"]
Cue = Literal["box", "text", "image"]

KINDS: tuple[Kind, ...] = get_args(Kind)
"""Open-ended, yes or no, one choice, several choices."""

STAGE_NAMES = ("localisation", "visual", "knowledge", "conclusion")

_LONGEST_NAME = 500
_LONGEST_LABEL = 200
_LONGEST_SIDE = 2**20
_UNSAFE = frozenset("<>[](){}*\"'`|\\")


class VqaBox(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A labelled box.

    Attributes:
      label: name of the region or finding: one line of at most 200 characters without brackets, quotes, asterisks, bars
        or backslashes.
      box: corners in pixels of the record's `image_size`; not empty, within the picture.
    """

    label: str
    box: Corners

    def __post_init__(self) -> None:
        if len(self.label) > _LONGEST_LABEL:
            raise BadInput(f"label: {self.label[:80]!r} has {len(self.label)} characters; at most {_LONGEST_LABEL}")
        if not self.label.strip() or not self.label.isprintable() or _UNSAFE & set(self.label):
            raise BadInput(
                f"label: {self.label[:80]!r} is not a name on one line without brackets, quotes or asterisks"
            )
        x1, y1, x2, y2 = self.box
        if not (0 <= x1 < x2 < float("inf") and 0 <= y1 < y2 < float("inf")):
            raise BadInput(f"box: {list(self.box)} is not [x1, y1, x2, y2] with 0 <= x1 < x2 and 0 <= y1 < y2")


class Stages(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """MEDSAGE's stages L, V, K and C as texts; boxes stand in the references, not here."""

    localisation: str
    visual: str
    knowledge: str
    conclusion: str

    def __post_init__(self) -> None:
        for name in STAGE_NAMES:
            if not getattr(self, name).strip():
                raise BadInput(f"{name}: blank; a text is required")


class VqaRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A question about an image with its answer and reasoning.

    Attributes:
      id: unique name within its file.
      image_path: image, relative to the records' folder, with "/" as separator.
      image_size: width and height in pixels of the picture that the boxes refer to; the file may have another size.
      patient_id: patient; splits and intervals go by it.
      origin: collection that the image comes from.
      split: "train", "val" or "test"; "" if none is assigned.
      topic: template or subject of the question; majority answers are counted by it.
      choices: bare texts without letters, 2 to 26; empty for "open" and "closed".
      answer: "Yes" or "No"; one letter; distinct letters in order; or a text.
      synonyms: further accepted texts of an open answer.
      references: boxes of the final answer, in order.
      thinking: reasoning before the answer; "" for none.
      preamble: overall description before the stages; "" for none.
      cue: what the localisation starts from: a box, a text, or the whole image.
      lesion: class of the lesion; "" if there is none.
      facts: what is known of the image, by name, for checking stages.
      provenance: how the record was made, as names and values.
    """

    id: str
    image_path: str
    image_size: tuple[int, int]
    patient_id: str
    origin: str = ""
    split: Literal["", "train", "val", "test"] = ""
    kind: Kind
    topic: str = ""
    question: str
    choices: tuple[str, ...] = ()
    answer: str | tuple[str, ...]
    synonyms: tuple[str, ...] = ()
    references: tuple[VqaBox, ...] = ()
    thinking: str = ""
    preamble: str = ""
    stages: Stages | None = None
    cue: Cue = "box"
    lesion: str = ""
    organ: str = ""
    modality: str = ""
    facts: dict[str, str] = {}
    provenance: dict[str, str] = {}

    def __post_init__(self) -> None:
        for field in ("id", "patient_id", "image_path"):
            name = getattr(self, field)
            if not name.strip() or not name.isprintable() or len(name) > _LONGEST_NAME:
                found = "the value" if field == "patient_id" else repr(name[:80])  # no patient fields in messages
                raise BadInput(f"{field}: {found} is not a name on one line of 1 to {_LONGEST_NAME} characters")
        if not all(1 <= side <= _LONGEST_SIDE for side in self.image_size):
            found = str(list(self.image_size)) if max(self.image_size) < 10**9 else "the value"
            raise BadInput(f"image_size: {found} is not [width, height] of 1 to {_LONGEST_SIDE} pixels")
        if not self.question.strip():
            raise BadInput("question: blank; a text is required")
        _check_choices(self)
        _check_answer(self)
        width, height = self.image_size
        for place, reference in enumerate(self.references):
            if reference.box[2] > width or reference.box[3] > height:
                found = f"references[{place}].box: {list(reference.box)} leaves the picture"
                raise BadInput(f"{found} of image_size {width} by {height}")

    @property
    def letters(self) -> str:
        """Letters of the choices."""
        return string.ascii_uppercase[: len(self.choices)]

    @property
    def accepted_texts(self) -> tuple[str, ...]:
        """Every accepted text of an open answer, the answer first; folded duplicates are left out."""
        kept: dict[str, str] = {}
        for text in (self.answer, *self.synonyms) if isinstance(self.answer, str) else ():
            kept.setdefault(fold(text), text)
        return tuple(kept.values())


def _check_choices(record: VqaRecord) -> None:
    if record.kind in ("open", "closed"):
        if record.choices:
            raise BadInput(
                f"choices: {len(record.choices)} choices of a question of kind {record.kind!r}; none expected"
            )
        return
    try:
        Step("choices", record.question, record.choices)
    except BadInput as error:
        raise BadInput(f"choices: {str(error).partition(': ')[2]}") from None


def _check_answer(record: VqaRecord) -> None:
    answer: Any = record.answer
    if record.kind == "multi":
        letters = () if isinstance(answer, str) else answer
        if not letters or list(letters) != sorted(set(letters)) or not set(letters) <= set(record.letters):
            expected = f"expected distinct letters of {record.letters} in order, at least one"
            raise BadInput(f"answer: {answer!r:.80} is not an answer of kind 'multi'; {expected}")
        return
    if not isinstance(answer, str):
        raise BadInput(f"answer: {list(answer)!r:.80} is a list; kind {record.kind!r} expects a text")
    accepted = {"closed": ("Yes", "No"), "single": tuple(record.letters)}.get(record.kind)
    if accepted is not None and answer not in accepted:
        raise BadInput(f"answer: {answer[:80]!r} is not one of {', '.join(accepted)} (kind {record.kind!r})")
    if not answer.strip():
        raise BadInput("answer: blank; a text is required")
    if record.synonyms and record.kind != "open":
        raise BadInput(
            f"synonyms: {len(record.synonyms)} synonyms of a question of kind {record.kind!r}; only open has any"
        )
