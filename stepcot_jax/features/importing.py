"""Import features made by any other program into a feature store."""

import collections
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from stepcot_jax.data.records.cases import Case
from stepcot_jax.data.records.record_reader import normalise_image_path
from stepcot_jax.features import arrays
from stepcot_jax.features.keys import digest_fields, digest_file
from stepcot_jax.features.spec import DESCRIPTION_FILE, Kind, StoreSpec
from stepcot_jax.features.store import FeatureStore
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.text import list_texts

_IMAGES, _PROMPTS = "images", "prompts"
_MOST_FURTHER_ROWS = 10_000
_NUM_LISTED = 20
_NUM_SHOWN = 80


class ImportCounts(NamedTuple):
    """Numbers of image and prompt features of an imported file, and the width of an image feature."""

    images: int
    prompts: int
    width: int


def import_features(path: Path, ids: Path | None, cases: Sequence[Case], folder: Path) -> ImportCounts:
    """Import features into a store; nothing is written before all of them are checked.

    Args:
      path: an .npz with `features` [case, width], `ids` [case] unless `ids` names a file, and optionally
        `prompt_features` [step, width]; or an .npy [case, width].
      folder: for the stores; a folder holds the features of one file, and importing it again is harmless.
    """
    path = Path(path)
    if not cases:
        raise BadInput(f"{path}: the data have no cases")
    features, texts, prompts = _open_parts(path, ids, most=2 * len(cases) + _MOST_FURTHER_ROWS)
    where, num_rows = str(ids) if ids is not None else f"{path}: ids", features.shape[0]
    if len(texts) != num_rows:
        raise BadInput(f"{where}: {len(texts)} ids for {num_rows} rows of features in {path} (expected one id per row)")
    image_paths = _match_ids(texts, cases, where=where)
    _check_finite(features, image_paths)
    num_steps = len(cases[0].labels)
    if prompts is not None:
        arrays.check_features(prompts)
        if prompts.shape[0] != num_steps:
            raise BadInput(
                f"{prompts.where}: {prompts.shape[0]} rows for {num_steps} steps (expected one row per step)"
            )
        _check_finite(prompts, [f"step {step + 1}" for step in range(num_steps)])
    digests = {"features": digest_file(path), "ids": "" if ids is None else digest_file(ids)}
    source = digest_fields("imported", **digests).hex()
    keys = _image_keys(source, image_paths)
    _write(features, keys, folder / _IMAGES, kind="imported images", source=source)
    if prompts is not None:
        _write(prompts, _prompt_keys(source, num_steps), folder / _PROMPTS, kind="imported prompts", source=source)
    return ImportCounts(images=len(keys), prompts=0 if prompts is None else num_steps, width=features.shape[1])


def open_imported_images(folder: Path, cases: Sequence[Case]) -> tuple[FeatureStore, list[bytes]]:
    """Return the store of imported image features and the key of each case, for `store.open_features`."""
    store = _open_store(folder / _IMAGES, "imported images")
    return store, _image_keys(store.spec.digest, [case.image_path for case in cases])


def open_imported_prompts(folder: Path, *, num_steps: int) -> tuple[FeatureStore, list[bytes]] | None:
    """Return the store of imported prompt features and the key of each step, or None without imported prompts."""
    if not (folder / _PROMPTS / DESCRIPTION_FILE).exists():
        return None
    store = _open_store(folder / _PROMPTS, "imported prompts")
    return store, _prompt_keys(store.spec.digest, num_steps)


def _image_keys(source: str, image_paths: Sequence[str]) -> list[bytes]:
    return [digest_fields("imported image", source=source, image_path=image_path) for image_path in image_paths]


def _prompt_keys(source: str, num_steps: int) -> list[bytes]:
    return [digest_fields("imported prompt", source=source, step=step) for step in range(num_steps)]


def _open_store(folder: Path, kind: Kind) -> FeatureStore:
    store = FeatureStore(folder)
    if store.spec.kind != kind:
        raise BadInput(f"{folder}: the store is of kind {store.spec.kind!r}; expected {kind!r}")
    return store


