"""`splits.json`: the splits of a run, with checksums that tie them to the data."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from stepcot_jax.data.records.cases import Case, CaseTable, SetAside, as_table
from stepcot_jax.data.records.record_reader import normalise_image_path
from stepcot_jax.data.splits.splits import SPLIT_NAMES, Splits
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import MAX_LISTING_BYTES, read_json, write_whole

_EXPECTED = "expected a manifest of splits that this project wrote"
_NUM_SHOWN = 80
_NUM_CHECKSUM_DIGITS = 16


class _Manifest(msgspec.Struct, kw_only=True):
    """The file; `seed` and `fractions` are null unless an earlier version wrote it."""

    source: str
    seed: int | None = None
    fractions: tuple[float, float, float] | None = None
    splits: dict[str, tuple[str, ...]]
    checksums: dict[str, tuple[str, ...]] = {}
    digest: str = ""


def write_manifest(path: Path, splits: Splits, cases: Iterable[Case], *, source: str) -> None:
    """Write which images are in which split, as JSON; `source` says in words where the splits come from.

    Each image comes with a checksum of its path, patient and labels, and the whole with a SHA-256 digest, so that an
    altered manifest can be distinguished from altered data.
    """
    table, members = as_table(cases), splits.by_name()
    checksums = _compute_checksums(table)
    manifest = _Manifest(
        source=source,
        splits={name: tuple(table.image_paths[index] for index in found) for name, found in members.items()},
        checksums={name: tuple(checksums[index] for index in found) for name, found in members.items()},
    )
    manifest.digest = _digest(manifest)
    write_whole(Path(path), msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n")


def check_manifest(path: Path, splits: Splits, cases: Iterable[Case], *, set_aside: Sequence[SetAside] = ()) -> None:
    """Refuse splits that differ from a manifest's, for a run that resumes."""
    manifest, table = _decode(Path(path)), as_table(cases)
    checksums = dict(zip(table.image_paths, _compute_checksums(table), strict=True))
    aside = {normalise_image_path(item.image_path) for item in set_aside if item.image_path}
    split_of = {image: name for name in SPLIT_NAMES for image in manifest.splits[name]}
    written = {
        image: checksum
        for name in SPLIT_NAMES
        for image, checksum in zip(manifest.splits[name], manifest.checksums[name], strict=True)
    }
    differences = {
        "images are not in the data": [image for image in written if image not in checksums and image not in aside],
        f"of the data's {len(table)} images are missing": [image for image in checksums if image not in written],
        "images have another patient or other labels": [
            image for image in written if checksums.get(image, written[image]) != written[image]
        ],
    }
    found = [
        f"{len(images)} {what} (first {images[0][:_NUM_SHOWN]!r})" for what, images in differences.items() if images
    ]
    if found:
        raise BadInput(f"{path}: the splits do not match the data: {', '.join(found)}; split these data anew")
    now = {table.image_paths[index]: name for name, indices in splits.by_name().items() for index in indices}
    moved = [image for image in checksums if now.get(image) != split_of[image]]
    if moved:
        first = moved[0]
        raise BadInput(
            f"{path}: {len(moved)} of {len(table)} images are in another split now (first {first[:_NUM_SHOWN]!r}: "
            f"{split_of[first]} there, {now.get(first, 'none')} now); use the same splits or a new workdir"
        )


def read_members(path: Path) -> dict[str, tuple[str, ...]]:
    """Return the image paths of each split of a manifest."""
    return dict(_decode(Path(path)).splits)


def _decode(path: Path) -> _Manifest:
    manifest = read_json(path, _Manifest, accepted=_EXPECTED, max_bytes=MAX_LISTING_BYTES)
    if sorted(manifest.splits) != sorted(SPLIT_NAMES):
        raise BadInput(f"{path}: splits {sorted(manifest.splits)[:5]} are not {list(SPLIT_NAMES)}")
    if not manifest.digest:
        raise BadInput(f"{path}: no digest (an earlier version wrote it, or another program); start in a new workdir")
    if manifest.digest != _digest(manifest):
        raise BadInput(f"{path}: the content does not match its digest: it was altered or damaged; {_EXPECTED}")
    return manifest


def _compute_checksums(table: CaseTable) -> list[str]:
    rows = zip(table.image_paths, table.patient_ids, table.labels.tolist(), strict=True)
    return [hashlib.sha256(json.dumps(row).encode()).hexdigest()[:_NUM_CHECKSUM_DIGITS] for row in rows]


def _digest(manifest: _Manifest) -> str:
    content = msgspec.structs.replace(manifest, digest="")
    return hashlib.sha256(msgspec.json.encode(content, order="deterministic")).hexdigest()
