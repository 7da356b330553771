"""The chain of questions: steps, their answers, and the label of a written answer.

A label is the position of an answer among a step's options: letters A, B, C ... are 0, 1, 2 ..., and
"N/A" is the last label of a step that offers it (paper: Section 2.2 and Appendix C.1).
"""

import dataclasses
import functools
import re
import string
import unicodedata
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.text import list_texts, shorten

NOT_ANNOTATED = -100
"""Label of a question that nobody answered; excluded from every loss and metric."""

NOT_APPLICABLE = "N/A"

NEGATIVE_OPTIONS = ("No abnormality", "Normal", "No finding", "None", "Absent", "No", NOT_APPLICABLE)
"""Options that deny a finding, in order of precedence: a step's negative option is the first that it offers."""

YES_NO = ("yes", "no")
"""Options, with case folded, of a step that decides on one option of a question with several right answers."""

# How files write a letter alone, and letters or numbers before options: "(B) text", "**B**: text", "Option B - text".
_BEFORE = r"[\s(\[{<*_`\uff08\uff3b\u3010\u200b\ufeff]{0,6}(?:(?:option|choice|answer)[\s:*_]+[(\[]?)?"
_BEHIND = r"[.:)\]}>|=,;\uff0e\uff1a\uff09\uff3d\u3011\u3001\uff0c\u3002]"
_DASH = r"[-\u2010-\u2015\u2212]+"  # beside a space: "A-lines" is no letter A
_ALONE = re.compile(rf"{_BEFORE}([^\W\d_])(?:{_BEHIND}|[\s*_`])*", re.IGNORECASE)
_LETTERED = re.compile(
    rf"{_BEFORE}([^\W\d_])(?:[\s*_`]*{_BEHIND}+[*_`]*\s*|\s+{_DASH}\s*|{_DASH}\s+)(\S.*)", re.IGNORECASE | re.DOTALL
)
_NUMBERED = re.compile(r"[(\[]?([0-9]{1,2})[.:)\]]+\s+(\D.*)", re.DOTALL)
_LETTERS, _NUMBERS = tuple(string.ascii_uppercase), tuple(map(str, range(1, 27)))
_MARKS = ((_LETTERED, _LETTERS), (_NUMBERED, _NUMBERS))


def fold(text: str) -> str:
    """Return `text` with case folded, white space collapsed and Unicode's form NFKC, for comparing answers.

    >>> fold("  Ill-Defined   margin ")
    'ill-defined margin'
    """
    plain = text if text.isascii() else unicodedata.normalize("NFKC", text)
    return " ".join(plain.split()).casefold()


def strip_letters(options: Sequence[str]) -> tuple[str, ...]:
    """Return options without the letters, or numbers, that run through all but "N/A" in order; other options stay.

    >>> strip_letters(["(A) Mass", "(B) Edema"]), strip_letters(["C. difficile", "E. coli"])
    (('Mass', 'Edema'), ('C. difficile', 'E. coli'))
    """
    lettered = [option for option in options if fold(option) != fold(NOT_APPLICABLE)]
    for pattern, marks in _MARKS:
        matches = [match for option in lettered if (match := pattern.fullmatch(option))]
        if not 0 < len(matches) == len(lettered):
            continue
        found, texts = [_plain(match[1]) for match in matches], [match[2].strip() for match in matches]
        if tuple(found) == marks[: len(found)] and (pattern is _LETTERED or len(set(texts)) == len(texts)):
            rest = iter(texts)
            bare = [option if fold(option) == fold(NOT_APPLICABLE) else next(rest) for option in options]
            return strip_letters(bare)  # "A: A. Mass" has two
        if pattern is _LETTERED and len(found) > 1 and tuple(sorted(found)) == marks[: len(found)] != tuple(found):
            raise BadInput(f"the letters of {list_texts(options)} are not in order")
    return tuple(options)


def _plain(mark: str) -> str:
    return unicodedata.normalize("NFKC", mark).upper()


def find_one_answer(labels: npt.NDArray[np.integer]) -> npt.NDArray[np.bool_]:
    """Return for each step whether its annotated cases all have the same answer.

    Such a step measures nothing: a constant answer is right in all cases. Means over steps leave it out.

    Args:
      labels: [case, step], negative where unannotated.

    >>> find_one_answer(np.array([[0, 2, -100], [1, 2, -100], [1, -100, -100]])).tolist()
    [False, True, False]
    """
    highest = np.max(labels, axis=0, initial=-1)
    lowest = np.min(labels, axis=0, initial=np.iinfo(labels.dtype).max, where=labels >= 0)
    return (highest >= 0) & (lowest == highest)


