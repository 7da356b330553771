"""Import features made by any other program: one folder with the rows of images and prompts, which runs read."""

import collections
import contextlib
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from stepcot_jax.data.delimited import fold_column, read_table
from stepcot_jax.data.identities import fold_patient, normalise_image_path
from stepcot_jax.features.store import digest_fields, digest_file
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import MAX_LISTING_BYTES, read_file, read_json, sync_folder, writing_whole
from stepcot_jax.host.own_folder import load, save
from stepcot_jax.host.text import list_texts, one_line
from stepcot_jax.host.untrusted import require_file
from stepcot_jax.record import Record

ID_COLUMNS = ("image_path", "patient_id", "id", "ids")
IMPORTED, IMAGES, PROMPTS = "imported.json", "images.npy", "prompts.npy"
_IDS = f".txt (one id per line), .csv (column {' or '.join(ID_COLUMNS)}) or .json (a list of ids)"
_ARRAYS = "numbers and texts that numpy.save or numpy.savez wrote, without pickled objects"
_MOST_ID_BYTES = 2**28


class _Imported(msgspec.Struct, frozen=True):
    source: str  # digest of the files that the features come from
    paths: tuple[str, ...]  # image path of each row


class ImportCounts(NamedTuple):
    """Numbers of image and prompt features of an imported file, and the width of an image feature."""

    images: int
    prompts: int
    width: int


def import_features(path: Path, ids: Path | None, cases: Sequence[Record], folder: Path) -> ImportCounts:
    """Import features into a folder; nothing is written before all of them are checked."""
    if not cases:
        raise BadInput(f"{path}: the data have no cases")
    with _reading(path):
        require_file(path, accepted="an .npy or .npz")
        loaded: Any = np.load(path, mmap_mode="r", allow_pickle=False)
    arrays = {"features": loaded} if isinstance(loaded, np.ndarray) else loaded
    features = _take_rows(arrays, "features", path)
    texts = _take_ids(arrays, path) if ids is None else _read_ids(ids)
    where = str(ids) if ids is not None else f"{path}: ids"
    if len(texts) != len(features):
        raise BadInput(f"{where}: {len(texts)} ids for {len(features)} rows of features (expected one id per row)")
    paths = _match_ids(texts, cases, where=where)
    _check_finite(features, paths, where=f"{path}: features")
    prompts, num_steps = None, len(cases[0].answers)
    if "prompt_features" in arrays:
        prompts = _take_rows(arrays, "prompt_features", path)
        if len(prompts) != num_steps:
            raise BadInput(
                f"{path}: prompt_features: {len(prompts)} rows for {num_steps} steps (expected one per step)"
            )
        _check_finite(prompts, [f"step {step + 1}" for step in range(num_steps)], where=f"{path}: prompt_features")
    digests = {"features": digest_file(path), "ids": "" if ids is None else digest_file(ids)}
    _write(folder, _Imported(digest_fields("imported", **digests).hex(), tuple(paths)), features, prompts)
    return ImportCounts(len(features), 0 if prompts is None else num_steps, features.shape[1])


def read_imported_images(folder: Path, cases: Sequence[Record]) -> np.ndarray:
    """Return the imported feature of each case, float32 [case, width]."""
    if not (folder / IMPORTED).exists():
        command = f"stepcot features import FEATURES.npz --root=DATA --store={folder}"
        raise BadInput(f"{folder}: holds no imported features; `{command}` makes them (docs/encoders.md)")
    row_of = {path: row for row, path in enumerate(_read_imported(folder).paths)}
    if missing := [case.image for case in cases if case.image not in row_of]:
        raise BadInput(f"{folder}: {len(missing)} of {len(cases)} cases have no feature: {list_texts(missing)}")
    return np.load(folder / IMAGES, mmap_mode="r")[[row_of[case.image] for case in cases]]


def read_imported_prompts(folder: Path) -> np.ndarray | None:
    """Return the imported prompt features, float32 [step, width]; None without any."""
    return np.load(folder / PROMPTS) if (folder / PROMPTS).exists() else None


def _read_imported(folder: Path) -> _Imported:
    return load(folder / IMPORTED, _Imported, max_bytes=MAX_LISTING_BYTES)