def _open_parts(
    path: Path, ids: Path | None, *, most: int
) -> tuple[arrays.ArrayFile, list[str], arrays.ArrayFile | None]:
    """Return the features, the ids, and the prompt features if any."""
    suffix = path.suffix.lower()
    if suffix not in (".npy", ".npz"):
        raise BadInput(f"{path}: suffix {path.suffix!r} is not .npy or .npz")
    if suffix == ".npy":
        if ids is None:
            raise BadInput(f"{path}: --ids is required with an .npy file (a file of ids)")
        features = arrays.open_array(path)
        return features, arrays.read_ids(ids, most=_count_rows(features, most)), None
    names = arrays.list_arrays(path)
    needed = ["features"] if ids is not None else ["features", "ids"]
    if any(names.count(name) != 1 for name in needed):
        raise BadInput(f"{path}: the arrays are {list_texts(names)}; expected {' and '.join(needed)}, each once")
    features = arrays.open_array(path, "features")
    num_rows = _count_rows(features, most)
    if ids is not None:
        texts = arrays.read_ids(ids, most=num_rows)
    else:
        texts = arrays.read_texts(arrays.open_array(path, "ids"), most=num_rows)
    prompts = arrays.open_array(path, "prompt_features") if "prompt_features" in names else None
    return features, texts, prompts


def _count_rows(features: arrays.ArrayFile, most: int) -> int:
    """Return the number of ids that the features need; far more rows than cases are refused before ids are read."""
    arrays.check_features(features)
    if features.shape[0] > most:
        raise BadInput(f"{features.where}: {features.shape[0]} rows; expected one for each case, at most {most}")
    return features.shape[0]


def _check_finite(features: arrays.ArrayFile, names: Sequence[str]) -> None:
    """Refuse features with values that are not finite, naming the first rows."""
    bad = [
        start + int(row)
        for start, rows in arrays.read_features(features)
        for row in np.flatnonzero(~np.isfinite(rows).all(axis=1))
    ]
    if bad:
        shown = ", ".join(f"{row} ({names[row][:80]})" for row in bad[:_NUM_LISTED])
        raise BadInput(f"{features.where}: {len(bad)} rows have values that are not finite in float32: {shown}")


def _write(features: arrays.ArrayFile, keys: Sequence[bytes], folder: Path, *, kind: Kind, source: str) -> None:
    """Write the rows that are not in the store yet."""
    spec = StoreSpec(kind=kind, encoder=features.path.name, digest=source, width=features.shape[1])
    store = FeatureStore(folder, spec)
    for start, rows in arrays.read_features(features, max_rows=4096):
        wanted = [row for row in range(len(rows)) if keys[start + row] not in store]
        if wanted:
            store.write([keys[start + row] for row in wanted], rows[wanted])


def _match_ids(ids: Sequence[str], cases: Sequence[Case], *, where: str) -> list[str]:
    """Return the image path that each id refers to; every case must occur exactly once."""
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
                f"{where}: patient {given[:_NUM_SHOWN]!r} has {len(by_patient[given])} images; expected an image path, "
                f"such as {by_patient[given][0]!r}"
            )
        else:
            unknown.append(given)
    if unknown:
        raise BadInput(
            f"{where}: {len(unknown)} ids match no case: {_list(unknown)}; expected image paths, such as "
            f"{cases[0].image_path!r}, or ids of patients with one image"
        )
    repeated = [path for path, count in collections.Counter(matched).items() if count > 1]
    if repeated:
        raise BadInput(f"{where}: {len(repeated)} cases occur more than once: {_list(repeated)}")
    given_paths = set(matched)
    missing = [case.image_path for case in cases if case.image_path not in given_paths]
    if missing:
        raise BadInput(f"{where}: {len(missing)} of {len(cases)} cases are missing: {_list(missing)}")
    return matched


def _list(texts: Sequence[str]) -> str:
    """Return the first of many strings, for a message."""
    shown = ", ".join(repr(text[:_NUM_SHOWN]) for text in texts[:_NUM_LISTED])
    return shown + (f" and {len(texts) - _NUM_LISTED} more" if len(texts) > _NUM_LISTED else "")
