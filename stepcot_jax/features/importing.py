"""Import features made by any other program into a feature store."""

import codecs
import collections
import contextlib
import csv
import dataclasses
import io
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, NamedTuple

import msgspec
import numpy as np

from stepcot_jax.data.delimited import iterate_rows
from stepcot_jax.data.identities import fold_patient
from stepcot_jax.data.records.data_json import normalise_image_path
from stepcot_jax.features.store import DESCRIPTION_FILE, FeatureStore, Kind, StoreSpec, digest_fields, digest_file
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import read_file
from stepcot_jax.host.text import list_texts, one_line
from stepcot_jax.host.untrusted import exceeds, open_archive, open_untrusted, read_limits
from stepcot_jax.record import Record

# Read arrays and ids from untrusted files: no pickle, bounded headers, rows in blocks.

MAX_TEXT_BYTES = 256 * 2**20  # memory limit for the ids of a file
MAX_WIDTH = 65_536
ID_COLUMNS = ("image_path", "patient_id", "id", "ids")
_BLOCK_BYTES = 16 * 2**20
_EXPECTED = "expected a file written by numpy.save or numpy.savez"


@dataclasses.dataclass(frozen=True)
class ArrayFile:
    """An array in a file, with its header read."""

    path: Path
    member: str | None  # entry of an .npz; None for an .npy
    shape: tuple[int, ...]  # of the header, checked against the size of the entry
    dtype: np.dtype
    offset: int  # bytes before the first value

    @property
    def where(self) -> str:
        """File and entry, for messages."""
        return f"{self.path}: {self.member.removesuffix('.npy')}" if self.member else str(self.path)

    @property
    def num_bytes(self) -> int:
        """Bytes of all values."""
        return math.prod(self.shape) * self.dtype.itemsize

    def blocks(self, *, max_rows: int = 512) -> Iterator[tuple[int, np.ndarray]]:
        """Yield the index of the first row and the rows of each block of at most 16 MiB."""
        row_bytes = math.prod(self.shape[1:]) * self.dtype.itemsize
        num_rows = max(1, min(max_rows, _BLOCK_BYTES // max(1, row_bytes)))
        with _reading(self.where), _open(self.path, self.member) as file:
            file.read(self.offset)
            for start in range(0, self.shape[0], num_rows):
                count = min(num_rows, self.shape[0] - start)
                content = file.read(count * row_bytes)
                if len(content) != count * row_bytes:
                    raise ValueError(f"it ends before row {start + count} of {self.shape[0]}")
                yield start, np.frombuffer(content, self.dtype).reshape(count, *self.shape[1:])


@contextlib.contextmanager
def _reading(where: str) -> Iterator[None]:
    """Convert any error of reading a broken file to `BadInput`."""
    try:
        yield
    except BadInput:
        raise
    # zipfile, zlib and NumPy's header parser raise a dozen kinds of error for broken files.
    except Exception as error:
        raise BadInput(f"{where}: cannot be read ({one_line(error)}); {_EXPECTED}") from error


@contextlib.contextmanager
def _open(path: Path, member: str | None) -> Iterator[IO[bytes]]:
    if member is None:
        with open_untrusted(path, accepted="an .npy") as file:
            yield file
    else:
        with open_archive(path, accepted="an .npz") as archive, archive.open(member) as entry:
            yield entry


def open_array(path: Path, name: str | None = None) -> ArrayFile:
    """Read an array's header."""
    member = None if name is None else f"{name}.npy"
    where = str(path) if name is None else f"{path}: {name}"
    with _reading(where), _open(path, member) as file:
        version = np.lib.format.read_magic(file)
        if version == (1, 0):
            shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
        elif version == (2, 0):
            shape, fortran, dtype = np.lib.format.read_array_header_2_0(file)
        else:
            raise ValueError(f"its format version is {version}")
        offset = file.tell()
    if dtype.hasobject:
        raise BadInput(f"{where}: an array of Python objects; expected numbers or strings, such as array.astype(str)")
    if fortran and len(shape) > 1:
        raise BadInput(f"{where}: Fortran order; expected C order (numpy.ascontiguousarray)")
    array = ArrayFile(path, member, tuple(shape), dtype, offset)
    with _reading(where):
        num_bytes = _num_bytes(path, member) - offset
    if min(shape, default=0) < 0 or num_bytes != array.num_bytes:
        raise BadInput(f"{where}: {num_bytes} bytes of values, but shape {shape} needs {array.num_bytes}; {_EXPECTED}")
    return array


def _num_bytes(path: Path, member: str | None) -> int:
    if member is None:
        return path.stat().st_size
    with open_archive(path, accepted="an .npz") as archive:
        return archive.getinfo(member).file_size


def check_features(array: ArrayFile) -> None:
    """Check that an array can be features [case, width]."""
    if len(array.shape) != 2:
        raise BadInput(f"{array.where}: features must have shape [case, width]; got {array.shape}")
    if array.dtype.kind != "f" or array.dtype.itemsize > 8:
        raise BadInput(f"{array.where}: dtype {array.dtype} is not one of float16, float32, float64")
    if not 1 <= array.shape[1] <= MAX_WIDTH:
        raise BadInput(f"{array.where}: width {array.shape[1]} is not between 1 and {MAX_WIDTH}")


def read_features(array: ArrayFile, *, max_rows: int = 512) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the index of the first row and the rows float32 [case, width] of each block."""
    for start, rows in array.blocks(max_rows=max_rows):
        with np.errstate(over="ignore"):  # values beyond float32 become infinite and are refused later
            yield start, rows.astype(np.float32)


def read_texts(array: ArrayFile, *, most: int) -> list[str]:
    """Return a one-dimensional array of strings or whole numbers as strings."""
    where, megabytes, limit = array.where, array.num_bytes / 1e6, MAX_TEXT_BYTES / 1e6
    if len(array.shape) != 1 or array.dtype.kind not in "USiu":
        actual = f"{array.dtype} with shape {array.shape}"
        raise BadInput(f"{where}: expected a one-dimensional array of strings or whole numbers; got {actual}")
    if array.shape[0] > most:
        raise BadInput(f"{where}: {array.shape[0]} ids for {most} rows of features (expected one id per row)")
    if megabytes > limit:
        raise BadInput(f"{where}: ids take {megabytes:.0f} MB, more than {limit:.0f} MB")
    if array.dtype.kind in "US" and array.dtype.itemsize > 4 * read_limits().name:
        raise exceeds(where, f"ids of {array.dtype.itemsize} bytes", "name")
    values = [value for _, rows in array.blocks() for value in rows.tolist()]
    try:
        return [value.decode("utf-8") if isinstance(value, bytes) else str(value) for value in values]
    except UnicodeDecodeError as error:
        raise BadInput(f"{array.where}: bytes that are not UTF-8 ({error})") from error


def read_ids(path: Path, *, most: int) -> list[str]:
    """Return the ids of a file, in order."""
    expected = f"expected .txt (one id per line), .csv (column {' or '.join(ID_COLUMNS)}) or .json (a list of ids)"
    readers: dict[str, Callable[[bytes, Path], Iterator[str]]] = {
        ".txt": _read_lines,
        ".csv": _read_column,
        ".json": _read_list,
    }
    if (read := readers.get(path.suffix.lower())) is None:
        raise BadInput(f"{path}: suffix {path.suffix!r} is not supported; {expected}")
    longest, ids = read_limits().name, list[str]()
    try:
        content = read_file(path, max_bytes=MAX_TEXT_BYTES, accepted="a file of ids").removeprefix(codecs.BOM_UTF8)
        for identifier in read(content, path):
            if len(ids) == most:
                raise BadInput(f"{path}: more than {most} ids for {most} rows of features (expected one id per row)")
            if len(identifier) > longest:
                raise exceeds(path, f"id {len(ids) + 1} has {len(identifier)} characters", "name")
            ids.append(identifier)
    except BadInput:
        raise
    except (OSError, ValueError, RecursionError, csv.Error) as error:
        raise BadInput(f"{path}: cannot be read ({one_line(error)}); {expected}") from error
    return ids


def _read_lines(content: bytes, _: Path) -> Iterator[str]:
    for line in io.TextIOWrapper(io.BytesIO(content), encoding="utf-8"):
        yield from line.splitlines()  # str.splitlines knows more line ends than the iterator


def _read_list(content: bytes, _: Path) -> Iterator[str]:
    try:
        yield from map(str, msgspec.json.decode(content, type=list[str | int], strict=True))
    except msgspec.DecodeError as error:
        raise ValueError(f"not a list of strings or whole numbers: {error}") from error


def _read_column(content: bytes, path: Path) -> Iterator[str]:
    text = io.TextIOWrapper(io.BytesIO(content), encoding="utf-8", newline="")
    rows = iterate_rows(text, delimiter=",", path=path)
    _, header = next(rows, (0, []))
    column = next((header.index(name) for name in ID_COLUMNS if name in header), None)
    if column is None:
        raise ValueError(f"its columns are {list_texts(header)}")
    for _, cells in rows:
        if any(cells):
            yield cells[column] if column < len(cells) else ""


_IMAGES, _PROMPTS = "images", "prompts"
_MOST_FURTHER_ROWS = 10_000
_NUM_LISTED = 20
_NUM_SHOWN = 80


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
    features, texts, prompts = _open_parts(path, ids, most=2 * len(cases) + _MOST_FURTHER_ROWS)
    where, num_rows = str(ids) if ids is not None else f"{path}: ids", features.shape[0]
    if len(texts) != num_rows:
        raise BadInput(f"{where}: {len(texts)} ids for {num_rows} rows of features in {path} (expected one id per row)")
    image_paths = _match_ids(texts, cases, where=where)
    _check_finite(features, image_paths)
    num_steps = len(cases[0].answers)
    if prompts is not None:
        check_features(prompts)
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


def open_imported_images(folder: Path, cases: Sequence[Record]) -> tuple[FeatureStore, list[bytes]]:
    """Return the store of imported image features and the key of each case, for `store.open_features`."""
    store = _open_store(folder / _IMAGES, "imported images")
    return store, _image_keys(store.spec.digest, [case.image for case in cases])


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
    if not (folder / DESCRIPTION_FILE).exists():
        command = f"stepcot features import FEATURES.npz --root=DATA --store={folder.parent}"
        raise BadInput(f"{folder.parent}: holds no imported features; `{command}` makes them (docs/encoders.md)")
    store = FeatureStore(folder)
    if store.spec.kind != kind:
        raise BadInput(f"{folder}: the store is of kind {store.spec.kind!r}; expected {kind!r}")
    return store


def _open_parts(path: Path, ids: Path | None, *, most: int) -> tuple[ArrayFile, list[str], ArrayFile | None]:
    suffix = path.suffix.lower()
    if suffix not in (".npy", ".npz"):
        raise BadInput(f"{path}: suffix {path.suffix!r} is not .npy or .npz")
    if suffix == ".npy":
        if ids is None:
            raise BadInput(f"{path}: --ids is required with an .npy file (a file of ids)")
        features = open_array(path)
        return features, read_ids(ids, most=_count_rows(features, most)), None
    with _reading(str(path)), open_archive(path, accepted="an .npz") as archive:
        names = [name.removesuffix(".npy") for name in archive.namelist()]
    needed = ["features"] if ids is not None else ["features", "ids"]
    if any(names.count(name) != 1 for name in needed):
        raise BadInput(f"{path}: the arrays are {list_texts(names)}; expected {' and '.join(needed)}, each once")
    features = open_array(path, "features")
    num_rows = _count_rows(features, most)
    texts = read_ids(ids, most=num_rows) if ids is not None else read_texts(open_array(path, "ids"), most=num_rows)
    prompts = open_array(path, "prompt_features") if "prompt_features" in names else None
    return features, texts, prompts


def _count_rows(features: ArrayFile, most: int) -> int:
    """Return the number of rows, one per id; refuse far more rows than cases before ids are read."""
    check_features(features)
    if features.shape[0] > most:
        raise BadInput(f"{features.where}: {features.shape[0]} rows; expected one for each case, at most {most}")
    return features.shape[0]


def _check_finite(features: ArrayFile, names: Sequence[str]) -> None:
    """Refuse features with values that are not finite, naming the first rows."""
    bad = [
        start + int(row)
        for start, rows in read_features(features)
        for row in np.flatnonzero(~np.isfinite(rows).all(axis=1))
    ]
    if bad:
        shown = ", ".join(f"{row} ({names[row][:80]})" for row in bad[:_NUM_LISTED])
        raise BadInput(f"{features.where}: {len(bad)} rows have values that are not finite in float32: {shown}")


def _write(features: ArrayFile, keys: Sequence[bytes], folder: Path, *, kind: Kind, source: str) -> None:
    spec = StoreSpec(kind=kind, encoder=features.path.name, digest=source, width=features.shape[1])
    store = FeatureStore(folder, spec)
    for start, rows in read_features(features, max_rows=4096):
        wanted = [row for row in range(len(rows)) if keys[start + row] not in store]
        if wanted:
            store.write([keys[start + row] for row in wanted], rows[wanted])


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
                f"{where}: patient {identifier[:_NUM_SHOWN]!r} has {len(images)} images; expected an image path, such "
                f"as {images[0]!r}"
            )
        else:
            unknown.append(identifier)
    if unknown:
        raise BadInput(
            f"{where}: {len(unknown)} ids match no case: {_list(unknown)}; expected image paths, such as "
            f"{cases[0].image!r}, or ids of patients with one image"
        )
    repeated = [path for path, count in collections.Counter(matched).items() if count > 1]
    if repeated:
        raise BadInput(f"{where}: {len(repeated)} cases occur more than once: {_list(repeated)}")
    matched_paths = set(matched)
    missing = [case.image for case in cases if case.image not in matched_paths]
    if missing:
        raise BadInput(f"{where}: {len(missing)} of {len(cases)} cases are missing: {_list(missing)}")
    return matched


def _list(texts: Sequence[str]) -> str:
    shown = ", ".join(repr(text[:_NUM_SHOWN]) for text in texts[:_NUM_LISTED])
    return shown + (f" and {len(texts) - _NUM_LISTED} more" if len(texts) > _NUM_LISTED else "")
