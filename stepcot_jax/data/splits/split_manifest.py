"""`splits.json`: the splits of a run, with checksums that tie them to the data."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from stepcot_jax.data.records.cases import Case, CaseTable, SetAside, as_table
from stepcot_jax.data.records.record_reader import normalise_image_path
from stepcot_jax.data.splits.splits import SPLIT_NAMES, Splits, check_splits
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import read_json, write_whole

_EXPECTED = "expected a manifest of splits that this project wrote"
_NUM_SHOWN = 80
_NUM_CHECKSUM_DIGITS = 16


class _Manifest(msgspec.Struct, kw_only=True):
    source: str
    seed: int | None
    fractions: tuple[float, float, float] | None
    splits: dict[str, tuple[str, ...]]
    checksums: dict[str, tuple[str, ...]] = {}
    digest: str = ""


def write_manifest(
    path: Path,
    splits: Splits,
    cases: Iterable[Case],
    *,
    source: str,
    seed: int | None = None,
    fractions: tuple[float, float, float] | None = None,
) -> None:
    """Write which images are in which split, as JSON.

    Each image comes with a checksum of its path, patient and labels, and the whole with a SHA-256 digest: reading it
    tells an altered manifest from altered data.

    Args:
      path: the file.
      splits: indices into `cases`.
      cases: the cases.
      source: where the splits come from, such as "tables" or "made".
      seed: seed of splits that were made.
      fractions: fractions of splits that were made.
    """
    table, members = as_table(cases), splits.by_name()
    checksums = _compute_checksums(table)
    manifest = _Manifest(
        source=source,
        seed=seed,
        fractions=fractions,
        splits={name: tuple(table.image_paths[index] for index in found) for name, found in members.items()},
        checksums={name: tuple(checksums[index] for index in found) for name, found in members.items()},
    )
    manifest.digest = _digest(manifest)
    write_whole(Path(path), msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n")


def read_manifest(path: Path, cases: Iterable[Case], *, set_aside: Sequence[SetAside] = ()) -> Splits:
    """Read the splits of a manifest.

    Args:
      path: file written by `write_manifest`.
      cases: the cases that it names, in any order.
      set_aside: records that it may name although they are no cases.

    Raises:
      BadInput: the file is unreadable or does not match its digest, names an image that is no case, lacks a case, or a
        case has another patient or other labels than when it was split.
    """
    manifest, table = _decode(Path(path)), as_table(cases)
    place = {table.image_paths[index]: index for index in range(len(table))}
    checksums = _compute_checksums(table)
    aside = {normalise_image_path(item.image_path) for item in set_aside if item.image_path}
    named = {
        image: checksum
        for name in SPLIT_NAMES
        for image, checksum in zip(manifest.splits[name], manifest.checksums[name], strict=True)
    }
    found = [
        f"{len(images)} {what} (first {images[0][:_NUM_SHOWN]!r})"
        for images, what in (
            ([image for image in named if image not in place and image not in aside], "images are not in the data"),
            ([image for image in place if image not in named], f"of the data's {len(table)} images are missing"),
            (
                [image for image in named if image in place and checksums[place[image]] != named[image]],
                "images have another patient or other labels",
            ),
        )
        if images
    ]
    if found:
        raise BadInput(f"{path}: the splits do not match the data: {', '.join(found)}; split these data anew")
    splits = Splits(
        *(tuple(sorted(place[image] for image in manifest.splits[name] if image in place)) for name in SPLIT_NAMES)
    )
    check_splits(splits, table, source=str(path))
    return splits


def check_manifest(path: Path, splits: Splits, cases: Iterable[Case], *, set_aside: Sequence[SetAside] = ()) -> None:
    """Refuse splits that differ from a manifest's, for a run that resumes.

    Args:
      path: file written by `write_manifest`.
      splits: the splits that the run would use; indices into `cases`.
      cases: the cases.
      set_aside: records that the manifest may name although they are no cases.

    Raises:
      BadInput: the manifest is unreadable or does not match the data (see `read_manifest`), or a case is in another
        split.
    """
    table = as_table(cases)
    kept = read_manifest(path, table, set_aside=set_aside)
    before = {index: name for name, indices in kept.by_name().items() for index in indices}
    now = {index: name for name, indices in splits.by_name().items() for index in indices}
    moved = [index for index in sorted(before) if now.get(index) != before[index]]
    if moved:
        first = moved[0]
        raise BadInput(
            f"{path}: {len(moved)} of {len(table)} images are in another split now (first "
            f"{table.image_paths[first][:_NUM_SHOWN]!r}: {before[first]} there, {now.get(first, 'none')} now); use the "
            "same splits or a new workdir"
        )


def _decode(path: Path) -> _Manifest:
    manifest = read_json(path, _Manifest, accepted=_EXPECTED)
    if sorted(manifest.splits) != sorted(SPLIT_NAMES):
        raise BadInput(f"{path}: splits {sorted(manifest.splits)[:5]} are not {list(SPLIT_NAMES)}")
    if not manifest.digest:
        raise BadInput(f"{path}: no digest (an earlier version wrote it, or another program); start in a new workdir")
    if manifest.digest != _digest(manifest):
        raise BadInput(f"{path}: the content does not match its digest: it was altered or damaged; {_EXPECTED}")
    listed = [image for name in SPLIT_NAMES for image in manifest.splits[name]]
    for name in SPLIT_NAMES:
        images = manifest.splits[name]
        if len(manifest.checksums.get(name, ())) != len(images) or len(set(images)) != len(images):
            raise BadInput(f"{path}: an image of split {name} is there twice or has no checksum; {_EXPECTED}")
    if len(set(listed)) != len(listed):
        raise BadInput(f"{path}: an image is in more than one split; {_EXPECTED}")
    return manifest


def _compute_checksums(table: CaseTable) -> list[str]:
    labels = table.labels.tolist()
    texts = (
        json.dumps([table.image_paths[index], table.patient_ids[index], labels[index]]) for index in range(len(table))
    )
    return [hashlib.sha256(text.encode()).hexdigest()[:_NUM_CHECKSUM_DIGITS] for text in texts]


def _digest(manifest: _Manifest) -> str:
    content = msgspec.structs.replace(manifest, digest="")
    return hashlib.sha256(msgspec.json.encode(content, order="deterministic")).hexdigest()