@dataclasses.dataclass(frozen=True)
class Step:
    """One question of the chain.

    Attributes:
      name: short name for tables, such as "Diagnosis".
      question: the question as readers are asked.
      options: the answers in label order, from which `strip_letters` takes letters off; "N/A", where offered, is last.
      asked_if: position of an earlier step and its label that opens this one; None for a step that is always asked.
      choice: the option on which this step decides with yes or no, of a question with several right answers; "" for a
        step that is a whole question.
      part: section of a form with figures of its own, such as "level 2/signs"; "" without one.
    """

    name: str
    question: str
    options: tuple[str, ...]
    asked_if: tuple[int, int] | None = None
    choice: str = ""
    part: str = ""

    def __post_init__(self) -> None:
        where = f"step {shorten(self.name)!r}"
        try:
            object.__setattr__(self, "options", strip_letters(self.options))
        except BadInput as error:
            raise BadInput(f"{where}: {error}") from None
        folded = [fold(option) for option in self.options]
        if len(folded) < 2 or len(folded) > len(string.ascii_uppercase):
            raise BadInput(f"{where}: {len(folded)} options; 2 to 26 are required")
        if twice := next((k for k, text in enumerate(folded) if text in folded[:k]), 0):
            first = folded.index(folded[twice])
            letters = f"{string.ascii_uppercase[first]} and {string.ascii_uppercase[twice]}"
            raise BadInput(
                f"{where}: options {list_texts(self.options)} must be distinct and not empty; {letters} are equal"
            )
        if "" in folded:
            raise BadInput(f"{where}: options {list_texts(self.options)} must be distinct and not empty")
        if any(
            len(text) == 1 and text.isalpha() and string.ascii_lowercase.find(text) != k
            for k, text in enumerate(folded)
        ):
            raise BadInput(f"{where}: in {list_texts(self.options)} an option that is a letter is not its own letter")
        if fold(NOT_APPLICABLE) in folded[:-1]:
            raise BadInput(f"{where}: {NOT_APPLICABLE} must be the last option of {list_texts(self.options)}")
        if self.choice and tuple(folded) != YES_NO:
            raise BadInput(
                f"{where}: options {list_texts(self.options)} of the choice {shorten(self.choice)!r}; "
                f"{list_texts(YES_NO)} are required"
            )

    @property
    def num_answers(self) -> int:
        """Number of answers, "N/A" included."""
        return len(self.options)

    @property
    def lettered_options(self) -> tuple[str, ...]:
        """The options as the published files write them: with a letter before each except "N/A"."""
        return tuple(
            option if fold(option) == fold(NOT_APPLICABLE) else f"{letter}. {option}"
            for letter, option in zip(string.ascii_uppercase, self.options, strict=False)
        )

    @property
    def negative(self) -> int | None:
        """Label of the step's option among `NEGATIVE_OPTIONS`; None if it offers none of them.

        >>> [step.options[step.negative] for step in Chain.published().steps[::3]]
        ['No abnormality', 'N/A', 'Normal']
        """
        folded = [fold(option) for option in self.options]
        return next((folded.index(fold(name)) for name in NEGATIVE_OPTIONS if fold(name) in folded), None)

    @property
    def normal(self) -> int | None:
        """Label of the option that denies any finding; None if none does but "N/A".

        >>> [step.normal for step in Chain.published().steps]
        [0, None, None, None, None, None, 0]
        """
        label = self.negative
        return None if label is None or fold(self.options[label]) == fold(NOT_APPLICABLE) else label

    def written(self, label: int) -> str | None:
        """Return a label's answer as the published files write it: a letter, "N/A", or None if not annotated."""
        if label == NOT_ANNOTATED:
            return None
        if fold(self.options[label]) == fold(NOT_APPLICABLE):
            return NOT_APPLICABLE
        return string.ascii_uppercase[label]

    def read_answer(self, answer: str | None) -> int:
        """Return the label of a written answer.

        Args:
          answer: a letter ("C", "C.", "(C)", "C. text"), an option's text (case and spacing folded) or
            "N/A"; None and blank text mean "not annotated".

        Returns:
          The label, or `NOT_ANNOTATED`.

        Raises:
          BadInput: the answer is not one of the step's options, or its letter and text disagree.

        >>> Step("Size", "How large?", ("Small", "Large", "N/A")).read_answer("(B)")
        1
        """
        folded = fold(answer) if answer is not None else ""
        if not folded:
            return NOT_ANNOTATED
        by_text = {fold(option): label for label, option in enumerate(self.options)}
        if folded in by_text:
            return by_text[folded]
        alone = _ALONE.fullmatch(folded)
        if alone and _plain(alone[1]) in _LETTERS[: self.num_answers]:
            return _LETTERS.index(_plain(alone[1]))
        for pattern, marks in _MARKS:
            match = pattern.fullmatch(folded)
            label = by_text.get(fold(match[2])) if match else None
            if match and label is not None and _plain(match[1]) == marks[label]:
                return label
        raise BadInput(f"{answer[:80]!r} is not one of {', '.join(map(shorten, self.lettered_options))} or null")  # type: ignore[index]


