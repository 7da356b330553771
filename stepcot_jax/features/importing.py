"""Features made elsewhere, by any model of any framework, as a feature store."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from stepcot_jax.data.records.cases import Case
from stepcot_jax.features.arrays import (
    ArrayFile,
    check_features,
    list_arrays,
    open_array,
    read_features,
    read_texts,
)
from stepcot_jax.features.ids import match_ids, read_ids
from stepcot_jax.features.keys import digest_fields, digest_file, imported_image_key, imported_prompt_keys
from stepcot_jax.features.spec import DESCRIPTION_FILE, Kind, StoreSpec
from stepcot_jax.features.store import FeatureStore
from stepcot_jax.host.errors import BadInput

_IMAGES, _PROMPTS = "images", "prompts"
_NUM_LISTED = 20


@dataclasses.dataclass(frozen=True)
class ImportCounts:
    """What a file held.

    Attributes:
      images: number of image features.
      prompts: number of prompt features; 0 where the file has none.
      width: of an image feature.
    """

    images: int
    prompts: int
    width: int


def import_features(path: Path, ids: Path | None, cases: Sequence[Case], folder: Path) -> ImportCounts:
    """Take features that were made elsewhere into a store; nothing is written before all of them are checked.

    Args:
      path: an .npz with `features` [case, width], `ids` [case] unless `ids` names a file, and optionally
        `prompt_features` [step, width]; or an .npy [case, width].
      ids: file with the id of each row (see `ids.read_ids`).
      cases: the cases of the data set; each needs exactly one row, in any order.
      folder: where the stores go; a folder takes one file, again if need be.

    Raises:
      BadInput: a file, an id or a value is not acceptable; names it.
    """
    path = Path(path)
    if not cases:
        raise BadInput(f"{path}: found no cases in the data, accepted are features of at least one")
    features, texts, prompts = _open_parts(path, ids)
    check_features(features)
    where = str(ids) if ids is not None else f"{path}: ids"
    if len(texts) != features.shape[0]:
        raise BadInput(
            f"{where}: found {len(texts)} ids, and {features.shape[0]} rows of features in {path}; accepted is an id "
            "a row"
        )
    image_paths = match_ids(texts, cases, where=where)
    _check_finite(features, image_paths)
    num_steps = len(cases[0].labels)
    if prompts is not None:
        check_features(prompts)
        if prompts.shape[0] != num_steps:
            raise BadInput(f"{prompts.where}: found {prompts.shape[0]} rows, accepted is one a step ({num_steps})")
        _check_finite(prompts, [f"step {step + 1}" for step in range(num_steps)])
    digests = {"features": digest_file(path), "ids": "" if ids is None else digest_file(ids)}
    source = digest_fields("imported", **digests).hex()
    keys = [imported_image_key(source_digest=source, image_path=image_path) for image_path in image_paths]
    _write(features, keys, folder / _IMAGES, kind="imported images", source=source)
    if prompts is not None:
        prompt_keys = imported_prompt_keys(source_digest=source, num_steps=num_steps)
        _write(prompts, prompt_keys, folder / _PROMPTS, kind="imported prompts", source=source)
    return ImportCounts(images=len(keys), prompts=0 if prompts is None else num_steps, width=features.shape[1])


def open_imported_images(folder: Path, cases: Sequence[Case]) -> tuple[FeatureStore, list[bytes]]:
    """The store that `import_features` made and the key of each case, for `reading.load_features`.

    Raises:
      BadInput: there is no such store.
    """
    store = _open_store(folder / _IMAGES, "imported images")
    source = store.spec.digest
    return store, [imported_image_key(source_digest=source, image_path=case.image_path) for case in cases]


def open_imported_prompts(folder: Path, *, num_steps: int) -> tuple[FeatureStore, list[bytes]] | None:
    """The store of imported prompt features and the key of each step, or None where none were imported.

    Raises:
      BadInput: what is there is no such store.
    """
    if not (folder / _PROMPTS / DESCRIPTION_FILE).exists():
        return None
    store = _open_store(folder / _PROMPTS, "imported prompts")
    return store, imported_prompt_keys(source_digest=store.spec.digest, num_steps=num_steps)


def _open_store(folder: Path, kind: Kind) -> FeatureStore:
    store = FeatureStore(folder)
    if store.spec.kind != kind:
        raise BadInput(f"{folder}: found a store of kind {store.spec.kind!r}, accepted is {kind!r}")
    return store


def _open_parts(path: Path, ids: Path | None) -> tuple[ArrayFile, list[str], ArrayFile | None]:
    """The features, the ids, and the prompt features where there are any."""
    suffix = path.suffix.lower()
    if suffix not in (".npy", ".npz"):
        raise BadInput(f"{path}: found a file ending in {path.suffix!r}, accepted are .npy and .npz")
    if suffix == ".npy":
        if ids is None:
            raise BadInput(f"{path}: found no ids, accepted is an .npy with --ids FILE, or an .npz with an array ids")
        return open_array(path), read_ids(ids), None
    names = list_arrays(path)
    needed = ["features"] if ids is not None else ["features", "ids"]
    if any(names.count(name) != 1 for name in needed):
        raise BadInput(
            f"{path}: found the arrays {names[:_NUM_LISTED]}, accepted are {' and '.join(needed)}, each once"
        )
    texts = read_ids(ids) if ids is not None else read_texts(open_array(path, "ids"))
    prompts = open_array(path, "prompt_features") if "prompt_features" in names else None
    return open_array(path, "features"), texts, prompts


def _check_finite(features: ArrayFile, names: Sequence[str]) -> None:
    """Refuse features with a value that is not finite.

    Raises:
      BadInput: names the first rows.
    """
    bad = [
        start + int(row)
        for start, rows in read_features(features)
        for row in np.flatnonzero(~np.isfinite(rows).all(axis=1))
    ]
    if bad:
        shown = ", ".join(f"{row} ({names[row][:80]})" for row in bad[:_NUM_LISTED])
        raise BadInput(
            f"{features.where}: found values that are not finite in float32 in {len(bad)} rows: {shown}; accepted are "
            "finite ones"
        )


def _write(features: ArrayFile, keys: Sequence[bytes], folder: Path, *, kind: Kind, source: str) -> None:
    """Write the rows that the store does not have."""
    spec = StoreSpec(kind=kind, encoder=features.path.name, digest=source, width=features.shape[1])
    store = FeatureStore(folder, spec)
    for start, rows in read_features(features, max_rows=4096):
        wanted = [row for row in range(len(rows)) if keys[start + row] not in store]
        if wanted:
            store.write([keys[start + row] for row in wanted], rows[wanted])
