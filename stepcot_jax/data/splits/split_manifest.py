"""Splits as a file beside a run: written with what they were made from, read back only where that still holds."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import msgspec

from stepcot_jax.data.records.cases import Case
from stepcot_jax.data.records.record_reader import normalise_image_path
from stepcot_jax.data.records.records import SetAside
from stepcot_jax.data.splits.split_checks import SPLIT_NAMES, Splits, check_splits
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import read_json, write_whole

_ACCEPTED = "accepted is a manifest of splits as the project writes it"
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
    cases: Sequence[Case],
    *,
    source: str,
    seed: int | None = None,
    fractions: tuple[float, float, float] | None = None,
) -> None:
    """Writes which images are in which split, as JSON.

    Beside each image stands a checksum of its path, patient and labels, and at the end a SHA-256 digest of the
    whole, so that reading it tells a manifest that was altered from data that were.

    Args:
      path: the file.
      splits: indices into `cases`.
      cases: the cases.
      source: where the splits come from, such as "tables" or "made".
      seed: seed of splits that were made.
      fractions: fractions of splits that were made.
    """
    members = {name: [cases[index] for index in indices] for name, indices in splits.by_name().items()}
    manifest = _Manifest(
        source=source,
        seed=seed,
        fractions=fractions,
        splits={name: tuple(case.image_path for case in found) for name, found in members.items()},
        checksums={name: tuple(_checksum(case) for case in found) for name, found in members.items()},
    )
    manifest.digest = _digest(manifest)
    write_whole(Path(path), msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n")


def read_manifest(path: Path, cases: Sequence[Case], *, set_aside: Sequence[SetAside] = ()) -> Splits:
    """Reads the splits of a manifest.

    Args:
      path: file written by `write_manifest`.
      cases: the cases that it names, in any order.
      set_aside: records that it may name without a case being there.

    Raises:
      BadInput: the file is unreadable, has no digest or another than its content, names an image that is no
        case, leaves a case out, or a case has another patient or other labels than when it was split.
    """
    manifest = _decode(Path(path))
    place = {case.image_path: index for index, case in enumerate(cases)}
    aside = {normalise_image_path(item.image_path) for item in set_aside if item.image_path}
    named = [
        (image, checksum)
        for name in SPLIT_NAMES
        for image, checksum in zip(manifest.splits[name], manifest.checksums[name], strict=True)
    ]
    listed = {image for image, _ in named}
    unknown = [image for image, _ in named if image not in place and image not in aside]
    unlisted = [case.image_path for case in cases if case.image_path not in listed]
    changed = [image for image, checksum in named if image in place and _checksum(cases[place[image]]) != checksum]
    found = [
        f"{len(images)} {what} (first {images[0][:_NUM_SHOWN]!r})"
        for images, what in (
            (unknown, "images that the data do not have"),
            (unlisted, f"of the data's {len(cases)} images missing"),
            (changed, "images whose patient or labels have changed"),
        )
        if images
    ]
    if found:
        raise BadInput(
            f"{path}: the splits do not fit the data: found {', '.join(found)}; accepted are the data that were split, "
            "or splits made anew"
        )
    splits = Splits(
        *(tuple(sorted(place[image] for image in manifest.splits[name] if image in place)) for name in SPLIT_NAMES)
    )
    check_splits(splits, cases, source=str(path))
    return splits


def check_manifest(path: Path, splits: Splits, cases: Sequence[Case], *, set_aside: Sequence[SetAside] = ()) -> None:
    """Refuses splits other than those that a manifest keeps, as a run must that goes on with an earlier one.

    Args:
      path: file written by `write_manifest`.
      splits: what the run is about to use; indices into `cases`.
      cases: the cases.
      set_aside: records that the manifest may name without a case being there.

    Raises:
      BadInput: the manifest cannot be read or does not fit the data (see `read_manifest`), or a case is in another
        split than there; says how many are and names the first.
    """
    kept = read_manifest(path, cases, set_aside=set_aside)
    before = {index: name for name, indices in kept.by_name().items() for index in indices}
    now = {index: name for name, indices in splits.by_name().items() for index in indices}
    moved = [index for index in sorted(before) if now.get(index) != before[index]]
    if moved:
        first = moved[0]
        raise BadInput(
            f"{path}: found {len(moved)} of {len(cases)} images in another split than now (first "
            f"{cases[first].image_path[:_NUM_SHOWN]!r}: {before[first]} there, {now.get(first, 'none')} now); accepted "
            "are the same splits, or a new workdir"
        )


def _decode(path: Path) -> _Manifest:
    manifest = read_json(path, _Manifest, accepted=_ACCEPTED)
    if sorted(manifest.splits) != sorted(SPLIT_NAMES):
        raise BadInput(f"{path}: found splits {sorted(manifest.splits)[:5]}, accepted are {list(SPLIT_NAMES)}")
    if not manifest.digest:
        raise BadInput(
            f"{path}: found no digest: it was written by an earlier version, or not by this project; {_ACCEPTED} now, "
            "with a digest, in a new workdir"
        )
    if manifest.digest != _digest(manifest):
        raise BadInput(f"{path}: found a content that its digest does not fit: it was altered or damaged; {_ACCEPTED}")
    for name in SPLIT_NAMES:
        images = manifest.splits[name]
        if len(manifest.checksums.get(name, ())) != len(images) or len(set(images)) != len(images):
            raise BadInput(f"{path}: found an image twice or without a checksum in split {name}; {_ACCEPTED}")
    return manifest


def _checksum(case: Case) -> str:
    text = json.dumps([case.image_path, case.patient_id, case.labels])
    return hashlib.sha256(text.encode()).hexdigest()[:_NUM_CHECKSUM_DIGITS]


def _digest(manifest: _Manifest) -> str:
    content = msgspec.structs.replace(manifest, digest="")
    return hashlib.sha256(msgspec.json.encode(content, order="deterministic")).hexdigest()