@dataclasses.dataclass(frozen=True)
class Chain:
    """An ordered series of steps, each answer feeding the next; any number of steps and answers.

    A chain is a tree if some steps are asked only after a given answer to an earlier one. A question with several right
    answers is a run of steps, one for each of its options, which answer yes or no (`Step.choice`). A label therefore
    stays one position among a step's options; a step that is not asked has none (`NOT_ANNOTATED`).
    """

    steps: tuple[Step, ...]

    def __post_init__(self) -> None:
        if not self.steps:
            raise BadInput("a chain needs at least one step")
        for position, step in enumerate(self.steps):
            parent, label = step.asked_if or (-1, 0)
            if parent >= position or (step.asked_if and not 0 <= parent < position):
                raise BadInput(f"step {shorten(step.name)!r}: asked_if names step {parent}; an earlier one is required")
            if step.asked_if and not 0 <= label < self.steps[parent].num_answers:
                most = self.steps[parent].num_answers - 1
                raise BadInput(f"step {shorten(step.name)!r}: asked_if names label {label}; 0 to {most} is required")

    @staticmethod
    def published() -> "Chain":
        """Return the seven published steps; the options of steps 2 to 6 are those of the phantom.

        >>> Chain.published().answers_per_step
        (4, 4, 6, 7, 5, 7, 9)
        """
        return DEFAULT_CHAIN

    @property
    def num_steps(self) -> int:
        """Number of steps (S in the paper; 7 as published)."""
        return len(self.steps)

    @property
    def answers_per_step(self) -> tuple[int, ...]:
        """Number of answers of each step."""
        return tuple(step.num_answers for step in self.steps)

    @property
    def is_tree(self) -> bool:
        """Whether some step is asked only after a given answer, or decides on one option of a question."""
        return any(step.asked_if or step.choice for step in self.steps)

    def refuse_tree(self, who: str) -> None:
        """Refuse a tree for `who`, which asks every step."""
        if self.is_tree:
            raise BadInput(
                f"chain: some steps are asked only after an answer; {who} asks every step (for a tree: the "
                "job 'baseline', StructuredReport)"
            )

    @functools.cached_property
    def questions(self) -> tuple[range, ...]:
        """Positions of the steps of each question: one step, or one for each option where several may be right."""
        starts = [
            position
            for position, step in enumerate(self.steps)
            if not (position and step.choice and _asks_the_same(self.steps[position - 1], step))
        ]
        return tuple(map(range, starts, [*starts[1:], self.num_steps]))

    def find_asked(self, labels: npt.NDArray[np.integer]) -> npt.NDArray[np.bool_]:
        """Return which steps [case, step] are asked, given the labels [case, step] of the steps before them.

        >>> tree = Chain((Step("Mass", "?", ("yes", "no")), Step("Side", "?", ("left", "right"), asked_if=(0, 0))))
        >>> tree.find_asked(np.array([[0, 1], [1, 1]])).tolist()
        [[True, True], [True, False]]
        """
        asked = np.ones(labels.shape, bool)
        for position, step in enumerate(self.steps):
            if step.asked_if is not None:
                parent, label = step.asked_if
                asked[:, position] = asked[:, parent] & (labels[:, parent] == label)
        return asked

    def close(self, labels: npt.NDArray[np.integer]) -> npt.NDArray[np.integer]:
        """Return labels [case, step] with `NOT_ANNOTATED` at the steps that their own answers do not open."""
        return np.where(self.find_asked(labels), labels, NOT_ANNOTATED)


