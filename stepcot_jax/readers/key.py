"""The key of a sample: the case and true answers of each number, and the form of each reader. Readers never get it.

It is one JSON file next to the readers' folders. Its digests detect changes in the returned forms and images.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from stepcot_jax.chain import NOT_ANNOTATED, Chain, Step
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import read_json, write_whole

KEY_NAME = "key.json"
IMAGE_FOLDER = "images"

_VERSION = 1
_DIGEST = re.compile(r"[0-9a-f]{64}")
_READER = re.compile(r"\w(?:[\w .-]{0,38}\w)?")
# Names that Windows, which a reader may use, refuses for folders.
_RESERVED = re.compile(r"(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\..*)?", re.IGNORECASE)


class KeyCase(msgspec.Struct, frozen=True, kw_only=True):
    """One case: its number for readers, its identity and labels, and the digest of the readers' image."""

    number: int
    image_path: str
    patient_id: str
    labels: tuple[int, ...]
    sha256: str

    @property
    def image(self) -> str:
        """Name of the readers' image, which reveals only the number."""
        return f"case_{self.number:04d}.png"


class KeyReader(msgspec.Struct, frozen=True, kw_only=True):
    """One reader: the form, its digest, and the order of the case numbers in it."""

    name: str
    file: str
    sha256: str
    order: tuple[int, ...]


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """A whole sample; `cases` are by ascending number from 1."""

    version: int = _VERSION
    source: str
    seed: int
    steps: tuple[Step, ...]
    cases: tuple[KeyCase, ...]
    readers: tuple[KeyReader, ...]

    @property
    def chain(self) -> Chain:
        """The questions with their options."""
        return Chain(self.steps)

    def find(self, name: str) -> KeyReader:
        """Return the reader with this name."""
        return next(reader for reader in self.readers if reader.name == name)


class FormRow(NamedTuple):
    """One question of a form, without the answer; the columns of the form."""

    form: str
    case: str
    image: str
    step: str
    question: str
    options: str


def identify_form(key: Key, *, name: str, order: Sequence[int]) -> str:
    """Return the id of a form, which differs for every reader, order, question, option and image.

    It is a digest of what the reader sees, so that it reveals nothing else.
    """
    content = [key.version, name, list(order), [[step.question, list(step.options)] for step in key.steps]]
    content.append([[case.number, case.sha256] for case in key.cases])
    # The prefix keeps spreadsheets from reading a number.
    return "form-" + hashlib.sha256(json.dumps(content).encode()).hexdigest()[:20]


def list_rows(key: Key, *, name: str, order: Sequence[int]) -> Iterator[FormRow]:
    """Yield the questions of a reader's form, in its order."""
    form = identify_form(key, name=name, order=order)
    for number in order:
        for place, step in enumerate(key.steps, start=1):
            image, options = key.cases[number - 1].image, "; ".join(step.lettered_options)
            yield FormRow(form, str(number), image, f"Step {place}", step.question, options)


def check_names(names: Sequence[str]) -> None:
    """Check that readers' names are valid folder names on every system, and distinct."""
    if not names:
        raise BadInput("--readers is required (one or more names, separated by commas)")
    for name in names:
        if not _READER.fullmatch(name) or _RESERVED.fullmatch(name):
            raise BadInput(
                f"--readers: {name[:60]!r} is not a name of at most 40 letters, digits and '_', with spaces, '.' and "
                "'-' only inside"
            )
    if len({name.casefold() for name in names}) < len(names):
        raise BadInput(f"--readers: {list(names)} are not distinct")


def write_key(folder: Path, key: Key) -> None:
    """Write the key of a sample, atomically."""
    write_whole(folder / KEY_NAME, msgspec.json.format(msgspec.json.encode(key), indent=1) + b"\n")


def read_key(folder: Path) -> Key:
    """Read the key of a sample."""
    path = folder / KEY_NAME
    expected = "expected the key of `python -m stepcot_jax.readers sample`"
    key = read_json(path, Key, accepted=expected)
    if key.version != _VERSION:
        raise BadInput(f"{path}, 'version': {key.version} is not {_VERSION}")
    try:
        check_names([reader.name for reader in key.readers])
        problem = _find_problem(key)
    except BadInput as error:
        problem = str(error)
    if problem:
        raise BadInput(f"{path}, {problem}; {expected}")
    return key


def _find_problem(key: Key) -> str:
    numbers = list(range(1, len(key.cases) + 1))
    if not numbers or [case.number for case in key.cases] != numbers:
        return "cases: the numbers are not 1, 2, 3 and so on"
    answers = key.chain.answers_per_step
    for case in key.cases:
        fits = len(case.labels) == len(answers) and all(
            label == NOT_ANNOTATED or 0 <= label < number for label, number in zip(case.labels, answers, strict=True)
        )
        if not fits or not _DIGEST.fullmatch(case.sha256):
            return f"case {case.number}: its labels or its digest are impossible"
    for reader in key.readers:
        if sorted(reader.order) != numbers or not _DIGEST.fullmatch(reader.sha256):
            return f"reader {reader.name!r}: the order or the digest is impossible"
        if reader.file not in ("form.html", "form.csv"):
            return f"reader {reader.name!r}: {reader.file[:60]!r} is not form.html or form.csv"
    return ""
