"""Which case each row of imported features belongs to."""

import collections
import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path

from stepcot_jax.data.records.cases import Case
from stepcot_jax.data.records.record_reader import normalise_image_path
from stepcot_jax.features.arrays import MAX_TEXT_BYTES
from stepcot_jax.host.errors import BadInput

ID_COLUMNS = ("image_path", "patient_id", "id", "ids")

_NUM_LISTED = 20
_NUM_SHOWN = 80


def read_ids(path: Path) -> list[str]:
    """The ids of a file, in order.

    Args:
      path: .txt with an id a line, .csv with a header and one of `ID_COLUMNS`, or .json with a list of ids.

    Raises:
      BadInput: the file cannot be read as what its name says.
    """
    accepted = f"accepted is .txt (an id a line), .csv (column {' or '.join(ID_COLUMNS)}) or .json (a list of ids)"
    try:
        if path.stat().st_size > MAX_TEXT_BYTES:
            raise BadInput(f"{path}: found {path.stat().st_size} bytes, accepted are at most {MAX_TEXT_BYTES}")
        text = path.read_text(encoding="utf-8-sig")
        if path.suffix.lower() == ".json":
            found = json.loads(text)
            if not isinstance(found, list) or not all(type(value) in (str, int) for value in found):
                raise ValueError("not a list of texts or whole numbers")
            return [str(value) for value in found]
        if path.suffix.lower() == ".csv":
            return _read_column(text)
        if path.suffix.lower() == ".txt":
            return text.splitlines()
    except BadInput:
        raise
    except (OSError, ValueError, RecursionError, csv.Error) as error:
        raise BadInput(f"{path}: cannot be read ({str(error)[:200]}), {accepted}") from error
    raise BadInput(f"{path}: found a file ending in {path.suffix!r}, {accepted}")


def _read_column(text: str) -> list[str]:
    rows = csv.DictReader(io.StringIO(text, newline=""))
    column = next((name for name in ID_COLUMNS if name in (rows.fieldnames or ())), None)
    if column is None:
        raise ValueError(f"its columns are {list(rows.fieldnames or ())[:_NUM_LISTED]}")
    return [row[column] or "" for row in rows]


def match_ids(ids: Sequence[str], cases: Sequence[Case], *, where: str) -> list[str]:
    """The image path of the case that each id means, every case exactly once.

    Args:
      ids: image paths, or patient ids where a patient has one image.
      cases: the cases of the data set.
      where: the file, for messages.

    Raises:
      BadInput: an id is unknown, means several images, comes twice, or a case has none.
    """
    paths = {case.image_path for case in cases}
    by_patient: dict[str, list[str]] = {}
    for case in cases:
        by_patient.setdefault(case.patient_id, []).append(case.image_path)
    matched, unknown = [], []
    for given in ids:
        path = normalise_image_path(given) if given else ""
        if path in paths:
            matched.append(path)
        elif len(by_patient.get(given, ())) == 1:
            matched.append(by_patient[given][0])
        elif given in by_patient:
            raise BadInput(
                f"{where}: found patient {given[:_NUM_SHOWN]!r}, who has {len(by_patient[given])} images, accepted is "
                f"an image path, such as {by_patient[given][0]!r}"
            )
        else:
            unknown.append(given)
    if unknown:
        raise BadInput(
            f"{where}: found {len(unknown)} ids that are no case of the data: {_list(unknown)}; accepted are image "
            f"paths, such as {cases[0].image_path!r}, or ids of patients with one image"
        )
    repeated = [path for path, count in collections.Counter(matched).items() if count > 1]
    if repeated:
        raise BadInput(f"{where}: found {len(repeated)} cases twice or more: {_list(repeated)}; accepted is each once")
    given_paths = set(matched)
    missing = [case.image_path for case in cases if case.image_path not in given_paths]
    if missing:
        raise BadInput(
            f"{where}: {len(missing)} of {len(cases)} cases are missing: {_list(missing)}; accepted is a row for each"
        )
    return matched


def _list(texts: Sequence[str]) -> str:
    """The first of many texts."""
    shown = ", ".join(repr(text[:_NUM_SHOWN]) for text in texts[:_NUM_LISTED])
    return shown + (f" and {len(texts) - _NUM_LISTED} more" if len(texts) > _NUM_LISTED else "")
