"""Folders that this package writes: values by their class as JSON, and digests of the files that are written once.

A value is a dataclass or a `msgspec.Struct`, which is decoded as it is: what stands in exports, which are strangers',
has its ranges in its class. JSON has no arrays of NumPy, which are nested lists, and neither infinity nor NaN: they
are "inf", "-inf" and "nan". Each file names the version that wrote it, for nothing is promised to other versions.
"""

import dataclasses
import importlib
import math
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar, get_type_hints

import msgspec
import numpy as np

from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import digest_file, read_file, write_whole, writing_whole
from stepcot_jax.host.text import one_line

T = TypeVar("T")

DIGESTS = "digests.sha256"
"""File with the digests of a folder's files that are written once, as `sha256sum -c` reads it."""

_VERSION = "stepcot_jax"
_RUNNING: str = importlib.import_module("stepcot_jax").__version__  # for mypy an import would tie all modules together
_WRITTEN_BY = re.compile(rb'"stepcot_jax":\s*"([\w.+-]{1,40})"')
_MAX_BYTES = 2**26
_MAX_DIGESTS = 2**20


def save(path: str | os.PathLike[str], value: Any) -> None:
    """Write a value as JSON, atomically."""
    plain = {_VERSION: _RUNNING, **_without_infinity(msgspec.to_builtins(value, enc_hook=_to_list))}
    write_whole(path, msgspec.json.format(msgspec.json.encode(plain), indent=1) + b"\n")


def load(path: str | os.PathLike[str], kind: type[T], *, max_bytes: int = _MAX_BYTES) -> T:
    """Return the value of a class that `save` wrote."""
    path = Path(path)
    try:
        content = read_file(path, max_bytes=max_bytes, accepted="a JSON file")
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror})") from None
    try:  # not strict: numbers may be "inf" and "nan"
        return msgspec.json.decode(content, type=kind, strict=False, dec_hook=_make_array)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, MemoryError, OverflowError) as error:
        found = _WRITTEN_BY.search(content)
        versions = f"written by stepcot_jax {found[1].decode() if found else '?'}, read by {_RUNNING}"
        raise BadInput(f"{path}: {one_line(error) or type(error).__name__} ({versions})") from None


def save_arrays(path: str | os.PathLike[str], values: Mapping[str, Any]) -> None:
    """Write dataclasses of arrays and numbers, by name, to one .npz file without pickle, atomically."""
    arrays = {_VERSION: np.array(_RUNNING)}
    for name, value in values.items():
        arrays |= {f"{name}/{part.name}": np.asarray(getattr(value, part.name)) for part in dataclasses.fields(value)}
    with writing_whole(path) as file:
        np.savez(file, allow_pickle=False, **arrays)


def load_arrays(path: str | os.PathLike[str], name: str, kind: type[T]) -> T | None:
    """Return a value of a class that `save_arrays` wrote; None if there is no file, or it has none of this name."""
    from stepcot_jax.host.array_files import read_arrays  # which a policy never needs

    path = Path(path)
    if not path.exists():
        return None
    arrays = read_arrays(path, accepted="arrays", expected=f"expected the {path.name} of a run")
    own = {key.removeprefix(f"{name}/"): array for key, array in arrays.items() if key.startswith(f"{name}/")}
    if not own:
        return None
    hints = get_type_hints(kind)
    plain = {key: array if hasattr(hints.get(key), "dtypes") else array.tolist() for key, array in own.items()}
    try:
        return msgspec.convert(plain, kind, dec_hook=lambda _, array: array)
    except msgspec.ValidationError as error:
        versions = f"written by stepcot_jax {str(arrays.get(_VERSION, '?'))[:40]}, read by {_RUNNING}"
        raise BadInput(f"{path}, {name!r}: {one_line(error)} ({versions})") from None


def write_digests(folder: Path, names: Iterable[str], *, way_out: str) -> None:
    """Write the digests of those of the named files that exist, and keep those of other files."""
    digests = _read_digests(folder, way_out)
    for name in names:
        digests.pop(name, None)
        if (folder / name).is_file():
            digests[name] = digest_file(folder / name)[1]
    lines = [f"{digest}  {name}\n" for name, digest in sorted(digests.items())]
    write_whole(folder / DIGESTS, "".join(lines).encode())


def check_digests(folder: Path, *, way_out: str) -> None:
    """Refuse a file that differs from what was written, and one that is missing; no file where there are no digests."""
    for name, digest in _read_digests(folder, way_out).items():
        if not (folder / name).exists() or digest_file(folder / name)[1] != digest:
            found = "changed since it was written" if (folder / name).exists() else "missing"
            raise BadInput(f"{folder / name}: {found} ({DIGESTS} has its digest); {way_out}")


def _read_digests(folder: Path, way_out: str) -> dict[str, str]:
    digests, path = dict[str, str](), folder / DIGESTS
    content = read_file(path, max_bytes=_MAX_DIGESTS, accepted="digests") if path.exists() else b""
    for line in content.decode("utf-8", "replace").splitlines():
        digest, _, name = line.partition("  ")
        if len(digest) != 64 or not name or {"..", "/"} & set(PurePosixPath(name).parts):
            raise BadInput(f"{path}: {line[:100]!r} is not a digest and the name of a file; {way_out}")
        digests[name] = digest
    return digests


def _without_infinity(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_infinity(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_infinity(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _to_list(value: Any) -> Any:
    return value.tolist()  # an array of NumPy, or one of its numbers


def _make_array(kind: Any, value: Any) -> np.ndarray:
    """Return an array of a jaxtyping annotation such as `Float64[np.ndarray, "step"]`, whose rank msgspec compares."""
    return np.array(value, kind.dtypes[0])
