"""Files of an export: compared with their digests, tensors, programs. Needs jax and numpy alone; load.py imports it.

Every export has a copy of this file. It includes the part of FlatBuffers that jax.export needs and jax does not have.

Every file is compared with SHA256SUMS before it is used, which detects damage. An attacker could change both: use only
exports from sources whose programs you would run.
"""

import dataclasses
import hashlib
import importlib.util
import json
import math
import pathlib
import struct
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.export
import numpy as np

SUMS = "SHA256SUMS"

_DTYPES = {"F32": np.float32, "F64": np.float64, "F16": np.float16, "I32": np.int32, "U8": np.uint8}
_CALLS = "custom_call"
_HARMLESS_CALLS = ("custom_call @shape_assertion",)


class RefusedExport(ValueError):
    """An export that is incomplete or changed, or that this loader cannot read."""


@dataclasses.dataclass(frozen=True)
class Preprocessing:
    """Size and normalisation of an image; preprocessing.json has all rules."""

    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def normalise(self, images: Any) -> np.ndarray:
        """Return the network's input, float32 [case, size, size, 3].

        Args:
          images: uint8 [case, size, size] (grey) or [case, size, size, 3], or normalised float32
            [case, size, size, 3].

        Raises:
          ValueError: another shape or type.
        """
        images = np.asarray(images)
        grey = images.ndim == 3 and images.dtype == np.uint8
        shape = (*images.shape, 3) if grey else images.shape
        if shape[1:] != (self.size, self.size, 3) or not shape[0] or images.dtype not in (np.uint8, np.float32):
            raise ValueError(
                f"images must be uint8[case, {self.size}, {self.size}], uint8[case, {self.size}, {self.size}, 3] or, "
                f"normalised, float32[case, {self.size}, {self.size}, 3]; got {images.dtype}{list(images.shape)}"
            )
        if images.dtype == np.float32:
            return images
        pixels = np.repeat(images[..., None], 3, axis=-1) if grey else images
        std = np.asarray(self.std)
        scale = (1.0 / (255.0 * std)).astype(np.float32)
        shift = (np.asarray(self.mean) / std).astype(np.float32)
        return pixels.astype(np.float32) * scale - shift


