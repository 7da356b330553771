"""The columns of a hospital's table `cases.csv`, and the chain in a `chain.json` beside it."""

import dataclasses
import logging
from collections.abc import Sequence
from pathlib import Path

import msgspec

from stepcot_jax.chain import Chain, Step, read_options
from stepcot_jax.data.sources.delimited import fold_column
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import read_file

TABLE_NAME = "cases.csv"
CHAIN_NAME = "chain.json"

IMAGE_COLUMNS = ("image", "image path")
PATIENT_COLUMN = "patient id"
TEXT_COLUMNS = (PATIENT_COLUMN, "report", "origin", "sex", "age", "view")
LABEL_COLUMN = "label"

_LOG = logging.getLogger(__name__)
_NUM_SHOWN = 40
_MAX_CHAIN_BYTES = 1_000_000
_EXPECTED_CHAIN = 'expected a JSON array of {"name": ..., "question": ..., "options": [...]} in UTF-8'


@dataclasses.dataclass(frozen=True)
class Columns:
    """Place of each column in a row, from 0.

    Attributes:
      image: the image's path.
      texts: those of `TEXT_COLUMNS` that the table has.
      steps: the answers of each step of the chain; None without a column.
      num_columns: cells of a row.
    """

    image: int
    texts: dict[str, int]
    steps: tuple[int | None, ...]
    num_columns: int


def known_columns(chain: Chain) -> set[str]:
    """Return the folded names of all columns that are read."""
    return {*IMAGE_COLUMNS, *TEXT_COLUMNS, LABEL_COLUMN, *(fold_column(step.name) for step in chain.steps)}


def find_columns(header: Sequence[str], *, chain: Chain, path: Path) -> Columns:
    """Find the columns by their names; a warning lists unknown names.

    Raises:
      BadInput: the image column or every column with answers is missing, or one occurs twice.
    """
    while header and not header[-1]:  # spreadsheets save empty columns at the end
        header = header[:-1]
    folded = [fold_column(name) for name in header]
    known = known_columns(chain)
    # A table without a header has patients where the names should be: messages must not repeat these.
    shown: object = f"{len(header)} unknown columns"
    if known.intersection(folded):
        shown = [name[:_NUM_SHOWN] for name in header[:30]]
    expected = (
        f"expected image, one or more of {', '.join(step.name for step in chain.steps)} (or label for the last), "
        "and optionally patient_id, report, origin, sex, age, view"
    )
    repeated = sorted({name for name in folded if name in known and folded.count(name) > 1})
    if repeated:
        raise BadInput(f"{path}: column {repeated[0]!r} occurs more than once in {shown}; {expected}")
    places = {name: place for place, name in enumerate(folded) if name in known}
    images = [places[name] for name in IMAGE_COLUMNS if name in places]
    if len(images) != 1:
        raise BadInput(f"{path}: {len(images) or 'no'} image columns in {shown}; {expected}")
    step_names = [fold_column(step.name) for step in chain.steps]
    steps = [places.get(name) for name in step_names]
    label = None if LABEL_COLUMN in step_names else places.get(LABEL_COLUMN)
    if label is not None and steps[-1] is not None:
        raise BadInput(f"{path}: columns label and {chain.steps[-1].name} exclude each other")
    steps[-1] = label if steps[-1] is None else steps[-1]
    if all(place is None for place in steps):
        raise BadInput(f"{path}: no column with answers in {shown}; {expected}")
    unknown = [name[:_NUM_SHOWN] for name, key in zip(header, folded, strict=True) if key not in known]
    if any(unknown):
        _LOG.warning("%s: ignored columns: %s; %s", path, ", ".join(map(repr, unknown[:20])), expected)
    texts = {name: places[name] for name in TEXT_COLUMNS if name in places}
    return Columns(images[0], texts, tuple(steps), len(header))


class _FileStep(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    question: str
    options: tuple[str, ...]


def read_chain(path: str | Path) -> Chain:
    """Read a `chain.json`: a list of steps with name, question and options.

    Options come with or without letters; "N/A" moves to the end.

    Raises:
      BadInput: the file is not such a list, a step's options cannot be used, or a step's name is taken by another
        step or column.
    """
    try:
        path = Path(path)
        content = read_file(path, max_bytes=_MAX_CHAIN_BYTES, accepted="a JSON file")
        entries = msgspec.json.decode(content.removeprefix(b"\xef\xbb\xbf"), type=list[_FileStep])
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror}); {_EXPECTED_CHAIN}") from error
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: {error}; {_EXPECTED_CHAIN}") from error
    try:
        chain = Chain(tuple(Step(entry.name, entry.question, read_options(entry.options)) for entry in entries))
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from error
    names = [fold_column(step.name) for step in chain.steps]
    if len(set(names)) != len(names) or "" in names or not {*IMAGE_COLUMNS, *TEXT_COLUMNS}.isdisjoint(names):
        shown = [step.name[:80] for step in chain.steps]
        raise BadInput(f"{path}: step names {shown} must be distinct and differ from the other columns' names")
    return chain
