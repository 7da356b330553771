"""Draw cases for human readers, write each reader's form and pictures and the key, and read filled forms."""

import collections
import dataclasses
import hashlib
import io
import json
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int32
from PIL import Image

from stepcot_jax.chain import NOT_ANNOTATED, Chain, Step
from stepcot_jax.data.delimited import encode_rows, is_same_cell, read_rows
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import make_workdir, write_whole
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
    if not names:
        raise BadInput("--readers is required (one or more names, separated by commas)")
    if wrong := [name for name in names if not _READER.fullmatch(name)]:
        raise BadInput(
            f"--readers: {wrong[0][:60]!r} is not a name of at most 40 letters, digits and '_', with spaces, '.' and "
            "'-' only inside"
        )
    if len({name.casefold() for name in names}) < len(names):
        raise BadInput(f"--readers: {list(names)} are not distinct")


def write_sample(
    folder: Path,
    source: CaseSource,
    *,
    readers: Sequence[str],
    num_cases: int,
    seed: int = 0,
    with_undiagnosed: bool = False,
    progress: Callable[[Iterable[Any]], Iterable[Any]] = iter,
) -> Key:
    """Write the readers' folders and then the key; a folder without a key is no sample."""
    check_names(readers)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadInput(f"{folder} is not empty; expected a new or empty folder")
    candidates = range(len(source.cases)) if with_undiagnosed else source.diagnosed
    paths = [source.cases[candidate].image for candidate in candidates]
    diagnoses = [source.cases[candidate].answers[-1] for candidate in candidates]
    indices = choose_stratified(paths, diagnoses, num_cases=num_cases, seed=seed)
    chosen = [source.cases[candidates[index]] for index in indices]
    cases = tuple(KeyCase(case.image, case.patient, case.answers) for case in chosen)
    for name in readers:
        make_workdir(folder / name / IMAGE_FOLDER)
    for number, index in progress(list(enumerate(indices, start=1))):
        content = encode_picture(source.picture(candidates[index]))
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


def choose_stratified(names: Sequence[str], strata: Sequence[int], *, num_cases: int, seed: int) -> tuple[int, ...]:
    """Choose cases in proportion to their strata, by the method of largest remainders.

    Args:
      names: unique names of the cases; the choice depends on them and not on their order.

    Returns:
      Indices of the chosen cases, in an order that depends on the seed and the names alone and not on the strata.

    >>> sorted(choose_stratified(["a", "b", "c", "d"], [0, 0, 0, 1], num_cases=3, seed=0))[-1]
    3
    """
    if not 1 <= num_cases <= len(names):
        raise BadInput(f"--num-cases={num_cases} is not 1 to {len(names)}, the number of cases")
    members: dict[int, list[int]] = collections.defaultdict(list)
    for index in shuffle(range(len(names)), names, seed=f"{seed}:cases"):
        members[strata[index]].append(index)
    quotas = share_out({stratum: len(indices) for stratum, indices in members.items()}, num_cases)
    chosen = [index for stratum, indices in members.items() for index in indices[: quotas[stratum]]]
    return tuple(shuffle(chosen, names, seed=f"{seed}:numbers"))


def share_out(sizes: Mapping[int, int], total: int) -> dict[int, int]:
    """Divide `total` in proportion to sizes, by the method of largest remainders.

    Of equal remainders the larger stratum comes first, then the smaller label.

    >>> share_out({0: 6, 1: 3, 2: 1}, 5)
    {0: 3, 1: 2, 2: 0}
    """
    size_of_all = sum(sizes.values())
    parts = {stratum: size * total // size_of_all for stratum, size in sizes.items()}
    order = sorted(sizes, key=lambda stratum: (-(sizes[stratum] * total % size_of_all), -sizes[stratum], stratum))
    for stratum in order[: total - sum(parts.values())]:
        parts[stratum] += 1
    return parts


def shuffle(indices: Iterable[int], names: Sequence[str], *, seed: Hashable) -> list[int]:
    """Shuffle indices by a hash of each name, independently of any library's random generator."""

    def rank(index: int) -> bytes:
        return hashlib.sha256(f"{seed}:{names[index]}".encode("utf-8", "surrogatepass")).digest()

    return sorted(indices, key=rank)


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
    form, seen = "", dict[tuple[int, int], int]()
    cases = {str(number): number - 1 for number in range(1, len(key.cases) + 1)}
    steps = {f"Step {number}": number - 1 for number in range(1, len(key.steps) + 1)}
    labels = np.full((len(cases), len(steps)), NOT_ANNOTATED, np.int32)
    for row in rows:
        where = f"{path}, row {row.number}"
        if len(row.cells) != len(COLUMNS):
            raise BadInput(f"{where} has {len(row.cells)} cells, not {len(COLUMNS)}")
        cells = dict(zip(COLUMNS, row.cells, strict=True))
        form = form or cells["form"]
        if form not in key.readers:
            readers = ", ".join(key.readers.values())
            raise BadInput(f"{where}, 'form': {form[:_NUM_SHOWN]!r} is not of this sample, for {readers}")
        at = _find(cells, "case", cases, where), _find(cells, "step", steps, where)
        where += f" (case {at[0] + 1}, Step {at[1] + 1})"
        if at in seen:
            raise BadInput(f"{where} repeats row {seen[at]}")
        seen[at] = row.number
        # Sorting a part of a spreadsheet's columns moves answers to other questions.
        for column, written in zip(COLUMNS, [form, *list_cells(key, *at)], strict=False):
            if not is_same_cell(cells[column], written):
                raise BadInput(f"{where}, {column!r}: {cells[column][:_NUM_SHOWN]!r} was changed; expected {written!r}")
        labels[at] = _read_answer(cells["answer"], key.steps[at[1]], where)
    missing = np.argwhere(labels == NOT_ANNOTATED).tolist()
    if missing:
        case, step = missing[0]
        where = f"row {seen[case, step]}" if (case, step) in seen else "no row"
        more = f"{len(missing)} of {labels.size} answers are missing"
        raise BadInput(f"{path}, {where} (case {case + 1}, Step {step + 1}), 'answer': {more}")
    return key.readers[form], labels


def _find(cells: Mapping[str, str], column: str, known: Mapping[str, int], where: str) -> int:
    name = " ".join(cells[column].split())
    if name not in known:
        first, *_, last = *known, *known
        raise BadInput(f"{where}, {column!r}: {name[:_NUM_SHOWN]!r} is not one of {first} to {last}")
    return known[name]


def _read_answer(answer: str, step: Step, where: str) -> int:
    """Return the label of an answer; `NOT_ANNOTATED` for an empty one."""
    try:
        return step.read_answer(answer)
    except BadInput:
        known = ", ".join(step.lettered_options)
        raise BadInput(f"{where}, 'answer': {answer[:_NUM_SHOWN]!r} is not one of {known}") from None
