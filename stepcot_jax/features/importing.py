"""Import features made by any other program into a feature store."""

import collections
import csv
import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from stepcot_jax.data.identities import fold_patient, normalise_image_path
from stepcot_jax.features.store import DESCRIPTION_FILE, FeatureStore, StoreSpec, digest_fields, digest_file
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import read_file
from stepcot_jax.host.text import list_texts, one_line
from stepcot_jax.host.untrusted import require_file
from stepcot_jax.record import Record

ID_COLUMNS = ("image_path", "patient_id", "id", "ids")
_IDS = f".txt (one id per line), .csv (column {' or '.join(ID_COLUMNS)}) or .json (a list of ids)"
_MOST_ID_BYTES = 2**28
_BLOCK = 4096


def _load(path: Path) -> Mapping[str, np.ndarray]:
    """Return the arrays of an .npz, read as they are asked for, or that of an .npy as "features"; no pickle."""
    if path.suffix.lower() not in (".npy", ".npz"):
        raise BadInput(f"{path}: suffix {path.suffix!r} is not .npy or .npz")
    try:
        require_file(path, accepted="an .npy or .npz")
        loaded: Any = np.load(path, mmap_mode="r", allow_pickle=False)
    except BadInput:
        raise
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, EOFError, zipfile.BadZipFile):  # NumPy takes other bytes for a pickle, and says how to run it
        raise BadInput(f"{path}: cannot be read; expected numbers that numpy.save or numpy.savez wrote") from None
    return {"features": loaded} if isinstance(loaded, np.ndarray) else loaded


def _take(arrays: Mapping[str, np.ndarray], name: str, path: Path, *, ndim: int, kinds: str, what: str) -> np.ndarray:
    try:
        array = arrays[name]
    except KeyError:
        raise BadInput(f"{path}: the arrays are {list_texts(list(arrays))}; {name} is missing") from None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise BadInput(f"{path}: {name}: cannot be read ({one_line(error)})") from None
    if array.ndim != ndim or array.dtype.kind not in kinds or 0 in array.shape[1:]:
        raise BadInput(f"{path}: {name}: expected {what}; got {array.dtype} with shape {array.shape}")
    return array


_ROWS: Any = {"ndim": 2, "kinds": "f", "what": "floating-point numbers [case, width]"}
_NAMES: Any = {"ndim": 1, "kinds": "USiu", "what": "a one-dimensional array of strings or whole numbers"}


def _read_ids(path: Path) -> list[str]:
    """Return the ids of a file, in order."""
    try:
        text = read_file(path, max_bytes=_MOST_ID_BYTES, accepted="a file of ids").decode("utf-8-sig")
        if path.suffix.lower() == ".txt":
            return text.splitlines()
        if path.suffix.lower() == ".json":
            return list(map(str, json.loads(text)))
        if path.suffix.lower() == ".csv":
            table = csv.DictReader(text.splitlines())
            column = next((name for name in ID_COLUMNS if name in (table.fieldnames or ())), None)
            if column is None:
                raise BadInput(f"{path}: the columns are {list_texts(table.fieldnames or ())}; expected {_IDS}")
            return [row[column] or "" for row in table]
    except BadInput:
        raise
    except (OSError, ValueError, TypeError, RecursionError, csv.Error) as error:
        raise BadInput(f"{path}: cannot be read ({one_line(error)}); expected {_IDS}") from None
    raise BadInput(f"{path}: suffix {path.suffix!r} is not one of {_IDS}")


_IMAGES, _PROMPTS = "images", "prompts"


class ImportCounts(NamedTuple):
    """Numbers of image and prompt features of an imported file, and the width of an image feature."""

    images: int
    prompts: int
    width: int