class Files:
    """The files of an export, compared with their digests.

    Args:
      folder: of the export; all files that SHA256SUMS names are compared at once.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder
        try:
            lines = (folder / SUMS).read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError) as error:
            raise RefusedExport(f"{folder / SUMS} cannot be read ({error}); the export is incomplete") from None
        self._digests: dict[str, str] = {}
        for line in lines:
            digest, _, name = line.partition("  ")
            if len(digest) != 64 or not name or pathlib.PurePath(name).name != name or "\\" in name:
                raise RefusedExport(f"{folder / SUMS}: {line[:100]!r} is not a digest and a file's name")
            self._digests[name] = digest
        self._contents = {name: self._compare(name) for name in self._digests}

    def read(self, name: str) -> memoryview:
        """Return the content of a verified file.

        Raises:
          RefusedExport: it has no digest.
        """
        if name not in self._contents:
            raise RefusedExport(f"{self._folder / SUMS} has no digest of {name}")
        return self._contents[name]

    def read_json(self, name: str) -> Any:
        """Return the content of a JSON file."""
        return json.loads(bytes(self.read(name)))

    def _compare(self, name: str) -> memoryview:
        path = self._folder / name
        try:
            content: Any = np.memmap(path, np.uint8, "r") if path.stat().st_size else np.zeros(0, np.uint8)
        except (OSError, ValueError) as error:
            raise RefusedExport(f"{path} cannot be read ({error}); the export is incomplete") from None
        if hashlib.sha256(content).hexdigest() != self._digests[name]:
            raise RefusedExport(f"{path} has changed since the export: its digest is not that of {SUMS}")
        return memoryview(content)


def read_safetensors(content: memoryview) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the tensors of a .safetensors file by name, as views of its content.

    Raises:
      RefusedExport: its lengths, types and offsets are inconsistent.
    """
    try:
        (length,) = struct.unpack_from("<Q", content)
        if length > len(content) - 8:
            raise ValueError("its header is longer than the file")
        header = json.loads(bytes(content[8 : 8 + length]))
        data = content[8 + length :]
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            (first, last), shape, dtype = entry["data_offsets"], entry["shape"], np.dtype(_DTYPES[entry["dtype"]])
            if not 0 <= first <= last <= len(data) or math.prod(shape) * dtype.itemsize != last - first:
                raise ValueError(f"{name} does not fit its place")
            yield name, np.frombuffer(data[first:last], dtype).reshape(shape)
    except (struct.error, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RefusedExport(f"the tensors cannot be read ({error}); expected a complete .safetensors file") from None


def read_program(content: memoryview, folder: str | pathlib.Path) -> jax.export.Exported:
    """Return the program; one with custom calls is refused."""
    with _FlatBuffersIfAbsent():
        exported = jax.export.deserialize(bytearray(content))
    text = exported.mlir_module()
    if text.count(_CALLS) != sum(text.count(call) for call in _HARMLESS_CALLS):
        raise RefusedExport(f"{folder}: the program makes custom calls, which are not allowed")
    return exported


class _FlatBuffersIfAbsent:
    """Provides the parts of the package flatbuffers that jax.export needs, unless it is installed.

    jax.export reads programs through generated classes on top of a small table reader. This is that reader, written
    from the format's description (flatbuffers.dev).
    """

    def __enter__(self) -> None:
        self._added: list[str] = []
        if "flatbuffers" not in sys.modules and importlib.util.find_spec("flatbuffers") is None:
            for name, module in _make_flatbuffers().items():
                sys.modules[name] = module
                self._added.append(name)

    def __exit__(self, *error: object) -> None:
        for name in self._added:
            sys.modules.pop(name, None)


class _Number:
    """A number's layout, with the attribute names of the generated classes."""

    py_type = int

    def __init__(self, layout: str) -> None:
        self.dtype = np.dtype(layout)


def _get(number: _Number, buffer: Any, position: int) -> Any:
    return np.frombuffer(buffer, number.dtype, 1, position)[0].item()


class _Table:
    """A table of a FlatBuffer: its first word is the offset back to the list of field offsets."""

    def __init__(self, buffer: Any, position: int) -> None:
        self.Bytes, self.Pos = buffer, position

    def Get(self, number: _Number, position: int) -> Any:  # noqa: N802
        return _get(number, self.Bytes, position)

    def Offset(self, field: int) -> int:  # noqa: N802
        """Return a field's offset from the table's start; 0 if the table lacks it."""
        fields = self.Pos - self.Get(_INT32, self.Pos)
        return self.Get(_UINT16, fields + field) if field < self.Get(_UINT16, fields) else 0

    def Indirect(self, position: int) -> int:  # noqa: N802
        return position + self.Get(_UINT32, position)

    def String(self, position: int) -> bytes:  # noqa: N802
        start = self.Indirect(position)
        return bytes(self.Bytes[start + 4 : start + 4 + self.Get(_UINT32, start)])

    def VectorLen(self, field: int) -> int:  # noqa: N802
        return self.Get(_UINT32, self.Indirect(self.Pos + field))

    def Vector(self, field: int) -> int:  # noqa: N802
        return self.Indirect(self.Pos + field) + 4

    def GetVectorAsNumpy(self, number: _Number, field: int) -> np.ndarray:  # noqa: N802
        return np.frombuffer(self.Bytes, number.dtype, self.VectorLen(field), self.Vector(field))


_UINT16, _INT32, _UINT32 = _Number("<u2"), _Number("<i4"), _Number("<u4")


def _make_flatbuffers() -> dict[str, types.ModuleType]:
    """Return the parts of the package flatbuffers that reading needs, by module name."""
    layouts = {"Bool": "?", "Int8": "i1", "Uint8": "u1", "Int16": "<i2", "Uint16": "<u2", "Int32": "<i4"}
    layouts |= {"Uint32": "<u4", "Int64": "<i8", "Uint64": "<u8", "UOffsetT": "<u4"}
    contents: dict[str, Mapping[str, Any]] = {
        "number_types": {f"{name}Flags": _Number(layout) for name, layout in layouts.items()},
        "table": {"Table": _Table},
        "encode": {"Get": _get},
        "packer": {"uoffset": _UINT32},
        "compat": {"import_numpy": lambda: np},
    }
    package = types.ModuleType("flatbuffers")
    modules = {"flatbuffers": package}
    for name, content in contents.items():
        module = modules[f"flatbuffers.{name}"] = types.ModuleType(f"flatbuffers.{name}")
        vars(module).update(content)
        setattr(package, name, module)
    return modules
