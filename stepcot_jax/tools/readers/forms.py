"""Draw cases for human readers, write each reader's form and pictures and the key, and read filled forms."""

import dataclasses
import hashlib
import io
import json
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int32
from PIL import Image

from stepcot_jax.chain import NOT_ANNOTATED, Chain, Step
from stepcot_jax.data.delimited import encode_rows, is_same_cell, read_rows
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import write_whole
from stepcot_jax.host.own_folder import load, save
from stepcot_jax.reading.cases import CaseSource

KEY_NAME = "key.json"
FORM_NAME = "form.csv"
IMAGE_FOLDER = "images"
COLUMNS = ("form", "case", "image", "step", "question", "options", "answer")

Answers = dict[str, Int32[np.ndarray, "case step"]]
"""Labels by the name of a reader or model, of the cases in the key's order."""

_READER = re.compile(r"\w(?:[\w .-]{0,38}\w)?")
_NUM_SHOWN = 60


@dataclasses.dataclass(frozen=True)
class KeyCase:
    """A case with its true answers."""

    image_path: str
    patient_id: str
    labels: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Key:
    """A sample: its cases, which the forms number from 1, and the readers; they never get it."""

    source: str
    seed: int
    steps: tuple[Step, ...]
    cases: tuple[KeyCase, ...]
    readers: dict[str, str]  # reader by the id of their form

    @property
    def chain(self) -> Chain:
        """The questions with their options."""
        return Chain(self.steps)


def read_key(folder: Path) -> Key:
    """Read the key of a sample."""
    return load(folder / KEY_NAME, Key)


def check_names(names: Sequence[str]) -> None:
    """Check that readers' names can be folders, and are distinct."""
    if not names or len({name.casefold() for name in names}) < len(names):
        raise BadInput(f"--readers: {list(names)} are not one or more distinct names, separated by commas")
    if wrong := [name for name in names if not _READER.fullmatch(name)]:
        raise BadInput(
            f"--readers: {wrong[0][:60]!r} is not a name of at most 40 letters, digits and '_', with spaces, '.' and "
            "'-' only inside"
        )


def write_sample(
    folder: Path,
    source: CaseSource,
    *,
    readers: Sequence[str],
    num_cases: int,
    seed: int = 0,
    progress: Callable[[Iterable[Any]], Iterable[Any]] = iter,
) -> Key:
    """Write the readers' folders and then the key; a folder without a key is no sample."""
    check_names(readers)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadInput(f"{folder} is not empty; expected a new or empty folder")
    candidates = [source.cases[position] for position in source.diagnosed]
    names, strata = [case.image for case in candidates], [case.answers[-1] for case in candidates]
    indices = choose_stratified(names, strata, num_cases=num_cases, seed=seed)
    cases = tuple(KeyCase(case.image, case.patient, case.answers) for case in map(candidates.__getitem__, indices))
    for number, index in progress(list(enumerate(indices, start=1))):
        content = encode_picture(source.picture(source.diagnosed[index]))
        for name in readers:
            write_whole(folder / name / IMAGE_FOLDER / name_image(number), content)
    forms = {identify_form(source.chain.steps, cases, name=name, seed=seed): name for name in readers}
    key = Key(source.name, seed, source.chain.steps, cases, forms)
    numbers = [str(number) for number in range(1, num_cases + 1)]
    for form, name in forms.items():
        order = shuffle(range(num_cases), numbers, seed=f"{seed}:{name}")
        rows = ([form, *list_cells(key, case, step), ""] for case in order for step in range(len(key.steps)))
        write_whole(folder / name / FORM_NAME, encode_rows([COLUMNS, *rows]))
    save(folder / KEY_NAME, key)
    return key


def name_image(number: int) -> str:
    """Return the name of a picture, which reveals only the number of its case."""
    return f"case_{number:04d}.png"


def encode_picture(picture: Image.Image) -> bytes:
    """Encode a picture as a PNG with its pixels alone: no date, no name, no text of its source file."""
    plain = Image.frombytes(picture.mode, picture.size, picture.tobytes())
    content = io.BytesIO()
    plain.save(content, format="PNG")
    return content.getvalue()


def identify_form(steps: Sequence[Step], cases: Sequence[KeyCase], *, name: str, seed: int) -> str:
    """Return the id of a form, which differs for every reader, seed, choice of cases, question and option."""
    content = [name, seed, [[step.question, *step.options] for step in steps], [case.image_path for case in cases]]
    # The prefix keeps spreadsheets from reading a number.
    return "form-" + hashlib.sha256(json.dumps(content).encode()).hexdigest()[:20]


