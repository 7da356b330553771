"""Merge the folders of all shards into the result of one run: records, funnel, reports set aside, images, ledgers."""

import itertools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from stepcot_jax.annotate.annotation import Aside
from stepcot_jax.annotate.llm.ledger import SUFFIX, merge_ledgers
from stepcot_jax.annotate.output import LEDGER_FOLDER, REPORTS, SET_ASIDE_NAME, WRITTEN, Result, bring_images
from stepcot_jax.annotate.sharding import FILE_NAME, Shard, ShardFile, read_shard_file
from stepcot_jax.data.records import data_json
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import read_file, write_whole
from stepcot_jax.host.locks import lock_folder
from stepcot_jax.host.text import one_line

_MAX_SET_ASIDE_BYTES = 1 << 28


class _Image(msgspec.Struct, frozen=True):
    image_path: str


def merge_shards(folders: Sequence[Path], out: Path, *, overwrite: bool = False) -> Result[bytes]:
    """Write what one run over all reports would have written, in the order of the source."""
    _require_distinct(folders, out)
    shards = {folder: read_shard_file(folder) for folder in folders}
    _require_one_run(shards)
    _require_every_shard(shards)
    _require_every_report(shards)
    with lock_folder(out):
        path = out / data_json.FILE_NAME
        if path.exists() and not overwrite:
            raise BadInput(f"{path} exists; choose another folder or pass --overwrite")
        result = _collect(shards)
        for folder, shard in shards.items():
            if shard.images:
                bring_images(
                    [msgspec.json.decode(raw, type=_Image) for raw in _read_records(folder, shard)],
                    source=folder,
                    folder=out,
                )
        for name in sorted({path.name for folder in folders for path in (folder / LEDGER_FOLDER).glob(f"*{SUFFIX}")}):
            merge_ledgers([folder / LEDGER_FOLDER / name for folder in folders], out / LEDGER_FOLDER / name)
        result.write(out)
        # As in a run, `data.json` comes last and marks a complete result.
        write_whole(path, msgspec.json.format(b"[" + b",".join(result.records) + b"]", indent=1) + b"\n")
    return result


def _require_distinct(folders: Sequence[Path], out: Path) -> None:
    seen: dict[Path, Path] = {}
    for folder in folders:
        resolved = folder.resolve()
        if resolved in seen:
            also = "" if seen[resolved] == folder else f" (also as {seen[resolved]})"
            raise BadInput(f"{folder}: the shard's folder was given twice{also}; expected each shard once")
        seen[resolved] = folder
    if out.resolve() in seen:
        raise BadInput(f"--out: {out} is one of the shards; choose another folder")


def _require_one_run(shards: dict[Path, ShardFile]) -> None:
    (first, expected), *others = shards.items()
    for folder, found in others:
        for field in ("count", "source", "settings"):
            if getattr(found, field) != getattr(expected, field):
                what = {
                    "count": f"is one of {found.count} shards, {first} one of {expected.count}",
                    "source": f"was made from another source than {first} (or the source changed in between)",
                    "settings": f"was made with {_name_difference(found.settings, expected.settings)} than {first}",
                }[field]
                raise BadInput(f"{folder / FILE_NAME}: {what}; expected the shards of one run")


def _name_difference(found: dict[str, object], expected: dict[str, object]) -> str:
    differing = [name for name in {**expected, **found} if found.get(name) != expected.get(name)]
    return (
        "other settings ("
        + "; ".join(
            f"{name}: {str(found.get(name))[:80]} instead of {str(expected.get(name))[:80]}" for name in differing
        )
        + ")"
    )


def _require_every_shard(shards: dict[Path, ShardFile]) -> None:
    count = next(iter(shards.values())).count
    by_index: dict[int, Path] = {}
    for folder, shard in shards.items():
        if shard.shard in by_index:
            raise BadInput(f"shard {shard.name} is in {by_index[shard.shard]} and in {folder}; pass each shard once")
        by_index[shard.shard] = folder
    missing = [str(Shard(index, count)) for index in range(count) if index not in by_index]
    if missing:
        more = f" and {len(missing) - 8} more" if len(missing) > 8 else ""
        raise BadInput(
            f"{len(missing)} of {count} shards are missing: {', '.join(missing[:8])}{more}; pass all folders"
        )


def _require_every_report(shards: dict[Path, ShardFile]) -> None:
    total = next(iter(shards.values())).total
    owner: dict[int, Path] = {}
    for folder, shard in shards.items():
        for position in itertools.chain((position for position, _ in shard.annotated), shard.unusable):
            if position in owner:
                raise BadInput(f"report {position} of the source is in {owner[position]} and in {folder}")
            owner[position] = folder
    missing = next((position for position in range(total) if position not in owner), None)
    if missing is not None or len(owner) != total:
        raise BadInput(f"{len(owner)} of {total} reports are in the shards; report {missing} of the source is in none")


def _collect(shards: dict[Path, ShardFile]) -> Result[bytes]:
    """Return the records and the reports set aside, in the order of the source."""
    result: Result[bytes] = Result(lambda outcome: [], units=REPORTS, written=WRITTEN)  # noqa: ARG005
    records: list[tuple[int, list[bytes]]] = []
    annotated: list[tuple[int, Aside]] = []
    unusable: list[tuple[int, Aside]] = []
    for folder, shard in shards.items():
        raw, asides = _read_records(folder, shard), _read_set_aside(folder, shard)
        for position, number in shard.annotated:
            if number:
                records.append((position, list(itertools.islice(raw, number))))
            else:
                annotated.append((position, next(asides)))
        unusable += zip(shard.unusable, asides, strict=True)
    by_position = lambda item: item[0]  # noqa: E731
    result.num_kept = len(records)
    result.records = [each for _, several in sorted(records, key=by_position) for each in several]
    result.set_aside = [aside for part in (annotated, unusable) for _, aside in sorted(part, key=by_position)]
    return result


def _read_records(folder: Path, shard: ShardFile) -> Iterator[bytes]:
    expected, path = sum(number for _, number in shard.annotated), folder / data_json.FILE_NAME
    if not path.exists():
        raise BadInput(f"{folder}: shard {shard.name} is not complete ({path.name} is missing); annotate it again")
    found = list(data_json.read_raw_records(path)) if expected else []
    if len(found) != expected:
        raise BadInput(f"{path} has {len(found)} records; its {FILE_NAME} says {expected}: annotate this shard again")
    return iter(found)


def _read_set_aside(folder: Path, shard: ShardFile) -> Iterator[Aside]:
    path = folder / SET_ASIDE_NAME
    expected = len(shard.unusable) + sum(not number for _, number in shard.annotated)
    try:
        content = read_file(path, max_bytes=_MAX_SET_ASIDE_BYTES, accepted="the reports set aside")
        found = msgspec.json.Decoder(Aside).decode_lines(content)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError, MemoryError) as error:
        reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else one_line(error)
        raise BadInput(f"{path} cannot be read ({reason}); annotate this shard again") from None
    if len(found) != expected:
        raise BadInput(f"{path} has {len(found)} lines; its {FILE_NAME} says {expected}: annotate this shard again")
    return iter(found)