def _write(folder: Path, imported: _Imported, features: np.ndarray, prompts: np.ndarray | None) -> None:
    """Write the arrays, and last the file that marks them as complete."""
    if (folder / IMPORTED).exists():
        if _read_imported(folder) != imported:
            raise BadInput(f"{folder}: holds features of another file, or of other cases (use another folder)")
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, rows in ((IMAGES, features), (PROMPTS, prompts)):
            if rows is not None:
                with writing_whole(folder / name) as file:
                    np.save(file, rows)
        save(folder / IMPORTED, imported)
        sync_folder(folder)
    except OSError as error:
        raise BadInput(f"{folder}: features cannot be written ({error.strerror})") from error


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Name the file of an error of NumPy, whose own words say how to run a pickle."""
    try:
        yield
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(f"{path}: cannot be read; expected {_ARRAYS}") from None


def _take(arrays: Mapping[str, np.ndarray], name: str, path: Path, what: str, *, ndim: int, kinds: str) -> np.ndarray:
    if name not in arrays:
        raise BadInput(f"{path}: the arrays are {list_texts(list(arrays))}; {name} is missing")
    with _reading(path):
        array = arrays[name]
    if array.ndim != ndim or array.dtype.kind not in kinds or 0 in array.shape[1:]:
        raise BadInput(f"{path}: {name}: expected {what}; got {array.dtype} with shape {array.shape}")
    return array


def _take_rows(arrays: Mapping[str, np.ndarray], name: str, path: Path) -> np.ndarray:
    rows = _take(arrays, name, path, "floating-point numbers [case, width]", ndim=2, kinds="f")
    with np.errstate(over="ignore"):  # values beyond float32 become infinite and are refused
        return rows.astype(np.float32)


def _take_ids(arrays: Mapping[str, np.ndarray], path: Path) -> list[str]:
    array = _take(arrays, "ids", path, "a one-dimensional array of strings or whole numbers", ndim=1, kinds="USiu")
    return [value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value) for value in array.tolist()]


def _read_ids(path: Path) -> list[str]:
    """Return the ids of a file, in order."""
    suffix = path.suffix.lower()
    if suffix == ".json":
        accepted = f"expected {_IDS}"
        return list(map(str, read_json(path, list[str | int], accepted=accepted, max_bytes=_MOST_ID_BYTES)))
    if suffix == ".csv":
        header, rows = read_table(path, known_columns=set(map(fold_column, ID_COLUMNS)))
        column = next((header.index(name) for name in ID_COLUMNS if name in header), len(header))
        if column == len(header):
            raise BadInput(f"{path}: the columns are {list_texts(header)}; expected {_IDS}")
        return [(*row.cells, *[""] * len(header))[column] for row in rows]
    if suffix != ".txt":
        raise BadInput(f"{path}: suffix {path.suffix!r} is not one of {_IDS}")
    try:
        return read_file(path, max_bytes=_MOST_ID_BYTES, accepted="a file of ids").decode("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: cannot be read ({one_line(error)}); expected {_IDS}") from None


def _check_finite(features: np.ndarray, names: Sequence[str], *, where: str) -> None:
    """Refuse features with values that are not finite, naming the first rows."""
    bad = np.flatnonzero(~np.isfinite(features).all(axis=1))
    if len(bad):
        shown = list_texts([f"{row} ({names[row]})" for row in bad.tolist()])
        raise BadInput(f"{where}: {len(bad)} rows have values that are not finite in float32: {shown}")


def _match_ids(ids: Sequence[str], cases: Sequence[Record], *, where: str) -> list[str]:
    """Return the image path that each id refers to; every case must occur exactly once."""
    paths = {case.image for case in cases}
    by_patient: dict[str, list[str]] = {}
    for case in cases:
        by_patient.setdefault(fold_patient(case.patient), []).append(case.image)
    matched, unknown = [], []
    for identifier in ids:
        path = normalise_image_path(identifier) if identifier else ""
        if path in paths:
            matched.append(path)
        elif len(images := by_patient.get(fold_patient(identifier), [])) == 1:
            matched.append(images[0])
        elif images:
            raise BadInput(
                f"{where}: patient {identifier[:80]!r} has {len(images)} images; expected an image path, such "
                f"as {images[0]!r}"
            )
        else:
            unknown.append(identifier)
    if unknown:
        raise BadInput(
            f"{where}: {len(unknown)} ids match no case: {list_texts(unknown)}; expected image paths, such as "
            f"{cases[0].image!r}, or ids of patients with one image"
        )
    repeated = [path for path, count in collections.Counter(matched).items() if count > 1]
    if repeated:
        raise BadInput(f"{where}: {len(repeated)} cases occur more than once: {list_texts(repeated)}")
    matched_paths = set(matched)
    missing = [case.image for case in cases if case.image not in matched_paths]
    if missing:
        raise BadInput(f"{where}: {len(missing)} of {len(cases)} cases are missing: {list_texts(missing)}")
    return matched