def _asks_the_same(step: Step, following: Step) -> bool:
    return bool(step.choice) and (step.question, step.asked_if) == (following.question, following.asked_if)


def read_options(options: Sequence[str]) -> tuple[str, ...]:
    """Return a file's options as bare texts in label order.

    If every option except "N/A" has a letter prefix, the letters decide the order, otherwise the order of the list.
    "N/A" goes last.

    >>> read_options(["B. Multifocal", "A. Focal", "N/A"])
    ('Focal', 'Multifocal', 'N/A')
    """
    absent = [option for option in options if fold(option) == fold(NOT_APPLICABLE)]
    present = [" ".join(option.split()) for option in options if fold(option) != fold(NOT_APPLICABLE)]
    if len(absent) > 1:
        raise BadInput(f"{NOT_APPLICABLE} occurs {len(absent)} times; once is allowed")
    matches = [match for option in present if (match := _LETTERED.fullmatch(option))]
    if matches and matches[0].string == present[0] and _plain(matches[0][1]) == "A" and len(matches) < len(present):
        raise BadInput(f"only some of the options {list_texts(options)} have a letter; all or none must")
    if matches and len(matches) == len(present):
        by_letter = {_plain(match[1]): match[2] for match in matches}
        expected = string.ascii_uppercase[: len(present)]
        if "".join(sorted(by_letter)) != expected or len(matches) != len(by_letter):
            raise BadInput(f"option letters {sorted(by_letter)} must be {list(expected)}, each once")
        present = [by_letter[letter] for letter in expected]
        if fold(present[-1]) == fold(NOT_APPLICABLE):
            present[-1] = NOT_APPLICABLE
    return (*present, *([NOT_APPLICABLE] if absent else []))


PUBLISHED_STEPS: tuple[tuple[str, str], ...] = (
    ("Detection", "Is there any abnormal radiodensity in the lungs?"),
    ("Lesion distribution", "What is the distribution of the lesion?"),
    ("Radiographic pattern", "What is the predominant radiographic pattern?"),
    ("Anatomical location", "Where is the lesion located?"),
    ("Morphologic feature", "What are the margins and internal morphology of the lesion?"),
    ("Secondary effects", "Are there secondary effects or associated signs?"),
    ("Diagnosis", "What is the most likely radiographic diagnosis?"),
)
"""Names and questions of the seven published steps."""

DETECTION_OPTIONS = ("No abnormality", "Increased opacity", "Decreased opacity", "Mixed")
DIAGNOSIS_OPTIONS = (
    "Normal",
    "Nodule",
    "Atelectasis",
    "Infiltration",
    "Effusion",
    "Pneumonia",
    "Cardiomegaly",
    "Mass",
    "Pneumothorax",
)

DEFAULT_CHAIN = Chain(
    tuple(
        Step(name, question, options)
        for (name, question), options in zip(
            PUBLISHED_STEPS,
            (
                DETECTION_OPTIONS,
                ("Focal", "Multifocal", "Diffuse", "N/A"),
                ("Consolidation", "Reticular", "Nodular", "Linear", "Cavity", "N/A"),
                (
                    "Upper lung zone",
                    "Middle lung zone",
                    "Lower lung zone",
                    "Hilar/Mediastinal",
                    "Pleura/Chest wall",
                    "Cardiac",
                    "N/A",
                ),
                ("Well-circumscribed", "Ill-defined", "Spiculated", "Calcified", "N/A"),
                (
                    "Volume loss",
                    "Mediastinal shift",
                    "Pleural effusion",
                    "Pneumothorax",
                    "Cardiomegaly",
                    "Lymphadenopathy",
                    "N/A",
                ),
                DIAGNOSIS_OPTIONS,
            ),
            strict=True,
        )
    )
)
"""The published seven steps with 4, 4, 6, 7, 5, 7 and 9 answers, for data without a chain of their own.

The options of steps 2 to 6 are ours; the published ones are only in the published data.
"""
