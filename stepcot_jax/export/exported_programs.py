"""Programs of an export, read by jax.export. Needs jax and numpy alone; every export of StableHLO has a copy.

It includes the part of FlatBuffers that jax.export needs and jax does not have.
"""

import importlib.util
import pathlib
import sys
import types
from collections.abc import Mapping
from typing import Any

import jax
import jax.export
import numpy as np

if __package__:
    from stepcot_jax.host.exported_files import RefusedExport
else:  # in the folder of an export
    from exported_files import RefusedExport  # type: ignore[import-not-found,no-redef]

_CALLS = "custom_call"
_HARMLESS_CALLS = ("custom_call @shape_assertion",)


def read_program(content: memoryview, folder: str | pathlib.Path) -> jax.export.Exported:
    """Return the program; programs with custom calls and programs that this jax cannot read are refused."""
    try:
        with _FlatBuffersIfAbsent():
            exported = jax.export.deserialize(bytearray(content))
        text = exported.mlir_module()
    except Exception as error:  # jax and its compiler raise many kinds
        raise RefusedExport(
            f"{folder}: jax {jax.__version__} cannot read the program ({type(error).__name__}); README.md says which "
            "versions can; export again from the run: stepcot export --checkpoint=RUN --out=DIR"
        ) from None
    if text.count(_CALLS) != sum(text.count(call) for call in _HARMLESS_CALLS):
        raise RefusedExport(f"{folder}: the program makes custom calls, which are not allowed")
    return exported


def require_fit(program: jax.export.Exported, tensors: Mapping[str, Any], where: str) -> None:
    """Refuse tensors whose names and shapes are not those of the program's first argument."""
    tree: Any = program.in_tree
    first = tree.children()[0].children()[0]
    leaves, structure = jax.tree.flatten(dict(tensors))
    shapes = [leaf.shape for leaf in leaves]
    if structure != first or shapes != [aval.shape for aval in program.in_avals[: len(shapes)]]:
        raise RefusedExport(f"{where}: names or shapes of {len(leaves)} tensors are not those that the program reads")


class _FlatBuffersIfAbsent:
    """Provides the table reader of the package flatbuffers (flatbuffers.dev) for jax.export, unless it is installed."""

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