def import_features(path: Path, ids: Path | None, cases: Sequence[Record], folder: Path) -> ImportCounts:
    """Import features into a store; nothing is written before all of them are checked."""
    path = Path(path)
    if not cases:
        raise BadInput(f"{path}: the data have no cases")
    arrays = _load(path)
    features = _take(arrays, "features", path, **_ROWS)
    texts = _read_ids(ids) if ids is not None else [*map(_as_text, _take(arrays, "ids", path, **_NAMES).tolist())]
    where = str(ids) if ids is not None else f"{path}: ids"
    if len(texts) != len(features):
        raise BadInput(f"{where}: {len(texts)} ids for {len(features)} rows of features (expected one id per row)")
    image_paths = _match_ids(texts, cases, where=where)
    _check_finite(features, image_paths, where=f"{path}: features")
    num_steps = len(cases[0].answers)
    prompts = _take(arrays, "prompt_features", path, **_ROWS) if "prompt_features" in arrays else None
    if prompts is not None:
        if len(prompts) != num_steps:
            raise BadInput(
                f"{path}: prompt_features: {len(prompts)} rows for {num_steps} steps (expected one per step)"
            )
        names = [f"step {step + 1}" for step in range(num_steps)]
        _check_finite(prompts, names, where=f"{path}: prompt_features")
    digests = {"features": digest_file(path), "ids": "" if ids is None else digest_file(ids)}
    source = digest_fields("imported", **digests).hex()
    keys = _image_keys(source, image_paths)
    _write(features, keys, folder / _IMAGES, StoreSpec("imported images", path.name, source, features.shape[1]))
    if prompts is not None:
        spec = StoreSpec("imported prompts", path.name, source, prompts.shape[1])
        _write(prompts, _prompt_keys(source, num_steps), folder / _PROMPTS, spec)
    return ImportCounts(images=len(keys), prompts=0 if prompts is None else num_steps, width=features.shape[1])


def open_imported_images(folder: Path, cases: Sequence[Record]) -> tuple[FeatureStore, list[bytes]]:
    """Return the store of imported image features and the key of each case, for `store.open_features`."""
    store = _open_store(folder / _IMAGES)
    return store, _image_keys(store.spec.digest, [case.image for case in cases])


def open_imported_prompts(folder: Path, *, num_steps: int) -> tuple[FeatureStore, list[bytes]] | None:
    """Return the store of imported prompt features and the key of each step, or None without imported prompts."""
    if not (folder / _PROMPTS / DESCRIPTION_FILE).exists():
        return None
    store = _open_store(folder / _PROMPTS)
    return store, _prompt_keys(store.spec.digest, num_steps)


def _image_keys(source: str, image_paths: Sequence[str]) -> list[bytes]:
    return [digest_fields("imported image", source=source, image_path=image_path) for image_path in image_paths]


def _prompt_keys(source: str, num_steps: int) -> list[bytes]:
    return [digest_fields("imported prompt", source=source, step=step) for step in range(num_steps)]


def _open_store(folder: Path) -> FeatureStore:
    if not (folder / DESCRIPTION_FILE).exists():
        command = f"stepcot features import FEATURES.npz --root=DATA --store={folder.parent}"
        raise BadInput(f"{folder.parent}: holds no imported features; `{command}` makes them (docs/encoders.md)")
    return FeatureStore(folder)


def _as_text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _float32(rows: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):  # values beyond float32 become infinite and are refused
        return rows.astype(np.float32)


def _check_finite(features: np.ndarray, names: Sequence[str], *, where: str) -> None:
    """Refuse features with values that are not finite, naming the first rows."""
    blocks = range(0, len(features), _BLOCK)
    finite = [np.isfinite(_float32(features[start : start + _BLOCK])).all(axis=1) for start in blocks]
    bad = np.flatnonzero(~np.concatenate([np.ones(0, bool), *finite]))
    if len(bad):
        shown = list_texts([f"{row} ({names[row]})" for row in bad.tolist()])
        raise BadInput(f"{where}: {len(bad)} rows have values that are not finite in float32: {shown}")


def _write(features: np.ndarray, keys: Sequence[bytes], folder: Path, spec: StoreSpec) -> None:
    store = FeatureStore(folder, spec)
    for start in range(0, len(features), _BLOCK):
        wanted = [row for row in range(start, min(start + _BLOCK, len(features))) if keys[row] not in store]
        if wanted:
            store.write([keys[row] for row in wanted], _float32(features[wanted]))


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
