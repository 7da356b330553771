"""The key of a sample: which case each number is, what is right, and what each reader was given. Readers never get it.

It is one JSON file beside the readers' folders. The digests in it tell what came back from what went out.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from stepcot_jax.chain import NOT_ANNOTATED, Chain, Step
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import read_json, write_whole

KEY_NAME = "key.json"
IMAGE_FOLDER = "images"

_VERSION = 1
_DIGEST = re.compile(r"[0-9a-f]{64}")
_READER = re.compile(r"\w(?:[\w .-]{0,38}\w)?")
# Names that a Windows computer, where a reader may sit, does not take for folders.
_RESERVED = re.compile(r"(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\..*)?", re.IGNORECASE)


class KeyStep(msgspec.Struct, frozen=True, kw_only=True):
    """One question, with its options in label order."""

    name: str
    question: str
    options: tuple[str, ...]


class KeyCase(msgspec.Struct, frozen=True, kw_only=True):
    """One case: the number that readers know it by, what it is, and the digest of the image that they get."""

    number: int
    image_path: str
    patient_id: str
    labels: tuple[int, ...]
    sha256: str

    @property
    def image(self) -> str:
        """Name of the image that readers get, which says nothing but the number."""
        return f"case_{self.number:04d}.png"


class KeyReader(msgspec.Struct, frozen=True, kw_only=True):
    """One reader: the form that they got, its digest, and the order of the cases' numbers in it."""

    name: str
    file: str
    sha256: str
    order: tuple[int, ...]


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """All of a sample; `cases` are by ascending number from 1."""

    version: int = _VERSION
    source: str
    seed: int
    steps: tuple[KeyStep, ...]
    cases: tuple[KeyCase, ...]
    readers: tuple[KeyReader, ...]

    @property
    def chain(self) -> Chain:
        """The questions with their options."""
        return Chain(tuple(Step(step.name, step.question, step.options) for step in self.steps))

    def find(self, name: str) -> KeyReader:
        """The reader of a name."""
        return next(reader for reader in self.readers if reader.name == name)


class FormRow(msgspec.Struct, frozen=True):
    """One question of a form, all of it but the answer."""

    form: str
    case: str
    image: str
    step: str
    question: str
    options: str


def identify_form(key: Key, *, name: str, order: Sequence[int]) -> str:
    """What a form is known by: another for every reader, order, question, option and image.

    It is made of nothing that a reader does not get, so that nothing can be guessed from it.
    """
    content = [key.version, name, list(order), [[step.question, list(step.options)] for step in key.steps]]
    content.append([[case.number, case.sha256] for case in key.cases])
    # The word before the digest keeps spreadsheets from taking it for a number.
    return "form-" + hashlib.sha256(json.dumps(content).encode()).hexdigest()[:20]


def list_rows(key: Key, *, name: str, order: Sequence[int]) -> Iterator[FormRow]:
    """The questions of a reader's form, in its order."""
    form, steps = identify_form(key, name=name, order=order), key.chain.steps
    for number in order:
        case = key.cases[number - 1]
        for place, step in enumerate(steps, start=1):
            options = "; ".join(step.lettered_options)
            yield FormRow(form, str(number), case.image, f"Step {place}", step.question, options)


def check_names(names: Sequence[str]) -> None:
    """Refuse readers' names that cannot name folders on every computer, or that cannot be told apart.

    Raises:
      BadInput: names the first that is refused.
    """
    if not names:
        raise BadInput("--readers: found nothing, accepted are one or more names, with commas between them")
    for name in names:
        if not _READER.fullmatch(name) or _RESERVED.fullmatch(name):
            raise BadInput(
                f"--readers: found {name[:60]!r}, accepted are names of at most 40 letters, digits, '_', and within "
                "them spaces, '.' and '-'"
            )
    if len({name.casefold() for name in names}) < len(names):
        raise BadInput(f"--readers: found {list(names)}, accepted are names that differ")


def write_key(folder: Path, key: Key) -> None:
    """Write the key of a sample, whole or not at all."""
    write_whole(folder / KEY_NAME, msgspec.json.format(msgspec.json.encode(key), indent=1) + b"\n")


def read_key(folder: Path) -> Key:
    """The key of a sample.

    Raises:
      BadInput: there is none, or it is not as it was written.
    """
    path = folder / KEY_NAME
    accepted = "accepted is the key as `python -m stepcot_jax.readers sample` writes it"
    key = read_json(path, Key, accepted=accepted)
    if key.version != _VERSION:
        raise BadInput(f"{path}: found version {key.version}, accepted is {_VERSION}")
    try:
        check_names([reader.name for reader in key.readers])
        problem = _find_problem(key)
    except BadInput as error:
        problem = str(error)
    if problem:
        raise BadInput(f"{path}: {problem}; {accepted}")
    return key


def _find_problem(key: Key) -> str:
    numbers = list(range(1, len(key.cases) + 1))
    if not numbers or [case.number for case in key.cases] != numbers:
        return "cases: found numbers that do not go 1, 2, 3 and on"
    answers = key.chain.answers_per_step
    for case in key.cases:
        fits = len(case.labels) == len(answers) and all(
            label == NOT_ANNOTATED or 0 <= label < number for label, number in zip(case.labels, answers, strict=True)
        )
        if not fits or not _DIGEST.fullmatch(case.sha256):
            return f"case {case.number}: found labels or a digest that cannot be"
    for reader in key.readers:
        if sorted(reader.order) != numbers or not _DIGEST.fullmatch(reader.sha256):
            return f"reader {reader.name!r}: found an order or a digest that cannot be"
        if reader.file not in ("form.html", "form.csv"):
            return f"reader {reader.name!r}: found the form {reader.file[:60]!r}"
    return ""
