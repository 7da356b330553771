"""Hostile features and tensors for `hostile_files`: pipes and devices as .npy, .npz and ids; .safetensors."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from benchmarks.hostile_inputs import (
    MAKERS,
    NUM_CASES,
    Command,
    Make,
    hostile,
    make_pipe,
    published_folder,
)


def _import(root: Path, file: Path, *ids: Path) -> Command:
    published_folder(root)
    names = [f"--ids={path}" for path in ids]
    return ["features", str(file), *names, f"--root={root}", f"--store={root / 'store'}"]


def _features(root: Path, num_rows: int = NUM_CASES) -> Path:
    path = root / "features.npy"
    np.save(path, np.zeros((num_rows, 4), np.float32))
    return path


@hostile("features: pipe as .npy")
def _npy_pipe(root: Path, factor: float) -> Command:
    del factor
    (root / "ids.txt").write_text("a\n")
    return _import(root, make_pipe("a.npy", root), root / "ids.txt")


@hostile("features: pipe as .npz")
def _npz_pipe(root: Path, factor: float) -> Command:
    del factor
    return _import(root, make_pipe("a.npz", root))


@hostile("features: pipe as ids")
def _ids_pipe(root: Path, factor: float) -> Command:
    del factor
    return _import(root, _features(root), make_pipe("ids.txt", root))


def _zero(name: str) -> Make:
    def make(root: Path, factor: float) -> Command:
        del factor
        (root / name).symlink_to("/dev/zero")
        return _import(root, root / name) if name.endswith(".npz") else _import(root, _features(root), root / name)

    return make


for _name in ("a.npz", "ids.txt", "ids.csv", "ids.json"):
    MAKERS[f"features: /dev/zero as {_name}"] = _zero(_name)


@hostile("features: /dev/zero as .npy")
def _npy_zero(root: Path, factor: float) -> Command:
    del factor
    (root / "ids.txt").write_text("a\n")
    (root / "a.npy").symlink_to("/dev/zero")
    return _import(root, root / "a.npy", root / "ids.txt")


def _tensors(names: Callable[[float], Iterator[str]], *, to: str = "torch") -> Make:
    def make(root: Path, factor: float) -> Command:
        tensors = {name: {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for name in names(factor)}
        header = json.dumps(tensors).encode()
        (root / "a.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
        return ["convert", str(root / "a.safetensors"), str(root / "b.safetensors"), f"--to={to}"]

    return make


MAKERS["convert: a name inside of another"] = _tensors(lambda _: iter(["teacher/a", "teacher/a/b"]))
MAKERS["convert: a name inside of another, reversed"] = _tensors(lambda _: iter(["teacher/a/b", "teacher/a"]))
MAKERS["convert: a network without a name"] = _tensors(lambda _: iter(["teacher", "teacher/a"]))
MAKERS["convert: a network alone"] = _tensors(lambda _: iter(["teacher"]))
MAKERS["convert: a name of 20,000 parts"] = _tensors(lambda _: iter(["teacher" + "/a" * 20_000]))
MAKERS["convert: a name of 20 MB"] = _tensors(lambda factor: iter(["teacher/" + "a" * round(2e7 * factor)]))
MAKERS["convert: 500,000 names"] = _tensors(lambda factor: (f"teacher/{n}" for n in range(round(5e5 * factor))))
MAKERS["convert: 500,000 heads"] = _tensors(
    lambda factor: (f"teacher/heads/head_{n}/kernel" for n in range(round(5e5 * factor)))
)
MAKERS["convert: 500,000 foreign names"] = _tensors(lambda factor: (f"other/{n}" for n in range(round(5e5 * factor))))
MAKERS["convert: --to jax, 500,000 steps"] = _tensors(
    lambda factor: (f"teacher/step_models.{n}.a" for n in range(round(5e5 * factor))), to="jax"
)
MAKERS["convert: --to jax, a name of 20 MB"] = _tensors(
    lambda factor: iter(["teacher/" + "a" * round(2e7 * factor)]), to="jax"
)


@hostile("convert: a pipe")
def _convert_pipe(root: Path, factor: float) -> Command:
    del factor
    return ["convert", str(make_pipe("a.safetensors", root)), str(root / "b.safetensors"), "--to=torch"]


@hostile("convert: /dev/zero")
def _convert_zero(root: Path, factor: float) -> Command:
    del factor
    (root / "a.safetensors").symlink_to("/dev/zero")
    return ["convert", str(root / "a.safetensors"), str(root / "b.safetensors"), "--to=torch"]
