"""The cells that say which patient, split and image a case is of: one reading for every layout."""

import re
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import PurePosixPath

import numpy as np

from stepcot_jax.data.record_table import RecordTable
from stepcot_jax.host.errors import BadInput
from stepcot_jax.record import Split

_MISSING = frozenset(
    (
        *("nan", "-nan", "none", "null", "(null)", "nil", "na", "n/a", "n.a.", "nat", "<na>", "missing", "unknown"),
        *("undefined", "#n/a", "#n/a n/a", "#na", "#null!", "#value!", "#ref!", "#name?", "#num!", "#div/0!"),
        *("1.#qnan", "-1.#qnan", "1.#ind", "-1.#ind", "\\n", "-", "--", "?"),
    )
)
_SHORTENED = re.compile(r"[0-9]+(?:[.,][0-9]+E[+-]|E\+)[0-9]+", re.IGNORECASE)
_ZERO_DECIMALS = re.compile(r"^([0-9]+)[.,]0+\Z")
_BLANK_INSIDE = re.compile(r"(?<![0-9]) | (?![0-9])")  # between two digits a blank separates two numbers
_FOLDED = re.compile(r"[1-9][0-9]*|[a-z][a-z0-9_-]*")  # most identifiers: nothing is taken away
PLAIN_PATH = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*(?:/[A-Za-z0-9_-][A-Za-z0-9_.-]*)*")
"""Nearly every image path: already normal, and without a part that begins with a dot it cannot leave the root."""

_SPLITS: dict[str, Split] = {
    "train": "train",
    **dict.fromkeys(("val", "valid", "validate", "validation", "dev"), "val"),
    "test": "test",
}


def _normalise_characters(text: str) -> str:
    if text.isascii():
        return text
    # Format characters, such as a byte order mark or a joiner, are invisible.
    kept = (letter for letter in unicodedata.normalize("NFKC", text) if unicodedata.category(letter) != "Cf")
    return "".join(str(unicodedata.decimal(letter)) if letter.isdecimal() else letter for letter in kept)


_FOLDS: dict[str, Callable[[str], str]] = {
    "Unicode form": _normalise_characters,
    "blanks": lambda text: _BLANK_INSIDE.sub("", " ".join(text.split())),
    "letter case": str.casefold,
    "'.0' at the end": lambda text: _ZERO_DECIMALS.sub(r"\1", text),
    "leading zeros": lambda text: text.lstrip("0") or "0" if text.isascii() and text.isdigit() else text,
}
"""What two spellings of one patient may differ in, in the order in which it is taken away."""


def fold_patient(patient: str) -> str:
    """Return what all spellings of a patient share.

    >>> fold_patient("000001"), fold_patient("1.0"), fold_patient(" p-01 "), fold_patient("P-1")
    ('1', '1', 'p-01', 'p-1')
    """
    if _FOLDED.fullmatch(patient):
        return patient
    for fold in _FOLDS.values():
        patient = fold(patient)
    return patient


def read_patient(written: str) -> str:
    """Return a patient's identifier as written, "" for a word that means none; refuse a shortened number."""
    plain = _normalise_characters(written).strip()
    if _SHORTENED.fullmatch(plain):
        raise BadInput(
            "patient_id: is a number that a spreadsheet shortened (as 1.2E+15 is); expected all its characters: save "
            "the table again with the column formatted as text"
        )
    return "" if plain.casefold() in _MISSING else written


def read_split(written: str) -> Split:
    """Return the split that a cell names."""
    if written.strip().casefold() not in _SPLITS:
        raise BadInput(f"split: {written[:40]!r} is not one of {', '.join(_SPLITS)}")
    return _SPLITS[written.strip().casefold()]


def normalise_image_path(image_path: str) -> str:
    r"""Return an image path with "/" as separator and without "." parts."""
    if PLAIN_PATH.fullmatch(image_path):
        return image_path
    return str(PurePosixPath(image_path.replace("\\", "/")))


def join_spellings(patients: Sequence[str]) -> tuple[dict[str, str], str]:
    """Return the first spelling of each patient for the others, and a sentence on them, "" without any."""
    if all(fold_patient(patient) == patient for patient in patients):
        return {}, ""
    hashes = np.fromiter((hash(fold_patient(patient)) for patient in patients), np.int64, len(patients))
    _, firsts, which = np.unique(hashes, return_index=True, return_inverse=True)
    kept = {}
    for index in np.flatnonzero(firsts[which] != np.arange(len(hashes))).tolist():
        patient, other = patients[index], patients[int(firsts[which[index]])]
        if patient != other and fold_patient(patient) == fold_patient(other):
            kept[patient] = other
    number = len(set(kept.values()))
    who = "1 patient is" if number == 1 else f"{number} patients are"
    kinds = {kind for pair in kept.items() for kind in _compare(*pair)}
    what = ", ".join(kind for kind in _FOLDS if kind in kinds)
    return kept, f"{who} written in several ways that differ only in {what}: each counts as one" if kept else ""


def _compare(one: str, other: str) -> set[str]:
    """Return what two spellings differ in."""
    kinds = set()
    for kind, fold in _FOLDS.items():
        before, (one, other) = (one, other), (fold(one), fold(other))
        if before[0] != before[1] and (one == other or (one == before[0]) != (other == before[1])):
            kinds.add(kind)
    return kinds


def join_patients_of(table: RecordTable) -> tuple[RecordTable, str]:
    """Return a table in which a patient has one spelling, the same table if it is so, and the sentence on it."""
    if table.has_one_spelling:
        return table, ""
    kept, sentence = join_spellings(table.patient_ids)
    joined = table.with_patients(kept) if kept else table
    joined.has_one_spelling = True
    return joined, sentence