def list_cells(key: Key, case: int, step: int) -> list[str]:
    """Return the cells of a question's row between the form's id and the answer."""
    options = "; ".join(key.steps[step].lettered_options)
    return [str(case + 1), name_image(case + 1), f"Step {step + 1}", key.steps[step].question, options]


def choose_stratified(names: Sequence[str], strata: Sequence[int], *, num_cases: int, seed: int) -> list[int]:
    """Choose cases in proportion to their strata, each off by less than one case (systematic sampling).

    The choice depends on the seed and the unique names, not on their order; the order of the cases tells no stratum.

    >>> sorted(choose_stratified(["a", "b", "c", "d"], [0, 0, 0, 1], num_cases=2, seed=0))[-1]
    3
    """
    if not 1 <= num_cases <= len(names):
        raise BadInput(f"--num-cases={num_cases} is not 1 to {len(names)}, the number of cases")
    drawn = shuffle(range(len(names)), names, seed=f"{seed}:cases")
    by_stratum = sorted(drawn, key=lambda index: strata[index])  # keeps the drawn order within a stratum
    chosen = [by_stratum[(2 * place + 1) * len(names) // (2 * num_cases)] for place in range(num_cases)]
    return shuffle(chosen, names, seed=f"{seed}:numbers")


def shuffle(indices: Iterable[int], names: Sequence[str], *, seed: str) -> list[int]:
    """Shuffle indices by a hash of each name, independently of any library's random generator."""
    content = {index: f"{seed}:{names[index]}".encode("utf-8", "surrogatepass") for index in indices}
    return sorted(content, key=lambda index: hashlib.sha256(content[index]).digest())


def read_forms(key: Key, paths: Sequence[Path]) -> Answers:
    """Return the readers' answers of filled forms, in the key's order of readers."""
    answers: Answers = {}
    for path in paths:
        reader, labels = _read_form(key, path)
        if reader in answers:
            raise BadInput(f"{path}: a second form of {reader}")
        answers[reader] = labels
    return {reader: answers[reader] for reader in key.readers.values() if reader in answers}


def _read_form(key: Key, path: Path) -> tuple[str, Int32[np.ndarray, "case step"]]:
    rows = read_rows(path, expected="expected the form, saved as CSV in UTF-8")
    header = next(rows, None)
    names = () if header is None else header.cells
    if len(names) != len(COLUMNS) or not all(map(is_same_cell, names, COLUMNS)):
        raise BadInput(f"{path}, row 1: columns {[name[:_NUM_SHOWN] for name in names[:10]]} are not {list(COLUMNS)}")
    form, labels = "", np.full((len(key.cases), len(key.steps)), NOT_ANNOTATED, np.int32)
    questions = {(str(case + 1), f"Step {step + 1}"): (case, step) for case, step in np.ndindex(*labels.shape)}
    for row in rows:
        where = f"{path}, row {row.number}"
        if len(row.cells) != len(COLUMNS):
            raise BadInput(f"{where} has {len(row.cells)} cells, not {len(COLUMNS)}")
        cells = dict(zip(COLUMNS, row.cells, strict=True))
        form = form or cells["form"]
        if form not in key.readers:
            readers = ", ".join(key.readers.values())
            raise BadInput(f"{where}, 'form': {form[:_NUM_SHOWN]!r} is not of this sample, for {readers}")
        case, step = (" ".join(cells[name].split())[:_NUM_SHOWN] for name in ("case", "step"))
        where += f" (case {case}, {step})"
        if (case, step) not in questions:
            raise BadInput(f"{where} is not one of cases 1 to {len(labels)}, Step 1 to Step {len(key.steps)}")
        at = questions[case, step]
        # Sorting a part of a spreadsheet's columns moves answers to other questions.
        for column, written in zip(COLUMNS, [form, *list_cells(key, *at)], strict=False):
            if not is_same_cell(cells[column], written):
                raise BadInput(f"{where}, {column!r}: {cells[column][:_NUM_SHOWN]!r} was changed; expected {written!r}")
        if labels[at] != NOT_ANNOTATED:
            raise BadInput(f"{where}: a second answer to one question")
        try:
            labels[at] = key.steps[at[1]].read_answer(cells["answer"])
        except BadInput:
            known = ", ".join(key.steps[at[1]].lettered_options)
            raise BadInput(f"{where}, 'answer': {cells['answer'][:_NUM_SHOWN]!r} is not one of {known}") from None
    if len(missing := np.argwhere(labels == NOT_ANNOTATED)):
        case, step = missing[0] + 1
        more = f"{len(missing)} of {labels.size} answers are missing"
        raise BadInput(f"{path} (case {case}, Step {step}), 'answer': {more}")
    return key.readers[form], labels
