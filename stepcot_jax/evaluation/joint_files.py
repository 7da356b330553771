"""Joint models on disk, as JSON: one tree of answers, and weights for each network."""

import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec
import numpy as np
from jaxtyping import Float64

from stepcot_jax.chain import Chain
from stepcot_jax.evaluation.joint import AnswerTree, JointModel
from stepcot_jax.evaluation.predictions import refuse_other_chain
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import read_json, write_json

_LAYOUT = "stepcot_jax joint model 3"
_MAX_BYTES = 2**26
_TOLERANCE = 1e-6

_Share = Annotated[float, msgspec.Meta(ge=1e-30, le=1)]  # products of smaller ones underflow
_Weight = Annotated[float, msgspec.Meta(ge=0, le=2)]
_Temperature = Annotated[float, msgspec.Meta(ge=1e-6, le=1e6)]
_Growth = Annotated[float, msgspec.Meta(ge=-1, le=1)]


class _FileStep(msgspec.Struct, frozen=True):
    name: str
    options: tuple[str, ...]
    parent: int | None
    table: list[list[list[_Share]]]


class _FileModel(msgspec.Struct, frozen=True):
    temperatures: list[_Temperature]
    weights: list[_Weight]
    exponents: list[tuple[_Weight, _Weight, _Growth]] = []
    conflict_limit: float | None = None
    mixtures: list[tuple[_Temperature, _Temperature, Annotated[float, msgspec.Meta(ge=0, lt=1)]]] = []


class _File(msgspec.Struct, frozen=True):
    layout: str
    steps: list[_FileStep]
    models: dict[str, _FileModel]


def write_joints(path: str | os.PathLike[str], joints: Mapping[str, JointModel], chain: Chain) -> None:
    """Write the joint models of a run's networks, which share their tree, atomically."""
    tree = next(iter(joints.values())).tree
    tables, parents = [*tree.tables, tree.last[None, None]], [*tree.parents, None]
    steps = [
        {"name": step.name, "options": list(step.options), "parent": parent, "table": table.tolist()}
        for step, parent, table in zip(chain.steps, parents, tables, strict=True)
    ]
    models = {
        name: {
            "temperatures": list(joint.temperatures),
            "weights": list(joint.weights),
            "exponents": [list(of_step) for of_step in joint.exponents],
            "conflict_limit": joint.conflict_limit,
            "mixtures": [list(of_step) for of_step in joint.mixtures],
        }
        for name, joint in joints.items()
    }
    write_json(path, {"layout": _LAYOUT, "steps": steps, "models": models})


def read_joint(path: str | os.PathLike[str], chain: Chain, *, model: str) -> JointModel | None:
    """Read a network's joint model; None if there is no such file, or it has none of this network."""
    if not pathlib.Path(path).exists():
        return None
    file = read_json(path, _File, accepted="expected the joint.json of a run", max_bytes=_MAX_BYTES)
    if file.layout != _LAYOUT:
        raise BadInput(f"{path}, 'layout': {file.layout[:80]!r} is not {_LAYOUT!r}")
    described = [(step.name, step.options) for step in file.steps]
    refuse_other_chain(f"{path}: joint model of another chain", described, chain)
    *steps, last = file.steps
    tree = AnswerTree(
        _read_table(path, last, (1, 1, chain.steps[-1].num_answers))[0, 0],
        tuple(step.parent for step in steps),
        tuple(_read_table(path, step, _shape(path, step, steps, chain)) for step in steps),
    )
    if last.parent is not None or sorted(tree.order) != list(range(len(steps))):
        raise BadInput(f"{path}, 'parent': {[*tree.parents, last.parent]} are not a tree of the steps before the last")
    if model not in file.models:
        return None
    stored = file.models[model]
    for field, accepted in (("temperatures", ()), ("weights", ()), ("exponents", (0,)), ("mixtures", (0,))):
        if (found := len(getattr(stored, field))) not in (chain.num_steps, *accepted):
            raise BadInput(f"{path}, {model!r}, {field!r}: found {found} numbers, expected {chain.num_steps}")
    return JointModel(
        tree,
        tuple(stored.temperatures),
        tuple(stored.weights),
        tuple(stored.exponents),
        stored.conflict_limit,
        tuple(stored.mixtures),
    )


def _shape(
    path: str | os.PathLike[str], step: _FileStep, steps: Sequence[_FileStep], chain: Chain
) -> tuple[int, int, int]:
    if step.parent is not None and not 0 <= step.parent < len(steps):
        raise BadInput(f"{path}, {step.name!r}, 'parent': {step.parent} is not null or 0 to {len(steps) - 1}")
    num_parent = 1 if step.parent is None else len(steps[step.parent].options)
    return chain.steps[-1].num_answers, num_parent, len(step.options)


def _read_table(
    path: str | os.PathLike[str], step: _FileStep, shape: tuple[int, int, int]
) -> Float64[np.ndarray, "last parent answer"]:
    if len(step.table) != shape[0] or any(len(rows) != shape[1] for rows in step.table):
        raise BadInput(f"{path}, {step.name!r}, 'table': expected {shape[0]} times {shape[1]} rows")
    if any(len(row) != shape[2] or abs(sum(row) - 1) > _TOLERANCE for rows in step.table for row in rows):
        raise BadInput(f"{path}, {step.name!r}, 'table': expected rows of {shape[2]} shares that sum to 1")
    return np.array(step.table)
