"""Which column of a hospital's table holds what."""

import dataclasses
import logging
from collections.abc import Sequence
from pathlib import Path

from stepcot_jax.chain import Chain
from stepcot_jax.data.sources.delimited import fold_column
from stepcot_jax.host.errors import BadInput

IMAGE_COLUMNS = ("image", "image path")
PATIENT_COLUMN = "patient id"
TEXT_COLUMNS = (PATIENT_COLUMN, "report", "origin", "sex", "age", "view")
LABEL_COLUMN = "label"

_LOG = logging.getLogger(__name__)
_NUM_SHOWN = 40


@dataclasses.dataclass(frozen=True)
class Columns:
    """Place of each column in a row, from 0.

    Attributes:
      image: the image's path.
      texts: those of `TEXT_COLUMNS` that there are.
      steps: the answers of each step of the chain; None where there is no column of it.
      num_columns: cells of a row.
    """

    image: int
    texts: dict[str, int]
    steps: tuple[int | None, ...]
    num_columns: int


def known_columns(chain: Chain) -> set[str]:
    """Folded names of all columns that are read."""
    return {*IMAGE_COLUMNS, *TEXT_COLUMNS, LABEL_COLUMN, *(fold_column(step.name) for step in chain.steps)}


def find_columns(header: Sequence[str], *, chain: Chain, path: Path) -> Columns:
    """Finds the columns by their names; names that mean nothing here are told in a warning.

    Raises:
      BadInput: there is no image column, no column with answers, or one twice.
    """
    while header and not header[-1]:  # spreadsheets save empty columns at the end
        header = header[:-1]
    folded = [fold_column(name) for name in header]
    known = known_columns(chain)
    shown: object = [name[:_NUM_SHOWN] for name in header[:30]]
    step_names = [fold_column(step.name) for step in chain.steps]
    # A table without a header has patients where the names should be: these are not repeated.
    shown = shown if known.intersection(folded) else f"{len(header)} columns, none of them known"
    accepted = (
        f"accepted are image, one or more of {', '.join(step.name for step in chain.steps)} (or label for the last), "
        "and patient_id, report, origin, sex, age, view"
    )
    repeated = sorted({name for name in folded if name in known and folded.count(name) > 1})
    if repeated:
        raise BadInput(f"{path}: found column {repeated[0]!r} more than once in {shown}; {accepted}")
    places = {name: place for place, name in enumerate(folded) if name in known}
    images = [places[name] for name in IMAGE_COLUMNS if name in places]
    if len(images) != 1:
        raise BadInput(f"{path}: found {len(images) or 'no'} image columns in {shown}; {accepted}")
    steps = [places.get(name) for name in step_names]
    label = None if LABEL_COLUMN in step_names else places.get(LABEL_COLUMN)
    if label is not None and steps[-1] is not None:
        raise BadInput(f"{path}: found the columns label and {chain.steps[-1].name}, accepted is one of them")
    steps[-1] = label if steps[-1] is None else steps[-1]
    if all(place is None for place in steps):
        raise BadInput(f"{path}: found no column with answers in {shown}; {accepted}")
    unknown = [name[:_NUM_SHOWN] for name, key in zip(header, folded, strict=True) if key not in known]
    if any(unknown):
        _LOG.warning("%s: columns that are not read: %s; %s", path, ", ".join(map(repr, unknown[:20])), accepted)
    texts = {name: places[name] for name in TEXT_COLUMNS if name in places}
    return Columns(images[0], texts, tuple(steps), len(header))
