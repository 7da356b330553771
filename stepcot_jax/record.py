"""The record: one image of a patient with a chain's answers, a question, or both.

The constructor checks a question with its answer, options and references. Answers of a chain are checked where their
file is read, since only the chain knows its options.
"""

import dataclasses
import os
import re
import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args, overload

import msgspec

from stepcot_jax.box import Box, Corners, Point
from stepcot_jax.chain import NOT_ANNOTATED, Chain, Step, fold
from stepcot_jax.host.errors import BadInput

Kind = Literal["open", "closed", "single", "multi"]
Cue = Literal["box", "text", "image"]
Split = Literal["", "train", "val", "test"]

KINDS: tuple[Kind, ...] = get_args(Kind)
"""Open-ended, closed (yes or no, or a word that the question offers), one choice, several choices."""

YES_NO = ("Yes", "No")
"""Answers of closed questions that ask for yes or no."""

STAGE_NAMES = ("localisation", "visual", "knowledge", "conclusion")

_SHORT_YES_NO = ("Y", "N")  # refused: a closed answer of a letter is a short form, never a word of its own
_LETTER = re.compile(r"\(?[A-Z][).]?")
_LONGEST_NAME = 500
_LONGEST_SIDE = 2**20


class Stages(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """MEDSAGE's stages L, V, K and C as texts; their boxes are the record's references."""

    localisation: str
    visual: str
    knowledge: str
    conclusion: str

    def __post_init__(self) -> None:
        for name in STAGE_NAMES:
            if not getattr(self, name).strip():
                raise BadInput(f"{name}: blank; a text is required")


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One image with a chain's answers, a question, or both.

    Attributes:
      image: path of the image, relative to the data's folder, with "/" as separator.
      patient: patient, as in the file; splits and intervals go by it.
      id: name of a question, unique within its file.
      image_size: width and height in pixels of the picture that the boxes refer to, which may differ from the file's;
        (0, 0) if unknown, which a question without references may leave it.
      origin: collection that the image comes from; "" if unknown.
      split: "train", "val" or "test"; "" if none is assigned.
      sex: "F", "M" or "O"; "" if unknown.
      age: in years; None if unknown.
      view: projection, such as "PA" or "AP"; "" if unknown.
      report: radiologist's report; "" if there is none.
      boxes: findings in the image, in the order of the source.
      regions: boxes of anatomical regions.
      absent: labels that the source denies; a label that has no box and is not absent is unknown.
      facts: what else is known of the image, by name.
      provenance: how the record was made, as names and values.

      answers: label of each step, `chain.NOT_ANNOTATED` where nobody answered or the answer is uncertain; () without a
        chain.
      reasoning: reason given for each step's answer; "" if there is none.
      uncertain: label of each step's uncertain answer, `chain.NOT_ANNOTATED` at the other steps; () if there is none.
        An uncertain answer is never among `answers`, so that no metric counts it as the truth.

      kind: kind of the question.
      topic: template or subject of the question; majority answers are counted by it.
      question: "" without a question.
      options: texts, 2 to 26, from which `chain.strip_letters` takes letters off; empty for "open" and "closed".
      answer: "Yes" or "No"; one letter; distinct letters in order; or a text: of an open question, or of a closed one
        such as "Left". Other letter case, and an option's text for its letter, are brought into this form.
      synonyms: further accepted texts of an answer that is a text.
      references: boxes of the final answer, in order.
      points: further places of MEDSAGE's localisation, in pixels.
      thinking: reasoning before the answer; "" for none.
      preamble: overall description before the stages; "" for none.
      cue: what the localisation starts from: a box, a text, or the whole image.
      lesion: class of the lesion; "" if there is none.
      organ: of a lesion its host organ; without a lesion what the picture shows, such as "abdomen"; "" if unknown.
      modality: how the picture was made, such as "xray" or "CT"; "" if unknown.
    """

    image: str
    patient: str
    id: str = ""
    image_size: tuple[int, int] = (0, 0)
    origin: str = ""
    split: Split = ""
    sex: str = ""
    age: float | None = None
    view: str = ""
    report: str = ""
    boxes: tuple[Box, ...] = ()
    regions: tuple[Box, ...] = ()
    absent: tuple[str, ...] = ()
    facts: dict[str, str] = {}
    provenance: dict[str, str] = {}

    answers: tuple[int, ...] = ()
    reasoning: tuple[str, ...] = ()
    uncertain: tuple[int, ...] = ()

    kind: Kind = "open"
    topic: str = ""
    question: str = ""
    options: tuple[str, ...] = ()
    answer: str | tuple[str, ...] = ""
    synonyms: tuple[str, ...] = ()
    references: tuple[Box, ...] = ()
    points: tuple[Point, ...] = ()
    thinking: str = ""
    preamble: str = ""
    stages: Stages | None = None
    cue: Cue = "box"
    lesion: str = ""
    organ: str = ""
    modality: str = ""

    def __post_init__(self) -> None:
        if self.question or self.answer or self.options or self.references:
            _check_question(self)

    @classmethod
    def from_fields(cls, *, question: str, answer: str | Sequence[str], **fields: Any) -> "Record":
        """Return a question as a record from bare fields, as rows of other programs hold them.

        Args:
          question: text.
          answer: a letter by position or an option's text, a list of these for several, yes or no, or another text.
          fields: other attributes, JSON's lists for tuples; None counts as left out. An entry of `references` may be
            the corners alone; `choices` and a reference's `box` are options and corners, as in `records.jsonl`.
            Without `kind` it follows from answer and options: see `kind_of`.

        Raises:
          BadInput: an unknown field, a value of another type, a letter without options, or what `Record` refuses.

        >>> Record.from_fields(question="What is seen?", options=["Edema", "Effusion", "Mass"], answer="mass").answer
        'C'
        """
        types = {field.name: field.type for field in msgspec.structs.fields(cls)}
        made: dict[str, Any] = {"id": "-", "image": "-", "patient": "-"}
        given = {name: v for name, v in fields.items() if v is not None} | {"question": question, "answer": answer}
        given = {name: v.tolist() if hasattr(v, "tolist") else v for name, v in given.items()}  # arrays of trainers
        if (choices := given.pop("choices", None)) and given.get("options"):
            raise BadInput("choices: options is given too; expected one of them")
        given |= {"options": choices} if choices else {}
        for name, plain in given.items():
            if name not in types:
                raise BadInput(f"{name}: not a field of a record, such as question, options, answer and references")
            if name == "references" and isinstance(plain, (list, tuple)):
                plain = [b if isinstance(b, (dict, Box)) else {"label": "region", "corners": b} for b in plain]
                plain = [_name_corners(b) if isinstance(b, dict) and "box" in b else b for b in plain]
            try:
                made[name] = msgspec.convert(plain, types[name])
            except msgspec.ValidationError as error:
                raise BadInput(f"{name}: {error}") from None
        if "kind" not in made:
            made["kind"] = kind_of(made["answer"], made.get("options", ()))
            text = made["answer"] if isinstance(made["answer"], str) else ""
            if made["kind"] == "open" and _LETTER.fullmatch(text.strip()):
                raise BadInput(f"answer: {answer!r} is a letter without options; pass options, or kind='open'")
        return cls(**made)

    @property
    def stated(self) -> tuple[int, ...]:
        """Label of each step as the source states it, uncertain answers included.

        >>> Record(image="a.png", patient="p", answers=(0, NOT_ANNOTATED), uncertain=(NOT_ANNOTATED, 3)).stated
        (0, 3)
        """
        pairs = zip(self.answers, self.uncertain or self.answers, strict=True)
        return tuple(label if label != NOT_ANNOTATED else possible for label, possible in pairs)

    def with_stated(self, stated: Sequence[int], uncertain: Sequence[bool]) -> "Record":
        """Return the record with other answers; both arguments have one entry for each step."""
        doubts = [doubt and label != NOT_ANNOTATED for label, doubt in zip(stated, uncertain, strict=True)]
        certain = tuple(NOT_ANNOTATED if doubt else label for label, doubt in zip(stated, doubts, strict=True))
        possible = tuple(label if doubt else NOT_ANNOTATED for label, doubt in zip(stated, doubts, strict=True))
        return msgspec.structs.replace(self, answers=certain, uncertain=possible if any(doubts) else ())

    @property
    def letters(self) -> str:
        """Letters of the options."""
        return string.ascii_uppercase[: len(self.options)]

    @property
    def is_answered_in_words(self) -> bool:
        """Whether the answer is a text: of an open question, or of a closed one other than yes and no."""
        return self.kind == "open" or (self.kind == "closed" and self.answer not in YES_NO)

    @property
    def accepted_texts(self) -> tuple[str, ...]:
        """Every accepted text of an answer in words, the answer first; folded duplicates are left out."""
        kept: dict[str, str] = {}
        for text in (self.answer, *self.synonyms) if isinstance(self.answer, str) else ():
            kept.setdefault(fold(text), text)
        return tuple(kept.values())

    def region_box(self, name: str) -> Corners | None:
        """Return the box of a region by name; None if the source has no such region."""
        return next((region.corners for region in self.regions if region.label == name), None)


def kind_of(answer: str | Sequence[str], options: Sequence[str] = ()) -> Kind:
    """Return the kind of a question: "single" with options, "multi" with a list of answers, "closed" by yes or no."""
    if any(option.strip() for option in options):
        return "single" if isinstance(answer, str) else "multi"
    word = answer if isinstance(answer, str) else next(iter(answer), "")
    return "closed" if fold(word).strip(" .") in ("yes", "no") else "open"


@dataclasses.dataclass(frozen=True)
class SetAside:
    """A record that is excluded, and why.

    Attributes:
      record: its position in the file, from 0.
      image_path: its image as in the file; "" if unreadable.
      reason: the field, what it holds, and what is expected.
      patient_id: its patient, which lets split files resolve this patient; "" if unreadable.
      by_rule: whether a rule of the layout excludes it, which stops no run.
    """

    record: int
    image_path: str
    reason: str
    patient_id: str = ""
    by_rule: bool = False


def _name_corners(reference: dict[str, Any]) -> dict[str, Any]:
    known = {name: value for name, value in reference.items() if value is not None}  # as columns of rows are joined
    if "box" in known and "corners" in known:
        raise BadInput("references: a box has both box and corners; expected one of them")
    return {"corners" if name == "box" else name: value for name, value in known.items()}


def _check_question(record: Record) -> None:
    """Check the fields of a question; messages name them as records.jsonl does."""
    for field, name in (("id", record.id), ("patient_id", record.patient), ("image_path", record.image)):
        if not name.strip() or not name.isprintable() or len(name) > _LONGEST_NAME:
            shown = "the value" if field == "patient_id" else repr(name[:80])  # no patient fields in messages
            raise BadInput(f"{field}: {shown} is not a name on one line of 1 to {_LONGEST_NAME} characters")
    is_needed = bool(record.references or record.points) or record.image_size != (0, 0)
    if is_needed and not all(1 <= side <= _LONGEST_SIDE for side in record.image_size):
        shown = str(list(record.image_size)) if max(record.image_size) < 10**9 else "the value"
        raise BadInput(f"image_size: {shown} is not [width, height] of 1 to {_LONGEST_SIDE} pixels")
    if not record.question.strip():
        raise BadInput("question: blank; a text is required")
    _check_answer(record, _check_options(record))
    width, height = record.image_size
    for index, reference in enumerate(record.references):
        try:
            reference.check()
        except BadInput as error:
            raise BadInput(f"references[{index}].{error}") from None
        if reference.x2 > width or reference.y2 > height:
            shown = f"references[{index}].box: {list(reference.corners)} leaves the picture"
            raise BadInput(f"{shown} of image_size {width} by {height}")
    for index, point in enumerate(record.points):
        try:
            Box(point.label, (0, 0, 1, 1)).check()
        except BadInput as error:
            raise BadInput(f"points[{index}].{error}") from None
        if not (0 <= point.at[0] <= width and 0 <= point.at[1] <= height):
            raise BadInput(f"points[{index}].at: {list(point.at)} is not within image_size {width} by {height}")


def _check_options(record: Record) -> Step | None:
    """Check the options, take their letters off, and return them as a step."""
    if record.kind in ("open", "closed"):
        if record.options:
            raise BadInput(
                f"choices: {len(record.options)} choices of a question of kind {record.kind!r}; none expected"
            )
        return None
    try:
        step = Step("choices", record.question, tuple(record.options))
    except BadInput as error:
        raise BadInput(f"choices: {str(error).partition(': ')[2]}") from None
    msgspec.structs.force_setattr(record, "options", step.options)
    return step


def _check_answer(record: Record, step: Step | None) -> None:
    """Check the answer and bring it into the form of its kind."""
    answer: Any = record.answer
    if record.kind == "multi" and step is not None:
        letters = () if isinstance(answer, str) else tuple(_read_letter(item, step) or "" for item in answer)
        if not letters or list(letters) != sorted(set(letters)) or not all(letters):
            expected = f"expected distinct letters of {record.letters} in order, at least one"
            raise BadInput(f"answer: {answer!r:.80} is not an answer of kind 'multi'; {expected}")
        msgspec.structs.force_setattr(record, "answer", letters)
        return
    if not isinstance(answer, str):
        raise BadInput(f"answer: {list(answer)!r:.80} is a list; kind {record.kind!r} expects a text")
    if not answer.strip():
        raise BadInput("answer: blank; a text is required")
    word: str | None = answer
    if record.kind == "closed":
        bare = answer.strip(" .").capitalize()
        word = bare if bare in YES_NO else answer if bare not in _SHORT_YES_NO else None
    elif step is not None:
        word = _read_letter(answer, step)
    if word is None:
        accepted = ", ".join((*YES_NO, "a text") if step is None else (*record.letters, "or the text of an option"))
        raise BadInput(f"answer: {answer[:80]!r} is not one of {accepted} (kind {record.kind!r})")
    msgspec.structs.force_setattr(record, "answer", word)
    if record.synonyms and not record.is_answered_in_words:
        raise BadInput(
            f"synonyms: {len(record.synonyms)} synonyms of the answer {word!r} (kind {record.kind!r}); only an answer "
            "in words has any"
        )


def _read_letter(answer: Any, step: Step) -> str | None:
    """Return the letter of an answer that is a letter or an option's text; None for any other."""
    try:
        label = step.read_answer(answer) if isinstance(answer, str) else NOT_ANNOTATED
    except BadInput:
        return None
    return None if label == NOT_ANNOTATED else string.ascii_uppercase[label]


class Records(Sequence[Record]):
    """Records of one folder, in order; made by `load_records`, or from your own list.

    Attributes:
      root: folder that image paths are relative to.
      chain: steps and options of the answers; None for questions.
      set_aside: excluded records of the folder, each with the reason.

    >>> records = Records([Record(image="a.png", patient="p")], root="data")
    >>> len(records), records[0].image, records.chain
    (1, 'a.png', None)
    """

    def __init__(
        self,
        records: Sequence[Record],
        *,
        root: str | os.PathLike[str],
        chain: Chain | None = None,
        set_aside: Sequence[SetAside] = (),
    ) -> None:
        self._records, self.root, self.chain, self.set_aside = records, Path(root), chain, tuple(set_aside)

    def __len__(self) -> int:
        return len(self._records)

    @overload
    def __getitem__(self, index: int) -> Record: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Record]: ...

    def __getitem__(self, index: Any) -> Any:
        return self._records[index]
